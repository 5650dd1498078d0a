"""What a front end makes of a model: its graph, and the model as it was written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from pipec.graph.axes import Axes
from pipec.graph.ir import Graph

Gradients = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]]
Resize = Callable[[Mapping[str, tuple[int, ...]]], Graph]


@dataclass(frozen=True)
class Loaded:
    """A model as the compiler sees it, and as its author wrote it.

    Attributes:
        graph: The traced graph.
        example_inputs: One tensor per graph input of kind ``INPUT``, by name.
        original: Runs the model as written, eagerly, on inputs by name; gives outputs by name. It
            does not change the model (updated buffers are dropped).
        gradients: The gradients of the model as written, by eager autograd, on inputs by name, with
            these weights by name in place of its own: by parameter. None where it cannot say (a
            file is no module; random numbers are drawn).
        inner: What the engine of a quantised file computes for nodes of the graph on inputs by
            name: by node. None of other models.
        axes: Axes of its inputs that it leaves open; none unless they were asked for.
        resized: Traces a module, or a file with open axes, at other shapes of its inputs, by name.
        draws_apart: Whether ``original`` is run by an engine that draws random numbers of its own.
    """

    graph: Graph
    example_inputs: Mapping[str, Tensor]
    original: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    gradients: Gradients | None = None
    inner: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    axes: Axes = field(default_factory=Axes)
    resized: Resize | None = None
    draws_apart: bool = False
