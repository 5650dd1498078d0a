"""Ops of the table with hostile arguments: `make fuzz-ops`.

    python -m benchmarks.fuzz_ops [--trials 40] [--seed 0] [--seconds 8] [--start] [OP ...]

`op_calls.json` has sound calls of every op of `pipec/graph/ops.txt`, as torch's own tests and
pipec's front ends make them. Each trial changes up to three arguments (a size, a dtype, strides,
numbers out of all ranges, a list, a flag), asks what loading a plan asks (the table's rules, types
on fake tensors), and calls the op where that is content. Every buffer ends at a page that may not
be touched (`guard.c`; with --start it begins at one), so one element too far is a signal. Exit
status 1 if an op ends its process.
"""

import argparse
import json
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from benchmarks._exit import positive
from pipec.graph.arguments import find_disagreeing, table
from pipec.graph.serialize import _LAYOUTS, _MEMORY_FORMATS
from pipec.graph.tensor_type import DTYPES, empty_of_type, type_text
from pipec.graph.torch_private import (
    UNKNOWN_WHEN_FAKE,
    FakeTensorMode,
    OpOverload,
    argument_names_and_defaults,
)
from pipec.graph.whitelist import resolve

HERE = Path(__file__).parent
CALLS = HERE / "op_calls.json"
Call = list[Any]
"""Arguments, and keyword arguments; a tensor is ``{"tensor": type, "low": .., "high": ..}``."""
INTS = (-1, 0, 1, 2, 3, 7, -7, 64, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
NUMBERS = (-1, -2, 0, 1, 2, 5, 100, 10**6, 2**31, 2**40, 2**62, -(2**63), -(2**31))
FLOATS = tuple(map(float, ("nan", "inf", "-inf", "0", "-1", "1e300", "2", "0.5")))
TYPES = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "uint8", "complex64", "int8")
LARGEST = 1 << 22


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*", help="names; 'ruled' for all ops with rules")
    parser.add_argument("--trials", type=positive, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=positive, default=8, help="until an op is slow, not at fault"
    )
    parser.add_argument("--start", action="store_true")
    given = parser.parse_args()
    if "PIPEC_GUARDED" not in os.environ:
        return again_guarded(sys.argv[1:], at_start=given.start)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = json.loads(CALLS.read_text(encoding="ascii"))
    ruled = [name for name, rules in table().items() if rules]
    names = ruled if given.ops == ["ruled"] else given.ops or list(table())
    ends, faults = Counter[str](), 0
    note = mmap.mmap(-1, 1 << 16)
    FakeTensorMode()  # imports what each child would otherwise import in its own seconds
    for name in names:
        numbers = list(range(given.seed, given.seed + given.trials))
        while numbers and name in calls:
            signalled = _in_child(name, calls[name], numbers, note, given.seconds)
            result = json.loads(_read_note(note))
            if signalled is None:
                ends.update(result)
                break
            number, call = result
            numbers = [n for n in numbers if n > number]
            if signalled is signal.SIGALRM:
                ends["slow"] += 1
                break
            faults += 1
            print(f"{name}: {signalled.name}, trial {number}: {json.dumps(call)[:500]}", flush=True)
    missing = [n for n in names if n not in calls]
    print(f"{len(names)} ops, {dict(ends)}: {faults} faults; without calls: {missing}")
    return int(faults > 0 or bool(missing))


def again_guarded(given: list[str], *, at_start: bool = False) -> int:
    """Run this program with `guard.c` around its memory."""
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/guard.so"
        source = str(HERE / "guard.c")
        subprocess.run(
            ["g++", "-xc", "-O1", "-shared", "-fPIC", source, "-o", built, "-ldl"], check=True
        )
        variables = {
            "PIPEC_GUARDED": "1",
            "LD_PRELOAD": built,
            **({"GUARD_START": "1"} if at_start else {}),
        }
        words = [sys.executable, "-m", "benchmarks.fuzz_ops", *given]
        return subprocess.run(words, env={**os.environ, **variables}, check=False).returncode


def _in_child(
    name: str, calls: list[Call], numbers: list[int], note: mmap.mmap, seconds: int
) -> signal.Signals | None:
    """Try a few numbers in a process of their own; the signal that ended it."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(seconds)
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        op, ends = resolve(name), Counter[str]()
        assert isinstance(op, OpOverload)
        for number in numbers:
            rng = random.Random(f"{name}{number}")
            call = mutate(rng.choice(calls), rng)
            _write(note, [number, call])
            torch.manual_seed(number)
            try:
                ends[attempt(op, call, rng)] += 1
            except BaseException:
                os.abort()  # a rule of the table ends in an exception
        _write(note, ends)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return signal.Signals(-status) if status else None


def attempt(op: OpOverload, call: Call, rng: random.Random) -> str:
    """Call an op as a loaded graph would: not built, refused, raised or ran."""
    try:
        args, kwargs = build(call[0], rng), {k: build(v, rng) for k, v in call[1].items()}
    except (MemoryError, RuntimeError, ValueError, TypeError, KeyError):
        return "not built"
    names = list(argument_names_and_defaults(op))
    for word in (w for rule, *words in table()[str(op)] if rule == "checked" for w in words):
        place = names.index(word.partition("=")[0])
        if isinstance(args[place], torch.Tensor):
            args[place] = torch.zeros_like(args[place])  # another call has looked at its numbers
    if not admits(op, args, kwargs):
        return "refused"
    try:
        with torch.no_grad():
            op(*args, **kwargs)
    except Exception:
        return "raised"
    return "ran"


def admits(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a graph may call an op on tensors of these types."""
    mode, graph = FakeTensorMode(allow_non_fake_inputs=True), fx.Graph()

    def node(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            new = graph.placeholder("x")
            new.meta["val"] = empty_of_type(type_text(value), mode)
            return new
        if isinstance(value, list):
            return [node(v) for v in value]
        return {k: node(v) for k, v in value.items()} if isinstance(value, dict) else value

    made = graph.call_function(op, tuple(node(args)), node(kwargs))
    if list(find_disagreeing(made)):
        return False
    held: Any = fx.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
    try:
        with mode:
            op(*held[0], **held[1])
    except UNKNOWN_WHEN_FAKE:
        return True
    except Exception:
        return False
    return True


def mutate(call: Call, rng: random.Random) -> Call:
    """A call with up to three arguments changed, and wild numbers in some of its tensors."""
    call = json.loads(json.dumps(call))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        spots = list(_spots(call[0])) + list(_spots(call[1]))
        if spots:
            holder, key = rng.choice(spots)
            tensors = [h[k] for h, k in spots if _is_tensor(h[k])]
            holder[key] = _change(holder[key], rng, tensors)
    for holder, key in [*_spots(call[0]), *_spots(call[1])]:
        if _is_tensor(holder[key]) and rng.random() < 0.4:
            holder[key]["one"] = rng.choice(NUMBERS)
    return call


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], list):
            yield from _spots(value[key])


