"""One segment: what its file is called, reading it in order, and finding a place in it with few reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.persistence.codec import BadLine, Record, encode_gap, encode_line
from events.persistence.files import opened
from events.persistence.segment import BLOCK_BYTES, Naming, find_first, first_offset, line_at, read_blocks, stem_of
from events.testing.simulated import Fault, SimulatedFileSystem
from tests.events.persistence.logs import AT, is_genuine, members

PATH = "/segment"


def segment_of(sizes: list[int], at_step: int = 10) -> tuple[SimulatedFileSystem, list[Record]]:
    """A file of lines with bodies of these sizes, and what is in it by a reading that cannot be wrong."""
    fs = SimulatedFileSystem()
    content = b""
    records: list[Record] = []
    for offset, size in enumerate(sizes, start=1):
        line = encode_line(offset, members(offset, size), AT + offset // 3 * at_step, 1)
        records.append(Record(offset, line, 1, len(content)))
        content += line
    fs.put(PATH, content)
    return fs, records


@pytest.mark.parametrize(
    ("naming", "number", "name"),
    [
        (Naming("actions"), 1, "actions.00000001.jsonl"),
        (Naming("actions"), 123456789, "actions.123456789.jsonl"),
        (Naming("a.b"), 2, "a.b.00000002.jsonl"),
        (Naming("actions.dlq", first_is_bare=True), 1, "actions.dlq.jsonl"),
        (Naming("actions.dlq", first_is_bare=True), 2, "actions.dlq.00000002.jsonl"),
    ],
)
def test_a_segment_has_one_name(naming: Naming, number: int, name: str) -> None:
    """F4: a segment's number and its file's name lead to each other."""
    assert naming.segment(number) == name
    assert naming.number(name) == number


@pytest.mark.parametrize(
    "name",
    [
        "t.0000001.jsonl",
        "t.000000001.jsonl",
        "t.00000000.jsonl",
        "t.00000001.jsonl.repair",
        "t.00000001.json",
        "t.jsonl",
        "t.b.00000001.jsonl",
        "tt.00000001.jsonl",
        "T.00000001.jsonl",
        ".t.00000001.jsonl",
        "t.0000000\u0661.jsonl",
        "t.-0000001.jsonl",
        "t.+0000001.jsonl",
        "t. 0000001.jsonl",
        ".t.mark.json",
        "",
    ],
)
def test_a_foreign_file_is_no_segment(name: str) -> None:
    """F4: a file that the log did not name is not one of its segments."""
    assert Naming("t").number(name) is None
    assert Naming("t", first_is_bare=True).number(name) == (1 if name == "t.jsonl" else None)


def test_a_numbered_name_of_a_bare_first_segment_is_foreign() -> None:
    """F4: no two files are the same segment."""
    assert Naming("t.dlq", first_is_bare=True).number("t.dlq.00000001.jsonl") is None


def test_topics_that_begin_alike_do_not_share_segments() -> None:
    """F3: the segments of `a`, `a.b` and `a.00000001` are told apart."""
    stems = ["a", "a.b", "a.00000001", "a.dlq", "a-b", "a_"]
    for stem in stems:
        for other in stems:
            name = Naming(other).segment(1)
            assert Naming(stem).number(name) == (1 if stem == other else None)
            assert stem_of(name) == other


@pytest.mark.parametrize("name", ["t.jsonl", ".t.mark.json", ".t.00000001.jsonl", "t.00000001.jsonl.repair", "lock"])
def test_only_numbered_segments_have_a_stem(name: str) -> None:
    """F4: other files in the folder name no topic."""
    assert stem_of(name) is None


@pytest.mark.parametrize("sizes", [[], [10], [10] * 50, [0, BLOCK_BYTES * 2, 0, 5, BLOCK_BYTES, 7], [1000] * 700])
def test_a_segment_is_read_whole_in_blocks(sizes: list[int]) -> None:
    """F1: every record comes once and in order, however lines and blocks lie."""
    fs, written = segment_of(sizes)
    with opened(fs, PATH) as handle:
        blocks = list(read_blocks(fs, handle, 1, 0, fs.size(handle), 1))
    found = [record for block in blocks for record in block.records]
    assert [(r.offset, r.position, r.line) for r in found] == [(r.offset, r.position, r.line) for r in written]
    assert all(map(is_genuine, found))
    assert all(block.bad is None for block in blocks)


def test_reading_may_begin_at_any_line() -> None:
    """F1: from the place of a record on, with the offset that stands there."""
    fs, written = segment_of([30, 3000, 1, 0, 77] * 8)
    with opened(fs, PATH) as handle:
        for start in written:
            blocks = read_blocks(fs, handle, 1, start.position, fs.size(handle), start.offset)
            assert [r.offset for b in blocks for r in b.records] == list(range(start.offset, len(written) + 1))


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_reading_stops_at_a_cut_line(cut: int) -> None:
    """F1: a last line without its newline is reported, and where it begins."""
    fs, written = segment_of([40] * 3)
    content = fs.files()[PATH]
    fs.put(PATH, content[: len(content) - cut])
    with opened(fs, PATH) as handle:
        blocks = list(read_blocks(fs, handle, 1, 0, fs.size(handle), 1))
    assert [r.offset for b in blocks for r in b.records] == [1, 2]
    assert str(blocks[-1].bad) == "cut short"
    assert blocks[-1].end == written[2].position


def test_a_read_that_gives_less_is_repeated() -> None:
    """Interrupted and short reads are looped, so a busy kernel is no damage."""
    fs, written = segment_of([100] * 20)

    class Stuttering(SimulatedFileSystem):
        def pread(self, handle: int, size: int, position: int) -> bytes:
            return super().pread(handle, max(1, size // 3), position)

    stuttering = Stuttering(fs.image())
    stuttering.inject(Fault(at=2, on=frozenset({"pread"}), error=4))
    with opened(stuttering, PATH) as handle:
        blocks = read_blocks(stuttering, handle, 1, 0, stuttering.size(handle), 1)
        assert sum(len(block.records) for block in blocks) == len(written)


SIZES = st.lists(
    st.one_of(st.integers(0, 60), st.integers(0, 9000), st.sampled_from([4095, 4096, 50_000])), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(SIZES)
def test_a_seek_finds_what_a_linear_search_finds(sizes: list[int]) -> None:
    """F1: seeking by offset and by time agrees with reading every line, also among lines longer than a probe."""
    fs, written = segment_of(sizes)
    with opened(fs, PATH) as handle:
        end = fs.size(handle)
        for offset in range(len(sizes) + 2):
            found = find_first(fs, handle, 1, end, lambda record, wanted=offset: record.last >= wanted)  # type: ignore[misc]
            expected = next((r for r in written if r.offset >= offset), None)
            assert (found.offset if found else None) == (expected.offset if expected else None)
            assert found is None or found.position == written[found.offset - 1].position
        for at in {record.at + step for record in written for step in (-1, 0, 1)}:
            found = find_first(fs, handle, 1, end, lambda record, wanted=at: record.at >= wanted)  # type: ignore[misc]
            expected = next((r for r in written if r.at >= at), None)
            assert (found.offset if found else None) == (expected.offset if expected else None)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([40] * 20_000, id="20,000 short lines"),
        pytest.param([40] * 10_000 + [1_500_000], id="short lines before one that fills the upper half"),
        pytest.param([1_500_000] + [40] * 10_000, id="short lines behind one that fills the lower half"),
        pytest.param([200_000, 1] * 20, id="long and short in turn"),
        pytest.param([3_000_000], id="one line"),
    ],
)
def test_a_seek_costs_a_bounded_number_of_reads(sizes: list[int]) -> None:
    """A seek takes the logarithm of the segment's length in reads, wherever the long lines lie."""
    fs, written = segment_of(sizes)
    with opened(fs, PATH) as handle:
        end = fs.size(handle)
        steps = math.ceil(math.log2(end)) + 1
        for wanted in {1, 2, len(sizes) // 3, len(sizes) // 2, len(sizes) - 1, len(sizes), len(sizes) + 1}:
            before = fs.calls.get("pread", 0)
            found = find_first(fs, handle, 1, end, lambda record, wanted=wanted: record.last >= wanted)  # type: ignore[misc]
            assert found is None if wanted > len(sizes) else found is not None
            reads = fs.calls["pread"] - before
            assert reads <= 6 * steps, f"{reads} reads for offset {wanted} of {len(written)}"


def test_a_seek_meets_damage_as_damage() -> None:
    """F1: a probe that lands on a bad line says so instead of going astray."""
    fs, written = segment_of([40] * 9)
    content = bytearray(fs.files()[PATH])
    content[written[4].position + 15] ^= 1
    fs.put(PATH, bytes(content))
    with opened(fs, PATH) as handle, pytest.raises(BadLine):
        find_first(fs, handle, 1, fs.size(handle), lambda record: record.offset >= 5)


def test_the_line_at_a_place() -> None:
    """F1: one line is read with a small read, a long one with a few, and nothing at the end."""
    fs, written = segment_of([10, 40_000, 10])
    with opened(fs, PATH) as handle:
        end = fs.size(handle)
        for record in written:
            found = line_at(fs, handle, 1, record.position, end)
            assert found is not None
            assert found.line == record.line
        assert line_at(fs, handle, 1, end, end) is None
        with pytest.raises(BadLine, match="cut short"):
            line_at(fs, handle, 1, written[2].position, end - 1)
        before = fs.calls["pread"]
        line_at(fs, handle, 1, 0, end)
        assert fs.calls["pread"] - before == 1


def test_the_first_offset_of_a_segment() -> None:
    """F2: by its head alone; an empty or unreadable segment has none."""
    fs = SimulatedFileSystem()
    for content, expected in (
        (encode_line(41, b'"a":1', 0, 41), 41),
        (encode_gap(7, 9, 0, 7), 7),
        (b"", None),
        (b"\0" * 4096, None),
    ):
        fs.put(PATH, content)
        with opened(fs, PATH) as handle:
            assert first_offset(fs, handle) == expected
