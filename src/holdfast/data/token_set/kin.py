"""What rows of texts hang together by: their conversation, their prompt, their likeness. The held-out rows are drawn by whole groups."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.duplicates.linked import Links, Numbers, joined, links_of_equal
from holdfast.data.duplicates.similar import BINS, alike_pairs, hashes, key_of, normal, signatures
from holdfast.data.judge.judge import JudgedRow
from holdfast.data.judge.layouts import CONVERSATIONS

NEAR_ROWS = 200_000  # of more rows near-duplicates are not looked for
_MOST_OF_ALL = 0.75  # of the rows in one group: what hangs so many together tells none apart
_IDS = ("conversationid", "convid", "dialogid", "dialogueid", "threadid", "sessionid", "chatid", "conversationhash", "id")


class Kin(NamedTuple):
    """Of rows: hash of the conversation's id and of the first prompt (0: none), int64 [rows]; whether there is enough text to compare,
    uint8 [rows]; what is compared, uint8 [rows * BINS]. A plain `id` has an odd hash: it counts within its file alone."""

    conversations: Numbers
    prompts: Numbers
    comparable: npt.NDArray[np.uint8]
    signatures: npt.NDArray[np.uint8]


class Groups(NamedTuple):
    """first: for each row the first one it hangs together with, int64 [rows]; by: what was looked at."""

    first: Numbers
    by: tuple[str, ...]


def kin_of(rows: list[JudgedRow], times: list[int]) -> Kin:
    """Return what the rows hang together by, each as often as it is trained on."""
    found = [_texts(row) for row in rows]
    prompts = hashes([normal(prompt) or f"\0{normal(text)}" for prompt, text in found])
    made, enough = signatures([normal(text) for _, text in found])
    conversations = np.array([_conversation(row.value) for row in rows], np.int64)
    each = np.array(times, np.int64)
    return Kin(
        np.repeat(conversations, each),
        np.repeat(prompts, each),
        np.repeat(enough.astype(np.uint8), each),
        np.repeat(made, each, axis=0).reshape(-1),
    )


def _texts(row: JudgedRow) -> tuple[str, str]:
    """Return the prompt before the first answer, and all that user and assistant say."""
    if row.layout not in CONVERSATIONS:
        return row.prompt, row.text
    turns = row.example.messages
    asked = next((at for at, turn in enumerate(turns) if turn.role == "user"), 0)
    end = next((at for at, turn in enumerate(turns) if at > asked and turn.role == "assistant"), len(turns))
    return "\n".join([turn.content for turn in turns[:end]]), "\n".join([turn.said for turn in turns if turn.role != "system"])


def _conversation(value: Any) -> int:
    """Hash the id of the row's conversation; 0 without one."""
    if not isinstance(value, dict):
        return 0
    found = {re.sub("[^a-z]", "", str(name).lower()): inside for name, inside in value.items()}
    name = next((name for name in _IDS if isinstance(found.get(name), str | int) and str(found[name]).strip()), "")
    return key_of(f"{name} {found[name]}") >> 1 << 1 | (name == "id") if name else 0


def groups_of(kin: Kin, file: npt.NDArray[np.int32], line: Numbers) -> Groups:
    """Return which rows hang together: parts of one row, rows of one conversation, of one prompt, and near-duplicates.

    What would put most rows into one group is left out, as an id or a prompt that all rows share. file, line: [rows].
    """
    count = len(line)
    follows = np.flatnonzero((file[1:] == file[:-1]) & (line[1:] == line[:-1]))
    together: list[Links] = [(follows, follows + 1)]
    mixed = np.where(kin.conversations & 1, kin.conversations ^ (file.astype(np.int64) << 32), kin.conversations)
    kinds = {
        "conversation": links_of_equal(mixed, np.flatnonzero(kin.conversations)),
        "prompt": links_of_equal(kin.prompts, np.flatnonzero(kin.prompts)),
    }
    if count <= NEAR_ROWS:
        near = np.flatnonzero(kin.comparable)
        one, two = alike_pairs(kin.signatures.reshape(-1, BINS)[near])
        kinds["near_duplicate"] = near[one], near[two]
    by: list[str] = []
    for kind, links in kinds.items():
        if len(links[0]) < count - 1 or _largest(joined(count, [*together, links])) <= _MOST_OF_ALL * count:
            together.append(links)
            by.append(kind)
    return Groups(joined(count, together), tuple(by))


def _largest(first: Numbers) -> int:
    return int(np.bincount(first).max(initial=0))
