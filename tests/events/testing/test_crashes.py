"""Enumerating crashes: all of them where they are few, a fair and repeatable part where they are many."""

from __future__ import annotations

from itertools import product

from events.testing.crashes import choices, crash_states, fates, replay
from events.testing.images import Fate, Unsynced
from events.testing.simulated import SimulatedFileSystem


def recorded() -> SimulatedFileSystem:
    """Two files and a directory with changes that are not synced."""
    fs = SimulatedFileSystem()
    fs.put("/file", b"old")
    fs.records = True
    handle = fs.open("/file", write=True)
    fs.pwrite(handle, b"line one\nline two\n", 3)
    other = fs.open("/other", create=True)
    fs.pwrite(other, b"x", 0)
    fs.sync(handle)
    return fs


def test_a_write_may_be_kept_lost_or_torn() -> None:
    """The fates of a write: whole first, then nothing, NULs, and torn ones, near its ends and at its lines too."""
    data = b"line one\nline two\n"
    found = fates(Unsynced("/file", "write", len(data), data), cuts=5)
    assert found[:3] == [Fate(0, 18, True), Fate(0, 0), Fate(0, 0, True)]
    assert {fate.stop for fate in found if fate.start == 0} >= {1, 8, 9, 17}
    assert Fate(9, 18, True) in found
    assert len(found) == 3 + 3 * 5
    assert fates(Unsynced("/file", "truncate", 1), cuts=5) == [Fate(0, 1), Fate(0, 0)]
    assert fates(Unsynced("/", "names", 2), cuts=5) == [Fate(0, 2), Fate(0, 0), Fate(0, 1)]


def test_few_combinations_are_all_tried() -> None:
    """Below the limit every combination of fates comes once."""
    image = recorded().history[-2]
    options = [fates(change, 2) for change in image.unsynced()]
    found = list(choices(image, limit=1000, cuts=2))
    assert sorted(found) == sorted(product(*options))


def test_many_combinations_are_sampled_the_same_way_each_time() -> None:
    """Above the limit each fate is met with all else kept and with all else lost; the rest follows the seed."""
    fs = SimulatedFileSystem()
    fs.put("/file", b"")
    handle = fs.open("/file", write=True)
    for position in range(12):
        fs.pwrite(handle, b"ab", position * 2)
    image = fs.image()
    first = list(choices(image, limit=200, cuts=1, seed=3))
    assert first == list(choices(image, limit=200, cuts=1, seed=3))
    assert first != list(choices(image, limit=200, cuts=1, seed=4))
    assert len(set(first)) == len(first) <= 200
    for index, change in enumerate(image.unsynced()):
        assert {choice[index] for choice in first} == set(fates(change, 1))


def test_a_spared_file_loses_nothing() -> None:
    """What stands in a spared file means nothing, so its fates are not worth a state; its name is like any other."""
    image = recorded().history[-1]
    spared = list(choices(image, limit=1000, spared=frozenset({"other"})))
    assert len(spared) == 2
    assert all(choice[-1] == Fate(0, 1, True) for choice in spared)


def test_states_that_look_alike_are_one() -> None:
    """Each distinct state comes once, named so that it can be built again."""
    fs = recorded()
    states = list(crash_states(fs.history))
    assert len({state.digest for state in states}) == len(states) > 10
    for state in states:
        assert replay(fs.history, state).digest() == state.digest == state.fs.digest()
        assert str(state).startswith(f"crash after call {state.moment}")
    contents = {state.fs.files()["/file"] for state in states}
    assert {b"old", b"oldline one\nline two\n", b"oldl", b"old" + b"\0" * 18} <= contents


def test_a_later_promise_makes_a_state_another_one() -> None:
    """What was no loss before a call returned may be one after it."""
    fs = recorded()
    plain = list(crash_states(fs.history))
    promised = list(crash_states(fs.history, promised=lambda moment: moment >= 2))
    assert len(promised) > len(plain)
    seen: set[tuple[bytes, object]] = set()
    assert list(crash_states(fs.history, seen=seen))
    assert list(crash_states(fs.history, seen=seen)) == []
    assert [state.moment for state in crash_states(fs.history, moments=[1])] == [1] * len(
        list(crash_states(fs.history, moments=[1]))
    )
