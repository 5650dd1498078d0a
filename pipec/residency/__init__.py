"""Residency: which saved values stay on the device, wait in host memory, or are computed again.

Pure numbers, no torch. `problem.Problem` says what a stage saves, how many of its microbatches are
in flight, and how fast it computes and copies; `bound.bound` bounds the added time from below,
`play.play` times whole decisions, and `choose.choose` joins them.
"""
