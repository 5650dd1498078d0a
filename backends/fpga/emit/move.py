"""How engines that move data are written where fields of their nest are not all that is said."""

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.emit.compute import digits
from pipec.backends.fpga.emit.unit import Unit, constants_of
from pipec.backends.fpga.factors import SMALL_BLOCK
from pipec.backends.fpga.lowering.view import strides_of
from pipec.backends.fpga.routing import Concat, Perm


def concat(engine: Engine, nest: Concat) -> Unit:
    """Joins streams along one axis."""
    sizes = ", ".join(map(str, nest.sizes))
    body = [f"constexpr int sizes[] = {{{sizes}}};", "return sizes[port];"]
    constants = {"OUTER": nest.outer, "PORTS": len(nest.sizes)}
    return Unit("route.h", "concat", constants, {"int size(int port)": body}, outputs_first=True)


def perm(engine: Engine, nest: Perm) -> Unit:
    """Reorders the elements of a block."""
    if nest.turns and nest.lanes_in > 1 and nest.elements > SMALL_BLOCK:
        sizes = constants_of(nest, "BLOCKS ROWS=channels_out C=channels_in LANES=lanes_in")
        return Unit("transpose.h", "transpose", sizes)
    names = "BLOCKS ELEMENTS C_IN=channels_in LANES_IN READS C_OUT=channels_out LANES_OUT WRITES"
    constants = constants_of(nest, names)
    return Unit("perm.h", "perm", constants, {"int from(int i)": permuted(nest.sizes, nest.order)})


def permuted(sizes: tuple[int, ...], order: tuple[int, ...]) -> list[str]:
    """Lines that take an index of the transposed block to one of the block.

    Example:
        >>> permuted((2, 3), (1, 0))
        ['const int i0 = i / 2;', 'const int i1 = i % 2;', 'return i0 + i1 * 3;']
    """
    strides = strides_of(sizes)
    steps = [strides[axis] for axis in order]
    terms = [f"i{k} * {step}" if step > 1 else f"i{k}" for k, step in enumerate(steps)]
    return [*digits("i", [sizes[axis] for axis in order]), f"return {' + '.join(terms)};"]
