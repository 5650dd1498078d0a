"""``pipec::eager``: one call of a module that no graph can hold, as one node of the graph.

```text
F   y, tape = pipec.eager([x, w, b], '3f6c…', 'float32[4,8]', 4096, 512, False)
                          what it reads  call   what it yields  bytes of the tape, FLOPs, draws
B   dx, dw  = pipec.eager_backward([dy], tape, [0, 1], 'float32[4,8];float32[8,8]')
                                   gradients    wanted  what it yields
```

Forward runs the module itself under autograd, on the weights that it is given. What autograd
keeps is the *tape*: a value that F saves for B, of as many bytes in every prediction, for which
one byte stands, and which lives as long as that tensor object. So B uses the weights that F used,
and a tape goes neither to another device nor into a file.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipec.errors import GraphError
from pipec.graph.ir import Graph, origin
from pipec.graph.tensor_type import metas_of_types, types_text
from pipec.graph.torch_private import count_writes, enable_autograd, gradient_hooks_of, storage_key

_TAPE, _ABSENT = "pipec_tape", "pipec_absent"


@dataclass(frozen=True)
class EagerCall:
    """One call of a module in a model.

    Attributes:
        name: Path of the module in the model.
        module: The module; it is used as it is, with other tensors in the place of its weights.
        call: The module as a function of the tensors among its arguments, to those it returns.
        wanted: Whether each of these tensors wants a gradient.
        weights: The module's parameters and buffers, in the order in which the node reads them.
        updated: Places among these of the buffers that the call changes.
        training: Every part of the module, and whether it is in training mode.
        tracked: Whether autograd watches.
        autocast: A dtype, where it runs under `torch.autocast`.
    """

    name: str
    module: nn.Module
    call: Callable[[Sequence[Tensor]], list[Tensor]]
    wanted: tuple[bool, ...]
    weights: tuple[Tensor, ...]
    updated: tuple[int, ...]
    training: Mapping[nn.Module, bool]
    tracked: bool
    autocast: str = ""

    def run(self, given: Sequence[Tensor], *, probing: bool = False) -> "Run":
        """Call the module.

        Args:
            given: Its tensor arguments, then its weights; none of them is written to.
            probing: Give it copies, so that it may write to its arguments, which is reported.

        Raises:
            GraphError: It writes to them.
        """
        count = len(self.wanted)
        read = [t.detach().requires_grad_(w) for t, w in zip(given, self.wanted, strict=False)]
        passed = [t.clone() for t in read] if probing else read
        held = [self._weight(k, t) for k, t in enumerate(given[count:])]
        before = list(map(count_writes, [*passed, *held]))
        with ExitStack() as stack:
            stack.enter_context(enable_autograd())
            stack.enter_context(torch.set_grad_enabled(self.tracked))
            if self.autocast:
                dtype = getattr(torch, self.autocast)
                stack.enter_context(torch.autocast(given[0].device.type, dtype))
            stack.enter_context(self._holding(held))
            results = self.call(passed)
            left = weights_of(self.module)
        if any(count_writes(t) != n for t, n in zip(passed, before, strict=False)):
            raise GraphError(
                "a part that runs eagerly changes its input in place",
                where=self.name,
                hint="inplace=False; other parts of the model read that value",
            )
        pairs = zip(held, left, before[count:], strict=True)
        written = [k for k, (t, now, n) in enumerate(pairs) if now is not t or count_writes(t) != n]
        left = [t.detach() for t in left]
        return Run(self, results, read, held, left, tuple(written))

    def _weight(self, place: int, given: Tensor) -> Tensor:
        """A weight as the module holds it; a parameter keeps the hooks on its gradient."""
        own = self.weights[place]
        if not isinstance(own, nn.Parameter):
            return given.clone() if place in self.updated else given.detach()
        made = nn.Parameter(given.detach(), own.requires_grad)
        for hook in gradient_hooks_of(own):
            made.register_hook(hook)
        return made

    @contextmanager
    def _holding(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Inside the block the module has other weights, and the mode in which it was read."""
        other = {id(own): t for own, t in zip(self.weights, weights, strict=True)}
        before = {m: m.training for m in self.training}
        with swap_tensors(self.module, lambda t: other.get(id(t), t)):
            for m, training in self.training.items():
                m.training = training
            try:
                yield
            finally:
                for m, training in before.items():
                    m.training = training


