"""Casbin, behind the checks without which it fails open.

Casbin evaluates the matcher over the lines and combines what they say. Everything that it would take on trust
is settled before: the model is one whose effect and matcher are known to be safe, roles are resolved by us,
and the functions that a matcher can call are ours alone.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import casbin
from casbin.effect import AllowAndDenyEffector
from casbin.model import FunctionMap

from policies.files import PolicyError, whole_text
from policies.rules import Permission

REQUEST: Final = ["r_sub", "r_dom", "r_obj", "r_act"]
LINE: Final = ["p_sub", "p_dom", "p_obj", "p_act", "p_eft"]
TERMS: Final = {
    "holds(r_sub, p_sub, r_dom, p_eft)",
    "in_space(r_dom, p_dom, p_eft)",
    "on_topic(r_obj, p_obj, p_eft)",
    "does(r_act, p_act)",
}

# r_dom and r_obj are missing: they may be patterns, and `!= "secret"` is true of a pattern that covers it.
_COMPARABLE: Final = {"r_sub", "r_act", *LINE}
_NARROWING: Final = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Constant, ast.Load),
)
log = logging.getLogger(__name__)

Function = Callable[..., bool]


class Model:
    """A model.conf that was found safe. Immutable; every judge makes casbin's own copy of it."""

    def __init__(self, data: bytes, file: str) -> None:
        self.text = whole_text(data, file)
        try:
            model = self.fresh()
            found = {section: sorted(model[section]) for section in model.keys()}  # noqa: SIM118 - no Mapping
            if found != {section: [section] for section in "rpem"}:
                raise ValueError("a model has one request, one policy definition, one effect and one matcher")
            if model["r"]["r"].tokens != REQUEST or model["p"]["p"].tokens != LINE:
                raise ValueError("a request is 'sub, dom, obj, act', and a line 'sub, dom, obj, act, eft'")
            if not isinstance(casbin.effect.get_effector(model["e"]["e"].value), AllowAndDenyEffector):
                raise ValueError("the effect must want a line that allows, and none that denies")
            # Casbin's own reading, since that is what it will evaluate.
            _check_matcher(casbin.Enforcer._get_expression(model["m"]["m"].value).ast_parsed_value)
        # Casbin raises whatever came up: RuntimeError, KeyError, SyntaxError, AttributeError.
        except Exception as error:
            raise PolicyError(file, None, f"not a model that fails closed: {error}") from error

    def fresh(self) -> Any:
        """Casbin's model, without any line."""
        return casbin.Enforcer.new_model(text=self.text)


class Judge:
    """Casbin over some lines of a policy. Any thread may ask; nothing changes after it was made."""

    def __init__(self, model: Model, permissions: Sequence[Permission], functions: Mapping[str, Function]) -> None:
        if not permissions:
            # Without a line casbin evaluates the matcher once, with empty strings for the line.
            raise ValueError("a judge needs a line to judge by")
        assertions = model.fresh()
        self._by_values = {permission.values: permission for permission in reversed(permissions)}
        for permission in permissions:
            assertions.add_policy("p", "p", list(permission.values))
        self._enforcer = _Enforcer(assertions)
        self._enforcer.fm = FunctionMap()
        for name, function in functions.items():
            self._enforcer.add_function(name, function)

    def ask(self, subject: str, space: str, topic: str, action: str) -> tuple[bool, Permission | None]:
        """Whether the lines allow it, and the line that denies it if one does."""
        allowed, decisive = self._enforcer.enforce_ex(subject, space, topic, action)
        return allowed is True, self._by_values[tuple(decisive)] if decisive else None


class _Enforcer(casbin.Enforcer):  # type: ignore[misc]  # casbin is untyped
    """Casbin's enforcer without its switch: turned off, it would allow everything."""

    @property
    def enabled(self) -> bool:
        return True

    @enabled.setter
    def enabled(self, wanted: bool) -> None:
        if not wanted:
            log.error("something tried to turn enforcement off; it stays on")


def _check_matcher(expression: ast.expr) -> None:
    conjuncts = expression.values if _is(expression, ast.And) else [expression]
    missing = TERMS - {ast.unparse(term) for term in conjuncts}
    if missing:
        raise ValueError(f"the matcher lacks the term {min(missing)}")
    for term in conjuncts:
        if ast.unparse(term) not in TERMS:
            _check_narrowing(term)


def _check_narrowing(term: ast.expr) -> None:
    """Only `p.eft == "deny" || ...` can narrow what is allowed without narrowing what is denied."""
    if not _is(term, ast.Or) or ast.unparse(term.values[0]) != "p_eft == 'deny'":
        raise ValueError(f'the added term {ast.unparse(term)} must begin with p.eft == "deny" ||')
    for node in ast.walk(term):
        known = node.id in _COMPARABLE if isinstance(node, ast.Name) else isinstance(node, _NARROWING)
        if not known:
            raise ValueError(f"the added term may only compare r.sub, r.act and the line, not {ast.unparse(node)}")


def _is(expression: ast.expr, operator: type[ast.boolop]) -> TypeGuard[ast.BoolOp]:
    return isinstance(expression, ast.BoolOp) and isinstance(expression.op, operator)
