"""Read a report's page."""

from __future__ import annotations

import re


def charts_of_run(page: str) -> int:
    """Count the charts of what a run did; those of the machine depend on how long it took."""
    return re.sub(r"<h2>The machine meanwhile</h2>.*?(?=<h2>|$)", "", page, flags=re.DOTALL).count("<svg")