def _is_tensor(value: object) -> bool:
    return isinstance(value, dict) and "tensor" in value


def _change(value: Any, rng: random.Random, tensors: list[Any]) -> Any:
    if _is_tensor(value):
        return _change_tensor(dict(value), rng, tensors)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTS, value + 1, value - 1, value * 2))
    if isinstance(value, list):
        more = [rng.choice(value)] if value and rng.random() < 0.5 else [rng.choice(INTS)]
        return rng.choice((value[:-1], value[1:], value + more, more + value, []))
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if value is None:
        return rng.choice((1, 0, -1, True, 2.0, [], [1], [1, 1], *tensors))
    if isinstance(value, dict) and "dtype" in value:
        return {"dtype": rng.choice(TYPES)}
    return value


def _change_tensor(value: dict[str, Any], rng: random.Random, tensors: list[Any]) -> Any:
    like = empty_of_type(value["tensor"], FakeTensorMode())
    dtype, shape = value["tensor"].partition("[")[0], list(like.shape)
    where, kind = rng.randrange(max(len(shape), 1)), rng.random()
    if kind < 0.3 and shape:
        size = shape[where]
        shape[where] = max(0, rng.choice((0, 1, 2, size + 1, size - 1, size * 2, 7, 64)))
    elif kind < 0.35 and shape:
        del shape[where]
    elif kind < 0.4:
        shape.insert(where, rng.choice((0, 1, 2, 5)))
    elif kind < 0.5:
        dtype = rng.choice(TYPES)
    elif kind < 0.65:
        return rng.choice(tensors)
    elif kind < 0.75:
        return {**value, "layout": rng.choice(("expanded", "transposed"))}
    else:
        return {**value, "all": rng.choice(NUMBERS)}
    return {**value, "tensor": f"{dtype}[{','.join(map(str, shape))}]"}


def build(value: Any, rng: random.Random) -> Any:
    """The argument that a value of a call stands for."""
    if isinstance(value, list):
        return [build(v, rng) for v in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _tensor(value, rng)
    tables: dict[str, Any] = {"dtype": DTYPES, "layout": _LAYOUTS, "memory_format": _MEMORY_FORMATS}
    kinds = value.keys() & {*tables, "device", "complex"}
    (kind,) = kinds
    if kind == "device":
        return torch.device("cpu")
    return complex(*value[kind]) if kind == "complex" else tables[kind][value[kind]]


def _tensor(value: dict[str, Any], rng: random.Random) -> torch.Tensor:
    like = empty_of_type(value["tensor"], FakeTensorMode())
    shape, dtype = list(like.shape), like.dtype
    if like.numel() > LARGEST:
        raise MemoryError
    if dtype.is_floating_point or dtype.is_complex:
        made = (torch.randn(shape) * 2).to(dtype)
        if "all" in value:
            made.fill_(rng.choice(FLOATS[:4]))
    elif dtype == torch.bool:
        made = torch.randint(0, 2, shape).bool()
    else:
        ends = torch.iinfo(dtype)
        made = torch.randint(value.get("low", 0), value.get("high", 4) + 1, shape).to(dtype)
        if "all" in value:
            made.fill_(min(max(value["all"], ends.min), ends.max))
        if "one" in value and made.numel():
            wild = min(max(value["one"], ends.min), ends.max)
            made.view(-1)[rng.randrange(made.numel())] = wild
    layout = value.get("layout")
    if layout == "expanded" and shape and shape[0]:
        return made[:1].expand(shape)
    if layout == "transposed" and len(shape) > 1:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if tuple(like.stride()) != made.stride() and like.numel():
        room = 1 + sum((n - 1) * s for n, s in zip(shape, like.stride(), strict=True))
        return made.new_zeros(room).as_strided(shape, like.stride()) if room < LARGEST else made
    return made


def _write(note: mmap.mmap, value: object) -> None:
    data = json.dumps(value).encode()[:60_000]
    note.seek(0)
    note.write(len(data).to_bytes(8, "little") + data)


def _read_note(note: mmap.mmap) -> bytes:
    note.seek(0)
    return note.read(int.from_bytes(note.read(8), "little"))


if __name__ == "__main__":
    sys.exit(main())
