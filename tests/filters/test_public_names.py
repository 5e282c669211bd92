"""The names that users import."""

import events.filters
import filters


def test_the_public_names() -> None:
    """The surface is what is listed here; a change to it is a change for users."""
    assert sorted(filters.__all__) == [
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
    assert all(hasattr(filters, name) for name in filters.__all__)


def test_filters_import_from_events_too() -> None:
    """`from events.filters import SimpleFilter` gives the very same classes."""
    for name in ("SimpleFilter", "CompoundFilter", "JSONPathFilter", "CustomFunctionFilter"):
        assert getattr(events.filters, name) is getattr(filters, name)
