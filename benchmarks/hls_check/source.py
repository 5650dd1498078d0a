"""C++ for an HLS tool as text: its loops, what its pragmas say, and the same in clang's words."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import networkx as nx

from pipec.errors import BackendError

_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
"""Comments and strings."""
_ONCE = re.compile(r"for\s*\(\s*\w+ (\w+) = 0;\s*\1 < 1;")
_FOR = re.compile(r"(?:\b(\w+)\s*:\s*)?\bfor\s*\(")
_DEFINITION = re.compile(r"\b(struct|class|union|enum|namespace|extern)\b[^;(){]*\{|\b(\w+)\s*\(")
_LINES_OF_TOOLS = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_PARTITION = re.compile(r"#pragma HLS array_partition (.*)", re.IGNORECASE)
_OUTSIDE = re.compile(r"^ *#pragma HLS (?i:interface) m_axi port *= *(\w+)", re.MULTILINE)
_UNROLL = re.compile(r"#pragma HLS unroll(?: +factor *= *(\d+))?", re.IGNORECASE)
_PIPELINE = re.compile(r"#pragma HLS pipeline\b(?: +II *= *(\d+))?", re.IGNORECASE)
_ARRAY = re.compile(r"(\w+)((?:\[[^\]]*\])+)\s*(?=[,)\n])")
_LOCAL = re.compile(
    r"^\s*(?!return\b|else\b|case\b)[\w:<>, ]*\w>? +(\w+)((?:\[[^\]]*\])+)\s*[;=]", re.MULTILINE
)
_CALL = re.compile(r"\b(\w+)(?:<[^;()]*>)?\(([^;{]*?)\);")
_INLINE = re.compile(r"#pragma HLS inline\b(?! *(?:off|recursive))", re.IGNORECASE)
_COMMA = re.compile(r",(?![^<]*>)")
Banks = dict[int, tuple[str, int]]
"""Kind and factor of a partition by dimension, counted from 1; dimension 0 for all of them."""


@dataclass(frozen=True)
class Place:
    """Where an array lies.

    Attributes:
        banks: What pragmas say.
        free: Whether the tool chooses banks where no pragma does: an array inside of the kernel.
        outside: Whether it lies in memory outside of the chip, behind an ``m_axi`` port.
        shape: Sizes of its dimensions, 0 for what is no number.
    """

    banks: Banks = field(default_factory=dict)
    free: bool = False
    shape: tuple[int, ...] = ()
    outside: bool = False


@dataclass(eq=False)
class SourceLoop:
    """A loop of a source file.

    Attributes:
        label: Its label, or ``VITIS_LOOP_`` and the line of its ``for``, as the tool names it.
        begin: Where its ``for`` begins; ``body`` and ``end`` are where its body does, and ends.
        braces: Whether its body is in braces.
        outer: The loop around it.
        function: The function that it is in.
        once: Whether it has one iteration, so that it is no loop to the tool.
    """

    label: str
    begin: int
    body: int
    end: int
    braces: bool
    outer: "SourceLoop | None"
    function: str
    once: bool = False

    def around(self) -> Iterator["SourceLoop"]:
        """The loops around it, the nearest first."""
        loop = self.outer
        while loop is not None:
            yield loop
            loop = loop.outer

    def count_levels(self, name: str) -> int:
        """Of how many loops, this the innermost, a report's name consists; 0 if it does not.

        Example:
            >>> outer = SourceLoop("rows", 0, 0, 9, True, None, "f")
            >>> inner = SourceLoop("VITIS_LOOP_7", 2, 3, 8, True, outer, "f")
            >>> inner.count_levels("rows_VITIS_LOOP_7_2"), inner.count_levels("VITIS_LOOP_7_2")
            (2, 1)
            >>> inner.count_levels("columns_VITIS_LOOP_7_2"), outer.count_levels("more_rows")
            (0, 0)
        """
        rest, levels = name, 0
        for loop in (self, *self.around()):
            number = r"_\d+" if loop.label.startswith("VITIS_LOOP_") else ""
            match = re.search(rf"(?:^|_){re.escape(loop.label)}{number}$", rest)
            if match is None and loop.once and levels:
                continue  # a loop of one iteration is none to the tool
            if match is None:
                break
            rest, levels = rest[: match.start()], levels + 1
        return 0 if rest else levels


def find_closing(text: str, at: int, pair: str) -> int:
    """Place of what closes the parenthesis or brace at a place.

    Raises:
        BackendError: Nothing does.
    """
    depth = 0
    for k in range(at, len(text)):
        depth += (text[k] == pair[0]) - (text[k] == pair[1])
        if not depth:
            return k
    raise BackendError(f"nothing closes {pair}")


@dataclass(frozen=True)
class SourceFunction:
    """A function of a source file.

    Attributes:
        name: Its name.
        begin: Where its type begins, behind ``template <...>``.
        given: Where the parenthesis of its parameters opens; ``closed`` where it closes.
        end: Where its body ends; that of a declaration is where its parameters do.
    """

    name: str
    begin: int
    given: int
    closed: int
    end: int

    @property
    def is_declaration(self) -> bool:
        """Whether it has no body here."""
        return self.end == self.closed


def _blank(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _keep_code(text: str) -> str:
    """A text without comments, strings and lines of the preprocessor, spaces in their places."""
    return _blank(_LINES_OF_TOOLS, _blank(_NO_CODE, text))


def find_functions(text: str) -> list[SourceFunction]:
    """Functions of a source file outside of types, in its order, declarations included.

    Example:
        >>> text = "struct A { int f() { return 1; } };\\nint g(int);\\nint h(int x) { k(); }"
        >>> [(f.name, f.is_declaration, text[f.begin : f.given]) for f in find_functions(text)]
        [('g', True, 'int g'), ('h', False, 'int h')]
    """
    code, at, found = _keep_code(text), 0, list[SourceFunction]()
    while match := _DEFINITION.search(code, at):
        if match[1]:
            inside = match[1] in {"namespace", "extern"}
            at = match.end() if inside else find_closing(code, match.end() - 1, "{}") + 1
            continue
        begin = _skip(code, max(code.rfind(c, 0, match.start()) for c in ";{}") + 1)
        if code.startswith("template", begin):
            begin = _skip(code, find_closing(code, code.index("<", begin), "<>") + 1)
        given = match.end() - 1
        end = closed = find_closing(code, given, "()")
        after = _skip(code, closed + 1)
        if code.startswith("{", after):
            end = find_closing(code, after, "{}")
        typed = begin < match.start() and "=" not in code[begin:given]
        if typed and code[after : after + 1] in {"{", ";"}:
            found.append(SourceFunction(match[2], begin, given, closed, end))
        at = end + 1
    return found


def _find_bodies(text: str) -> list[SourceFunction]:
    return [f for f in find_functions(text) if not f.is_declaration]


def find_loops(text: str) -> list[SourceLoop]:
    """The loops of a source file in its order, so that outer ones come first."""
    found: list[SourceLoop] = []
    functions, text = _find_bodies(text), _blank(_NO_CODE, text)
    for m in _FOR.finditer(text):
        body = _skip(text, find_closing(text, text.index("(", m.end() - 1), "()") + 1)
        braces = text[body] == "{"
        end = _end_statement(text, body)
        begin = m.start() if m[1] is None else text.index("for", m.end(1))
        around = [x for x in found if x.body <= begin < x.end]
        label = m[1] or f"VITIS_LOOP_{text.count(chr(10), 0, begin) + 1}"
        function = next((f.name for f in functions if f.begin < begin < f.end), "")
        outer = around[-1] if around else None
        once = _ONCE.match(text, begin) is not None
        found.append(SourceLoop(label, begin, body, end, braces, outer, function, once))
    return found


def _skip(text: str, at: int) -> int:
    """The next place that is neither space, comment nor pragma."""
    while match := re.compile(r"\s+|//[^\n]*|#[^\n]*").match(text, at):
        at = match.end()
    return at


def _end_statement(text: str, at: int) -> int:
    """Where the statement at a place ends."""
    if text[at] == "{":
        return find_closing(text, at, "{}")
    if not (word := re.compile(r"(?:\w+\s*:\s*)?(for|while|if)\s*\(").match(text, at)):
        return text.index(";", at)
    end = _end_statement(text, _skip(text, find_closing(text, word.end() - 1, "()") + 1))
    after = _skip(text, end + 1)
    if word[1] == "if" and re.compile(r"else\b").match(text, after):
        return _end_statement(text, _skip(text, after + len("else")))
    return end


def own_text(text: str, loop: SourceLoop, loops: Sequence[SourceLoop]) -> str:
    """A loop up to the next one."""
    after = [x.begin for x in loops if x.begin > loop.begin]
    return text[loop.begin : min([*after, loop.end])]


def read_target(own: str) -> int:
    """The interval that a loop's pragma asks for, 1 if it names none; 0 without a pragma."""
    match = _PIPELINE.search(own)
    return int(match[1] or 1) if match else 0


