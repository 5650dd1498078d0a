"""What a new user does wrong, one row each: nothing is silent, nothing is a traceback.

Every row must end with a status other than 0 and one message without a traceback, which names a
next step: a hint, what is wanted, near names, or the usage.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import pipec
from tests.cli.conftest import write_mlp
from tests.cli.running import Pipec

NEXT = re.compile(r"hint:|want:|[Dd]id you mean|Try 'pipec|Usage:|Choose from|possible values")

MODELS = (
    "no.onnx", "no.pt2", "no.py:net", "folder/no.onnx", "nomodule:net", "net.txt", "'a b'",
    "broken.onnx", "empty.onnx", "raises.py:net", "raises.py:nett", "raises.py:number",
    "syntax.py:net", "mlp.onnx:net",
)  # fmt: skip
COMMANDS = ("compile", "explore --devices 2xcpu", "profile")
PATHS = [f"{command} {path}" for command in COMMANDS for path in MODELS]
PLANS = [
    f"{command} {path}"
    for command in ("verify", "run", "inspect", "report")
    for path in ("no", "mlp.onnx", "empty", "damaged")
]
TYPOS = """
compil mlp.onnx
compile
compile mlp.onnx --device 2xcpu
compile mlp.onnx --devices 2xcpuu
compile mlp.onnx --devices 0xcpu
compile mlp.onnx --devices -1xcpu
compile mlp.onnx --devices 2x
compile mlp.onnx --devices ''
compile mlp.onnx --devices 2xcpu,
compile mlp.onnx --devices 2xcpu --cluster c.toml
compile mlp.onnx --cluster no.toml
compile mlp.onnx --cluster broken.toml
compile mlp.onnx --cluster units.toml
compile mlp.onnx --target tensorflow
compile mlp.onnx --target Torch
compile mlp.onnx --schedule 1f1c
compile mlp.onnx --schedule interleaved{chunk=2}
compile mlp.onnx --schedule interleaved{chunks=x}
compile mlp.onnx --schedule interleaved{chunks=2
compile mlp.onnx --schedule auto --passes simplify
compile mlp.onnx --passes simplfy
compile mlp.onnx --passes partition{stage=2}
compile mlp.onnx --passes partition{stages=two}
compile mlp.onnx --passes simplify,schedule
compile mlp.onnx --passes simplify --schedule gpipe
compile mlp.onnx --passes simplify --stages 2
compile mlp.onnx --passes simplify --microbatches 2
compile mlp.onnx --no-cache
compile mlp.onnx --batch 4
compile mlp.onnx --force
compile mlp.onnx --devices 2xvcu118
compile mlp.onnx --devices 2xvcu118 --target onnx
compile mlp.onnx --devices 2xh100 --target fpga
compile mlp.onnx --precision int8
compile mlp.onnx --pt2 --target onnx
compile mlp.onnx --simulate --target torch
compile mlp.onnx --target fpga --calibrate frames.npz
explore mlp.onnx --devices 2xcpu --precision int8
explore mlp.onnx --devices 2xvcu118
compile mlp.onnx --stages x
compile mlp.onnx --stages 0
compile mlp.onnx --stages -1
compile mlp.onnx --stages 100
compile mlp.onnx --devices 100xcpu
compile mlp.onnx --microbatches 0
compile mlp.onnx --microbatches -3
compile mlp.onnx --costs no.json
compile mlp.onnx --costs text.txt
compile mlp.onnx --shape x
compile mlp.onnx --shape x=
compile mlp.onnx --shape x=a
compile mlp.onnx --shape x=-1,8
compile mlp.onnx --shape x=2.5,8
compile mlp.onnx --shape y=2,8
compile mlp.onnx --shape x=2,9
compile mlp.onnx --bind x=1
compile mlp.onnx --bind nothing=1
compile mlp.onnx --training
compile mlp.onnx --loss no.py:loss
compile mlp.onnx --loss loss
compile mlp.onnx --loss raises.py:number --inference
compile mlp.onnx -o nofolder/out
compile mlp.onnx -o text.txt
compile mlp.onnx -o full
compile mlp.onnx -o full --force
compile mlp.onnx mlp.onnx
compile mlp.onnx --seed x
explore mlp.onnx
explore mlp.onnx --devices 2xcpu --schedules 1f1c
explore mlp.onnx --devices 2xcpu --batch 0
explore mlp.onnx --devices 2xcpu --stages 9
explore mlp.onnx --devices 2xcpu --top -1
schedule 1f1c --stages 2 --microbatches 2
schedule 1f1b
schedule 1f1b --stages 2
schedule 1f1b --stages 0 --microbatches 2
schedule 1f1b --stages 2 --microbatches 0
schedule 1f1b{chunks=2} --stages 2 --microbatches 2
schedule 1f1b{chunks} --stages 2 --microbatches 2
schedule interleaved --stages 3 --microbatches 2
schedule interleaved{chunks=2} --stages 4 --microbatches 4 --option chunks=4
schedule 1f1b --stages 2 --microbatches 2 --csv net.py
schedule 1f1b --stages 2 --microbatches 2 --json --csv -
schedule 1f1b --stages 2 --microbatches 2 --times F=x
schedule 1f1b --stages 2 --microbatches 2 --times Q=1
schedule 1f1b --stages 2 --microbatches 2 --times F=1:2:3
schedule 1f1b --stages 2 --microbatches 2 --comm x
schedule 1f1b --stages 2 --microbatches 2 --host -1
schedule 1f1b --stages 2 --microbatches 2 --host 1
schedule 1f1b --stages 2 --microbatches 2 --times F=1,B=2,W=1
partition .
schedule 1f1b --stages 2 --microbatches 2 --depth -1
schedule 1f1b --stages 2 --microbatches 2 --lanes two
schedule 1f1b --stages 2 --microbatches 2 --svg nofolder/x.svg
schedule 1f1b --stages 2 --microbatches 2 --trace nofolder/x.json
schedule --from-csv no.csv
schedule --from-csv text.txt
partition no.json
partition text.txt
partition empty
partition text.txt --devices 2
partition
profile mlp.onnx --device tpu
profile mlp.onnx --device cuda
profile mlp.onnx --repeats 0
profile mlp.onnx -o nofolder/costs.json --repeats 1
passes --all
devices h100
--vers
report empty full --cycles
report empty -o
verify empty --tolerance x
run empty --rounds -1
run empty --timeout 0
diff empty
diff empty no
opt empty --passes simplify
opt empty
""".strip().splitlines()

FACTORIES = """
import torch
from torch import nn

class Raises(nn.Module):
    def forward(self, x):
        raise RuntimeError("forward is broken")

class Chooses(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Nothing(nn.Module):
    def forward(self, x):
        return None

def _net(): return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
def net(): return _net(), (torch.zeros(2, 8),)
def lossy(): return _net(), (torch.zeros(2, 8),), (nn.functional.mse_loss, torch.zeros(2, 8))
def needs(width): return net()
def nothing(): return None
def listed(): return [_net(), torch.zeros(2, 8)]
def swapped(): return (torch.zeros(2, 8),), _net()
def four(): return *lossy(), 4
def no_inputs(): return _net(), ()
def wide(): return _net(), (torch.zeros(2, 9),)
def text(): return _net(), ("hello",)
def loss_text(): return _net(), (torch.zeros(2, 8),), "mse"
def target_text(): return _net(), (torch.zeros(2, 8),), (nn.functional.mse_loss, "target")
def raises(): return Raises(), (torch.zeros(2, 8),)
def chooses(): return Chooses(), (torch.zeros(2, 8),)
def returns_nothing(): return Nothing(), (torch.zeros(2, 8),)
def exits(): raise SystemExit(0)
def of_output(output): return output.mean()
def vector(): return lambda output: output
def unlike(): return lambda output, target, weight: output.mean()
def broken():
    def loss(output): raise ValueError("the loss is broken")
    return loss

def batch(number): return {"input": torch.ones(2, 8)}
def wide_batch(number): return {"input": torch.ones(2, 9)}
def rows(number): return {"input": torch.ones(3, 8)}
def double(number): return {"input": torch.ones(2, 8, dtype=torch.float64)}
def misnamed(number): return {"inputs": torch.ones(2, 8)}
def numbered(number): return {0: torch.ones(2, 8)}
def more(number): return {"input": torch.ones(2, 8), "target": torch.ones(2, 8), "mask": 1}
def tensor(number): return torch.ones(2, 8)
def lists(number): return {"input": [[1.0] * 8] * 2}
def no_number(): return batch(0)
def exits_too(number): raise SystemExit(0)
"""
CODE = [f"compile net.py:{name}" for name in (
    "needs", "nothing", "listed", "swapped", "four", "no_inputs", "wide", "text", "loss_text",
    "target_text", "raises", "chooses", "returns_nothing", "exits",
)] + [f"compile net.py:net --loss net.py:{name}" for name in (
    "of_output", "vector", "unlike", "broken", "exits", "net", "los",
)] + [f"run infer --local -q --rounds 1 --data net.py:{name}" for name in (
    "wide_batch", "rows", "double", "misnamed", "numbered", "tensor", "lists", "no_number",
    "exits_too", "batc",
)]  # fmt: skip
CLUSTERS = {
    "count": 'count = "2"',
    "many": "count = 1000000000000",
    "negative": 'memory = "-8 GB"',
    "nothing": 'memory = "0 GB"',
    "nan": "memory = nan",
    "number": "memory = 8e9",
    "bits": 'memory = "8 Gb"',
    "still": 'bandwidth = "0 GB/s"',
    "no-host": 'host_bandwidth = "0 GB/s"',
    "no-link": 'link_bandwidth = "0 GB/s"',
    "late": 'link_latency = "nan us"',
    "dtype": 'peak = { float33 = "1 TFLOP/s" }',
    "family": 'family = "gpu"',
    "clock": 'clock = "1 GHz"',
    "key": 'mem = "8 GB"',
    "twice": """count = 2
[[link]]
between = [0, 1]
bandwidth = "1 GB/s"
[[link]]
between = [1, 0]
bandwidth = "2 GB/s\"""",
    "itself": 'count = 2\n[[link]]\nbetween = [0, 0]\nbandwidth = "1 GB/s"',
    "level": 'count = 2\n[[level]]\nbandwidth = "1 GB/s"',
}
DAMAGED = ("no-text", "list", "cut", "edited", "old", "no-graphs", "no-weights", "swapped")
HARMED = [
    f"{command} damaged-{name}"
    for command in ("verify", "run --local", "inspect", "export --to vllm", "diff infer")
    for name in DAMAGED
]
RUNS = [f"run train --local -q --rounds 1 {words}" for words in (
    "--optimizer adamz", "--optimizer sgd:lr=fast", "--optimizer sgd:lr=nan", "--optimizer lbfgs",
    "--optimizer sgd:rate=1", "--optimizer sgd:lr=-1", "--optimizer sgd:lr=1,lr=2",
    "--lr-schedule stepl", "--lr-schedule steplr", "--lr-schedule steplr:step_size=0",
    "--lr-schedule reducelronplateau", "--clip nan", "--clip -1", "--loss-scale -4",
    "--on-nan ignore", "--device tpu", "--device cuda:99", "--timeout nan", "--every 5", "--drain",
    "--t1 3", "--save w.txt", "--save folder/w.pth", "--save empty", "--outputs o.npz",
    "--save train/stage0/weights.safetensors", "--metrics mlp.onnx", "--metrics train/plan.json",
    "--trace train/plan.json", "--trace trace.txt", "--checkpoints mlp.onnx",
    "--tensorboard text.txt", "--compile inductr", "--model net.py:net", "--model no.py:net",
    "--data net.py:batch", "--data net.py:more", "--data ''",
)] + [f"run infer --local -q --rounds 1 {words}" for words in (
    "--optimizer adam", "--clip 1", "--lr-schedule steplr:step_size=1", "--loss-scale 4",
    "--on-nan skip", "--save w.npz", "--checkpoints c", "--outputs o.txt",
)]  # fmt: skip
OTHERS = """
run infer/plan.json
run onnx --local
run onnx --optimizer sgd
verify infer --timed
verify infer --chain 2
verify onnx --tolerance nan
verify train --model net.py:net
inspect infer --stage 7
inspect infer --phase B
inspect infer --graph --phase B
inspect infer --together
inspect infer --cycles
inspect infer --heaviest -1
report infer -o page.pdf
report infer -o infer/plan.json
report infer -o folder/page.html
report infer --verify no.json
report infer --verify text.txt
report infer --metrics mlp.onnx
report infer --trace verified.json
report infer text.txt
diff infer/plan.json train
opt infer --passes partition
opt infer --passes ''
opt infer --passes simplify -o infer
opt infer --passes simplify --reproducer folder/r.txt
opt text.txt --passes simplify
opt verified.json --passes simplify
export infer
export infer --to vlm
export mlp.onnx --to torch
export infer --to megatron --stages 9
profile mlp.onnx --seconds 3
profile mlp.onnx --local
profile mlp.onnx -o mlp.onnx
profile train --local --training
profile train --local --seconds nan
partition infer --devices 3
partition infer --workers 2
schedule --stages 2
schedule --from-csv s.csv --stages 2
schedule pipedream --from-csv s.csv
schedule zb-h1 --stages 2 --microbatches 2 --times F=1,B=1,I=3,W=2
schedule 1f1b --stages 2 --microbatches 2 --sends
schedule 1f1b --stages 2 --microbatches 2 --svg x.png
schedule interleaved{chunks=2,chunks=4} --stages 4 --microbatches 4
compile net.py:net --training --inference
compile net.py:net --microbatches 100000000
compile net.py:net --devices 9999999xcpu
compile net.py:net --stages 2 --stages=1
compile net.py:net --target torch --target onnx
explore net.py:lossy --devices 2xcpu --top 0
compile net.py:net --loss=
compile net.py:net -o ''
compile net.py:net --bind N=2
compile net.py:net --autocast float8
compile net.py:net --schedule zb-h1
compile net.py:lossy --schedule interleaved{chunks=0}
compile net.py:lossy --target onnx
compile net.py:lossy --schedule 1f1b --asynchronous
compile mlp.onnx --seed 3
compile mlp.onnx --autocast bfloat16
compile open.onnx
compile open.onnx --bind N=2.5
compile open.onnx --shape x=2,8 --shape x=4,8
compile open.onnx --bind N=2 --bind N=4
compile mlp.onnx --target fpga --precision int9
compile mlp.onnx --target fpga --precision int8 --calibrate text.txt
explore net.py:lossy --devices 2xcpu --microbatches 0
explore net.py:lossy --devices 2xcpu --batch 8 --microbatches 3
explore net.py:lossy --devices 2xcpu --beside nonsense
explore net.py:lossy --devices 2xcpu --costs silicon:a100
explore mlp.onnx --devices 2xcpu --schedules gpipe
explore net.py:lossy --devices 2xcpu --schedules inference
compile mlp.onnx --schedule auto --batch 4
compile mlp.onnx --schedule auto --asynchronous
compile net.py:lossy --recompute nothing
compile net.py:lossy --recompute 0 --schedule auto
compile net.py:lossy --recompute 0 --passes simplify
compile net.py:net --offload 0
opt infer
opt infer --devices 4xh100 --passes simplify
opt infer --passes simplify --force
partition infer --latency -1
partition infer --latency inf
report train --trace trace.json
verify infer --tolerance inf
verify infer --seed 99999999999999999999999
run train --local --timeout inf
run train --local --rounds 1 --trace both.json --metrics both.json
schedule 1f1b --stages 2 --microbatches 2 --svg same.svg --trace ./same.svg
profile infer --local --device cuda -o c.json
inspect infer --stage 0 --heaviest 3
inspect infer --svg plan.png
inspect infer --trace nofolder/x.json
compile net.py:net --seed 99999999999999999999999
compile net.py:net --microbatches 99999999999999999999999
compile net.py:net --passes ,
compile net.py:net --passes default,default
compile net.py:net --offload-optimizer
compile net.py:net --costs no.json
compile net.py:net --force -o text.txt
compile net.py:net --eager nothing.*
compile net.py:net --eager \udcff
compile net.py:net -o net.py/out
compile net.py:net:more
compile mlp.onnx --devices 1xh100,1xvcu118
compile mlp.onnx --target fpga --precision 'ap_fixed<8,9>'
partition infer --memory -1
run train --local --rounds 1 --optimizer sgd:lr
run onnx --data net.py:tensor
""".strip().splitlines()
NEW = [*CODE, *(f"compile mlp.onnx --cluster {n}.toml" for n in CLUSTERS), *HARMED, *RUNS, *OTHERS]
ALL = [*PATHS, *PLANS, *TYPOS, *NEW]
WITHOUT = ("report empty -o",)  # what the library of the command line says suffices


OTHER_TRACE = {"traceEvents": [
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "compute"}},
    {"name": "0F7", "cat": "F", "ph": "X", "pid": 1, "tid": 0, "ts": 0, "dur": 1,
     "args": {"stage": 0, "microbatch": 7}},
], "otherData": {"recorded": True}}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mistakes")
    write_mlp(place / "mlp.onnx")
    for name in ("empty", "full", "damaged"):
        (place / name).mkdir()
    texts = {
        "broken.onnx": "no model",
        "empty.onnx": "",
        "text.txt": "some text",
        "broken.toml": "devices = [",
        "units.toml": '[[device]]\nkind = "h100"\nmemory = "80"\n',
        "raises.py": "number = 3\ndef net():\n    raise ValueError('no weights here')\n",
        "syntax.py": "def net(:\n",
        "full/own.txt": "mine",
        "damaged/plan.json": '{"format": "pipec.plan", "version": 2}',
        "net.py": FACTORIES,
        "verified.json": '{"boundaries": []}',
        "s.csv": "0F0,0B0",
        "trace.json": json.dumps(OTHER_TRACE),
        **{f"{n}.toml": f'[[device]]\nkind = "cpu"\n{more}\n' for n, more in CLUSTERS.items()},
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    write_mlp(place / "open.onnx", batch="N")
    net = f"{place}/net.py"
    pipec.compile(f"{net}:net", devices="2xcpu").save(place / "infer")
    pipec.compile(f"{net}:lossy", devices="2xcpu").save(place / "train")
    pipec.compile(str(place / "mlp.onnx"), devices="2xcpu", target="onnx").save(place / "onnx")
    _damage(place)
    return place


def _damage(place: Path) -> None:
    """Copies of a plan, each with another part changed."""
    for name in DAMAGED:
        shutil.copytree(place / "infer", place / f"damaged-{name}")
    whole = (place / "infer" / "plan.json").read_text()
    texts = {"no-text": "", "list": "[]", "cut": whole[:500]}
    texts["edited"] = whole.replace('"2xcpu"', '"3xcpu"').replace("linear", "linear2")
    texts["old"] = json.dumps({**json.loads(whole), "version": 0})
    for name, text in texts.items():
        assert text != whole
        (place / f"damaged-{name}" / "plan.json").write_text(text)
    shutil.rmtree(place / "damaged-no-graphs" / "graphs")
    shutil.rmtree(place / "damaged-no-weights" / "stage1")
    first, second = (place / "damaged-swapped").glob("stage*/weights.safetensors")
    here, there = first.read_bytes(), second.read_bytes()
    first.write_bytes(there)
    second.write_bytes(here)


def _told(command: Pipec, line: str) -> str:
    done = command(*shlex.split(line))
    assert done.code != 0, f"silent: {done.out}{done.err}"
    assert "Traceback" not in done.err + done.out
    assert done.err.strip(), "no message"
    return done.err


@pytest.mark.parametrize("line", ALL)
def test_a_mistake_is_told_in_one_message(
    line: str, folder: Path, pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    told = _told(pipec, line)
    assert len(told.splitlines()) <= 24
    assert line in WITHOUT or NEXT.search(told)


@pytest.mark.parametrize("line", ["passes", "schedule", "examples", "devices", "inspect infer"])
def test_eighty_columns_are_enough(
    line: str, folder: Path, pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    lines = pipec(*line.split()).out.splitlines()
    assert lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", ["0", "-5", "many", "10"])
def test_an_odd_number_of_columns_hides_nothing(
    columns: str, folder: Path, pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", columns)
    done = pipec("inspect", "infer")
    assert done.code == 0
    assert "stages" in done.out


def test_inspect_draws_nothing_where_it_refuses(folder: Path, pipec: Pipec, tmp_path: Path) -> None:
    done = pipec("inspect", folder / "infer", "--cycles", "--svg", tmp_path / "plan.svg")
    assert done.code == 1
    assert not (tmp_path / "plan.svg").exists()


def test_inspect_draws_the_timeline_of_the_plan(
    folder: Path, pipec: Pipec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    picture, trace = tmp_path / "plan.svg", tmp_path / "plan.json"
    done = pipec("inspect", "train", "--json", "--svg", picture, "--trace", trace)
    assert done.code == 0
    assert len(json.loads(done.out)["stages"]) == 2
    assert picture.read_text().startswith("<svg")
    drawn = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "F"]
    assert {e["args"]["stage"] for e in drawn} == {0, 1}
    assert len(drawn) == 2 * 8  # every stage, every microbatch


def test_there_are_enough_of_them() -> None:
    assert len(set(ALL)) == len(ALL)
    assert len({*PATHS, *PLANS, *TYPOS}) >= 127
    assert len(NEW) >= 60
