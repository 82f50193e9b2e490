"""What `verify` shows: a few lines in a terminal, and a page that needs nothing else. Computes nothing new, escapes every text."""

from __future__ import annotations

from importlib.resources import files

import jinja2
from markupsafe import Markup

from holdfast import __version__
from holdfast.core.files import Json
from holdfast.core.inert import say
from holdfast.core.units import chance, counted
from holdfast.ui.datatable import visible

_KINDS = {"held_out": "rows the run held out", "training": "rows it was trained on", "file": "rows of the file", "general": "general rows"}


def headline(answer: Json, name: str) -> str:
    """The verdict as a sentence."""
    against = "the base" if answer["against"] == "base" else answer["against"]
    words = {
        "better": f"{name} is better than {against}",
        "worse": f"{name} is worse than {against}",
        "same": f"{name} is as good as {against}",
        "cannot_tell": f"whether {name} is better than {against} cannot be told",
    }
    needed = f"; about {answer['rows_needed']:,} rows would tell" if answer["rows_needed"] else ""
    return words[answer["verdict"]] + needed


def lines(answer: Json) -> list[tuple[str, str]]:
    """(what, its figures) of all that was measured."""
    loss, ab = answer["loss"], answer["ab"]
    found = [
        ("why", answer["why"]),
        ("rows", f"{answer['rows']:,} {_KINDS[answer['kind']]}, {loss['clusters']:,} of them independent"),
        ("loss per token", _loss(loss)),
        ("row by row", f"{ab['wins']:,} better, {ab['losses']:,} worse, {ab['ties']:,} the same ({chance(ab['p_value'])})"),
    ]
    for name in ("exact_match", "expectations"):
        if one := answer[name]:
            told = f"{one['base']:,} -> {one['tuned']:,} of {one['asked']:,}; {one['only_tuned']:,} gained, {one['only_base']:,} lost"
            found.append((name.replace("_", " "), f"{told} ({chance(one['p_value'])})"))
    forgotten = answer["forgotten"]
    found.append(("forgotten", f"{_loss(forgotten['loss'])} on {counted(forgotten['rows'], 'general row')}: {_word(forgotten['verdict'])}"))
    for name, one in (answer["answers"] or {}).items():
        told = f"{one['tokens']:.1f} tokens on average, {one['stopped']:,} of {one['asked']:,} ended by themselves"
        found.append((f"answers, {name}", f"{told}, {one['refused']:,} refused, {one['empty']:,} empty"))
    return found


def _loss(loss: Json) -> str:
    interval = loss["interval"]
    between = f", 95% {interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""
    return f"{loss['base']:.4f} -> {loss['tuned']:.4f} ({loss['difference']:+.4f}{between})"


def _word(verdict: str) -> str:
    return {"cannot_tell": "cannot tell"}.get(verdict, verdict)


def show(answer: Json, name: str) -> None:
    say(headline(answer, name))
    for what, told in lines(answer):
        say(f"  {what:16} {told}")


def page(answer: Json, name: str) -> str:
    """The same as a page, with some answers."""
    source, report = (files("holdfast.ui").joinpath(file).read_text(encoding="utf-8") for file in ("verdict.html", "report.html"))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["visible"] = visible
    return environment.from_string(source).render(
        style=Markup(report.partition("<style>")[2].partition("</style>")[0]),
        headline=headline(answer, name),
        good=answer["verdict"] in ("better", "same"),
        lines=lines(answer),
        samples=answer["samples"],
        hashes={key: value for key, value in answer["hashes"].items() if value},
        version=__version__,
    )
