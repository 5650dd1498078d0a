"""Backward graphs: what a stage computes in F, B, I and W, and what is saved between them."""
