"""The wheel holds one package; the folders, the links and the package list agree."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_package_list_equals_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"pipec"}
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


def test_wheel_contents(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
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
