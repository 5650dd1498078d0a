"""Pass ``pack-channels``: what stages send each other is cast or packed on its way."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from pipec.compiler.costing import check_unsent, recut
from pipec.compiler.pass_base import Pass
from pipec.errors import PassError
from pipec.graph.copies import PACK, with_packed
from pipec.graph.ir import InputKind, origin, tensor, tensors
from pipec.graph.tensor_type import dtype_text
from pipec.plan.model import Fact, Plan

aten = torch.ops.aten


@dataclass(frozen=True)
class PackChannels(Pass):
    """Sends values of ``float32`` in fewer bytes: one half casts or packs, the other one restores.

    1. It runs between ``partition`` and ``insert-comm``; the cut stays as it is. The stage that
       computes a value packs it, every other stage that reads it unpacks it; both are nodes like
       any other, so they are timed, run and differentiated: in training gradients go back packed.
    2. ``int8`` is ``round(127 x / max |x|)`` with one scale per value and microbatch, which is sent
       beside it. It has no gradient: for inference only.
    3. The numbers are no longer the model's own: ``pipec verify`` compares the stages with the
       plan's graph and its casts, and that graph without them with the model as written.

    A subclass that overrides `wanted`, `pack` and `unpack` is a transform of one's own.

    Attributes:
        to: Type of what is sent.
    """

    name: ClassVar[str] = "pack-channels"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.COST, Fact.PARTITION})
    provides: ClassVar[frozenset[Fact]] = frozenset({Fact.PARTITION})
    to: Literal["bfloat16", "float16", "int8"] = "bfloat16"

    def run(self, plan: Plan) -> Plan:
        """The plan whose stages pack what they send.

        Raises:
            PassError: The stages send already; or the plan trains, and what would be sent has no
                gradient.
        """
        check_unsent(plan, self.name)
        graph, home = with_packed(plan.graph, plan.home, self.wanted, self.pack, self.unpack)
        if home.keys() == plan.home.keys():
            return plan
        packed = recut(plan, graph, home)
        sent = [
            graph.node(i.node) for s in packed.stages for i in s.graph.inputs_of(InputKind.VALUE)
        ]
        for n in sent:
            if plan.trains and origin(n).op == PACK and not tensor(n).is_floating_point():
                raise PassError(
                    f"pass {self.name}: what is sent has no gradient",
                    where=n.name,
                    got=dtype_text(tensor(n).dtype),
                    want="floating point, since the plan trains",
                )
        return packed

    def wanted(self, value: fx.Node) -> bool:
        """Whether a value that another stage reads is packed."""
        return [t.dtype for t in tensors(value)] == [torch.float32]

    def pack(self, x: Any) -> Any:
        """From a value to what is sent for it: a tensor, or a tuple of some; calls ATen ops."""
        if self.to != "int8":
            return aten._to_copy.default(x, dtype=getattr(torch, self.to))
        largest = aten.amax.default(aten.abs.default(x), [], True)
        scale = aten.div.Scalar(aten.clamp_min.default(largest, 1e-30), 127)
        steps = aten.round.default(aten.div.Tensor(x, scale))
        return aten._to_copy.default(steps, dtype=torch.int8), scale

    def unpack(self, sent: Any, scale: Any = None) -> Any:
        """From what was sent to a tensor of the value's shape and dtype."""
        x = aten._to_copy.default(sent, dtype=torch.float32)
        return x if scale is None else aten.mul.Tensor(x, scale)
