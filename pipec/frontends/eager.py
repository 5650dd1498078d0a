"""Parts of a model that no graph can hold, as nodes that run them as they are.

```text
model ─► one forward on the example inputs ─► what each call of these parts was given, gave and
         in which these parts are watched     kept: in the trace it is one node `pipec.eager`
```

What calls them must be traceable, as a chain is.
"""

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from pipec.errors import FrontendError
from pipec.frontends.base import user_code
from pipec.frontends.lost import allow_state_changes
from pipec.graph.autocast import autocast_dtype
from pipec.graph.eager import EAGER, EagerCall, Run, register_call, weights_of
from pipec.graph.ir import MEMORY, Source
from pipec.graph.tensor_type import has_data, types_text
from pipec.graph.torch_private import later_hooks, storage_key, tree_flatten, tree_unflatten

Around = Callable[..., object]
Parts = Mapping[str, nn.Module]
"""Path in a model to the module."""
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, Enum, slice)
_HOLE = object()


class Structure:
    """A module as a function of tensors: where they lie in its arguments and its results."""

    def __init__(self, name: str, run: Around, arguments: object) -> None:
        self._name, self._run = name, run
        self._given = self._take(arguments, "is given")
        self._gave = self._given

    def _take(self, value: object, what: str) -> tuple[list[object], Any]:
        """Its leaves, holes in the place of tensors, and how they were nested."""
        leaves, nesting = tree_flatten(value)
        for x in leaves:
            if not isinstance(x, (*_PLAIN, Tensor)) and not callable(x):
                raise FrontendError(
                    f"a part that runs eagerly {what} something that is no tensor",
                    where=self._name,
                    got=type(x).__name__,
                    want="tensors, numbers and text, in tuples, lists and dictionaries",
                )
        return [_HOLE if isinstance(x, Tensor) else x for x in leaves], nesting

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Call the module with other tensors in the same places."""
        args, kwargs = _fill(self._given, tensors)
        found = self._run(*args, **kwargs)
        self._gave = self._take(found, "returns")
        return tensors_of(found)

    def with_arguments(self, arguments: object) -> "Structure":
        """The same module with other arguments, and results as they were."""
        made = Structure(self._name, self._run, arguments)
        made._gave = self._gave
        return made

    def results(self, tensors: Sequence[Tensor]) -> Any:
        """What the module returns, with these tensors in it."""
        return _fill(self._gave, tensors)


def _fill(taken: tuple[list[object], Any], tensors: Sequence[Tensor]) -> Any:
    (leaves, nesting), fresh = taken, iter(tensors)
    return tree_unflatten([next(fresh) if x is _HOLE else x for x in leaves], nesting)


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in nested containers."""
    return [x for x in tree_flatten(value)[0] if isinstance(x, Tensor)]


@dataclass
class _Node:
    """What one call did in the forward that was watched, and so what its node says."""

    call: EagerCall
    structure: Structure
    floats: list[tuple[str, bool]]
    outputs: str
    tape: int
    flops: int
    draws: bool

    def emit(self, place: str, in_memory: bool, args: Any, kwargs: Any) -> Any:
        """The node in a trace, and the updates of buffers that go with it.

        A traced model may pass other masks than one that runs, and None for a tensor.
        """
        call, structure = self.call, self.structure.with_arguments((args, kwargs))
        tensors, weights = tensors_of((args, kwargs)), weights_of(call.module)
        call = replace(call, call=structure, wanted=self._find_wanted(tensors))
        key = _key(call, f"{place} {types_text(tensors)} {self.outputs}")
        key = register_call(key, call, in_memory=in_memory)
        count = len(self.outputs.split(";"))
        outputs = ";".join([self.outputs, *(types_text([weights[k]]) for k in call.updated)])
        found = EAGER([*tensors, *weights], key, outputs, self.tape, self.flops, self.draws)
        with torch.no_grad():
            for k, new in zip(call.updated, found[count:], strict=False):
                weights[k].copy_(new)
        return structure.results(found[:count])

    def _find_wanted(self, tensors: Sequence[Tensor]) -> tuple[bool, ...]:
        """Which of the arguments in a trace want gradients: what the same ones wanted before.

        Others, whose type no argument had before, are masks.
        """
        left, found = list(self.floats), []
        kinds = {kind for kind, _ in left}
        for t in tensors:
            kind = types_text([t])
            if not _floating(t) or kind not in kinds:
                found.append(False)
            elif left and left[0][0] == kind:
                found.append(left.pop(0)[1])
        if left or len(found) < len(tensors):
            raise FrontendError(
                "a part that runs eagerly is given other values in the trace",
                where=self.call.name,
                got=types_text(tensors),
                want=";".join(kind for kind, _ in self.floats),
            )
        return tuple(found)


