"""What `verify` shows: a few lines in a terminal, and a page that needs nothing else. Computes nothing new, escapes every text."""

from __future__ import annotations

import shlex
from pathlib import Path

from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.units import chance, counted
from holdfast.base.versions import __version__
from holdfast.export.words import of_base
from holdfast.report.pages import page_template
from holdfast.report.words import not_matched, shown

_KINDS = {"held_out": "rows the run held out", "training": "rows it was trained on", "file": "rows of the file", "general": "general rows"}


_GENERAL = {
    "worse": "it lost on general rows",
    "better": "general rows are better, too",
    "same": "nothing was lost on general rows",
    "cannot_tell": "whether it lost on general rows cannot be told",
}


def headline(answer: Json, name: str) -> str:
    """Return the verdict as a sentence of two halves: what was learned, and what was lost on general rows."""
    against = "the base" if answer["against"] == "base" else answer["against"]
    words = {
        "better": f"{name} is better than {against}",
        "worse": f"{name} is worse than {against}",
        "same": f"{name} is as good as {against}",
        "cannot_tell": f"whether {name} is better than {against} cannot be told",
    }
    counted = "groups of them" if answer["loss"]["clusters"] < answer["rows"] else "rows"
    needed = f" (about {answer['rows_needed']:,} {counted} would tell)" if answer["rows_needed"] else ""
    general = answer["forgotten"]
    word = _GENERAL[general["verdict"]]
    endless = f"; {told}" if (told := _endless(answer)) else ""
    return f"{words[answer['verdict']]} on {_KINDS[answer['kind']]}{needed}{endless}; {word}: {_loss(general['loss'])} nats a token"


def _endless(answer: Json) -> str:
    """Say that answers no longer end, where they do not; empty else."""
    ends = answer.get("endings")
    if not ends or not ends["no_longer"]:
        return ""
    of = f"{ends['only_base']:,} of {ends['asked']:,} answers run on to the limit of {ends['limit']:,} tokens"
    return f"{of}, which {'the base' if answer['against'] == 'base' else answer['against']} ended"


def is_good(answer: Json) -> bool:
    """Return whether nothing is bad: better or the same on its rows, not worse on general ones, and answers end as they did."""
    return answer["verdict"] in ("better", "same") and answer["forgotten"]["verdict"] != "worse" and not _endless(answer)


def lines(answer: Json) -> list[tuple[str, str]]:
    """Return (what, its figures) of all that was measured."""
    loss, ab = answer["loss"], answer["ab"]
    found = [
        ("why", answer["why"]),
        (
            "rows",
            f"{answer['rows']:,} {_KINDS[answer['kind']]}, in {counted(loss['clusters'], 'group')} by {_listed(answer['grouped_by'])}",
        ),
        *([("left out", _left_out(left_out))] if (left_out := answer.get("left_out")) else []),
        *([("cut", f"{counted(cut, 'row')}: more tokens than are measured")] if (cut := answer.get("cut")) else []),
        ("in training", _overlap(answer)),
        *([("base", base)] if (base := of_base(answer)) else []),
        ("loss per token", _loss(loss)),
        *(
            [("base", f"in {answer['held']}, as the run held it: in 16 bits it did not fit, and figures may differ")]
            if answer.get("held")
            else []
        ),
        ("row by row", f"{ab['wins']:,} better, {ab['losses']:,} worse, {ab['ties']:,} the same ({chance(ab['p_value'])})"),
    ]
    for name in ("exact_match", "expectations"):
        if one := answer[name]:
            told = f"{one['base']:,} -> {one['tuned']:,} of {one['asked']:,}; {one['only_tuned']:,} gained, {one['only_base']:,} lost"
            compared = f"{told} ({chance(one['p_value'])})" if one["asked"] else ""
            found.append((name.replace("_", " "), "; ".join(filter(None, [compared, not_matched(one, "--longest")]))))
    for task in (answer["suite"] or {"tasks": []})["tasks"]:
        if task["metric"]:
            told = (
                f"{task['base']:.4f} -> {task['tuned']:.4f} of {task['asked']:,}; {task['only_tuned']:,} gained, {task['only_base']:,} lost"
            )
            found.append((task["task"], f"{task['metric'].partition(',')[0]} {told} ({chance(task['p_value'])})"))
        else:
            found.append((task["task"], f"{_figures(task['lm_eval'])}: of the whole set, so without a paired test"))
    forgotten = answer["forgotten"]
    found.append(("forgotten", f"{_loss(forgotten['loss'])} on {counted(forgotten['rows'], 'general row')}: {_word(forgotten['verdict'])}"))
    if forgotten["verdict"] == "worse":
        found.append(("to forget less", "a new run of fewer steps (train.epochs), or with general rows among data.files"))
    for name, one in (answer["answers"] or {}).items():
        told = f"{one['tokens']:.1f} tokens on average, {one['stopped']:,} of {one['asked']:,} ended by themselves"
        found.append((f"answers, {name}", f"{told}, {one['refused']:,} refused, {one['empty']:,} empty"))
    return found


