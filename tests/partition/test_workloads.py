"""The published workloads: optimum proven, and confirmed by an independent method."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipec.cli.partition import command
from pipec.partition.formats.workload import read_workload
from tests.partition.cpsat import least_load

DATA = Path(os.environ.get("PIPEC_DATA", Path(__file__).parents[3] / "shared" / "data"))
FOLDER = DATA / "dnn-partitioning"
OPTIMUM = {
    "layer_bert24_inference": 17.7899,
    "layer_bert24_training": 41.7458,
    "layer_gnmt_inference": 32.9107,
    "layer_resnet50_inference": 33.7747,
    "layer_resnet50_training": 78.6318,
    "layer_inceptionv3_inference": 51.5519,
    "op_bert_l-3_inference": 27.9186,
    "op_bert_l-3_training": 65.3031,
    "op_resnet50_inference": 124.349,
}
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the dnn-partitioning workloads")


@pytest.mark.parametrize("name", OPTIMUM)
def test_optimum_is_proven(name: str) -> None:
    path = FOLDER / f"{name}.json"
    result = CliRunner().invoke(command, [str(path), "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["max_load"] == pytest.approx(OPTIMUM[name], abs=1e-3)
    assert found["lower_bound"] == pytest.approx(found["max_load"])
    assert found["proven"] is found["contiguous"] is True
    assert len(found["assignment"]) == read_workload(path).graph.size


@pytest.mark.parametrize("name", OPTIMUM)
def test_second_method_agrees(name: str) -> None:
    workload = read_workload(FOLDER / f"{name}.json")
    assert least_load(workload, OPTIMUM[name] + 0.1) == pytest.approx(OPTIMUM[name], abs=1e-3)
