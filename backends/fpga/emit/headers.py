"""The C++ headers that pipec ships, and the templates that files are made of."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from pipec.backends.fpga.cpp import comment, cpp_type, identifier

_FOLDER = files("pipec.backends.fpga") / "hls"

BENCH = ("testbench.h", "port_files.h", "port_files.cpp")
"""Files in ``tb/`` that every test bench shares."""
STAND_INS = ("hls_stream.h", "queue.h", "dataflow.h", "dataflow.cpp", "ap_axi_sdata.h", "ap_int.h")
"""Files in ``csim/`` that stand in for a vendor's where there is none."""


def own_header(name: str) -> str:
    """The text of one of them, by its path below ``hls/``."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def fill_template(name: str, /, **facts: object) -> str:
    """The Jinja template ``hls/text/<name>.in`` with these facts; ``@fact@`` is what it prints.

    Raises:
        jinja2.UndefinedError: It needs another fact.
    """
    return _templates().get_template(name).render(facts)


@cache
def _templates() -> Environment:
    found = Environment(  # noqa: S701  (no HTML is made)
        loader=FunctionLoader(lambda name: own_header(f"text/{name}.in")),
        variable_start_string="@",
        variable_end_string="@",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    found.globals |= {"comment": comment, "cpp_type": cpp_type, "identifier": identifier}
    return found
