"""C simulation of emitted stages: compile with g++, run on tensors."""
