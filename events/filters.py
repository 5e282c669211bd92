"""The filters, under the name by which the bus's users know them."""

from filters import CompoundFilter, CustomFunctionFilter, JSONPathFilter, SimpleFilter

__all__ = ["CompoundFilter", "CustomFunctionFilter", "JSONPathFilter", "SimpleFilter"]
