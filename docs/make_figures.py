"""Show in the pages what benchmarks have printed: ``python docs/make_figures.py``.

``python -m benchmarks keep NAME`` writes ``docs/figures/NAME.json``. A page shows all of it behind
``<!-- figures NAME -->``, its last lines behind ``<!-- figures NAME last 2 -->``, those from one
that begins so on behind ``<!-- figures NAME from boards -->``, and all that begin so behind
``<!-- figures NAME only boards -->``. With ``in words`` at the end they are a paragraph or a list.
"""

import json
import re
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
_BLOCK = re.compile(
    r"(<!-- figures (\S+)(?: (last|from|only) (.+?))?( in words)? -->\n)"
    r".*?(<!-- end of figures -->)",
    re.DOTALL,
)


def block(name: str, how: str | None, what: str, words: str | None) -> str:
    """What was printed, and under it when and where, with the lines around it."""
    record = json.loads((HERE / "figures" / f"{name}.json").read_text())
    lines = record["printed"]
    if how == "last":
        lines = lines[-int(what) :]
    elif how == "from":
        lines = lines[next(k for k, line in enumerate(lines) if line.startswith(what)) :]
    elif how == "only":
        lines = [line for line in lines if line.startswith(what)]
    day = date.fromisoformat(record["date"])
    told = f"{day:%-d %B %Y}, {record['machine']}, torch {record['torch']}"
    if words:
        whole = "\n".join(lines).replace("\n    ", " ").splitlines()  # a line goes on if indented
        mark = "* " * (len(whole) > 3)  # a list, if they are many
        said = ";\n".join(mark + " ".join(line.split()) for line in whole)
        return f"{said}\n(`{record['command']}`, {told}).\n"
    return "\n".join(["", "```text", *lines, "```", "", f"`{record['command']}`, {told}.", "", ""])


def shown(page: Path) -> str:
    """The text of a page with its figures made anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}{block(*m.groups()[1:5])}{m[6]}", page.read_text())


def pages() -> list[Path]:
    """Every page of the documents."""
    return sorted(HERE.glob("**/*.md"))


if __name__ == "__main__":
    for page in pages():
        text = shown(page)
        if text != page.read_text():
            page.write_text(text)
