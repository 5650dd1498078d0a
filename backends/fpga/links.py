"""A link between two boards: what of a frame crosses it, and in how many cycles.

Where one value crosses, in frames of whole beats of the link, its own beats are all that is sent.
Else values travel as `hls/link/link.h` says: tokens in beats, beats in packets behind a header, and
of each value so many packets at most before a credit comes back for one that has been drained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.design import Stream
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.cluster.cluster import Link

PACKET, WINDOW, FLIT_BYTES = 16, 32, 64
"""Beats of a packet, packets that a value may have under way, bytes of a beat; as in ``link.h``."""
AURORA_BYTES = 32
"""Bytes of a beat of an Aurora core of four lanes."""
HAND_OVER = 4
"""Cycles between two packets in a kernel: a pipelined loop ends and another begins (at least a read
and a write apart, and one or two of control in reports of Vitis HLS). Assumed, not measured."""


@dataclass(frozen=True)
class Frame:
    """A value's tokens of one frame, as they cross a link.

    Attributes:
        tokens: Number of tokens.
        width: Bytes of each, at most `FLIT_BYTES`.
    """

    tokens: int
    width: int

    @staticmethod
    def of(stream: Stream) -> "Frame":
        """Of a stream that leaves its stage."""
        return Frame(stream.tokens, stream.token_bits // 8)

    @property
    def nbytes(self) -> int:
        """Padding of the last token of a row included."""
        return self.tokens * self.width

    @property
    def per_beat(self) -> int:
        """Whole tokens in a beat."""
        return FLIT_BYTES // self.width

    @property
    def beats(self) -> int:
        """Beats in packets."""
        return ceil_div(self.tokens, self.per_beat)

    @property
    def packets(self) -> int:
        """Packets."""
        return ceil_div(self.beats, PACKET)

    @property
    def whole(self) -> bool:
        """Whether a width converter to a link and one behind it yield the very same tokens."""
        fits = AURORA_BYTES % self.width == 0 or self.width % AURORA_BYTES == 0
        return fits and self.nbytes % AURORA_BYTES == 0


def needs_packets(frames: Sequence[Frame]) -> bool:
    """Whether values that share a link that drops nothing need packets.

    A width converter would fill a last beat up that is not whole.
    """
    return len(frames) > 1 or any(not frame.whole for frame in frames)


def flight_cycles(link: Link, clock_hz: float) -> int:
    """Cycles from a beat's leaving one end to where it can be read at the other."""
    return math.ceil(link.latency_seconds * clock_hz - 1e-6) + 1


def sending_cycles(frames: Sequence[Frame], link: Link, clock_hz: float) -> int:
    """Cycles in which a frame of these values is sent, if no value has to wait for credits."""
    rate = link.bytes_per_second / clock_hz
    if not needs_packets(frames):
        return math.ceil(sum(frame.nbytes for frame in frames) / rate)
    beats, packets = sum(f.beats for f in frames), sum(f.packets for f in frames)
    in_kernel = beats + packets * (1 + HAND_OVER)
    return max(math.ceil((beats + packets) * FLIT_BYTES / rate), in_kernel)


def link_cycles(frames: Sequence[Frame], link: Link, clock_hz: float) -> int:
    """Least cycles from frame to frame of values that share a link.

    A packet's credit is back when the packet has flown there, its tokens have been drained one by
    one, and the credit has flown back: `WINDOW` packets cross in no less time than that.

    Example:
        >>> wide = [Frame(5_120, 64), Frame(16, 64)]
        >>> [link_cycles(wide, Link(12.8e9, s), 200e6) for s in (0.0, 1e-6, 2e-6)]
        [6741, 6741, 8190]
    """
    sent = sending_cycles(frames, link, clock_hz)
    if not needs_packets(frames):
        return sent
    flights = 2 * flight_cycles(link, clock_hz)
    waited = (f.packets * (flights + PACKET * f.per_beat + 1) / WINDOW for f in frames)
    return max(sent, *(math.ceil(cycles) for cycles in waited))


def link_seconds(frame: Frame, beside: int, link: Link, clock_hz: float) -> float:
    """Until the last byte of one frame of a value has arrived, with nothing else on the way.

    So many other values use the link ``beside`` it.
    """
    shared = [frame, *[Frame(0, FLIT_BYTES)] * beside]
    return link_cycles(shared, link, clock_hz) / clock_hz + link.latency_seconds
