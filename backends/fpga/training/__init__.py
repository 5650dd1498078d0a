"""Training on boards: the phases of a stage are networks of engines, kernels of their own.

```text
F graph  ──► kernel F  ──► values, and saved values ──► on chip or DDR, by plan
B graph  ◄── saved values, gradient of the output ──► kernel B ──► gradients of input and weights
update   w, g, momentum ──► kernel U ──► w, momentum; the engines' weight tables are reloaded
```

Each graph goes through the lowering that inference uses. Weights stay tables of engines: the input
gradient of a convolution is a convolution with a turned kernel, so its table is a rearrangement of
the same parameter, made anew at every update. Weight gradients are products of two streams.
"""
