"""Runs over several hosts whose ranks, agents or hosts are killed end with the bits of whole ones.

    python -m benchmarks.kills [--kills 20] [--seed 0] [--only 7]

A host is a network namespace with an address of its own on a bridge (root, `ip`). Each runs an
agent of torchrun, which is started again whenever it fails, as a cluster's scheduler does; all
write in one folder. In every run kill -9 hits, at a random moment, a rank, an agent without its
ranks, or a whole host. Then the run must end, and its weights be, bit for bit, those of an
undisturbed run in one process.
"""

import argparse
import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import load_file

from benchmarks._exit import positive
from benchmarks._ranks import ROOT

MODEL = """
import time

import torch
from torch import nn

def make():
    parts = [p for _ in range(4) for p in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())]
    return nn.Sequential(*parts, nn.Dropout(0.2), nn.Linear(16, 3)), torch.zeros(4, 16)

def loss():
    return nn.CrossEntropyLoss(), torch.zeros(4, dtype=torch.long)

def batch(number):
    time.sleep(0.005)
    g = torch.Generator().manual_seed(number)
    return {"input": torch.randn(4, 16, generator=g),
            "target": torch.randint(3, (4,), generator=g)}
"""
ROUNDS = 150
TRAIN = ("-q", "--rounds", str(ROUNDS), "--data", "model.py:batch", "--optimizer", "adamw:lr=0.01")
KEPT = ("--checkpoints", "saved", "--every", "5", "--timeout", "30", "--save", "end.safetensors")
HOSTS = {2: 2, 3: 1}
"""Hosts, and ranks on each."""
SECONDS = 300.0
"""In which a run must end, once something was killed."""
WIRE = "wire"
ALONE = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": WIRE}
KINDS = ("rank", "agent", "host")


@contextmanager
def network(hosts: int) -> Iterator[list[str]]:
    """Namespaces of hosts, joined by a bridge in a namespace of its own."""
    names = [f"pipec{os.getpid()}-{k}" for k in range(hosts + 1)]
    bridge, *others = names
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", bridge, "link", "add", "bridge", "up", "type", "bridge")
        for k, name in enumerate(others, 1):
            port = ("type", "veth", "peer", "name", f"port{k}", "netns", bridge)
            _ip("-n", name, "link", "add", WIRE, *port)
            _ip("-n", name, "address", "add", f"10.0.0.{k}/24", "dev", WIRE)
            _ip("-n", name, "link", "set", WIRE, "up")
            _ip("-n", bridge, "link", "set", f"port{k}", "up", "master", "bridge")
        yield others
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Host:
    """A host and its agent, which is started again when it fails.

    Attributes:
        name: Name of its namespace.
        command: Starts its agent.
        folder: Folder that all hosts write to.
        starts: How often the agent was started.
    """

    name: str
    command: list[str]
    folder: Path
    starts: int = 0
    agent: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start the agent, which starts ranks."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.agent = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *self.command],
                cwd=self.folder, env=ALONE, stdout=log, stderr=log,
            )  # fmt: skip
        self.starts += 1

    def processes(self) -> list[int]:
        """All that live on the host."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True
        )
        return [int(number) for number in done.stdout.split()]

    def ranks(self) -> list[int]:
        """Those that train."""
        return [number for number in self.processes() if _is_rank(number)]

    def kill(self, kind: str, rng: random.Random) -> bool:
        """Kill a rank, the agent without its ranks, or all; False where there is none yet."""
        ranks = self.ranks()
        found = {"rank": ranks and [rng.choice(ranks)], "agent": [self.agent.pid]}
        victims = found.get(kind, self.processes())
        for number in victims:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return bool(victims)


def _is_rank(number: int) -> bool:
    try:
        return "RANK=" in Path(f"/proc/{number}/environ").read_text(errors="replace")
    except OSError:
        return False


def hosts_of(names: list[str], each: int, folder: Path) -> list[Host]:
    """A host in every namespace; the first one's address is where they meet."""
    store, train = "10.0.0.1:29500", ["-m", "pipec", "run", "out", *TRAIN, *KEPT]
    return [
        Host(
            name,
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(names)),
                "--nproc-per-node", str(each), "--max-restarts", "3", "--monitor-interval", "0.2",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", store, "--rdzv-id", "run",
                "--rdzv-conf", f"keep_alive_interval=1,is_host={k == 1}",
                "--local-addr", f"10.0.0.{k}", "--no-python", sys.executable, *train,
            ],
            folder,
        )
        for k, name in enumerate(names, 1)
    ]  # fmt: skip


