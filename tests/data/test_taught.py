"""What a row teaches: every answer its author meant, or a word about it. Templates are small ones of each kind that is published."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config.config import Config
from holdfast.data.judge.layouts import example_of, parse_example
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow
from holdfast.data.survey.survey import check_block, read_survey
from holdfast.data.templates.chat_template import pieces as pieces_of
from holdfast.data.templates.chat_template import write, write_learned
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.templates.dropped import told_of_dropped
from holdfast.data.templates.sandbox import sandbox
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.planning.workload import Workload, workload
from holdfast.report.data.rows_told import row_warnings
from support.chat_templates import SHAPES, codec_with

ASK, TELL = {"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}
TALK = [ASK, TELL, {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "stock", "arguments": '{"part": "M3"}'}}]}
CALLING = [ASK, CALL, {"role": "tool", "name": "stock", "content": "21"}, {"role": "assistant", "content": "a2"}]


def written(row: Any, codec: Codec) -> RenderedRow:
    return write(parse_example(row, "auto"), codec.template)


def learned(row: Any, codec: Codec) -> list[str]:
    return [text for pieces in written(row, codec).sequences for text, flag in pieces if flag]


def reasons(row: Any, codec: Codec) -> set[str]:
    return {reason for reason, _ in written(row, codec).notes}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_answer_is_learned_whatever_the_template_makes_of_the_past(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES[shape])
    found = written({"messages": TALK}, codec)
    said = learned({"messages": TALK}, codec)
    assert (found.answers, found.learned, len(said)) == (2, 2, 2)
    assert "a1" in said[0] and "a2" in said[1] and not any("q" in text for text in said)
    for pieces in found.sequences:  # each stands behind what a server renders
        assert "".join(text for text, _ in pieces).count("q1") == 1


def test_a_template_that_only_closes_the_last_turn_otherwise_makes_one_sequence(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["closes the last turn twice"])
    assert len(written({"messages": TALK}, codec).sequences) == 1
    assert learned({"messages": TALK}, codec) == ["a1<|im_end|>\n", "a2<|im_end|>\n<|endoftext|>"]


def test_a_template_that_always_opens_a_turn_does_not_teach_to_open_one(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["always opens a turn"])
    assert learned({"messages": TALK}, codec) == ["a1<|im_end|>\n", "a2<|im_end|>\n"]
    assert learned({"instruction": "q", "output": "a"}, codec) == ["a<|im_end|>\n"]


def test_marks_of_what_is_generated_are_followed(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["marks what is generated"])
    assert learned({"messages": TALK}, codec) == ["a1<|im_end|>", "a2<|im_end|>"]
    assert not reasons({"messages": TALK}, codec)
    outside = codec_with(
        tmp_path / "2", SHAPES["marks what is generated"].replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    )
    assert learned({"messages": TALK}, outside) == ["a1", "a2"]
    assert reasons({"messages": TALK}, outside) == {"answer_without_end"}


@pytest.mark.parametrize("shape", ["writes no end", "ends with the next turn"])
def test_an_answer_without_an_end_is_noted(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES[shape])
    assert reasons({"messages": TALK}, codec) == {"answer_without_end"}
    assert written({"instruction": "q", "output": "a"}, codec).unended == 1


def test_a_call_without_a_place_is_not_learned_as_an_empty_answer(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["plain"])
    assert learned({"messages": CALLING}, codec) == ["a2<|im_end|>\n"]
    assert {"tool_calls_left_out", "answer_not_learned"} <= reasons({"messages": CALLING}, codec)
    with pytest.raises(BadRow) as bad:
        written({"messages": CALLING[:2]}, codec)
    assert bad.value.reason == "no_place_for_tool_calls"
    beside = {"messages": [ASK, CALL | {"content": "let me look"}]}
    assert learned(beside, codec) == ["let me look<|im_end|>\n"] and written(beside, codec).calls == 1


@pytest.mark.parametrize(
    "calls",
    [
        [{"function": {"name": "stock", "arguments": {"part": "M3", "site": None}}}],
        [{"name": "stock", "arguments": '{"part": "M3"}'}],
        '[{"function": {"name": "stock", "arguments": "{\\"part\\": \\"M3\\"}"}}]',
    ],
)
def test_a_call_is_learned_in_whatever_form_it_comes(calls: Any, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["calls"])
    of_columns = [ASK | {"tool_calls": None}, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert learned({"messages": of_columns}, codec) == ['CALL stock {"part": "M3"}<|im_end|>\n']


def test_arguments_are_text_where_a_template_adds_them_to_one(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["calls"].replace("| tojson", "+ ''"))
    assert learned({"messages": CALLING}, codec)[0] == 'CALL stock {"part": "M3"}<|im_end|>\n'


def test_a_row_whose_values_a_template_cannot_add_changes_no_row_behind_it(tmp_path: Path) -> None:
    told = "{% for t in tools or [] if m.tool_calls %}{{ ' of ' + t.default }}{% endfor %}{{ m.content }}"
    source = SHAPES["calls"].replace("{{ m.content }}", told)
    codec = codec_with(tmp_path, source)
    before = learned({"messages": CALLING}, codec)
    with pytest.raises(BadRow, match="refuses these turns: can only concatenate"):
        written({"messages": CALLING, "tools": [{"default": 3}]}, codec)
    assert learned({"messages": CALLING}, codec) == before
    assert before[0] == 'CALL stock {"part": "M3"}<|im_end|>\n'


def test_one_row_alone_is_written_with_text_where_its_arguments_cannot_be_added(tmp_path: Path) -> None:
    each = "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    each += "{% for k, v in c.function.arguments.items() %}{{ k + '=' + v }}{% endfor %}{% endif %}"
    codec = codec_with(tmp_path, SHAPES["calls"].replace("{{ c.function.arguments | tojson }}", each))
    number = {"role": "assistant", "tool_calls": [{"function": {"name": "stock", "arguments": '{"part": 3}'}}]}
    assert learned({"messages": [ASK, number]}, codec) == ['CALL stock {"part": 3}<|im_end|>\n']
    assert learned({"messages": [ASK, CALL]}, codec) == ["CALL stock part=M3<|im_end|>\n"]


@pytest.mark.parametrize("asked", ["tojson", "escape", "title", "striptags"])
def test_a_filter_over_a_content_is_applied_to_the_content_itself(asked: str, tmp_path: Path) -> None:
    said = '"a" & <b>c  d\n'
    codec = codec_with(tmp_path, _TURNS % ("{{ m.content | " + asked + " }}"))
    found = ["".join(text for text, _ in pieces_of(example_of("question-answer", said, "well"), codec.template)) for _ in range(2)]
    theirs = sandbox().from_string("{{ it | " + asked + " }}").render(it=said)
    assert theirs != said
    assert found == [f"<|im_start|>user\n{theirs}<|im_end|>\n<|im_start|>assistant\nwell<|im_end|>\n"] * 2


_TURNS = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{%% if m.role == 'user' %%}%s{%% else %%}{{ m.content }}{%% endif %%}<|im_end|>\n"
    "{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)


@pytest.mark.parametrize("arguments", ['{"part": ', "part=M3", '"M3"'])
def test_a_broken_call_is_rejected(arguments: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(
            {"messages": [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]}, "auto"
        )
    assert bad.value.reason == "broken_tool_call"


@pytest.mark.parametrize(
    "turn",
    [
        {"from": "function_call", "value": '{"name": "f", "arguments": '},
        {"from": "function_call", "value": "f(part=M3)"},
        {"from": "tool_call", "value": ""},
        {"from": "function_call", "value": "null"},
        {"from": "function_call", "value": '{"name": "f", "arguments": "{\\"part\\": "}'},
        {"from": "gpt", "value": "wait", "tool_calls": '[{"name": "f"'},
        {"from": "gpt", "value": "wait", "tool_calls": [{"name": "f", "arguments": 5}]},
    ],
)
def test_a_broken_call_is_rejected_in_each_form(turn: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example({"conversations": [{"from": "human", "value": "q"}, turn, {"from": "gpt", "value": "a"}]}, "auto")
    assert bad.value.reason == "broken_tool_call" and "turn 1 " in bad.value.detail


@pytest.mark.parametrize("calls", [None, "", "null", "[]", []])
def test_a_turn_without_calls_is_none_that_is_broken(calls: Any) -> None:
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "tool_calls": calls}]}
    assert parse_example(row, "auto").messages[1].calls == ()


@pytest.mark.parametrize("tools", [[{"name": "stock"}], '[{"name": "stock"}]', {"name": "stock"}])
def test_tools_are_read_as_a_list_as_text_and_alone(tools: Any) -> None:
    assert parse_example({"messages": [ASK, TELL], "tools": tools}, "auto").tools == ({"name": "stock"},)


def test_tools_that_are_no_json_are_a_reason() -> None:
    with pytest.raises(BadRow, match="tools must be a list"):
        parse_example({"messages": [ASK, TELL], "tools": "[{'name': 'stock'}]"}, "auto")


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_goes_where_the_template_reads_it(field: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["has a channel for reasoning"])
    row = {"messages": [ASK, TELL | {field: "count"}]}
    assert learned(row, codec) == ["<analysis>count</analysis><final>a1<|im_end|>\n"] and not reasons(row, codec)
    inside = {"messages": [ASK, {"role": "assistant", "content": "<think>\ncount\n</think>\n\na1"}]}
    assert learned(inside, codec) == learned(row, codec)


def test_reasoning_of_every_turn_is_learned_where_the_template_drops_that_of_earlier_ones(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["drops earlier reasoning"])
    talk = [one | {"reasoning_content": f"t{at}"} if one["role"] == "assistant" else one for at, one in enumerate(TALK)]
    assert [text.count("t1") + text.count("t3") for text in learned({"messages": talk}, codec)] == [1, 1]
    assert "several_sequences" in reasons({"messages": talk}, codec)


def test_a_prompt_that_opens_a_thought_is_read_and_told(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["opens a thought in its prompt"])
    assert learned({"messages": TALK}, codec) == ["a1<|im_end|>\n", "a2<|im_end|>\n"]
    assert reasons({"messages": TALK}, codec) == {"prompt_differs"}
    for turn in (TELL | {"reasoning": "count"}, TELL | {"content": "<think>count</think>a1"}):
        (pieces,) = written({"messages": [ASK, turn]}, codec).sequences
        assert pieces[0][0].endswith("<think>\n") and pieces[1] == ("count\n</think>\n\na1<|im_end|>\n", True)


def test_reasoning_that_a_template_throws_away_is_counted(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["plain"].replace("m.content", "m.content.split('</think>')[-1]"))
    row = {"messages": [ASK, TELL | {"reasoning": "count"}]}
    assert reasons(row, codec) == {"reasoning_left_out"} and written(row, codec).thoughts == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"train": False}, {}, ["a2"]),
        ({}, {"weight": 0}, ["a1"]),
        ({"loss_mask": 1}, {"loss": "false"}, ["a1"]),
        ({"training": True}, {"loss": True}, ["a1", "a2"]),
    ],
)
def test_what_turns_say_of_themselves_is_kept(first: Any, second: Any, expected: list[str], tmp_path: Path) -> None:
    for shape in ("plain", "drops earlier reasoning", "marks what is generated"):
        codec = codec_with(tmp_path / shape, SHAPES[shape])
        row = {"messages": [ASK, TELL | first, TALK[2], TALK[3] | second]}
        assert ["a1" if "a1" in text else "a2" for text in learned(row, codec)] == expected
        assert written(row, codec).off == 2 - len(expected)


def test_a_weight_that_is_none_and_a_row_with_nothing_to_learn_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadRow, match="neither yes nor no"):
        parse_example({"messages": [ASK, TELL | {"weight": 1.5}]}, "auto")
    with pytest.raises(BadRow) as bad:
        written({"messages": [ASK, TELL | {"train": False}]}, codec_with(tmp_path, SHAPES["plain"]))
    assert bad.value.reason == "all_labels_masked"


def counts(codec: Codec, rows: list[Any], folder: Path, **rules: Any) -> tuple[dict[str, int], dict[str, int]]:
    """What is learned and the notes, as both `train` and `data check` count them."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (block,) = blocks(str(file))
    shard, survey = tokenise(block, Rules(**rules), codec), read_survey(check_block(block, Rules(**rules), codec))
    of_tokens = {"learned": 0, "largest": 0}  # which a check does not count
    assert vars(shard.verdicts) | of_tokens == vars(survey.verdicts) | of_tokens
    assert shard.lengths.tolist() == survey.lengths.tolist()
    assert max(shard.lengths, default=0) <= rules.get("max_tokens", 1 << 30)
    assert sorted(shard.rejects.tolist()) == sorted(survey.rejects.tolist())
    return shard.verdicts.taught.as_json(), dict(shard.verdicts.noted)


