"""Conformance of the ONNX front end over all node cases that come with the ``onnx`` package.

    python -m benchmarks.conformance                  print the counts, rewrite the table in docs/
    python -m benchmarks.conformance --only resize    these cases, with reasons
    python -m benchmarks.conformance --export         through torch.export, all rules checked (slow)
    python -m benchmarks.conformance --write FILE     the outcome of every case, one per line

How a case is judged: `tests.frontends.onnx.cases`.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import onnx
import torch

from tests.frontends.onnx.cases import MATCHED, OUTCOMES, Outcome, cases, run_case

DOCS = Path(__file__).resolve().parents[1] / "docs/onnx_conformance.md"


def markdown(outcomes: list[Outcome]) -> str:
    """The table that is kept in ``docs/``."""
    counts = Counter(o.kind for o in outcomes)
    matched = sum(counts[k] for k in MATCHED)
    lines = [
        "# ONNX conformance",
        "",
        "Written by `make conformance`: every node case that the `onnx` package brings along,",
        "traced with all inputs unknown (but those that a node needs at compile time), run, and",
        "compared; where the last elements of `Resize` lie with `align_corners` (2 cases), with",
        "onnxruntime and so torch, which align them where the package does not.",
        "",
        f"onnx {onnx.__version__}, torch {torch.__version__}: {len(outcomes)} cases, "
        f"**{matched} match**, {counts['random']} are random (shape and type checked), "
        f"{counts['refused']} are refused with a reason, "
        f"{counts['wrong'] + counts['crash']} are wrong.",
        "",
        "| how | cases | meaning |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {_MEANING[kind]} |" for kind in (*MATCHED, *_REST)),
        "",
    ]
    lines += ["## Refused", "", "| op | cases | reason |", "|---|---|---|", *_explain(outcomes), ""]
    lines += ["## By op", "", *_by_op(outcomes), ""]
    return "\n".join(lines)


_REST = ("random", "refused")
_MEANING = {
    "native": "every node becomes ATen ops, or moves values at compile time",
    "folded": "all inputs are known, computed once, by onnxruntime or `onnx.reference`",
    "function": "by the function body in the op's schema",
    "ort": "one opaque node, run by onnxruntime",
    "reference": "one opaque node, run by `onnx.reference`",
    "random": "random numbers: shape and type compared",
    "refused": "an error that names op, node and reason",
}


def _explain(outcomes: list[Outcome]) -> list[str]:
    rows = Counter((" ".join(o.ops), _reason(o)) for o in outcomes if o.kind == "refused")
    return [f"| {op} | {n} | {reason} |" for (op, reason), n in sorted(rows.items())]


def _reason(outcome: Outcome) -> str:
    """The last reason: what the opaque step says."""
    lines = [line for line in outcome.reason.splitlines() if "(node " in line]
    return lines[0].rsplit("; ", 1)[-1].removeprefix("ort: ") if lines else outcome.reason


def _by_op(outcomes: list[Outcome]) -> list[str]:
    single = [o for o in outcomes if len(o.ops) == 1]
    table = {op: Counter(o.kind for o in single if o.ops[0] == op) for o in single for op in o.ops}
    lines = [f"| op | {' | '.join((*MATCHED, *_REST))} |", "|---" * 8 + "|"]
    for op, counts in sorted(table.items()):
        lines.append(f"| {op} | {' | '.join(str(counts[k] or '') for k in (*MATCHED, *_REST))} |")
    return lines


def main() -> None:
    """Run, print, and rewrite the table in ``docs/``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--export", action="store_true", help="the front end's own road (slow)")
    parser.add_argument("--write", type=Path, help="write the outcome of every case")
    parser.add_argument("--only", default="", help="cases whose name has this in it; no docs")
    options = parser.parse_args()
    start = time.perf_counter()
    chosen = [c for c in cases() if options.only in c.name]
    outcomes = [run_case(c, export=options.export) for c in chosen]
    counts = Counter(o.kind for o in outcomes)
    for kind in OUTCOMES:
        print(f"{kind:>10} {counts[kind]:5}")
    print(f"{len(outcomes)} cases in {time.perf_counter() - start:.1f} s")
    for o in outcomes:
        if o.kind in ("wrong", "crash") or options.only:
            print(f"{o.kind}: {o.name}: {o.reason}")
    if options.write:
        options.write.write_text("".join(f"{o.name} {o.kind}\n" for o in outcomes))
    if not options.only and not options.export:
        DOCS.write_text(markdown(outcomes))
        print(f"wrote {DOCS}")
    raise SystemExit(1 if counts["wrong"] + counts["crash"] else 0)


if __name__ == "__main__":
    main()
