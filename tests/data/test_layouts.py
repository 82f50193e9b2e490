"""Rows as people have them: exports of other programs, files of spreadsheets, and the inputs of shared/data/rows-2026."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED
from holdfast.base.errors import Stop
from holdfast.config.objectives import Wanted
from holdfast.data.files.raw_row import RawRow, UnparsedRow
from holdfast.data.files.read import read_rows, read_unparsed
from holdfast.data.judge.judge import judge
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import Rules, asked_fields
from holdfast.data.judge.turns import BadRow
from holdfast.data.judge.unused import UnusedFields
from holdfast.data.survey.survey import check_block, read_survey
from holdfast.data.tokens.shard import blocks, judged_answers, placed, readable, tokenise
from holdfast.data.tokens.too_long import fitted
from support.chat_templates import SHAPES, codec_with

Call = Callable[..., dict[str, Any]]
ASKED, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
ROWS: list[Any] = [
    {"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    {"messages": [{"role": "user", "value": "q"}, {"role": "assistant", "value": "a"}]},
    {"conversation": [ASKED, SAID]},
    {"conversation": [{"human": "q", "assistant": "a"}]},
    {"conversation": [{"input": "q", "output": "a"}]},
    {"content": [ASKED, SAID]},
    {"dialogue": [ASKED, SAID]},
    {"problem": "q", "solution": "a"},
    {"query": "q", "response": "a"},
    {"Query": "q", "Answer": "a"},
    {"contents": [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}]},
    {"messages": [{"author": "user", "content": "q"}, {"author": "assistant", "content": "a"}]},
    {"schemaVersion": "bedrock-conversation-2024", "messages": [ASKED | {"content": [{"text": "q"}]}, SAID | {"content": [{"text": "a"}]}]},
    {"conversations": [{"from": "prompter", "value": "q"}, {"from": "bot", "value": "a"}]},
    {"conversations": [{"from": "user", "value": "q"}, {"from": "chatgpt", "value": "a"}]},
    {"messages": json.dumps([ASKED, SAID])},
    {"conversations": json.dumps([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])},
    {"input_text": "q", "output_text": "a"},
    {"user": "q", "assistant": "a"},
    {"Human": "q", "Assistant": "a"},
    {"human": "q", "gpt": "a"},
    {"messages": [{"speaker": "User", "text": "q"}, {"speaker": "Assistant", "text": "a"}]},
    {"messages": [{"author": "user", "content": "q"}, {"author": "bot", "content": "a"}]},
    {"messages": [{"role": "User", "content": "q"}, {"role": "Chatbot", "content": "a"}]},
    {"messages": [ASKED], "response": "a"},
    {"model": "m", "messages": [ASKED], "message": SAID},
    {"row": {"instruction": "q", "output": "a"}},
    {"instruction": "", "input": "q", "output": "a"},
    {"instruction": "q", "input": "nan", "output": "a"},
    {"prompt": "q", "answer": "a"},
    {"Prompt": "q", "Output": "a", "split": "train"},
    {"problem": "q", "answer": "a"},
    {"instruction": "q", "input": "", "completion": "a"},
]


def test_a_text_goes_before_fields_that_may_be_its_question_and_answer() -> None:
    """As where a data set holds what was put together beside what it is made of: read so before the others were known."""
    assert parse_example({"text": "t", "prompt": "q", "answer": "a"}, "auto").learned == "t"
    assert parse_example({"question": "q", "context": "c", "output": "a"}, "auto").messages[0].content == "q\nc"


@pytest.mark.parametrize("row", ROWS)
def test_a_layout_of_another_program_is_read(row: Any) -> None:
    example = parse_example(row, "auto")
    assert [(turn.role, turn.content, turn.learn) for turn in example.messages] == [("user", "q", True), ("assistant", "a", True)]


@pytest.mark.parametrize("row", [{"instruction": "q", "output": "a"}, {"query": "q", "response": "a"}, {"user": "q", "assistant": "a"}])
def test_what_stands_beside_a_question_comes_before_it(row: Any) -> None:
    beside = {"system": "be brief", "history": [["q0", "a0"]]}
    for given, first in ((beside, 0), ({"history": beside["history"], "system": None}, 1), ({"history": [], "System": "be brief"}, 0)):
        (found, said), (judged,) = _judged_turns(row | given)
        turns = ["be brief", *(["q0", "a0"] if given["history"] else []), "q", "a"][first:]
        assert found == turns and sorted(judged.split("\n")) == sorted(said.split("\n"))
    with pytest.raises(BadRow, match="history must be a list of exchanges"):
        parse_example(row | {"history": ["q0", "a0"]}, "auto")


def _judged_turns(row: dict[str, Any]) -> tuple[tuple[list[str], str], list[str]]:
    """The turns of a row with their text, and its text as `judge` reads it."""
    example = parse_example(row, "auto")
    good, rejects = judge([UnparsedRow(1, json.dumps(row).encode())], 1, Rules(), ())
    assert not rejects
    said = [turn.content for turn in example.messages]
    return (said, "\n".join(said)), [one.text for one in good]


def test_calls_and_their_results_by_role_are_turns_of_the_assistant_and_the_tool() -> None:
    call = {"role": "tool_call", "content": json.dumps({"name": "f", "arguments": {"x": 1}})}
    messages = parse_example({"messages": [ASKED, call, {"role": "tool_response", "content": "r"}, SAID]}, "auto").messages
    assert [(turn.role, turn.content) for turn in messages] == [("user", "q"), ("assistant", ""), ("tool", "r"), ("assistant", "a")]
    assert messages[1].calls[0]["function"] == {"name": "f", "arguments": {"x": 1}}


def test_numbers_are_answers_where_that_is_asked_for() -> None:
    for row, fields, answer in (
        ({"question": "q", "answer": 4}, {"answer": "answer"}, "4"),
        ({"sentence": "q", "label": 0, "idx": 7}, {"question": "sentence", "answer": "label"}, "0"),
        ({"instruction": "q", "score": 4.5}, {"output": "score"}, "4.5"),
        ({"prompt": "q", "is_spam": False}, {"response": "is_spam"}, "false"),
    ):
        with pytest.raises(BadRow) as bad:
            parse_example(row, "auto")
        assert "--field" in bad.value.detail
        assert parse_example(row, "auto", fields).messages[-1].content == answer
    with pytest.raises(BadRow, match="--field question=sentence --field answer=label"):
        parse_example({"sentence": "x", "label": 1, "idx": 0}, "auto")


def test_a_whole_number_of_more_than_64_bits_is_learned_with_all_its_digits() -> None:
    wei, called = "-10000000000000000000001", {"role": "assistant", "content": "", "tool_calls": [{"name": "pay", "arguments": {"wei": 7}}]}
    for row in ({"messages": [ASKED, called]}, {"messages": [ASKED, called | {"content": "a\0"}]}, [ASKED, called]):
        (found,), _ = judge([UnparsedRow(1, json.dumps(row).replace(": 7", f": {wei}").encode())], 1, Rules(), ())
        assert found.example.messages[-1].calls[0]["function"]["arguments"] == {"wei": int(wei)}
    (found,), _ = judge([UnparsedRow(1, f'{{"question": "q", "answer": {wei}}}'.encode())], 1, Rules(fields=(("answer", "answer"),)), ())
    assert found.answer == wei


@pytest.mark.parametrize("system", ["be brief", {"parts": [{"text": "be brief"}]}, [{"text": "be "}, {"text": "brief"}]])
def test_what_the_system_says_stands_beside_the_turns_in_every_form(system: Any) -> None:
    for name in ("system", "systemInstruction"):
        example = parse_example({name: system, "messages": [ASKED, SAID]}, "auto")
        assert (example.messages[0].role, example.messages[0].content) == ("system", "be brief")


@pytest.mark.parametrize(
    ("row", "learn"),
    [
        ({"prompt": [ASKED], "completion": [SAID]}, [True]),
        ({"prompt": [ASKED, SAID, ASKED], "completion": [SAID]}, [False, True]),
        ({"prompt": "q", "completion": [SAID]}, [True]),
        ({"input": [ASKED], "output": [SAID | {"type": "message", "content": [{"type": "output_text", "text": "a"}]}]}, [True]),
        ({"input": [ASKED, SAID, ASKED], "output": "a"}, [False, True]),
        ({"prompt": [ASKED], "response": SAID}, [True]),
        ({"prompt": [ASKED, SAID, ASKED], "completion": "a"}, [False, True]),
    ],
)
def test_of_a_prompt_and_a_completion_of_turns_the_completion_is_learned(row: Any, learn: list[bool]) -> None:
    example = parse_example(row, "auto")
    assert example.layout == "chat" and [turn.learn for turn in example.messages if turn.role == "assistant"] == learn


def test_a_python_list_as_text_says_how_to_write_it() -> None:
    with pytest.raises(BadRow, match=r"json\.dumps"):
        parse_example({"messages": "[{'role': 'user', 'content': 'q'}]"}, "auto")


@pytest.mark.parametrize("row", [{"solution": "s", "answer": ""}, {"output": "o"}, {"reply": ""}])
def test_a_hint_that_would_reject_the_row_is_not_given(row: Any) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    for word in bad.value.detail.split():
        assert word.count("=") < 2 and not word.startswith("answer=solution")
    if "--field" in bad.value.detail and "THEIRS" not in bad.value.detail:
        pytest.fail(bad.value.detail)


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"id": "a-17", "source": "gsm8k", "question": "q"}, "answer=THEIRS"),
        ({"question": "q", "dataset_name": "gsm8k", "textHash": "x"}, "answer=THEIRS"),
        ({"question": "q", "what": "0f8fad5b-d9cb-469f-a165-70867728950e"}, "answer=THEIRS"),
        ({"question": "q", "where": "https://example.org/a"}, "answer=THEIRS"),
        ({"question": "q", "source": "gsm8k", "text_of_it": "a"}, "answer=text_of_it"),
        ({"question": "q", "answer_id": "17", "model_answer": "a"}, "answer=model_answer"),
        ({"source": "guten Tag", "target": "good day"}, "question=source --field answer=target"),
    ],
)
def test_no_hint_takes_an_id_or_a_data_set_for_an_answer(row: Any, hint: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    assert hint in bad.value.detail


@pytest.mark.parametrize(
    "text",
    [
        '{"data": [ROWS]}',
        '{"version": "1.0", "count": 2, "rows": [ROWS], "more": [1]}',
        '{\n  "records": [\n    ROWS\n  ]\n}\n',
    ],
)
def test_one_object_of_many_records_is_its_rows(text: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text.replace("ROWS", '{"question": "q1", "answer": "a"}, {"question": "q2", "answer": "a"}'))
    assert [json.loads(row.raw)["question"] for row in read_unparsed(str(file))] == ["q1", "q2"]


def _in_lists(text: str, file: Path) -> tuple[list[str], list[str]]:
    """The questions that are read of a file, and those of the rows that are left out; ROWSn become two rows."""
    for number in range(4):
        rows = [{"question": f"{letter}{number}", "answer": "a"} for letter in "ab"]
        text = text.replace(f"ROWS{number}", json.dumps(rows)[1:-1])
    file.write_text(text)
    found = list(read_unparsed(str(file)))
    assert not {row.damage[0] for row in found if row.damage} - {"other_split"}, found
    return [json.loads(row.raw)["question"] for row in found if not row.damage], [
        json.loads(row.raw)["question"] for row in found if row.damage
    ]


@pytest.mark.parametrize(
    ("text", "read", "left"),
    [
        ('{"train": [ROWS1], "test": [ROWS2]}', "a1 b1", "a2 b2"),
        ('{"test": [ROWS2], "train": [ROWS1]}', "a1 b1", "a2 b2"),
        ('{\n "train": [ROWS1],\n "n": {"a": [1]},\n "dev": [ROWS2],\n "eval": [ROWS3]}\n', "a1 b1", "a2 b2 a3 b3"),
        ('{"data": [ROWS1], "more": [ROWS2], "people": [{"name": "x"}, 3], "empty": []}', "a1 b1 a2 b2", ""),
        ('{"train": [ROWS1], "extra": [{"id": 1, "question": "q", "answer": "a"}], "validation": []}', "a1 b1 q", ""),
        ('{"test": [ROWS1]}', "a1 b1", ""),
        ('{"test": [ROWS1], "version": 2, "people": [{"name": "x"}]}', "a1 b1", ""),
        ('{"validation": [ROWS1], "test": [ROWS2]}', "", "a1 b1 a2 b2"),
    ],
)
def test_every_list_of_rows_of_one_object_is_read_or_left_out_by_name(text: str, read: str, left: str, tmp_path: Path) -> None:
    assert _in_lists(text, tmp_path / "rows.json") == (read.split(), left.split())


@pytest.mark.parametrize("at", [0.55, 0.7, 0.97, 0.999])
def test_a_file_torn_inside_of_its_second_list_says_so(at: float, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    rows = [{"question": f"what is {number}?", "answer": "a"} for number in range(100)]
    text = json.dumps({"train": rows[:50], "test": rows[50:]})
    file.write_text(text[: int(len(text) * at)])
    found = list(read_unparsed(str(file)))
    whole = [row for row in found if not row.damage or row.damage[0] == "other_split"]
    assert found[-1].damage and found[-1].damage[0] == "parse_error", found[-1]
    assert sum(not row.damage for row in found) == 50 and [json.loads(row.raw) for row in whole] == rows[: len(whole)]


def test_damage_at_a_list_s_end_makes_no_row_of_the_next_one_trained(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    rows = [{"question": f"what is {number}?", "answer": "a"} for number in range(6)]
    text = json.dumps({"train": rows[:3], "test": rows[3:]}).replace('"what is 2?", "answer": "a"}', '"what is 2?" "answer"}')
    file.write_text(text)
    found = list(read_unparsed(str(file)))
    assert [json.loads(row.raw) for row in found if not row.damage] == rows[:2]
    assert {row.damage[0] for row in found if row.damage} == {"parse_error", "other_split"}


def test_rows_that_hold_lists_of_objects_stay_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for row in ({"data": [{"role": "user"}]}, {"examples": [{"a": 1}], "question": "q"}):
        file.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
        assert len(list(read_unparsed(str(file)))) == 2


@pytest.mark.parametrize(("line", "separator"), [("sep=;", ";"), ('"sep=;"', ";"), ("sep=,", ","), ("Sep=,", ","), ("SEP=\t", "\t")])
def test_excels_first_line_is_no_header(line: str, separator: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for start in ("", "\ufeff"):
        file.write_text(start + "\r\n".join([line, separator.join(("instruction", "output")), separator.join(("q|q", "a"))]))
        (row,) = read_unparsed(str(file))
        assert row.line == 3 and json.loads(row.json or b"") == {"instruction": "q|q", "output": "a"}


def test_a_column_without_a_name_is_named_by_its_place_and_what_is_missing_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("instruction,,output,\nq,nan,a,1\nNaN,x,a,2\n")
    first, second = (json.loads(row.json or b"") for row in read_unparsed(str(file)))
    assert first == {"instruction": "q", "column 2": None, "output": "a", "column 4": "1"}
    assert second["instruction"] is None


def test_marked_answers_are_taken_from_pairs(tmp_path: Path) -> None:
    codec, rules = codec_with(tmp_path / "m", SHAPES["plain"]), Rules(wanted="marks", learns="last")
    file = tmp_path / "rows.jsonl"
    pair = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    file.write_text(json.dumps(pair) + "\n" + json.dumps({"prompt": "q", "completion": "a", "label": False}) + "\n")
    (block,) = blocks(str(file))
    good, rejects = readable(block, rules, codec)
    assert not rejects
    (row, written) = good[0]
    parts = judged_answers(row.example, fitted(row.example, codec.encode(written.sequences, rules), codec, rules), codec, rules)
    assert [max(flags.learned) for flags in parts.rows] == [1, 3]
    shard, survey = tokenise(block, rules, codec), read_survey(check_block(block, rules, codec))
    assert shard.lengths.tolist() == survey.lengths.tolist() and len(shard.lengths) == 3


GIVEN = SHARED / "data" / "rows-2026"
VALUES: dict[str, tuple[str, int, dict[str, int]]] = {
    "tool_calls_string_arguments.jsonl": ("plain", 6, {"tool_calls_left_out": 6}),
    "chat_list_of_structs.parquet": ("calls", 8, {}),
    "text_with_template.jsonl": ("plain", 6, {"foreign_markup": 6}),
    "messages_from_value.jsonl": ("plain", 6, {}),
    "problem_solution.jsonl": ("plain", 6, {}),
    "sep_line.csv": ("plain", 2, {}),
    "index_col.csv": ("plain", 3, {}),
    "plain.jsonl": ("writes no end", 5, {"answer_without_end": 5}),
}


@pytest.mark.skipif(not GIVEN.is_dir(), reason="needs shared/data/rows-2026")
@pytest.mark.parametrize("name", VALUES)
def test_inputs_that_went_wrong_give_the_right_value(call: Call, name: str, tmp_path: Path) -> None:
    shape, kept, notes = VALUES[name]
    codec_with(tmp_path / "model", SHAPES[shape])
    answer = call("check", GIVEN / name, "--tokenizer", tmp_path / "model")
    assert answer["kept"] == kept and not answer["rejected"]
    assert {reason: count for reason, count in answer["notes"].items() if reason in notes} == notes
    assert "" not in answer["unused_fields"]["telling"] and not answer["unused_fields"]["telling"]
    assert answer["learned"]["learned"] == answer["learned"]["answers"] - answer["learned"]["tool_calls_left_out"]


@pytest.mark.skipif(not GIVEN.is_dir(), reason="needs shared/data/rows-2026")
@pytest.mark.parametrize(
    ("template", "learned", "unended"),
    [("without_an_end", 2, 2), ("with_generation_marks", 2, 0), ("rewrites_earlier_turns", 2, 0)],
)
def test_templates_that_went_wrong_teach_every_answer(call: Call, template: str, learned: int, unended: int, tmp_path: Path) -> None:
    codec_with(tmp_path / "model", (GIVEN / "templates" / f"{template}.jinja").read_text())
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, SAID, ASKED | {"content": "q2"}, SAID | {"content": "a2"}]}) + "\n")
    answer = call("check", file, "--tokenizer", tmp_path / "model")
    assert (answer["learned"]["answers"], answer["learned"]["learned"], answer["learned"]["without_end"]) == (2, learned, unended)


RARER: list[dict[str, Any]] = [
    {"content": "a text"},
    {"conversations": [{"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}]},
    {"conversation": [{"system": "s", "input": "q", "output": "a"}]},
    {"messages": [{"human": "q", "assistant": "a"}, {"human": "q", "assistant": "b"}]},
]


@pytest.mark.parametrize("row", RARER)
def test_a_field_that_is_read_under_a_rarer_name_is_not_told_of_as_unused(row: dict[str, Any]) -> None:
    unused = UnusedFields()
    unused.add([(row, parse_example(row, "auto"))], {})
    assert not unused.telling and not unused.others


@pytest.mark.parametrize(
    ("row", "telling", "others"),
    [
        ({"problem": "q", "answer": "a", "output": "b"}, ["output"], []),
        ({"prompt": "q", "answer": "a", "response": "b"}, ["answer"], []),
        ({"prompt": "q", "Input": "more", "answer": "a"}, ["Input"], []),
        ({"instruction": "q", "input": "more", "output": "a", "prompt": "q more", "text": "q more a"}, [], ["prompt", "text"]),
        ({"messages": [ASKED, SAID], "response": "a", "input": "q"}, [], ["input", "response"]),
    ],
)
def test_a_second_answer_and_more_of_the_question_may_change_what_a_row_means(row: Any, telling: list[str], others: list[str]) -> None:
    unused = UnusedFields()
    unused.add([(row, parse_example(row, "auto"))], {})
    assert (sorted(unused.telling), sorted(unused.others)) == (telling, others)


def _csv(lines: list[str], file: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """The questions that are read of a CSV file, and line and reason of what is not."""
    file.write_text("\n".join(["question,answer", *lines]) + "\n")
    found = list(read_unparsed(str(file)))
    return [json.loads(row.json or b"")["question"] for row in found if not row.damage], [
        (row.line, row.damage[1]) for row in found if row.damage
    ]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({199: '"5 inch pipe,a'}, 1801),
        ({199: 'q199,"an answer'}, 1801),
        ({199: '"5 inch pipe,a', 899: '"q899, with a comma",a'}, 701),
        ({199: '"5 inch pipe,a', 899: 'q899,"a, quoted"'}, 701),
        ({199: '"5 inch pipe,a', 899: 'q899 "x",a'}, 701),
    ],
)
def test_a_quote_that_is_not_closed_takes_its_own_line_alone(change: dict[int, str], lines: int, tmp_path: Path) -> None:
    rows = [change.get(number, f"q{number},a") for number in range(2000)]
    read, damaged = _csv(rows, tmp_path / "rows.csv")
    assert len(read) == 1999 and read[198] == "q198" and read[199] == "q200", damaged[:3]
    (place,) = damaged
    assert place[0] == 201 and f"the quote opened in line 201 is not closed: it took {lines:,} lines" in place[1]


def test_cells_of_several_lines_stay_cells(tmp_path: Path) -> None:
    rows = ['"q\n1",a', 'q2,"a\nb ""c"" \n\nd"', '5" pipe,a', '"5"" pipe",a', '"q5\n"']
    assert _csv(rows, tmp_path / "rows.csv") == (["q\n1", "q2", '5" pipe', '5" pipe', "q5\n"], [])


def test_a_last_line_torn_inside_of_a_quoted_cell_is_no_row(tmp_path: Path) -> None:
    read, damaged = _csv(["q1,a", 'q2,"half an ans'], tmp_path / "rows.csv")
    assert read == ["q1"] and "opened in line 3 is not closed" in damaged[0][1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["question"], "--field question: write NAME=THEIRS"),
        (["=theirs"], "--field =theirs: write NAME=THEIRS"),
        (["question="], "--field question=: write NAME=THEIRS"),
        (["qestion=q", "answer=a"], "did you mean question\\?"),
        (["question=a", "question=b"], "question is given twice"),
        (["theirs=question"], "ours comes first"),
    ],
)
def test_a_field_that_names_nothing_is_refused_with_the_name_that_was_meant(given: list[str], says: str) -> None:
    with pytest.raises(Stop, match=says) as stop:
        asked_fields(given)
    assert stop.value.code == 2


@pytest.mark.parametrize("wanted", ["pairs", "marks"])
def test_a_pair_that_is_cut_to_the_same_answer_twice_is_rejected_by_checking_and_training(tmp_path: Path, wanted: Wanted) -> None:
    """Its answers differ behind the limit alone: a pair without a gradient, whose margin is 0 and which is never right."""
    long, file = " ".join(["amber birch cedar"] * 40), tmp_path / "rows.jsonl"
    answers = [(f"{long} one", f"{long} two"), (f"one {long}", f"two {long}"), ("one", f"one {long}")]
    file.write_text("".join(json.dumps({"prompt": "q", "chosen": good, "rejected": bad}) + "\n" for good, bad in answers))
    codec, rules = codec_with(tmp_path / "m", SHAPES["plain"]), Rules(max_tokens=48, wanted=wanted, learns="last")
    (block,) = blocks(str(file))
    shard, survey = tokenise(block, rules, codec), read_survey(check_block(block, rules, codec))
    for found in (shard, survey):
        (reject,) = placed(found.rejects, "rows.jsonl", 1)
        assert (reject["line"], reject["reason"]) == (1, "answers_alike")
        assert "the same answer up to max_tokens = 48" in reject["detail"]
    assert shard.lengths.tolist() == survey.lengths.tolist() and len(shard.lengths) == (2 if wanted == "pairs" else 4)


def _made(*arguments: Any, name: str = "weather") -> list[dict[str, Any]]:
    """Turns of calls with these arguments, each written as one writes them by hand."""
    calls = [{"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": given}}]} for given in arguments]
    return [ASKED, *calls, {"role": "tool", "content": "21"}, SAID]


def _tool(required: list[str]) -> dict[str, Any]:
    """A tool that takes a city and a unit."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}, "required": required}
    return {"type": "function", "function": {"name": "weather", "parameters": schema}}


