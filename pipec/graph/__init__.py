"""The IR: one flat, functional `torch.fx.GraphModule` of ATen ops, and what may be asked of it."""
