"""The page of `data check`: one HTML file that needs nothing else. Takes the findings, computes nothing new, escapes every text."""

from __future__ import annotations

from markupsafe import Markup

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.report.data.lines import facts, headline, repeated, strays
from holdfast.report.pages import page_template
from holdfast.report.svg import histogram

_MOST_CATEGORIES = 40  # rows of a table that is still read
_MOST_CUT = 0.9  # share of the rows; limits that cut more are no choice


def _limits(answer: Json) -> list[tuple[str, str, str]]:
    """Return the longest rows one might allow, with the shares of rows and tokens beyond them."""
    rows, tokens = sum(answer["histogram"]["counts"]), answer["outlook"]["tokens"]
    choices = [limit for limit in answer["outlook"]["limits"] if limit["rows"] <= _MOST_CUT * rows]
    return [
        (
            f"{limit['max_tokens']:,}",
            f"{limit['rows']:,} ({limit['rows'] / rows:.1%})",
            f"{limit['tokens']:,} ({limit['tokens'] / tokens:.1%})",
        )
        for limit in choices
    ]


def render(answer: Json) -> str:
    """Render the findings as a page."""
    shape = answer["histogram"]
    return page_template("datapage.html").render(
        headline=headline(answer),
        facts=facts(answer),
        good=not answer["rejected"],
        chart=Markup(histogram(shape["edges"], shape["counts"], "tokens", answer["max_tokens"])),
        cut=answer["by_reason"].get("answer_cut", 0),
        split=answer["by_reason"].get("row_split", 0),
        tables=[
            ("What is wrong", answer["by_reason"]),
            ("Notes: rows that are kept as they are", repeated(answer) | answer["notes"]),
            ("Rows in another language than the rest, kept as they are", strays(answer)),
        ],
        limits=_limits(answer),
        languages=list(answer["languages"].items())[:_MOST_CATEGORIES],
        categories=list(answer["categories"].items())[:_MOST_CATEGORIES],
        answer=answer,
        version=__version__,
    )
