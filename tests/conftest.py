"""Fixtures for every test: both async backends, and a workspace that nobody else uses.

No folder under tests/ has an `__init__.py`. With one in tests/events/ alone, `import events` would find the
tests; with none, `--import-mode=importlib` names each module after its path (`tests.events.test_bus`), and
the tree can be mirrored file by file.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline per example: a busy machine is not a failing test.
settings.register_profile("cognitive-events", deadline=None)
settings.load_profile("cognitive-events")


# Module scope: a module's fixtures may be async and shared, and a run still finishes one file before it
# begins the next.
@pytest.fixture(
    scope="module",
    params=[
        # Debug mode off: it changes timing, and slow-callback noise would hide real failures.
        pytest.param(("asyncio", {"debug": False}), id="asyncio"),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Runs each async test once on asyncio and once on trio."""
    return request.param


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace, which is also the default of this process while the test runs."""
    path = tmp_path / "workspace"
    path.mkdir()
    monkeypatch.setenv("EVENTS_WORKSPACE", str(path))
    return path
