"""The page of `data check`: one HTML file that needs nothing else. Takes the findings, computes nothing new, escapes every text."""

from __future__ import annotations

from importlib.resources import files

import jinja2
from markupsafe import Markup

from holdfast import __version__
from holdfast.core.files import Json
from holdfast.ui.datatable import facts, headline, repeated, visible
from holdfast.ui.svg import histogram


def render(answer: Json) -> str:
    """The findings as a page."""
    page, report = (files("holdfast.ui").joinpath(name).read_text(encoding="utf-8") for name in ("datapage.html", "report.html"))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["visible"] = visible
    shape = answer["histogram"]
    return environment.from_string(page).render(
        style=Markup(report.partition("<style>")[2].partition("</style>")[0]),  # both pages look alike
        headline=headline(answer),
        facts=facts(answer),
        good=not answer["rejected"],
        chart=Markup(histogram(shape["edges"], shape["counts"], "tokens", answer["max_tokens"])),
        cut=answer["by_reason"].get("answer_cut", 0),
        tables=[("What is wrong", answer["by_reason"]), ("Notes: rows that are kept as they are", repeated(answer) | answer["notes"])],
        answer=answer,
        version=__version__,
    )
