"""Layers that only training needs; what all layers have is in `lowering.layers`."""

from dataclasses import dataclass

from pipec.backends.fpga.lowering.layers import Layer, Table, Window


@dataclass(frozen=True)
class WeightGradient(Layer):
    """Gradient of a convolution's or linear layer's weight; inputs x, dy.

    Writes ``groups*out*taps`` rows of ``cin``. Attributes as of `lowering.layers.Dense`.
    """

    n: int
    groups: int
    out: int
    taps: int
    cin: int
    window: Window | None = None


@dataclass(frozen=True)
class PoolGradient(Layer):
    """Gradient of max pooling; inputs dy and the places of the maxima."""

    window: Window


@dataclass(frozen=True)
class PoolIndex(Layer):
    """Places of the maxima of a max pooling."""

    window: Window


@dataclass(frozen=True)
class Windows(Layer):
    """Windows of maps, one after the other: ``taps`` rows of ``channels`` each."""

    window: Window


@dataclass(frozen=True)
class OneHotRows(Layer):
    """Class numbers to one-hot rows; rows of zeros where the class is ``ignored``."""

    ignored: int = -1


@dataclass(frozen=True)
class RowDerivative(Layer):
    """Gradient of a row op; see `training.nests.RowGradient`. Table ``[taps*cin]``."""

    n: int
    taps: int
    cin: int
    op: str
    eps: float = 0.0
    scale: Table | None = None

    @property
    def passes(self) -> int:
        """Passes over a row, reading and writing included."""
        return 4 if self.op == "layer_norm" else 2


@dataclass(frozen=True)
class ZeroInsert(Layer):
    """Pixels put ``window.sh`` rows and ``window.sw`` columns apart, zeros between.

    ``window.h x window.w`` are the maps that come out.
    """

    window: Window
