"""A finished run in a few lines, as the terminal shows them: (name, value) pairs. Prints nothing."""

from __future__ import annotations

from holdfast.base.files import Json, read_json
from holdfast.base.inert import brief
from holdfast.base.tasks import kind_of
from holdfast.report.summarise import first_to_last, samples_in_words
from holdfast.report.words import artifact_origin, change_of_loss, early_end, held_out_on, nothing_judged, shown, unhealthy, words_of
from holdfast.run.folder import RunFolder


def summary_lines(summary: Json, run: RunFolder) -> list[tuple[str, str]]:
    """Return the lines on a run's end, (name, value); a line without a name belongs to the one before."""
    loss = summary["loss"]
    wrong = unhealthy(summary)
    status = summary["status"] + (", but not healthy" if wrong else "")
    facts = [
        ("status", status),
        *(("", says) for says in wrong),
        ("steps", f"{summary['steps']:,} ({samples_in_words(summary)})"),
    ]
    if loss["last"] is not None:
        facts.append(("training loss", first_to_last(loss, 4)))
    if early := early_end(summary):
        facts.append(("ended early", early.removeprefix("ended early ")))
    words = words_of(run.config())
    if summary.get("says"):
        facts.append(("held out", summary["says"]))
    elif loss["eval_base"] is not None:
        change = change_of_loss(loss)
        on = held_out_on(read_json(run.evaluation_file) or {})
        before = loss.get("reference") or words.base
        facts.append(("held-out loss", f"{loss['eval_base']:.4f} ({before}) -> {loss['eval_tuned']:.4f} ({words.tuned}), {change}{on}"))
        if not loss["eval_tuned"] < loss["eval_base"]:
            facts.append(
                ("", f"on held-out rows the {words.artifact} has gained nothing: what to change: holdfast check CONFIG --only overfit")
            )
    elif unjudged := nothing_judged(read_json(run.evaluation_file) or {}):
        facts.append(("held-out loss", unjudged))
    if summary["tokens_per_second"] is not None and summary["wall_seconds"] is not None:
        rate, wall = summary["tokens_per_second"], summary["wall_seconds"]
        share = f" {summary['goodput']:.0%} of it in committed steps," if summary["goodput"] is not None else ""
        facts.append(("time", f"{wall:.1f} s in all,{share} {rate:,.0f} {words.per_second}/s there"))
    for incident in summary["incidents"][:6]:
        recovered = incident["seconds_to_recover"]
        back = f"; the next step was done {recovered:.1f} s later" if recovered is not None else ""
        facts.append(("incident", brief(f"step {incident['step']}: {incident['evidence']}{back}")))
    if len(summary["incidents"]) > 6:
        facts.append(("", f"and {len(summary['incidents']) - 6} more incidents, all in the report"))
    if summary["artifact_sha256"]:
        kind = run.artifact.resolve().name if run.artifact.is_symlink() else "adapter"
        origin = artifact_origin(summary)
        facts.append((kind, f"{run.path / kind}  ({f'{origin}; ' if origin else ''}sha256 {summary['artifact_sha256'][:16]})"))
    if failed := summary.get("trackers_failed"):
        facts.append(("trackers", f"{', '.join(failed)} failed, and may lack steps: {run.path / 'track.log'} says why"))
    if summary.get("notify_failed"):
        facts.append(("notify", f"its process failed, and may not have told all: {run.path / 'notify.log'} says why"))
    facts.append(("report", str(run.path / "report.html")))
    return facts


def next_command(summary: Json, run: RunFolder) -> list[tuple[str, str]]:
    """Return the line of what to do with a finished run; none where it made nothing."""
    if summary["status"] != "finished" or not summary["artifact_sha256"]:
        return []
    config = run.config()
    verified = kind_of(config).ships and not config.train.objective_kind.scores
    return [("next", f"holdfast {'verify' if verified else 'report'} {shown(run.path)}")]
