"""Which models are taken, and which are refused because casbin would fail open with them."""

from pathlib import Path

import pytest

from policies.files import END, PolicyError, Source
from policies.judge import Function, Judge, Model
from policies.rules import Permission

TEXT = Source.of(None, "model.conf").read().decode()
EFFECT = "e = some(where (p.eft == allow)) && !some(where (p.eft == deny))"


def model(text: str = TEXT) -> Model:
    """A model of this text."""
    return Model(text.encode(), "model.conf")


def with_term(term: str) -> str:
    """The packaged model with one more term in its matcher."""
    return TEXT.replace("does(r.act, p.act)\n", f"does(r.act, p.act) && {term}\n")


def functions(answer: bool = True) -> dict[str, Function]:
    """The four terms, all with the same answer."""
    return dict.fromkeys(["holds", "in_space", "on_topic", "does"], lambda *_: answer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT.replace(EFFECT, "e = !some(where (p.eft == deny))"), "must want a line that allows"),
        (TEXT.replace(EFFECT, "e = some(where (p.eft == allow))"), "must want a line that allows"),
        (TEXT.replace(EFFECT, "e = priority(p.eft) || deny"), "must want a line that allows"),
        (TEXT.replace(EFFECT, "e = anything"), "unsupported effect"),
        (TEXT.replace(EFFECT, ""), "one effect"),
        (TEXT.replace("[matchers]", "[Matchers]"), "one matcher"),
        (TEXT.replace("r = sub, dom, obj, act", "r = sub, obj, act"), "a request is"),
        (TEXT.replace("p = sub, dom, obj, act, eft", "p = sub, dom, obj, act"), "a line"),
        (TEXT.replace("[policy_effect]", "p2 = sub, act\n[policy_effect]"), "one policy definition"),
        (TEXT.replace("[policy_effect]", "[role_definition]\ng = _, _\n[policy_effect]"), "a model has one"),
        (TEXT.replace("on_topic(r.obj, p.obj, p.eft)", "keyMatch(r.obj, p.obj)"), "lacks the term on_topic"),
        (TEXT.replace("in_space(r.dom, p.dom, p.eft)", "regexMatch(r.dom, p.dom)"), "lacks the term in_space"),
        (TEXT.replace("in_space(r.dom, p.dom, p.eft)", "in_space(r.dom, p.dom, p.dom)"), "lacks the term in_space"),
        (TEXT.replace("p.eft) && \\\n    does", "p.eft) || \\\n    does"), "lacks the term"),
        (with_term('r.sub == "user:root"'), "must begin with"),
        (with_term('(r.sub == "user:root" || p.eft == "deny")'), "must begin with"),
        (with_term('(p.eft == "deny" || r.obj != "secret")'), "not r_obj"),
        (with_term('(p.eft == "deny" || r.dom != "secret")'), "not r_dom"),
        (with_term('(p.eft == "deny" || regexMatch(r.sub, "root"))'), "may only compare"),
        (with_term('(p.eft == "deny" || eval(p.sub))'), "may only compare"),
        (with_term("("), "not a model"),
        ("nonsense\n" + TEXT, "not a model"),
    ],
)
def test_a_model_that_could_fail_open_is_refused(text: str, reason: str) -> None:
    """Another effect, another request, a missing term or a term that could open: each is refused by name."""
    with pytest.raises(PolicyError) as caught:
        model(text)
    assert reason in str(caught.value)
    assert caught.value.file == "model.conf"


def test_a_model_cut_at_any_byte_is_refused() -> None:
    """A model that lost its last terms would match more."""
    data = TEXT.encode()
    for size in range(len(data)):
        with pytest.raises(PolicyError):
            Model(data[:size], "model.conf")


@pytest.fixture
def narrowed() -> Judge:
    """A judge by one allowance, under a model in which only the root user may administer."""
    text = with_term('(p.eft == "deny" || r.act != "admin" || r.sub == "user:root")')
    return Judge(model(text), [Permission("*", "*", "**", "*", "allow")], functions())


def test_an_added_term_narrows_what_is_allowed(narrowed: Judge) -> None:
    """A copy of the model may add conditions to every line that allows."""
    assert narrowed.ask("user:root", "s", "t", "admin") == (True, None)
    assert narrowed.ask("user:alice", "s", "t", "publish") == (True, None)
    assert narrowed.ask("user:alice", "s", "t", "admin") == (False, None)


def test_a_judge_names_the_line_that_denies() -> None:
    """Of several lines, the one that denies is handed back as it was given."""
    lines = [Permission("*", "*", "**", "*", "allow"), Permission("alice", "*", "**", "*", "deny")]
    allowed, line = Judge(model(), lines, functions()).ask("alice", "s", "t", "publish")
    assert not allowed
    assert line is lines[1]


def test_a_judge_without_a_line_is_refused() -> None:
    """Casbin would match its empty strings against the request; so it is never asked without a line."""
    with pytest.raises(ValueError, match="needs a line"):
        Judge(model(), [], functions())


def test_an_exception_in_a_matcher_is_no_answer() -> None:
    """A term that raises ends the request with that exception."""

    def fail(*_: str) -> bool:
        raise RuntimeError("broken")

    judge = Judge(model(), [Permission("*", "*", "**", "*", "allow")], functions() | {"on_topic": fail})
    with pytest.raises(RuntimeError, match="broken"):
        judge.ask("alice", "s", "t", "publish")


def test_a_users_model_is_read_from_its_path(tmp_path: Path) -> None:
    """The packaged model copied elsewhere is the same model."""
    path = tmp_path / "model.conf"
    path.write_text(TEXT)
    assert END in path.read_text()
    assert Model(Source.of(path, "model.conf").read(), str(path)).fresh() is not None
