"""Cost: what a node computes and moves, and how long that takes on a device."""