def _listed(grouped_by: list[str]) -> str:
    names = [name.replace("_", "-") for name in grouped_by]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _left_out(by_reason: dict[str, int]) -> str:
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in by_reason.items())
    return f"{counted(sum(by_reason.values()), 'row')} ({reasons})"


def _overlap(answer: Json) -> str:
    """Say how many of the rows stand in training, or that they were not looked for."""
    if answer["kind"] == "training":
        return "all of them"
    told = _counted_overlap(answer["overlap"])
    if answer["not_looked_at"]:
        told += f"; not looked at: the rows of {' and '.join(answer['not_looked_at'])}"
    return told if answer["against"] == "base" else f"{told}; of {answer['against']}: {_counted_overlap(answer['overlap_against'])}"


def _counted_overlap(found: Json | None) -> str:
    if found is None:
        return "not looked at: the rows of its run are not here, or cannot be read"
    return f"{found['same']:,} of {found['rows']:,} word for word, {found['same_prompt']:,} with their prompt"


def _loss(loss: Json) -> str:
    interval = loss["interval"]
    between = f", 95% {interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""
    return f"{loss['base']:.4f} -> {loss['tuned']:.4f} ({loss['difference']:+.4f}{between})"


def _figures(found: Json) -> str:
    tuned = {name: f"{value:.4f}" for name, value in found["tuned"].items()}
    names = [name for name in found["base"] if "stderr" not in name]
    return ", ".join(f"{name.partition(',')[0]} {found['base'][name]:.4f} -> {tuned.get(name, 'not measured')}" for name in names)


def _word(verdict: str) -> str:
    return {"cannot_tell": "cannot tell"}.get(verdict, verdict)


def summary(answer: Json, name: str) -> Json:
    """Return what the command's JSON says of both halves: the sentence, and whether neither is bad."""
    return {"headline": headline(answer, name), "good": is_good(answer)}


def show(answer: Json, name: str, subject: Path) -> None:
    say(headline(answer, name))
    for what, told in [*lines(answer), ("next", next_command(answer, subject))]:
        say(f"  {what:16} {told}")


def next_command(answer: Json, subject: Path) -> str:
    """Return what to type after this verdict: export what is good, measure again what cannot be told, else compare answers by hand."""
    if answer["verdict"] == "cannot_tell":
        return f"holdfast verify {shown(subject)} --rows MORE.jsonl"
    if answer["verdict"] == "better" and is_good(answer):
        return f"holdfast export {shown(subject)} --to merged --out {shlex.quote(subject.resolve().name + '-merged')}"
    return f"holdfast chat {shown(subject)}"


def page(answer: Json, name: str) -> str:
    """Render the same as a page, with some answers."""
    return page_template("verdict.html").render(
        headline=headline(answer, name),
        good=is_good(answer),
        lines=lines(answer),
        samples=answer["samples"],
        hashes={key: value for key, value in answer["hashes"].items() if value},
        version=__version__,
    )
