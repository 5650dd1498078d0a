"""Groups of real processes for tests: quick to start, with torchrun's restarts or without.

Ranks are forked from a server that has imported torch and pipec, so that a rank, or another
attempt of it, starts in a fraction of a second.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import IO, Any

import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipec.cli.main import main
from pipec.runtime import ranks as started

_ROOT = Path(__file__).parents[2]
_PATIENCE = 300.0
"""Seconds in which some rank must end, however busy the machine."""
PRELOADED = ["tests.runtime.ranks", "tests.runtime.jobs"]
"""What the server has imported when the first process is forked from it."""


def _server() -> ForkServerContext:
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.set_forkserver_preload(PRELOADED)
    return multiprocessing.get_context("forkserver")


def elastic(
    entry: Callable[..., Any], *args: object, ranks: int, restarts: int = 0
) -> dict[int, Any]:
    """What every rank's ``entry`` returned, under the agent that torchrun runs."""
    _server()
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        log_line_prefix_template=None,
    )
    kept = tempfile.tempdir
    get_temp_dir()  # of the server, which outlives this run
    try:
        with tempfile.TemporaryDirectory() as tempfile.tempdir:  # for the errors of ranks
            found: dict[int, Any] = elastic_launch(config, entry)(*args)
    finally:
        tempfile.tempdir = kept
        for number, handler in before.items():
            signal.signal(number, handler)
    return found


def alone(entry: Callable[..., None], *args: object, ranks: int, left: int = 0) -> list[int | None]:
    """Exit codes of ranks that nobody watches; None for those that were still running.

    As under torchrun, another process has the store where they meet. It listens before they start,
    so that no other process can take the port.

    Args:
        entry: Called in every rank.
        args: Its arguments.
        ranks: How many.
        left: As many may still run in the end; they are killed.
    """
    server = _server()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    names = {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "WORLD_SIZE": ranks}
    names["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    processes = [
        server.Process(target=_rank, args=(entry, args, {**names, "RANK": r})) for r in range(ranks)
    ]
    for p in processes:
        p.start()
    running = {p.sentinel for p in processes}
    while len(running) > left and (ended := wait(running, _PATIENCE)):
        running -= {e for e in ended if isinstance(e, int)}
    codes = [p.exitcode for p in processes]
    for p in processes:
        p.kill()
    return codes


def launch(
    words: Sequence[object], said: Path, folder: Path, *, forks: bool = False
) -> ForkServerProcess:
    """``pipec`` as a user types it in a folder; what it prints is in ``said``.

    With ``forks`` its ranks are forked from it, without another start of Python.
    """
    said.unlink(missing_ok=True)
    process = _server().Process(target=_command, args=([*map(str, words)], said, folder, forks))
    process.start()
    return process


def _command(words: list[str], said: Path, folder: Path, forks: bool) -> None:
    print_to(said, folder)
    path = f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    os.environ |= {"PYTHONPATH": path, "COLUMNS": "200"}  # of the ranks that it starts
    if forks:
        vars(started)["subprocess"] = SimpleNamespace(Popen=_Forked)
    sys.argv = ["pipec", *words]
    main()


def print_to(said: Path, folder: Path) -> None:
    """What this process prints from now on is in a file; it works in a folder."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.chdir(folder)


class _Forked:
    """A rank of ``pipec run``: what `subprocess.Popen` of the same command is to its launcher."""

    def __init__(
        self,
        words: list[str],
        env: dict[str, str],
        stderr: IO[bytes],
        preexec_fn: Callable[[], None],
    ) -> None:
        assert words[:4] == [sys.executable, "-P", "-m", "pipec"]
        kind = multiprocessing.get_context("fork")
        self._process = kind.Process(target=self._run, args=(words[4:], env, stderr, preexec_fn))
        self._process.start()

    @staticmethod
    def _run(
        words: list[str], env: dict[str, str], stderr: IO[bytes], first: Callable[[], None]
    ) -> None:
        first()
        os.dup2(stderr.fileno(), 2)
        os.environ |= env
        sys.argv = ["pipec", *words]
        main()

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.join()


def _rank(entry: Callable[..., None], args: tuple[Any, ...], names: dict[str, object]) -> None:
    os.environ |= {n: str(value) for n, value in names.items()}
    entry(*args)


class Death:
    """Kills this process at its n-th Python call, wherever that is, background threads included.

    Args:
        calls: n.
        log: A line that says where is appended here first.
        number: The signal.
    """

    def __init__(self, calls: int, log: Path, number: int = signal.SIGKILL) -> None:
        self._left, self._log, self._number = calls, log, number
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Begin to count."""
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event != "call":
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        code = frame.f_code
        with self._log.open("a") as log:
            log.write(f"{Path(code.co_filename).name}:{code.co_name}\n")
        os.kill(os.getpid(), self._number)
