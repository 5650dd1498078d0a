"""Every pragma that is emitted, changed in every way: the linter finds all but what is harmless."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.fpga.emit.test_lint import written
from tests.fpga.lint.stage import findings
from tests.sampling import ALL

OTHER = {
    "bram": "uram", "uram": "bram", "lutram": "bram", "ram_2p": "ram_1p", "slave": "off",
    "fabric": "dsp", "mul": "add", "complete": "block", "axis": "s_axilite", "cyclic": "complete",
    "m_axi": "axis", "s_axilite": "axis", "true": "false",
}  # fmt: skip
"""A word to another one that could stand in its place."""

ADDED = (
    "off", "rewind", "style = flp", "type = pipo", "latency = 3", "disable_start_propagation",
    "register_mode = off", "num_write_outstanding = 1", "recursive", "skip_exit_check",
)  # fmt: skip
"""What could stand behind a pragma; each changes some pragma's meaning."""

HARMLESS = re.compile(
    r"delete .*LOOP_TRIPCOUNT|(min|max) -> 1 |"  # for reports alone
    r"delete .*INLINE|"  # a helper without a pipelined loop: inlined anyway, or pipelined
    r"delete .*(BIND_OP|BIND_STORAGE variable = (above|before|ring|part) )|"  # another resource,
    r"impl -> dsp |"  # same cycles
    r"delete .*DEPENDENCE"  # no cycles, but an interval that cannot be reached: test_hlscheck.py
)
"""What changes neither values nor cycles."""


def mutations(line: str, *, first: bool) -> Iterator[tuple[str, str]]:
    """What is done to a pragma, and what it is then; words are added to the first of its form."""
    yield "delete", ""
    yield "condition", f"#ifdef FAST\n{line}\n#endif"
    yield from ((f"add {more}", f"{line} {more}") for more in ADDED if first)
    if "PIPELINE" in line or "UNROLL" in line:
        yield (
            "add the other",
            f"{line}\n#pragma HLS {'UNROLL' if 'PIPELINE' in line else 'PIPELINE'}",
        )
    yield "rename", re.sub(r"HLS (\w+)", r"HLS \1X", line)
    for key, value, word in re.findall(r"(\w+) = (\S+(?: [+] \S+)*)|([a-z]\w*)", line):
        if word == "pragma":
            continue
        if word:
            yield f"drop {word}", line.replace(f" {word}", "", 1)
            yield f"{word} -> {OTHER[word]}", line.replace(f" {word}", f" {OTHER[word]}", 1)
            continue
        pair = f" {key} = {value}"
        yield f"drop {key}", line.replace(pair, "", 1)
        changed = [str(int(value) + d) for d in (-1, 1)] if value.isdigit() else []
        changed += [] if changed else [OTHER.get(value, f"{value}_x")]
        changed += ["1"] if key in ("min", "max", "ii", "factor", "dim") else []
        for new in changed:
            if new != value:
                yield f"{key} -> {new}", line.replace(pair, f" {key} = {new}", 1)


def places(stage: Path, seen: set[str]) -> Iterator[tuple[Path, int, str, bool]]:
    """Pragmas, one per form and file, and whether it is the first of its form.

    Where all is asked for, every one of a header not yet seen.
    """
    for path in (stage / "src/stage_top.cpp", *sorted((stage / "src/engines").glob("*.h"))):
        for number, line in enumerate(path.read_text().splitlines()):
            if line.lstrip().startswith("#pragma HLS"):
                form = re.sub(r"(variable|port|bundle) = \S+|\d+", "", line.strip())
                place = form if path.suffix == ".cpp" else f"{path.name} {number if ALL else form}"
                if place not in seen:
                    yield path, number, line, form not in seen
                seen |= {form, place}


def test_every_pragma_matters(tmp_path: Path) -> None:
    stages = [written(name, tmp_path / name) for name in ("encoder", "vgg")]
    seen: set[str] = set()
    total, missed = 0, list[str]()
    for stage, path, number, line, first in [(s, *p) for s in stages for p in places(s, seen)]:
        text = path.read_text()
        for what, new in mutations(line, first=first):
            lines = text.splitlines()
            lines[number] = new
            path.write_text("\n".join(lines))
            total += 1
            told = f"{what} {path.name}: {line.strip()}"
            # "library" finds any change of a header
            found = any(f.rule != "library" for f in findings(stage))
            if not found and not HARMLESS.match(told):
                missed.append(told)
        path.write_text(text)
    assert missed == []
    assert total > 300
