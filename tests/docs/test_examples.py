"""Every Python example in the README and the docs runs, and prints what the docs show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_example = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str, str | None]]:
    """Page and number, code, and the output that follows it in the page."""
    found = []
    for page in PAGES:
        for number, match in enumerate(_example.finditer(page.read_text()), 1):
            found.append((f"{page.relative_to(ROOT)}#{number}", match[1], match[2]))
    return found


@pytest.mark.parametrize(("name", "code", "shown"), examples(), ids=[name for name, _, _ in examples()])
def test_example_prints_what_the_page_shows(name: str, code: str, shown: str | None, tmp_path: Path) -> None:
    """An example runs in an empty folder with warnings as errors, and its output is the one in the page."""
    assert shown is not None, f"{name}: an example without its output cannot be checked"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == shown


def test_there_are_examples() -> None:
    """The pages are found and hold examples: an empty list would pass everything above."""
    assert len(examples()) >= 2
