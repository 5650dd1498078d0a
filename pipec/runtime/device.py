"""What differs between kinds of device: random numbers, time, host memory, memory in use.

```text
            CPU                          CUDA
copies      to memory mapped for them    pinned host buffers, a copy stream, events
time        wall clock                   events on the compute stream, read at the end of a round
```
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pipec.errors import BackendError
from pipec.runtime.host_memory import HostArena
from pipec.runtime.tensors import TensorType, pack, packed_bytes


@dataclass(frozen=True)
class Copied:
    """A buffer on its way to host memory or back, or there.

    Attributes:
        buffer: Where it goes.
        done: Recorded behind the copy; None where copies end before they return.
    """

    buffer: torch.Tensor
    done: torch.cuda.Event | None = None

    @property
    def ended(self) -> bool:
        """Whether the buffer may be read."""
        return self.done is None or self.done.query()

    def wait(self) -> torch.Tensor:
        """The buffer, once it may be read."""
        if self.done is not None:
            self.done.synchronize()
        return self.buffer


class Device:
    """A device that computes when it is told to: a CPU.

    Args:
        torch_device: As torch calls it.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch = torch_device
        self.host = HostArena()
        self._seconds = 0.0

    @contextmanager
    def own_random(self) -> Iterator[None]:
        """What is drawn or seeded inside is not seen afterwards."""
        with torch.random.fork_rng(devices=self._generators):
            yield

    @property
    def _generators(self) -> list[torch.device]:
        return []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is computed inside."""
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin

    def busy(self) -> float:
        """Seconds computed since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def room(self, nbytes: int) -> torch.Tensor:
        """A buffer in host memory, with unspecified contents; `host` takes it back."""
        return self.host.take(nbytes)

    def to_host(self, tensors: Sequence[torch.Tensor], types: Sequence[TensorType]) -> Copied:
        """Start a copy of tensors, packed, to host memory; the caller gives them away."""
        return Copied(pack(tensors, types, self.room(packed_bytes(types))))

    def from_host(self, copy: Copied) -> Copied:
        """Start the copy back; the caller gives the copy in host memory away."""
        buffer = copy.buffer.clone()
        self.host.give(copy.buffer)
        return Copied(buffer)

    def wait(self, arriving: Copied) -> torch.Tensor:
        """The buffer, ready to be read by what is computed next."""
        return arriving.buffer


class CudaDevice(Device):
    """A GPU: copies run beside compute, on a stream of their own."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._copies = torch.cuda.Stream(torch_device)
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def _generators(self) -> list[torch.device]:
        return [self.torch]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Mark what is computed inside by two events on the compute stream."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._spans.append((begin, end))

    def busy(self) -> float:
        """Seconds between the marks; waits until all of them are reached."""
        torch.cuda.synchronize(self.torch)
        milliseconds = [begin.elapsed_time(end) for begin, end in self._spans]
        self._spans.clear()
        return float(sum(milliseconds)) / 1e3

    def room(self, nbytes: int) -> torch.Tensor:
        """Pinned, so that copies can run beside compute."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def to_host(self, tensors: Sequence[torch.Tensor], types: Sequence[TensorType]) -> Copied:
        """Pack on the device, and copy to pinned memory once that is written."""
        buffer = pack(tensors, types)
        host = self.room(buffer.nbytes)
        self._copies.wait_stream(torch.cuda.current_stream(self.torch))
        with torch.cuda.stream(self._copies):
            host.copy_(buffer, non_blocking=True)
        buffer.record_stream(self._copies)  # not handed out again before the copy has read it
        return Copied(host, self._copies.record_event())

    def from_host(self, copy: Copied) -> Copied:
        """Copy back; both copies share a stream, so this one starts after the first ended."""
        buffer = torch.empty(copy.buffer.shape, dtype=copy.buffer.dtype, device=self.torch)
        self._copies.wait_stream(torch.cuda.current_stream(self.torch))
        with torch.cuda.stream(self._copies):
            buffer.copy_(copy.buffer, non_blocking=True)
        buffer.record_stream(self._copies)
        return Copied(buffer, self._copies.record_event())

    def wait(self, arriving: Copied) -> torch.Tensor:
        """Let the compute stream, not the caller, wait for the copy."""
        if arriving.done is not None:
            torch.cuda.current_stream(self.torch).wait_event(arriving.done)
        return arriving.buffer


def device_of(name: str | torch.device) -> Device:
    """A device by torch's name: ``cpu``, ``cuda``, ``cuda:1``.

    Raises:
        BackendError: There is no such device here.
    """
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise BackendError("no such device", got=name, want="cpu, cuda or cuda:<n>") from error
    if found.type == "cpu":
        return Device(found)
    count = torch.cuda.device_count()
    if found.type != "cuda" or (found.index or 0) >= count:
        raise BackendError("no such device", got=name, want=f"cpu, or one of {count} of cuda")
    return CudaDevice(torch.device("cuda", found.index or 0))


def local_device(kind: str) -> str:
    """The name of this rank's device: ranks of one machine take its GPUs in turn.

    Args:
        kind: ``cpu``, ``cuda``, or ``auto`` for ``cuda`` where there is one.
    """
    count = torch.cuda.device_count()
    if kind == "cpu" or (kind == "auto" and not count):
        return "cpu"
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return f"cuda:{rank % count}" if count else kind


def backend_for(device: str) -> str:
    """What connects the ranks: gloo, with NCCL beside it where every rank has a GPU of its own.

    Several ranks on one GPU, which NCCL refuses, are connected by gloo through host memory.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = device.startswith("cuda") and ranks <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if own else "gloo"
