"""Conditions, filters and the completion of names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from events.cli.selection import complete_group, complete_space, complete_topic, condition_of, filters_of, value_of
from events.errors import InvalidMessage
from filters import SimpleFilter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("payload.n=3", SimpleFilter("payload.n", 3)),
        ("n = 3", SimpleFilter("payload.n", 3)),
        ("n=abc", SimpleFilter("payload.n", "abc")),
        ('n="3"', SimpleFilter("payload.n", "3")),
        ("n=", SimpleFilter("payload.n", "")),
        ("n!=true", SimpleFilter("payload.n", True, "ne")),
        ("n<=1.5", SimpleFilter("payload.n", 1.5, "le")),
        ("n>=1", SimpleFilter("payload.n", 1, "ge")),
        ("n<1", SimpleFilter("payload.n", 1, "lt")),
        ("n>1", SimpleFilter("payload.n", 1, "gt")),
        ("text~^a=b", SimpleFilter("payload.text", "^a=b", "regex")),
        ("priority=high", SimpleFilter("meta.priority", "high")),
        ("actor.user_id=ann", SimpleFilter("meta.actor.user_id", "ann")),
        ("meta.key?", SimpleFilter("meta.key", True, "exists")),
        ("deep.er?", SimpleFilter("payload.deep.er", True, "exists")),
    ],
)
def test_a_condition_is_a_simple_filter(text: str, expected: SimpleFilter) -> None:
    """The operator, the value as JSON if it is some, and the root that goes without saying."""
    assert condition_of(text) == expected


@pytest.mark.parametrize("text", ["", "n", "=3", "~x", "n>[1]"])
def test_no_condition_is_refused(text: str) -> None:
    """With the rule, or with what the operator wants."""
    with pytest.raises(InvalidMessage):
        condition_of(text)


def test_options_add_up() -> None:
    """Conditions, a type and a filter: all must match."""
    found = filters_of(["n=1", "m=2"], '{"path": "meta.key", "op": "exists", "value": true}', "NOTED")
    assert len(found) == 4
    assert filters_of(None, None, None) == []


def test_words_are_json_where_they_are_some() -> None:
    """What JSON does not know stays text, NaN included."""
    assert [value_of(text) for text in ("3", "true", "null", '"x"', "x", "NaN", "{")] == [
        3,
        True,
        None,
        "x",
        "x",
        "NaN",
        "{",
    ]


def test_names_are_completed_from_the_workspace(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, spaces and groups that begin so; silently nothing where there is no workspace."""
    here = cast(typer.Context, SimpleNamespace(params={"workspace": filled}))
    assert complete_topic(here, "") == ["actions", "outcomes", "perception"]
    assert complete_topic(here, "pe") == ["perception"]
    assert complete_space(here, "w") == ["work"]
    assert complete_group(here, "") == ["actor", "memory", "planner"]
    nowhere: Any = SimpleNamespace(params={})
    assert complete_topic(nowhere, "") == []
    monkeypatch.setenv("EVENTS_NONSENSE", "1")
    assert complete_topic(nowhere, "") == []
