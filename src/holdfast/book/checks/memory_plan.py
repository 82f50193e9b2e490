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
    helps = _what_helps(plan, case)
    needs, has = f"needs about {plan.peak_bytes / 2**30:.1f} GiB", f"the device has {plan.capacity_bytes / 2**30:.1f} GiB"
    if plan.reserve_bytes:
        has += f", of which a plan leaves {plan.reserve_bytes / 2**30:.1f} GiB to others (train.memory_reserve)"
    if plan.fits is None:
        message = f"the run {needs} at least, {has}: so near that only its traced step tells whether it fits"
        yield warn(message, f"holdfast plan CONFIG traces it; {helps}")
    elif (held := _held(plan)) > plan.capacity_bytes:
        message = f"the run does not fit: it {needs}, {held / 2**30:.1f} GiB of it before the first row; {has}"
        yield block(message, helps)
    else:
        yield warn(f"the run {needs}, {has}", helps)


def _held(plan: Plan) -> int:
    """Return the bytes that are held in every step, whatever the rows: the model, what is trained, the process."""
    own = plan.bytes
    return own.weights + own.adapter + own.gradients + own.optimizer + own.context


def _what_helps(plan: Plan, case: Case) -> str:
    """Say what takes less, of what the plan has not done already."""
    train, half = case.config.train if case.config else None, (plan.capacity_bytes or 0) / 2
    trained = plan.bytes.adapter + plan.bytes.gradients + plan.bytes.optimizer
    if half and trained > half:
        less = "a lower adapter.r" if case.config and not case.config.adapter.kind.own_weights else "adapter.type=lora trains a part of it"
        return f"what is trained takes {trained / 2**30:.1f} GiB with gradients and optimizer: {less}"
    if not half or plan.bytes.weights < half or (train and train.frozen_format.width):
        narrower = ", or use train.precision=bf16" if plan.precision == "fp32" else ""
        return f"lower train.max_tokens or train.micro_batch_tokens{narrower}"
    away = "; train.offload=layers keeps them in main memory" if _on_card(case) and not (train and train.offload == "layers") else ""
    return f"the frozen weights alone take {plan.bytes.weights / 2**30:.1f} GiB: train.frozen=nf4 holds them in 4 bits{away}"


def _on_card(case: Case) -> bool:
    """Return whether a run trains on a card: a torch for the CPU leaves one idle."""
    torch = case.machine.torch
    if torch is None:
        return bool(case.machine.gpus)
    return bool(torch.vendor and case.visible if torch.devices is None else torch.devices)


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