def test_training_and_checking_count_alike_and_truncation_is_counted(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["drops earlier reasoning"])
    rows = [{"messages": TALK}, {"messages": TALK[:2]}, {"messages": CALLING}]
    taught, notes = counts(codec, rows, tmp_path)
    assert (taught["answers"], taught["learned"], taught["tool_calls_left_out"]) == (5, 4, 1)
    assert notes["several_sequences"] == 1
    long = [*TALK, {"role": "user", "content": "q" * 40}, {"role": "assistant", "content": "a3"}]
    short, _ = counts(codec, [{"messages": long}, {"messages": TALK[:2]}], tmp_path, max_tokens=60)
    assert (short["answers"], short["learned"], short["cut"]) == (4, 3, 1)
    torn, _ = counts(codec, [{"messages": [ASK, {"role": "assistant", "content": "a" * 90}]}], tmp_path, max_tokens=60)
    assert (torn["learned"], torn["without_end"]) == (1, 1)


def test_markup_of_another_model_is_noted_and_one_end_is_written(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["plain"])
    rows = [
        {"text": "<s>[INST] q [/INST] a</s>"},
        {"text": "q a<|im_end|>\n"},
        {"prompt": "q", "completion": "<|eot_id|>a"},
        {"text": "a < b"},
    ]
    _, notes = counts(codec, rows, tmp_path)
    assert notes["foreign_markup"] == 2
    ids = codec.encode(list(written(rows[1], codec).sequences), Rules())[0].ids  # type: ignore[union-attr]
    assert ids.count(codec.eos) == 1 and ids[-1] == codec.eos


