"""The same where the setting's kernel reads what is not there: the context is broken after each trial."""

from __future__ import annotations

from stages import lab_setting
from stages.common import Place


def run(place: Place) -> None:
    lab_setting.run(place, "illegal")
