"""Backends: each folder turns a plan into one kind of artifact."""

if __name__ != "pipec.backends":
    raise ImportError("import pipec.backends, not backends")
