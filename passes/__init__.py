"""Passes: each file holds one, named as on the command line."""

if __name__ != "pipec.passes":
    raise ImportError("import pipec.passes, not passes")
