"""Things with options as text: ``name{key=value key=value}``, for passes and schedules alike.

```text
simplify,partition{stages=4,order=free},schedule{generator=pipedream{replicas=3,1} microbatches=8}
```

Options stand apart by blanks or commas; a comma may also join a list, as no key follows it. Braces
nest.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Sequence as AbstractSequence

from pipec.errors import PipecError

Failure = type[PipecError]


def parse_list(text: str, failure: Failure) -> list[tuple[str, dict[str, str]]]:
    """``a,b{x=1 y=2}`` as ``[("a", {}), ("b", {"x": "1", "y": "2"})]``.

    Raises:
        PipecError: A name is missing, a brace is not closed, or an option has no value.

    Example:
        >>> parse_list("a,b{x=1,2 y=c{z=3}}", PipecError)
        [('a', {}), ('b', {'x': '1,2', 'y': 'c{z=3}'})]
    """
    if not text.strip():
        return []
    items = [piece for piece, _ in _pieces(text, ",", failure)]
    return [parse_one(item, failure, where=text) for item in items]


def parse_one(text: str, failure: Failure, *, where: str = "") -> tuple[str, dict[str, str]]:
    """``b{x=1 y=2}`` as ``("b", {"x": "1", "y": "2"})``; see `parse_list`."""
    name, brace, rest = text.strip().partition("{")
    if not name.strip():
        raise failure("a name is missing", where=where or text, want="name, or name{key=value}")
    if brace and not rest.endswith("}"):
        raise failure("a brace is not closed", where=where or text, hint="write name{key=value}")
    options: dict[str, str] = {}
    key, after_comma = "", False
    for piece, separator in _pieces(rest[:-1], ", \t\n", failure):
        if not piece:
            after_comma = after_comma or separator == ","
            continue
        found, equals, value = piece.partition("=")
        if equals and "{" not in found:
            if found in options:
                where = where or text
                raise failure("an option is named twice", where=where, got=found, want="each once")
            key = found
            options[key] = value
        elif key and after_comma:
            options[key] += f",{piece}"
        else:
            raise failure(
                "an option has no value", where=where or text, got=piece, want="key=value"
            )
        after_comma = separator == ","
    return name.strip(), options


def _pieces(text: str, separators: str, failure: Failure) -> Iterator[tuple[str, str]]:
    """What stands between separators outside of braces, each with the separator behind it."""
    depth, begin = 0, 0
    for at, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            break
        if depth == 0 and character in separators:
            yield text[begin:at].strip(), character
            begin = at + 1
    if depth:
        raise failure("a brace is not closed", where=text, hint="write name{key=value}")
    yield text[begin:].strip(), ""


def format_options(name: str, options: Mapping[str, object]) -> str:
    """The inverse of `parse_one`: the name alone where there is no option.

    Example:
        >>> format_options("pipedream", {"replicas": [3, 1], "sync": "stash"})
        'pipedream{replicas=3,1 sync=stash}'
    """
    given = " ".join(f"{k}={_format_value(v)}" for k, v in options.items())
    return f"{name}{{{given}}}" if given else name


def _format_value(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_format_value, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def value_of(hint: object, text: str, where: str, failure: Failure) -> object:
    """Text as an int, float, bool, str, a sequence or Literal of these, or one of these or None.

    Raises:
        PipecError: The text is no such value.
    """
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        inner = [h for h in typing.get_args(hint) if h is not type(None)]
        return None if text == "none" else value_of(inner[0], text, where, failure)
    if origin in (AbstractSequence, list, tuple):
        return [value_of(typing.get_args(hint)[0], t, where, failure) for t in text.split(",")]
    if origin is typing.Literal:
        choices = [str(c) for c in typing.get_args(hint)]
        if text not in choices:
            raise failure("no such choice", where=where, got=text, want=" or ".join(choices))
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise failure("not a truth value", where=where, got=text, want="true or false")
        return text.lower() == "true"
    try:
        return {int: int, float: float, str: str}[typing.cast("type", hint)](text)
    except ValueError as error:
        want = {int: "an integer", float: "a number"}[typing.cast("type", hint)]
        raise failure("not a number", where=where, got=text, want=want) from error
