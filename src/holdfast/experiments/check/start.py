"""Item `start`: what the run computes with and what learns, as its own process found it. Trains nothing."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.data.token_set.overlap import told_of_held_out
from holdfast.experiments.check.bench import Bench, Item, not_done
from holdfast.experiments.laboratory import finished

_CUT, _LOST = 0.5, 0.5  # shares of the rows


def start(bench: Bench) -> Item:
    """Build the run's training state as `train` does, with its proofs; its facts go to the bench for the other items."""
    outcome = bench.lab.ask("start", settle=True, prove=True)
    if not finished(outcome):
        return not_done("start", outcome, bench.command("doctor"))
    bench.facts = outcome
    begun = outcome["start"]
    numbers: Json = {"trainable": outcome["trainable"], "steps": outcome["steps"]} | _rows(bench)
    if not outcome["trainable"]:
        return Item("start", "failed", numbers, "nothing learns: no parameter is trained", "look at adapter.type and adapter.targets")
    if told := _masks(bench.data_report):
        return Item("start", "failed", numbers, told, bench.command("plan", "train.max_tokens=MORE") + "; data.too_long: reject or split")
    return Item("start", "passed", numbers, "; ".join([started(begun), *_overlap(bench.data_report)]))


def started(begun: Json) -> str:
    """Return what people look for at a start, in one line."""
    kinds = begun["dtype"]
    trained = {kind: facts for kind, facts in begun["learns"].items() if facts["parameters"]}
    total = sum(facts["parameters"] for facts in trained.values())
    learns = [f"{kind} {facts['parameters'] / total:.0%}{_on(facts['share_of_kind'])}" for kind, facts in trained.items()]
    parts = [f"attention: {begun['attention'] or 'none'}"]
    parts.append(f"frozen {kinds['frozen'] or 'nothing'}, trained {kinds['trained']}, computed {kinds['computed']}")
    parts.append(f"PAD is token {begun['pad']}" if begun["pad"] is not None else "no PAD")
    parts.append({None: "no cuDNN attention here", True: "cuDNN attention allowed", False: "cuDNN attention off"}[begun["cudnn_attention"]])
    parts += [f"products by {begun['blas']}", f"learns: {', '.join(learns)}"]
    return "; ".join(parts)


def _on(share: float | None) -> str:
    return "" if share is None else f" (on {share:.0%} of its weights)"


def _rows(bench: Bench) -> Json:
    report = bench.data_report
    return {name: report[name] for name in ("rows", "kept", "rejected", "held_out") if name in report}


def _overlap(report: Json) -> list[str]:
    """List which held-out rows stand in training, where any do."""
    return [line[2:] for line in told_of_held_out(report["held_out"], True) if line.startswith("! ")] if report.get("held_out") else []


def _masks(report: Json) -> str:
    """Return why most of the rows teach little; empty where they do not."""
    reasons, rows = report.get("by_reason") or {}, report.get("rows") or 0
    if rows and reasons.get("all_labels_masked", 0) > _LOST * rows:
        return f"masks: {reasons['all_labels_masked']} of {rows} rows have nothing to learn within train.max_tokens and were rejected"
    if rows and reasons.get("answer_cut", 0) > _CUT * rows:
        return f"masks: {reasons['answer_cut']} of {rows} answers are cut off at train.max_tokens, so how they end is not learned"
    return ""
