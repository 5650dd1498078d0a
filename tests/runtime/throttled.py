"""A CPU whose copies to and from host memory run beside compute, at a bandwidth that is told."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipec.runtime.device import Copied, Device, Fetched, Moment
from pipec.runtime.tensors import TensorType, buffer_bytes, pack, parts, places_of


@dataclass
class Copying:
    """Stands for the event behind a copy.

    Attributes:
        span: When it began and ended.
    """

    span: "Future[tuple[float, float]]"

    def query(self) -> bool:
        return self.span.done()

    def synchronize(self) -> None:
        self.span.result()


@dataclass
class End:
    """The begin or the end of a copy, as a moment."""

    span: "Future[tuple[float, float]]"
    which: int


class Throttled(Device):
    """What it computes takes a given time, so that a busy machine tells the same.

    Args:
        bandwidth: Bytes per second of copies out, and of copies back.
        seconds: Of every forward and backward.
    """

    def __init__(self, bandwidth: float, seconds: float) -> None:
        super().__init__(torch.device("cpu"))
        self.bandwidth, self.compute_seconds = bandwidth, seconds
        self._lanes = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    @contextmanager
    def count_time(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        _sleep_until(begin + self.compute_seconds)

    def seconds(self, moment: Any) -> float:
        return moment.span.result()[moment.which] if isinstance(moment, End) else moment

    def to_host(self, tensors: Sequence[Tensor], types: Sequence[TensorType]) -> Copied:
        buffer, read = self.room(buffer_bytes(types)), list(tensors)
        done = self._begin(0, types, lambda: pack(tensors, types, buffer))
        return Copied(buffer, done, read)

    def from_host(
        self, copy: Copied, types: Sequence[TensorType], left: Copied | None = None
    ) -> Fetched:
        found = places_of(left.read if left else [], types, self.torch)

        def back() -> None:
            for place, part in zip(found, parts(copy.buffer, types), strict=True):
                place.copy_(part)
            self.host.give(copy.buffer)

        return Fetched(found, self._begin(1, types, back, (copy, left)))

    def wait(self, copy: Copied | Fetched) -> None:
        if copy.done is not None:
            copy.done.synchronize()
        if isinstance(copy, Copied):
            copy.read.clear()

    def _begin(
        self,
        lane: int,
        types: Sequence[TensorType],
        move: Callable[[], object],
        behind: Sequence[Copied | None] = (),
    ) -> Any:
        """Queue a copy; it begins once those before it on its lane, and those told, have ended."""

        def run() -> tuple[float, float]:
            for copy in behind:
                if copy is not None:
                    copy.wait()
            begin = time.perf_counter()
            move()
            _sleep_until(begin + sum(t.nbytes for t in types) / self.bandwidth)
            return begin, time.perf_counter()

        span = self._lanes[lane].submit(run)
        ends: Any = End(span, 0), End(span, 1)
        self.copied = ends
        return Copying(span)


def _sleep_until(moment: Moment) -> None:
    assert isinstance(moment, float)
    time.sleep(max(moment - time.perf_counter(), 0.0))
