"""What ``copy-cheap`` and ``pack-channels`` gain over a slow link, measured and predicted.

    python -m benchmarks.slow_link [--rate 200] [--repeats 3] [--rounds 5]

Two ranks run the forwards of a model in a network namespace of their own, whose loopback the kernel
limits to so many Mbit/s (a token bucket, ``tc``; root). Plans with and without a pass take turns.
The bound of a gain is the ratio of the bytes that are sent.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks._exit import positive
from benchmarks._ranks import ROOT

LENGTH, WIDTH, HEADS, LAYERS, ROWS = 1536, 512, 8, 8, 8192
PASSES = "simplify,annotate-cost,partition{stages=2},%sinsert-comm,time-stages,schedule,simulate"


class Layer(nn.Module):
    """Attention whose scores get a mask, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Tokens of one sequence, ``[1, LENGTH, WIDTH]``; a mask ``[LENGTH, LENGTH]``."""
        q, k, v = (
            t.view(1, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed: Tensor = self.out(found.transpose(1, 2).reshape(1, LENGTH, WIDTH))
        return x + mixed


class Masked(nn.Module):
    """Layers that all read one causal mask, which the first makes from the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Tokens and their positions, ``[LENGTH]``."""
        later = positions[None, :] > positions[:, None]
        mask = torch.where(later, -1e9, 0.0)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def mask() -> object:
    """For ``copy-cheap``: a mask of three times the bytes of the activations."""
    return Masked().eval(), (torch.zeros(1, LENGTH, WIDTH), torch.arange(LENGTH))


def rows() -> object:
    """For ``pack-channels``: many activations for their arithmetic."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)])
    return model.eval(), (torch.zeros(ROWS, 256),)


CASES = {"mask": ("", "copy-cheap,"), "rows": ("", "pack-channels{to=bfloat16},",
                                               "pack-channels{to=int8},")}  # fmt: skip
"""Factories here, and the passes before ``insert-comm`` that are compared; the first is none."""


@dataclass(frozen=True)
class Variant:
    """One plan on the disk.

    Attributes:
        label: Model and pass.
        place: Its directory.
        predicted: Seconds of one round.
        sent: Bytes of one microbatch.
    """

    label: str
    place: Path
    predicted: float
    sent: int


def compile_variant(case: str, passes: str, rate: float, folder: Path) -> Variant:
    """A plan for two CPUs that are joined by ``rate`` bytes a second."""
    name = passes.rstrip(",") or "nothing"
    place, cluster = folder / f"{case}-{len(list(folder.iterdir()))}", folder / "cluster.toml"
    text = '[[device]]\nkind = "cpu"\ncount = 2\n[[link]]\nbetween = [0, 1]\n'
    cluster.write_text(f'{text}bandwidth = "{rate:.0f} B/s"\nlatency = "50 us"\n')
    command = ["compile", f"{__file__}:{case}", "--cluster", str(cluster), "--inference", "-o",
               str(place), "--passes", PASSES % passes, "--json", "-q"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pipec", *command], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    summary = json.loads(done.stdout)
    sent = sum(cut["nbytes"] for cut in summary["cuts"])
    return Variant(f"{case}, {name}", place, summary["schedule"]["seconds"], sent)


def measure(variant: Variant, rate: float, rounds: int) -> float:
    """Median seconds of a round behind the first, over a link of ``rate`` bytes a second."""
    metrics = variant.place.with_suffix(".jsonl")
    limit = f"rate {rate * 8:.0f}bit burst 256kb limit 100mb"
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 --master-addr 127.0.0.1 "
        f"--master-port 29511 -m pipec run {variant.place} --rounds {rounds} -q --metrics {metrics}"
    )
    script = f"ip link set lo up && tc qdisc add dev lo root tbf {limit} && exec {torchrun}"
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    metrics.unlink(missing_ok=True)
    subprocess.run(
        ["unshare", "--net", "sh", "-c", script], env=environment, check=True, capture_output=True
    )
    steps: list[float] = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    return statistics.median(steps[1:])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--rounds", type=positive, default=5)
    given = parser.parse_args()
    rate = given.rate * 1e6 / 8
    with TemporaryDirectory() as place:
        for case, several in CASES.items():
            variants = [compile_variant(case, passes, rate, Path(place)) for passes in several]
            turns = [
                [measure(v, rate, given.rounds) for v in variants] for _ in range(given.repeats)
            ]
            for k, v in enumerate(variants):
                gains = sorted(turn[0] / turn[k] for turn in turns)
                first = variants[0]
                print(
                    f"{v.label:36} {v.sent / 1e6:6.1f} MB  round "
                    f"{statistics.median(t[k] for t in turns):6.3f} s (predicted "
                    f"{v.predicted:6.3f})  gain {statistics.median(gains):5.2f} "
                    f"({gains[0]:.2f} to {gains[-1]:.2f}), predicted "
                    f"{first.predicted / v.predicted:5.2f}, bound {first.sent / v.sent:5.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
