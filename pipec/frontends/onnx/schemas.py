"""What ONNX's own schemas say about the inputs of an op."""

from functools import lru_cache

import onnx
from onnx import NodeProto

from pipec.frontends.onnx.frame import Frame, standard
from pipec.frontends.onnx.refusals import Refused


def check_inputs(node: NodeProto, frame: Frame) -> None:
    """Check that a node has the inputs that its op cannot do without.

    Ops that ONNX does not know (functions of the model) pass.

    Raises:
        Refused: A required input is absent, or there are too many.
    """
    required, most = _inputs(standard(node.domain), node.op_type, frame.version(node.domain))
    if len(node.input) > most:
        raise Refused(f"{len(node.input)} inputs; the op takes at most {most}")
    for k, name in enumerate(required):
        if name and (k >= len(node.input) or not node.input[k]):
            raise Refused(f"its input {name!r} is missing")


@lru_cache(maxsize=4096)
def _inputs(domain: str, op: str, version: int) -> tuple[tuple[str, ...], int]:
    """Names of the required inputs at their positions (empty: optional), and the largest number."""
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return (), 2**31
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    names = tuple(i.name if i.option == single else "" for i in schema.inputs)
    return names, schema.max_input
