"""Every backend of pipec passes the suite that backends from outside are held to."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pipec.testing.conformance import BackendConformance


class TestTorch(BackendConformance):
    target = "torch"
    run_options: ClassVar[Mapping[str, Any]] = {"local": True}


class TestOnnx(BackendConformance):
    target = "onnx"


class TestFpga(BackendConformance):
    target = "fpga"
