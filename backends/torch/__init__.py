"""The torch backend: weights in safetensors, graphs that any torch runs node by node."""
