"""One row per claim: what was published, at which setting, what our model gives, and why not."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One published figure beside ours.

    Attributes:
        claim: What was published.
        setting: Models, devices and links.
        ours: What our model gives at that setting.
        why: Why the two differ, where they do.
    """

    claim: str
    setting: str
    ours: str
    why: str = ""


def show(title: str, rows: list[Row]) -> None:
    """Print one system's rows."""
    print(f"\n{title}")
    widths = [max(len(getattr(r, f)) for r in rows) for f in ("claim", "setting", "ours")]
    for r in rows:
        cells = (r.claim, r.setting, r.ours)
        text = "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))
        print(f"  {text}  {r.why}".rstrip())
