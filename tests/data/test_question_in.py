"""The text of a prompt, for people: without what a chat template writes around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import write_rows
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.rules import Learns, Rules
from holdfast.data.judge.turns import Message
from holdfast.data.tokens.codec import load_codec, plain_codec
from holdfast.data.tokens.prompt import asked_and_answered, prompt_ids, question_in
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.export.endings import end_of_turn
from support.chat_templates import SHAPES, codec_with


@pytest.mark.parametrize("plain", [False, True])
def test_the_marks_of_roles_are_no_part_of_a_question(plain: bool) -> None:
    codec = load_codec(EMBEDDED["tiny"])
    codec = plain_codec(codec) if plain else codec

    def told(*turns: Message) -> str:
        return question_in(codec, prompt_ids(codec, turns, 999))

    for text in ("Name a tree", "1", "a", "two\nlines, user"):
        assert told(Message("user", text)) == text
    more = told(Message("user", "Name a tree"), Message("assistant", "oak"), Message("user", "Another"))
    assert "oak" in more and more.index("oak") < more.index("Another"), "several turns need their marks"
    assert question_in(codec, codec.tokenizer.encode("a plain text").ids) == "a plain text"


@pytest.mark.parametrize("shape", [*SHAPES, "Llama-2"])
def test_the_first_answer_of_a_row_that_is_all_learned_is_that_of_one_whose_answers_are(shape: str, tmp_path: Path) -> None:
    """With train_on: all a model was asked with the first token of a conversation alone, and held against all the rest of it."""
    llama = "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else m.content + '<|im_end|>' }}{% endfor %}"
    codec = codec_with(tmp_path / "model", SHAPES.get(shape, llama))
    turns = [("user", "Name a tree"), ("assistant", "birch"), ("user", "Another?"), ("assistant", "oak")]
    talk = [{"role": role, "content": text} for role, text in turns]
    rows = [{"messages": talk[:2]}, {"instruction": "Name a bird", "output": "finch"}, {"text": "a b"}, {"messages": talk}]
    [block] = blocks(str(write_rows(tmp_path / "rows.jsonl", rows)))
    ends = [end for end in (end_of_turn(codec),) if end is not None]

    def asked(learns: Learns) -> list[tuple[list[int], str]]:
        shard, found = tokenise(block, Rules(learns=learns), codec), {}
        for line, size, end in zip(shard.lines.tolist(), shard.lengths.tolist(), shard.lengths.cumsum().tolist(), strict=True):
            ids, learned = (each[end - size : end].tolist() for each in (shard.ids, shard.learned))
            prompt, answer = asked_and_answered(ids, learned, codec, ends)
            found.setdefault(line, (prompt, codec.tokenizer.decode(answer, skip_special_tokens=True).strip()))
        return [found[line] for line in sorted(found)]

    everything, answers = asked("all"), asked("assistant")
    assert everything[:3] == answers[:3]
    assert everything[3][1] in answers[3][1] or everything[3][1] == "oak"  # as its turns stand in the whole row