def test_a_text_begins_as_the_tokenizer_has_it_with_a_chat_template_or_without(tmp_path: Path) -> None:
    for source in (SHAPES["plain"], None):
        codec = codec_with(tmp_path / str(bool(source)), source, begins="<|im_start|>")
        begin = codec.tokenizer.token_to_id("<|im_start|>")
        for row in ({"text": "a"}, {"prompt": "q", "completion": "a"}, {"text": "<|im_start|>a"}):
            (tokens,) = codec.encode(written(row, codec).sequences, Rules())
            assert tokens.ids[0] == begin and tokens.ids.count(begin) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", SHAPES)
def test_checking_and_training_agree_for_every_template_limit_and_choice_of_answers(shape: str, tmp_path: Path) -> None:
    """198 cases a template, 2,178 in all: the same rows, lengths, rejects and counts, and no sequence beyond the limit."""
    codec, draw = codec_with(tmp_path, SHAPES[shape]), random.Random(shape)
    for at in range(66):
        row = {"messages": [*_exchange(draw, at), *_exchange(draw, at + 1) * (at % 3 > 0), *_exchange(draw, at + 2) * (at % 3 > 1)]}
        limit = draw.choice([None, 12, 24, 40, 64, 90, 160])
        for learns in ("assistant", "last", "all"):
            rules: dict[str, Any] = {"learns": learns} | ({"max_tokens": limit} if limit else {})
            too_long = draw.choice(("cut", "reject", "split")) if learns == "assistant" else "cut"
            taught, _ = counts(codec, [row], tmp_path, **rules, too_long=too_long)
            if limit is None and learns == "assistant" and taught["answers"]:
                said = "".join(learned(row, codec))
                assert taught["learned"] == sum(f"answer {n} " in said for n in range(100))