def _floating(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


@contextmanager
def intercept(parts: Mapping[nn.Module, Around]) -> Iterator[None]:
    """Inside the block, calling one of these modules calls a function instead."""
    before = {m: type(m) for m in parts}
    for m, function in parts.items():
        called = {"__call__": lambda _, *a, _f=function, **k: _f(*a, **k)}
        m.__class__ = type(type(m).__name__, (type(m),), called)
    try:
        yield
    finally:
        for m, kind in before.items():
            m.__class__ = kind


def find_parts(flat: nn.Module, patterns: Sequence[str], prefix: str) -> dict[str, nn.Module]:
    """The modules that patterns name (``*``: any text; ``loss``), those inside of others left out.

    Raises:
        FrontendError: A pattern names nothing.
    """
    known = {n.removeprefix(prefix): m for n, m in flat.named_modules() if n}
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern) for n in known):
            want = ", ".join([*known][:8])
            raise FrontendError("no part of this name runs eagerly", got=pattern, want=want)
    found = {n: m for n, m in known.items() if any(fnmatchcase(n, p) for p in patterns)}
    return {n: m for n, m in found.items() if not any(n.startswith(f"{o}.") for o in found)}


@contextmanager
def as_nodes(
    flat: nn.Module, inputs: Sequence[Tensor], parts: Parts, source: Source, *, tracked: bool
) -> Iterator[None]:
    """Inside the block each call of these parts is one node, as they were called in a forward.

    Raises:
        FrontendError: The model has no data, or raises; or a part does what no node can.
    """
    if not parts:
        yield
        return
    found = _record(flat, inputs, parts, tracked=tracked)

    def emitting(name: str) -> Around:
        left = iter(enumerate(found[name]))

        def emit(*args: object, **kwargs: object) -> Any:
            number, node = next(left, (0, None))
            if node is None:
                what = "a part that runs eagerly is called more often in the trace"
                raise FrontendError(what, where=name, got=f"more than {len(found[name])} calls")
            place = f"{source.sha256} {name} {number}"
            return node.emit(place, source.kind == MEMORY, args, kwargs)

        return emit

    with intercept({m: emitting(n) for n, m in parts.items()}):
        yield


def _record(
    flat: nn.Module, inputs: Sequence[Tensor], parts: Parts, *, tracked: bool
) -> dict[str, list[_Node]]:
    if not all(map(has_data, [*flat.parameters(), *flat.buffers(), *inputs])):
        hint = "build it on a real device"
        raise FrontendError("what runs eagerly needs weights and inputs with data", hint=hint)
    found: dict[str, list[_Node]] = {name: [] for name in parts}
    own = {name: tuple(weights_of(m)) for name, m in parts.items()}

    def watching(name: str, run: Around) -> Around:
        def watch(*args: object, **kwargs: object) -> Any:
            node, results = _record_call(name, parts[name], run, (args, kwargs))
            node.call = replace(node.call, weights=own[name])
            found[name].append(node)
            return node.structure.results(results)

        return watch

    watched = {m: watching(n, partial(type(m).__call__, m)) for n, m in parts.items()}
    run_once(flat, inputs, watched, tracked=tracked)
    for name, nodes in found.items():
        if not nodes:
            raise FrontendError("a part that is to run eagerly is never called", where=name)
    return found


