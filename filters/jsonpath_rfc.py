"""RFC 9535: parsed by jsonpath-rfc9535, evaluated here lazily and in a bounded number of steps.

The library's own evaluation has no bound, collects all nodes with their locations where a filter asks whether there
is one, and runs regular expressions that can backtrack. Its parser passes the whole compliance suite, so the
syntax and the type rules are its business; this file is what a parsed query means.

Everything is compiled to closures. `Nothing`, the RFC's absent value, is `MISSING`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathQuery
from jsonpath_rfc9535.filter_expressions import (
    ComparisonExpression,
    Expression,
    FilterExpression,
    FilterExpressionLiteral,
    FilterQuery,
    FunctionExtension,
    LogicalExpression,
    PrefixExpression,
    RootFilterQuery,
    StringLiteral,
)
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath_rfc9535.selectors import (
    FilterSelector,
    IndexSelector,
    JSONPathSelector,
    NameSelector,
    SliceSelector,
    WildcardSelector,
)

from filters.budget import Budget
from filters.regex import BadRegex, LinearRegex, compile_i_regexp
from filters.values import MISSING, precedes, same

# These keep parsing and evaluation far from the interpreter's recursion limit.
MAX_NESTING: Final = 20
MAX_BRACKETS: Final = 40
MAX_SEGMENTS: Final = 100
# Compiling the worst pattern takes about as long as this many steps.
_COMPILE_STEPS: Final = 5_000

_QUOTED_OR_BRACKET: Final = re.compile(r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+"|[][()]""", re.DOTALL)
_environment: Final = JSONPathEnvironment()


class BadQuery(ValueError):
    """A query that cannot be used. `position` is where in the expression, or its end."""

    def __init__(self, reason: str, position: int) -> None:
        self.reason, self.position = reason, position
        super().__init__(f"{reason} at position {position}")


@dataclass(slots=True)
class Scope:
    """One evaluation: the whole document, the steps that are left, and the patterns that the document brought."""

    root: Any
    budget: Budget
    patterns: dict[str, LinearRegex | None] = field(default_factory=dict)


Nodes = Callable[[Any, Scope], Iterator[Any]]
Selector = Callable[[Any, Scope], Iterable[Any]]
Segment = Callable[[Iterable[Any], Scope], Iterator[Any]]
Operand = Callable[[Any, Scope], Any]
Test = Callable[[Any, Scope], bool]


@dataclass(frozen=True, slots=True)
class RfcQuery:
    """A compiled query.

    `steps` are the names and indices of a query that has nothing else, and None for every other one. `roots` are
    the members of the document that it can look at, each with its position, and None when that may be any.
    """

    steps: tuple[str | int, ...] | None
    roots: Mapping[str, int] | None
    _nodes: Nodes

    def select(self, document: Any, budget: Budget) -> Iterator[Any]:
        """The values of the selected nodes, in document order, as they are found."""
        return self._nodes(document, Scope(document, budget))


def compile_rfc(expression: str) -> RfcQuery:
    """The compiled form of an expression, or `BadQuery`."""
    _check_brackets(expression)
    try:
        parsed = _environment.compile(expression)
        compiler = _Compiler()
        nodes = compiler.query(parsed, absolute=True, depth=0)
    except JSONPathError as error:
        position = error.token.index if error.token is not None else 0
        raise BadQuery(str(error.args[0]), position if position >= 0 else len(expression)) from None
    except RecursionError:
        raise BadQuery("nested too deep", 0) from None
    except OverflowError:
        raise BadQuery("a number that no float can hold", 0) from None
    return RfcQuery(_steps(parsed), None if compiler.any_root else compiler.roots, nodes)


def _check_brackets(expression: str) -> None:
    """Refuse what would take the parser, which recurses, out of its stack: the tree does not show all brackets."""
    depth = 0
    for part in _QUOTED_OR_BRACKET.finditer(expression):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(part[0], 0)
        if depth > MAX_BRACKETS:
            raise BadQuery(f"brackets more than {MAX_BRACKETS} deep", part.start())


def _steps(query: JSONPathQuery) -> tuple[str | int, ...] | None:
    if not query.singular_query():
        return None
    only = [segment.selectors[0] for segment in query.segments]
    return tuple(
        selector.name if isinstance(selector, NameSelector) else selector.index
        for selector in only
        if isinstance(selector, NameSelector | IndexSelector)
    )


