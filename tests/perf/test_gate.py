"""`python -m perf.gate` runs, and prints what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_costs_of_a_gate_and_the_overload_are_printed() -> None:
    """A short run: cost for each event of every gate, the goal for a plain admit, the overload with and without."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "perf.gate",
        "--number",
        "2048",
        "--events",
        "500",
        "--repeats",
        "3",
    ]
    done = subprocess.run(
        [*command, "--ticks", "20", "--no-save"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "plain admit of the base gate",
        "goal under 2",
        "whole step in a group, SalienceGate",
        "no gate    salient",
    ):
        assert words in done.stdout
