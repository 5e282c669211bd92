"""The error tree: codes, messages, and how an error travels."""

import inspect
import pickle
import re

import pytest

from events import errors
from events.errors import (
    BusClosed,
    BusError,
    CorruptLog,
    Denied,
    ForkedProcess,
    GroupConflict,
    InvalidGroup,
    InvalidMessage,
    InvalidSpace,
    InvalidTopic,
    LogPoisoned,
    NoSubscriber,
    OffsetGone,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    ReadOnly,
    StorageError,
    StorageFull,
    TopicAlreadyHandled,
    TopicFrozen,
    UnknownGroup,
    UnsupportedPlatform,
    WorkspaceLocked,
    error_code_of,
    shown,
)

CLASSES: list[type[BusError]] = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BusError)
]

# One of each, with what its message must say: what was wrong, where, and what to do.
SAMPLES: list[tuple[BusError, list[str]]] = [
    (BusError("something"), ["something"]),
    (InvalidMessage("meta.ttl", "ttl", "no such key", hint="Did you mean 'ttl_sec'?"), ["meta.ttl", "ttl_sec"]),
    (InvalidTopic("topic", "../x", "a topic has letters"), ["topic", "'../x'", "a topic has letters"]),
    (InvalidGroup("group", "a b", "a group has letters"), ["group", "'a b'", "a group has letters"]),
    (InvalidSpace("space_id", "", "a space is not empty"), ["space_id", "''", "not empty"]),
    (PayloadTooLarge(2000, 1000), ["payload", "2000 bytes", "1000 bytes", "max_event_bytes"]),
    (BusClosed("subscribe"), ["subscribe", "closed", "Open a new EventBus"]),
    (NoSubscriber("orders", "home"), ["'orders'", "'home'", "subscribe first"]),
    (QueueFull("orders", "billing", 1.5), ["'orders'", "'billing'", "1.5 s", "nothing was written", "spill"]),
    (TopicAlreadyHandled("orders", "billing"), ["'orders'", "'billing'", "Unsubscribe"]),
    (TopicFrozen("orders"), ["'orders'", "before publishing"]),
    (GroupConflict("billing", "patterns", ["a"], ["b"]), ["'billing'", "['a']", "['b']", "delete_group()"]),
    (UnknownGroup("no group 'billing'; `events groups` lists them"), ["'billing'", "lists them"]),
    (Denied("agent:x", "publish", "orders", "home", "rule 3"), ["agent:x", "'orders'", "rule 3", "policy explain"]),
    (Denied("", "publish", "orders", "home"), ["anonymous"]),
    (StorageError("a disk"), ["a disk"]),
    (OutcomeUnknown("orders", "cancelled"), ["'orders'", "cancelled", "idem_key"]),
    (LogPoisoned("orders", "/w/a.jsonl", "EIO"), ["'orders'", "/w/a.jsonl", "EIO", "reopened"]),
    (StorageFull("orders", 30.0), ["'orders'", "30 s", "Free some space"]),
    (CorruptLog("/w/a.jsonl", 42, 7, 7, "bad CRC"), ["/w/a.jsonl", "byte 42", "offset 7)", "bad CRC", "repair"]),
    (CorruptLog("/w/a.jsonl", 42, 7, 9, "bad CRC"), ["offset 7..9)"]),
    (WorkspaceLocked("/w", 123), ["/w", "process 123", "another workspace"]),
    (WorkspaceLocked("/w", None), ["another process"]),
    (ForkedProcess("/w"), ["/w", "after forking"]),
    (ReadOnly("/w", "opened for reading"), ["/w", "opened for reading", "Open the workspace for writing"]),
    (OffsetGone("home/orders", 3, 9), ["home/orders", "offset 3", "9", "Start from there"]),
    (UnsupportedPlatform("win32", "fdatasync"), ["win32", "fdatasync", "Linux"]),
]


def test_every_class_has_a_code_of_its_own() -> None:
    """W18: codes are stable names in capitals, and no two classes share one."""
    codes = [vars(kind)["code"] for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code) for code in codes)


