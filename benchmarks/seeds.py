"""The published figures of PipeDream, BaPipe, PipeMare and PipeFB, held against our model.

For each figure: the claim, its setting, what our planner and simulator give at that setting, and
where the two differ why. Nothing is fitted. Rows marked circular confirm nothing: their setting is
inferred from the figure itself. PipeDream's and BaPipe's rows need the measured
profiles (environment variable PIPEC_DATA).
"""

from benchmarks.claims import bapipe, pipedream, pipefb, pipemare
from benchmarks.claims.table import show


def main() -> None:
    """Print all tables."""
    for title, module in (
        ("PipeDream", pipedream),
        ("BaPipe", bapipe),
        ("PipeMare", pipemare),
        ("PipeFB", pipefb),
    ):
        found = module.rows()
        if found:
            show(title, found)
        else:
            print(f"\n{title}: no profiles here; set PIPEC_DATA")


if __name__ == "__main__":
    main()