def _arguments(row: Any) -> list[Any]:
    return [call["function"]["arguments"] for turn in parse_example(row, "auto").messages for call in turn.calls]


UNIT, NO_UNIT, CITY = {"city": "Rome", "unit": None}, {"city": "Rome", "unit": None, "query": None}, {"city": "Rome"}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"messages": _made(UNIT)}, [UNIT]),
        ({"messages": _made({"city": "Rome", "at": {"day": None}})}, [{"city": "Rome", "at": {"day": None}}]),
        ({"messages": _made(json.dumps(UNIT))}, [UNIT]),
        ({"messages": _made(UNIT), "tools": [_tool(["city"])]}, [UNIT]),
        ({"messages": _made(NO_UNIT), "tools": [_tool(["city"])]}, [UNIT]),  # the tool takes no query
        ({"messages": _made([])}, [{}]),  # as PHP writes an object without fields
        (
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "function_call", "value": json.dumps({"name": "f", "arguments": UNIT})},
                ]
            },
            [UNIT],
        ),
    ],
)
def test_a_null_that_a_call_was_made_with_is_learned(row: Any, found: list[Any]) -> None:
    assert _arguments(row) == found


@pytest.mark.parametrize("form", ["chosen", "completion"])
def test_a_null_of_a_call_that_stands_apart_from_its_prompt_is_learned_where_the_tool_requires_it(form: str) -> None:
    """Strict tools require each argument, and allow null for those that may be left out."""
    (asked, made, *_), tools = _made(NO_UNIT), [_tool(["city", "unit"])]
    row = {"prompt": [asked], form: [made], "tools": tools} | ({"rejected": [SAID]} if form == "chosen" else {})
    example = parse_example(row, "auto", wanted="pairs" if form == "chosen" else "answers")
    assert [call["function"]["arguments"] for turn in example.messages for call in turn.calls] == [UNIT]