def translate(
    text: str, loops: Sequence[SourceLoop], marked: Collection[int], headers: str = ""
) -> str:
    """The source with a call of ``pipec_loop(K)`` in every marked loop K, for clang.

    Loops in a marked one are unrolled, and loops as their pragmas say. Functions stay functions,
    and arrays that they are given do not overlap. What headers declare stays visible to others.
    """
    inserts: dict[int, list[str]] = defaultdict(list)
    numbers = {id(x): k for k, x in enumerate(loops)}
    for k, loop in enumerate(loops):
        inside = any(numbers[id(x)] in marked for x in loop.around())
        unroll = _UNROLL.search(own_text(text, loop, loops))
        if inside or (unroll and not unroll[1]):
            inserts[loop.begin].append('_Pragma("clang loop unroll(full)") ')
        elif unroll:
            inserts[loop.begin].append(f'_Pragma("clang loop unroll_count({unroll[1]})") ')
        mark = f" pipec_loop({k});" if k in marked else ""
        if loop.braces:
            inserts[loop.body + 1].append(mark)
        else:
            inserts[loop.body].insert(0, "{" + mark)
            inserts[loop.end + 1].append("}")
    functions, code = find_functions(text), _keep_code(text)
    declared = {f.name for f in (*functions, *find_functions(headers)) if f.is_declaration}
    for function in (f for f in functions if not f.is_declaration):
        own = text[function.closed : function.end]
        called = len(re.findall(rf"\b{function.name}\b", code)) > 1
        local = called and function.name not in declared  # constants are known inside
        merged = _INLINE.search(own) or (called and not _FOR.search(own))
        kept = "inline __attribute__((always_inline)) " if merged else "__attribute__((noinline)) "
        inserts[function.begin].append("static " * local + kept)
        for a in _ARRAY.finditer(text, function.given, function.closed + 1):
            line = text[text.rfind("\n", 0, a.start()) + 1 : a.start()]
            if "//" not in line and "stream<" not in line:
                inserts[a.start()].append("(*__restrict ")
                inserts[a.end(1)].append(")" + a[2][a[2].index("]") + 1 :] + "/*")
                inserts[a.end(2)].append("*/")
    return "".join(_insert(text, inserts))


