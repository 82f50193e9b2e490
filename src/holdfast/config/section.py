"""What all sections of a config share."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo, field_validator


class Section(BaseModel, frozen=True, extra="forbid", strict=False, allow_inf_nan=False):
    """A part of a config: nothing unknown in it, no number that is not finite, no whole number of more than 64 bits."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        if value is True and bool not in kinds and kinds & {int, float}:
            raise ValueError("is no number")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _of_use(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) >= 1 << 62:
            raise ValueError(f"is a number of {len(str(abs(value)))} digits")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of."""
    return {annotation}.union(*map(_kinds, get_args(annotation))) if isinstance(annotation, type) or get_args(annotation) else set()
