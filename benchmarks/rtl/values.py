"""What the RTL's data must be: the engines of ``stage.json`` on 16-bit integers, in numpy.

Tokens of a stream are ``[tokens][lanes]``. Tables and inputs are the hashes of ``table_rom.sv``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rtl.generate import SOURCE_SALT, Json
from benchmarks.rtl.units import round_nest, unit_of
from pipec.backends.fpga.engines.base import Layer, Nest, Rows

Tokens = NDArray[np.int16]
Parameters = Mapping[str, Any]


def table(words: int, lanes: int, salt: int) -> Tokens:
    """A table of pseudo-random words."""
    a, e = np.mgrid[0:words, 0:lanes].astype(np.uint64)
    word = np.uint64(0xFFFFFFFF)
    salted = np.uint64(salt * 0xC2B2AE3D & 0xFFFFFFFF)
    h = (a * np.uint64(0x9E3779B1) + e * np.uint64(0x85EBCA77) + salted) & word
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(0x2C1B3C6D)) & word
    h ^= h >> np.uint64(12)
    return np.asarray(h.astype(np.uint16).view(np.int16))


def outputs(record: Json) -> dict[str, Tokens] | None:
    """The tokens of one frame of every output stream; None where they are not defined here.

    That is so for products of two activations and for feedback.
    """
    streams: dict[str, Tokens] = {}
    for k, fifo in enumerate(record["fifos"]):
        if fifo["initial"]:
            return None
        if fifo["from"] is None:
            streams[fifo["name"]] = table(fifo["tokens"], fifo["lanes"], SOURCE_SALT + k)
    lanes = {f["name"]: f["lanes"] for f in record["fifos"]}
    for number, engine in enumerate(record["engines"]):
        if engine["kind"] not in _KINDS:
            found = _by_itself(round_nest(engine), *(streams[s] for s in engine["inputs"]))
            if found is None:
                return None
            streams |= dict.fromkeys(engine["outputs"], found)
            continue
        p = {**engine["nest"], **unit_of(engine, lanes).parameters, "SALT": 2 * number}
        made = _KINDS[engine["kind"]](p, *(streams[s] for s in engine["inputs"]))
        streams |= dict.fromkeys(engine["outputs"], made.astype(np.int16))
    return {f["name"]: streams[f["name"]] for f in record["fifos"] if f["to"] is None}


def _by_itself(nest: Nest, *inputs: Tokens) -> Tokens | None:
    """What a kind without a line here says that it computes of whole numbers, row by row."""
    if not isinstance(nest, Rows):
        return None
    layer = Layer("", "", "", (), nest.rows, nest.channels, nest)
    reads = [torch.from_numpy(_elements(x, nest.channels).astype(np.float64)) for x in inputs]
    made = nest.compute(layer, reads, lambda table: torch.empty(0))
    return _tokens(made.numpy().astype(np.int64).astype(np.int16), nest.lanes)


def as_hex(tokens: Tokens) -> list[str]:
    """Tokens as the bench prints them: the last lane first."""
    return ["".join(f"{v & 0xFFFF:04x}" for v in reversed(token)) for token in tokens.tolist()]


def _swg(p: Parameters, x: Tokens) -> Tokens:
    image = x.reshape(p["batch"], p["h"], p["w"], p["cf"], p["lanes"])
    found = np.full((p["batch"], p["oh"], p["ow"], p["kh"], p["kw"], p["cf"], p["lanes"]),
                    p["PAD"], np.int16)  # fmt: skip
    for oy, ox, ky, kx in np.ndindex(p["oh"], p["ow"], p["kh"], p["kw"]):
        y, x_ = oy * p["sh"] - p["pt"] + ky * p["dh"], ox * p["sw"] - p["pl"] + kx * p["dw"]
        if 0 <= y < p["h"] and 0 <= x_ < p["w"]:
            found[:, oy, ox, ky, kx] = image[:, y, x_]
    steps = p["kh"] * p["kw"] // p["kp"]
    found = found.reshape(p["batch"], p["oh"] * p["ow"], steps, p["kp"], p["groups"],
                          p["cf"] // p["groups"], p["lanes"])  # fmt: skip
    return found.transpose(0, 1, 4, 2, 5, 3, 6).reshape(-1, p["kp"] * p["lanes"])


def _factor(p: Parameters, x: Tokens) -> NDArray[np.int64]:
    """What of a token enters products."""
    return x.astype(np.int8 if p["BYTES"] else np.int16).astype(np.int64)


def _mvu(p: Parameters, x: Tokens, words: Tokens | None = None) -> Tokens:
    groups, nf, sf, pe, simd = (p[k] for k in ("GROUPS", "NF", "SF", "PE", "SIMD"))
    if words is None:
        words = table(groups * nf * sf, pe * simd, p["SALT"])
    w = _factor(p, words[: groups * nf * sf])
    if p["STREAMED"] and p["ORDER"] == 1:
        w = w.reshape(sf, nf, -1).transpose(1, 0, 2)
    matrix = w.reshape(groups, nf, sf, simd, pe).transpose(0, 1, 4, 2, 3)
    matrix = matrix.reshape(groups, nf * pe, sf * simd)
    y = np.einsum("grk,ngk->ngr", matrix, _factor(p, x).reshape(p["N"], groups, -1))
    if p["BIAS"]:
        y += table(groups * nf, pe, p["SALT"] + 1).reshape(groups, nf * pe)
    return np.asarray(y.reshape(-1, pe))


def _vvu(p: Parameters, x: Tokens) -> Tokens:
    cf, steps, kp, lanes = (p[k] for k in ("CF", "STEPS", "KP", "LANES"))
    w = _factor(p, table(cf * steps, kp * lanes, p["SALT"])).reshape(cf, steps, kp, lanes)
    y = (_factor(p, x).reshape(p["N"], cf, steps, kp, lanes) * w).sum((2, 3))
    if p["BIAS"]:
        y += table(cf, lanes, p["SALT"] + 1)
    return np.asarray(y.reshape(-1, lanes))


def _reduce(p: Parameters, x: Tokens) -> Tokens:
    shaped = x.reshape(p["N"], p["WINDOW"], p["CF"], p["KP"], p["LANES"]).astype(np.int64)
    reduced = (np.sum, np.max, np.min)[p["OP"]](shaped, axis=(1, 3))
    return np.asarray(reduced).reshape(-1, p["LANES"])


def _map(p: Parameters, x: Tokens, y: Tokens | None = None) -> Tokens:
    first = x.astype(np.int64)
    second = first if y is None else y.astype(np.int64)
    ops = (first, first + second, first - second, first * second,
           np.maximum(first, second), np.minimum(first, second))  # fmt: skip
    found = ops[p["OP"]].astype(np.int16)
    return np.asarray(np.maximum(found, 0) if p["RELU"] else found)


def _norm(p: Parameters, x: Tokens) -> Tokens:
    rows = x.reshape(p["ROWS"], -1).astype(np.int64)
    return np.asarray((rows - rows.max(1, keepdims=True)).reshape(x.shape))


def _concat(p: Parameters, *inputs: Tokens) -> Tokens:
    shaped = [x.reshape(p["OUTER"], -1, x.shape[1]) for x in inputs]
    return np.concatenate(shaped, axis=1).reshape(-1, inputs[0].shape[1])


def _slice(p: Parameters, x: Tokens) -> Tokens:
    shaped = x.reshape(p["OUTER"], p["SIZE"], p["INNER"], -1)
    return shaped[:, p["FIRST"] : p["STOP"] : p["STRIDE"]].reshape(-1, x.shape[1])


def _elements(x: Tokens, channels: int) -> Tokens:
    """Tokens to rows of channels, padding dropped."""
    width = math.ceil(channels / x.shape[1]) * x.shape[1]
    return x.reshape(-1, width)[:, :channels]


def _tokens(rows: Tokens, lanes: int) -> Tokens:
    """Rows to tokens, padded."""
    missing = -rows.shape[1] % lanes
    return np.pad(rows, ((0, 0), (0, missing))).reshape(-1, lanes)


def _dwc(p: Parameters, x: Tokens) -> Tokens:
    return _tokens(_elements(x, p["C_IN"]).reshape(-1, p["C_OUT"]), p["L_OUT"])


def _perm(p: Parameters, x: Tokens) -> Tokens:
    block = _elements(x, p["C_IN"]).reshape(p["BLOCKS"], *p["sizes"])
    moved = block.transpose(0, *(axis + 1 for axis in p["order"]))
    return _tokens(moved.reshape(-1, p["C_OUT"]), p["L_OUT"])


def _repeat(p: Parameters, x: Tokens) -> Tokens:
    shaped = x.reshape(p["OUTER"], p["INNER"], -1)
    return np.tile(shaped, (1, p["TIMES"], 1)).reshape(-1, x.shape[1])


def _gather(p: Parameters, x: Tokens) -> Tokens:
    rows = table(p["ENTRIES"] * p["CF"], p["LANES"], p["SALT"]).reshape(p["ENTRIES"], -1)
    index = x[:, 0].view(np.uint16) % p["ENTRIES"]
    return np.asarray(rows[index]).reshape(-1, p["LANES"])


def _load(p: Parameters) -> Tokens:
    return np.tile(table(p["WORDS"], p["LANES"], p["SALT"]), (p.get("REPEAT", 1), 1))


_KINDS: dict[str, Callable[..., Any]] = {
    "swg": _swg,
    "mvu": _mvu,
    "vvu": _vvu,
    "reduce": _reduce,
    "map": _map,
    "norm": _norm,
    "fork": lambda p, x: x,
    "concat": _concat,
    "slice": _slice,
    "dwc": _dwc,
    "perm": _perm,
    "repeat": _repeat,
    "gather": _gather,
    "load": _load,
    "const": _load,
}
