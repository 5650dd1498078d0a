"""Names of kernels and pins on a board: one rule for all files that join them.

A kernel has one instance, called after it; a stream's pin is called after the argument of its C++,
a memory's after its bundle. `v++` reads these names in ``link.cfg`` and ``connections.cfg``, and so
does the board in software (``hls/sim/board.h``).
"""


def instance(kernel: str) -> str:
    """The only instance of a kernel.

    Example:
        >>> instance("stage0_top")
        'stage0_top_1'
    """
    return f"{kernel}_1"


def pin(kernel: str, port: str) -> str:
    """A pin of a kernel's instance.

    Example:
        >>> pin("stage0_top", memory_port("gmem_tables"))
        'stage0_top_1.m_axi_gmem_tables'
    """
    return f"{instance(kernel)}.{port}"


def memory_port(bundle: str) -> str:
    """The port of a bundle of memory pointers."""
    return f"m_axi_{bundle}"


def stream_connect(source: str, sink: str) -> str:
    """The line that leads a stream from pin to pin."""
    return f"stream_connect={source}:{sink}"
