"""One object for the loop that people already have: a batch in, a step made.

```text
for batch in loader:                  DataLoader, any iterable
    result = pipeline.step(batch)     loss, gradient norm; the same on every rank
pipeline.evaluate(loader)             the same stages, nothing is gathered
pipeline.state_dict()                 the model's own names, on rank 0
```
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from pipec.arguments import check_arguments
from pipec.compiler.endless import endless
from pipec.errors import PlanError
from pipec.frontends.load import bring_modules
from pipec.graph.eager import eager_parts, missing_calls
from pipec.graph.ir import Graph
from pipec.pipeline.batches import Batch, Inputs, Shape, Splitter, shape_of
from pipec.pipeline.shapes import Retraced, tracer
from pipec.pipeline.valid import Count, counts_of, weights_of
from pipec.plan.model import Plan
from pipec.runtime.agreement import check_same, exchange
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.distributed import pipeline_of, process_group
from pipec.runtime.executor import OnNan, Settings
from pipec.runtime.figures import conclude, gather_figures
from pipec.runtime.identity import digest_of, mark
from pipec.runtime.program import Program
from pipec.runtime.result import Result
from pipec.runtime.rules import Correction
from pipec.runtime.runner import Runner
from pipec.runtime.shares import Shares
from pipec.runtime.state import load_weights
from pipec.runtime.stored import open_weights
from pipec.runtime.waiting import PATIENCE
from pipec.runtime.weights import OptimizerFactory, SchedulerFactory

Tensors = dict[str, torch.Tensor]
Hook = Callable[["Pipeline"], None]
_MOST = 1 << 16
"""Numbers of a microbatch's input that ranks compare: all of them in most models of language."""
_SAME_DATA = "seed the sampler, and give every rank the same data, or None where it reads none"


