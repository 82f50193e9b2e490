"""What all sections of a config share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """A part of a config: nothing unknown in it, no number that is not finite, no whole number of more than 64 bits."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _of_use(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) >= 1 << 62:
            raise ValueError(f"is a number of {len(str(abs(value)))} digits")
        return value
