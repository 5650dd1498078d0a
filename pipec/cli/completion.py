"""What a shell offers behind an option: names that pipec knows, found without importing torch.

Bash: ``eval "$(_PIPEC_COMPLETE=bash_source pipec)"`` (zsh: ``zsh_source``, fish: ``fish_source``).
"""

import click
from click.shell_completion import CompletionItem

from pipec.cluster.presets import PRESETS
from pipec.registry import entries


def complete_targets(
    ctx: click.Context, param: click.Parameter, text: str
) -> list[CompletionItem]:  # fmt: skip
    """Offer the backends."""
    del ctx, param
    return _complete("", text, list(entries("pipec.backends")))


def complete_schedules(
    ctx: click.Context, param: click.Parameter, text: str
) -> list[CompletionItem]:
    """Offer the schedules, and how one may be found."""
    del ctx, param
    return _complete("", text, ["auto", "fastest", *entries("pipec.schedules")])


def complete_passes(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """Offer the passes for the last place of a pipeline ``a,b{k=v},c``."""
    del ctx, param
    before, comma, last = text.rpartition(",")
    return _complete(before + comma, last, list(entries("pipec.passes")))


def complete_devices(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """Offer the kinds of devices behind the count of the last part of ``2xa,3xb``."""
    del ctx, param
    before, times, last = text.rpartition("x")
    count = before + times
    if not times:
        count, last = ("", text) if text else ("2x", "")
    return _complete(count, last, list(PRESETS))


def _complete(before: str, text: str, names: list[str]) -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in sorted(names) if name.startswith(text)]
