"""The option ``--allow-namespace``: ops beyond pipec's own that a plan's graphs may use."""

import importlib
from collections.abc import Callable
from typing import TypeVar

import click

from pipec.frontends.base import user_code

_F = TypeVar("_F", bound=Callable[..., object])


def allow_namespace_option(function: _F) -> _F:
    """Add ``--allow-namespace``; `import_namespaces` reads its values."""
    return click.option(
        "--allow-namespace",
        multiple=True,
        metavar="NAME[=MODULE]",
        help="Allow ops of torch.ops.NAME; MODULE is imported to define them.",
    )(function)


def import_namespaces(texts: tuple[str, ...]) -> frozenset[str]:
    """Import the modules that the user named.

    Returns:
        The allowed namespaces.

    Raises:
        FrontendError: A module cannot be imported.
    """
    allowed = set()
    for text in texts:
        name, _, module = text.partition("=")
        allowed.add(name)
        if module:
            with user_code(f"the module of --allow-namespace {text} cannot be imported"):
                importlib.import_module(module)
    return frozenset(allowed)
