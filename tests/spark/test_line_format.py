"""The line format as Spark sees it: what we write, Spark can check with nothing but its own functions."""

import json
from pathlib import Path

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from events.persistence.codec import TRAILER_BYTES, encode_line, event_members

pytestmark = pytest.mark.spark

# Spark has already taken the newline away as the line separator.
TRAILER = TRAILER_BYTES - 1
META = b'{"topic":"actions","type":"ACTION_EXECUTED","space_id":"home"}'


def encode(offset: int, payload: dict[str, object]) -> bytes:
    """One line of the log, as the bus writes it."""
    members = event_members(META, orjson.dumps(payload))
    return encode_line(offset, members, at=1_700_000_000_000 + offset, batch=1)


def checked(session: SparkSession, path: Path) -> DataFrame:
    """A segment's lines, with `intact`: the trailer is well formed and has the CRC of the bytes before it."""
    # Bytes, not text: a flipped bit may leave something that is not UTF-8, and positions count bytes.
    raw = F.col("value").cast("binary")
    body_bytes = F.octet_length(raw) - TRAILER
    body = F.substring(raw, F.lit(1), body_bytes)
    trailer = F.substring(raw, body_bytes + 1, F.lit(TRAILER)).cast("string")
    stored = F.regexp_extract(trailer, r'^,"crc":"([0-9a-f]{8})"\}$', 1)
    actual = F.lpad(F.lower(F.hex(F.crc32(body))), 8, "0")
    # lineSep, because Spark would otherwise split at a carriage return too, and only \n ends a line.
    lines = session.read.text(str(path), lineSep="\n")
    return lines.select("value", stored.alias("stored"), actual.alias("actual")).withColumn(
        "intact", F.col("stored") == F.col("actual")
    )


def test_sparks_crc32_is_the_stored_one(spark_session: SparkSession, tmp_path: Path) -> None:
    """F1: Spark's `crc32` of the bytes before the trailer is the CRC in the line, for any payload."""
    payloads: list[dict[str, object]] = [
        {},
        {"tool": "search", "ok": True, "cost": 0.25},
        {"text": "naïve, 東京, 🙂"},
        {"text": 'line\u2028separator, next\u0085line, \\ and "quotes", \r and \n escaped'},
        # This one's CRC begins with a zero: the eight digits are padded on both sides.
        {"n": next(n for n in range(10_000) if encode(5, {"n": n})[-11:-10] == b"0")},
    ]
    segment = tmp_path / "actions.00000001.jsonl"
    segment.write_bytes(b"".join(encode(offset, payload) for offset, payload in enumerate(payloads, start=1)))

    rows = checked(spark_session, segment).collect()

    assert [row["intact"] for row in rows] == [True] * len(payloads)
    assert [json.loads(row["value"])["payload"] for row in rows] == payloads
    assert rows[-1]["stored"].startswith("0")


def test_a_flipped_byte_is_detected_wherever_it_is(spark_session: SparkSession, tmp_path: Path) -> None:
    """F1: a line with any one byte changed fails the check, also where it is still valid JSON."""
    line = encode(7, {"amount": 100, "to": "Zoë"})
    damaged = []
    for position in range(len(line) - 1):
        copy = bytearray(line)
        copy[position] ^= 0x01
        damaged.append(bytes(copy))
    segment = tmp_path / "actions.00000001.jsonl"
    segment.write_bytes(line + b"".join(damaged))
    assert segment.read_bytes().count(b"\n") == 1 + len(damaged), "no flip may make or unmake a newline"

    verdicts = [row["intact"] for row in checked(spark_session, segment).collect()]

    assert verdicts == [True] + [False] * len(damaged)
    still_json = line.replace(b'"amount":100', b'"amount":101')
    assert still_json in damaged
    assert json.loads(still_json)["payload"]["amount"] == 101, "what a JSON reader would have believed"
