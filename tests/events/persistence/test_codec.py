"""The line codec: what is written comes back, and no changed byte goes unnoticed."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.persistence.codec import (
    TRAILER_BYTES,
    BadLine,
    Record,
    decode_block,
    decode_line,
    encode_gap,
    encode_line,
    event_members,
    first_offset_of,
    payload_starts,
    published_record,
)
from events.types import EventMeta

OFFSETS = st.integers(1, 10**18)
TIMES = st.integers(0, 10**15)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


def event_line(offset: int = 7, payload: dict[str, Any] | None = None, at: int = 1_700_000_000_000) -> bytes:
    """The line of an event."""
    meta = EventMeta(topic="actions", type="ACTION_DECISION", space_id="home").to_json()
    return encode_line(offset, event_members(meta, orjson.dumps(payload or {"a": 1})), at, offset)


@given(OFFSETS, OBJECTS, TIMES, OFFSETS)
def test_a_line_comes_back_as_it_was_written(offset: int, payload: dict[str, Any], at: int, batch: int) -> None:
    """F1: offset, members, `at` and `batch` of any line are read back exactly, and it is plain JSON."""
    raw = orjson.dumps(payload)
    line = encode_line(offset, b'"meta":{},"payload":' + raw, at, batch)
    record = decode_line(line, 3, 99)
    assert (record.offset, record.last, record.at, record.batch) == (offset, offset, at, batch)
    assert (record.segment, record.position, record.is_gap) == (3, 99, False)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert record.members()["payload"] == orjson.loads(raw)
    assert list(orjson.loads(line)) == ["offset", "meta", "payload", "at", "batch", "crc"]


@given(OBJECTS)
def test_the_checksum_is_the_crc32_of_all_before_the_trailer(payload: dict[str, Any]) -> None:
    """F1: the trailer is 19 bytes, and what it holds is zlib's CRC-32 of every byte before it."""
    line = event_line(payload=payload)
    assert line[-TRAILER_BYTES:] == b',"crc":"%08x"}\n' % crc32(line[:-TRAILER_BYTES])
    assert TRAILER_BYTES == 19


def test_every_single_bit_flip_of_a_line_is_noticed() -> None:
    """F1: there is no bit in a line that can change unseen, neither alone nor among its neighbours."""
    first, line, last = event_line(6), event_line(7), event_line(8)
    assert decode_block(first + line + last, 6, 1, 0)[2] is None
    for place in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[place] ^= 1 << bit
            with pytest.raises(BadLine):
                decode_line(bytes(flipped))
            records, taken, bad = decode_block(first + bytes(flipped) + last, 6, 1, 0)
            assert [record.line for record in records] == [first]
            assert taken == len(first)
            assert bad is not None


@given(st.data())
def test_no_flip_in_any_line_is_served(data: st.DataObject) -> None:
    """F1: a flip in any line of any content: nothing is decoded that was not written."""
    line = event_line(data.draw(OFFSETS), data.draw(OBJECTS))
    flipped = bytearray(line)
    flipped[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadLine):
        decode_line(bytes(flipped))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_line_are_refused(data: bytes) -> None:
    """F1: whatever stands in a file, what does not check out is refused and raises nothing else."""
    with pytest.raises(BadLine):
        decode_line(data)
    records, taken, _ = decode_block(data, 1, 1, 0)
    assert (records, taken) == ([], 0)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(event_line()[:-1], id="no newline"),
        pytest.param(event_line()[:30], id="a head"),
        pytest.param(event_line()[9:], id="a tail"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(b"\0" * 200 + b"\n", id="NULs"),
        pytest.param(event_line().replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(event_line().replace(b'"crc"', b'"CRC"'), id="another trailer"),
        pytest.param(encode_gap(9, 3, 0, 1), id="a gap that runs backwards"),
        pytest.param(encode_line(-1, b'"a":1', 0, 1), id="a negative offset"),
        pytest.param(encode_line(10**19, b'"a":1', 0, 1), id="an offset beyond 19 digits"),
    ],
)
def test_what_looks_like_a_line_and_is_none(line: bytes) -> None:
    """F1: a line is exactly what the writer writes."""
    with pytest.raises(BadLine):
        decode_line(line, 1, 50)


