"""Gradients of softmax, log-softmax and layer normalisation, row by row."""

from dataclasses import dataclass

from pipec.backends.fpga.arithmetic import steps_cost
from pipec.backends.fpga.cpp import literal
from pipec.backends.fpga.engines.base import Engine, Unit
from pipec.backends.fpga.engines.norm import RowUnit


@dataclass(frozen=True)
class RowGradient(RowUnit):
    """Row unit of two inputs, ``dy`` and ``y``, with what an op needs of the forward pass.

    ======== =================================================================================
    softmax      2 passes, ``y`` the result: ``y * (dy - sum(dy * y))``
    log_softmax  2 passes, ``y`` the result: ``dy - exp(y) * sum(dy)``
    layer_norm   4 passes, ``y`` the operand x: ``(g - mean(g) - h * mean(g * h)) / std`` with
                 ``g = dy * scale`` and ``h = (x - mean) / std``
    ======== =================================================================================
    """

    label = "grad"

    passes: int = 2
    scale: bool = False

    def buffer(self, bits: int) -> tuple[int, int]:
        return (2 * self.lanes * bits, self.cf)

    def logic(self, dtype: str) -> tuple[float, float]:
        return steps_cost((*_STEPS[self.op], *["mul"] * self.scale), self.lanes, dtype)

    def unit(self, engine: Engine) -> Unit:
        constants = self.named("ROWS TAPS C=channels LANES GAP")
        if self.op != "layer_norm":
            return Unit("softmax_gradient", {**constants, "LOG": self.op == "log_softmax"})
        eps = {"T eps()": [f"return {literal(self.eps, engine.dtype)};"]}
        return Unit("layer_norm_gradient", constants, eps, tables=("scale?no_table",))


_STEPS = {
    "softmax": ("mul", "add", "sub", "mul"),
    "log_softmax": ("add", "exp", "mul", "sub"),
    "layer_norm": ("add", "sub", "square", "add", "mul", "mul", "add", "add", "mul", "sub", "mul"),
}
