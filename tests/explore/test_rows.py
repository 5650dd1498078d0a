"""A batch has the rows that most inputs share, wherever positions stand among the inputs."""

from pathlib import Path

import pytest
import torch
from torch import nn

import pipec
from pipec.graph.ir import Graph

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.layers = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])

    def forward(self, ids, places):
        return self.layers(self.words(ids) + self.places(places))

class Turned(Net):
    def forward(self, places, ids):
        return super().forward(ids, places)

def batch_first():
    return Net(), (torch.zeros(4, 16, dtype=torch.int64), PLACES)

def batch_last():
    return Turned(), (PLACES, torch.zeros(4, 16, dtype=torch.int64))
"""


@pytest.mark.parametrize("places", ["torch.arange(16)", "torch.arange(16)[None]"])
def test_figures_do_not_depend_on_the_order_of_inputs(places: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("PLACES", places))
    found = [
        pipec.explore(f"{tmp_path}/net.py:{name}", devices="2xv100", batch=32, cached=False)
        for name in ("batch_first", "batch_last")
    ]
    first, last = (
        {str(p.candidate): p.seconds for p in f.predictions if p.possible} for f in found
    )
    assert first == last
    for f in found:
        untimed = [r for r in f.to_json() if r["seconds"] is None]
        assert untimed
        assert all(r["bubble"] is None for r in untimed)


class Given(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.stack([t.sum() for t in tensors]).sum()


@pytest.mark.parametrize(
    ("rows", "shapes"),
    [
        (4, [(8,), (4, 8)]),
        (4, [(1, 8), (4, 3, 8, 8)]),
        (4, [(1, 8), (4, 8)]),
        (4, [(8, 8), (4, 8, 16)]),
        (2, [(7, 3, 3), (2, 3), (2, 5)]),
        (5, [(), (5,)]),
        (0, [()]),
    ],
)
def test_rows_are_the_first_dimension_that_most_inputs_share(
    rows: int, shapes: list[tuple[int, ...]]
) -> None:
    for order in (shapes, shapes[::-1]):
        graph: Graph = pipec.compile(
            Given(), tuple(torch.zeros(s) for s in order), "1xcpu", passes="simplify"
        ).graph
        assert graph.rows == rows
