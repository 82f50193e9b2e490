"""The planned run fits into the device's memory."""

from collections.abc import Iterator

from holdfast.core.cards.check import Case, Check, warn
from holdfast.core.facts.machine import Machine
from holdfast.core.types import Finding


def look(case: Case) -> Iterator[Finding]:
    if case.plan and case.plan["fits"] is False:
        peak, capacity = (case.plan[f"{kind}_bytes"] / 2**30 for kind in ("peak", "capacity"))
        message = f"the run needs about {peak:.1f} GiB, the device has {capacity:.1f} GiB"
        yield warn(message, "lower train.max_tokens or train.micro_batch_tokens, or use train.precision=bf16")


class _Planned(Check):
    """Its evidence is a plan, not a machine."""

    def matches(self, evidence: object) -> bool:
        return any(True for _ in self.findings(Case(Machine(), plan=evidence)))  # type: ignore[arg-type]


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
