"""Every name of torch that is not public API, in one place. Tested with torch 2.13."""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from itertools import accumulate
from traceback import FrameSummary, StackSummary
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx, nn
from torch._export import utils
from torch._export.utils import _is_cia_op, _is_preservable_cia_op, _materialize_cpp_cia_ops
from torch._library.custom_ops import OPDEFS
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from torch.export import exported_program
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.proxy import _STACK_TRACE_ANCHORS
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

__all__ = [  # what is torch's own
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "without_modes",
]

ON_CPUS, FLASH, EFFICIENT = (
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in ("flash_attention_for_cpu", "flash_attention", "efficient_attention")
)
ON_CPUS_BACKWARD, FLASH_BACKWARD, EFFICIENT_BACKWARD = (
    getattr(torch.ops.aten, f"{op.name().removeprefix('aten::')}_backward").default
    for op in (ON_CPUS, FLASH, EFFICIENT)
)
"""Fused attention of CPUs, and the two of GPUs."""
BATCH_NORMS = (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,  # noqa: SLF001
)
below_autograd = torch._C._AutoDispatchBelowAutograd  # noqa: SLF001
"""A context in which ops skip autograd, the level at which composite ops are taken apart."""

grad_mode_region = torch.ops.higher_order.wrap_with_set_grad_enabled
"""What `torch.export` leaves of a no-grad region: ``(enabled, body, *operands)``."""

autocast_region = torch.ops.higher_order.wrap_with_autocast
"""What it leaves of an autocast region: ``(device, dtype, enabled, cache, body, *operands)``."""

set_grad_enabled = torch._C._set_grad_enabled  # noqa: SLF001
"""What every change of the grad mode calls, ``torch.no_grad`` too."""

UNKNOWN_WHEN_FAKE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
"""What an op raises on fake tensors whose result does not follow from types."""


def is_mutable(op: OpOverload) -> bool:
    """Whether the op's schema writes to one of its arguments."""
    return bool(op._schema.is_mutable)  # noqa: SLF001


def graph_module(graph: fx.Graph, title: str) -> fx.GraphModule:
    """A module of a class called ``title``; its Python is written when it is first called."""
    return _LazyGraphModule({}, graph, title)


def namespace_of(op: OpOverload) -> str:
    """The library that the op belongs to: ``aten``, ``prims``, ``pipec``, ..."""
    return str(op.namespace)


def argument_names_and_defaults(op: OpOverload) -> dict[str, Any]:
    """The op's arguments in order, each with its default; None where it has none."""
    return {a.name: a.default_value for a in op._schema.arguments}  # noqa: SLF001


@cache
def is_view(op: OpOverload) -> bool:
    """Whether a result shares memory with the first argument, of ``unsafe_chunk`` unsaid."""
    shared = (r.alias_info for r in op._schema.returns)  # noqa: SLF001
    return any(a and not a.is_write for a in shared) or op.name().startswith("aten::unsafe_")


def is_composite(op: OpOverload) -> bool:
    """Whether the op is defined by other ops (``linear``, ``matmul``, ``einsum``)."""
    return bool(_is_cia_op(op))


def must_decompose(op: OpOverload) -> bool:
    """Whether the op is a composite that may alias or change its arguments (``to``, ``chunk``)."""
    return bool(_is_cia_op(op)) and not _is_preservable_cia_op(op)


def has_rule_of_autocast(op: OpOverload, device: str) -> bool:
    """Whether autocast casts the op's arguments, and not those of the ops that it is made of."""
    key = f"Autocast{device.upper()}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))  # noqa: SLF001


def in_dispatcher(op: OpOverload) -> bool:
    """Whether the dispatcher knows the op; TorchScript's own operators are unknown to it."""
    return bool(torch._C._dispatch_has_kernel(op.name()))  # noqa: SLF001


def defining_module(op: OpOverload) -> str | None:
    """The Python module that made a custom op; None where it was not made in Python."""
    found = OPDEFS.get(op.name().split(".")[0])
    return None if found is None else str(found._init_fn.__module__)  # noqa: SLF001