@pytest.mark.parametrize("shape", ["plain", "marks what is generated"])
def test_where_all_is_learned_prompts_are_no_answers(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES[shape])
    first = [{"role": "user", "content": "ask " * 8}, {"role": "assistant", "content": "one"}]
    then = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "two"}]
    found, _ = counts(codec, [{"messages": [*first, *then]}], tmp_path, learns="all")
    assert (found["answers"], found["learned"], found.get("off"), found.get("cut")) == (2, 2, None, None)
    pieces = [(text, True) for text, _ in written({"messages": first + then}, codec).sequences[-1][:2]]
    (row,) = codec.encode([pieces], Rules())
    before = len(row.ids)  # type: ignore[union-attr]
    found, _ = counts(codec, [{"messages": [*first, *then]}], tmp_path, learns="all", max_tokens=before)
    assert (found["answers"], found["learned"], found.get("off"), found["cut"], found["without_end"]) == (2, 1, None, 1, 0)
    found, _ = counts(codec, [{"messages": [*first, *then]}], tmp_path, learns="all", max_tokens=8)
    assert (found["answers"], found["learned"], found["cut"], found["without_end"]) == (2, 0, 2, 0)


@pytest.mark.parametrize("shape", ["plain", "marks what is generated", "drops earlier reasoning"])
def test_where_all_is_learned_an_answers_own_mark_counts_all_the_same(shape: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES[shape])

    def taught(first: dict[str, Any], then: dict[str, Any], **row: Any) -> tuple[list[tuple[str, float]], Any]:
        turns = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "one"} | first]
        turns += [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "two"} | then]
        whole = {"prompt": turns[:3], "completion": turns[3:]} if row else {"messages": turns}
        example = parse_example(whole, "auto")
        return counted_by(write_learned(example, codec.template, "all"), counts(codec, [whole], tmp_path, learns="all")[0])

    def counted_by(found: RenderedRow, said: Any) -> tuple[list[tuple[str, float]], Any]:
        return [(text, float(learned)) for text, learned in found.sequences[-1]], (said["learned"], said.get("off"), said.get("shares"))

    for mark, count, said in (({"train": False}, 0.0, (1, 1, None)), ({"weight": 0.25}, 0.25, (2, None, 1)), ({}, 1.0, (2, None, None))):
        for first, then, word, other in ((mark, {}, "one", "two"), ({}, mark, "two", "one")):
            pieces, numbers = taught(first, then)
            held = numbers, {learned for text, learned in pieces if word in text}
            if shape == "drops earlier reasoning" and mark and word == "one":  # it stands in a prompt, of which it is no piece
                assert held == ((1, said[1], None), {0.0})
                continue
            if shape == "drops earlier reasoning" and mark.get("train") is False:
                assert held == (said, set()), "behind the last one that is learned"
                continue
            assert held == (said, {count})
            assert {learned for text, learned in pieces if word not in text} == {1.0} and any(other in text for text, _ in pieces)
    pieces, numbers = taught({}, {}, prompt=True)
    assert {learned for _, learned in pieces} == {1.0} and numbers == (2, None, None), "what a row gives is learned, its answers too"
    with pytest.raises(BadRow, match="each of its 2 answers is marked"):
        write_learned(
            parse_example({"messages": [TALK[0], TALK[1] | {"train": False}, TALK[0], TALK[1] | {"weight": 0}]}, "auto"),
            codec.template,
            "all",
        )


