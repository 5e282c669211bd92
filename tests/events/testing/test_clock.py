"""The fake clock: time that a test moves, and everything due on the way has run."""

from __future__ import annotations

import anyio
import pytest

from events.testing.clock import FakeClock


async def test_it_stands_still_until_it_is_moved(fake_clock: FakeClock) -> None:
    """Testing kit: no time passes by itself."""
    before = (fake_clock.monotonic(), fake_clock.now_ms())
    await anyio.sleep(0.01)
    assert (fake_clock.monotonic(), fake_clock.now_ms()) == before
    await fake_clock.advance(1.5)
    assert (fake_clock.monotonic(), fake_clock.now_ms()) == (before[0] + 1.5, before[1] + 1500)


async def test_sleepers_wake_in_order_and_at_their_time(fake_clock: FakeClock) -> None:
    """Testing kit: each sees the time it asked for, also those that go to sleep on the way."""
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *spans: float) -> None:
        for span in spans:
            await fake_clock.sleep(span)
            woken.append((name, fake_clock.monotonic()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper, "a", 3, 3)
        tasks.start_soon(sleeper, "b", 1, 1, 1.5)
        await fake_clock.advance(10)
    assert woken == [("b", 1), ("b", 2), ("a", 3), ("b", 3.5), ("a", 6)]


async def test_waiting_ends_with_the_event_or_the_time(fake_clock: FakeClock) -> None:
    """Testing kit: the answer says which of them came."""
    outcomes: dict[str, bool] = {}

    async def wait(name: str, event: anyio.Event, timeout_s: float | None) -> None:
        outcomes[name] = await fake_clock.wait(event, timeout_s)

    comes, never = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "comes", comes, 5)
        tasks.start_soon(wait, "without limit", comes, None)
        tasks.start_soon(wait, "never", never, 5)
        tasks.start_soon(wait, "at once", never, 0)
        await fake_clock.advance(1)
        assert outcomes == {"at once": False}
        comes.set()
        await fake_clock.advance(1)
        assert outcomes == {"at once": False, "comes": True, "without limit": True}
        await fake_clock.advance(10)
    assert outcomes["never"] is False


async def test_a_cancelled_sleeper_is_no_obstacle(fake_clock: FakeClock) -> None:
    """Testing kit: time passes over whoever is gone."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fake_clock.sleep, 1)
            await fake_clock.advance(0)
            scope.cancel()
    await fake_clock.advance(5)
    assert fake_clock.monotonic() == 5


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_jump_of_the_wall_clock_shows_only_there(fake_clock: FakeClock, jump: float) -> None:
    """W9: what was noted before a jump and after it means the same moment, once it is free of the jump."""
    await fake_clock.advance(100)
    before = (fake_clock.wall_ms(), fake_clock.now_ms())
    assert before[0] == before[1]
    await fake_clock.advance(100)
    fake_clock.jump_wall(jump)
    assert fake_clock.now_ms() == before[1] + 100_000
    assert fake_clock.wall_ms() == before[1] + 100_000 + int(jump * 1000)
    await fake_clock.advance(100)
    after = (fake_clock.wall_ms(), fake_clock.now_ms())
    assert fake_clock.corrected_ms(*before) == before[1]
    assert fake_clock.corrected_ms(*after) == after[1]


async def test_tests_may_bring_their_own_idea_of_quiet() -> None:
    """Testing kit: a simulated loop knows sooner when nothing is left to do."""
    calls = 0

    async def quiet() -> None:
        nonlocal calls
        calls += 1

    await FakeClock(quiet=quiet).advance(1)
    assert calls == 2
