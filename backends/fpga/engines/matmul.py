"""Product of two activations, one of them held."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipec.backends.fpga.arithmetic import arithmetic, operators, place_depth, sums_depth
from pipec.backends.fpga.cpp import cpp_type, digits, literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Tables, Unit
from pipec.backends.fpga.engines.fixed import finish_body
from pipec.backends.fpga.engines.integer import limits, multiplier, narrow
from pipec.backends.fpga.engines.mvu import Dense, products_logic, vector_runs
from pipec.backends.fpga.engines.tiles import (
    LOAD_SHARES,
    ceil_div,
    ceil_tiles,
    divisor_for,
    lanes_for,
)
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Matmul(Dense):
    """Product of two activations: the second operand is loaded into a RAM first, then as `Mvu`.

    ```text
    for b in blocks:
      for i in load: read in1                          # operand B of all groups
      for v in outer: for g in groups: for u in inner:
        for f in nf: for s in sf:
          if f == 0: a[s] = read in0
          acc[s % partial][pe] += sum over simd of B[g][f*PE+pe][s*SIMD+simd] * a[s][simd]
          if s == sf-1: write sum(acc) * scale         # PE elements
    ```

    Vectors of A come in the order ``outer, groups, inner`` (one of outer, inner is usually 1); a
    vector has ``taps`` positions of ``channels``. B arrives row-major over the axes ``b_sizes``
    (the last is split into tokens of ``b_lanes``, each in one word of the RAM: a divisor of ``pe``
    where that axis is one of the output, else of ``simd``); axis k of B is an axis of the group, of
    the output (``rows``) or of the reduction, as ``b_roles[k]`` (``g``, ``n``, ``k``) says, axes of
    one role being row-major among themselves.
    """

    additions = 11

    blocks: int
    outer: int
    groups: int
    inner: int
    rows: int
    taps: int
    channels: int
    b_sizes: tuple[int, ...]
    b_roles: tuple[str, ...]
    b_lanes: int = 1
    pe: int = 1
    simd: int = 1
    partial: int = 1
    scale: float = 1.0

    @property
    def sf(self) -> int:
        """Synapse fold."""
        return self.taps * ceil_div(self.channels, self.simd)

    @property
    def load(self) -> int:
        """Tokens of operand B per block."""
        *outer, channels = self.b_sizes
        return math.prod(outer) * ceil_div(channels, self.b_lanes)

    @property
    def vectors(self) -> int:
        """Vectors of A per block, groups included."""
        return self.outer * self.groups * self.inner

    @property
    def macs(self) -> int:
        return self.blocks * self.vectors * self.rows * self.taps * self.channels

    @property
    def units(self) -> int:
        return self.pe * self.simd

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        vectors, cost = self.vectors, arithmetic(dtype, layer.clock_mhz)
        *outer, channels = self.b_sizes
        rows = math.prod(outer)
        found = list[tuple[int, ...]]()
        for simd in ceil_tiles(self.channels):
            sf = self.taps * ceil_div(self.channels, simd)
            in_word = math.gcd(channels, self.channels, simd)
            allowed = {"n": channels, "k": in_word, "g": 1}[self.b_roles[-1]]
            for share in LOAD_SHARES:
                lanes = divisor_for(allowed, channels, rows, target // self.blocks // share)
                load = rows * ceil_div(channels, lanes)
                left = max(target // self.blocks - load, 1)
                pe = lanes_for(self.rows, vectors * sf, left)
                pe = ceil_div(pe, lanes) * lanes if self.b_roles[-1] == "n" else pe
                cycles = self.blocks * (load + vectors * sf * ceil_div(self.rows, pe))
                alone = simd * cost.multipliers(pe)
                found.append((max(cycles - target, 0), alone, lanes, pe + simd, simd, pe))
        *_, lanes, _, simd, pe = min(found)
        partial = cost.add_latency if self.taps * self.channels > simd else 1
        nest = dataclasses.replace(self, b_lanes=lanes, pe=pe, simd=simd, partial=partial)
        # what is held must lie in its word when it is read
        divisors = channels // lanes, *(math.prod(outer[k:]) * channels for k in range(len(outer)))
        divisors += channels, self.channels, simd, pe
        depth = sums_depth(
            dtype, simd, partial, pe, clock_mhz=layer.clock_mhz,
            more=operators(layer.clock_mhz).mul + place_depth(divisors),
        )  # fmt: skip
        return Folded(nest, pe, depth, reads=(simd, lanes))

    def runs(self, ii: int, inputs: int) -> Runs:
        body = Loop(self.vectors, vector_runs(self.sf, self.nf, ii))
        return (Loop(self.blocks, (Run(self.load, ii, 2), body)),)

    def buffer(self, bits: int, sums: int) -> tuple[int, int]:
        return (self.pe * self.simd * bits, self.groups * self.nf * self.sf)

    def logic(self, dtype: str) -> tuple[float, float]:
        cost = arithmetic(dtype)
        dsp, lut = products_logic(self.units, self.pe, dtype, self.pe, self.partial)
        return dsp + self.pe * cost.mul_dsp * (self.scale != 1 and cost.real), lut

    def unit(self, engine: Engine) -> Unit:
        names = "BLOCKS OUTER GROUPS INNER NF TAPS C=channels SF PE SIMD PARTIAL LOAD B_LANES"
        ends = {"B_C": self.b_sizes[-1], "BY_ROW": int(self.b_roles[-1] == "n")}
        place = [
            *digits("i", self.b_sizes),
            *(f"const int {role} = {_number(self, role)};" for role in ("g", "n", "k")),
            "return {g, n, k};",
        ]
        if engine.narrowing is not None:
            body = f"return {narrow(engine)}(on_fabric(sum, {multiplier(engine)}));"
            functions = {f"{cpp_type(engine.result)} finish(int32_t sum)": [body]}
        elif whole := finish_body(self.scale, self.taps * self.channels, engine.dtype):
            functions = {"T finish(sum_t<T> sum)": whole}
        else:
            scaled = f"return real_t<T>(sum) * {literal(self.scale, engine.dtype)};"
            functions = {"real_t<T> finish(sum_t<T> sum)": [scaled]}
        functions["engine::b_place place(int i)"] = place
        return Unit("matmul", self.look_up(names) | ends | limits(engine), functions)

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        reduction = self.taps * self.channels
        a = reads[0].reshape(self.blocks, self.outer, self.groups, self.inner, reduction)
        b = reads[1].reshape(self.blocks, *self.b_sizes)
        order = [k for role in "gnk" for k, r in enumerate(self.b_roles) if r == role]
        b = b.permute(0, *(k + 1 for k in order))
        b = b.reshape(self.blocks, self.groups, self.rows, reduction)
        return torch.einsum("bogik,bgnk->bogin", a, b) * self.scale


def _number(nest: Matmul, role: str) -> str:
    """The axes of B with that role as one row-major number."""
    axes = [axis for axis, r in enumerate(nest.b_roles) if r == role]
    terms = []
    for position, axis in enumerate(axes):
        inner = math.prod(nest.b_sizes[a] for a in axes[position + 1 :])
        terms.append(f"i{axis} * {inner}" if inner > 1 else f"i{axis}")
    return " + ".join(terms) or "0"
