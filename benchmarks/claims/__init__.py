"""Published figures of the four systems, each held against our own model at its setting."""