@dataclass
class Run:
    """What one call gave, and what autograd keeps of it.

    Attributes:
        of: The call.
        results: The tensors that the module returned.
        read: Arguments of the call.
        held: Weights of the module.
        left: The same after the call: the values of changed buffers are new.
        written: Places among these of what changed.
    """

    of: EagerCall
    results: list[Tensor]
    read: list[Tensor]
    held: list[Tensor]
    left: list[Tensor]
    written: tuple[int, ...]

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of arguments and weights, from those of the results.

        Raises:
            GraphError: It changes a buffer, as a checkpointed part that runs again may do.
        """
        pairs = zip(self.results, gradients, strict=False)
        given = [(y, g) for y, g in pairs if g is not None and y.requires_grad]
        before = list(map(count_writes, self.held))
        with enable_autograd(), self.of._holding(self.held):  # noqa: SLF001
            torch.autograd.backward([y for y, _ in given], [g for _, g in given])
            left = weights_of(self.of.module)
        pairs_left = zip(self.held, left, before, strict=True)
        if any(now is not t or count_writes(t) != n for t, now, n in pairs_left):
            raise GraphError(
                "a part that runs eagerly changes a buffer in its backward",
                where=self.of.name,
                hint="checkpoint no batch normalization, or use_reentrant=False",
            )
        return [t.grad for t in (*self.read, *self.held)]


@contextmanager
def swap_tensors(module: nn.Module, other: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, parameters and buffers of the module are other tensors."""
    held: list[dict[str, Any]] = [d for m in module.modules() for d in (m._parameters, m._buffers)]  # noqa: SLF001
    saved = [dict(d) for d in held]
    for weights in held:
        weights.update({k: other(t) for k, t in weights.items() if t is not None})
    try:
        yield
    finally:
        for weights, before in zip(held, saved, strict=True):
            weights.update(before)


def weights_of(module: nn.Module) -> list[Tensor]:
    """Its parameters, then its buffers, each once."""
    return [*module.parameters(), *module.buffers()]


_calls: dict[str, EagerCall] = {}


def register_call(key: str, call: EagerCall, *, in_memory: bool) -> str:
    """Make a call known to the op.

    Two modules in memory may have the same key: the second one gets another.

    Returns:
        Its key.
    """
    given, number = key, 1
    while in_memory and given in _calls and _calls[given].module is not call.module:
        number += 1
        given = f"{key}-{number}"
    _calls[given] = call
    return given


def eager_parts(graph: Graph) -> dict[str, str]:
    """Node that runs a module as it is, to the module's path in the model."""
    return {n.name: origin(n).name for n in graph.calls if n.target is EAGER}


def call_of(node: fx.Node) -> EagerCall | None:
    """The call that a node is, or yields an item of, if it is known here."""
    of = node.args[0] if node.target is operator.getitem else node
    found = isinstance(of, fx.Node) and of.target is EAGER
    return _calls.get(str(of.args[1])) if isinstance(of, fx.Node) and found else None


def is_tape(node: fx.Node) -> bool:
    """Whether the node is what autograd keeps for B of a module that runs as it is."""
    of = node.args[0] if node.target is operator.getitem else None
    if not isinstance(of, fx.Node) or of.target is not EAGER:
        return False
    return bool(node.args[1] == len(str(of.args[2]).split(";")))


def keys_of_calls(graph: Graph) -> set[str]:
    """Keys of the calls of modules in the graph."""
    return {str(n.args[1]) for n in graph.calls if n.target is EAGER}


def missing_calls(graph: Graph) -> set[str]:
    """Keys in the graph of calls that are not known here."""
    return keys_of_calls(graph) - _calls.keys()