def _insert(text: str, inserts: dict[int, list[str]]) -> Iterator[str]:
    last = 0
    for at in sorted(inserts):
        yield text[last:at]
        yield from inserts[at]
        last = at
    yield text[last:]


def _read_shape(declared: str, text: str) -> tuple[int, ...]:
    """Sizes of dimensions, which may be macros of the text."""
    found = []
    for size in re.findall(r"\[([^\]]*)\]", declared):
        macro = re.search(rf"#define {re.escape(size)} +(\d+)", text)
        number = macro[1] if macro else size.strip()
        found.append(int(number) if number.isdigit() else 0)
    return tuple(found)


def _read_partitions(text: str) -> dict[tuple[str, str], Banks]:
    """What the pragmas of a file say of its arrays, by function and variable."""
    functions = _find_bodies(text)
    found: dict[tuple[str, str], Banks] = defaultdict(dict)
    for m in _PARTITION.finditer(text):
        words = dict(re.findall(r"(\w+)\s*=\s*(\w+)", m[1]))
        kind = next((k for k in ("cyclic", "block") if k in m[1]), "complete")
        around = [f.name for f in functions if f.begin < m.start() < f.end]
        dim, factor = (words.get(key, default) for key, default in (("dim", "0"), ("factor", "1")))
        if around and "variable" in words and dim.isdigit() and factor.isdigit():
            found[around[-1], words["variable"]][int(dim)] = (kind, int(factor))
    return dict(found)


def read_places(text: str) -> dict[str, dict[str, Place]]:
    """Where arrays lie, by function and name; what a function is given lies where its caller says.

    Of functions of one name, which differ in arguments that are no arrays, the last one counts.
    """
    partitions, parts = _read_partitions(text), _split(text)
    found: dict[str, dict[str, Place]] = {}
    for name, (parameters, own) in parts.items():
        shapes = {_name_of(p): Place(shape=_read_shape(p, text)) for p in parameters}
        local = {m[1]: Place({}, True, _read_shape(m[2], text)) for m in _LOCAL.finditer(own)}
        outside = {port: Place(outside=True) for port in _OUTSIDE.findall(own)}
        found[name] = shapes | local | outside
    for (function, variable), banks in partitions.items():
        old = found[function].get(variable, Place())
        found[function][variable] = Place(banks, old.free, old.shape)
    calls = {name: list(_CALL.finditer(own)) for name, (_, own) in parts.items()}
    calls = {name: [c for c in every if c[1] in parts] for name, every in calls.items()}
    flow = nx.condensation(nx.DiGraph((name, c[1]) for name in calls for c in calls[name]))
    callers = (n for k in nx.topological_sort(flow) for n in flow.nodes[k]["members"])
    for name in callers:  # before what they call
        for call in calls[name]:
            given = map(str.strip, call[2].split(","))
            for parameter, argument in zip(parts[call[1]][0], given, strict=False):
                own = _name_of(parameter)
                if argument in found[name]:
                    its, old = found[name][argument], found[call[1]][own]
                    banks = partitions.get((call[1], own), its.banks)
                    found[call[1]][own] = Place(banks, its.free, old.shape, its.outside)
    return found


def _split(text: str) -> dict[str, tuple[list[str], str]]:
    """Parameters and body of every function."""
    found = {}
    for f in _find_bodies(text):
        given = re.sub(r"//.*", "", text[f.given + 1 : f.closed])
        found[f.name] = [p.strip() for p in _COMMA.split(given)], text[f.closed : f.end]
    return found


def _name_of(parameter: str) -> str:
    """Name of a parameter, of several sizes perhaps."""
    words = re.sub(r"(\[[^\]]*\])+$", "", parameter).split()
    return words[-1].lstrip("&*") if words else ""
