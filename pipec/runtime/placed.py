"""Graphs that were traced on one kind of device, made to run on another.

```text
on a CPU                                   on a GPU
torch.zeros(..., device="cpu")             device="cuda:0"
fused attention of CPUs                    FlashAttention, or the memory-efficient kernel
statistics of a norm in half precision     GPUs make and read them in float32: cast
```

What a graph saves has the types that the plan says, wherever it runs.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pipec.errors import BackendError
from pipec.graph.arguments import bind
from pipec.graph.ir import op_name, tensors
from pipec.graph.torch_private import (
    BATCH_NORMS,
    EFFICIENT,
    EFFICIENT_BACKWARD,
    FLASH,
    FLASH_BACKWARD,
    ON_CPUS,
    ON_CPUS_BACKWARD,
    tree_map,
)

_CPU_ONLY = ("_for_cpu", "mkldnn")
"""Parts of the names of ops that only CPUs have."""
_WIDE = 16
"""Bytes of which rows are a multiple, in attention on a GPU."""
_FLASH_WIDTH = 256
"""Largest head of FlashAttention."""
_HALF = (torch.bfloat16, torch.float16)
_aten = torch.ops.aten
_NORMS = (_aten.native_layer_norm.default, *BATCH_NORMS)


def place_on(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A graph whose ops and whose new tensors are those of ``device``.

    Raises:
        BackendError: It holds a kernel that ``device`` does not have.
    """
    if device.type == "cpu":
        return module
    there = {n: _replace_on_gpu(n, device) for n in module.graph.nodes if n.op == "call_function"}
    foreign = [n for n in there if there[n] is None and any(p in op_name(n) for p in _CPU_ONLY)]
    if foreign:
        raise BackendError(
            "the graph was differentiated into a kernel that only CPUs have",
            where=type(module).__name__,
            got=f"{foreign[0].name}: {foreign[0].target}",
            hint="compile with --passes '...,differentiate{attention=math},...'",
        )
    names = {n.name: target for n, target in there.items() if target is not None}
    moved = copy.deepcopy(module)
    for node in moved.graph.nodes:
        node.target = names.get(node.name, node.target)
        node.args, node.kwargs = tree_map(
            lambda a: device if isinstance(a, torch.device) else a, (node.args, node.kwargs)
        )
    moved.recompile()
    return moved


def _replace_on_gpu(node: fx.Node, device: torch.device) -> Callable[..., Any] | None:
    """What a GPU runs in place of an op; None if it runs the op itself, or nothing for it."""
    if device.type != "cuda":
        return None
    if node.target in _NORMS:
        return _norm(node.target, tensors(node)[1].dtype)
    found = _ON_A_GPU.get(node.target)
    if found in (_attention, _attention_backward):
        args = bind(node)
        heads = [tensors(args[name])[0] for name in ("query", "key", "value")]
        fits = all(
            t.dtype in (torch.float32, *_HALF)
            and t.shape[1] == heads[0].shape[1]
            and t.shape[-1] * t.itemsize % _WIDE == 0
            for t in heads
        )
        return found if fits and not args["dropout_p"] else None
    return found


def _flashes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> bool:
    """Whether FlashAttention computes it, where there is no mask: three times as fast."""
    alike = query.shape[-1] == value.shape[-1] <= _FLASH_WIDTH
    return query.dtype in _HALF and alike and not (causal and query.shape[-2] != key.shape[-2])


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> Any:
    """A mask per head as the kernel reads it: each row begins at a multiple of 16 bytes."""
    if mask is None:
        return None
    columns = mask.shape[-1]
    wide = torch.nn.functional.pad(mask.to(query.dtype), (0, -columns % _WIDE))
    return wide[..., :columns].expand(*query.shape[:-1], key.shape[-2])


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    qkv, rows = (query, key, value), query.shape[-2]
    if attn_mask is None and _flashes(*qkv, causal=is_causal):
        out, logsumexp, *_ = FLASH(*qkv, dropout_p, is_causal, scale=scale)
    else:
        out, logsumexp, *_ = EFFICIENT(
            *qkv, _bias(attn_mask, query, key), True, dropout_p, is_causal, scale=scale
        )
    return out, logsumexp[..., :rows]  # filled up to a multiple of 32


def _attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    qkv = (query, key, value)
    draws = torch.empty(2, dtype=torch.int64, device=query.device)  # without dropout unread
    # the kernels take it for granted that all heads of a row are one behind the other
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    if attn_mask is None and _flashes(*qkv, causal=is_causal):
        return tuple(
            FLASH_BACKWARD(
                grad_out, *qkv, out, logsumexp.contiguous(), None, None, query.shape[-2],
                key.shape[-2], dropout_p, is_causal, draws, draws, scale=scale,
            )
        )  # fmt: skip
    sums = torch.nn.functional.pad(logsumexp, (0, -query.shape[-2] % 32), value=torch.inf)
    found = EFFICIENT_BACKWARD(
        grad_out, *qkv, _bias(attn_mask, query, key), out, sums.contiguous(), draws[0], draws[1],
        dropout_p, [True, True, True, False], is_causal, scale=scale,
    )  # fmt: skip
    return tuple(found[:3])


def _norm(op: Any, dtype: torch.dtype) -> Callable[..., Any]:
    """A norm whose mean and scale have the dtype that they have on a CPU."""

    def norm(*args: Any) -> tuple[torch.Tensor, ...]:
        out, mean, scale, *buffers = op(*args)
        return out, mean.to(dtype), scale.to(dtype), *buffers

    return norm


def _wide(op: Callable[..., Any], first: int) -> Callable[..., Any]:
    """A norm's backward whose mean and scale, its arguments from ``first`` on, come narrow."""

    def backward(*args: Any) -> Any:
        """The op, on statistics in float32."""
        two = (s.float() if s.dtype in _HALF else s for s in args[first : first + 2])
        return op(*args[:first], *two, *args[first + 2 :])

    return backward


_ON_A_GPU: dict[Any, Callable[..., Any]] = {
    ON_CPUS: _attention,
    ON_CPUS_BACKWARD: _attention_backward,
    _aten.native_layer_norm_backward.default: _wide(_aten.native_layer_norm_backward.default, 3),
    _aten.native_batch_norm_backward.default: _wide(_aten.native_batch_norm_backward.default, 5),
}
