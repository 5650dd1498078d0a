"""Which nodes must stay in one stage.

A *placement unit* is a set of call nodes that no cut may separate:

1. a ``getitem`` stays with the node whose tuple it picks from;
2. a view stays with what it views (its strides are only right there, and it moves no data), but
   with its first reader if what it views is contiguous, as all values that cross a cut are, and
   smaller, or as large and read by others too, or if the view would be copied to be sent: then one
   value crosses instead of all its views, and the reader finds the strides that it is costed for
   (a fused projection crosses, not its parts);
   a view of a weight stays with its reader, if it has one alone, and so do numbers that a table
   of integers stands for: the table is the smaller one; what computes their scale stays there too;
3. the pieces of one ONNX node stay together (a half cannot be emitted as ONNX);
4. the readers of a buffer stay with the node that updates it: with a copy of it in each of two
   stages, the earlier one would go on with a value that the later one has changed;
5. what a schedule or a target keeps together (`pipec.compiler.problem`) does.
"""

import operator
from collections.abc import Iterable, Sequence

from torch import fx

from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, origin, tensors
from pipec.graph.quantised import DEQUANTIZE
from pipec.graph.torch_private import OpOverload, is_view


def placement_units(graph: Graph, kept: Iterable[Sequence[str]] = ()) -> dict[str, int]:
    """Call node name to its unit, numbered by first nodes; each row of ``kept`` is in one, too."""
    from networkx.utils import UnionFind

    calls, first_of_index = {n.name for n in graph.calls}, dict[int, str]()
    units = UnionFind(calls)
    updates = _updates(graph)
    for n in graph.calls:
        partners = [p.name for p in _partners(n) if p.name in calls]
        partners += [u for read in n.all_input_nodes for u in updates.get(read.name, ())]
        index = origin(n).index
        if index is not None:
            partners.append(first_of_index.setdefault(index, n.name))
        units.union(n.name, *partners)
    for names in kept:
        units.union(*names)
    numbers: dict[str, int] = {}
    return {n.name: numbers.setdefault(units[n.name], len(numbers)) for n in graph.calls}


def _updates(graph: Graph) -> dict[str, list[str]]:
    """Placeholder of a buffer to the node that computes its next value, where it is updated."""
    holders = {i.name: i.node for i in graph.inputs_of(InputKind.BUFFER, InputKind.STATE)}
    calls = {n.name for n in graph.calls}
    return {
        holders[o.name]: [o.node]
        for o in graph.outputs_of(OutputKind.BUFFER_UPDATE)
        if o.name in holders and o.node in calls
    }


def _partners(node: fx.Node) -> list[fx.Node]:
    """Nodes that ``node`` may not be cut from."""
    if node.target is operator.getitem:
        return node.all_input_nodes
    if not isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return []
    if is_view(node.target) or node.target is DEQUANTIZE:
        viewed = node.all_input_nodes[0]
        if viewed.op == "call_function":
            if not is_view(node.target):
                return []
            return (_is_made_again(node, viewed) and sorted(_readers(node))[:1]) or [viewed]
        scales = [n for n in node.all_input_nodes[1:] if len(n.users) == 1]
        return scales + (list(node.users) if len(node.users) == 1 else [])
    return []


def _is_made_again(view: fx.Node, viewed: fx.Node) -> bool:
    """Whether it is better to send what is viewed than the view, or than the parts of a split."""
    before, after = tensors(viewed), tensors(view)
    if len(before) != 1 or not after or not before[0].is_contiguous():
        return False
    better = len(viewed.users) > 1 or not all(part.is_contiguous() for part in after)
    return nbytes(viewed) < nbytes(view) + better


def _readers(view: fx.Node) -> list[fx.Node]:
    """The nodes that compute with a view, or with a view or a part of it."""
    found = []
    for user in view.users:
        part = isinstance(user.target, OpOverload) and is_view(user.target)
        if part or user.target is operator.getitem:
            found += _readers(user)
        elif user.op == "call_function":
            found.append(user)
    return found
