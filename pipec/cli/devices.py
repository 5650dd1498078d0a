"""``pipec devices``: the devices that have a name, with their figures and sources."""

import json

import click

from pipec.cli.command import Command
from pipec.cli.console import output
from pipec.cluster.presets import PRESETS
from pipec.cluster.units import show
from pipec.report.table import Table


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """List known devices with their figures and where these come from."""
    if as_json:
        click.echo(json.dumps({k: d.to_json() for k, d in PRESETS.items()}, indent=2))
        return
    columns = ("kind", "peak fp32", "peak half", "memory", "bandwidth", "link")
    table = Table("", columns, right=1)
    for device in PRESETS.values():
        table.add(
            device.kind,
            show(device.flops("float32"), "FLOP/s"),
            show(device.flops("bfloat16"), "FLOP/s"),
            show(device.memory_bytes, "B"),
            show(device.memory_bandwidth, "B/s"),
            show(device.link_bandwidth, "B/s"),
        )
    console = output()
    console.print(table)
    for device in PRESETS.values():
        console.print(f"{device.kind}: {device.source}", highlight=False)
