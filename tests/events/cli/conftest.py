"""Fixtures for the command line: workspaces with content, with policies, and with a bus that runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.blocking import BlockingBus
from tests.events.cli.cli_support import CONFIG, fill, run


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run in an empty folder, with no variable of ours set."""
    monkeypatch.delenv("EVENTS_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with content, made once."""
    workspace = tmp_path_factory.mktemp("template") / "workspace"
    fill(workspace)
    return workspace


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Path:
    """A copy of the workspace with content."""
    return Path(shutil.copytree(template, tmp_path / "filled"))


@pytest.fixture
def held(filled: Path) -> Iterator[BlockingBus]:
    """A bus that runs on the workspace `filled`."""
    with BlockingBus(workspace=filled, config=CONFIG) as bus:
        yield bus


@pytest.fixture
def ruled(filled: Path) -> Path:
    """The workspace with content, and with settings and policies as `events init` makes them."""
    run("init", filled)
    return filled
