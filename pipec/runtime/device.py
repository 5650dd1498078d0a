"""What differs between kinds of device: random numbers, time, host memory, memory in use.

```text
            CPU                          CUDA
copies      to memory mapped for them    pinned host buffers, a stream out and one back, events
time        wall clock                   events on the streams, read at the end of a round
```
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from pipec.errors import BackendError
from pipec.runtime.host_memory import HostArena
from pipec.runtime.tensors import TensorType, buffer_bytes, pack, parts, places_of


@dataclass(frozen=True)
class Copied:
    """Packed tensors on their way to host memory, or there.

    Attributes:
        buffer: The buffer to copy to.
        done: Recorded behind the copy; None where copies end before they return.
        read: What it reads, held until what is computed waits for the copy.
    """

    buffer: torch.Tensor
    done: torch.cuda.Event | None = None
    read: list[torch.Tensor] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the buffer may be read."""
        return self.done is None or self.done.query()

    def wait(self) -> torch.Tensor:
        """The buffer, once it may be read."""
        if self.done is not None:
            self.done.synchronize()
        return self.buffer


@dataclass(frozen=True)
class Fetched:
    """Tensors on their way from host memory, or there.

    Attributes:
        parts: The copies, as `restore` takes them.
        done: Recorded behind the copy; None where it has ended.
    """

    parts: list[torch.Tensor]
    done: torch.cuda.Event | None = None


Moment = float | torch.cuda.Event


class Device:
    """A device that computes at once when it is called: a CPU.

    Attributes:
        copied: When the last copy to or from host memory began and ended, where it runs by itself.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch = torch_device
        self.host = HostArena()
        self.copied: tuple[Moment, Moment] | None = None
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
    def count_time(self) -> Iterator[None]:
        """Count what is computed inside."""
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin

    def busy(self) -> float:
        """Seconds computed since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def set_clock(self) -> None:
        """Before the first `mark_moment` of a round."""

    def mark_moment(self) -> Moment:
        """When all is computed that was begun before."""
        return time.perf_counter()

    def seconds(self, moment: Moment) -> float:
        """By ``time.perf_counter``; the moment must be past."""
        assert isinstance(moment, float)
        return moment

    def room(self, nbytes: int) -> torch.Tensor:
        """A buffer in host memory, with unspecified contents; `host` takes it back."""
        return self.host.take(nbytes)

    def to_host(self, tensors: Sequence[torch.Tensor], types: Sequence[TensorType]) -> Copied:
        """Start a copy of tensors, packed, to host memory; the caller gives them away."""
        return Copied(pack(tensors, types, self.room(buffer_bytes(types))))

    def from_host(
        self, copy: Copied, types: Sequence[TensorType], left: Copied | None = None
    ) -> Fetched:
        """Start the copy back, each tensor to memory of its own: I lets go what W does not read.

        Args:
            copy: In host memory; the caller gives it away.
            types: What was packed.
            left: The copy to host memory of another set of the same values: what it reads is
                written, once it has ended, and is not held any more.
        """
        found = [part.clone() for part in parts(copy.buffer, types)]
        self.host.give(copy.buffer)
        return Fetched(found)

    def wait(self, copy: Copied | Fetched) -> None:
        """What is computed next may read what was copied, or write what was read."""


class CudaDevice(Device):
    """A GPU: copies run beside compute and beside each other, on streams of their own.

    Memory is taken and given back in the order of the compute stream. So what a copy out reads is
    held until that stream waits for the copy, which `Moves` asks for where the timeline has it end,
    or until a copy back takes its place.
    """

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._out, self._back = torch.cuda.Stream(torch_device), torch.cuda.Stream(torch_device)
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.set_clock()

    @property
    def _generators(self) -> list[torch.device]:
        return [self.torch]

    def _event(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream or torch.cuda.current_stream(self.torch))
        return event

    @contextmanager
    def count_time(self) -> Iterator[None]:
        """Mark what is computed inside by two events on the compute stream."""
        begin = self._event()
        yield
        self._spans.append((begin, self._event()))

    def busy(self) -> float:
        """Seconds between the marks; waits until all of them are reached."""
        torch.cuda.synchronize(self.torch)
        milliseconds = [begin.elapsed_time(end) for begin, end in self._spans]
        self._spans.clear()
        return float(sum(milliseconds)) / 1e3

    def set_clock(self) -> None:
        """Note where the compute stream is now: events only tell how far they are apart."""
        torch.cuda.synchronize(self.torch)
        self._origin, self._begin = self._event(), time.perf_counter()

    def mark_moment(self) -> Moment:
        """When the compute stream gets here."""
        return self._event()

    def seconds(self, moment: Moment) -> float:
        """By ``time.perf_counter``; the moment must be past."""
        assert isinstance(moment, torch.cuda.Event)
        return self._begin + float(self._origin.elapsed_time(moment)) / 1e3

    def room(self, nbytes: int) -> torch.Tensor:
        """Pinned, so that copies can run beside compute."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def to_host(self, tensors: Sequence[torch.Tensor], types: Sequence[TensorType]) -> Copied:
        """Copy each tensor to its place in pinned memory, once it is written."""
        host = self.room(buffer_bytes(types))
        self._out.wait_stream(torch.cuda.current_stream(self.torch))
        begin = self._event(self._out)
        with torch.cuda.stream(self._out):
            pack(tensors, types, host, waits=False)
        self.copied = begin, (done := self._event(self._out))
        return Copied(host, done, list(tensors))

    def from_host(
        self, copy: Copied, types: Sequence[TensorType], left: Copied | None = None
    ) -> Fetched:
        """Copy back, once the first copy has ended, and that which reads where it comes to."""
        sources = parts(copy.buffer, types)
        found = places_of(left.read if left else [], types, self.torch)
        self._back.wait_stream(torch.cuda.current_stream(self.torch))
        for before in (copy, left):
            if before is not None and before.done is not None:
                self._back.wait_event(before.done)
        begin = self._event(self._back)
        with torch.cuda.stream(self._back):
            for place, source in zip(found, sources, strict=True):
                place.copy_(source, non_blocking=True)
        self.copied = begin, (done := self._event(self._back))
        return Fetched(found, done)

    def wait(self, copy: Copied | Fetched) -> None:
        """Let the compute stream, not the caller, wait for the copy."""
        if copy.done is not None:
            torch.cuda.current_stream(self.torch).wait_event(copy.done)
        if isinstance(copy, Copied):
            copy.read.clear()


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
    split_gpu_blocks()
    return CudaDevice(torch.device("cuda", found.index or 0))


def split_gpu_blocks() -> None:
    """Let CUDA's allocator give out what is asked for, unless its settings are the user's own.

    By default a block may be larger by up to 1 MiB than what it is taken for, which is more than a
    plan counts. It is too late once the process has allocated on a GPU.
    """
    if not os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


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
