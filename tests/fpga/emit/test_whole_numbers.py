"""Integers and truth values on boards: 32-bit arithmetic whatever the type of real numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.backends.fpga.numbers import encode
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit
from pipec.errors import BackendError
from pipec.graph.ir import InputKind


class Counts(nn.Module):
    """Arithmetic of integers, sums and maxima, constants; positions behind an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(1003, 5)

    def forward(self, i: Tensor) -> tuple[Tensor, ...]:
        zeros = torch.zeros(2, 1, dtype=torch.int64)
        whole = i * 100_003 - 7, i.sum(1), i.amax(1), torch.cat([i, zeros], 1)
        truth = i.bool()
        return (*whole, truth.int() * 3, (truth + truth).int(), self.rows(i + 2), i * 0.5)


def outputs(model: nn.Module, x: Tensor, precision: str, out: Path) -> list[Tensor]:
    plan = pipec.compile(model, x, "1xvcu118", target="fpga", precision=precision)
    emit(plan, out / "out")
    (stage,) = load_backend("fpga").load(plan, out / "out").stages
    (name,) = (i.name for i in plan.graph.inputs_of(InputKind.INPUT))
    found = stage({name: x})
    return [found[o.name] for o in plan.graph.outputs]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "ap_fixed<20,12>; *=ap_fixed<24,12>"])
def test_integers_are_exact_in_any_precision(tmp_path: Path, precision: str) -> None:
    torch.manual_seed(0)
    x, model = torch.randint(0, 1000, (2, 6)), Counts().eval()
    x[0, 0] = 0
    found, want = outputs(model, x, precision, tmp_path), model(x)
    assert [f.dtype for f in found] == [w.dtype for w in want]
    assert all(map(torch.equal, found[:6], want[:6]))
    error = {"float32": 0.0, "bfloat16": 2**-7}.get(precision, 2**-12)
    assert all(
        (f - w).abs().max() <= error * w.abs().max()
        for f, w in zip(found[6:], want[6:], strict=True)
    )


def test_positions_behind_an_offset_are_calibrated(tmp_path: Path) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = nn.Embedding(40, 5), nn.Linear(5, 3)

        def forward(self, i: Tensor) -> Tensor:
            found: Tensor = self.head(self.rows(i + 2))
            return found

    torch.manual_seed(0)
    x, model = torch.arange(38).reshape(2, 19), Rows().eval()
    (found,), want = outputs(model, x, "int8", tmp_path), model(x)
    assert (found - want).abs().max() <= 0.05 * want.abs().max()


def test_real_numbers_times_integers_have_no_8_bit_format(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, i: Tensor) -> Tensor:
            return i * 0.5

    with pytest.raises(BackendError, match="no 8-bit format"):
        outputs(Scaled(), torch.arange(4), "int8", tmp_path)


def test_what_needs_more_than_32_bits_is_refused() -> None:
    assert encode(torch.tensor([-(2**31), 2**31 - 1]).numpy(), "int32").dtype == "int32"
    with pytest.raises(BackendError, match="32 bits"):
        encode(torch.tensor([2**31]).numpy(), "int32")
