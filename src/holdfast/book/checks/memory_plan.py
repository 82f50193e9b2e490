"""The planned run fits into the device's memory."""

from collections.abc import Iterator
from typing import Any

from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.machine.facts import Machine
from holdfast.run.plan import Plan
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    plan = case.plan
    if plan is None or plan.fits is True or plan.capacity_bytes is None:
        return
    on_card = bool(case.machine.gpus)
    needs, has = f"needs about {plan.peak_bytes / 2**30:.1f} GiB", f"the device has {plan.capacity_bytes / 2**30:.1f} GiB"
    if plan.reserve_bytes:
        has += f", of which a plan leaves {plan.reserve_bytes / 2**30:.1f} GiB to others (train.memory_reserve)"
    if plan.fits is None:
        message = f"the run {needs} at least, {has}: so near that only its traced step tells whether it fits"
        yield warn(message, f"holdfast plan CONFIG traces it; {_what_helps(plan, on_card)}")
    elif (held := _held(plan)) > plan.capacity_bytes:
        message = f"the run does not fit: it {needs}, {held / 2**30:.1f} GiB of it before the first row; {has}"
        yield block(message, _what_helps(plan, on_card))
    else:
        yield warn(f"the run {needs}, {has}", _what_helps(plan, on_card))


def _held(plan: Plan) -> int:
    """Return the bytes that are held in every step, whatever the rows: the model, what is trained, the process."""
    own = plan.bytes
    return own.weights + own.adapter + own.gradients + own.optimizer + own.context


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


class _PlanCheck(Check):
    """Its evidence is of a plan, not a machine."""

    def matches(self, evidence: Any) -> bool:
        plan = Plan.model_validate(_ANY | evidence)
        return any(True for _ in self.findings(Case(Machine(), plan=plan)))


CARD = _PlanCheck(
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
