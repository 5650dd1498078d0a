"""Names that others chose, made safe for the language that they are written into.

Data keep a name as it is; only what people or compilers read is escaped. The C++ of the FPGA
backend has its own two functions in `pipec.backends.fpga.cpp`.
"""

import keyword
import re
import unicodedata

_LONGEST = 80
"""Characters of an identifier; the whole name stands in the data beside it."""

_RESERVED = frozenset({"self"})
"""Names of arguments that `torch.fx` gives to its functions itself."""


def python_identifier(name: str) -> str:
    """An ASCII identifier that recalls ``name``; two names may give one.

    Example:
        >>> python_identifier("conv1/weight:0"), python_identifier("self"), python_identifier("3x")
        ('conv1_weight_0', 'self_', '_3x')
        >>> python_identifier("__call__"), python_identifier("éé")
        ('__call', 'unnamed')
    """
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)[:_LONGEST]
    if found.startswith("__") or not found:  # of `__x__`, torch.fx takes the underscores away
        found = found.rstrip("_") or "unnamed"
    if found[0].isdigit():
        found = f"_{found}"
    return f"{found}_" if keyword.iskeyword(found) or found in _RESERVED else found


def sanitize(text: object) -> str:
    r"""Text without what would move the cursor, colour the screen or turn the direction of reading.

    Line ends and tabulators stay; every other character of control becomes one replacement mark.

    Example:
        >>> print(ascii(sanitize("a\x1b[31mb\u202ec\n")))
        'a\ufffd[31mb\ufffdc\n'
    """
    return "".join("\ufffd" if _controls(c) else c for c in str(text))


def _controls(c: str) -> bool:
    if c in "\n\t":
        return False
    return c < " " or (c > "~" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
