"""What base + adapter and an export of them are both asked: held-out rows, prompts to answer, conversations and texts to tokenise."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import orjson

from holdfast.base.files import Json
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.prompt import prompt_ids
from holdfast.export.endings import end_of_turn, end_tokens, pad_token
from holdfast.export.samples import GENERAL, Samples, of_general, of_run
from holdfast.export.subject import Subject

ROWS, PLACES, PROMPTS, CHATS, LONGEST = 16, 16, 8, 12, 24
_MOST_TOKENS = 512


@dataclass(frozen=True)
class Questions:
    """samples, and where their logits are compared: [row, position]; prompts: to answer greedily with at most `longest` tokens.

    chats: conversations, chat_ids: what training would make of them; texts and text_ids: prompts of the rows, and their tokens.
    pad: what rows are filled with here; kept_pad: the base's own pad token, which an export has.
    """

    samples: Samples
    places: list[list[int]]
    prompts: list[list[int]]
    longest: int
    chats: list[list[Json]]
    chat_ids: list[list[int]]
    texts: list[str]
    text_ids: list[list[int]]
    ends: tuple[int, ...]
    end: int | None
    pad: int
    kept_pad: int | None


def questions_of(subject: Subject, codec: Codec) -> Questions:
    """Build the questions of a subject from rows that its run held out where there are such, else from the general set."""
    longest = subject.longest_row or _MOST_TOKENS
    most_tokens = min(_MOST_TOKENS, longest)
    own = of_run(subject.run, ROWS) if subject.run and subject.run.data_file.exists() else None
    samples = own if own is not None and len(own) else of_general(codec, most_tokens).first(ROWS)
    prompts = [prompt for number in range(min(PROMPTS, len(samples))) if (prompt := samples.prompt_and_answer(number, codec)[0])]
    room = longest - max(map(len, prompts))
    chats, chat_ids = _chats(codec, most_tokens)
    texts, text_ids = _texts(codec, prompts)
    return Questions(
        samples,
        [[row, at] for row in range(len(samples)) for at in _places(samples, row, most_tokens)],
        prompts,
        max(1, min(LONGEST, room)),
        chats,
        chat_ids,
        texts,
        text_ids,
        end_tokens(codec, subject.facts),
        end_of_turn(codec),
        codec.pad,
        pad_token(codec, subject.facts),
    )


def _places(samples: Samples, row: int, most_tokens: int) -> list[int]:
    """Choose positions that predict a learned token, spread over the row; any positions where there are too few."""
    ids, learned = samples.row(row)
    last = min(len(ids), most_tokens) - 1
    predicting = [at for at in range(last) if learned[at + 1]] or [*range(max(1, last))]
    chosen = np.linspace(0, len(predicting) - 1, min(PLACES, len(predicting))).round().astype(int)
    return sorted({predicting[at] for at in chosen.tolist()})


def _chats(codec: Codec, most_tokens: int) -> tuple[list[list[Json]], list[list[int]]]:
    """Return conversations of the general set, one of several turns, and their tokens as training has them."""
    rows = [orjson.loads(line) for line in (files("holdfast.export") / GENERAL).read_bytes().splitlines()[:CHATS]]
    turns = [[Message("user", row["instruction"])] for row in rows]
    turns.append(
        [Message("user", rows[0]["instruction"]), Message("assistant", rows[0]["output"]), Message("user", rows[1]["instruction"])]
    )
    chats, ids = [], []
    for turn in turns:
        try:
            found = prompt_ids(codec, (*turn,), most_tokens)
        except BadRow:
            continue
        if codec.template.compiled is None and not _whole_text_alike(codec, found):
            continue
        chats.append([{"role": message.role, "content": message.content} for message in turn])
        ids.append(found)
    return chats, ids


def _whole_text_alike(codec: Codec, ids: list[int]) -> bool:
    """Return whether a row in the plain form is tokenised as a whole like in pieces: no special token parts its turns."""
    text = codec.tokenizer.decode(ids, skip_special_tokens=False)
    return bool(codec.tokenizer.encode(text, add_special_tokens=False).ids == ids)


def _texts(codec: Codec, prompts: list[list[int]]) -> tuple[list[str], list[list[int]]]:
    """Return (texts, token ids) of the prompts whose text is tokenised to the same ids: rows are tokenised in pieces."""
    texts, ids = [], []
    for prompt in prompts:
        text = codec.tokenizer.decode(prompt, skip_special_tokens=False)
        if codec.tokenizer.encode(text, add_special_tokens=False).ids == prompt:
            texts.append(text)
            ids.append(prompt)
    return texts, ids
