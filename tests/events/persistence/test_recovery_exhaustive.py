"""Every byte at which a tail can be cut, and every bit that can flip: each case is classified by an oracle of its own.

The oracle knows what was appended: where each line lies, which batch it belonged to, and what the mark covered. It
shares no code with recovery. "Undecidable" is the one place where the truth left no trace: what was acknowledged
after the last mark, when nothing behind it is left to vouch for it. There a damaged disk looks like a torn write.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import pytest

from events.errors import CorruptLog
from events.persistence.codec import encode_line
from events.persistence.documents import encode_document, read_document
from events.persistence.handles import Handles
from events.persistence.log import Log, LogLimits
from events.persistence.mark import MarkFile, read_mark
from events.persistence.recovery import Condition, examine, open_log
from events.testing.simulated import SimulatedFileSystem
from tests.events.persistence.logs import ASIDE, AT, DIRECTORY, MARK, NAMING, members, new_fs, segment

PATH = segment()


@dataclass(frozen=True)
class Truth:
    """What was done to a log: its bytes, where lines end, the first offset of each line's batch, and the mark."""

    fs: SimulatedFileSystem
    content: bytes
    ends: list[int]
    batches: list[int]
    marked: int
    acknowledged: int

    @property
    def last(self) -> int:
        """The last offset that was written."""
        return len(self.ends)

    def lines_before(self, byte: int) -> int:
        """How many whole lines end at or before a byte."""
        return bisect_right(self.ends, byte)

    def end_of(self, offset: int) -> int:
        """Where a line ends."""
        return self.ends[offset - 1] if offset else 0

    def has_later_batch(self, offset: int) -> bool:
        """Whether a line behind this one was written after this one had been synced."""
        return any(batch > offset for batch in self.batches[offset:])


def truth(counts: list[int], sizes: list[int], *, unmarked_batches: int, acknowledged: bool) -> Truth:
    """A log of these batches whose mark leaves out the last few; the very last is acknowledged or in flight."""
    fs = new_fs()
    log, _ = open_log(fs, Handles(fs, 8), DIRECTORY, NAMING, LogLimits(), aside=ASIDE)
    lengths: list[int] = []
    batches: list[int] = []
    for index, count in enumerate(counts):
        first = log.next_offset
        lines = [
            encode_line(offset, members(offset, sizes[offset % len(sizes)]), AT + offset, first)
            for offset in range(first, first + count)
        ]
        log.write(b"".join(lines), count, AT + first)
        lengths += map(len, lines)
        batches += [first] * count
        if index + 1 + unmarked_batches == len(counts):
            log.write_mark(sync=True)
            marked = log.durable
    last = len(lengths)
    return Truth(
        fs, fs.files()[PATH], list(accumulate(lengths)), batches, marked, last if acknowledged else batches[-1] - 1
    )


def spoiled_tails(content: bytes, kind: str) -> Iterator[tuple[int, bytes]]:
    """The content with all from a byte on lost, for every byte: gone, NULs, or bytes of which none is what it was."""
    rest = {"cut": b"", "NULs": bytes(len(content)), "garbage": bytes(byte ^ 0x95 for byte in content)}[kind]
    for cut in range(len(content) + 1):
        yield cut, content[:cut] + rest[cut:]


def expected_of_cut(case: Truth, kind: str, cut: int) -> tuple[Condition, int]:
    """What a log must be taken for whose bytes from `cut` on are lost, and its last offset then."""
    left = case.lines_before(cut)
    if left < case.marked:
        return "corrupt", left
    if cut == len(case.content) or (kind == "cut" and case.end_of(left) == cut):
        return ("clean" if left == case.marked else "whole"), left
    return "torn", left


def recovered(case: Truth, content: bytes) -> tuple[Log, Condition, SimulatedFileSystem]:
    """Open the log with other bytes in its segment."""
    fs = case.fs.crash()
    fs.put(PATH, content)
    log, found = open_log(fs, Handles(fs, 4), DIRECTORY, NAMING, LogLimits(), aside=ASIDE)
    return log, found.condition, fs


SEGMENT_64K = ([1, 1, 7, 2, 1, 30, 3, 1, 1, 12] * 2, [60, 700, 300, 1300, 0, 150, 820])


