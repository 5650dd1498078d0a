"""What a design promises: interval, latency, what bounds them, and what links allow."""

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.links import Frame, link_cycles, link_seconds
from pipec.cluster.cluster import Link
from pipec.cluster.device import Device
from pipec.plan.model import StageTiming


def stage_timing(design: StageDesign, device: Device, link: Link | None = None) -> StageTiming:
    """Interval and latency of a stage, in seconds, and what bounds the interval.

    Its outputs share a link; the board's own port if none is given.
    """
    link = link or Link(device.link_bandwidth, device.link_latency)
    clock = design.clock_mhz * 1e6
    sending = {p.value: Frame.of(design.streams[p.stream]) for p in design.outputs}
    frames = [*sending.values()]
    sent, (cycles, engine) = link_cycles(frames, link, clock), busiest(design)
    bottleneck = f"engine {engine}, {cycles:,} cycles"
    if sent > cycles:
        bottleneck = f"link, {sent:,} cycles for {sum(f.nbytes for f in frames):,} bytes"
    tables = [t for e in design.engines for t in e.weights]
    notes = []
    streamed = [p for p in design.ddr if p.carries is None]
    if streamed:
        nbytes = sum(p.bytes_per_frame for p in streamed)
        traffic = sum(p.bytes_per_second for p in streamed)
        notes.append(
            f"{len(streamed)} weight tables are streamed from DDR: {nbytes / 1e6:.1f} MB per "
            f"frame, {traffic / 1e9:.1f} of {device.memory_rate / 1e9:.1f} GB/s"
        )
    notes.append(
        f"{mac_units(design):,} multiply-accumulate units; {design.resources.dsp:,.0f} of "
        f"{design.limits.dsp:,.0f} DSPs"
    )
    return StageTiming(
        interval_seconds=max(design.interval, sent) / clock,
        latency_seconds=design.latency / clock,
        bottleneck=bottleneck,
        memory_bytes=sum(t.bits // 8 for t in tables if t.memory == Memory.DDR),
        notes=tuple(notes),
        link_seconds=tuple(
            (value, link_seconds(frame, len(frames) - 1, link, clock))
            for value, frame in sending.items()
        ),
    )


def mac_units(design: StageDesign) -> int:
    """Multiplications and additions that a stage's engines can start in one cycle."""
    return sum(engine.nest.units for engine in design.engines)
