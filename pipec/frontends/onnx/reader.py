"""Reading an ONNX file without reading its weights: external data are mapped, not loaded."""

import hashlib
import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo
from torch import Tensor

from pipec.errors import FrontendError, find_near, first_line
from pipec.frontends.onnx.frame import Frame, FunctionKey, shorten_domain
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.validity import check_validity
from pipec.frontends.onnx.values import (
    TORCH_OF_ONNX,
    constant_tensor,
    dtype_name,
    numpy_dtype,
    proto_array,
)
from pipec.graph.arrays import Array

_HASHED_WHOLE = 2**26
"""Bytes of an external file up to which its digest covers all of it."""

_LARGE = 2**26
"""Bytes of a model file from which on it is not read again while somebody holds it."""

_held: WeakValueDictionary[tuple[object, ...], "ModelFile"] = WeakValueDictionary()
"""Large files that are in use, by path and by what changes with a file's contents."""


class ModelFile:
    """An ONNX model, its weights still in the file.

    Attributes:
        proto: The model without external data.
        path: Where it was read; None for a model in memory.
        written: The model as its author wrote it; itself unless it was rewritten.
        initializers: Name to tensor proto.
    """

    def __init__(
        self, proto: onnx.ModelProto, path: Path | None = None, written: "ModelFile | None" = None
    ) -> None:
        self.proto, self.path = proto, path
        self.written: ModelFile = written.written if written else self
        self.initializers = {t.name: t for t in proto.graph.initializer}
        self._files: dict[Path, torch.UntypedStorage] = {}

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path) if self.path else "model in memory"

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Operator domain to version."""
        return {shorten_domain(o.domain): o.version for o in self.proto.opset_import}

    @cached_property
    def functions(self) -> dict[FunctionKey, onnx.FunctionProto]:
        """Functions that the file defines."""
        return {(f.domain, f.name, f.overload): f for f in self.proto.functions}

    def with_proto(self, proto: onnx.ModelProto) -> "ModelFile":
        """This file as the compiler goes on with it: ``proto`` in place of what was read."""
        return ModelFile(proto, self.path, self)

    def frame(self) -> Frame:
        """An empty scope for the model's graph."""
        return Frame({}, self.opsets, self.functions)

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Graph inputs that are no initialisers: what a caller must give."""
        return [i for i in self.proto.graph.input if i.name not in self.initializers]

    def tensor(self, name: str) -> Tensor:
        """An initialiser as a torch tensor; mapped from its file where it is external.

        Raises:
            FrontendError: Its data are missing or do not fit its type and shape.
        """
        proto = self.initializers[name]
        if proto.data_location != TensorProto.EXTERNAL:
            return constant_tensor(self.array(name))
        path, offset = self._region(proto)
        dtype = TORCH_OF_ONNX[proto.data_type]
        count = math.prod(proto.dims)
        if offset % dtype.itemsize:
            return constant_tensor(self.array(name))
        view = torch.empty(0, dtype=dtype)
        with torch.no_grad():
            view.set_(self._storage(path), offset // dtype.itemsize, (count,), (1,))
        return view.reshape(tuple(proto.dims))

    def array(self, name: str) -> Array:
        """An initialiser as an array; mapped from its file where it is external.

        Raises:
            FrontendError: Its data are missing or do not fit its type and shape.
        """
        proto = self.initializers[name]
        try:
            if proto.data_location != TensorProto.EXTERNAL:
                return proto_array(proto)
            path, offset = self._region(proto)
            own = TensorProto(name=name, data_type=proto.data_type, dims=proto.dims)
            nbytes = tensor_bytes(proto)
            if nbytes:
                own.raw_data = np.memmap(path, np.uint8, "r", offset, (nbytes,)).tobytes()
            return proto_array(own)
        except Refused as refusal:
            raise FrontendError(
                "an initialiser cannot be read",
                where=f"{self.where}, initialiser {name}",
                got=refusal.reason,
            ) from refusal

    def _storage(self, path: Path) -> torch.UntypedStorage:
        if path not in self._files:
            size = path.stat().st_size
            self._files[path] = torch.UntypedStorage.from_file(str(path), False, size)  # type: ignore[assignment]
        return self._files[path]

    def _region(self, proto: TensorProto) -> tuple[Path, int]:
        """File and offset of an external tensor, checked."""
        where, need = f"{self.where}, initialiser {proto.name}", tensor_bytes(proto)
        try:
            info = ExternalDataInfo(proto)
            offset, length = _number(info.offset, 0), _number(info.length, need)
            location = str(info.location)
        except (ValueError, TypeError, AttributeError) as error:
            raise FrontendError(
                "an external data entry is malformed", where=where, got=error
            ) from error
        path = self._inside(location, where)
        if length != need:
            raise FrontendError(
                "the length of external data does not fit the tensor",
                where=where,
                got=f"{length} bytes",
                want=f"{need} bytes for {dtype_name(proto.data_type)}{list(proto.dims)}",
            )
        size = path.stat().st_size
        if offset < 0 or offset + need > size:
            raise FrontendError(
                "an external data file is too short",
                where=f"{where}, in {location}",
                got=f"{size} bytes",
                want=f"at least {offset + need} bytes",
                hint="the file was truncated; copy it again",
            )
        return path, offset

    def _inside(self, location: str, where: str) -> Path:
        folder = (self.path.parent if self.path else Path()).resolve()
        if not location.isprintable():
            raise FrontendError(
                "the location of external data is no file name", where=where, got=repr(location)
            )
        path = (folder / location).resolve()
        if Path(location).is_absolute() or not path.is_relative_to(folder):
            raise FrontendError(
                "external data must lie in the model's folder",
                where=where,
                got=location,
                want=f"a file below {folder}",
            )
        if not path.is_file():
            raise FrontendError(
                "an external data file is missing",
                where=where,
                got=location,
                want=f"the file {path}",
                hint="copy it next to the model",
            )
        if path.stat().st_nlink > 1:
            raise FrontendError(
                "an external data file has a second name, which may lie outside the model's folder",
                where=where,
                got=f"{location}, a hard link",
                want="a file of its own",
                hint=f"cp {location} copy && mv copy {location}",
            )
        return path

    def digest(self) -> str:
        """SHA-256 of the model file and of its external files.

        Of an external file over 64 MiB only name, size, and the first and last MiB are covered, so
        that opening a model of hundreds of gigabytes stays quick.
        """
        total = hashlib.sha256()
        if self.path is None:
            total.update(self.proto.SerializeToString(deterministic=True))
            return total.hexdigest()
        with self.path.open("rb") as file:
            hashlib.file_digest(file, lambda: total)
        external = {
            self._region(t)[0]
            for t in self.initializers.values()
            if t.data_location == TensorProto.EXTERNAL
        }
        for path in sorted(external):
            total.update(_digest_of(path))
        return total.hexdigest()


def _digest_of(path: Path) -> bytes:
    size, end = path.stat().st_size, 2**20
    with path.open("rb") as file:
        if size <= _HASHED_WHOLE:
            return hashlib.file_digest(file, "sha256").digest()
        head = file.read(end)
        file.seek(size - end)
        return hashlib.sha256(f"{path.name} {size}".encode() + head + file.read(end)).digest()


def _number(value: object, default: int) -> int:
    return default if value is None else int(str(value))


def tensor_bytes(proto: TensorProto) -> int:
    """Bytes of a tensor's raw data; types under a byte are packed.

    Raises:
        FrontendError: The element type is unknown.
    """
    packed: dict[int, int] = {
        TensorProto.INT4: 4,
        TensorProto.UINT4: 4,
        TensorProto.FLOAT4E2M1: 4,
        TensorProto.INT2: 2,
        TensorProto.UINT2: 2,
    }
    count = int(math.prod(proto.dims))
    if proto.data_type in packed:
        return -(-count * packed[proto.data_type] // 8)
    try:
        return count * int(numpy_dtype(proto.data_type).itemsize)
    except (KeyError, ValueError, TypeError) as error:
        raise FrontendError(
            "unknown element type", where=proto.name, got=dtype_name(proto.data_type)
        ) from error


def read(path: Path) -> ModelFile:
    """Read a model file; weights in external files stay there.

    Raises:
        FrontendError: There is no such file, or it is no ONNX model.
    """
    if not path.is_file():
        raise FrontendError("no such model file", got=path, hint=find_near(path))
    stat = path.stat()
    key = (path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key in _held:
        return _held[key]
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise FrontendError(
            "the file cannot be read as an ONNX model",
            where=path,
            got=first_line(error),
            hint="it may be truncated, or of another format",
        ) from error
    for holder in (proto.graph, *proto.functions):
        _say_defaults(holder.node)
    for t in proto.graph.sparse_initializer:  # constant nodes, which come first, in their place
        node = onnx.helper.make_node("Constant", [], [t.values.name], sparse_value=t)
        proto.graph.node.insert(0, node)
    del proto.graph.sparse_initializer[:]
    model = ModelFile(proto, path)
    check_validity(proto, model.where)
    if stat.st_size >= _LARGE:
        _held[key] = model
    return model


_FIELDS = {
    onnx.AttributeProto.STRING: "s",
    onnx.AttributeProto.INT: "i",
    onnx.AttributeProto.FLOAT: "f",
}
"""Attribute type to the field of its value."""


def _say_defaults(nodes: Iterable[onnx.NodeProto]) -> None:
    """Write the value of attributes that have a type and no value: empty or zero.

    Some exporters leave it out, engines read the default, ONNX's checker wants it in the file.
    """
    for node in nodes:
        for a in node.attribute:
            field = _FIELDS.get(a.type)
            if field and not a.ref_attr_name and not a.HasField(field):
                setattr(a, field, getattr(a, field))
            for graph in (a.g, *a.graphs):
                _say_defaults(graph.node)