def test_where_all_is_learned_a_prompt_with_a_marked_answer_in_it_is_not(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, SHAPES["drops earlier reasoning"])
    thought = {"role": "assistant", "reasoning_content": "hm"}
    turns = [ASK, thought | {"content": "one", "train": False}, ASK, thought | {"content": "two"}, ASK, thought | {"content": "six"}]
    found = write_learned(parse_example({"messages": turns}, "auto"), codec.template, "all")
    assert [(text, learned) for text, learned in found.sequences[-1] if "one" in text or "two" in text] == [
        (found.sequences[-1][0][0], False)
    ]
    assert "six" in found.sequences[-1][-1][0] and found.sequences[-1][-1][1] is True
    assert (found.answers, found.learned, found.off) == (3, 1, 1) and "answer_not_learned" in dict(found.notes)
    whole = write_learned(parse_example({"messages": [turn | {"train": True} for turn in turns]}, "auto"), codec.template, "all")
    assert all(learned for _, learned in whole.sequences[-1]) and (whole.learned, whole.off) == (3, 0)


def _exchange(draw: random.Random, at: int) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": f"answer {at} " + "x" * draw.randrange(40)}
    marks = draw.choice([{}, {}, {"train": False}, {"reasoning_content": "count"}, {"weight": 1}])
    return [{"role": "user", "content": "ask " * draw.randrange(1, 9)}, said | marks]


