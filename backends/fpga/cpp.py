"""C++ as text: identifiers, literals, types, configuration structs."""

import math
import re
from collections.abc import Sequence

import numpy as np

from pipec.backends.fpga.numbers import int8_format, parse_fixed
from pipec.errors import BackendError

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit
export extern false float for friend goto if inline int long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register return short signed sizeof
static static_assert static_cast struct switch template this throw true try typedef typeid typename
union unsigned using virtual void volatile wchar_t while xor xor_eq
cfg dataflow engine frames hls int32_t int8_t least load_tables main microbatch microbatches ops
table tb vec zeros
"""
KEYWORDS = frozenset(_WORDS.split())
"""Words that no name may be: the language's and the emitted code's own."""

TYPES = {
    "float32": "float", "bfloat16": "bfloat16", "float16": "float16", "int32": "int32_t",
    "int16": "int16_t", "int8": "int8_t", "rescale": "rescale",
}  # fmt: skip
"""Element type of a stream to its C++ type; see `parse_fixed` for the others."""

_WIDEST = 24
"""Bits of the widest fixed-point number: float32 holds it, 63 bits any sum of its products."""


def cpp_type(dtype: str) -> str:
    """The C++ type of an element.

    Raises:
        BackendError: No C++ is emitted for it.
    """
    found = parse_fixed(dtype)
    if found is not None and 0 < found[1] <= found[0] <= _WIDEST:
        return f"fixed<{found[0]}, {found[1]}>"
    scaled = int8_format(dtype)
    if scaled is not None:
        return f"quantised<{scaled.mantissa}, {scaled.exponent}, {scaled.zero}>"
    if dtype not in TYPES:
        raise unknown_type(dtype)
    return TYPES[dtype]


def unknown_type(dtype: str) -> BackendError:
    """The error for a precision that does not exist."""
    return BackendError(
        "no C++ type for elements of this kind",
        got=dtype,
        want=f"float32, bfloat16, float16, int8, ap_fixed<W,I> with 0 < I <= W <= {_WIDEST}",
        hint="choose another --precision",
    )


def identifier(name: str) -> str:
    """``name`` as a C++ identifier.

    Example:
        >>> identifier("conv1/weight:0"), identifier("new"), identifier("3x3")
        ('conv1_weight_0', 'new_', '_3x3')
    """
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    found = re.sub(r"__+", "_", found) or "_"
    if found[0].isdigit():
        found = f"_{found}"
    return f"{found}_" if found in KEYWORDS else found


def comment(text: str) -> str:
    r"""Text that may stand in a ``//`` comment: one printable line that does not go on.

    Example:
        >>> comment("Conv\nx\\")
        'Conv x/'

    Two question marks in a row are parted: ``??/`` is a backslash to a compiler of C++14.
    """
    line = " ".join(text.split()).replace("\\", "/").replace("??", "? ?").replace("??", "? ?")
    return "".join(c if c.isprintable() else "?" for c in line)


def literal(value: float, dtype: str) -> str:
    """A number as a C++ literal of an element type, to the last bit.

    Example:
        >>> literal(0.1, "float32"), literal(2, "float32"), literal(3, "int32")
        ('0.1f', '2.0f', '3')
        >>> literal(float("-inf"), "float32"), literal(1e39, "float32")
        ('least<float>()', '-least<float>()')
    """
    if dtype in ("int8", "int32"):
        return str(int(value))
    if math.isnan(value):
        raise BackendError("a constant of the model is not a number", got=value)
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return f"{'-' if value > 0 else ''}least<float>()" if np.isinf(single) else f"{single!s}f"


def digits(name: str, sizes: Sequence[int]) -> list[str]:
    """Lines that split a row-major index into its axes ``i0, i1, ...``; see ``base.h``."""
    lines = []
    for axis in range(len(sizes)):
        inner = math.prod(sizes[axis + 1 :])
        end = math.prod(sizes)
        term = name if inner == 1 else f"quotient_of<{inner}, {end}>({name})"
        if axis:
            term = f"remainder_of<{sizes[axis]}, {end // inner}>({term})"
        lines.append(f"const int {name}{axis} = {term};")
    return lines