def wait_for_end(hosts: list[Host], seconds: float) -> bool:
    """Start failed agents again until all ranks have come to their end; False if time is up.

    They have when one agent has ended well. Ranks that have lost their agent may end without it;
    then the other agents wait for it, for torch's five minutes, with nothing left to do.
    """
    deadline, end = time.monotonic() + seconds, hosts[0].folder / "end.safetensors"
    while time.monotonic() < deadline:
        codes = [host.agent.poll() for host in hosts]
        over = 0 in codes or end.exists()
        if over and not any(host.ranks() for host in hosts):
            return True
        for host, code in zip(hosts, codes, strict=True):
            if code and not over:
                host.start()
        time.sleep(0.1)
    return False


def run_and_kill(hosts: list[Host], kind: str, rng: random.Random) -> tuple[str, bool]:
    """Run to the end, and kill once on the way: what it hit, and whether the run ended."""
    after = rng.randrange(-ROUNDS // 3, ROUNDS - 10)
    for host in hosts:
        host.start()
    try:
        while newest_round(hosts[0].folder) < after:
            wait_for_end(hosts, 0.1)
        wait_for_end(hosts, rng.uniform(0, 10 if after < 0 else 1))
        victim = rng.choice(hosts)
        while not victim.kill(kind, rng):
            if wait_for_end(hosts, 0.1):
                return "nothing", True
        place = newest_round(victim.folder)
        hit = f"{kind} of host {hosts.index(victim) + 1} behind round {place}"
        return hit, wait_for_end(hosts, SECONDS)
    finally:
        for host in hosts:
            host.kill("host", rng)
            host.agent.wait()


def newest_round(folder: Path) -> int:
    """The round of the newest checkpoint; 0 where there is none."""
    return max((int(p.name[6:]) for p in folder.glob("saved/round-*[0-9]")), default=0)


@cache
def prepare_folder(hosts: int, schedule: str) -> Path:
    """A folder with the plan, and the weights that training it in one process gives."""
    folder = Path(mkdtemp(prefix="pipec-kills-"))
    (folder / "model.py").write_text(MODEL)
    stages = ("--devices", f"{hosts * HOSTS[hosts]}xh100", "--microbatches", "6")
    compiles = ("compile", "model.py:make", "--loss", "model.py:loss", *stages, "-o", "out")
    trains = ("run", "out", *TRAIN, "--local", "--save", "whole.safetensors")
    for words in ((*compiles, "--schedule", schedule), trains):
        command = [sys.executable, "-m", "pipec", *words]
        subprocess.run(command, cwd=folder, env=ALONE, check=True, capture_output=True)
    atexit.register(shutil.rmtree, folder)
    return folder


def kill_once(number: int, rng: random.Random) -> bool:
    """One run with one kill; the folder of a run that did not end as it should is kept."""
    hosts, schedule = (2, 3)[number % 2], ("1f1b", "pipedream")[number // 2 % 2]
    folder = Path(mkdtemp(prefix="pipec-kills-"))
    shutil.copytree(prepare_folder(hosts, schedule), folder, dirs_exist_ok=True)
    with network(hosts) as names:
        begin, several = time.monotonic(), hosts_of(names, HOSTS[hosts], folder)
        hit, well = run_and_kill(several, KINDS[number % 3], rng)
    seconds, starts = time.monotonic() - begin, ", ".join(str(h.starts) for h in several)
    end = load_file(folder / "end.safetensors") if well else {}
    want = load_file(folder / "whole.safetensors")
    same = end.keys() == want.keys() and all(torch.equal(end[n], want[n]) for n in want)
    end_text = "the same bits" if same else f"{'other bits' if well else 'no end'}, see {folder}"
    print(
        f"{number:2}  {hosts} hosts, {schedule:9}  {hit:32}  {end_text} after {seconds:5.1f} s, "
        f"agents started {starts} times",
        flush=True,
    )
    if same:
        shutil.rmtree(folder)
    return same


def main() -> int:
    """Run as often as asked for; the number of runs that did not end as they should."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=positive, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this one alone")
    given = parser.parse_args()
    numbers = range(given.kills) if given.only is None else [given.only]
    bad = sum(not kill_once(k, random.Random(f"{given.seed} {k}")) for k in numbers)
    print(f"{len(numbers) - bad} of {len(numbers)} runs ended with the bits of whole ones")
    return bad


if __name__ == "__main__":
    sys.exit(main())
