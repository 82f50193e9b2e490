"""The planned run fits into the device's memory."""

from collections.abc import Iterator
from typing import Any

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.machine.facts import Machine
from holdfast.run.plan import Plan
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    plan = case.plan
    if plan and plan.fits is False and plan.capacity_bytes is not None:
        message = f"the run needs about {plan.peak_bytes / 2**30:.1f} GiB, the device has {plan.capacity_bytes / 2**30:.1f} GiB"
        yield warn(message, _what_helps(plan, on_card=bool(case.machine.gpus)))


def _what_helps(plan: Plan, on_card: bool) -> str:
    if plan.capacity_bytes is None or plan.bytes.weights < plan.capacity_bytes / 2:
        return "lower train.max_tokens or train.micro_batch_tokens, or use train.precision=bf16"
    away = "; train.offload=layers keeps them in main memory" if on_card else ""
    return f"the frozen weights alone take {plan.bytes.weights / 2**30:.1f} GiB: train.frozen=nf4 holds them in 4 bits{away}"


_ANY: dict[str, Any] = {
    "bytes": {},
    "params": {"total": 1, "trainable": 1},
    "precision": "fp32",
    "micro_batch_tokens": 1,
    "checkpointed_layers": 0,
    "accumulation": 1,
}


class _Planned(Check):
    """Its evidence is of a plan, not a machine."""

    def matches(self, evidence: Any) -> bool:
        plan = Plan.model_validate(_ANY | evidence)
        return any(True for _ in self.findings(Case(Machine(), plan=plan)))


CARD = _Planned(
    title="The run does not fit into memory",
    why=(
        "Weights, gradients, optimizer and the activations of the longest row must be in memory together. The "
        "plan adds them up before anything is loaded."
    ),
    source=["https://arxiv.org/abs/1910.02054"],
    hits=[{"fits": False, "peak_bytes": 9 << 30, "capacity_bytes": 8 << 30}],
    misses=[{"fits": None, "peak_bytes": 1, "capacity_bytes": None}, {"fits": True, "peak_bytes": 1, "capacity_bytes": 2}],
    look=look,
)
