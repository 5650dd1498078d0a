"""How the process's allocator treats memory that is freed.

By default glibc gives freed memory back to the system, and takes it anew, page by page, with every
round: a tenth of a step under GPipe, where the saved values of all microbatches come and go. The
caching allocators of GPUs keep it, for the same reason.
"""

import ctypes

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
