"""A plan as a run's start makes it, for tests that are about something else."""

from __future__ import annotations

from typing import Any

from holdfast.run.plan import Bytes, Params, Plan


def a_plan(**changes: Any) -> Plan:
    """A small run's plan; `changes` win."""
    facts: dict[str, Any] = {
        "fits": True,
        "peak_bytes": 1 << 20,
        "capacity_bytes": 1 << 30,
        "bytes": Bytes(weights=1 << 20),
        "params": Params(total=1 << 18, trainable=1 << 10),
        "precision": "fp32",
        "micro_batch_tokens": 64,
        "checkpointed_layers": 0,
        "accumulation": 1,
    }
    return Plan(**(facts | changes))
