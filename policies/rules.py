"""The lines of policy.csv: what each may say, and reading and writing them without losing one.

    p, subject, space, topic, actions, allow|deny     may, or may never, do this
    g, subject, role, space                           holds a role there
    clearance, subject, space, band                   may see events up to this band there
    review, space, topic                              everything consumed there is audited

A subject is `user:alice`, `agent:planner`, a plain `alice`, all of a kind as in `agent:*`, a role as in
`role:owner`, `anonymous` for whoever is not bound to a subject, or `*`: everyone who is named where a line
allows, and really everyone where it denies. A space is an id, a prefix as in `family:*`, or `*`. A topic is a
glob. Actions are joined by `|`, or `*`. Fields are separated by commas; one that holds a comma, a quote or
outer blanks is written in double quotes, with quotes inside doubled. Comments have lines of their own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final, get_args

from events.contracts import Action
from events.errors import InvalidMessage, shown
from events.names import SPACE_RULE, check_space, check_topic_pattern
from events.types import SecurityBand
from policies.files import END, Line, PolicyError, whole_text

ACTIONS: Final = get_args(Action)
ANONYMOUS: Final = "anonymous"
EVERYONE: Final = "*"
SUBJECT_RULE: Final = "a subject has at most 100 of A-Z a-z 0-9 _ . : @ + / -, a letter or digit first"

_ROLE: Final = "role:"
_subject = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:@+/-]{0,98}[A-Za-z0-9_.@+/-])?", re.ASCII).fullmatch
_kind_glob = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}:\*", re.ASCII).fullmatch
_field = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"|([^",]*))[ \t]*(?:(,)|$)').match


def is_subject(name: object) -> bool:
    """Whether this can be someone who asks: a role cannot, or its name alone would give its rights."""
    return isinstance(name, str) and _subject(name) is not None and not name.startswith(_ROLE)


def check_principal(name: str) -> None:
    """Refuse what cannot stand where a line names a subject or a role."""
    is_role = name.startswith(_ROLE) and _subject(name)
    is_kind = _kind_glob(name) and not name.startswith(_ROLE)
    if not (is_role or is_kind or name == EVERYONE or is_subject(name)):
        raise ValueError(f"{shown(name)} is no subject: {SUBJECT_RULE}; all of a kind are 'agent:*'")


def _check_role(name: str) -> None:
    if not name.startswith(_ROLE):
        raise ValueError(f"{shown(name)} is no role: a role is written 'role:name'")
    check_principal(name)


def _check_space(pattern: str) -> None:
    if "*" in pattern[:-1]:
        raise ValueError(f"{shown(pattern)} is no space pattern: '*' stands alone or at the end")
    try:
        check_space(pattern)
    except InvalidMessage:
        raise ValueError(f"{shown(pattern)} is no space: {SPACE_RULE}") from None


def check_topic_glob(pattern: str) -> None:
    """Refuse what is neither a topic nor a glob over topics."""
    try:
        check_topic_pattern(pattern)
    except InvalidMessage as error:
        raise ValueError(f"{shown(pattern)} is no topic: {error.allowed}") from None


def _one_of(value: str, allowed: Iterable[str], what: str) -> None:
    known = list(allowed)
    if value not in known:
        raise ValueError(f"{shown(value)} is no {what}: {', '.join(known)}{did_you_mean(value, known)}")


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message that names what was probably meant."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(wrong.casefold(), by_folded, n=1, cutoff=0.5)
    return f". Did you mean {by_folded[close[0]]!r}?" if close else ""


@dataclass(frozen=True)
class Rule:
    """A line of the policy. Two rules that say the same are equal, wherever they stand."""

    kind: ClassVar[str]
    line: Line | None = field(default=None, compare=False, kw_only=True, repr=False)

    @property
    def values(self) -> tuple[str, ...]:
        """The fields behind the kind, in the order of the file."""
        return tuple(getattr(self, name) for name in _field_names(type(self)))

    def __str__(self) -> str:
        return ", ".join([self.kind, *map(_quoted, self.values)])


@dataclass(frozen=True)
class Permission(Rule):
    """A subject may, or may never, do something with some topics in some spaces."""

    kind = "p"
    subject: str
    space: str
    topic: str
    actions: str
    effect: str

    def __post_init__(self) -> None:
        check_principal(self.subject)
        _check_space(self.space)
        check_topic_glob(self.topic)
        if self.actions != "*":
            for action in self.actions.split("|"):
                _one_of(action, ACTIONS, "action")
        _one_of(self.effect, ("allow", "deny"), "effect")


@dataclass(frozen=True)
class Membership(Rule):
    """A subject, or all who hold another role, hold a role in some spaces."""

    kind = "g"
    subject: str
    role: str
    space: str

    def __post_init__(self) -> None:
        check_principal(self.subject)
        _check_role(self.role)
        _check_space(self.space)


@dataclass(frozen=True)
class Clearance(Rule):
    """A subject may see events up to a band in some spaces. Without such a line: GREEN."""

    kind = "clearance"
    subject: str
    space: str
    band: str

    def __post_init__(self) -> None:
        check_principal(self.subject)
        _check_space(self.space)
        _one_of(self.band, [band.value for band in SecurityBand], "band")


@dataclass(frozen=True)
class Review(Rule):
    """Everything consumed of some topics in some spaces is audited."""

    kind = "review"
    space: str
    topic: str

    def __post_init__(self) -> None:
        _check_space(self.space)
        check_topic_glob(self.topic)


_KINDS: Final[dict[str, type[Rule]]] = {cls.kind: cls for cls in (Permission, Membership, Clearance, Review)}


def parse_policy(data: bytes, file: str) -> tuple[Rule, ...]:
    """Every rule of a policy file; `PolicyError` with the line if a single one cannot be taken as it is."""
    rules = tuple(_parse_lines(whole_text(data, file), file))
    if not any(isinstance(rule, Permission) for rule in rules):
        raise PolicyError(file, None, "no line says who may do what ('p, ...'); an empty policy is refused")
    defined = {rule.subject for rule in rules if isinstance(rule, Permission | Clearance | Membership)}
    for rule in rules:
        # A deny that hangs on a misspelt role would deny nobody.
        if isinstance(rule, Membership) and rule.role not in defined:
            number = rule.line.number if rule.line else None
            raise PolicyError(file, number, f"no line says what {rule.role} may do{did_you_mean(rule.role, defined)}")
    return rules


def render_policy(rules: Iterable[Rule]) -> str:
    """The text of a policy file that reads back as exactly these rules; `PolicyError` if there is none."""
    wanted = tuple(rules)
    text = "".join(f"{rule}\n" for rule in wanted) + f"{END}\n"
    if parse_policy(text.encode("utf-8"), "policy") != wanted:
        raise PolicyError("policy", None, "does not read back as what was to be saved; nothing was written")
    return text


def _parse_lines(text: str, file: str) -> Iterator[Rule]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for number, content in enumerate(lines, 1):
        if content == END and number != len(lines) - 1:
            raise PolicyError(file, number, f"{END!r} stands here, and lines follow it")
        if not content.strip() or content.lstrip().startswith("#"):
            continue
        try:
            kind, *values = _split(content)
            _one_of(kind, _KINDS, "kind of line")
            names = _field_names(_KINDS[kind])
            if len(values) != len(names):
                raise ValueError(f"{kind!r} has the fields {', '.join(names)}, and {len(values)} were found")
            yield _KINDS[kind](*values, line=Line(file, number, content))
        except ValueError as error:
            raise PolicyError(file, number, str(error)) from None


def _split(content: str) -> Iterator[str]:
    position, more = 0, True
    while more:
        found = _field(content, position)
        if found is None:
            raise ValueError(f"a quote is out of place from column {position + 1} on")
        quoted, plain, comma = found.groups()
        yield plain.rstrip(" \t") if quoted is None else quoted.replace('""', '"')
        position, more = found.end(), comma is not None


def _quoted(value: str) -> str:
    plain = value == value.strip() and not set(value) & set(',"')
    return value if plain else '"' + value.replace('"', '""') + '"'


def _field_names(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(rule) if not entry.kw_only)
