"""The pages that are one HTML file and need nothing else: they share head and style (page.html), and every text in them is escaped."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import jinja2
from markupsafe import Markup

from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, write_bytes
from holdfast.base.versions import __version__
from holdfast.report.words import visible


@functools.cache
def page_template(name: str) -> jinja2.Template:
    """Load the template of a page, a file of this folder that extends page.html."""
    folder = jinja2.PackageLoader("holdfast", "report/templates")
    environment = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["visible"] = visible
    return environment.get_template(name)


def plain_page(title: str, told: str, body: str, bad: bool | None = None, style: str = "") -> str:
    """Render a page of a sentence and markup of ours. bad: the verdict that the sentence is, None: it is none; style: of this page."""
    shown = {"title": title, "told": told, "body": Markup(body), "bad": bad, "style": Markup(style), "version": __version__}
    return page_template("plain.html").render(shown)


def write_page(file: Path, text: str, answer: Json | None = None) -> None:
    """Write the page that --html asked for. Raises Stop(1), with the `answer` that is printed all the same."""
    with writing(file, "choose another --html FILE", answer):
        write_bytes(file, text.encode("utf-8", "replace"))


def write_in_folder(file: Path, text: str, hint: str) -> None:
    """Write a file that an option asked for, and the folders above it. Raises Stop(1)."""
    with writing(file, hint):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, text.encode())


@contextlib.contextmanager
def writing(file: Path, hint: str, answer: Json | None = None) -> Iterator[None]:
    """Say which file cannot be written. Raises Stop(1)."""
    try:
        yield
    except OSError as error:
        raise at_place(error, file, "cannot be written", hint, answer) from None
