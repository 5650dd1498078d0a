"""The wheel holds one package; the folders, the links and the package list agree."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def test_package_list_equals_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"pipec", "pipec.examples"}  # the examples are files to copy, not to import
    for top, prefix in (
        ("pipec", "pipec"),
        ("passes", "pipec.passes"),
        ("backends", "pipec.backends"),
    ):
        for init in (ROOT / top).rglob("__init__.py"):
            relative = init.parent.relative_to(ROOT / top)
            if relative.parts[:1] not in (("passes",), ("backends",)) or top != "pipec":
                found.add(".".join([prefix, *relative.parts]))
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize("name", ["passes", "backends"])
def test_links_and_guards(name: str) -> None:
    assert (ROOT / "pipec" / name).resolve() == ROOT / name
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"import pipec.{name}, not {name}" in run.stderr


def build_wheel(sources: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run = subprocess.run(
        [*command, "-w", str(folder), str(sources)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def copy_sources(place: Path) -> Path:
    ignore = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "tests", "docs")
    shutil.copytree(ROOT, place, symlinks=True, ignore=ignore)
    return place


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_sources(folder / "sources"), folder / "dist")


def test_wheel_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info" not in n}
    assert tops == {"pipec"}
    assert {"pipec/py.typed", "pipec/passes/simplify.py", "pipec/backends/__init__.py"} <= set(
        names
    )
    backends = ROOT / "backends"
    for data in [p for kind in ("*.h", "*.cpp", "*.sv", "*.in") for p in backends.rglob(kind)]:
        assert f"pipec/{data.relative_to(ROOT).as_posix()}" in names


def test_a_second_build_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Other times and modes of the sources, and what an earlier build left, change nothing."""
    sources = copy_sources(tmp_path / "sources")
    stale = sources / "build" / "lib" / "pipec" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()  # of an earlier build
    for file in sources.rglob("*.py"):
        file.chmod(0o600)
        os.utime(file, (10**9, 10**9))
    again = build_wheel(sources, tmp_path / "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sources, out = copy_sources(tmp_path / "sources"), tmp_path / "out"
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", str(out)]
    run = subprocess.run([*command, str(sources)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (archive,) = out.glob("*.tar.gz")
    assert build_wheel(archive, tmp_path / "wheel").read_bytes() == wheel.read_bytes()


def locked() -> dict[str, list[str]]:
    """The hashes of each `name==version` of requirements.lock."""
    entries: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        text = line.strip().removesuffix("\\").strip()
        if text.startswith("--hash=sha256:"):
            entries[list(entries)[-1]].append(text)
        elif text and not text.startswith("#"):
            entries[text.split(";")[0].strip()] = []
    return entries


def test_lock_and_bill_of_materials_name_the_tested_versions(wheel: Path) -> None:
    """What is needed, directly and indirectly, stands in both with the version of the tests."""
    constraints = (ROOT / "constraints.txt").read_text().split()
    tested = {str(canonicalize_name(pin.split("==")[0])): pin.split("==")[1] for pin in constraints}
    pins = locked()
    assert all(hashes for hashes in pins.values())
    versions = dict(pin.split("==") for pin in pins)
    assert versions == {name: tested[name] for name in versions}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if ".dist-info/sboms/" in n]
        bill = json.loads(archive.read(name))
    assert bill["bomFormat"] == "CycloneDX"
    assert {canonicalize_name(c["name"]): c["version"] for c in bill["components"]} == {
        **versions,
        "torch": tested["torch"],
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    assert {canonicalize_name(Requirement(line).name) for line in direct} <= {*versions, "torch"}
