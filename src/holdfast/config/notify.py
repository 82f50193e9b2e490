"""`run.notify`: who is told when a run needs a person, recovered or ended."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from holdfast.config.section import Section

Event = Literal["needs_person", "recovered", "finished", "gave_up", "interrupted"]
_DEFAULT: list[Event] = ["needs_person", "recovered", "finished", "gave_up"]


class Notify(Section):
    """Words to a person, sent from a process beside the run. $NAME in url and sendmail is that variable when a word is sent."""

    command: str | list[str] | None = Field(
        None, description="run with the word as JSON on its input and as HOLDFAST_EVENT, HOLDFAST_RUN, HOLDFAST_TEXT; a text goes to sh"
    )
    url: str | None = Field(None, description="an http or https address the word is posted to: ntfy, Slack, Discord, Matrix, your own")
    body: str | dict[str, str] | None = Field(
        None,
        description="what is posted, with {text}, {event}, {run}: a text, or fields of JSON; by default text, content, event, run",
    )
    sendmail: str | None = Field(None, pattern=r"^[^\s@]+@?[^\s@]*$", description="an address, written to through this system's sendmail")
    events: list[Event] = Field(
        default_factory=lambda: list(_DEFAULT),
        description="what is told: needs_person (a GPU or the disk is gone, an alarming sign), recovered (died and goes on), and each end",
    )
    per_hour: int = Field(
        6, ge=1, le=10_000, description="most words an hour, with 1 that of the end besides; the next one tells how many were left out"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://", "$")):
            raise ValueError("is no http or https address")
        return value

    @model_validator(mode="after")
    def _has_a_receiver(self) -> Notify:
        if not (self.command or self.url or self.sendmail):
            raise ValueError("names nobody: give command, url or sendmail")
        return self
