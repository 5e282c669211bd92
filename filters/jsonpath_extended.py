"""The jsonpath-ng dialect: arithmetic, sorting, `sub`, `split` and `=~`, made to stop at a bound.

The library evaluates by calling `find` from node to node of its tree. Each node of a parsed tree is given a `find` of
its own here, which pays for what it is about to do and then calls the library's. So the meaning stays the
library's, to the letter, except where its own would be dangerous: regular expressions run on RE2, and arithmetic
neither repeats strings nor concatenates long ones.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from jsonpath_ng import Child, DatumInContext, Descendants, Fields, Index, JSONPath, Parent, Root
from jsonpath_ng.exceptions import JSONPathError
from jsonpath_ng.ext.arithmetic import Operation
from jsonpath_ng.ext.filter import Expression, Filter
from jsonpath_ng.ext.iterable import SortedThis
from jsonpath_ng.ext.parser import parse
from jsonpath_ng.ext.string import DefintionInvalid, Split, Str, Sub

from filters.budget import Budget, Overrun
from filters.jsonpath_rfc import BadQuery
from filters.regex import BadRegex, LinearRegex, Replacement, compile_regex

MAX_NODES: Final = 100
MAX_TEXT_CHARS: Final = 1 << 16
# The library wraps each value it passes on, which costs more than a step of our own.
_CALL_STEPS: Final = 2
_CHARS_BITS_OF_A_STEP: Final = 6

Find = Callable[[Any], Any]

# The tree is shared by all evaluations of the expression, the budget belongs to one; the context carries it.
_budget: ContextVar[Budget] = ContextVar("budget of the running query")
_POSITION: Final = re.compile(r" at \d+:(\d+)| on line \d+, col (\d+)")


class WrongType(Exception):
    """The document has a value that an operation cannot work on: mixed types to sort, a number to substitute in."""


@dataclass(frozen=True, slots=True)
class ExtendedQuery:
    """A compiled expression; `steps` and `roots` as in `RfcQuery`."""

    steps: tuple[str | int, ...] | None
    roots: Mapping[str, int] | None
    _tree: JSONPath

    def select(self, document: Any, budget: Budget) -> Iterator[Any]:
        """The selected values, or `WrongType`."""
        token = _budget.set(budget)
        try:
            found = self._tree.find(document)
        except (Overrun, RecursionError):
            raise
        except Exception as error:
            # The library says what it cannot do with a value in as many ways as there are operations.
            raise WrongType(str(error)) from error
        finally:
            _budget.reset(token)
        return (datum.value for datum in found)


def compile_extended(expression: str) -> ExtendedQuery:
    """The compiled form of an expression, or `BadQuery`."""
    try:
        tree = parse(expression)
    except JSONPathError as error:
        raise _explained(str(error), expression) from None
    except re.error as error:
        raise BadQuery(error.msg, _place(str(error.pattern), expression) + (error.pos or 0)) from None
    except (DefintionInvalid, ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadQuery(str(error), 0) from None
    except RecursionError:
        raise BadQuery("nested too deep", 0) from None
    query = ExtendedQuery(_steps(tree), _roots(tree, expression), tree)
    _bound(tree, expression)
    return query


def _explained(message: str, expression: str) -> BadQuery:
    found = _POSITION.search(message)
    if found is None:
        return BadQuery(message.rstrip("! "), len(expression))
    return BadQuery(message[: found.start()] + message[found.end() :].rstrip(), int(found[1] or found[2]))


def _place(part: str, expression: str) -> int:
    """Where a part stands: quoted or between slashes, if it does so anywhere."""
    quoted = re.search(rf"['\"/]{re.escape(part)}['\"/]", expression)
    return quoted.start() + 1 if quoted else max(0, expression.find(part))


def _inner(node: object) -> list[JSONPath]:
    """The nodes directly below one, wherever its class keeps them."""
    held: list[Any] = list(vars(node).values())
    below: list[JSONPath] = []
    while held:
        value = held.pop()
        if isinstance(value, JSONPath):
            below.append(value)
        elif isinstance(value, list | tuple):
            held.extend(value)
    return below


def _steps(node: JSONPath) -> tuple[str | int, ...] | None:
    """The names and indices of an expression that has nothing else."""
    if isinstance(node, Child):
        left = () if isinstance(node.left, Root) else _steps(node.left)
        right = _steps(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, Fields) and len(node.fields) == 1:
        return (node.fields[0],)
    if isinstance(node, Index) and len(node.indices) == 1:
        return (node.indices[0],)
    return None


def _roots(tree: JSONPath, expression: str) -> dict[str, int] | None:
    """The members of the document that the expression can look at; None when that cannot be told."""
    roots: dict[str, int] = {}
    first = tree
    while isinstance(first, Child):
        first = first.left
    pending, starts = [tree], [first]
    while pending:
        node = pending.pop()
        if isinstance(node, Parent):
            return None
        pending += _inner(node)
        if isinstance(node, Child) and isinstance(node.left, Root):
            starts.append(node.right)
        elif any(isinstance(child, Root) for child in _inner(node)):
            return None
    for start in starts:
        if isinstance(start, Fields):
            roots.update((name, _place(name, expression)) for name in start.fields)
        elif not isinstance(start, Root) or start is tree:
            return None
    return roots


def _bound(tree: JSONPath, expression: str) -> None:
    """Give every node of the tree a `find` that pays, and replace what must not run as it is."""
    nodes = [tree, *_all_below(tree)]
    if len(nodes) > MAX_NODES:
        raise BadQuery(f"more than {MAX_NODES} parts", 0)
    walked = {id(operand) for node in nodes for operand in _walked_by(node)}
    for node in nodes:
        # On the instance, so that nobody else's use of the library changes.
        vars(node)["find"] = _paying(node, _finder(node, expression), by_size=id(node) in walked)


def _walked_by(node: JSONPath) -> tuple[JSONPath, ...]:
    """The parts whose values the library will go through in full in one call, so that they pay by their size."""
    if isinstance(node, Descendants):
        return (node.left,)
    if isinstance(node, Expression) and isinstance(node.value, JSONPath):
        return (node.target, node.value)
    return ()


def _all_below(node: JSONPath) -> Iterator[JSONPath]:
    pending = _inner(node)
    while pending:
        inner = pending.pop()
        yield inner
        pending += _inner(inner)


def _paying(node: JSONPath, find: Find, *, by_size: bool) -> Find:
    # A filter looks through its own expressions on every call.
    steps = _CALL_STEPS + (sum(1 for _ in _all_below(node)) if isinstance(node, Filter) else 0)

    def paying(datum: Any) -> list[DatumInContext]:
        budget = _budget.get()
        budget.spend(steps)
        found = find(datum)
        # Sorting what cannot be sorted returns the datum itself.
        results: list[DatumInContext] = found if isinstance(found, list) else [found]
        budget.spend(len(results))
        if by_size:
            for result in results:
                _weigh(result.value, budget)
        return results

    return paying


def _finder(node: JSONPath, expression: str) -> Find:
    if isinstance(node, Root):
        return _find_root
    if isinstance(node, Expression) and node.op == "=~":
        return _matching(node.target, _regex(str(node.value), expression))
    if isinstance(node, Sub):
        return _replacing(_regex(node.expr, expression), node.repl, expression)
    if isinstance(node, SortedThis | Str | Split):
        return _weighing(node.find)
    if isinstance(node, Operation):
        node.op = _bounded_arithmetic(node.op)
    return node.find


def _find_root(datum: Any) -> list[DatumInContext]:
    datum = DatumInContext.wrap(datum)
    while datum.context is not None:
        _budget.get().spend(1)
        datum = datum.context
    return [DatumInContext(datum.value, path=Root())]


def _regex(pattern: str, expression: str) -> LinearRegex:
    try:
        return compile_regex(pattern)
    except BadRegex as error:
        raise BadQuery(error.reason, _place(pattern, expression) + error.position) from None


def _matching(target: JSONPath, regex: LinearRegex) -> Find:
    def find(datum: Any) -> list[DatumInContext]:
        budget = _budget.get()
        matched = []
        for candidate in target.find(DatumInContext.wrap(datum)):
            if isinstance(candidate.value, str):
                budget.spend(regex.steps(candidate.value))
                if regex.search(candidate.value):
                    matched.append(candidate)
        return matched

    return find


def _replacing(regex: LinearRegex, template: str, expression: str) -> Find:
    try:
        replacement = Replacement(regex, template)
    except BadRegex as error:
        raise BadQuery(error.reason, _place(template, expression) + error.position) from None

    def find(datum: Any) -> list[DatumInContext]:
        text = DatumInContext.wrap(datum).value
        replaced = regex.replace(text, replacement, _budget.get())
        return [] if replaced == text else [DatumInContext.wrap(replaced)]

    return find


def _weighing(find: Find) -> Find:
    def weighing(datum: Any) -> Any:
        wrapped = DatumInContext.wrap(datum)
        _weigh(wrapped.value, _budget.get())
        return find(wrapped)

    return weighing


def _weigh(value: Any, budget: Budget) -> None:
    """Pay for a value by its size, all the way down."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            budget.spend(len(value) >> _CHARS_BITS_OF_A_STEP)
        elif isinstance(value, dict | list):
            budget.spend(len(value))
            pending += value.values() if isinstance(value, dict) else value


def _bounded_arithmetic(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def bounded(left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        texts = apply is operator.add and isinstance(left, str) and isinstance(right, str)
        if not numbers and not (texts and len(left) + len(right) <= MAX_TEXT_CHARS):
            raise TypeError("arithmetic is for numbers, and for joining short strings")
        return apply(left, right)

    return bounded
