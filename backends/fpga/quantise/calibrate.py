"""What values do on sample inputs: their ranges."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.lowering.network import Network
from pipec.backends.fpga.quantise.execute import Chain

HIDDEN = -1e4
"""Less than this is what an attention mask puts where it hides something."""


Range = tuple[float, float]
"""The least finite number that was seen, and the largest."""


def observed(
    networks: Sequence[Network], samples: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Range]]:
    """What was seen of every floating-point edge of every stage, over all samples.

    What an attention mask hides (below `HIDDEN`) is not looked at.

    Args:
        networks: The stages in order, in real numbers, with weights.
        samples: The model's inputs by name, at least one set.

    Returns:
        Edge to what was seen, per stage; of edges between stages at both ends.
    """
    found: list[dict[str, Range]] = [{} for _ in networks]

    def note(stage: int, edge: str, layer: Layer | None, x: Tensor) -> Tensor:
        """Look, and pass on."""
        seen = _seen(x)
        if seen is not None:
            low, high = found[stage].get(edge, seen)
            found[stage][edge] = min(low, seen[0]), max(high, seen[1])
        return x

    chain = Chain(networks)
    with torch.no_grad():
        for sample in samples:
            chain.run(sample, note)
    sent: dict[str, Range] = {}
    for network, seen in zip(networks, found, strict=True):
        arrived = [p for p in network.inputs if p.value in sent]
        seen |= {p.use.edge: sent[p.value] for p in arrived}
        sent |= {p.value: seen[p.use.edge] for p in network.outputs if p.use.edge in seen}
    return found


def _seen(value: Tensor) -> Range | None:
    if not value.dtype.is_floating_point or value.numel() == 0:
        return None
    low, high = (float(end) for end in value.aminmax())
    if not (low > HIDDEN and high < math.inf):  # also where one is no number
        value = value[value.isfinite() & (value > HIDDEN)]
        if value.numel() == 0:
            return None
        low, high = (float(end) for end in value.aminmax())
    return low, high