@pytest.mark.parametrize("kind", ["cut", "NULs", "garbage"])
def test_a_tail_cut_at_every_byte(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """S1, S4, S5: a segment of 64 KiB and more, cut at every byte: what the mark covers is never given up, what was
    in flight is healed, and each case is taken for what it is."""
    case = truth(*SEGMENT_64K, unmarked_batches=1, acknowledged=False)
    assert len(case.content) >= 64 * 1024
    tally: Counter[str] = Counter()
    before = case.fs.files()[MARK]
    for cut, content in spoiled_tails(case.content, kind):
        log, condition, fs = recovered(case, content)
        expected, left = expected_of_cut(case, kind, cut)
        assert (condition, log.next_offset - 1) == (expected, left), f"{kind} at byte {cut}"
        tally[condition] += 1
        if condition == "corrupt":
            assert log.damage is not None
            assert (log.damage.path, log.damage.byte) == (PATH, case.end_of(left))
            assert fs.files()[PATH] == content  # never cut
            assert fs.files()[MARK] == before
        else:
            assert left >= case.acknowledged, f"{kind} at byte {cut} lost an acknowledged event"
            assert fs.crash().files()[PATH] == case.content[: case.end_of(left)]
    with capsys.disabled():
        size = f"{len(case.content):,}-byte"
        print(f"\ntail {kind} at every byte of a {size} segment: {tally.total():,} cases, {shown(tally)}")


def test_a_tail_cut_behind_the_mark_of_what_was_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    """Undecidable: bytes that were acknowledged, lost together with all behind them before a mark covered them.

    No recovery can tell this from a torn write. It must take it for one, serve what is left, and nothing wrong.
    """
    case = truth([3, 2, 9, 1, 4, 6], [60, 300, 0, 150], unmarked_batches=3, acknowledged=True)
    tally: Counter[str] = Counter()
    for kind in ("cut", "NULs", "garbage"):
        for cut, content in spoiled_tails(case.content, kind):
            log, condition, fs = recovered(case, content)
            expected, left = expected_of_cut(case, kind, cut)
            assert (condition, log.next_offset - 1) == (expected, left), f"{kind} at byte {cut}"
            tally["undecidable" if condition != "corrupt" and left < case.acknowledged else condition] += 1
            if condition != "corrupt":
                assert fs.files()[PATH] == case.content[: case.end_of(left)]
    with capsys.disabled():
        print(f"\ntail lost behind the mark: {tally.total():,} cases, {shown(tally)}")


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The content with each of its bits flipped, and the byte that it is in."""
    for byte, before in enumerate(content):
        for bit in range(8):
            yield byte, b"%b%c%b" % (content[:byte], before ^ (1 << bit), content[byte + 1 :])


def test_every_bit_of_a_segment(capsys: pytest.CaptureFixture[str]) -> None:
    """S1, S4: every bit of a segment of 8 KiB: no wrong event is served, nothing that the mark or a later line vouches
    for is cut off, and a full read finds every flip but those in the one undecidable place."""
    case = truth([1, 4, 2, 1, 6, 1, 3, 2, 1, 5, 2, 1, 2], [100, 40, 700, 0, 260], unmarked_batches=4, acknowledged=True)
    assert len(case.content) >= 8 * 1024
    marked_end = case.end_of(case.marked)
    tally: Counter[str] = Counter()
    for byte, content in flips(case.content):
        bad = case.lines_before(byte) + 1  # the offset of the line that the byte is in
        log, condition, fs = recovered(case, content)
        if byte >= case.end_of(case.marked - 1) - 1 and byte < marked_end:
            assert (condition, log.next_offset - 1) == ("corrupt", bad - 1), f"byte {byte}"
            assert fs.files()[PATH] == content
            tally["in the last line before the mark, or the newline that it begins behind: corrupt"] += 1
        elif byte < marked_end:
            assert (condition, log.next_offset - 1) == ("whole", case.last), f"byte {byte}"
            verified = examine(fs, DIRECTORY, NAMING, named=0, whole=True)
            assert verified.condition == "corrupt", f"byte {byte}"
            assert verified.damage is not None
            assert (verified.damage.byte, verified.damage.first_missing) == (case.end_of(bad - 1), bad)
            assert fs.files()[PATH] == content
            tally["covered by the mark: found by a read and by verify"] += 1
            if byte % 16 == 0:
                assert_served(case, log, bad)
        elif case.has_later_batch(bad):
            assert (condition, log.next_offset - 1) == ("corrupt", bad - 1), f"byte {byte}"
            assert fs.files()[PATH] == content
            tally["vouched for by a later line: corrupt"] += 1
        else:
            assert (condition, log.next_offset - 1) == ("torn", bad - 1), f"byte {byte}"
            assert fs.files()[PATH] == case.content[: case.end_of(bad - 1)]
            kept = next(data for path, data in fs.files().items() if path.startswith(ASIDE))
            assert kept == content[case.end_of(bad - 1) :]
            assert bad >= case.batches[-1]
            tally["undecidable, in the last batch before the mark covers it: torn, kept aside"] += 1
    with capsys.disabled():
        print(f"\nevery bit of a {len(case.content):,}-byte segment: {tally.total():,} cases, {shown(tally)}")


def assert_served(case: Truth, log: Log, bad: int) -> None:
    """A reader gets every line before the bad one, then an error, and behind it everything again; nothing wrong."""
    served: list[bytes] = []
    reading = log.records(1, case.last)
    with pytest.raises(CorruptLog) as caught:
        served.extend(record.line for record in reading)
    assert b"".join(served) == case.content[: case.end_of(bad - 1)]
    assert caught.value.byte == case.end_of(bad - 1)
    if bad < case.last:
        with suppress(CorruptLog):
            assert next(iter(log.records(bad + 1, case.last))).line == case.content[case.end_of(bad) : case.ends[bad]]


def test_every_bit_of_a_segment_that_the_mark_covers(capsys: pytest.CaptureFixture[str]) -> None:
    """S1: where the mark covers everything there is no undecidable place: verify finds every flip as corrupt."""
    case = truth([1, 4, 2, 1, 3], [100, 40, 300], unmarked_batches=0, acknowledged=True)
    cases = 0
    for byte, content in flips(case.content):
        fs = case.fs.crash()
        fs.put(PATH, content)
        found = examine(fs, DIRECTORY, NAMING, named=0, whole=True)
        assert found.condition == "corrupt"
        assert found.damage is not None
        assert found.damage.first_missing == case.lines_before(byte) + 1
        cases += 1
    with capsys.disabled():
        print(f"\nevery bit of a segment under its mark: {cases:,} cases, all found corrupt")


def test_every_bit_of_a_mark(capsys: pytest.CaptureFixture[str]) -> None:
    """S1: a flipped bit in the mark spoils one slot: nothing is lost, nothing is taken for damage, it is reported."""
    case = truth([2, 3, 1, 4], [50, 200], unmarked_batches=1, acknowledged=True)
    older, newer = MarkFile(case.fs, MARK, read_mark(case.fs, MARK)[0] or pytest.fail("no mark")), 0
    older.write(older.mark, sync=True)  # so that both slots are in use
    newer = older.mark.generation % 2
    mark = case.fs.files()[MARK]
    cases = 0
    for byte, content in flips(mark):
        fs = case.fs.crash()
        fs.put(MARK, content)
        log, found = open_log(fs, Handles(fs, 4), DIRECTORY, NAMING, LogLimits(), aside=ASIDE)
        assert (found.condition, found.mark_damaged, log.next_offset - 1) == ("whole", True, case.last), byte
        assert fs.files()[PATH] == case.content
        assert found.mark is not None
        assert found.mark.generation % 2 == (1 - newer if byte // 512 == newer else newer)
        assert read_mark(fs, MARK)[1] is False  # and it is whole again
        cases += 1
    with capsys.disabled():
        print(f"\nevery bit of a mark: {cases:,} cases, none lost, all reported")


def test_every_bit_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped bit in a checkpoint of 8 KiB: the copy before it stands in, and a wrong one is never read."""
    random = Random(8)
    bounds = sorted(random.sample(range(1000, 90_000), 1200))
    ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
    data = {"log": "a" * 32, "committed": 900, "ranges": ranges, "attempts": {}, "deferrals": {}, "retries": []}
    fs = new_fs()
    path = f"{DIRECTORY}/t__readers.json"
    current, previous = encode_document(data, 7), encode_document({**data, "committed": 850}, 6)
    assert len(current) >= 8 * 1024
    fs.put(path + ".prev", previous)
    fs.put(path, current)
    document, damaged = read_document(fs, path)
    assert document is not None
    assert (document.generation, damaged) == (7, False)
    cases = 0
    for byte, content in flips(current):
        fs.put(path, content)
        document, damaged = read_document(fs, path)
        assert document is not None
        assert (document.generation, document.data["committed"], document.is_previous) == (6, 850, True), byte
        assert damaged
        cases += 1
    with capsys.disabled():
        print(
            f"\nevery bit of a {len(current):,}-byte checkpoint: {cases:,} cases, the copy before it stood in for each"
        )


def shown(tally: Counter[str]) -> str:
    """The counts, for people."""
    return ", ".join(f"{count:,} {name}" for name, count in tally.most_common())
