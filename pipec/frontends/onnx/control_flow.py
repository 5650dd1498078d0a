"""If, Loop and Scan: run while tracing, so conditions and counts must be known."""

import numpy as np
import onnx
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, scalar
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.structural import dims, join, part, structural
from pipec.frontends.onnx.values import Value, array_of
from pipec.graph.arrays import Array

MOST_TRIPS = 4096
"""Iterations that are unrolled; more would make a graph that nobody can schedule."""


@structural("If")
def if_(ctx: Context, condition: Value) -> Result:
    """The nodes of the branch that a known condition selects."""
    taken = bool(scalar(array_of(condition)))
    branch: onnx.GraphProto = ctx.attr("then_branch" if taken else "else_branch")
    return tuple(ctx.runner.subgraph(ctx, branch, [], "then" if taken else "else"))


@structural("Loop")
def loop(ctx: Context, trips: Value = None, condition: Value = None, *carried: Value) -> Result:
    """The body as often as a known count and a known condition say."""
    body: onnx.GraphProto = ctx.attr("body")
    limit = MOST_TRIPS + 1 if trips is None else int(scalar(array_of(trips)))
    go = True if condition is None else bool(scalar(array_of(condition)))
    state, scanned = list(carried), list[list[Value]]()
    trip = 0
    while go and trip < limit:
        if trip >= MOST_TRIPS:
            raise Refused(f"more than {MOST_TRIPS} iterations to unroll")
        inputs = [np.array(trip, np.int64), np.array(go), *state]
        outputs = ctx.runner.subgraph(ctx, body, inputs, str(trip))
        go = bool(scalar(array_of(outputs[0])))
        state = outputs[1 : 1 + len(carried)]
        scanned.append(outputs[1 + len(carried) :])
        trip += 1
    count = len(body.output) - 1 - len(carried)
    if count and not scanned:  # rows as a first iteration would make them, and none of these
        row = ctx.runner.subgraph(ctx, body, [np.array(0), np.array(go), *state], "0")[-count:]
        return (*state, *(part(join(ctx, [value], 0), 0, 0, 0) for value in row))
    return (*state, *(join(ctx, [row[k] for row in scanned], 0) for k in range(count)))


@structural("Scan")
def scan(ctx: Context, *values: Value) -> Result:
    """The body once per slice of the scanned inputs; the older form runs once per batch item."""
    if ctx.version < 9:
        return _scan_batched(ctx, values)
    return tuple(_scan(ctx, list(values), ""))


def _scan_batched(ctx: Context, values: tuple[Value, ...]) -> Result:
    if values and values[0] is not None:
        raise Refused("sequence lengths in Scan-8")
    rest = values[1:]
    batch = dims(rest[0])[0]
    rows = [_scan(ctx, [_slice(v, 0, b) for v in rest], f"{b}.") for b in range(batch)]
    return tuple(join(ctx, list(column), 0) for column in zip(*rows, strict=True))


def _scan(ctx: Context, values: list[Value], tag: str) -> list[Value]:
    body: onnx.GraphProto = ctx.attr("body")
    count = int(ctx.attr("num_scan_inputs"))
    state, scanned = values[: len(values) - count], values[len(values) - count :]
    axes = ctx.attr("scan_input_axes") or [0] * count
    older = ctx.attr("directions")  # of Scan-8, which has no other of these attributes
    backwards = ctx.attr("scan_input_directions") or older or [0] * count
    trips = dims(scanned[0])[axes[0]]
    if trips > MOST_TRIPS:
        raise Refused(f"more than {MOST_TRIPS} iterations to unroll")
    rows = []
    for t in range(trips):
        slices = [
            _slice(v, axis, trips - 1 - t if back else t)
            for v, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        outputs = ctx.runner.subgraph(ctx, body, [*state, *slices], f"{tag}{t}")
        state, row = outputs[: len(state)], outputs[len(state) :]
        rows.append(row)
    columns = [list(column) for column in zip(*rows, strict=True)]
    reverse = ctx.attr("scan_output_directions") or [0] * len(columns)
    out_axes = ctx.attr("scan_output_axes") or [0] * len(columns)
    return [
        *state,
        *(
            join(ctx, column[::-1] if back else column, axis)
            for column, back, axis in zip(columns, reverse, out_axes, strict=True)
        ),
    ]


def _slice(value: Value, axis: int, position: int) -> Value:
    if isinstance(value, Tensor):
        return value.select(axis, position)
    array: Array = np.take(array_of(value), position, axis)
    return array
