"""The plan: everything that is known about one model on one cluster."""
