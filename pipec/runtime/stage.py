"""One stage on one device: runs its graphs and keeps what is saved between them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import torch

from pipec.errors import BackendError, PlanError
from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.graph.torch_private import storage_key
from pipec.runtime.draws import Stream, drawing, seed_module
from pipec.runtime.placed import place_on
from pipec.runtime.program import StageProgram
from pipec.runtime.tensors import TensorType
from pipec.user_module import user_code

_CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]
Callables = Callable[..., tuple[torch.Tensor, ...]]
Compile = Callable[[torch.fx.GraphModule], Callables]
"""What makes a graph fast, such as ``torch.compile``; the identity by default."""

Outcome = dict[OutputKind, Tensors]
"""What one run of a graph gave, by the kind of its outputs and their names."""


class StageRunner:
    """Runs F, B, I and W of one stage.

    ``compiled`` is applied to each graph before its first run; inputs are brought to ``device``.
    """

    def __init__(
        self, program: StageProgram, compiled: Compile | None = None, device: torch.device = _CPU
    ) -> None:
        self.program, self._device = program, device
        self.saved: dict[int, Tensors] = {}
        self.random = bool(program.draws)
        graphs = {"F": program.forward}
        if program.training:
            t = program.training
            graphs |= {"B": t.B, "I": t.I, "W": t.W}
        self._graphs = graphs
        self._functions: dict[str, Callables] = {}
        self._owned: dict[str, frozenset[str]] = {}
        self._compiled = compiled
        given = program.forward.tensors_of(InputKind.INPUT)
        self._inputs = {n: TensorType.of(t) for n, t in given.items()}
        self._read_by_w = {i.name for i in graphs["W"].inputs} if program.training else set()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The user's inputs that F reads."""
        return tuple(self._inputs)

    def forward(
        self,
        microbatch: int,
        weights: Tensors,
        values: Tensors,
        inputs: Mapping[str, torch.Tensor],
        stream: Stream = int,
    ) -> Outcome:
        """Run F; its saved values are kept under ``microbatch``, its random ops seed torch.

        Raises:
            PlanError: An input of the user is missing or has another shape than the graph's.
        """
        for name, kind in self._inputs.items():
            check_input(name, kind, inputs, microbatch)
        here = {n: inputs[n].to(self._device, non_blocking=True) for n in self._inputs}
        given = {InputKind.VALUE: values, InputKind.INPUT: here}
        with drawing(stream):
            outcome = self._run("F", weights, given)
        if self.program.training and outcome[OutputKind.SAVED]:
            self.saved[microbatch] = outcome[OutputKind.SAVED]
        return outcome

    def backward(self, kind: str, microbatch: int, weights: Tensors, gradients: Tensors) -> Outcome:
        """Run B, I or W on the saved values of ``microbatch``, which B and W let go."""
        saved = self.saved.get(microbatch, {}) if kind == "I" else self.saved.pop(microbatch, {})
        given = {InputKind.SAVED: saved, InputKind.GRADIENT: gradients}
        outcome = self._run(kind, weights, given)
        if kind == "I":
            left = {**saved, **outcome[OutputKind.SAVED]}
            self.saved[microbatch] = {n: t for n, t in left.items() if n in self._read_by_w}
        return outcome

    def count_saved(self) -> int:
        """Bytes of all saved values that are held now."""
        return sum(t.nbytes for values in self.saved.values() for t in values.values())

    def _run(
        self, kind: str, weights: Tensors, given: Mapping[InputKind, Mapping[str, torch.Tensor]]
    ) -> Outcome:
        graph = self._graphs[kind]
        args = [given.get(i.kind, weights)[i.name] for i in graph.inputs]
        doing, hint = f"{kind} of stage {self.program.index} failed", "indices may be out of range"
        with torch.no_grad(), user_code(doing, hint, BackendError):
            results = self._function(kind, graph)(*args)
        outcome: Outcome = defaultdict(dict)
        for o, value in zip(graph.outputs, results, strict=True):
            outcome[o.kind][o.name] = value
        if kind not in self._owned:
            used = Counter(storage_key(t) for t in (*args, *results))
            grads = outcome[OutputKind.WEIGHT_GRADIENT]
            alone = (n for n, g in grads.items() if used[storage_key(g)] == 1)
            self._owned[kind] = frozenset(n for n in alone if grads[n].is_contiguous())
        return outcome

    def list_owned(self, kind: str) -> frozenset[str]:
        """Weight gradients of B or W that may be written to: nothing else has their memory.

        As its first run showed, since graphs stay.
        """
        return self._owned[kind]

    def _function(self, kind: str, graph: Graph) -> Callables:
        if kind not in self._functions:
            module = place_on(graph.module, self._device)
            if kind == "F" and self.random:
                module = seed_module(module, self.program.draws, self._device)
            self._functions[kind] = self._compiled(module) if self._compiled else module
        return self._functions[kind]


def check_input(name: str, kind: TensorType, inputs: Mapping[str, object], microbatch: int) -> None:
    """Refuse an input that is not there, or of another type than the graph's.

    Raises:
        PlanError: Naming the microbatch, what came and what was wanted.
    """
    if name not in inputs:
        raise PlanError(
            "a microbatch lacks an input",
            where=f"microbatch {microbatch}",
            got=", ".join(map(str, inputs)) or "nothing",
            want=name,
        )
    got = inputs[name]
    given = TensorType.of(got) if isinstance(got, torch.Tensor) else None
    if given is None or (given.shape, given.dtype) != (kind.shape, kind.dtype):
        smaller = given is not None and (given.shape[1:], given.dtype) == (
            kind.shape[1:],
            kind.dtype,
        )
        raise PlanError(
            "an input has another type than the model was compiled for",
            where=f"input {name} of microbatch {microbatch}",
            got=f"{given.dtype}{list(given.shape)}" if given else type(got).__name__,
            want=f"{kind.dtype}{list(kind.shape)}" if given else "a tensor",
            hint="drop or pad the last, smaller batch of the data set" if smaller else None,
        )