class _Compiler:
    """From the parser's tree to closures, noting on the way what the query looks at."""

    def __init__(self) -> None:
        self.roots: dict[str, int] = {}
        self.any_root = False
        self._segments = 0

    def query(self, query: JSONPathQuery, *, absolute: bool, depth: int) -> Nodes:
        if absolute:
            self._note_root(query.segments)
        segments = [self.segment(segment, depth) for segment in query.segments]

        def nodes(start: Any, scope: Scope) -> Iterator[Any]:
            values: Iterable[Any] = (start,)
            for segment in segments:
                values = segment(values, scope)
            return iter(values)

        return nodes

    def _note_root(self, segments: Sequence[JSONPathSegment]) -> None:
        first = segments[0] if segments else None
        if first is None or isinstance(first, JSONPathRecursiveDescentSegment):
            self.any_root = True
            return
        for selector in first.selectors:
            if isinstance(selector, NameSelector):
                self.roots[selector.name] = selector.token.index
            else:
                self.any_root = True

    def segment(self, segment: JSONPathSegment, depth: int) -> Segment:
        self._segments += 1
        if self._segments > MAX_SEGMENTS:
            raise BadQuery(f"more than {MAX_SEGMENTS} segments", segment.token.index)
        selectors = [self.selector(selector, depth) for selector in segment.selectors]
        return _descendants(selectors) if isinstance(segment, JSONPathRecursiveDescentSegment) else _children(selectors)

    def selector(self, selector: JSONPathSelector, depth: int) -> Selector:
        match selector:
            case NameSelector(name=name):
                return _named(name)
            case IndexSelector(index=index):
                return _indexed(index)
            case SliceSelector(slice=bounds):
                return _sliced(bounds)
            case WildcardSelector():
                return _every
            case FilterSelector(expression=expression, token=token):
                if depth >= MAX_NESTING:
                    raise BadQuery(f"nested more than {MAX_NESTING} deep", token.index)
                return _filtered(self.test(expression, depth + 1))
        raise BadQuery(f"a selector of an unknown kind, {type(selector).__name__}", selector.token.index)

    def test(self, expression: Expression, depth: int) -> Test:
        if depth > MAX_NESTING:
            raise BadQuery(f"nested more than {MAX_NESTING} deep", expression.token.index)
        match expression:
            case FilterExpression(expression=inner):
                return self.test(inner, depth)
            case PrefixExpression(right=inner):
                negated = self.test(inner, depth + 1)
                return lambda current, scope: not negated(current, scope)
            case LogicalExpression(operator=operator):
                return self._logical(operator, _operands(expression, operator), depth)
            case ComparisonExpression(left=left, operator=operator, right=right):
                return _compared(operator, self.operand(left, depth + 1), self.operand(right, depth + 1))
            case FilterQuery():
                nodes = self._filter_query(expression, depth)
                return lambda current, scope: next(nodes(current, scope), MISSING) is not MISSING
            case FunctionExtension(name=name) if name in ("match", "search"):
                return self._regex(expression, depth)
        raise BadQuery(f"no test: {type(expression).__name__}", expression.token.index)

    def _logical(self, operator: str, operands: Sequence[Expression], depth: int) -> Test:
        tests = [self.test(operand, depth + 1) for operand in operands]
        if operator == "&&":
            return lambda current, scope: all(test(current, scope) for test in tests)
        return lambda current, scope: any(test(current, scope) for test in tests)

    def operand(self, expression: Expression, depth: int) -> Operand:
        if depth > MAX_NESTING:
            raise BadQuery(f"nested more than {MAX_NESTING} deep", expression.token.index)
        match expression:
            case FilterExpressionLiteral(value=value):
                return lambda _current, _scope: value
            case FilterQuery():
                nodes = self._filter_query(expression, depth)
                return lambda current, scope: next(nodes(current, scope), MISSING)
            case FunctionExtension(name="length", args=[arg]):
                return _length(self.operand(arg, depth + 1))
            case FunctionExtension(name="count", args=[FilterQuery() as arg]):
                nodes = self._filter_query(arg, depth)
                return lambda current, scope: sum(1 for _ in nodes(current, scope))
            case FunctionExtension(name="value", args=[FilterQuery() as arg]):
                return _only(self._filter_query(arg, depth))
        raise BadQuery(f"no value: {expression}", expression.token.index)

    def _filter_query(self, expression: FilterQuery, depth: int) -> Nodes:
        absolute = isinstance(expression, RootFilterQuery)
        nodes = self.query(expression.query, absolute=absolute, depth=depth)
        return (lambda _current, scope: nodes(scope.root, scope)) if absolute else nodes

    def _regex(self, expression: FunctionExtension, depth: int) -> Test:
        subject, pattern = (self.operand(arg, depth + 1) for arg in expression.args)
        whole = expression.name == "match"
        literal = expression.args[1]
        if isinstance(literal, StringLiteral):
            try:
                regex: LinearRegex | None = compile_i_regexp(literal.value)
            except BadRegex as error:
                raise BadQuery(f"{literal.value!r} is {error.reason}", literal.token.index + error.position) from None
            return lambda current, scope: _searched(regex, subject(current, scope), whole, scope)

        def test(current: Any, scope: Scope) -> bool:
            return _searched(_from_document(pattern(current, scope), scope), subject(current, scope), whole, scope)

        return test


