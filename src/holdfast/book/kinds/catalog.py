"""Cards: pieces of knowledge, one file each, found by being in a folder. Judges nothing; what a kind of card matches is its own class.

A card is a YAML file, or a Python module whose `CARD` is the card (for kinds that need a function). Its id is the file's name.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError

from holdfast.base.errors import USAGE, Stop
from holdfast.base.safe_open import read_small
from holdfast.config.yaml_tree import in_one_line, value_of

ClaimStanding = Literal["confirmed", "reported", "folk", "refuted"]
Link = Annotated[str, Field(pattern=r"^https?://\S+$")]
C = TypeVar("C", bound="Card")
_WIDTH = 110  # letters of a line in a terminal


class SuggestedRemedy(BaseModel, frozen=True, extra="forbid"):
    """One way out. `patch`: config keys and their new values, where a setting cures it; `command`: what only the user can do."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    what: str = Field(min_length=1)
    patch: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    standing: ClaimStanding
    source: Link | None = None


class Card(BaseModel, frozen=True, extra="forbid"):
    """What every card has. `hits`: evidence it must match; `misses`: look-alikes it must not. Both are the card's own proof."""

    id: str = Field("", pattern=r"^([a-z0-9][a-z0-9-]*)?$")  # given by the file's name
    title: str = Field(min_length=1)
    why: str = Field(min_length=1, description="the mechanism, in two sentences")
    source: Annotated[list[Link], Field(min_length=1)]
    hits: Annotated[list[Any], Field(min_length=1)]
    misses: Annotated[list[Any], Field(min_length=1)]
    remedies: list[SuggestedRemedy] = Field(default_factory=list, description="cheapest sensible first")

    def matches(self, evidence: Any) -> bool:
        """Return whether one piece of evidence (a line, a log, a machine's facts: the kind decides) speaks for this card."""
        raise NotImplementedError

    def chapter(self) -> str:
        """Return the heading under which the card stands in the book's pages."""
        return "all"

    def details(self) -> Iterator[str]:
        """Yield what this kind adds to the card's page, as Markdown lines."""
        return iter(())

    def examples(self) -> list[str]:
        """Return lines that a log holds where this card speaks; none where the kind reads no log."""
        return []

    def told(self, filled: bool = True) -> str:
        """Return the card in words: what happens, what helps, where it is from, without what only the matching needs."""
        cause = f"; cause: {self.chapter()}" if self.chapter() not in ("all", self.id) else ""
        lines = [self.title, f"({self.id}{cause})", "", textwrap.fill(self.why, _WIDTH) if filled else self.why, ""]
        lines += ["what helps, in this order:"] * bool(self.remedies)
        for at, remedy in enumerate(self.remedies, 1):
            ways = [f"{key}={value}" for key, value in remedy.patch.items()] + [remedy.command] * bool(remedy.command)
            lines += [f"  {at}. {remedy.what} ({remedy.standing})", *(f"     -> {way}" for way in ways)]
        lines += ["  a key with a value goes into the config, or behind the command"] * any(remedy.patch for remedy in self.remedies)
        if examples := self.examples():
            lines += [""] * bool(self.remedies) + ["a log then says, for example:", *(f"  {example}" for example in examples)]
        lines += [""] * bool(self.remedies or examples)
        return "\n".join([*lines, "sources: " + " ".join(dict.fromkeys(self.source))])

    def page(self) -> str:
        """Return the card as Markdown, with what it matches."""
        lines = [f"## {self.id}", "", f"**{self.title}.** {self.why}", ""]
        if self.remedies:
            lines += ["Remedies, in order:", ""]
        for remedy in self.remedies:
            ways = [f"`{key}={value}`" for key, value in remedy.patch.items()] + [f"`{remedy.command}`"] * bool(remedy.command)
            lines.append(f"1. {remedy.what} ({remedy.standing})" + (f": {', '.join(ways)}" if ways else ""))
        links = ", ".join(f"<{link}>" for link in dict.fromkeys(self.source))
        lines += [""] * bool(self.remedies) + ["Sources: " + links, "", *self.details(), ""]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return all fields, for --json."""
        return self.model_dump(mode="json")


def read_cards(folder: Path, kind: type[C], package: str = "") -> dict[str, C]:
    """Read the cards of a folder and of the folders in it by id, in the order of their names.

    `package`: the dotted name the folder is importable under, if it is; its modules are then cards too.
    Raises Stop(2) naming the file and the field of a card that is not one, or two files of one name.
    """
    files = [*folder.rglob("*.yaml"), *(folder.glob("[!_]*.py") if package else ())]
    found: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: file.name):
        other = found.setdefault(file.stem, file)
        if other is not file:
            raise Stop(USAGE, f"{file} and {other} have one name", "a card's id is its file's name: rename one of them")
    return {card.id: card for card in (_read(file, kind, package) for file in found.values())}


def _read(file: Path, kind: type[C], package: str) -> C:
    name = file.stem.replace("_", "-")
    if file.suffix == ".py":
        card = importlib.import_module(f"{package}.{file.stem}").CARD
        if not isinstance(card, kind):
            raise Stop(USAGE, f"{file}: CARD is a {type(card).__name__}, not a {kind.__name__}")
        return card.model_copy(update={"id": name})
    try:
        tree = value_of(read_small(file).decode())
        if not isinstance(tree, dict):
            raise Stop(USAGE, f"{file}: a card is a mapping of fields", "docs/how-to/write-a-card.md shows what one looks like")
        return kind.model_validate({**tree, "id": name})
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise Stop(USAGE, f"{file} cannot be read: {in_one_line(error)}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors())
        raise Stop(USAGE, f"{file}: {problems}", "docs/how-to/write-a-card.md shows what a card looks like") from None
