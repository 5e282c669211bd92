"""The tour: modules of a small agent on a bus, things that go wrong, a real crash, and yesterday once more.

`events demo`, `python -m events.demo`, `make demo`. Every number it shows is measured in that run. What it claims it
checks, and it says so, and exits 1, when a claim does not hold. `story` has the acts, `agent` the modules and the
process that is killed, `stage` what is seen.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from events.demo.stage import Stage
from events.demo.story import tell
from events.errors import InvalidMessage

__all__ = ["run"]


def run(workspace: str | Path | None = None, *, as_json: bool = False) -> bool:
    """Run the tour in a workspace, a new one if none is given. Whether every claim held."""
    place = Path(workspace) if workspace is not None else Path(tempfile.mkdtemp(prefix="events-demo-"))
    if (place / ".bus").exists():
        raise InvalidMessage("workspace", str(place), "the tour counts everything, so it wants a folder without a bus")
    stage = Stage(place, as_json=as_json)
    anyio.run(tell, stage)
    return stage.finish()