def test_a_bad_line_says_where_it_stands() -> None:
    """F1: errors carry the byte at which the bad line begins in its segment."""
    with pytest.raises(BadLine) as caught:
        decode_line(b"nonsense\n", 1, 4711)
    assert caught.value.position == 4711
    _, taken, bad = decode_block(event_line(1) + b"nonsense\n", 1, 1, 1000)
    assert bad is not None
    assert bad.position == 1000 + taken


@given(st.integers(1, 10**9), st.integers(0, 10**9), TIMES)
def test_a_gap_counts_as_its_offsets(first: int, more: int, at: int) -> None:
    """F2: a gap line stands for a run of offsets, and the line behind it continues there."""
    line = encode_gap(first, first + more, at, first)
    record = decode_line(line)
    assert (record.offset, record.last, record.is_gap, record.at, record.batch) == (
        first,
        first + more,
        True,
        at,
        first,
    )
    following = encode_line(first + more + 1, b'"a":1', at, first)
    records, taken, bad = decode_block(line + following, first, 1, 0)
    assert [r.offset for r in records] == [first, first + more + 1]
    assert (taken, bad) == (len(line) + len(following), None)
    assert orjson.loads(line)["gap"] == [first, first + more]


def test_a_block_stops_where_the_offsets_do_not_follow() -> None:
    """F2: offsets have no gaps and no repeats; a valid line in the wrong place is not served."""
    good = event_line(1) + event_line(2)
    for wrong in (2, 1, 4, 300):
        records, taken, bad = decode_block(good + event_line(wrong), 1, 1, 0)
        assert [record.offset for record in records] == [1, 2]
        assert taken == len(good)
        assert bad is not None
        assert f"offset {wrong} where 3" in str(bad)


def test_an_unfinished_last_line_is_left_for_later() -> None:
    """F1: a block may end inside a line; that is not an error, the rest is yet to be read."""
    line = event_line(1)
    for cut in range(len(line)):
        assert decode_block(line[:cut], 1, 1, 0) == ([], 0, None)


def test_meta_and_payload_are_found_without_decoding_the_payload() -> None:
    """F1: the payload's bytes come back untouched, also where the meta holds the very word `payload`."""
    payload = b'{"b":[1.50,{"at":1},",\\"at\\":2,\\"batch\\":3"],"a":"\\u00e9"}'
    meta = b'{"topic":"t","type":"T","space_id":"s","event_id":"e","ts":"2024-01-01T00:00:00Z"'
    meta += b',"newer":{"x":1,"payload":2}}'
    record = decode_line(encode_line(5, event_members(meta, payload), 77, 5))
    assert record.raw_payload == payload
    assert record.at == 77
    assert record.meta.topic == "t"
    assert record.meta is record.meta
    assert record.event.payload == orjson.loads(payload)


def test_a_published_record_knows_its_parts() -> None:
    """F1: what was published here needs no decoding, and gives the same as the line on disk does."""
    meta = EventMeta(topic="t", type="NOTED", space_id="s")
    raw_meta, payload = meta.to_json(), b'{"a":1}'
    for offset in (1, 9, 10, 12345):
        line = encode_line(offset, event_members(raw_meta, payload), 1, 1)
        record = published_record(offset, line, 1, 0, meta, payload_starts(offset, len(raw_meta)))
        assert record.meta is meta
        assert record.raw_payload == decode_line(line).raw_payload == payload


def test_a_line_whose_meta_nobody_understands_says_so() -> None:
    """E1, F1: a meta that this version cannot read is an error that names the offset, not a crash."""
    record = decode_line(encode_line(5, b'"meta":{"topic":1},"payload":{}', 0, 5))
    with pytest.raises(BadLine, match="offset 5"):
        _ = record.meta


def test_the_first_offset_is_read_from_the_head_of_a_segment() -> None:
    """F2: 64 bytes are enough to know where a segment begins, for events and gaps alike."""
    assert first_offset_of(event_line(123)[:64]) == 123
    assert first_offset_of(encode_gap(5, 9, 0, 5)[:64]) == 5
    assert first_offset_of(b'{"offset":12') is None
    assert first_offset_of(b"") is None
    assert first_offset_of(b"\0" * 64) is None


def test_a_record_is_shown_by_its_offsets() -> None:
    """F2: the representation of a record names what it stands for."""
    assert repr(Record(4, b"", 1, 0)) == "Record(4)"
    assert repr(Record(4, b"", 1, 0, 6)) == "Record([4, 6])"
