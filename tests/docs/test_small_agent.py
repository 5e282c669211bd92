"""The example of a small agent runs, and shows what its text promises."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "small_agent.py"


def ran(*arguments: str, cwd: Path) -> str:
    """What the example prints, run as a reader would, with warnings as errors."""
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agent_feels_decides_acts_and_learns(tmp_path: Path) -> None:
    """Affect, arbiter, actuators, learner, in this order for each thing that happens; and it gets better at it."""
    shown = ran(cwd=tmp_path)
    days = {day: shown.split(f"\nday {day}")[1].split("\nday ")[0] for day in (1, 2, 3, 4)}
    for day in (1, 2, 3):
        modules = [line.split()[0] for line in days[day].splitlines() if line.startswith("    ")]
        assert modules == ["affect", "arbiter", "actuators", "learner"] * 3
    helped = [days[day].count(": ok\n") for day in (1, 2, 3)]
    assert helped == [1, 2, 3]
    assert "turn off the stove: ok" in days[3]
    assert not list(tmp_path.iterdir())


def test_attention_memory_and_looking_back_are_shown(tmp_path: Path) -> None:
    """Forty-five of fifty ticks never reach the agent; why is told, what it remembers, and what if."""
    shown = ran(cwd=tmp_path)
    assert shown.count("affect     tick") == 5
    assert "smoke over the stove: turn off the stove, ok" in shown.split("what it remembers")[1]
    assert "0.80  the kettle whistles" in shown.split("what it has in mind")[1]
    assert "budget ticks: 5 of 5 in 3600 s" in shown
    assert "6 of 59 events would have been treated differently" in shown


def test_the_files_can_be_kept(tmp_path: Path) -> None:
    """In a folder of one's own the logs, the journal and the memories stay, to be looked at."""
    ran("here", cwd=tmp_path)
    space = tmp_path / "here" / ".bus" / "spaces" / "kitchen"
    assert (space / "wal" / "actions.00000001.jsonl").read_text().count("ACTION_DECISION") == 9
    assert (space / "gate" / "senses__affect.00000001.jsonl").exists()
    assert (space / "memories" / "episodic.sqlite3").exists()
