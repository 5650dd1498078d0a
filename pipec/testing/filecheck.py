"""Passes tested by text files: a graph or plan, the passes, and what their result must say.

```text
// passes: simplify
// CHECK: relu = aten.relu.default(x)      a line that says this, behind those found before
// CHECK-NEXT: return                      the very next line
// CHECK-NOT: aten.clone                   nothing of this between the checks beside it
// ERROR: put it before partition          instead of all others: the passes end with this error
{"format":"pipec.graph", ...
```

As in LLVM's FileCheck, ``{{...}}`` is a regular expression, ``[[NAME:...]]`` one whose match
``[[NAME]]`` stands for afterwards, and runs of spaces are equal.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PipecError
from pipec.plan.text import header_of, plan_from_text, plan_to_python

_TOKEN = re.compile(r"\{\{(.+?)\}\}|\[\[(\w+)(?::(.+?))?\]\]")


def check_file(path: Path) -> None:
    """Run the passes that a file names on its plan, and compare what comes of it.

    Raises:
        AssertionError: It is not what the file expects.
    """
    text = path.read_text(encoding="utf-8")
    header = header_of(text)
    fields = dict(header)
    checks = [(name, words) for name, words in header if name.startswith("CHECK")]
    assert checks or "ERROR" in fields, f"{path} expects nothing"
    try:
        plan = plan_from_text(text, parse_cluster(fields.get("devices", "2xh100")))
        found = plan_to_python(run_passes(parse_pipeline(fields["passes"]), plan))
    except PipecError as error:
        if "ERROR" not in fields:
            raise
        found, checks = str(error), [("CHECK", fields["ERROR"])]
    else:
        assert "ERROR" not in fields, f"{path}: no error, want {fields['ERROR']!r}"
    check(found, checks)


def check(text: str, checks: Sequence[tuple[str, str]]) -> None:
    """Compare a text with expectations.

    Args:
        text: What a pass has made.
        checks: ``CHECK``, ``CHECK-NEXT`` or ``CHECK-NOT`` with a pattern, in order.

    Raises:
        AssertionError: One does not hold; it is named with the lines from where it was looked for.
    """
    lines, at, known = [_squeeze(line) for line in text.splitlines()], 0, dict[str, str]()
    absent: list[str] = []
    for kind, pattern in [*checks, ("CHECK", "")]:
        if kind == "CHECK-NOT":
            absent.append(pattern)
            continue
        last = (kind, pattern) == ("CHECK", "")
        wanted = re.compile(_expression(pattern, known))
        places = range(at, at + 1 if kind == "CHECK-NEXT" else len(lines))
        found = next(((k, m) for k in places if (m := wanted.search(lines[k]))), None)
        end = len(lines) if last or found is None else found[0]
        for forbidden in absent:
            bad = [line for line in lines[at:end] if re.search(_expression(forbidden, known), line)]
            assert not bad, f"CHECK-NOT: {forbidden}\ngot: {bad[0]}"
        if last:
            return
        rest = "\n".join(lines[at : at + 20])
        assert found is not None, f"{kind}: {pattern}\nlooked for from here:\n{rest}"
        known |= {k: v for k, v in found[1].groupdict().items() if v is not None}
        at, absent = found[0] + 1, []


def _expression(pattern: str, known: dict[str, str]) -> str:
    """The regular expression of a pattern."""
    found, at = "", 0
    for token in _TOKEN.finditer(pattern):
        regex, name, definition = token.groups()
        found += re.escape(_squeeze(pattern[at : token.start()]))
        if regex:
            found += f"(?:{regex})"
        else:
            found += f"(?P<{name}>{definition})" if definition else re.escape(known[name])
        at = token.end()
    return found + re.escape(_squeeze(pattern[at:]))


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text)