def graph_being_traced() -> fx.Graph:
    """The graph that the running `make_fx` is writing."""
    mode = proxy_tensor.get_proxy_mode()
    assert mode is not None
    graph: fx.Graph = mode.tracer.graph
    return graph


def add_each(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    """New tensors: the sums of two lists, element by element."""
    return list(torch._foreach_add(a, b))  # noqa: SLF001


def add_each_(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    """Add to each tensor of the first list that of the second."""
    torch._foreach_add_(a, b)


def fake_kernel(op: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: ``kernel(mode, *args)`` gives the fake results of an op that torch decomposes.

    Where it returns None, the op is decomposed, or does what torch has for it, as ever.
    """
    decomposed = torch._decomp.decomposition_table[op]  # noqa: SLF001
    before = op_implementations_dict.pop(op, None)

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(mode: FakeTensorMode, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
            """The kernel's result, or that of the decomposition."""
            result = kernel(mode, *args, **kwargs)
            if result is not None:
                return result
            if before is not None:
                return before(mode, op, *args, **kwargs)
            with mode:
                return decomposed(*args, **kwargs)

        register_op_impl(op)(run)
        # an op that is listed here is not decomposed before
        torch._decomp.meta_table[op] = run  # noqa: SLF001
        return kernel

    return register


def keep_busy(cycles: int) -> None:
    """Let the current stream of the current GPU do nothing for so many cycles of its clock."""
    torch.cuda._sleep(cycles)  # noqa: SLF001


def fake_like(meta: torch.Tensor, device: torch.device, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor on ``device`` with the type of ``meta``; a tenth of the cost of a fake op."""
    return FakeTensor(mode, meta, device)


def gradient_hooks(module: nn.Module, beside: Collection[nn.Module] = ()) -> list[str]:
    """Names of the parts and parameters of a model that have hooks on their gradients."""
    out = {id(x) for m in beside for x in (*m.modules(), *m.parameters())}
    kinds = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    held = [*module.named_modules(), *module.named_parameters()]
    found = [n for n, x in held if id(x) not in out and any(getattr(x, k, None) for k in kinds)]
    return [name or "the model" for name in found]


def later_hooks(module: nn.Module) -> list[str]:
    """Names of the parameters with hooks that run once their gradient is accumulated."""
    held = module.named_parameters()
    return [n for n, p in held if getattr(p, "_post_accumulate_grad_hooks", None)]


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anything is called in place of a step of this optimizer, or beside one of any."""
    own = vars(optimizer)
    mine = [own[f"_optimizer_step_{when}_hooks"] for when in ("pre", "post")]
    return any([*mine, _global_optimizer_pre_hooks, _global_optimizer_post_hooks, "step" in own])


def gradient_hooks_of(parameter: torch.Tensor) -> list[Callable[..., Any]]:
    """What `Tensor.register_hook` has put on a parameter."""
    return list((parameter._backward_hooks or {}).values())  # noqa: SLF001


def count_writes(tensor: torch.Tensor) -> int:
    """How often the tensor has been written to."""
    return int(tensor._version)  # noqa: SLF001


@contextmanager
def enable_autograd() -> Iterator[None]:
    """Let autograd watch what runs inside the kernel of an op, which is below it otherwise."""
    native, excluded = torch._C, torch._C._dispatch_tls_local_exclude_set()  # noqa: SLF001
    keys = "AutogradFunctionality AutogradOther AutogradNestedTensor ADInplaceOrView"
    for key in keys.split():
        excluded = excluded.remove(getattr(native.DispatchKey, key))
    included = native._dispatch_tls_local_include_set()  # noqa: SLF001
    with native._ForceDispatchKeyGuard(included, excluded):  # noqa: SLF001
        yield


def storage_key(tensor: torch.Tensor) -> int:
    """A number that tensors share if and only if they share memory, as long as it is held."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def measure_allocation(run: Callable[[], Any]) -> tuple[Any, int]:
    """Run something on the CPU: its result, and the most bytes that torch's allocator lent it.

    By torch's profiler, which sees what kernels take for themselves too. Takes some 2 ms more.
    Where a user's profiler runs already, no second one may: then 0.
    """
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
        return run(), 0
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else each start writes to stderr
    with profile(profile_memory=True) as watch:
        found = run()
    result: Any = watch.kineto_results
    events = [e for e in result.events() if e.name() == MEMORY_EVENT_NAME]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return found, max(accumulate(changes, initial=0))


def _holders(tensors: list[torch.Tensor], place: int) -> tuple[int, int, int]:
    """Of a tensor in a list: who refers to it in Python, in C++, and to its memory."""
    return (
        sys.getrefcount(tensors[place]),
        tensors[place]._use_count(),  # type: ignore[attr-defined]  # noqa: SLF001
        torch._C._storage_Use_Count(storage_key(tensors[place])),  # noqa: SLF001
    )


def is_held_once(tensors: list[torch.Tensor], place: int) -> bool:
    """Whether nothing but this list holds a tensor or another one of the same memory."""
    return _holders(tensors, place) == _holders([torch.empty(1)], 0)


@contextmanager
def swapped(holder: Any, **new: object) -> Iterator[None]:
    """Inside the block, attributes have other values."""
    before = {name: getattr(holder, name) for name in new}
    try:
        for name, value in new.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


def _forwards() -> StackSummary:
    """Frames of ``forward``, and of functions that torch is told to note; innermost last."""
    found, frame = [], inspect.currentframe()
    while frame := frame and frame.f_back:
        place = frame.f_code.co_filename, frame.f_code.co_name
        if place[1] == "forward" or place in _STACK_TRACE_ANCHORS:
            found.append(FrameSummary(place[0], frame.f_lineno, place[1], lookup_line=False))
    return StackSummary.from_list(found[::-1])


@lru_cache(1)
def _translations(opset: int, ops: int) -> Any:
    """How torch's exporter writes ops, of which there are ``ops``; to read it takes 0.7 seconds."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry.from_torchlib(opset)


def export_onnx(program: torch.export.ExportedProgram, opset: int) -> Any:
    """The `onnx_ir.Model` that `torch.onnx.export` makes of a program, not optimised.

    Raises:
        torch.onnx.errors.OnnxExporterError: The exporter has no translation for an operation.
    """
    from torch.onnx._internal.exporter import _core

    table = _translations(opset, len(torch._C._dispatch_get_all_op_names()))  # noqa: SLF001
    with quick_tracing():
        return _core.export(
            program, registry=table, opset_version=opset, verbose=False, optimize=False
        ).model


@contextmanager
def _in_force(table: dict[OpOverload, Any]) -> Iterator[None]:
    """What torch does to composite ops while it decomposes.

    Unlike torch it leaves no op without a rule on fake tensors that had one.
    """
    rules = {op: op_implementations_dict[op] for op in table if op in op_implementations_dict}
    try:
        with _override_composite_implicit_decomp(table):
            yield
    finally:
        op_implementations_dict.update(rules)


@contextmanager
def quick_tracing() -> Iterator[None]:
    """Trace and decompose as torch does in less time: half of it was for looking at all ops.

    Graphs become Python when they are called; few ever are.
    """
    stack = SimpleNamespace(extract=lambda: SimpleNamespace(summary=_forwards))
    with (
        _use_lazy_graph_module(should_use=True),
        swapped(torch.fx.proxy, CapturedTraceback=stack),
        swapped(proxy_tensor, _extract_tensor_metadata=lambda _: None),  # what else ``val`` says
        swapped(exported_program, _override_composite_implicit_decomp=_in_force),
        swapped(utils, _materialize_cpp_cia_ops=cache(_materialize_cpp_cia_ops)),
    ):
        yield


def mute_logs() -> AbstractContextManager[None]:
    """Keep torch from logging an exception on fake tensors that an error is about to report."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    return swapped(logger, disabled=True)  # a level would empty all loggers' caches
