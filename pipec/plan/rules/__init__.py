"""The rules of a plan; with the graph rules they are checked after every pass."""
