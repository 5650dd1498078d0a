"""Memory of the host: what waits there for a device, and how freed memory is treated.

What a CPU offloads lies in an arena of its own, mapped from the system apart from what torch
allocates: so what the device holds can be counted, and falls when a value leaves.

By default glibc gives freed memory back to the system, and takes it anew, page by page, with every
round: a tenth of a step under GPipe, where the saved values of all microbatches come and go. The
caching allocators of GPUs keep it, for the same reason.
"""

import ctypes
import mmap

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``, by glibc's ``malloc.h``."""
_LARGEST = 32 << 20
"""Bytes of the largest blocks that glibc takes from its heap; others it always gives back."""


def keep_freed_memory() -> bool:
    """Keep what is freed for the next allocation, in this whole process, until it ends.

    Returns:
        Whether there is such an allocator here: glibc's.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


class HostArena:
    """Buffers in memory that is mapped for them alone; given ones are taken again.

    Attributes:
        peak: Most bytes that were taken at once.

    Example:
        >>> arena = HostArena()
        >>> buffer = arena.take(100)
        >>> arena.give(buffer)
        >>> arena.held, arena.peak
        (0, 100)
    """

    def __init__(self) -> None:
        self.peak = 0
        self._taken: dict[int, int] = {}
        self._free: dict[int, list[torch.Tensor]] = {}

    @property
    def held(self) -> int:
        """Bytes that are taken now."""
        return sum(self._taken.values())

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of so many bytes, with unspecified contents."""
        free = self._free.get(nbytes)
        if free:
            made = free.pop()
        else:
            made = torch.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=torch.uint8)[:nbytes]
        self._taken[made.data_ptr()] = nbytes
        self.peak = max(self.peak, self.held)
        return made

    def give(self, buffer: torch.Tensor, *, again: bool = True) -> None:
        """Take a buffer back, and what is none of the arena's not.

        Args:
            buffer: What `take` gave.
            again: Whether nobody reads it any more; else it is unmapped when nobody does.
        """
        nbytes = self._taken.pop(buffer.data_ptr(), None)
        if nbytes is not None and again:
            self._free.setdefault(nbytes, []).append(buffer)
