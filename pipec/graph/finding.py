"""What a rule finds: the place, what is there, and what the rule wants."""

from dataclasses import dataclass

from pipec.errors import PipecError, list_lines


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule.

    Attributes:
        place: Node, stage, channel or weight.
        got: What is there.
        want: What the rule asks for.
    """

    place: str
    got: object
    want: object

    def __str__(self) -> str:
        return f"{self.place}: got {self.got}; want {self.want}"


def refuse(kind: type[PipecError], what: str, found: list[tuple[str, Finding]], where: str) -> None:
    """Raise one error that lists all findings, each with its rule; nothing if there are none.

    Raises:
        PipecError: Of class ``kind``.
    """
    if found:
        got = list_lines([f"[{name}] {finding}" for name, finding in found])
        raise kind(f"the {what} breaks {len(found)} rule(s)", where=where, got=got)
