"""Templates that mark what is generated: what is learned is transformers' own mask, and the counts are those of what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow
from holdfast.data.survey.survey import check_block, read_survey
from holdfast.data.templates.chat_template import learned_by, write
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.token_set.worse import WORSE
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.prompt import prompt_ids
from holdfast.data.tokens.shard import Block, tokenise
from holdfast.data.tokens.shown import show_row
from holdfast.serve.requests import chat_ids
from support.chat_templates import SHAPES, codec_with

_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_CALLS = "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }}{% endfor %}<|im_end|>{% endgeneration %}"
_END = "\n{% endif %}{% endfor %}"
_GIVEN = "{% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% else %}"
TEMPLATES = {
    # as gpt-oss: reasoning at a call is left out where an answer follows
    "reasoning at calls": _GIVEN + "{% generation %}{% if m.tool_calls %}{% set later = namespace(found=false) %}"
    "{% for n in messages[loop.index:] %}"
    "{% if n.role == 'assistant' and not n.tool_calls %}{% set later.found = true %}{% endif %}{% endfor %}"
    "{% if m.thinking and not later.found %}<|im_start|>think\n{{ m.thinking }}<|im_end|>{% endif %}"
    "<|im_start|>call\n{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}<|im_end|>"
    "{% else %}<|im_start|>assistant\n{{ m.content }}<|im_end|>{% endif %}{% endgeneration %}"
    + _END
    + "{% if add_generation_prompt %}<|im_start|>{% endif %}",
    # as GLM-4: reasoning of the last answer alone, empty where there is none
    "reasoning of the last": "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + _GIVEN
    + "<|im_start|>assistant{% generation %}\n<think>"
    "{{ m.reasoning_content if m.reasoning_content and loop.index0 > ns.last else '' }}</think>\n{{ m.content }}"
    + _CALLS
    + _END
    + "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    # as TRL's for Llama 3 and LFM2
    "no place for calls": _GIVEN
    + "<|im_start|>assistant\n{% generation %}{{ m.content | trim + '<|im_end|>' }}{% endgeneration %}"
    + _END
    + _OPEN,
    # as TRL's for Phi-3
    "an end behind the last": _GIVEN
    + "<|im_start|>assistant\n{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    + _END[1:]
    + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% else %}{% generation %}<|endoftext|>{% endgeneration %}{% endif %}",
    "two spans apart": _GIVEN
    + "<|im_start|>assistant\n{% generation %}<think>{{ m.reasoning_content or '' }}</think>{% endgeneration %}\n\n"
    "{% generation %}{{ m.content }}" + _CALLS + _END + _OPEN,
}
PLAIN = ("no place for calls", "an end behind the last")  # without a place for calls and reasoning
ASK, TELL = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Nineteen."}
AGAIN, LAST = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Three."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "stock", "arguments": {"part": "M3"}}}],
}
FOUND = {"role": "tool", "name": "stock", "content": "19"}
THOUGHT = {"reasoning_content": "Count.", "thinking": "Count."}
CHATS = {
    "one turn": [ASK, TELL],
    "two turns": [ASK, TELL, AGAIN, LAST],
    "a thought": [ASK, TELL | THOUGHT],
    "two thoughts": [ASK, TELL | THOUGHT, AGAIN, LAST | THOUGHT],
    "a call": [ASK, CALL, FOUND, TELL],
    "a thought at a call": [ASK, CALL | THOUGHT, FOUND, TELL],
    "a call behind an answer": [ASK, TELL, AGAIN, CALL, FOUND, LAST],
    "a thought at a call behind an answer": [ASK, TELL, AGAIN, CALL | THOUGHT, FOUND, LAST],
    "alike": [ASK, TELL, ASK, TELL],
}


def chats_of(shape: str) -> dict[str, list[dict[str, Any]]]:
    """Those without reasoning where the template has no place for it: it is then written as a part of the answer."""
    return {name: turns for name, turns in CHATS.items() if shape not in PLAIN or not any("thinking" in turn for turn in turns)}


def learned_of(written: RenderedRow) -> str:
    return "".join(text for pieces in written.sequences for text, learned in pieces if learned)


def masked(codec: Codec, turns: list[dict[str, Any]]) -> str:
    theirs = AutoTokenizer.from_pretrained(codec.folder)
    found = theirs.apply_chat_template(turns, return_assistant_tokens_mask=True, return_dict=True)
    return str(theirs.decode([number for number, own in zip(found["input_ids"], found["assistant_masks"], strict=True) if own]))


@pytest.mark.parametrize("shape", TEMPLATES)
def test_what_is_learned_is_what_the_template_marks(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, TEMPLATES[shape])
    for name, turns in chats_of(shape).items():
        found = write(parse_example({"messages": turns}, "auto"), codec.template)
        expected = masked(codec, turns)
        if shape in PLAIN and "call" in name:  # an end mark alone would teach to say nothing
            expected = masked(codec, [turn for turn in turns if not turn.get("tool_calls")])
            assert found.calls == 1 and found.learned == found.answers - 1, name
        else:
            assert found.calls == 0 and found.learned == found.answers, name
        assert learned_of(found) == expected, name


@pytest.mark.parametrize("shape", TEMPLATES)
def test_turns_that_are_switched_off_are_those_that_are_not_learned(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, TEMPLATES[shape])
    for turns in chats_of(shape).values():
        answers = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"]
        for off in answers if len(answers) > 1 else ():
            marked = [turn | {"weight": 0} if at == off else turn for at, turn in enumerate(turns)]
            try:
                found = write(parse_example({"messages": marked}, "auto"), codec.template)
            except BadRow as bad:
                assert bad.reason == "no_place_for_tool_calls"
                continue
            said = learned_of(found)
            for at in answers:
                own = "stock" if turns[at].get("tool_calls") else turns[at]["content"]
                twice = sum(turn["content"] == own for turn in turns) > 1
                kept = at != off and not (own == "stock" and found.calls)
                assert said.count(own) == (1 if twice else int(kept)), (turns, off, said)
            assert found.off == 1 and found.learned == len(answers) - 1 - (found.calls and "stock" not in said)


@pytest.mark.parametrize("shape", ["an end behind the last", "two spans apart"])
def test_all_spans_of_the_last_answer_are_learned(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, TEMPLATES[shape])
    end = "<|im_end|>\n<|endoftext|>" if shape == "an end behind the last" else "<|im_end|>"
    thought = "" if shape == "an end behind the last" else "<think></think>"
    for turns in (CHATS["one turn"], CHATS["two turns"]):
        said = f"{thought}{turns[-1]['content']}{end}"
        example = parse_example({"messages": turns}, "auto")
        assert learned_of(learned_by(write(example, codec.template), "last")) == said
        raw = UnparsedRow(1, json.dumps({"messages": turns}).encode())
        shown = show_row(raw, Rules(learns="last"), codec)
        assert "".join(token["text"] for token in shown.tokens if token["learned"]) == said
    pair = {"prompt": [ASK], "chosen": [TELL], "rejected": [LAST]}
    shard = tokenise(Block((UnparsedRow(1, json.dumps(pair).encode()),)), Rules(learns="last", wanted="pairs"), codec)
    for flag, answer in ((1, "Nineteen."), (1 + WORSE, "Three.")):
        ids = shard.ids[shard.learned == flag].tolist()
        assert codec.tokenizer.decode(ids, skip_special_tokens=False) == f"{thought}{answer}{end}"


@pytest.mark.parametrize("shape", TEMPLATES)
def test_a_prompt_ends_where_the_answer_begins(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, TEMPLATES[shape])
    turns = parse_example({"messages": [ASK, TELL, AGAIN, LAST]}, "auto").messages[:3]
    ids = chat_ids(codec, [*turns])
    assert ids == prompt_ids(codec, turns, 4096)
    text = codec.tokenizer.decode(ids, skip_special_tokens=False)
    assert "Nineteen." in text and text.rpartition("And now?<|im_end|>\n")[2] in ("", "<|im_start|>assistant", "<|im_start|>assistant\n")


def test_counts_of_a_template_with_marks_are_those_of_what_is_learned(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, TEMPLATES["reasoning at calls"])
    rows = [CHATS["a thought at a call"], CHATS["a call"], CHATS["two turns"]]
    block = Block(tuple(UnparsedRow(at, json.dumps({"messages": turns}).encode()) for at, turns in enumerate(rows)))
    taught = tokenise(block, Rules(), codec).verdicts.taught.as_json()
    assert taught == {"answers": 6, "learned": 6, "without_end": 0, "tool_calls_left_out": 0, "reasoning_left_out": 1}
    plain = codec_with(tmp_path / "plain", TEMPLATES["no place for calls"])
    block = Block(tuple(UnparsedRow(at, json.dumps({"messages": CHATS["a call"]}).encode()) for at in range(2)))
    shard = tokenise(block, Rules(), plain)
    taught = shard.verdicts.taught.as_json()
    assert taught == {"answers": 4, "learned": 2, "without_end": 0, "tool_calls_left_out": 2, "reasoning_left_out": 0}
    ends = plain.tokenizer.token_to_id("<|im_end|>")
    assert int((shard.ids[shard.learned == 1] == ends).sum()) == 2


TALK = [ASK, TELL, AGAIN]


@pytest.mark.parametrize("shape", ["plain", "no place for calls"])
@pytest.mark.parametrize(
    ("row", "rules"),
    [
        ({"prompt": TALK, "chosen": [CALL], "rejected": [LAST]}, Rules(learns="last", wanted="pairs")),
        ({"prompt": TALK, "chosen": [LAST], "rejected": [CALL]}, Rules(learns="last", wanted="pairs")),
        ({"messages": [*TALK, CALL], "label": True}, Rules(learns="last", wanted="marks")),
        ({"messages": [*TALK, CALL]}, Rules(learns="last")),
    ],
)
def test_no_earlier_answer_stands_in_for_a_last_one_that_the_template_leaves_out(
    shape: str, row: dict[str, Any], rules: Rules, tmp_path: Path
) -> None:
    codec, block = codec_with(tmp_path, (SHAPES | TEMPLATES)[shape]), Block((UnparsedRow(1, json.dumps(row).encode()),))
    found = tokenise(block, rules, codec)
    assert (found.verdicts.rejected, found.verdicts.kept, dict(found.verdicts.by_reason)) == (1, 0, {"no_place_for_tool_calls": 1})
    assert read_survey(check_block(block, rules, codec)).verdicts.by_reason == found.verdicts.by_reason
    with pytest.raises(BadRow) as bad:
        show_row(block.rows[0], rules, codec)
    assert bad.value.reason == "no_place_for_tool_calls"


def test_an_answer_that_is_not_to_be_learned_is_compared_with_none(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["plain"])
    row = {"messages": [*TALK, LAST | {"train": False}], "label": True}
    block = Block((UnparsedRow(1, json.dumps(row).encode()),))
    assert dict(tokenise(block, Rules(learns="last", wanted="marks"), codec).verdicts.by_reason) == {"all_labels_masked": 1}
    alone = tokenise(Block((UnparsedRow(1, json.dumps({"messages": row["messages"]}).encode()),)), Rules(learns="last"), codec)
    ids = alone.ids[alone.learned == 1].tolist()
    assert codec.tokenizer.decode(ids, skip_special_tokens=False).strip() == "Nineteen.<|im_end|>", "the last one that is to be learned"
