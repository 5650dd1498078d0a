"""The fine-tuning example under torchrun, resumed on more ranks, beside a plain loop."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.runtime.processes import elastic

EXAMPLE = Path(__file__).parents[2] / "examples/finetune.py"


def fine_tuned(out: Path, steps: int) -> list[float]:
    """What a rank that runs the example prints."""
    said, words = io.StringIO(), [str(EXAMPLE), str(out), str(steps)]
    with mock.patch("sys.argv", words), contextlib.redirect_stdout(said):
        runpy.run_path(words[0], run_name="__main__")
    return [float(line) for line in said.getvalue().split()]


def trained(out: Path, ranks: int, steps: int) -> list[float]:
    """Losses of the steps that this run made, then that of the evaluation; rank 0 alone prints."""
    said: dict[int, list[float]] = elastic(fine_tuned, out, steps, ranks=ranks)
    assert not any(said[k] for k in range(1, ranks))
    return said[0]


@pytest.mark.slow
def test_fine_tuning_is_a_plain_loops(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = trained(out, ranks=1, steps=9)
    second = trained(out, ranks=2, steps=18)
    sys.path.insert(0, str(EXAMPLE.parent))
    import finetune  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = finetune.model
    optimizer = finetune.adamw(list(model.named_parameters()))
    schedule, losses = finetune.cosine(optimizer), []
    for batch in finetune.batches(0, 18):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert [*first[:-1], *second[:-1]] == pytest.approx(losses, rel=1e-5)
    saved = LlamaForCausalLM.from_pretrained(out).eval()
    with torch.no_grad():
        each = [(saved(**b).loss.item(), len(b["labels"])) for b in finetune.batches(0, 5)]
    mean = sum(loss * rows for loss, rows in each) / sum(rows for _, rows in each)
    assert second[-1] == pytest.approx(mean, rel=1e-5)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(saved.state_dict()[name], weight, rtol=1e-4, atol=1e-5)
