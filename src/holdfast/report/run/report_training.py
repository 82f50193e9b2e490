"""What a report shows of a run of our own trainer: steps, evaluations, answers, rows, settings. Computes nothing new."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from holdfast.base.files import Json, read_json, read_sound_lines
from holdfast.base.safe_open import read_small
from holdfast.base.tasks import kind_of, look_up
from holdfast.base.units import counted, setting
from holdfast.config.config import Config
from holdfast.report.data.rows_told import row_warnings
from holdfast.report.run.report_parts import drawable, duration, shown_incident
from holdfast.report.summarise import first_to_last, samples_in_words
from holdfast.report.svg import Marker, histogram, line_chart
from holdfast.report.words import (
    TaskWords,
    artifact_origin,
    change_of_loss,
    early_end,
    held_out_on,
    not_matched,
    nothing_judged,
    unhealthy,
    words_of,
)
from holdfast.run.evaluations import best_of, read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RunPlan, read_plan
from holdfast.run.timeline import Entry, read_timeline

_REJECTS_SHOWN = 8
_TAUGHT = {
    "answers": "answers in all rows that are kept, held-out ones too",
    "learned": "answers that are learned, or measured where they are held out",
    "without_end": "of these without a token that ends them",
    "tool_calls_left_out": "turns whose tool calls are left out",
    "reasoning_left_out": "turns whose reasoning is left out",
    "off": "answers marked as not to be learned",
    "cut": "answers beyond the longest row allowed",
}  # as data.json counts them


def of_training(run: RunFolder, summary: Json, status: str) -> Json:
    """Return what the page of a training run shows. Raises Stop where its config is damaged."""
    config_text = read_small(run.config_file).decode(errors="replace")
    config = run.config()
    kind = kind_of(config)
    steps = list(run.steps())
    evaluation = read_json(run.evaluation_file) or {}
    data = read_json(run.data_report_file) or {}
    return {
        "subtitle": _subtitle(config, read_plan(run.plan_file)),
        "verdict": _verdict(summary, status, run, evaluation),
        "tiles": _tiles(summary, steps, words_of(config), evaluation),
        "charts": _charts(steps, summary, _judged(run, config, evaluation), words_of(config)),
        "incidents": [shown_incident(one, "The next step was committed {seconds} later.") for one in summary.get("incidents", [])],
        "samples": evaluation.get("samples") or [],
        "proof": _proof(evaluation),
        "to_be_met": "pair_accuracy" not in evaluation,
        "data": data,
        "data_chart": _data_chart(data),
        "data_rows": _data_rows(data),
        "row_warnings": row_warnings(data, config.data.train_on) if "learned" in data else [],
        "rejects": _rejects(run),
        "usage": look_up(kind.usage)(run, config) if run.artifact.exists() else "",
        "words": words_of(config),
        "table": look_up(kind.measured)(evaluation),
        "timeline": [_timeline_entry(entry) for entry in read_timeline(run.timeline_file)],
        "config": config_text,
    }


def _subtitle(config: Config, plan: RunPlan | None) -> str:
    rows = f"{plan.rows.train:,} rows of " if plan else ""
    names = ", ".join(Path(file).name for file in config.data.files)
    return f"{words_of(config).title}, {rows}{names}"


def _verdict(summary: Json, status: str, run: RunFolder, evaluation: Json) -> str:
    if status == "gave_up":
        return f"Gave up after step {summary['steps']:,}: {summary.get('reason')}. The best state is kept."
    if status == "interrupted":
        return f"Stopped by its user after step {summary['steps']:,}; rerun the same command to resume."
    if status != "finished":
        return f"Not finished: {counted(run.committed(), 'step')} so far."
    incidents = len(summary["incidents"])
    survived = "without an incident" if not incidents else f"through {counted(incidents, 'incident')}"
    lost = sum(incident["lost_steps"] or 0 for incident in summary["incidents"])
    early = early_end(summary)
    steps = counted(summary["steps"], "step")
    text = f"{early[0].upper()}{early[1:]}, {survived}" if early else f"Finished {steps} {survived}"
    text += f", {counted(lost, 'committed step')} computed twice" if incidents else ""
    if wrong := unhealthy(summary):
        text += f", but not healthy: {'; '.join(wrong)}"
    if origin := artifact_origin(summary):
        text += f". The {words_of(run.config()).artifact} is that of {origin}"
    if says := summary.get("says"):
        return f"{text}. On held-out rows: {says}."
    loss = summary["loss"]
    change = change_of_loss(loss)
    if not change:
        unjudged = nothing_judged(evaluation)
        return f"{text}. {unjudged[0].upper()}{unjudged[1:]}." if unjudged else f"{text}."
    before = loss.get("reference") or "base"
    text += f". Held-out loss {loss['eval_base']:.3f} ({before}) to {loss['eval_tuned']:.3f} (tuned): {change}{held_out_on(evaluation)}"
    exact = evaluation.get("exact_match")
    if exact and "pair_accuracy" not in evaluation:
        text += f"; held-out answers matched word for word: {_matches(exact, '{:.0%} (base), {:.0%} (tuned)')}"
    return text + "."


def _tiles(summary: Json, steps: list[Json], words: TaskWords, evaluation: Json) -> list[tuple[str, str]]:
    if not summary or not steps:
        return []
    loss = summary["loss"]
    tiles = [
        (f"{summary['steps']:,}", f"steps, {samples_in_words(summary)}"),
        (first_to_last(loss, 3).replace("->", "→"), "training loss, first and last step"),
    ]
    if change_of_loss(loss):
        unit = words.scaled if evaluation.get("loss", "cross-entropy") != "cross-entropy" else ""
        before = loss.get("reference") or words.base
        label = f"held-out {evaluation.get('loss', 'loss')}, {before} and {words.tuned}{held_out_on(evaluation, 'row')}{unit}"
        tiles.append((f"{loss['eval_base']:.3f} → {loss['eval_tuned']:.3f}", label))
    if "pair_accuracy" in evaluation:
        noun, right = (
            ("answer", f"on the wanted side of the {loss.get('reference') or 'base model'}")
            if words.unit == "per answer"
            else ("pair", "in the wanted order")
        )
        tiles.append((f"{evaluation['pair_accuracy']:.1%}", f"of {counted(evaluation['rows'], f'held-out {noun}')} {right}"))
        tiles.append((f"{evaluation['margin']:.3g}", f"mean margin of those {noun}s"))
    if summary["wall_seconds"]:
        share = f", {summary['goodput']:.0%} of it in committed steps" if summary["goodput"] is not None else ""
        tiles.append((duration(summary["wall_seconds"]), "in all" + share))
    if summary["tokens_per_second"] is not None:
        tiles.append(
            (
                f"{summary['tokens_per_second']:,.0f}",
                f"{words.per_second} per second" + (", without padding" if words.per_second == "tokens" else ""),
            )
        )
    ranks = len(steps[-1].get("rank_seconds") or [])
    tiles.append(
        (f"{summary['peak_bytes'] / 2**30:.2f} GiB", f"peak memory of the first of {ranks} processes" if ranks > 1 else "peak memory")
    )
    tiles.append((str(summary["attempts"]), "starts of the trainer"))
    return tiles


def _charts(steps: list[Json], summary: Json, evaluations: list[Json], words: TaskWords) -> list[tuple[str, Markup]]:
    xs = [row["step"] for row in steps]
    markers = [
        Marker(incident["step"], str(number), f"step {incident['step']}: {incident['evidence']}")
        for number, incident in enumerate(summary.get("incidents", []), 1)
    ]
    series = (
        ("Training loss", words.unit, [row["loss"] for row in steps], True),
        ("Gradient norm", "before clipping", [row["grad_norm"] for row in steps], True),
        ("Learning rate", "", [row["lr"] for row in steps], False),
        ("Speed", f"{words.per_second} per second", [row["tokens"] / row["seconds"] if row["seconds"] else 0.0 for row in steps], True),
        ("Peak memory", "GiB", [row["peak_bytes"] / 2**30 for row in steps], False),
    )
    charts = [(title, Markup(line_chart(xs, [drawable(y) for y in ys], unit, markers, smooth))) for title, unit, ys, smooth in series]
    return charts[:1] + ([("Held-out loss", _held_out_chart(evaluations, words))] if evaluations else []) + charts[1:]


def _judged(run: RunFolder, config: Config, evaluation: Json) -> list[Json]:
    """Return the evaluations on the way, before them that of the base where it was asked the same rows for the same loss."""
    found = read_evaluations(run)
    base, whole = evaluation.get("eval_base"), (config.evaluate.rows or 0) in (0, evaluation.get("rows"))
    if not found or base is None or not whole or "pair_accuracy" in evaluation or "loss" in evaluation:
        return found
    return [{"step": 0, "loss": base, "of": evaluation.get("reference") or "base"}, *found]


def _held_out_chart(evaluations: list[Json], words: TaskWords) -> Markup:
    """Draw the held-out loss over the evaluations on the way, from the base's where that is known; its best marked."""
    began = [row for row in evaluations if row["step"] == 0]
    best = best_of(evaluations[len(began) :])
    markers = [Marker(best["step"], "best", f"step {best['step']}: held-out loss {best['loss']:.4f}, the lowest")] if best else []
    markers += [Marker(0, row["of"], f"before the first step: held-out loss {row['loss']:.4f} ({row['of']})") for row in began]
    steps, losses = [row["step"] for row in evaluations], [drawable(row["loss"]) for row in evaluations]
    return Markup(line_chart(steps, losses, words.unit, markers))


