"""Reading a model: whatever front end accepts it; the model of a plan again, and no other."""

from dataclasses import replace
from pathlib import Path

from pipec import registry
from pipec.compiler.backend import load_backend
from pipec.errors import FrontendError
from pipec.frontends.base import Frontend, Loaded, LoadOptions
from pipec.graph.eager import keys_of_calls, missing_calls
from pipec.graph.ir import MEMORY, Source
from pipec.plan.model import Plan
from pipec.plan.trust import check_trusted

GROUP = "pipec.frontends"


def load(spec: str, options: LoadOptions | None = None) -> Loaded:
    """Read and trace a model.

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
        PipecError: What is registered as one is no front end.
    """
    names = registry.entries(GROUP)
    known = [registry.load_class(GROUP, n, Frontend)() for n in names]  # type: ignore[type-abstract]
    for candidate in known:
        if candidate.accepts(spec):
            return candidate
    raise FrontendError(
        "no front end reads this model", got=spec, want=" or ".join(f.pattern for f in known)
    )


def check_runnable(
    directory: Path, source: Source | None, target: str, model: str | None, *, trust: bool
) -> None:
    """Refuse to run what somebody else's plan names or holds; see `check_trusted`.

    ``source`` is None where what the plan says of its model is not read.
    """
    stages = f"the {target} stages" if load_backend(target).runs_emitted_code else None
    code = _code_of(source, model) if source is not None else None
    check_trusted(directory, code or stages, trust=trust)


def _code_of(source: Source, model: str | None) -> str | None:
    """The file of Python that reading a plan's model runs; None if there is none.

    What the plan says of the kind of its model is not believed: who reads the file decides.
    """
    loss = source.options.get("loss")
    if loss:
        return str(loss)
    if model is not None or source.kind == MEMORY or not reader(source.location).runs_code:
        return None
    return source.location


def reload(source: Source, *, spec: str | None = None, trust: bool = False) -> Loaded:
    """Load the model that a plan was made of.

    Raises:
        FrontendError: It cannot be read, or is not the same model any more.
    """
    if source.kind == MEMORY and spec is None:
        raise FrontendError(
            "the plan was made of a module in memory, which cannot be read again",
            got=source.location,
            hint="give its place: --model path/file.py:factory; verify(plan, model, inputs); or, "
            "where its example inputs are wanted, others: --data path/file.py:function",
        )
    where = spec or source.location
    try:
        loaded = load(where, replace(LoadOptions.of(source), trust=trust))
    except FrontendError as error:
        if spec is None:
            error.add_note("the plan names it; --model says where the model is now")
        raise
    found = loaded.graph.source.sha256
    if source.sha256 and found != source.sha256:
        raise FrontendError(
            "the model is not the one that was compiled",
            where=where,
            got=f"sha256 {found}",
            want=f"sha256 {source.sha256}",
            hint="compile it again, or name the right one with --model",
        )
    return loaded


def bring_modules(plan: Plan, spec: str | None = None, *, trust: bool = False) -> None:
    """Read a plan's model again if parts of it run eagerly.

    A module that was compiled in this process cannot be read again: it is used as it is.

    Raises:
        FrontendError: It cannot be read, or is not the same model any more.
    """
    keys, source = keys_of_calls(plan.graph), plan.graph.source
    if not keys or (source.kind == MEMORY and spec is None and not missing_calls(plan.graph)):
        return
    if keys - keys_of_calls(reload(source, spec=spec, trust=trust).graph):
        raise FrontendError(
            "a part that runs eagerly is not the one that was compiled",
            where=spec or source.location,
            got="another class, or other shapes",
            hint="compile it again",
        )
