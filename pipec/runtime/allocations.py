"""Counting what an executor's device holds: by the allocator on a GPU, op by op on a CPU."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from pipec.graph.kernels import kernel_key, layout
from pipec.graph.torch_private import (
    OpOverload,
    TorchDispatchMode,
    measure_allocation,
    namespace_of,
    storage_key,
    tree_leaves,
    tree_map,
)
from pipec.runtime.executor import Executor

_NOT_PROFILED = {"profiler", "c10d", "_c10d_functional"}
"""Annotations, which no profile may begin within, and communication, which outlives its call: its
thread would write to a profile that has ended."""


@contextmanager
def counting(executor: Executor) -> Iterator["CudaAllocator | Allocations"]:
    """Count on an executor's device, its weights included."""
    if executor.compute.torch.type == "cuda":
        with CudaAllocator(executor.compute.torch) as memory:
            yield memory
        return
    held = (w.version_at(v).tensors.values() for w in executor.weights.values() for v in w.versions)
    with Allocations(t for tensors in held for t in tensors) as found:
        yield found


def _note(
    kernels: dict[str, int], func: OpOverload, arguments: Sequence[object], lent: int, made: int
) -> None:
    """Note the bytes that an op was lent, if they are more than it made."""
    if lent > made:
        key = kernel_key(func, arguments)
        kernels[key] = max(lent, kernels.get(key, 0))


class CudaAllocator(TorchDispatchMode):
    """Bytes that the caching allocator has given out and not yet got back.

    A block that another stream still reads counts until it is done, though nobody holds it. While
    it is entered, what kernels take for themselves is found op by op.

    Attributes:
        kernels: As `Allocations` has them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: dict[str, int] = {}
        self._device, self._before = device, 0

    @property
    def peak(self) -> int:
        """Most bytes held since the last reset."""
        return max(self._before, self._count("peak"))

    def reset(self) -> int:
        """Forget the peak; the bytes that are held now."""
        self._before = 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return self._count("current")

    def _count(self, which: str) -> int:
        return int(torch.cuda.memory_stats(self._device)[f"active_bytes.all.{which}"])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and note what its kernel takes beside what it makes."""
        del types
        peak = self.peak
        held = self.reset()
        result = func(*args, **(kwargs or {}))
        lent, made = self._count("peak") - held, self._count("current") - held
        _note(self.kernels, func, tree_leaves((args, kwargs or {})), lent, made)
        self._before = peak
        return result


class Allocations(TorchDispatchMode):
    """Bytes of all tensors that ops make inside, and of those given; shared memory counts once.

    While an op runs, what its kernel takes of torch's allocator for itself counts too, such as a
    convolution's operands in oneDNN's layout; the same for all calls on operands of one layout.

    Attributes:
        live: Bytes that are held now.
        peak: Most bytes held since the last reset.
        kernels: `kernel_key` to the most bytes that an op took, of those whose kernel took more
            than it made.

    What a kernel asks malloc for by itself is not seen. Costs some 20 µs per op, and 2 ms for the
    first of its kind.

    Example:
        >>> with Allocations() as found:
        ...     x = torch.ones(1000)
        ...     y = (x + x).sum()
        >>> found.peak, found.live
        (8004, 4004)
    """

    def __init__(self, held: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._lent: dict[str, int] = {}
        self.kernels: dict[str, int] = {}
        self.live = self.peak = 0
        self._add(held, set())

    def reset(self) -> int:
        """Forget the peak; the bytes that are held now."""
        self.peak = self.live
        return self.peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op and count what it makes."""
        del types
        result, lent = self._run(func, args, kwargs or {})
        arguments = tree_leaves((args, kwargs or {}))
        operands = [t for t in arguments if isinstance(t, torch.Tensor)]
        given, before = {storage_key(t) for t in operands}, self.live
        self._add((t for t in tree_leaves(result) if isinstance(t, torch.Tensor)), given)
        self.peak = max(self.peak, before + lent)
        _note(self.kernels, func, arguments, lent, self.live - before)
        return result

    def _run(
        self, func: OpOverload, args: Sequence[object], kwargs: dict[str, Any]
    ) -> tuple[Any, int]:
        """What an op gives, and the most bytes that its kernel took meanwhile."""
        key = f"{func}{tree_map(layout, (args, kwargs))}"
        if namespace_of(func) in _NOT_PROFILED:
            self._lent[key] = 0
        if key in self._lent:
            return func(*args, **kwargs), self._lent[key]
        result, self._lent[key] = measure_allocation(partial(func, *args, **kwargs))
        return result, self._lent[key]

    def _add(self, tensors: Iterable[torch.Tensor], known: set[int]) -> None:
        for tensor in tensors:
            key = storage_key(tensor)
            if key not in known and key not in self._live:
                self._hold(key, tensor.untyped_storage())
        self.peak = max(self.peak, self.live)

    def _hold(self, key: int, storage: torch.UntypedStorage) -> None:
        nbytes = storage.nbytes()
        self.live += nbytes

        def forget(_: object) -> None:
            del self._live[key]
            self.live -= nbytes

        self._live[key] = weakref.ref(storage, forget)
