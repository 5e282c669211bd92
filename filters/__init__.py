"""Predicates that decide which events of a topic a group wants.

General layout, for the next person: `simple`, `jsonpath`, `custom`, `compound` and `dialects` hold one kind of filter
each, on the common ground of `base`; `serial` reads them from plain data. Below are `paths` (where a value stands),
`operators` (what is asked of it), `values` (what equal and less mean), and, since nobody's expression may stall the
bus, `regex` (linear time) and `budget` (counted steps), which both JSONPath engines, `jsonpath_rfc` and
`jsonpath_extended`, pay from.
"""

from filters.base import BaseFilter
from filters.compound import CompoundFilter
from filters.custom import CustomFunctionFilter
from filters.dialects import AttributeFilter, all_of, any_of, exact, none_of, prefix, suffix
from filters.jsonpath import JSONPathFilter
from filters.serial import filter_from
from filters.simple import SimpleFilter

__all__ = [
    "AttributeFilter",
    "BaseFilter",
    "CompoundFilter",
    "CustomFunctionFilter",
    "JSONPathFilter",
    "SimpleFilter",
    "all_of",
    "any_of",
    "exact",
    "filter_from",
    "none_of",
    "prefix",
    "suffix",
]
