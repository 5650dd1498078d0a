"""In whose memory a value lies when it is sent: torch's own storages are the witness."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pipec.autodiff.recompute import list_holders


@pytest.mark.parametrize(
    "f",
    [
        lambda y: y.view(3, 8),
        lambda y: y.view(3, 8).unsqueeze(0).squeeze(0),
        lambda y: y[1:],
        lambda y: y.chunk(2)[1],
        lambda y: y.t(),
        lambda y: y[:, 1:],
        lambda y: y.t().clone(memory_format=torch.contiguous_format),
        lambda y: y + 1,
    ],
    ids=["view", "twice", "rows", "part", "transposed", "columns", "copied", "computed"],
)
def test_what_is_sent_lies_where_torch_has_it(f: Callable[[Tensor], Tensor]) -> None:
    """Strided values are copied on their way (`contiguous`), others sent from where they lie."""
    graph = make_fx(lambda x: f(torch.tanh(x)))(torch.zeros(4, 6)).graph
    (made,) = (n for n in graph.nodes if n.target is torch.ops.aten.tanh.default)
    (end,) = next(n for n in graph.nodes if n.op == "output").all_input_nodes
    y = torch.tanh(torch.zeros(4, 6))
    sent = f(y).contiguous()
    same = sent.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert (made.name in list_holders(end)) is same
