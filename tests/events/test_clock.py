"""The clock: time that never jumps while the process lives, however the wall clock is set."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.clock import AnchoredClock

HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS
START_MS = 1_700_000_000_000
JUMPS = [HOUR_MS, -HOUR_MS, TEN_YEARS_MS, -TEN_YEARS_MS]


class SetClock(AnchoredClock):
    """A clock over two sources that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall = START_MS
        super().__init__()

    def monotonic(self) -> float:
        return self.seconds

    def _wall_ms(self) -> int:
        return self.wall

    def pass_ms(self, milliseconds: int) -> None:
        """Let both sources go on."""
        self.seconds += milliseconds / 1000
        self.wall += milliseconds


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_of_the_wall_clock_does_not_show(jump: int) -> None:
    """Clock jumps of an hour and of ten years, both ways: what the bus dates goes on as if nothing had happened."""
    clock = SetClock()
    clock.pass_ms(5000)
    assert clock.now_ms() == START_MS + 5000
    clock.wall += jump
    assert clock.now_ms() == START_MS + 5000
    clock.pass_ms(2000)
    assert clock.now_ms() == START_MS + 7000


def test_a_frozen_wall_clock_does_not_stop_time() -> None:
    """A wall clock that stands still freezes nothing: time goes on by the monotonic clock."""
    clock = SetClock()
    for step in range(1, 11):
        clock.seconds += 60
        assert clock.now_ms() == START_MS + step * 60_000


def test_a_frozen_monotonic_clock_never_goes_back() -> None:
    """A clock that does not advance gives the same time again, and never an earlier one."""
    clock = SetClock()
    times = [clock.now_ms() for _ in range(5)]
    assert len(set(times)) == 1


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0, 0, *JUMPS, 400, -400])), max_size=100))
def test_time_never_goes_back(steps: list[tuple[int, int]]) -> None:
    """Whatever the wall clock does, `now_ms` rises by what the monotonic clock counted."""
    clock = SetClock()
    passed = 0
    for milliseconds, jump in steps:
        clock.pass_ms(milliseconds)
        clock.wall += jump
        passed += milliseconds
        assert abs(clock.now_ms() - START_MS - passed) <= 1


@pytest.mark.parametrize("jump", JUMPS)
def test_a_wall_time_is_freed_of_the_jump_it_was_taken_in(jump: int) -> None:
    """W9: a time that a publisher noted from the wall clock is corrected by what the clock was off at that moment."""
    clock = SetClock()
    before_wall, before = clock.wall, clock.now_ms()
    clock.pass_ms(10_000)
    clock.wall += jump
    clock.now_ms()  # the jump is noticed when somebody asks
    clock.pass_ms(1000)
    after_wall, after = clock.wall, clock.now_ms()
    assert clock.corrected_ms(before_wall, before) == before
    assert clock.corrected_ms(after_wall, after) == after
    clock.pass_ms(1000)
    clock.wall -= jump
    clock.now_ms()
    clock.pass_ms(2000)  # close to a jump nobody can tell on which side of it a time was noted
    assert clock.corrected_ms(clock.wall, clock.now_ms()) == START_MS + 14_000


def test_small_drift_is_no_jump() -> None:
    """NTP slews a clock by less than half a second; such a drift is left as it is."""
    clock = SetClock()
    clock.wall += 400
    at = clock.now_ms()
    assert clock.corrected_ms(clock.wall, at) == clock.wall


def test_the_memory_of_jumps_is_bounded() -> None:
    """M: a wall clock that jumps for ever fills no memory, and the latest jump still counts."""
    clock = SetClock()
    for _ in range(1000):
        clock.pass_ms(1000)
        clock.wall += HOUR_MS
        clock.now_ms()
    assert len(clock._jumps) <= 64
    clock.pass_ms(2000)
    assert clock.corrected_ms(clock.wall, clock.now_ms()) == clock.now_ms()


def test_the_real_clock_agrees_with_itself() -> None:
    """The shipped clock: monotonic seconds rise, and now_ms is a plausible date."""
    clock = AnchoredClock()
    first, at = clock.monotonic(), clock.now_ms()
    assert clock.monotonic() >= first
    assert clock.now_ms() >= at > START_MS


async def test_waiting_ends_with_the_event_or_the_time() -> None:
    """`wait` says whether the event came; without a timeout it waits for it."""
    clock = AnchoredClock()
    event = anyio.Event()
    assert not await clock.wait(event, 0.001)
    assert not await clock.wait(event, 0)
    event.set()
    assert await clock.wait(event, 0.001)
    assert await clock.wait(event, None)
    await clock.sleep(0)
