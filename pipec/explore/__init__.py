"""Exploration: every way to lay a model over a cluster, predicted, and the fastest that fits."""
