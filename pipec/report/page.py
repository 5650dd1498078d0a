"""One HTML file that shows a plan, or two: no server, no network, to be opened or attached.

Styles, scripts and data stand in the file. Its security policy forbids every request and every
script but its own, and all text goes through ``textContent``: a name cannot become code.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipec.files import check_output, write_file
from pipec.plan.model import Plan
from pipec.report.page_data import page_data

_STYLES = ("page.css",)
_SCRIPTS = ("base.js", "gantt.js", "memory.js", "model.js", "views.js", "compare.js", "main.js")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'">
<title>pipec report</title>
<style>
{styles}</style>
</head>
<body>
<noscript>This page draws itself and needs JavaScript; nothing is loaded from elsewhere.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(
    plan: Plan, path: Path, *, other: Plan | None = None, extras: Mapping[str, Any] | None = None
) -> Path:
    """Write the page.

    Args:
        plan: What it shows.
        path: The file, replaced if it is there.
        other: A second plan, to see what differs.
        extras: What other commands found out: ``verify``, ``metrics``, ``measured``, ``engines``.

    Returns:
        The path.

    Raises:
        PipecError: The file cannot be written.
    """
    check_output(path, ".html", ".htm")
    plans = [plan] if other is None else [plan, other]
    text = page(plans, extras or {})
    write_file(path, text)
    return path


def page(plans: Sequence[Plan], extras: Mapping[str, Any]) -> str:
    """The whole file as text; the same plans give the same text."""
    data = {"pipec": version("pipec"), "plans": [page_data(p) for p in plans], **extras}
    script = "'use strict';\n" + "".join(_file(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        digest=digest, styles="".join(map(_file, _STYLES)), data=embed(data), script=script
    )


def embed(data: object) -> str:
    r"""JSON that can stand inside of a script element: nothing in it ends one or opens a comment.

    Example:
        >>> print(embed({"name": "</script><!--"}))
        {"name":"\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False, default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: Any) -> Any:
    """The same with null for numbers that are not finite: JSON has none."""
    if isinstance(data, float):
        return data if abs(data) != float("inf") and data == data else None  # noqa: PLR0124
    if isinstance(data, Mapping):
        return {str(k): _finite(v) for k, v in data.items()}
    return [_finite(v) for v in data] if isinstance(data, list | tuple) else data


def _file(name: str) -> str:
    return (files("pipec.report") / "web" / name).read_text(encoding="utf-8")