RULED = [{"role": "system", "content": "Answer in one line, and name the part."}, *TALK]
SKIPS = "{% for m in messages if m.role != 'ROLE' %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
OPENS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


LAST_ALONE = "{% set messages = messages[-2:] if messages[-1].role == 'assistant' else messages[-1:] %}"
FIRST = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
DROPS = {
    "nothing": (SHAPES["plain"], RULED, set()),
    "the rules": (SKIPS.replace("ROLE", "system") + OPENS, RULED, {"system"}),
    "results": (SKIPS.replace("ROLE", "tool") + OPENS, [*CALLING[:2], CALLING[2] | {"content": "21 in the rack"}, CALLING[3]], {"tool"}),
    "all but the last": (LAST_ALONE + SHAPES["plain"], TALK, {"user", "assistant"}),
    "nothing, and quotes": (SHAPES["plain"].replace("m.content", "m.content | tojson"), [ASK | {"content": 'Say "a"\n\t"b"'}, TELL], set()),
    "what is not there": (SKIPS.replace("ROLE", "system") + OPENS, TALK, set()),
    "nothing, and has it elsewhere": (FIRST + SKIPS.replace("ROLE", "system") + OPENS, RULED, set()),
}


@pytest.mark.parametrize(("template", "row", "dropped"), DROPS.values(), ids=DROPS)
def test_a_turn_that_a_template_writes_nothing_of_is_noted(template: str, row: list[Any], dropped: set[str], tmp_path: Path) -> None:
    found = reasons({"messages": row}, codec_with(tmp_path, template))
    assert {reason.removesuffix("_turn_dropped") for reason in found if reason.endswith("_turn_dropped")} == dropped


def test_rows_that_lose_a_turn_are_counted_before_training(tmp_path: Path) -> None:
    codec = codec_with(tmp_path / "model", SKIPS.replace("ROLE", "system") + OPENS)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in (RULED, TALK, RULED)))
    block = next(blocks(str(file)))
    counts = dict(read_survey(check_block(block, Rules(), codec)).verdicts.noted)
    assert counts["system_turn_dropped"] == dict(tokenise(block, Rules(), codec).verdicts.noted)["system_turn_dropped"] == 2
    (told,) = told_of_dropped(counts)
    assert told.startswith("! in 2 rows the chat template writes nothing of a turn (system)")
    config = Config.model_validate({"model": str(codec.folder), "data": {"files": [str(file)]}})
    ahead = workload(config, SimpleNamespace(folder=codec.folder), 512)  # type: ignore[arg-type]  what a plan looks at
    assert isinstance(ahead, Workload) and ahead.lost == ("of the first rows, " + told.removeprefix("! "),)
    assert row_warnings({"by_reason": {}, "notes": counts}) == [told.removeprefix("! ")], "on the run's page"
