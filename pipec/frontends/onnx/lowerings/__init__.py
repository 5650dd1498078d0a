"""One small torch function per ONNX op, by family; importing this package registers them all."""

from pipec.frontends.onnx.lowerings import (
    attention,
    casting,
    convolution,
    elementwise,
    indexing,
    linear,
    losses,
    movement,
    normalization,
    pooling,
    quantised,
    random,
    recurrent,
    reduction,
    resize,
    signal,
)

LOADED = (
    attention,
    casting,
    convolution,
    elementwise,
    indexing,
    linear,
    losses,
    movement,
    normalization,
    pooling,
    quantised,
    random,
    recurrent,
    reduction,
    resize,
    signal,
)
"""The modules of lowerings."""
