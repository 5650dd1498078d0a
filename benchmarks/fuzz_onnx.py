"""Mutants of ten small models against onnxruntime's verdict: crashes, hangs, wrong acceptances.

    python -m benchmarks.fuzz_onnx                      50,000 mutants
    python -m benchmarks.fuzz_onnx --count 500 --show   fewer, and every finding

A process of its own runs them, under a limit of memory; one that takes over 20 s is a hang.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._exit import positive

SECONDS, NBYTES = 20, 4 * 2**30


def child(first: int, last: int) -> None:
    """Judge mutants ``first`` to ``last``; one JSON line each."""
    import torch

    from tests.frontends.onnx.fuzzing import bases, judge, mutant

    torch.set_num_threads(1)
    held = {n: p.SerializeToString() for n, p in bases().items()}
    names = list(held)
    with tempfile.TemporaryDirectory() as folder:
        for k in range(first, last):
            rng, name = random.Random(k), names[k % len(names)]
            outcome = judge(mutant(held[name], rng), Path(folder) / "model.onnx")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"k": k, "base": name, "peak": peak, **vars(outcome)}), flush=True)


def judge_mutants(count: int, start: int) -> list[dict[str, Any]]:
    """Outcomes of ``count`` mutants; the process starts anew after one that kills or hangs it."""
    rows: list[dict[str, Any]] = []
    k, end = start, start + count
    while k < end:
        words = [sys.executable, "-m", "benchmarks.fuzz_onnx", "--child", str(k), str(end)]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout
        while True:
            timer = threading.Timer(SECONDS if k > start else 120, process.kill)
            timer.start()
            line = process.stdout.readline()
            late = not timer.is_alive()
            timer.cancel()
            if not line:
                break
            if line.startswith('{"k"'):  # onnx itself prints there too
                rows.append(json.loads(line))
                k += 1
        if k < end:
            process.kill()
            kind = "hang" if late else f"died with status {process.wait()}"
            rows.append({"k": k, "base": "-", "peak": 0, "accepted": False, "crash": kind,
                         "by_onnxruntime": False, "reason": "", "differs": ""})  # fmt: skip
            k += 1
    return rows


def main() -> int:
    """Run and report; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=positive, default=50_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every finding")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    rows = judge_mutants(options.count, options.start)
    accepted = [r for r in rows if r["accepted"]]
    alone = [r for r in accepted if not r["by_onnxruntime"]]
    differs = [r for r in accepted if r["differs"]]
    crashed = [r for r in rows if r["crash"]]
    peak = max(r["peak"] for r in rows)
    for r in [*crashed, *differs, *alone] if options.show else []:
        print(r["k"], r["base"], r["crash"] or r["differs"] or r["reason"])
    print(f"{len(rows)} mutants: {len(accepted)} accepted, {len(rows) - len(accepted)} refused")
    print(f"exceptions of another class, hangs, deaths: {len(crashed)}")
    for text, n in Counter(r["crash"][:100] for r in crashed).most_common(20):
        print(f"    {n} x {text}")
    share = len(alone) / max(1, len(accepted))
    print(f"accepted that onnxruntime refuses: {len(alone)} ({share:.1%}; want at most 2 %)")
    print(f"accepted and different from onnxruntime: {len(differs)}")
    others = sum(r["by_onnxruntime"] and bool(r["reason"]) for r in rows)
    print(f"    besides, as ONNX's own reference has it and onnxruntime not (no numbers): {others}")
    print(f"peak memory {peak / 2**30:.2f} GiB (want under {NBYTES / 2**30:.0f})")
    return int(bool(crashed or differs or share > 0.02 or peak > NBYTES))


if __name__ == "__main__":
    sys.exit(main())
