"""Training on boards: a stage's phases are networks of engines of their own.

```text
F graph  ──► kernel F  ──► values, and saved values ──► on chip or DDR, by plan
B graph  ◄── saved values, gradient of the output ──► kernel B ──► gradient of the input
W graph  ◄──                                          kernel W ──► gradients of the weights
update   w, g, momentum ──► kernel U ──► w, momentum; the engines' weight tables are reloaded
```

Each phase graph (`pipec.autodiff`) goes through the lowering that inference uses. Weights stay
tables of engines: the input gradient of a convolution is a convolution with a turned kernel, so
its table is a rearrangement of the same parameter, made anew at every update. Weight gradients
are products of two streams. The board's budget is divided between the phases' kernels
(`split`), because all of them stand on the board at once.
"""
