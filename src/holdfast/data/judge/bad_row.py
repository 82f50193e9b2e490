"""Why a row cannot be trained on."""

from __future__ import annotations

from typing import Any


class BadRow(Exception):
    """Why a row cannot be trained on: a short name that can be counted, and what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