def test_the_codes_that_the_design_names_exist() -> None:
    """W18: code outside this package switches on these."""
    promised = (
        "BUS_CLOSED NO_SUBSCRIBER QUEUE_FULL TOPIC_ALREADY_HANDLED TOPIC_FROZEN INVALID_MESSAGE INVALID_TOPIC "
        "STORAGE_FULL CORRUPT LOCKED DENIED"
    )
    assert set(promised.split(" ")) <= {kind.code for kind in CLASSES}


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """W18: every class stands there under its parent with its code, and nothing else does."""
    drawn: dict[str, tuple[str | None, str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?: +([A-Z_]+))?(?: .*)?", line)
        if found:
            branches, name, code = found.groups()
            path[len(branches) // 4 :] = [name]
            drawn[name] = (path[-2] if len(path) > 1 else None, code or "BUS_ERROR")
    real = {kind.__name__: (None if kind is BusError else kind.__bases__[0].__name__, kind.code) for kind in CLASSES}
    assert drawn == real


def test_every_class_is_sampled_here() -> None:
    """W18: a class that is added without a sample fails, so that its message is looked at."""
    assert {type(error) for error, _ in SAMPLES} == set(CLASSES)


@pytest.mark.parametrize(("error", "parts"), SAMPLES, ids=lambda value: getattr(value, "code", ""))
def test_a_message_says_what_where_and_what_to_do(error: BusError, parts: list[str]) -> None:
    """W18: the message holds the fields that the error was made of, and advice."""
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize(("error", "_parts"), SAMPLES, ids=lambda value: getattr(value, "code", ""))
def test_errors_cross_processes(error: BusError, _parts: list[str]) -> None:
    """W18: pickling keeps class, message and fields, so a worker or an executor can hand an error back."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back), error_code_of(back)) == (str(error), vars(error), error.code)


def test_a_malformed_message_is_a_value_error_too() -> None:
    """W18: code that knows nothing of this package can catch it."""
    with pytest.raises(ValueError, match="topic: found"):
        raise InvalidTopic("topic", "a b", "no spaces")


def test_error_code_of_looks_through_causes() -> None:
    """W18: a bus error is found behind what was raised because of it, explicitly or while handling it."""
    explicit, implicit = RuntimeError("outer"), RuntimeError("outer")
    middle = KeyError("middle")
    middle.__cause__ = BusClosed()
    explicit.__cause__ = middle
    implicit.__context__ = middle
    assert error_code_of(explicit) == error_code_of(implicit) == error_code_of(BusClosed()) == "BUS_CLOSED"


def test_error_code_of_takes_the_nearest() -> None:
    """W18: the outermost bus error is the one that was meant for the caller."""
    outer = QueueFull("t", "g", 1)
    outer.__cause__ = BusClosed()
    assert error_code_of(outer) == "QUEUE_FULL"


def test_error_code_of_knows_nothing_of_others() -> None:
    """W18: None for no error, for errors of others, and for a context that somebody cut off."""
    cut = RuntimeError("cut")
    cut.__context__ = BusClosed()
    cut.__suppress_context__ = True
    assert error_code_of(None) is None
    assert error_code_of(RuntimeError("x")) is None
    assert error_code_of(cut) is None


def test_error_code_of_survives_a_circle_of_causes() -> None:
    """W18: two errors that name each other as cause end the search."""
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert error_code_of(one) is None


class Grumpy:
    """Something that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def deep_list() -> object:
    """A list that nobody can print."""
    inner: object = 0
    for _ in range(50_000):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("a\nb\x00", r"'a\nb\x00'"),
        ("\ud800\u202e", r"'\ud800\u202e'"),
        ("x" * 80, "'" + "x" * 80 + "'"),
        ("x" * 1_000_000, "'" + "x" * 79 + "…'"),
        ([1] * 1000, ("[" + "1, " * 40)[:80] + "…"),
        (b"x" * 1000, "b'" + "x" * 78 + "…"),
        (10**10_000, "a int that cannot be shown"),
        (Grumpy(), "a Grumpy that cannot be shown"),
        (None, "None"),
    ],
    ids=["short", "control", "surrogate", "80", "long", "list", "bytes", "huge", "grumpy", "none"],
)
def test_values_are_shown_short_and_safe(value: object, text: str) -> None:
    """W18: whatever was found, the message stays one short line that every log can take."""
    assert shown(value) == text


def test_what_is_too_deep_to_show_is_named() -> None:
    """W18: an error about deep nesting must not fail on it."""
    assert shown(deep_list()) == "a list that cannot be shown"
