"""Which turns of a conversation a chat template wrote nothing of. Runs no template."""

from __future__ import annotations

import re

from holdfast.base.units import counted
from holdfast.data.judge.turns import Message
from holdfast.data.templates.conversation import Note, RenderedRow

_PROBE = 60  # characters of a turn that are looked for
_SHOWN = 60
_ENDING = "_turn_dropped"  # of a note's reason
_ROLES = ("system", "user", "assistant", "tool")


def dropped_turns(messages: tuple[Message, ...], written: RenderedRow) -> tuple[Note, ...]:
    """Return a note for each role of which a turn is missing before the last answer that was written.

    Of several sequences the last one is looked at, which has all the turns. A turn whose words stand in another one is not missed.
    """
    text = "".join(piece for piece, _ in written.sequences[-1])
    told = [(at, one, one.content.strip()) for at, one in enumerate(messages) if type(one.content) is str]
    missing = [(at, one, said) for at, one, said in told if said[:_PROBE] not in text]
    if not missing:
        return ()
    plain, found = f" {_words(text)} ", dict[str, str]()
    lost = [(at, one, said) for at, one, said in missing if (probe := _probe(said)) and f" {probe} " not in plain]
    there = {at for at, _, said in told if said} - {at for at, _, _ in lost}
    last = max((at for at in there if messages[at].role == "assistant"), default=0)
    for at, one, said in lost:
        if at < last:
            role = one.role if one.role in _ROLES else "other"
            found.setdefault(f"{role}{_ENDING}", f"the chat template writes nothing of its {one.role} turn: {said[:_SHOWN]!r}")
    return tuple(found.items())


def _probe(said: str) -> str:
    """Return the first words of a turn, without its reasoning: a template may leave that out."""
    words = _words(said.rpartition("</think>")[2])
    return words[:_PROBE].rpartition(" ")[0] or words[:_PROBE] if len(words) > _PROBE else words


def told_of_dropped(notes: dict[str, int]) -> list[str]:
    """Return a sentence for each kind of turn that rows lose. notes: rows by the reason of a note."""
    return [
        f"! in {counted(count, 'row')} the chat template writes nothing of a turn ({reason.removesuffix(_ENDING)}): the model never sees it"
        for reason, count in notes.items()
        if reason.endswith(_ENDING)
    ]


def _words(text: str) -> str:
    """Return the words alone: a template may strip, break or quote what it writes."""
    return re.sub(r"\W+", " ", re.sub(r"\\[nrt\"]", " ", text)).strip()