@pytest.mark.parametrize("written", ["parquet", "JSON Lines"])
@pytest.mark.parametrize(
    ("tools", "found"),
    [([], [CITY, {"query": "sun"}]), ([_tool(["city", "unit"])], [UNIT, {"query": "sun"}]), ([_tool(["city"])], [CITY, {"query": "sun"}])],
)
def test_a_null_that_columns_fill_in_is_not(tools: list[Any], found: list[Any], written: str, tmp_path: Path) -> None:
    """Columns of objects give every call the fields of all calls; exports of them as JSON Lines keep those."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    other = {"role": "assistant", "tool_calls": [{"function": {"name": "search", "arguments": {"query": "sun"}}}]}
    turns = _made(UNIT)
    table = pa.Table.from_pylist([{"messages": [*turns[:2], other, *turns[2:]], "tools": json.dumps(tools)}])
    file = tmp_path / f"rows.{'parquet' if written == 'parquet' else 'jsonl'}"
    if written == "parquet":
        pq.write_table(table, file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    (row,) = read_rows(str(file))
    assert isinstance(row, RawRow) and _arguments(row.value) == found


def test_a_map_in_columns_is_an_object(tmp_path: Path) -> None:
    """Spark and DuckDB keep arguments of many tools so."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    text, given = pa.string(), pa.map_(pa.string(), pa.string())
    function = pa.struct([("name", text), ("arguments", given)])
    turn = pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(pa.struct([("function", function)])))])
    rows = [
        {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": pairs}}]}, SAID]}
        for pairs in ([("city", "Rome"), ("unit", "C")], [])
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([("messages", pa.list_(turn))])), tmp_path / "rows.parquet")
    found = [_arguments(row.value) for row in read_rows(str(tmp_path / "rows.parquet")) if isinstance(row, RawRow)]
    assert found == [[{"city": "Rome", "unit": "C"}], [{}]]
