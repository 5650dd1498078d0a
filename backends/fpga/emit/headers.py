"""The C++ headers that pipec ships, and the texts with gaps that files are made of."""

import re
from importlib.resources import files

_FOLDER = files("pipec.backends.fpga") / "hls"

STAND_INS = ("hls_stream.h", "queue.h", "dataflow.h", "ap_axi_sdata.h", "ap_int.h")
"""Headers in ``csim/`` that stand in for a vendor's where there is none."""


def own_header(name: str) -> str:
    """The text of one of them, by its path below ``hls/``."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def filled(name: str, section: str = "main", /, **gaps: object) -> str:
    """One section of ``hls/text/<name>.in``, its gaps ``@gap@`` filled; ``@@ name`` begins one.

    A list is lines, each indented as its gap is.

    Raises:
        KeyError: There is no such section, or nothing for a gap.
    """
    _, *found = re.split(r"^@@ (\w+)\n", own_header(f"text/{name}.in"), flags=re.MULTILINE)
    text = dict(zip(found[::2], found[1::2], strict=True))[section]

    def value(gap: re.Match[str]) -> str:
        """What stands in one gap."""
        found, indent = gaps[gap[2]], gap[1]
        if not isinstance(found, list):
            return f"{indent}{found}"
        return "\n".join(f"{indent}{line}" if line else "" for line in found)

    return re.sub(r"((?:^ +)?)@(\w+)@", value, text, flags=re.MULTILINE)