def _operands(expression: Expression, operator: str) -> list[Expression]:
    """The operands of `a && b && c`, which the parser nests to one side."""
    operands: list[Expression] = []
    pending = [expression]
    while pending:
        inner = pending.pop()
        if isinstance(inner, LogicalExpression) and inner.operator == operator:
            pending += (inner.right, inner.left)
        else:
            operands.append(inner)
    return operands


def _children(selectors: Sequence[Selector]) -> Segment:
    def children(values: Iterable[Any], scope: Scope) -> Iterator[Any]:
        for value in values:
            for selector in selectors:
                yield from selector(value, scope)

    return children


def _descendants(selectors: Sequence[Selector]) -> Segment:
    def descendants(values: Iterable[Any], scope: Scope) -> Iterator[Any]:
        for value in values:
            pending = [value]
            while pending:
                value = pending.pop()
                for selector in selectors:
                    yield from selector(value, scope)
                inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
                scope.budget.spend(1 + len(inner))
                pending += reversed([child for child in inner if isinstance(child, dict | list)])

    return descendants


def _named(name: str) -> Selector:
    def named(value: Any, scope: Scope) -> Iterable[Any]:
        scope.budget.spend(1)
        return (value[name],) if isinstance(value, dict) and name in value else ()

    return named


def _indexed(index: int) -> Selector:
    def indexed(value: Any, scope: Scope) -> Iterable[Any]:
        scope.budget.spend(1)
        return (value[index],) if isinstance(value, list) and -len(value) <= index < len(value) else ()

    return indexed


def _sliced(bounds: slice) -> Selector:
    def sliced(value: Any, scope: Scope) -> Iterable[Any]:
        chosen = value[bounds] if isinstance(value, list) and bounds.step != 0 else ()
        scope.budget.spend(1 + len(chosen))
        return chosen

    return sliced


def _every(value: Any, scope: Scope) -> Iterable[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    scope.budget.spend(1 + len(inner))
    return inner


def _filtered(test: Test) -> Selector:
    def filtered(value: Any, scope: Scope) -> Iterator[Any]:
        for child in _every(value, scope):
            scope.budget.spend(1)
            if test(child, scope):
                yield child

    return filtered


def _compared(operator: str, left: Operand, right: Operand) -> Test:
    def equal(current: Any, scope: Scope) -> bool:
        a, b = left(current, scope), right(current, scope)
        return a is b if a is MISSING or b is MISSING else same(a, b, scope.budget)

    def before(current: Any, scope: Scope) -> bool:
        return precedes(left(current, scope), right(current, scope), scope.budget) is True

    def after(current: Any, scope: Scope) -> bool:
        return precedes(right(current, scope), left(current, scope), scope.budget) is True

    return {
        "==": equal,
        "!=": lambda current, scope: not equal(current, scope),
        "<": before,
        ">": after,
        "<=": lambda current, scope: before(current, scope) or equal(current, scope),
        ">=": lambda current, scope: after(current, scope) or equal(current, scope),
    }[operator]


def _length(operand: Operand) -> Operand:
    def length(current: Any, scope: Scope) -> Any:
        value = operand(current, scope)
        return len(value) if isinstance(value, str | list | dict) else MISSING

    return length


def _only(nodes: Nodes) -> Operand:
    def only(current: Any, scope: Scope) -> Any:
        found = nodes(current, scope)
        first = next(found, MISSING)
        return first if next(found, MISSING) is MISSING else MISSING

    return only


def _from_document(pattern: object, scope: Scope) -> LinearRegex | None:
    """A pattern that the document itself brings. A bad one matches nothing, as the RFC has it."""
    if not isinstance(pattern, str):
        return None
    if pattern not in scope.patterns:
        scope.budget.spend(_COMPILE_STEPS)
        try:
            scope.patterns[pattern] = compile_i_regexp(pattern)
        except BadRegex:
            scope.patterns[pattern] = None
    return scope.patterns[pattern]


def _searched(regex: LinearRegex | None, subject: object, whole: bool, scope: Scope) -> bool:
    if regex is None or not isinstance(subject, str):
        return False
    scope.budget.spend(regex.steps(subject))
    return bool(regex.fullmatch(subject) if whole else regex.search(subject))
