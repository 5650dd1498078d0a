"""PipeFB: forward and backward passes on different devices.

```text
device    0    1    2    3
          F0 > F1 > B1 > B0          data, then gradients, down the chain
saved     F0 --> host --> B0         values that the backward needs, through host memory
weights   B0 --> F0                  published after every step
```

Known by its abstract only: placement and transfer mechanism are the authors', the version rule
and the publishing are ours. A forward must not wait for weights, so it uses the newest version
that can have arrived: ``2(P-i)+1`` updates old on stage i (1-based), plus the publishing.
"""

from pipec.errors import ScheduleError
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.build import build
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.schedule import Placement, Schedule
from pipec.schedule.versions import VersionRule


def pipefb(
    stages: int, microbatches: int, backward_stages: int = 0, publish: int = 1, saved: str = "host"
) -> Schedule:
    """Forward devices 0 .. P-1, backward devices behind them; one update per microbatch.

    Args:
        stages: P, stages of the forward pass.
        microbatches: M.
        backward_stages: Q, stages of the backward pass if it is cut differently; P if 0. Then
            all stages use one version per microbatch, since a backward stage differentiates
            layers of several forward stages.
        publish: Slots that weights need from a backward to a forward device. Where a copy to the
            host takes a slot too, two more keep forwards from waiting for weights.
        saved: "host": through host memory (OFFLOAD, FETCH). "direct": SEND_S, RECV_S.

    Raises:
        ScheduleError: An option is out of range.
    """
    back = backward_stages or stages
    if back < 1 or publish < 0 or saved not in ("host", "direct"):
        raise ScheduleError(
            "no such pipefb schedule",
            got=f"backward_stages={backward_stages}, publish={publish}, saved={saved}",
            want="backward_stages and publish of 0 or more, saved=host or direct",
        )
    place = Placement(
        tuple((s,) for s in range(stages)), tuple((stages + back - 1 - s,) for s in range(back))
    )
    rows: list[list[Action]] = [[] for _ in range(stages + back)]
    for m in range(microbatches):
        for s, (device,) in enumerate(place.forward):
            version = _version(m, s, stages, back, publish)
            rows[device].append(Action(s, ActionKind.F, m, version=version))
        for s, (device,) in enumerate(place.backward):
            version = _version(m, s, stages, back, publish)
            rows[device].append(Action(s, ActionKind.B, m, version=version))
    return build(
        "pipefb",
        rows,
        microbatches,
        placement=place,
        rule=VersionRule("given", 1),
        channels=_channels(stages, back, saved),
        options={"backward_stages": back, "publish": publish, "saved": saved},
    )


def _channels(forward: int, backward: int, saved: str) -> list[Channel]:
    """Activations, gradients, saved values and weights; names tell parallel links apart."""
    kind = ChannelKind.H if saved == "host" else ChannelKind.S
    found = [Channel(ChannelKind.F, s, s + 1) for s in range(forward - 1)]
    found += [Channel(ChannelKind.B, s, s - 1) for s in range(1, backward)]
    for f, b in _overlaps(forward, backward):
        names = ("", "") if forward == backward else (f"{kind.name}{f}.{b}", f"W{b}.{f}")
        found.append(Channel(kind, f, b, names[0], depth=2))
        found.append(Channel(ChannelKind.W, b, f, names[1]))
    return found


def _overlaps(forward: int, backward: int) -> list[tuple[int, int]]:
    """Forward and backward stages that hold common layers, if each cuts them evenly."""
    return [
        (f, b)
        for f in range(forward)
        for b in range(backward)
        if f * backward < (b + 1) * forward and b * forward < (f + 1) * backward
    ]


def _version(microbatch: int, stage: int, forward: int, backward: int, publish: int) -> int:
    """The version that a stage uses for one microbatch.

    F of microbatch m runs in slot m + i on stage i (0-based), B of m' on stage j in slot
    m' + P + Q - 1 - j, and its weights arrive ``publish`` slots later.
    """
    paired = 2 * stage if forward == backward else 0
    return max(0, microbatch + 1 + paired - forward - backward - publish)
