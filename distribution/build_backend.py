"""setuptools' build backend, with two things that a wheel of pipec also has.

The list of packages that pipec was tested with stands in the wheel as a software bill of
materials (PEP 770: `.dist-info/sboms/`), and times and modes in the archive are constants, so
that two builds of the same sources have the same bytes.
"""

import shutil
import stat
import tempfile
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

SBOM = Path(__file__).parent / "pipec.cdx.json"
Settings = dict[str, str | list[str] | None] | None


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Build the editable wheel as setuptools does; `metadata` may be the folder prepared before."""
    return str(build_meta.build_editable(directory, settings, metadata))


def prepare_metadata_for_build_wheel(directory: str, settings: Settings = None) -> str:
    """Write the `.dist-info` folder below `directory`, the bill of materials in it; its name."""
    name = str(build_meta.prepare_metadata_for_build_wheel(directory, settings))
    sboms = Path(directory, name, "sboms")
    sboms.mkdir()
    shutil.copyfile(SBOM, sboms / SBOM.name)
    return name


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Build the wheel into `directory`, of what is there now; the file's name."""
    shutil.rmtree("build/lib", ignore_errors=True)  # setuptools adds to what an earlier build left
    with tempfile.TemporaryDirectory() as folder:
        if metadata is None:
            metadata = str(Path(folder, prepare_metadata_for_build_wheel(folder, settings)))
        name = str(build_meta.build_wheel(folder, settings, metadata))
        copy_reproducibly(Path(folder, name), Path(directory, name))
    return name


def copy_reproducibly(built: Path, copied: Path) -> None:
    """Copy the archive with one time and one mode for all files, not those of the sources."""
    with ZipFile(built) as old, ZipFile(copied, "w") as new:
        for entry in old.infolist():
            same = ZipInfo(entry.filename, (2026, 1, 1, 0, 0, 0))
            same.external_attr = (stat.S_IFREG | 0o644) << 16
            same.compress_type = entry.compress_type
            new.writestr(same, old.read(entry))
