"""Sentences that terminal, report and verbs share: what an early end and an adapter of the best step mean to a reader; names of paths."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.file_errors import current_folder
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of, look_up
from holdfast.base.units import counted, span
from holdfast.config.adapter import Adapter
from holdfast.config.config import Config
from holdfast.diagnosis.health_signs import ills
from holdfast.run.plan import Seconds


@dataclass(frozen=True)
class TaskWords:
    """How a run of a task speaks. title: what is trained; loaded: how its end is looked at; base, tuned: whose losses are compared.

    unit: of a loss in training; scaled: what is said of a held-out loss that is no cross-entropy.
    """

    title: str
    artifact: str
    loaded: str
    base: str
    tuned: str
    unit: str
    per_second: str
    scaled: str


def words_of(config: Config) -> TaskWords:
    """Return the words of a config's task."""
    found: TaskWords = look_up(kind_of(config).words)(config)
    return found


def held_out_on(evaluation: Json, noun: str = "held-out row") -> str:
    """Say on how many rows the result was measured; empty where that is unknown."""
    return f" on {counted(evaluation['rows'], noun)}" if evaluation.get("rows") else ""


def nothing_judged(evaluation: Json) -> str:
    """Return that no row was held out, so that nothing can be said of the result; empty where some was, or that is unknown."""
    return "no row was held out: nothing says whether the result is better than the base" if evaluation.get("rows") == 0 else ""


def computed_again(summary: Json) -> str:
    """Say how many steps of a command were computed twice: a lower bound where nobody told each step."""
    count = f"{summary['steps_computed_twice']:,}"
    return f"at least {count}" if summary.get("steps_computed_twice_exact") is False else count


def short(path: Path) -> str:
    """Shorten a path as one would write it here: relative where it lies below the current folder, which may have been removed."""
    here = current_folder()
    return str(path.relative_to(here) if here and path.is_relative_to(here) else path)


def shown(path: Path) -> str:
    """Shorten a path likewise for a command line, quoted where a shell needs it."""
    return shlex.quote(short(path))


def visible(text: str) -> str:
    """Put a text of unknown origin on one line, with everything that is not printed as an escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in re.sub(r"\s*\n\s*", " ", text))


def unused_fields(found: Json) -> list[str]:
    """Say which fields rows have and nothing is learned from; those that may change what a row means, with a mark."""
    telling, others = found["telling"], found["others"]
    told = []
    if telling:
        listed = ", ".join(f"{name} ({counted(count, 'row')})" for name, count in telling.items())
        told.append(f"! not used, though it may change what a row means: {listed}; every row is learned from its text alone")
    if others:
        told.append(f"fields that are not used: {', '.join(others)}")
    return told


def row_weights(found: Json, rows: int) -> str:
    """Say how rows count beside each other, of `rows` that are trained on; empty where none has a weight."""
    if not found["rows"]:
        return ""
    return (
        f"weights: {found['min']:g} to {found['max']:g}, mean {found['mean']:.4g}, in {found['rows']:,} of {counted(rows, 'row')}; others 1"
    )


def beyond(by_reason: Json, limit: str) -> list[str]:
    """Say where a limit on tokens cuts answers off, whose ends are then not learned, or leaves nothing of a row to learn."""
    told = []
    if cut := by_reason.get("answer_cut", 0):
        told.append(
            f"{counted(cut, 'answer')} cut off at {limit}: how they end, and that they do, is not learned; "
            "a higher limit, or data.too_long: reject, or split with sft"
        )
    if lost := by_reason.get("all_labels_masked", 0):
        told.append(f"{counted(lost, 'row')} rejected, because nothing that is learned lies within {limit}: a higher limit takes them")
    return told


def early_end(summary: Json) -> str:
    """Say why the run ended before its last step; empty when it did not."""
    early = summary.get("stopped_early")
    if (until := summary.get("until")) and summary["status"] == "finished" and (until["reached"] or not early):
        return f"ended at step {until['step']:,}: {until['reason']}" if until["reached"] else "no goal of train.until was reached"
    if not early:
        return ""
    text = f"ended early after step {early['step']:,} of {early['steps']:,}: {early['without_improvement']} evaluations without improvement"
    return text + (f" by more than {early['min_delta']:g}" if early["min_delta"] else "")


def artifact_origin(summary: Json) -> str:
    """Say which state the adapter is, where evaluations on the way chose it; empty where it is simply the last."""
    evaluations, step = summary.get("evaluations"), summary.get("artifact_step")
    if not evaluations or step is None:
        return ""
    if step == evaluations["best_step"]:
        return f"step {step:,}, the best by held-out loss ({evaluations['best_loss']:.4f})"
    best = f"; the best by held-out loss was step {evaluations['best_step']:,}" if evaluations["best_step"] is not None else ""
    return f"step {step:,}{best}"


def unhealthy(summary: Json) -> list[str]:
    """Say what is wrong with a run at its end although nothing ended it early: why its result may be worth nothing."""
    return [one["says"] for one in ills(summary)]


def change_of_loss(loss: Json) -> str:
    """Compare the tuned model's held-out loss with the base's; empty where one is unknown.

    Which model is better is not said: two means alone do not show it.
    """
    base, tuned = loss.get("eval_base"), loss.get("eval_tuned")
    if base is None or tuned is None:
        return ""
    if not base or not tuned < base:  # NaN is not lower either
        return f"NOT lower than the {loss.get('reference') or 'base'}'s"
    return f"lower by {1 - tuned / base:.1%}"


def evaluated(event: Json) -> str:
    """Describe one evaluation on the way, as its event tells it."""
    loss = "not finite" if event["loss"] is None else f"{event['loss']:.4f}"
    return f"step {event['step']:,}: held-out loss {loss}" + (", the best so far" if event["best"] else "")


def what_is_trained(adapter: Adapter) -> str:
    """Describe the kind of an adapter and its size, or which weights of a model are trained, in a few words."""
    return adapter.kind.words.format(r=adapter.r, virtual_tokens=adapter.virtual_tokens, layers=_layers(adapter.layers))


def _layers(layers: int | str | list[str] | None) -> str:
    """Describe what adapter.layers names."""
    if isinstance(layers, int):
        return "the last layer" if layers == 1 else f"the last {layers} layers"
    return f"weights that match {layers}" if isinstance(layers, str) else f"weights of {', '.join(layers or [])}"


def between(time: Seconds) -> str:
    """Format a range of time, and what of it is likely."""
    low, likely, high = span(time.low), span(time.likely), span(time.high)
    return f"about {likely}" if low == high else f"{low} to {high}, likely {likely}"


def costs(price: float, time: Seconds) -> str:
    """Format the cost of a range of time at a price of an hour; sums below a hundredth are not told as nothing."""
    least, likely, most = (price * seconds / 3600 for seconds in (time.low, time.likely, time.high))
    if 0 < most < 0.005:
        return "less than 0.01"
    low = "less than 0.01" if 0 < least < 0.005 else f"{least:,.2f}"
    return f"{low} to {most:,.2f}, likely {'less than 0.01' if 0 < likely < 0.005 else f'{likely:,.2f}'}"


def not_matched(exact: Json, setting: str) -> str:
    """Return how many answers are compared with no row's own, which has more tokens than an answer may have by `setting`; "" for none."""
    count, limit = exact.get("too_long", 0), exact.get("limit")
    longer = f"longer than the {limit} tokens that {setting} allows"
    return f"not comparable: {counted(count, 'row')} whose own answer is {longer}" if count else ""
