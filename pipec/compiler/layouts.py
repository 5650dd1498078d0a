"""Layouts in the words of other runtimes: how many layers stand on each stage.

* Megatron-LM, ``--pipeline-model-parallel-layout``: one letter per layer (E embedding, t decoder
  layer, m multi-token prediction, L loss), ``|`` between stages, ``(...)*n`` or ``t*n`` repeats,
  commas mean nothing: ``E|(t|)*11m|m|m|L``.
* vLLM, ``VLLM_PP_LAYER_PARTITION``: layers of every rank, ``5,6,7``; the embedding is on the first,
  the head on the last.
"""

import re
from dataclasses import dataclass

from pipec.errors import PartitionError

_GROUP, _LETTER = re.compile(r"\(([^()]*)\)\*(\d+)"), re.compile(r"([EtmL|])\*(\d+)")
MOST = 100_000
"""Letters of a layout: more are a mistake."""


@dataclass(frozen=True)
class Layout:
    """Numbered layers of every stage, and where what is in front of and behind them stands.

    Attributes:
        layers: Number of layers on each stage.
        first: Stage of the embedding.
        last: Stage of the head and the loss.
    """

    layers: tuple[int, ...]
    first: int
    last: int

    def __str__(self) -> str:
        """As Megatron writes it, without repeats."""
        parts = ["t" * count for count in self.layers]
        parts[self.first] = "E" + parts[self.first]
        parts[self.last] += "L"
        return "|".join(parts)


def parse_layout(text: str) -> Layout:
    """Reads a layout of Megatron-LM or vLLM.

    Raises:
        PartitionError: It is neither, or its letters are out of order.

    Example:
        >>> parse_layout("E|(t|)*2tm|L").layers, parse_layout("5,6,7").layers
        ((0, 1, 1, 2, 0), (5, 6, 7))
        >>> str(parse_layout("2,1"))
        'Ett|tL'
    """
    if re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", text):
        counts = tuple(int(part) for part in text.split(","))
        return Layout(counts, 0, len(counts) - 1)
    letters = _expand(text)
    order = letters.replace("|", "")
    if not re.fullmatch(r"E?t*m*L?", order) or not order.strip("EL"):
        raise PartitionError(
            "this is no layout",
            got=text,
            want="letters E t m L in this order, stages apart by |, such as E|(t|)*11m|m|m|L; "
            "or layers per stage, such as 5,6,7",
        )
    stages = letters.split("|")
    first = next((k for k, stage in enumerate(stages) if "E" in stage), 0)
    last = next((k for k, stage in enumerate(stages) if "L" in stage), len(stages) - 1)
    return Layout(tuple(s.count("t") + s.count("m") for s in stages), first, last)


def _expand(text: str) -> str:
    """Repeats written out, innermost first; commas and blanks left out."""
    letters = re.sub(r"[,\s]", "", text)
    for pattern in (_GROUP, _LETTER):
        while match := pattern.search(letters):
            if len(match[1]) * int(match[2]) > MOST:
                raise PartitionError("a layout repeats too often", got=text)
            letters = letters[: match.start()] + match[1] * int(match[2]) + letters[match.end() :]
    return letters
