"""An If whose condition is known becomes the nodes of the branch that it takes.

Only so can the branch be cut and its weights be distinguished; inside the If they are one node. The
file keeps its If; what the compiler sees, and what indices of nodes refer to, is the model without.
"""

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy

import onnx
from onnx import GraphProto, NodeProto

from pipec.frontends.onnx.frame import shorten_domain
from pipec.frontends.onnx.reader import ModelFile
from pipec.graph.arrays import Array


def inline_ifs(model: ModelFile, known: Mapping[str, Array]) -> ModelFile | None:
    """The model without the Ifs on known conditions; None where it has none."""
    graph = model.proto.graph
    if not any(_is_known_if(node, known) for node in graph.node):
        return None
    proto = deepcopy(model.proto)
    taken = names_of(graph, lambda node: _is_known_if(node, known))
    del proto.graph.node[:]
    for k, node in enumerate(graph.node):
        if _is_known_if(node, known):
            _inline(proto.graph, node, bool(known[node.input[0]].reshape(-1)[0]), k, taken)
        else:
            proto.graph.node.append(node)
    return model.with_proto(proto)


def _is_known_if(node: NodeProto, known: Mapping[str, Array]) -> bool:
    is_if = node.op_type == "If" and not shorten_domain(node.domain) and len(node.input) == 1
    return is_if and node.input[0] in known and known[node.input[0]].size == 1


def _inline(
    graph: GraphProto, node: NodeProto, taken_branch: bool, k: int, taken: set[str]
) -> None:
    """Append the branch's nodes and initialisers; its names get out of the way of others."""
    name = "then_branch" if taken_branch else "else_branch"
    branch = next(a.g for a in node.attribute if a.name == name)
    own = [t.name for t in branch.initializer]
    own += [o for n in branch.node for o in n.output if o]
    renamed: dict[str, str] = {}
    for inner in own:
        renamed[inner] = inner if inner not in taken else fresh(f"{inner}/{k}", taken)
        taken.add(renamed[inner])
    for tensor in branch.initializer:
        copy = deepcopy(tensor)
        copy.name = renamed[tensor.name]
        graph.initializer.append(copy)
    for inner_node in branch.node:
        graph.node.append(_rename_node(inner_node, renamed))
    for outer, inner_info in zip(node.output, branch.output, strict=True):
        if outer:
            source = renamed.get(inner_info.name, inner_info.name)
            graph.node.append(onnx.helper.make_node("Identity", [source], [outer]))


def _rename_node(node: NodeProto, renamed: Mapping[str, str]) -> NodeProto:
    """A copy with names replaced, in subgraphs too, where they do not define the name anew."""
    copy = deepcopy(node)
    copy.input[:] = [renamed.get(n, n) for n in node.input]
    copy.output[:] = [renamed.get(n, n) for n in node.output]
    for attribute in copy.attribute:
        if attribute.HasField("g"):  # to touch it otherwise would make one
            _rename_free(attribute.g, renamed)
        for graph in attribute.graphs:
            _rename_free(graph, renamed)
    return copy


def _rename_free(graph: GraphProto, renamed: Mapping[str, str]) -> None:
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {o for node in graph.node for o in node.output}
    outer = {old: new for old, new in renamed.items() if old not in own}
    nodes = [_rename_node(node, outer) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for output in graph.output:
        output.name = outer.get(output.name, output.name)


def names_of(
    graph: GraphProto, left_out: Callable[[NodeProto], bool] = lambda _: False
) -> set[str]:
    """Every name that the graph or one of its subgraphs speaks of, but for those of some nodes."""
    found = {i.name for i in (*graph.input, *graph.initializer, *graph.output)}
    for node in graph.node:
        found.update(node.input)
        found.update(node.output)
        inner = [] if left_out(node) else [g for a in node.attribute for g in (a.g, *a.graphs)]
        found = found.union(*map(names_of, inner))
    return found


def fresh(wanted: str, taken: Collection[str]) -> str:
    """The name, or one with a number behind it, that is not taken."""
    name, k = wanted, 1
    while name in taken:
        name, k = f"{wanted}.{k}", k + 1
    return name
