"""What a new user does wrong, one row each: nothing is silent, nothing is a traceback.

Every row must end with a status other than 0 and one message without a traceback; nine of ten must
name a next step: a hint, what is wanted, near names, or the usage.
"""

import re
import shlex
from pathlib import Path

import pytest

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
schedule 1f1b --stages 2 --microbatches 2 --option chunks=2
schedule 1f1b --stages 2 --microbatches 2 --option chunks
schedule interleaved --stages 3 --microbatches 2
schedule 1f1b --stages 2 --microbatches 2 --times F=x
schedule 1f1b --stages 2 --microbatches 2 --times Q=1
schedule 1f1b --stages 2 --microbatches 2 --times F=1:2:3
schedule 1f1b --stages 2 --microbatches 2 --comm x
schedule 1f1b --stages 2 --microbatches 2 --host -1
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
        "units.toml": '[[devices]]\nkind = "h100"\nmemory = "80"\n',
        "raises.py": "number = 3\ndef net():\n    raise ValueError('no weights here')\n",
        "syntax.py": "def net(:\n",
        "full/own.txt": "mine",
        "damaged/plan.json": '{"format": "pipec.plan", "version": 1}',
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    return place


def _told(pipec: Pipec, line: str) -> str:
    done = pipec(*shlex.split(line))
    assert done.code != 0, f"silent: {done.out}{done.err}"
    assert "Traceback" not in done.err + done.out
    assert done.err.strip(), "no message"
    return done.err


@pytest.mark.parametrize("line", [*PATHS, *PLANS, *TYPOS])
def test_a_mistake_is_told_in_one_message(
    line: str, folder: Path, pipec: Pipec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    told = _told(pipec, line)
    assert len(told.splitlines()) <= 24
    if not NEXT.search(told):
        WITHOUT.append(line)


WITHOUT: list[str] = []


def test_nine_of_ten_name_a_next_step() -> None:
    assert len(WITHOUT) <= 0.1 * len([*PATHS, *PLANS, *TYPOS]), WITHOUT


def test_there_are_enough_of_them() -> None:
    assert len({*PATHS, *PLANS, *TYPOS}) >= 127
