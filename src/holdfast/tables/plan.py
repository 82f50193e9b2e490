"""Arithmetic before a run on tables: parameters of the network, bytes at its peak, rows at once. Pure."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.table import embedding_width, network_of
from holdfast.machine.machine_file import training_devices
from holdfast.planning.plan import PROCESS_BYTES, usable
from holdfast.run.plan import Bytes, Params, Plan

_ROWS_AT_ONCE = {"cpu": 4096, "gpu": 65_536}  # beyond it a step gains nothing
_FLOAT = 4


def plan_table(config: Config, machine: Json, inputs: int, names: tuple[int, ...], outputs: int) -> Plan:
    """Plan a run on a table. inputs: numbers of a row; names: values of each category; outputs: of the network."""
    weights = parameters(config, inputs, names, outputs)
    gpus = training_devices(machine)
    capacity = (gpus[0].get("memory_bytes") if gpus else machine.get("memory_bytes")) or None
    budget = config.train.micro_batch_tokens or min(config.train.effective_batch, _ROWS_AT_ONCE["gpu" if gpus else "cpu"])
    members = network_of(config).members if network_of(config).kind == "tabm" else 1
    per_row = 4 * _FLOAT * members * (inputs + sum(network_of(config).hidden) * 2)
    spent = Bytes(
        adapter=weights * _FLOAT, gradients=weights * _FLOAT, optimizer=2 * weights * _FLOAT, activations=budget * per_row,
        context=PROCESS_BYTES,
    )  # fmt: skip
    peak = spent.total()
    reasons = [f"{weights:,} parameters; {budget:,} rows at once, about {peak / 2**30:.2f} GiB needed"]
    if config.train.precision not in ("auto", "fp32"):
        reasons.append(
            f"computed in fp32: a network on tables has no other precision, and train.precision {config.train.precision} changes nothing"
        )
    return Plan(
        fits=None if capacity is None else peak <= usable(config.train, capacity),
        peak_bytes=peak,
        capacity_bytes=capacity,
        bytes=spent,
        params=Params(total=weights, trainable=weights),
        precision="fp32",
        micro_batch_tokens=budget,
        checkpointed_layers=0,
        accumulation=max(1, -(-config.train.effective_batch // budget)),
        reasons=tuple(reasons),
    )


def parameters(config: Config, inputs: int, names: tuple[int, ...], outputs: int) -> int:
    """Count the network's parameters; about, where members share layers."""
    network = network_of(config)
    widths = [embedding_width(count, network.embedding) for count in names]
    total = sum((count + 1) * width for count, width in zip(names, widths, strict=True))
    before = inputs + sum(widths)
    members = network.members if network.kind == "tabm" else 1
    for width in network.hidden:
        total += before * width + width * (3 if network.kind == "residual" else 1) + (members * (before + 2 * width) if members > 1 else 0)
        before = width
    return total + members * (before + 1) * outputs
