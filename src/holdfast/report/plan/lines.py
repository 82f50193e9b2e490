"""What `holdfast plan` shows: whether it fits, where each byte goes, what instead. Plain lines without a terminal."""

from __future__ import annotations

from rich.console import Console

from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.base.units import gib
from holdfast.planning.memory.demand import Demand
from holdfast.report.words import between, costs
from holdfast.run.plan import Plan

WORDS = {
    "weights": "frozen weights",
    "adapter": "adapter",
    "gradients": "its gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "logits": "logits of a chunk",
    "snapshot": "snapshots",
    "workspace": "workspace",
    "allocator": "allocator gaps",
    "context": "process and libraries",
}


class PlanView:
    """The plan's voice."""

    def __init__(self, to_stderr: bool) -> None:
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self.quiet = to_stderr

    def plan(self, plan: Plan, demand: Demand, learns: str, card: str | None, price: float | None) -> None:
        if self.quiet:
            return
        self._say(verdict(plan) + (f"  ({card})" if card else ""))
        for kind, size in plan.bytes.by_kind().items():
            if size:
                self._say(f"  {WORDS[kind]:<22}{gib(size):>12}  {size / max(1, plan.peak_bytes):6.1%}")
        self._say(f"  {'peak':<22}{gib(plan.peak_bytes):>12}")
        share = plan.params.trainable / max(1, plan.params.total)
        self._say(f"{plan.params.total:,} parameters, {plan.params.trainable:,} of them trained ({share:.2%})")
        if learns:
            self._say(learns)
        again = f"{plan.checkpointed_layers} of {demand.layers} layers" if plan.checkpointed_layers else "no layer"
        batches = f"{plan.accumulation:,} micro-batch{'' if plan.accumulation == 1 else 'es'} a step"
        self._say(f"{plan.micro_batch_tokens:,} tokens at once, {batches}, {again} computed again in backward")
        self._say(f"{plan.precision}, frozen weights held in {'16 bits' if plan.frozen == 'half' else plan.frozen}")
        if plan.host_bytes is not None and plan.disk_bytes is not None:
            self._say(f"main memory {gib(plan.host_bytes)}, disk of the run folder {gib(plan.disk_bytes)} beside the rows")
        if plan.seconds:
            self._say(f"wall time {between(plan.seconds)}")
            if price is not None:
                self._say(f"at {price:,.2f} an hour: {costs(price, plan.seconds)}")
        for reason in plan.reasons:
            self._say(f"  - {reason}")
        if plan.alternatives:
            self._say("instead:")
        for other in plan.alternatives:
            fits = {True: "fits", False: "does not fit", None: ""}[other.fits]
            slower = "" if other.slower is None else f"{other.slower:.2f} x the time of a step"
            self._say(f"  {other.change:<52}{gib(other.peak_bytes):>12}  {fits:<13}{slower}".rstrip())

    def table(self, answer: Json) -> None:
        if self.quiet:
            return
        for model in answer["models"]:
            params = model["params"]
            trained = f"LoRA r={model['r']} trains {params['trainable']:,}"
            self._say(f"{model['model']}: {params['total']:,} parameters, {trained}; {model['dtype']}, rows of {model['row']:,} tokens")
            for row in model["by_memory"]:
                how = f"{row['micro_batch_tokens']:,} tokens at once" + (
                    f", {row['checkpointed_layers']} layers computed again" if row["checkpointed_layers"] else ""
                )
                told = f"{gib(row['peak_bytes'])}, {how}" if row["fits"] else f"does not fit: {gib(row['peak_bytes'])} at least"
                self._say(f"  {row['memory_bytes'] / 2**30:6.0f} GiB  {told}")

    def next(self, command: str) -> None:
        """Say which command comes next."""
        if not self.quiet:
            self._say(f"next: {command}")

    def saved(self, file: object) -> None:
        self._say(f"where each byte goes: {file}")

    def _say(self, text: str) -> None:
        self.console.print(inert(text), markup=False)


def verdict(plan: Plan) -> str:
    """Say whether it fits, in a sentence."""
    if plan.fits is None or plan.capacity_bytes is None:
        return f"nobody knows whether it fits: {gib(plan.peak_bytes)} are needed, of an unknown amount"
    left = f"{gib(plan.reserve_bytes or 0)} of it are kept free for other programs (train.memory_reserve)"
    rows = f" with rows of up to {plan.unseen_rows:,} tokens (none to train on is known yet)" if plan.unseen_rows else ""
    return f"{'it fits' if plan.fits else 'it does not fit'}{rows}: {gib(plan.peak_bytes)} of {gib(plan.capacity_bytes)}, {left}"
