"""One configuration that is compared with the RTL."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.rtl.generate import Json
from benchmarks.rtl.nets import Net
from benchmarks.rtl.style import Style
from benchmarks.rtl.tile import Tile
from pipec.backends.fpga.stagejson import stage_record


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        name: Group and number.
        what: In words.
        make: The content of ``stage.json``, or a tiled engine.
        frames: Frames to run; the interval is that of the last two.
        style: How pipelines stall.
    """

    name: str
    what: str
    make: Callable[[], Json | Tile]
    frames: int = 4
    style: Style = Style.FREE

    @property
    def group(self) -> str:
        """The group's name."""
        return self.name.rstrip("0123456789")


def net(name: str, what: str, found: Net, frames: int = 4, style: Style = Style.FREE) -> Case:
    """A case of a hand-made network."""
    return Case(name, what, lambda: stage_record(found.design(name)), frames, style)