def run_once(
    flat: nn.Module, inputs: Sequence[Tensor], parts: Mapping[nn.Module, Around], *, tracked: bool
) -> None:
    """One forward of a model with some parts intercepted; buffers and random numbers stay.

    What a first forward sets up in attributes, such as the sizes of windows, is set up then.

    Raises:
        FrontendError: The model raises.
    """
    buffers = {n: b.clone() for n, b in flat.named_buffers()}
    given = tuple(t.detach().clone() for t in inputs)
    whole = torch.random.fork_rng(devices=[]), torch.set_grad_enabled(tracked), intercept(parts)
    with whole[0], whole[1], whole[2], allow_state_changes(), user_code("the model raised"):
        functional_call(flat, buffers, given)


def _record_call(
    name: str, module: nn.Module, run: Around, arguments: tuple[object, object]
) -> tuple[_Node, list[Tensor]]:
    """Run one call: what its node will say, and its results as they go on in the forward."""
    if found := later_hooks(module):
        hint = "register_hook is kept; a step of the optimizer belongs into the loop"
        raise FrontendError("hooks on accumulated gradients would be lost", got=found, hint=hint)
    structure, tensors = Structure(name, run, arguments), tensors_of(arguments)
    weights, tracked = weights_of(module), torch.is_grad_enabled()
    if not (tensors or weights):
        raise FrontendError("a part that runs eagerly reads no tensor", where=name)
    call = EagerCall(
        name,
        module,
        structure,
        tuple(t.requires_grad and tracked for t in tensors),
        tuple(weights),
        tuple(k for k, w in enumerate(weights) if not isinstance(w, nn.Parameter)),
        {m: m.training for m in module.modules()},
        tracked,
        autocast_dtype((tensors or weights)[0].device.type),
    )
    before, kept = torch.get_rng_state(), dict[int, int]()
    with saved_tensors_hooks(partial(_note_bytes, kept), lambda t: t):
        done = call.run([*tensors, *weights], probing=True)
    draws = not torch.equal(before, torch.get_rng_state())
    for place in done.written:
        weights[place].copy_(done.left[place])
    for t in weights:
        kept.pop(storage_key(t), None)
    taped = any(t.requires_grad for t in done.results)
    node = _Node(
        replace(call, updated=_find_updated(module, weights, done)),
        structure,
        [
            (types_text([t]), wants)
            for t, wants in zip(tensors, call.wanted, strict=True)
            if _floating(t)
        ],
        types_text(done.results),
        max(1, sum(kept.values())) if taped else 0,
        _flops(call, [*tensors, *weights]),
        draws,
    )
    # no leaves: a model may write to what it was given
    return node, [
        t.detach().requires_grad_().clone() if t.requires_grad else t.detach() for t in done.results
    ]


def _find_updated(module: nn.Module, weights: Sequence[Tensor], done: Run) -> tuple[int, ...]:
    """Places of the buffers that a call changes; in training those of a state dict may change."""
    kept = {id(t) for t in module.state_dict(keep_vars=True).values()} if done.of.tracked else set()
    known = enumerate(weights)
    may = {k for k, w in known if id(w) in kept and not isinstance(w, nn.Parameter)}
    return tuple(sorted(may.union(done.written)))


def _note_bytes(kept: dict[int, int], saved: Tensor) -> Tensor:
    """Note the bytes of what autograd saves."""
    kept[storage_key(saved)] = saved.untyped_storage().nbytes()
    return saved


def _flops(call: EagerCall, given: Sequence[Tensor]) -> int:
    """What torch counts; 0 where it cannot count, as for flex attention."""
    try:
        with FlopCounterMode(display=False) as counter, warnings.catch_warnings():
            # no leaf wants a gradient: torch's counter fails on a view of one by a Function
            warnings.simplefilter("ignore")  # a checkpoint says that none does
            replace(call, tracked=False, wanted=(False,) * len(call.wanted)).run(given)
    except (RuntimeError, NotImplementedError, TypeError, AssertionError):
        torch.compiler.reset()  # what failed to compile here is not to fail again
        return 0
    return int(counter.get_total_flops())


def _key(call: EagerCall, place: str) -> str:
    """A digest of all that says what a call does: a plan that is read again asks for this call."""
    code = sorted(f"{k.__qualname__} {_code(k)}" for k in {type(m) for m in call.training})
    what = (place, list(call.training.values()), code)
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def _code(kind: type) -> str:
    """The source of a class, if it is not torch's."""
    if kind.__module__.split(".")[0] == "torch":
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
