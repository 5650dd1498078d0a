"""The C++ headers that pipec ships."""

from importlib.resources import files

_FOLDER = files("pipec.backends.fpga") / "hls"

STAND_INS = ("hls_stream.h", "queue.h", "dataflow.h", "ap_axi_sdata.h")
"""Headers in ``csim/`` that stand in for a vendor's where there is none."""


def own_header(name: str) -> str:
    """The text of one of them, by its path below ``hls/``."""
    return (_FOLDER / name).read_text(encoding="utf-8")
