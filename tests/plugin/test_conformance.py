"""The suite of pipec's own backends, on a backend from outside."""

from pipec.testing.conformance import BackendConformance


class TestC(BackendConformance):
    target = "c"
