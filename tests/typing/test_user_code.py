"""The typed user example is checked as a user would check it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

USER_CODE = Path(__file__).with_name("user_code.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("config", ["", str(ROOT / "pyproject.toml")], ids=["without plugin", "with pydantic's plugin"])
def test_mypy_sees_the_types_that_users_rely_on(config: str, tmp_path: Path) -> None:
    """PEP 561: strict mypy accepts the example, with and without the pydantic plugin; every ignore in it is needed."""
    # A copy, because in its place the file would be checked with the project's own paths.
    copy = tmp_path / "user_code.py"
    copy.write_text(USER_CODE.read_text())
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={config}", f"--cache-dir={tmp_path / 'cache'}"]
    environment = {**os.environ, "MYPYPATH": ""}
    ended = subprocess.run(
        [*command, str(copy)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_example_runs() -> None:
    """What is shown with types also works."""
    subprocess.run([sys.executable, "-W", "error", str(USER_CODE)], check=True, timeout=60)
