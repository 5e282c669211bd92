"""The wheel as users get it: what is inside, who owns each top-level name, and that it imports.

Other distributions on the index use the names `events`, `filters` and `middleware` too, and pip lets the last
one installed overwrite the first without a word. So the wheel is installed for real, and the owners are
counted.
"""

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTION = "cognitive-events"
NAMES = ["events", "filters", "middleware", "policies", "spark"]

# Runs inside the clean environment: who owns which top-level folder, and what does an import find?
PROBE = """
import importlib, importlib.metadata, json, sys
owners = {name: [] for name in sys.argv[1:]}
for distribution in importlib.metadata.distributions():
    tops = {file.parts[0].removesuffix(".py") for file in distribution.files or ()}
    for name in tops & owners.keys():
        owners[name].append(distribution.name)
origins = {name: importlib.import_module(name).__file__ for name in owners}
print(json.dumps({"owners": owners, "origins": origins}))
"""


def run(*command: str | Path) -> str:
    """The output of a command; if it fails, the test fails with what the command said."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def dependencies(requirements: Iterable[str]) -> Iterable[importlib.metadata.Distribution]:
    """The installed distributions that `requirements` lead to; extras only where they are asked for."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[Requirement] = set()
    waiting = [(Requirement(text), {""}) for text in requirements]
    while waiting:
        requirement, asked = waiting.pop()
        marker = requirement.marker
        if requirement in seen or (marker and not any(marker.evaluate({"extra": extra}) for extra in asked)):
            continue
        seen.add(requirement)
        name = canonicalize_name(requirement.name)
        found[name] = importlib.metadata.distribution(name)
        waiting += [(Requirement(text), {"", *requirement.extras}) for text in found[name].requires or ()]
    return found.values()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    out = tmp_path_factory.mktemp("dist")
    # No isolation: hatchling is among the development tools, so building needs no network.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    """The paths in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel and its core dependencies, and nothing else.

    The dependencies are links to the ones already installed here. Downloading them would take longer and need
    a network; showing it all of this environment would hide a core module that imports a development tool.
    """
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-I", "-c", query).strip())
    for distribution in dependencies(importlib.metadata.distribution(DISTRIBUTION).requires or ()):
        # File by file: several distributions share the folder `opentelemetry`, and only one of them is core.
        for file in distribution.files or ():
            if file.parts[0] == "..":  # scripts
                continue
            link = site / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(distribution.locate_file(file)))
    return python


def test_wheel_holds_the_five_packages_and_nothing_else(contents: set[str]) -> None:
    """The wheel has the five packages, each marked as typed; tests and measurements stay at home."""
    tops = {path.split("/")[0] for path in contents if ".dist-info/" not in path}
    assert tops == set(NAMES)
    assert {f"{name}/py.typed" for name in NAMES} <= contents
    assert not [path for path in contents if path.startswith(("tests/", "perf/"))]


def test_policy_files_ship(contents: set[str]) -> None:
    """Every file in policies/ is in the wheel, since rules are read from the installed package."""
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "policies").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here <= contents


def test_each_name_has_one_owner_and_imports(clean_python: Path) -> None:
    """In a clean environment each top-level name belongs to this distribution alone, and imports from it."""
    # -I: neither the current directory nor PYTHONPATH may stand in for the installed package.
    found = json.loads(run(clean_python, "-I", "-c", PROBE, *NAMES))
    assert found["owners"] == {name: [DISTRIBUTION] for name in NAMES}
    home = str(clean_python.parent.parent)
    assert [origin for origin in found["origins"].values() if not origin.startswith(home)] == []


def test_no_extra_brings_a_rival() -> None:
    """With every extra installed, as here, no other distribution has a module of one of our names."""
    site = sysconfig.get_path("purelib")
    rivals = {
        (distribution.name, file.parts[0])
        for distribution in importlib.metadata.distributions(path=[site])
        for file in distribution.files or ()
        if file.parts[0].removesuffix(".py") in NAMES
    }
    # This checkout itself, should it be installed as a wheel instead of in place.
    assert {(name, top) for name, top in rivals if canonicalize_name(name) != DISTRIBUTION} == set()