@dataclass(frozen=True)
class StepResult:
    """What one step of training found; the same on all ranks, but for the outputs.

    Attributes:
        loss: Mean over the valid targets (or samples) of the whole batch.
        gradient_norm: Norm of all gradients together, before clipping; None without a flush.
        skipped: Whether no update was made: the gradients were not finite, or a spike.
        outputs: On rank 0, if the model was compiled with its outputs: ``[rows, ...]`` by name.
    """

    loss: float
    gradient_norm: float | None = None
    skipped: bool = False
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """What the model made of a data set, in evaluation mode.

    Attributes:
        loss: Mean over all valid targets (or samples); None if the plan does not train.
        outputs: On rank 0: every output of the model by name, all rows together.
    """

    loss: float | None
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Pipeline:
    """Trains and evaluates a plan with batches.

    Under torchrun this process is one rank of the plan; elsewhere it runs all devices, in turns.
    Every rank calls the same methods; a rank whose stages read no input may pass None as a batch.

    Args:
        plan: A plan with a schedule.
        optimizer: Makes the optimizer of a stage from its parameters, (name, parameter) pairs as
            `torch.nn.Module.named_parameters` gives them: ``lambda p: AdamW(p, lr=1e-3)``.
        scheduler: Makes the learning-rate schedule of an optimizer, stepped after every update.
        clip: Largest norm of all gradients together; needs a schedule with a flush.
        model: The module that the plan was made of. Needed for `evaluate` and for batches of
            another shape, unless the plan names a file from which it can be read again.
        loss: The loss that it was compiled with, if the module does not compute it.
        weights: Initial weights by name, or the path of safetensors, of which every rank reads
            only what it holds; those of the plan if absent.
        weight: How much a microbatch counts, from its inputs. By default the valid targets of a
            cross entropy, what the loss divides a sum by, or the rows of the microbatch.
        on_nan: What to do if gradients are not finite: ``stop`` with an error before the update,
            ``skip`` the update on all ranks, which needs a flush, or ``continue``.
        spike: Treat as not finite a gradient norm above so many times the median of the last 64,
            once there are 16; without a flush, a loss. None for no such bound.
        loss_scale: First scale on the loss, for a model under float16 autocast: as
            `torch.amp.GradScaler` it leaves out updates that overflow and adapts. Needs a flush.
        drain: Finish every round's microbatches before the next begins. By default a schedule
            without a flush goes on from step to step, and `drain` finishes what is under way.
        hooks: Called with this object after every update.
        seed: Seed of dropout: one stream per microbatch and place in the model.
        correction: PipeMare's T1 and T2.
        device: ``cpu``, ``cuda``, or ``auto``.
        timeout: In which a rank that does not answer is named, and the others end.

    Attributes:
        rank: This process's rank, also once all is closed; 0 where it runs all devices.

    Raises:
        PlanError: The plan has no schedule, or weights that do not fit.
        BackendError: The ranks do not agree on what to run.

    Example:
        >>> import pipec, torch
        >>> model, x = torch.nn.Linear(4, 1), torch.ones(8, 4)
        >>> plan = pipec.compile(model, x[:2], "1xcpu", loss=lambda y: y.square().mean())
        >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        >>> with pipec.Pipeline(plan, optimizer=sgd) as pipeline:
        ...     losses = [pipeline.step({"input": x}).loss for _ in range(2)]
        >>> losses[1] < losses[0]
        True
    """

    @check_arguments
    def __init__(
        self,
        plan: Plan,
        *,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        clip: float | None = None,
        model: nn.Module | None = None,
        loss: Callable[..., object] | None = None,
        weights: Mapping[str, torch.Tensor] | Path | str | None = None,
        weight: Count | None = None,
        on_nan: OnNan = "stop",
        spike: float | None = None,
        loss_scale: float | None = None,
        drain: bool = False,
        hooks: Iterable[Hook] = (),
        seed: int = 0,
        correction: Correction | None = None,
        device: str = "auto",
        timeout: timedelta = PATIENCE,
    ) -> None:
        self._open, self._hooks = ExitStack(), list(hooks)
        self._timeout = timeout
        self._batch: list[Tensors] = []
        settings = Settings(
            optimizer,
            scheduler,
            clip=clip,
            seed=seed,
            correction=correction or Correction(),
            on_nan=on_nan,
            spike=spike,
            loss_scale=loss_scale,
        )
        given = {"optimizer": optimizer, "scheduler": scheduler, "clip": clip,
                 "spike": spike, "loss_scale": loss_scale, "correction": correction}  # fmt: skip
        if vain := [name for name, value in given.items() if value is not None and not plan.trains]:
            raise PlanError(
                "the plan does not train, so this has no effect",
                got=", ".join(vain),
                hint="compile with loss=...",
            )
        if plan.trains and optimizer is None:
            raise PlanError("a training plan needs an optimizer", hint="optimizer=lambda p: ...")
        if missing_calls(plan.graph):
            bring_modules(plan)
        if "RANK" in os.environ and not dist.is_initialized():
            self._open.enter_context(process_group(timeout, device))
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        held = open_weights(Path(weights)) if isinstance(weights, Path | str) else weights
        order = plan.schedule if drain else endless(plan)
        alone = device == "auto" and not dist.is_initialized()
        self._active = self._runner = pipeline_of(
            plan, self._inputs, settings, schedule=order, weights=held, timeout=timeout,
            device="cpu" if alone else device,
        )  # fmt: skip
        self.plan = plan
        self._splitter = Splitter(plan.graph, plan.order.microbatches)
        self._retraced = Retraced(plan, tracer(plan, model, loss))
        self._weight = weight
        self._shapes: dict[Shape, tuple[int, list[Count]]] = {}
        self._evaluations: dict[Shape, Program] = {}
        self._saved: dict[Path, Checkpoints] = {}
        self._compared = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._finish_saving()
        self._open.__exit__(kind, error, trace)

    def _finish_saving(self) -> None:
        for saved in self._saved.values():
            saved.wait()

    def step(self, batch: Batch | None) -> StepResult:
        """Run the schedule once on a batch: one update if it has a flush.

        Without a flush the last microbatches are still under way when the step returns: their
        losses are known, their last updates are made in the next step, or by `drain`.

        Args:
            batch: Up to ``microbatches`` times the compiled rows; None where no input is read.

        Returns:
            The loss over the whole batch, and the norm of its gradient.

        Raises:
            PlanError: The batch does not fit, or its gradients are not finite.
            BackendError: The ranks were given different batches, or one did not answer.
        """
        shares = self._take(batch, self._training_shape)
        if not self._runner.program.flush:  # the caller may fill its tensors anew meanwhile
            self._batch = [{n: t.clone() for n, t in m.items()} for m in self._batch]
        self._active = self._runner
        result = self._runner.round(shares)
        executor = self._runner.executors[0]
        found = gather_figures(result, shares, executor.round - 1)
        if error := conclude(found, self._runner.executors, executor.round - 1):
            self._finish_saving()
            raise error
        for hook in () if found.skipped else self._hooks:
            hook(self)
        loss, outputs = found.loss, self._outputs(self._runner, result)
        return StepResult(math.nan if loss is None else loss, found.norm, found.skipped, outputs)

    def evaluate(self, loader: Iterable[Batch | None], *, outputs: bool = False) -> Evaluation:
        """Run the model in evaluation mode, on the stages and weights as they are.

        Args:
            loader: Batches as `step` takes them, as many on every rank.
            outputs: Keep what the model gives.

        Raises:
            PlanError: The model cannot be traced again, or a batch does not fit.
        """
        given: object = loader
        if given is None or isinstance(given, torch.Tensor | Mapping):
            got = f"one {type(given).__name__}"
            raise PlanError("these are no batches", got=got, hint="a list of one: [batch]")
        total = weights = 0.0
        kept: dict[str, list[torch.Tensor]] = {}
        runner, known = None, 0
        for batch in loader:
            shares = self._take(batch, self._evaluation_shape)
            if runner is None or known < len(self._evaluations):
                known, programs = len(self._evaluations), list(self._evaluations.values())
                runner = self._runner.beside(programs, self._inputs)
            self._active = runner
            result = runner.round(shares)
            loss = gather_figures(result, shares, runner.executors[0].round - 1).loss
            weight = sum(shares.weights)
            total, weights = total + (loss or 0.0) * weight, weights + weight
            if outputs:
                for name, value in self._outputs(runner, result).items():
                    kept.setdefault(name, []).append(value)
        mean = total / weights if self.plan.trains and weights else None
        return Evaluation(mean, {n: torch.cat(parts) for n, parts in kept.items()})

    def drain(self) -> None:
        """Finish the microbatches that are under way, if any; all ranks call."""
        self._active = self._runner
        self._runner.drain()

    def state_dict(self) -> Tensors | None:
        """Copies of all weights by their original names on rank 0, None elsewhere; all ranks call.

        The newest of every stage: `drain` before, for all updates of the last step to be in them.
        """
        return self._runner.state_dict()

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights by others of the same names, shapes and dtypes; drains before.

        Raises:
            PlanError: A name is missing or unknown, or a shape or dtype differs.
        """
        self.drain()
        load_weights(self._runner.executors, weights)

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The newest trained weights that this process holds, by name; not copies."""
        for e in self._runner.executors:
            for held in e.weights.values():
                newest = held.version_at(held.newest).tensors
                yield from ((n, newest[n]) for n in held.trained)

    def save(self, directory: Path | str) -> None:
        """Write a checkpoint in the background; all ranks call.

        Weights, optimizer, learning-rate schedule and counts; any number of stages can go on,
        unless microbatches are under way, which are saved too. It drains before if one of these
        has another shape than the plan's, or if parts run eagerly.
        """
        if eager_parts(self.plan.graph) or any(
            any(s.shapes) for s in self._runner.executors[0].rounds.shares.values()
        ):
            self.drain()
        self._checkpoints(Path(directory)).save()

    def resume(self, directory: Path | str) -> int:
        """Go on from the newest good checkpoint in a directory; the number of rounds it had."""
        return self._checkpoints(Path(directory)).resume()

    def save_pretrained(self, model: Any, directory: Path | str) -> None:
        """Write the weights as ``model.save_pretrained`` does (transformers); all ranks call."""
        weights = self.state_dict()
        if weights is not None:
            model.save_pretrained(directory, state_dict=weights)

    def _checkpoints(self, directory: Path) -> Checkpoints:
        if directory.exists() and not directory.is_dir():
            raise PlanError("no directory of checkpoints", got=directory)
        if directory not in self._saved:
            executors = self._runner.executors
            self._saved[directory] = Checkpoints(directory, executors, timeout=self._timeout)
        return self._saved[directory]

    def _inputs(self, number: int) -> Inputs:
        """The inputs of a microbatch, counted over all rounds; a stand-in where there is none."""
        if not self._batch:
            raise PlanError(
                "this rank's stages read inputs, but it was given no batch",
                where=f"rank {self.rank}",
            )
        place = number - self._active.executors[0].microbatch
        return self._batch[place if place < len(self._batch) else self._stand_in]

    def _take(
        self, batch: Batch | None, compiled: Callable[[Shape], tuple[int, list[Count]]]
    ) -> Shares:
        """Split a batch and find out, on all ranks, how much each microbatch counts."""
        self._batch = [] if batch is None else self._splitter.split(batch)
        marks = [[shape_of(m), [mark(t, _MOST) for t in m.values()]] for m in self._batch]
        marked = exchange(marks or None)
        known = [t for t in marked if t is not None]
        if not known:
            raise PlanError("no rank was given a batch")
        check_same("the batch", [t and _describe(t) for t in marked], _SAME_DATA)
        shapes = [tuple((n, tuple(s)) for n, s in shape) for shape, _ in known[0]]
        compiled_for = [compiled(shape) for shape in shapes]
        pairs = zip(self._batch, compiled_for, strict=False)
        counts = [[float(count(m)) for count in counters] for m, (_, counters) in pairs]
        everywhere = exchange(counts or None)
        check_same("how much microbatches count", [c and str(c) for c in everywhere], _SAME_DATA)
        counted = weights_of(next(c for c in everywhere if c is not None))
        if not any(counted):
            raise PlanError("no microbatch of the batch has a valid target")
        return self._shares(counted, [number for number, _ in compiled_for])

    def _shares(self, counted: Sequence[float], shapes: Sequence[int]) -> Shares:
        self._present, self._stand_in = len(counted), next(k for k, c in enumerate(counted) if c)
        left = self.plan.order.microbatches - len(counted)
        return Shares((*counted, *[0.0] * left), (*shapes, *[shapes[self._stand_in]] * left))

    def _counts_of(self, graph: Graph) -> list[Count]:
        return [self._weight] if self._weight else counts_of(graph, self._splitter.rows_of)

    def _training_shape(self, shape: Shape) -> tuple[int, list[Count]]:
        """The number of a shape, compiled now if it is new; and what counts its targets."""
        if not self._shapes:
            self._shapes[self._splitter.compiled] = 0, self._counts_of(self.plan.graph)
        if shape not in self._shapes:
            self._check_model()
            program = self._retraced.plan_training(self._splitter.draw(shape))
            numbers = [e.add_shape(program) for e in self._runner.executors]
            self._shapes[shape] = numbers[0], self._counts_of(program.plan.graph)
        return self._shapes[shape]

    def _check_model(self) -> None:
        """See once, before a module is traced again, that the plan was made of it."""
        if not self._compared:
            self._retraced.check_model(self._splitter.draw(self._splitter.compiled))
            self._compared = True

    def _evaluation_shape(self, shape: Shape) -> tuple[int, list[Count]]:
        """The number of a shape among those for evaluation, and what counts its targets."""
        if shape not in self._evaluations:
            self._check_model()
            inputs, microbatches = self._splitter.draw(shape), self.plan.order.microbatches
            self._evaluations[shape] = self._retraced.plan_evaluation(inputs, microbatches)
        program = self._evaluations[shape]
        return list(self._evaluations).index(shape), self._counts_of(program.plan.graph)

    def _outputs(self, runner: Runner, result: Result) -> Tensors:
        named = {f"{m:09} {n}": t for (m, n), t in result.outputs.items()}
        if not any(exchange(bool(named))):
            return {}
        found = runner.outputs(named)
        parts: dict[str, list[torch.Tensor]] = {}
        for key in sorted(found or {}):
            m, name = key.split(" ", 1)
            if found and int(m) < self._present:
                parts.setdefault(name, []).append(found[key])
        return {n: torch.cat(p) if p[0].dim() else torch.stack(p) for n, p in parts.items()}


def _describe(microbatches: list[Any]) -> str:
    """What a rank was given, in words, and a digest of it."""
    shapes = ", ".join(f"{name} {shape}" for name, shape in microbatches[0][0])
    return f"{len(microbatches)} microbatches ({shapes}; {digest_of(microbatches)})"
