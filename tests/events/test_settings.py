"""Settings from arguments, environment and file: which one wins, what is refused, and where each came from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from events.config import BusConfig
from events.errors import error_code_of
from events.persistence.wal import WalSettings
from events.settings import KEYS, Settings, SettingsError
from policies.topics import TopicPolicies


def load(environ: dict[str, str] | None = None, **arguments: object) -> Settings:
    """The settings, from nothing but what is given."""
    return Settings.load(environ=environ or {}, **arguments)  # type: ignore[arg-type]  # config is among them


def test_without_any_source_everything_is_the_default(tmp_path: Path) -> None:
    """The bus's settings are those of `BusConfig()`, and every source says so."""
    settings = load(workspace=tmp_path)
    assert settings.bus == BusConfig()
    assert {name for name, source in settings.sources.items() if source != "default"} == {"workspace"}
    assert load().workspace == Path("workspace")


def test_every_setting_of_bus_and_log_has_a_name() -> None:
    """Whatever can be set in code can be set from outside; policies by topic come from their folder."""
    expected = {entry.name for entry in (*fields(BusConfig), *fields(WalSettings))} - {"wal", "topics"}
    assert expected <= set(KEYS)


def test_arguments_win_over_environment_over_file(tmp_path: Path) -> None:
    """Each value comes from the first source that has it, and `sources` names that one."""
    (tmp_path / "events.toml").write_text("workers = 2\nbatch = 2\nmax_retries = 2\n")
    settings = load(
        {"EVENTS_WORKSPACE": str(tmp_path), "EVENTS_BATCH": "3", "EVENTS_MAX_RETRIES": "3"}, max_retries=4, subject=None
    )
    assert (settings.bus.workers, settings.bus.batch, settings.bus.max_retries) == (2, 3, 4)
    assert settings.sources["workers"] == f"{tmp_path / 'events.toml'}:1"
    assert settings.sources["batch"] == "EVENTS_BATCH"
    assert settings.sources["max_retries"] == "argument"
    assert settings.sources["subject"] == "default"
    assert settings.file == tmp_path / "events.toml"


def test_text_is_read_as_what_it_says() -> None:
    """Sizes and spans with their units, switches, lists."""
    settings = load(
        {
            "EVENTS_SEGMENT_BYTES": "2MiB",
            "EVENTS_PUBLISH_TIMEOUT_S": "1m",
            "EVENTS_COMPACT": "true",
            "EVENTS_STRICT_TOPICS": "actions, affect",
            "EVENTS_SYNC": "interval",
            "EVENTS_LOG_LEVEL": "DEBUG",
            "EVENTS_ACK_DEADLINE_S": "500ms",
        }
    )
    assert settings.bus.wal.segment_bytes == 2 * 1024 * 1024
    assert settings.bus.publish_timeout_s == 60.0
    assert settings.bus.compact is True
    assert settings.bus.strict_topics == ("actions", "affect")
    assert settings.bus.wal.sync == "interval"
    assert settings.log_level == "debug"
    assert settings.bus.ack_deadline_s == 0.5


def test_values_are_found_by_name() -> None:
    """`value` looks in all three places, so that a list of settings can be printed."""
    settings = load({"EVENTS_SYNC": "never"})
    assert settings.value("sync") == "never"
    assert settings.value("workers") == 1
    assert settings.value("log_format") == "text"
    with pytest.raises(KeyError):
        settings.value("nothing")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"EVENTS_MAX_INFLGHT": "1"}, "EVENTS_MAX_INFLGHT: no such setting .* Did you mean 'EVENTS_MAX_INFLIGHT'"),
        ({"EVENTS_XYZZY": "1"}, "no such setting 'EVENTS_XYZZY'. There are EVENTS_WORKSPACE"),
        ({"EVENTS_SYNC": "sometimes"}, "EVENTS_SYNC: found 'sometimes'; sync: input should be 'always'"),
        ({"EVENTS_WORKERS": "0"}, "found '0'; workers is at least 1"),
        ({"EVENTS_WORKERS": "many"}, "found 'many'; workers: input should be a valid integer"),
        ({"EVENTS_SEGMENT_BYTES": "1GiB"}, "segment_bytes is from 1MiB to 100MiB"),
        ({"EVENTS_SEGMENT_BYTES": "big"}, "segment_bytes: a size is"),
        ({"EVENTS_ACK_DEADLINE_S": "3 parsec"}, "ack_deadline_s: a span is"),
        ({"EVENTS_CONFIG": "/nowhere/events.toml"}, "/nowhere/events.toml: there is no such file"),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_it(environ: dict[str, str], said: str) -> None:
    """What was found, what would do, and what was probably meant."""
    with pytest.raises(SettingsError, match=said) as raised:
        load(environ)
    assert error_code_of(raised.value) == "INVALID_SETTING"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# mine\nmax_inflght = 3\n", r"events.toml:2: no such setting 'max_inflght'. Did you mean 'max_inflight'"),
        ("workers = true\n", "events.toml:1: found True; workers is no switch"),
        ("workers = 1.5\n", "events.toml:1: found 1.5; workers"),
        ("workers = \n", "events.toml: Invalid value"),
        ("\n[bus]\nworkers = 1\n", r"events.toml:2: no such setting 'bus'"),
        ("workspace = 'x'\n", "a file cannot say where the workspace is. Use -w or EVENTS_WORKSPACE"),
    ],
)
def test_a_wrong_line_is_an_error_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    """File and line are part of the message."""
    (tmp_path / "events.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        load(workspace=tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named by their place."""
    (tmp_path / "events.toml").write_bytes(b"workers = 1 # \xff\n")
    with pytest.raises(SettingsError, match="byte 14 is not UTF-8"):
        load(workspace=tmp_path)


def test_an_unknown_argument_is_refused() -> None:
    """Also a program that misspells a keyword gets the suggestion."""
    with pytest.raises(SettingsError, match="argument: no such setting 'worker'"):
        load(worker=3)


def test_an_empty_variable_is_not_set() -> None:
    """As a shell has it: `EVENTS_SYNC= events doctor`."""
    assert load({"EVENTS_SYNC": ""}).sources["sync"] == "default"


def test_a_file_can_be_named(tmp_path: Path) -> None:
    """`config` or EVENTS_CONFIG instead of the one in the workspace."""
    file = tmp_path / "other.toml"
    file.write_text("workers = 7\n")
    assert load(config=file).bus.workers == 7
    assert load({"EVENTS_CONFIG": str(file)}).bus.workers == 7


def test_policies_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    """And their topics.toml, if there is one, becomes the bus's settings by topic."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (tmp_path / "events.toml").write_text('policies = "policies"\n')
    assert load(workspace=tmp_path).policies == folder
    assert load(workspace=tmp_path).bus.topics is None
    (folder / "topics.toml").write_text('[topics."actions"]\nmax_retries = 8\n# end of policy\n')
    settings = load(workspace=tmp_path)
    assert isinstance(settings.bus.topics, TopicPolicies)
    assert settings.bus.topic("actions")("max_retries") == 8