def _proof(evaluation: Json) -> str:
    exact = evaluation.get("exact_match")
    if not exact:
        return ""
    asked = exact["asked"] + exact.get("too_long", 0)
    if "pair_accuracy" in evaluation:
        return f"{counted(asked, 'held-out prompt')}; beside what the models answer stands the answer that is preferred, not one to be met."
    shares = "{:.1%} of the base model's answers, {:.1%} of the tuned one's"
    return f"{counted(asked, 'held-out prompt')}; exact matches: {_matches(exact, shares)}."


def _matches(exact: Json, shares: str) -> str:
    """Return the shares of answers that are the rows' own, in the given words, and how many cannot be."""
    told = shares.format(exact["base"] / exact["asked"], exact["tuned"] / exact["asked"]) if exact["asked"] else ""
    return ", ".join(filter(None, [told, not_matched(exact, "evaluate.max_new_tokens")]))


def _data_chart(data: Json) -> Markup:
    shape = data.get("histogram") or {"edges": [], "counts": []}
    return Markup(histogram(shape["edges"], shape["counts"], "tokens", data.get("max_tokens")))


def _data_rows(data: Json) -> list[tuple[str, str]]:
    if not data:
        return []
    rows = [("repaired" if kind == "mended" else kind, f"{data[kind]:,}") for kind in ("rows", "kept", "mended", "rejected")]
    rows += [(f"  {reason}", f"{count:,}") for reason, count in sorted(data["by_reason"].items())]
    rows += [("of the kept ones held out", f"{held:,}")] if (held := (data.get("held_out") or {}).get("rows")) else []
    firsts = data.get("first_noted", {})
    for reason, count in data.get("notes", {}).items():
        first = firsts.get(reason)
        place = f", the first {Path(first['file']).name}:{first['line']}" if first else ""
        rows.append((f"  {reason}, trained on as it is{place}", f"{count:,}"))
    return rows + [(_TAUGHT.get(name, name.replace("_", " ")), f"{count:,}") for name, count in data.get("learned", {}).items()]


def _rejects(run: RunFolder) -> list[Json]:
    shown = []
    for row in read_sound_lines(run.rejects_file):
        text = str(row.get("raw", row.get("raw_base64", "")))
        place = f"{Path(row['file']).name}:{row['line']}"
        shown.append({"place": place, "reason": row["reason"], "detail": row["detail"], "text": text[:300]})
        if len(shown) == _REJECTS_SHOWN:
            break
    return shown


def _timeline_entry(entry: Entry) -> Json:
    return asdict(entry) | {"settings": ", ".join(f"{key}={setting(value)}" for key, value in entry.settings.items())}
