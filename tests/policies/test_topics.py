"""topics.toml: which table wins, what is refused and where, and reloading."""

from pathlib import Path

import pytest

from events.types import SecurityBand
from policies.files import END, PolicyError, Source
from policies.topics import TopicPolicies, TopicPolicy, TopicTables, specificity


def tables(text: str) -> TopicTables:
    """The tables of a file with this text and its proper end."""
    return TopicTables(f"{text}\n{END}\n".encode(), "topics.toml")


def test_the_packaged_file_sets_nothing() -> None:
    """Out of the box every topic is treated as BusConfig says, and any topic may be used."""
    policies = TopicPolicies()
    assert policies.for_topic("actions") == TopicPolicy()
    assert policies.allow_lists("actions") == policies.allow_lists("**") == ()
    assert policies.topology.permits("anything")
    assert policies.band_of("actions", None) is None


def test_the_example_in_the_packaged_file_is_right() -> None:
    """What the comments show can be used as it stands: every setting, and all there are."""
    text = Source.of(None, "topics.toml").read().decode()
    example = text[text.index("# [topics") : text.index(f"\n{END}")]
    loaded = tables("\n".join(line.removeprefix("#").removeprefix(" ") for line in example.splitlines()))
    assert loaded.for_topic("actions").model_fields_set == set(TopicPolicy.model_fields)
    assert not loaded.topology.permits("other")


def test_settings_are_typed() -> None:
    """Every setting arrives as what it is."""
    policy = tables(
        """
        [topics."actions"]
        allow = ["role:agent", "agent:*"]
        band = "AMBER"
        priority = 80
        on_expired = "dlq"
        ack_deadline_s = 30
        retention_bytes = 1_000
        max_retries = 0
        backoff_mult = 1.5
        payload_schema = "strict"
        redaction = "refuse"
        redaction_bands = ["GREEN", "AMBER"]
        """
    ).for_topic("actions")
    assert policy.allow == frozenset({"role:agent", "agent:*"})
    assert policy.band is SecurityBand.AMBER
    assert (policy.priority, policy.on_expired, policy.ack_deadline_s, policy.max_retries) == (80, "dlq", 30, 0)
    assert (policy.retention_bytes, policy.retention_s, policy.backoff_mult) == (1_000, None, 1.5)
    assert (policy.payload_schema, policy.redaction) == ("strict", "refuse")
    assert policy.redaction_bands == frozenset({SecurityBand.GREEN, SecurityBand.AMBER})


def test_the_most_specific_table_that_sets_a_key_wins() -> None:
    """Keys come from the most specific table that has them; others fill in what it leaves open."""
    loaded = tables(
        """
        [topics."*"]
        max_retries = 1
        priority = "low"
        on_expired = "drop"
        [topics."a.**"]
        max_retries = 2
        priority = "high"
        [topics."a.*"]
        max_retries = 3
        [topics."a.b"]
        max_retries = 4
        """
    )
    found = {topic: loaded.for_topic(topic) for topic in ("x", "a", "a.x", "a.x.y", "a.b")}
    assert {topic: policy.max_retries for topic, policy in found.items()} == {
        "x": 1,
        "a": 2,
        "a.x": 3,
        "a.x.y": 2,
        "a.b": 4,
    }
    assert found["a.b"].priority == "high"
    assert found["a.b"].on_expired == "drop"
    assert found["x"].priority == "low"
    assert loaded.for_topic("a.b") is found["a.b"], "cached"


def test_the_order_of_patterns() -> None:
    """From most to least specific: an exact topic, then names before `*` before `**`, from the left."""
    ordered = ["a.b", "a.b.**", "a.*.c", "a.*", "a.**.c", "a.**", "*.b", "*.**", "**.b", "**"]
    backwards = ordered[::-1]
    assert sorted(backwards, key=specificity, reverse=True) == ordered
    assert specificity("*") == specificity("**")


