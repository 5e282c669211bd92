"""A strict parser of Prometheus' text exposition format 0.0.4, written from its grammar, for tests alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_VALUE = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN"
_sample = re.compile(rf"({_NAME})(?:\{{(.*)\}})? ({_VALUE})(?: (-?[0-9]+))?").fullmatch
_label = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_help = re.compile(rf"# HELP ({_NAME}) ((?:[^\\]|\\[\\n])*)").fullmatch
_type = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)").fullmatch
_SUFFIXES = ("_bucket", "_sum", "_count")

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Exposed:
    """What a text exposes."""

    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    samples: dict[Key, float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """One sample; `KeyError` where there is none."""
        return self.samples[name, tuple(sorted(labels.items()))]

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of a name by the values of their labels, in the order of the labels' names."""
        return {tuple(v for _, v in labels): value for (found, labels), value in self.samples.items() if found == name}


def parse(text: str) -> Exposed:
    """The text, or `ValueError` at the first line that a strict parser would refuse."""
    if not text.endswith("\n"):
        raise ValueError("the last line must end with a newline")
    exposed, closed, family = Exposed(), set[str](), ""
    for number, line in enumerate(text[:-1].split("\n"), 1):
        if (found := _help(line)) is not None:
            if found[1] in exposed.helps:
                raise ValueError(f"line {number}: a second HELP for {found[1]}")
            exposed.helps[found[1]] = found[2]
            continue
        if (found := _type(line)) is not None:
            if found[1] in exposed.types:
                raise ValueError(f"line {number}: a second TYPE for {found[1]}")
            exposed.types[found[1]] = found[2]
            closed.add(family)
            family = found[1]
            continue
        found = _sample(line)
        if found is None:
            raise ValueError(f"line {number}: not a sample: {line!r}")
        if _family(found[1], exposed.types) != family or family in closed:
            raise ValueError(f"line {number}: {found[1]} does not stand with its family")
        key = found[1], tuple(sorted(_labels(found[2], number)))
        if key in exposed.samples:
            raise ValueError(f"line {number}: {key} is there twice")
        exposed.samples[key] = float(found[3].replace("Inf", "inf"))
    _check_histograms(exposed)
    return exposed


def _family(name: str, types: dict[str, str]) -> str:
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and types.get(base) == "histogram":
            return base
    if types.get(name) == "histogram":
        raise ValueError(f"{name} is a histogram and has no sample of its own")
    return name


def _labels(text: str | None, number: int) -> list[tuple[str, str]]:
    labels: list[tuple[str, str]] = []
    position = 0
    while text and position < len(text):
        found = _label.match(text, position)
        if found is None:
            raise ValueError(f"line {number}: not a label at {text[position:]!r}")
        unescaped = re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), found[2])
        if found[1] in dict(labels) or found[1].startswith("__"):
            raise ValueError(f"line {number}: label {found[1]} is reserved or there twice")
        labels.append((found[1], unescaped))
        position = found.end()
        if position < len(text) and text[position] != ",":
            raise ValueError(f"line {number}: no comma behind {found[0]!r}")
        position += 1
    return labels


def _check_histograms(exposed: Exposed) -> None:
    """Buckets grow with their bounds, the last is `+Inf`, and it is the count."""
    for name in [name for name, kind in exposed.types.items() if kind == "histogram"]:
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for (found, labels), value in exposed.samples.items():
            if found == f"{name}_bucket":
                bound = float(dict(labels)["le"].replace("Inf", "inf"))
                rest = tuple(label for label in labels if label[0] != "le")
                series.setdefault(rest, []).append((bound, value))
        for rest, buckets in series.items():
            if buckets != sorted(buckets) or [count for _, count in buckets] != sorted(count for _, count in buckets):
                raise ValueError(f"{name}{rest}: the buckets do not grow")
            if buckets[-1] != (math.inf, exposed.samples[f"{name}_count", rest]):
                raise ValueError(f"{name}{rest}: +Inf is not the count")
            if (f"{name}_sum", rest) not in exposed.samples:
                raise ValueError(f"{name}{rest}: no sum")
