"""Finding the front end for a model: all that are registered are asked in turn."""

from pipec import registry
from pipec.errors import FrontendError
from pipec.frontends.base import Frontend, Loaded, LoadOptions

GROUP = "pipec.frontends"


def load(spec: str, options: LoadOptions | None = None) -> Loaded:
    """Read and trace a model.

    Args:
        spec: A path or ``file.py:factory``, whatever a registered front end accepts.
        options: The options of the front end.

    Raises:
        FrontendError: No front end accepts ``spec``, or the one that does cannot read it.
    """
    found = reader(spec)
    if options and options.autocast and not found.casts:
        raise FrontendError(
            "autocast cannot be put around a model that is a file: its casts are its own",
            where=spec,
            got=f"autocast {options.autocast}",
            hint="export the model under torch.autocast, or compile the module itself",
        )
    if options and options.eager and not found.casts:
        hint = "name a factory: path/file.py:function"
        raise FrontendError("a file has no modules to run eagerly", where=spec, hint=hint)
    if options and options.seed and not found.casts:
        hint = "leave it out, or name a factory: path/file.py:function"
        raise FrontendError("a file brings its weights", where=spec, got="a seed", hint=hint)
    return found.load(spec, options or LoadOptions())


def reader(spec: str) -> Frontend:
    """The front end that reads a model.

    Raises:
        FrontendError: None does.
    """
    known = [find_frontend(name) for name in registry.entries(GROUP)]
    for candidate in known:
        if candidate.accepts(spec):
            return candidate
    raise FrontendError(
        "no front end reads this model", got=spec, want=" or ".join(f.pattern for f in known)
    )


def find_frontend(name: str) -> Frontend:
    """The front end registered as ``name``.

    Raises:
        PipecError: There is none, or what is registered is no front end.
    """
    return registry.load_class(GROUP, name, Frontend)()  # type: ignore[type-abstract]
