"""Lowering: a stage's ATen graph becomes a network of layers, before any factor is chosen."""