def _copy_shared(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous tensors of which no two, and none and an input, share memory."""
    taken, found = set(map(storage_key, inputs)), list[Tensor]()
    for result in results:
        t = result.detach().contiguous()
        found.append(t.clone() if storage_key(t) in taken else t)
        taken.add(storage_key(found[-1]))
    return found


@torch.library.custom_op("pipec::eager", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def eager(
    inputs: list[Tensor], module: str, outputs: str, tape: int, flops: int, draws: bool
) -> list[Tensor]:
    """Run a module on its tensor arguments and weights.

    Returns:
        What it returns, its changed buffers, and the tape if ``tape`` says that it has bytes.

    Raises:
        GraphError: The call is unknown, or does other things than when it was read.
    """
    if module not in _calls:
        hint = "a module in memory is compiled where it runs; of a file the code has changed"
        raise GraphError("the module of an eager stage is not here", got=module, hint=hint)
    call = _calls[module]
    run = call.run(inputs)
    found = _copy_shared([*run.results, *(run.left[k] for k in call.updated)], inputs)
    if types_text(found) != outputs:
        raise GraphError(
            "a module yields other types than when it was read",
            where=call.name,
            got=types_text(found),
            want=outputs,
            hint="shapes must not depend on data",
        )
    if others := set(run.written) - set(call.updated):
        raise GraphError(
            "a module changes other buffers than when it was read",
            where=call.name,
            got=f"{len(others)} more",
            hint="compile with example inputs for which it changes all of them",
        )
    if not tape and any(t.requires_grad for t in run.results):
        raise GraphError(
            "a module passes gradients on, which it did not when it was read",
            where=call.name,
            hint="compile with example inputs on which its results depend on its weights",
        )
    if tape:
        found.append(inputs[0].new_empty(1, dtype=torch.uint8).expand(tape))
        setattr(found[-1], _TAPE, run)
    return found


@torch.library.custom_op("pipec::eager_backward", mutates_args=())
def eager_backward(
    gradients: list[Tensor | None], tape: Tensor, wanted: list[int], outputs: str
) -> list[Tensor]:
    """Let autograd run back through a tape, which it uses up.

    Args:
        gradients: Gradients of the module's results.
        tape: What F kept.
        wanted: Places of the arguments and weights whose gradients are yielded; zeros where the
            results do not depend on one.
        outputs: Their types.

    Raises:
        GraphError: The tape is no more, or was left on another device.
    """
    run = vars(tape).pop(_TAPE, None)
    if run is None:
        hint = "it stays in the process of its forward, for one backward"
        raise GraphError("the tape of an eager stage is not here", hint=hint)
    found = run.backward(gradients)
    given = [*run.read, *run.held]
    return [_zeros(given[k]) if found[k] is None else found[k] for k in wanted]


def _zeros(like: Tensor) -> Tensor:
    made = torch.zeros_like(like)
    setattr(made, _ABSENT, True)
    return made


def is_absent(gradient: Tensor) -> bool:
    """Whether a gradient stands for None: the values decided that nothing depends on a weight."""
    return getattr(gradient, _ABSENT, False)


@torch.library.custom_op("pipec::add_gradients", mutates_args=())
def add_gradients(first: Tensor, second: Tensor) -> Tensor:
    """Add two gradients of a weight that two calls read; two that stand for None do so together."""
    return _zeros(first) if is_absent(first) and is_absent(second) else first + second


EAGER = torch.ops.pipec.eager.default
EAGER_BACKWARD = torch.ops.pipec.eager_backward.default
ADD_GRADIENTS = torch.ops.pipec.add_gradients.default
"""The op overloads, as they stand in graphs."""


def keep_absent(graph: fx.Graph) -> None:
    """Let sums of gradients that may stand for None tell whether they do."""

    def may_be_absent(n: object) -> bool:
        of = n.args[0] if isinstance(n, fx.Node) and n.target is operator.getitem else n
        return isinstance(of, fx.Node) and of.target in (EAGER_BACKWARD, ADD_GRADIENTS)

    for n in graph.nodes:
        if n.target is torch.ops.aten.add.Tensor and all(map(may_be_absent, n.args)):
            n.target = ADD_GRADIENTS


def _fakes(like: Tensor, types: str) -> list[Tensor]:
    return [like.new_empty(t.shape, dtype=t.dtype) for t in metas_of_types(types)]


@eager.register_fake
def _(
    inputs: list[Tensor], module: str, outputs: str, tape: int, flops: int, draws: bool
) -> list[Tensor]:
    stands = [inputs[0].new_empty_strided((tape,), (0,), dtype=torch.uint8)] if tape else []
    return [*_fakes(inputs[0], outputs), *stands]


@add_gradients.register_fake
def _(first: Tensor, second: Tensor) -> Tensor:
    return first + second


@eager_backward.register_fake
def _(
    gradients: list[Tensor | None], tape: Tensor, wanted: list[int], outputs: str
) -> list[Tensor]:
    return _fakes(tape, outputs)


def _keep_tape(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.given, ctx.tape = inputs[0], output[-1] if inputs[3] else None


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    """The node in B: the gradients that are wanted, None for all others."""
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad[0]) if needed]
    found: list[Tensor | None] = [None] * len(ctx.given)
    if ctx.tape is not None:
        types = types_text([ctx.given[k] for k in wanted])
        made = EAGER_BACKWARD(gradients[:-1], ctx.tape, wanted, types)
        for k, gradient in zip(wanted, made, strict=True):
            found[k] = gradient
    return (found, *[None] * 5)


eager.register_autograd(_differentiate, setup_context=_keep_tape)
