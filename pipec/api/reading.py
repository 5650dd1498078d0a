"""What a caller may hand over for a model and for devices."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.cluster.file import load_cluster
from pipec.errors import ClusterError, FrontendError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load as load_model
from pipec.frontends.torch_module import from_module

Model = nn.Module | str | os.PathLike[str] | Loaded
Devices = str | os.PathLike[str] | Cluster | Sequence[str]


def read_model(model: Model, inputs: object, loss: object, options: LoadOptions) -> Loaded:
    """A model as the compiler sees it.

    Args:
        model: A module, or a path: ``net.onnx``, ``net.pt2``, ``file.py:factory``.
        inputs: Example inputs of a module; a path brings its own.
        loss: Loss of a module: a callable of its outputs, or (callable, target). Of a path: another
            path, ``file.py:function``.
        options: Options of the front end.

    Raises:
        FrontendError: It is none of these, or cannot be read.
    """
    if isinstance(model, Loaded):
        used = {n: v for n, v in vars(options).items() if n not in ("open", "trust", "training")}
        given = [n for n, v in used.items() if v != getattr(LoadOptions(), n)]
        given += [n for n, v in (("inputs", inputs), ("loss", loss)) if v is not None]
        if given:
            what = "the model was read before, so this has no effect"
            raise FrontendError(what, got=", ".join(given))
        return model
    if isinstance(model, nn.Module):
        if inputs is None:
            raise FrontendError(
                "a module needs example inputs",
                got=type(model).__name__,
                want="a tensor, a tuple or a dict of them",
                hint="pipec.compile(model, torch.zeros(8, 64), ...)",
            )
        if options.seed != LoadOptions().seed:
            what = "a module has its weights, so a seed has no effect"
            raise FrontendError(what, got=options.seed, want="a path to a factory beside it")
        return from_module(model, inputs, loss, options)
    if not isinstance(model, str | os.PathLike):
        raise FrontendError(
            "this is no model",
            got=type(model).__name__,
            want="an nn.Module, or a path: net.onnx, net.pt2, file.py:factory",
        )
    objects = {"inputs": inputs, "loss": None if options.loss else loss}
    if unread := [f"{n} of type {type(v).__name__}" for n, v in objects.items() if v is not None]:
        raise FrontendError(
            "a model that is read from a path brings its example inputs, and its loss has a path",
            where=os.fspath(model),
            got=", ".join(unread),
            hint="give the shape instead: shapes={'input': (8, 64)}; loss='file.py:function'",
        )
    return load_model(os.fspath(model), options)


def read_cluster(devices: Devices) -> Cluster:
    """Devices from ``4xh100``, ``["h100", "a100"]``, a cluster file (TOML), or a cluster.

    Raises:
        ClusterError: It is none of these.
    """
    if isinstance(devices, Cluster):
        return devices
    if isinstance(devices, os.PathLike) or (isinstance(devices, str) and ".toml" in devices):
        return load_cluster(Path(devices))
    kinds = [devices] if isinstance(devices, str) else devices
    if isinstance(kinds, list | tuple) and kinds and all(isinstance(d, str) for d in kinds):
        return parse_cluster(",".join(kinds))
    raise ClusterError(
        "these are no devices",
        got=repr(devices),
        want='text such as "4xh100", a list of such, a path to a cluster file, or a Cluster',
    )