def test_of_equally_specific_tables_the_first_wins() -> None:
    """Two globs that cannot be told apart are taken in the order of the file."""
    loaded = tables('[topics."**.a.**"]\nmax_retries = 1\n[topics."**.b.**"]\nmax_retries = 2')
    assert loaded.for_topic("b.a").max_retries == 1


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("[topics.actions]\nmax_retrys = 3", "2:1", "no such setting 'max_retrys'. Did you mean 'max_retries'?"),
        ("[topics.actions]\nzzz = 3", "2:1", "There are allow, band"),
        ("[topic.actions]\nband = 'RED'", "1:2", "no such setting 'topic'. Did you mean 'topics'?"),
        ("x = 1", "1:1", "There are topics, topology"),
        ("[topics.actions]\n\n  max_retries = -1", "3:3", "max_retries: found -1; input should be greater than"),
        ("[topics.actions]\nmax_retries = '3'", "2:1", "max_retries: found '3'; input should be a valid integer"),
        ("[topics.actions]\nmax_retries = true", "2:1", "valid integer"),
        ("[topics.actions]\nack_deadline_s = true", "2:1", "valid number"),
        ("[topics.actions]\nack_deadline_s = 0", "2:1", "greater than 0"),
        ("[topics.actions]\nretention_s = inf", "2:1", "finite number"),
        ("[topics.actions]\nbackoff_mult = 0.5", "2:1", "greater than or equal to 1"),
        ("[topics.actions]\npriority = 101", "2:1", "a whole number from 0 to 100"),
        ("[topics.actions]\npriority = 'urgent'", "2:1", "or low, normal, high or critical"),
        ("[topics.actions]\nband = 'PURPLE'", "2:1", "band: found 'PURPLE'; a band is GREEN"),
        ("[topics.actions]\non_expired = 'explode'", "2:1", "'drop', 'dlq' or 'deliver'"),
        ("[topics.actions]\nallow = 'alice'", "2:1", "a list of subjects and roles"),
        ("[topics.actions]\nallow = [\n  'alice',\n  'bad name',\n]", "2:1", "'bad name' is no subject"),
        ("[topics.'act*']\nband = 'RED'", "1:2", "'act*' is no topic"),
        ("[topics.\"a b\"]\nband = 'RED'", "1:2", "'a b' is no topic"),
        ("topics.actions.bnd = 'RED'", "1:1", "Did you mean 'band'?"),
        ("topics = { actions = { bnd = 'RED' } }", "1:1", "Did you mean 'band'?"),
        ("topics = 3", "1:1", "this is a table of settings"),
        ("[topics]\nactions = 3", "2:1", "this is a table of settings"),
        ("[topology]\nstrict = true", "2:1", "a strict topology needs 'topics'"),
        ("[topology]\nstrict = 1", "2:1", "valid boolean"),
        ("[topology]\ntopics = ['a', 'act*']", "2:1", "'act*' is no topic"),
        ("[topics.actions]\nband = ", "2:8", "nvalid value"),
        ("[topics.actions]\nband = 'RED'\nband = 'RED'", "3:13", "verwrite"),
    ],
)
def test_errors_say_where_and_what(text: str, where: str, problem: str) -> None:
    """Every error has the file, the line and column of the key, what was found and what is allowed."""
    with pytest.raises(PolicyError) as caught:
        tables(text)
    assert str(caught.value).startswith(f"topics.toml:{where}: ")
    assert problem in str(caught.value)


def test_strict_topology_permits_what_it_lists() -> None:
    """W16: with a strict topology there are no topics but the listed ones."""
    topology = tables("[topology]\nstrict = true\ntopics = ['actions', 'affect.**']").topology
    assert topology.permits("actions")
    assert topology.permits("affect.joy")
    assert not topology.permits("actions.x")
    assert tables("[topology]\ntopics = ['actions']").topology.permits("anything")


def test_the_band_of_a_topic_is_a_floor(tmp_path: Path) -> None:
    """An event counts as at least as sensitive as its topic."""
    path = tmp_path / "topics.toml"
    path.write_text(f"[topics.health]\nband = 'AMBER'\n{END}\n")
    policies = TopicPolicies(path)
    assert policies.band_of("health", None) is SecurityBand.AMBER
    assert policies.band_of("health", SecurityBand.GREEN) is SecurityBand.AMBER
    assert policies.band_of("health", SecurityBand.BLACK) is SecurityBand.BLACK
    assert policies.band_of("weather", None) is None
    assert policies.band_of("**", None) is None


def test_allow_lists_of_topics_and_patterns() -> None:
    """A topic has its most specific list; a pattern has every list that it touches, with their lines."""
    loaded = tables("[topics.'a.**']\nallow = ['x']\n[topics.'a.b']\nallow = []\n[topics.c]\nallow = ['y']")
    assert [sorted(found.names) for found in loaded.allow_lists("a.b")] == [[]]
    assert [sorted(found.names) for found in loaded.allow_lists("a.z")] == [["x"]]
    assert [found.line.number for found in loaded.allow_lists("a.*")] == [4, 2]
    assert len(loaded.allow_lists("**")) == 3
    assert loaded.allow_lists("d") == ()
    assert str(loaded.allow_lists("c")[0].line) == "topics.toml:6: allow = ['y']"


def test_a_reload_keeps_the_last_good_and_empties_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bad file changes nothing; a good one is seen at once."""
    path = tmp_path / "topics.toml"
    path.write_text(f"[topics.a]\nmax_retries = 1\n{END}\n")
    policies = TopicPolicies(path)
    assert policies.for_topic("a").max_retries == 1
    path.write_text(f"[topics.a]\nmax_retrys = 22\n{END}\n")
    assert policies.reload_if_changed() is False
    assert policies.for_topic("a").max_retries == 1
    assert "Did you mean 'max_retries'?" in str(policies.last_error)
    assert "the last good one stays in force" in caplog.text
    path.write_text(f"[topics.a]\nmax_retries = 333\n{END}\n")
    assert policies.reload_if_changed() is True
    assert policies.for_topic("a").max_retries == 333


def test_a_bad_file_does_not_start(tmp_path: Path) -> None:
    """Without a last good file there is nothing to fall back to."""
    with pytest.raises(PolicyError, match="cannot be read"):
        TopicPolicies(tmp_path / "missing.toml")
