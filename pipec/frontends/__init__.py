"""Front ends: a model in, a graph out."""
