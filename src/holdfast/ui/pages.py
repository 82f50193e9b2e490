"""The pages that are one HTML file and need nothing else: they share head and style (page.html), and every text in them is escaped."""

from __future__ import annotations

import jinja2

from holdfast.ui.datatable import visible


def page_template(name: str) -> jinja2.Template:
    """The template of a page, a file of this folder that extends page.html."""
    folder = jinja2.PackageLoader("holdfast", "ui")
    environment = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["visible"] = visible
    return environment.get_template(name)
