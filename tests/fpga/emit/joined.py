"""What files for boards join, read as the vendor's tools read them: one reader for all of them."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Joined:
    """What a file says of a board.

    Attributes:
        instances: Instance to kernel.
        banks: Memory pin to bank, or to the interconnect of one.
        pairs: Streams, from pin to pin.
        host: Pins named as the host's; ``crossing`` as another board's.
    """

    instances: dict[str, str]
    banks: dict[str, str]
    pairs: list[tuple[str, str]]
    host: list[str]
    crossing: list[str]

    @property
    def streams(self) -> list[str]:
        """Stream pins that are led somewhere, as often as they are."""
        return [*(end for pair in self.pairs for end in pair), *self.host, *self.crossing]


def of_cfg(path: Path) -> Joined:
    """``link.cfg`` or ``connections.cfg``; every line must be understood."""
    found = Joined({}, {}, [], [], [])
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    assert head == "[connectivity]"
    for line in lines:
        if line.startswith("#"):
            host, crossing = (
                re.fullmatch(rf"# to or from {who}: (\S+)", line)
                for who in ("the host, by a data mover", "another board")
            )
            found.host.extend([host[1]] if host else [])
            found.crossing.extend([crossing[1]] if crossing else [])
            continue
        key, text = line.split("=", maxsplit=1)
        words = text.split(":")
        if key == "nk":
            kernel, count, names = words
            assert int(count) == len(names.split(","))
            found.instances.update(dict.fromkeys(names.split(","), kernel))
        elif key == "sp":
            assert words[0] not in found.banks
            found.banks[words[0]] = words[1]
        else:
            assert key in ("stream_connect", "connect")
            if key == "stream_connect":
                found.pairs.append((words[0], words[1]))
    return found


def of_tcl(path: Path) -> Joined:
    """``connections.tcl``; pins with a dot, as in a ``cfg``."""
    text = path.read_text(encoding="utf-8")
    cells = dict(
        reversed(found)
        for found in re.findall(r"-vlnv xilinx\.com:hls:(\w+):1\.0 (\w+)$", text, re.MULTILINE)
    )
    pin = r"\[get_bd_intf_pins (\w+)/(\w+)\]"
    pins = rf"^connect_bd_intf_net {pin} {pin}$"
    banks, pairs = {}, []
    for a, out, b, into in re.findall(pins, text, re.MULTILINE):
        if a in cells and b in cells:
            pairs.append((f"{a}.{out}", f"{b}.{into}"))
        elif a in cells:
            assert out.startswith("m_axi_")
            banks[f"{a}.{out}"] = b
    outside = re.findall(rf"^make_bd_intf_pins_external {pin}$", text, re.MULTILINE)
    free = [f"{a}.{port}" for a, port in outside if a in cells and port != "s_axi_control"]
    return Joined(cells, banks, pairs, [], free)


def ports_of(folder: Path) -> tuple[str, list[str], set[str]]:
    """Top function, stream ports and memory bundles that a kernel's C++ declares."""
    text = (folder / "src/stage_top.cpp").read_text(encoding="utf-8")
    (top,) = re.findall(r"^void (\w+)\(", text[text.index('extern "C"') :], re.MULTILINE)
    streams = re.findall(r"INTERFACE axis port = (\w+)", text)
    return top, streams, set(re.findall(r"INTERFACE m_axi .*? bundle = (\w+)", text))
