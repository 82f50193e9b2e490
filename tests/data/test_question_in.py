"""The text of a prompt, for people: without what a chat template writes around it."""

from __future__ import annotations

import pytest

from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.turns import Message
from holdfast.data.tokens.codec import load_codec, plain_codec
from holdfast.data.tokens.prompt import prompt_ids, question_in


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
