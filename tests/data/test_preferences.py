"""Rows that hold preferences are recognised, named and refused: an answer marked as bad is never learned."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import SHARED, holdfast, make_rows, needs_shared, write_rows
from holdfast.base_model.folder import read_model
from holdfast.config.load import load_config
from holdfast.data.judge.layouts import parse_example, prompt_and_answer
from holdfast.data.judge.names import two_answers
from holdfast.data.judge.rules import asked_fields
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.judge.unused import UnusedFields
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.foresee import foresee
from holdfast.supervision.preparation.rows import check_data
from holdfast.terminal.run_view import Terminal

SYSTEM = {"role": "system", "content": "s"}
TURNS = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "five"}]
PREFERENCES: list[dict[str, Any]] = [
    {"messages": TURNS, "label": False},
    {"messages": TURNS, "label": True},
    {"messages": TURNS, "kto_tag": "false"},
    {"prompt": "two and two?", "completion": "five", "label": False},
    {"prompt": "two and two?", "completion": "five", "label": "False"},
    {"instruction": "two and two?", "output": "five", "kto_tag": True},
    {"prompt": "two and two?", "chosen": "four", "rejected": "five"},
    {"instruction": "two and two?", "input": "NaN", "chosen": "four", "rejected": "five", "output": "four"},
    {
        "conversations": [{"from": "human", "value": "two?"}],
        "chosen": {"from": "gpt", "value": "2"},
        "rejected": {"from": "gpt", "value": "3"},
    },
    {"chosen": TURNS, "rejected": TURNS},
    {"question": "two and two?", "answer": "four", "rejected_response": "five"},
    {"question": "two and two?", "response_j": "four", "response_k": "five"},
]
OTHERS: list[dict[str, Any]] = [
    {"text": "a sentence", "label": True},
    {"instruction": "two and two?", "output": "four", "label": "arithmetic"},
    {"instruction": "two and two?", "output": "four", "label": 3},
    {"instruction": "two and two?", "output": "four", "rejected": None},
    {"messages": TURNS, "label": None},
]


@pytest.mark.parametrize("row", PREFERENCES)
@pytest.mark.parametrize("layout", ["auto", "alpaca", "chat", "prompt-completion"])
def test_a_preference_is_no_answer_to_learn(row: dict[str, Any], layout: str) -> None:
    assert prompt_and_answer(row) is None, "the quick way leaves it to the thorough one"
    with pytest.raises(BadRow) as bad:
        parse_example(row, layout)
    assert bad.value.reason == "preference_row" and "preferences" in bad.value.detail


@pytest.mark.parametrize("row", OTHERS)
def test_other_columns_of_those_names_reject_nothing(row: dict[str, Any]) -> None:
    assert parse_example(row, "auto").layout


def test_rows_marked_bad_are_refused_before_anything_is_trained(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"prompt": row["instruction"], "completion": row["output"], "label": at % 2 == 0} for at, row in enumerate(make_rows(40))]
    file = write_rows(tmp_path / "kto.jsonl", rows)
    done = holdfast("train", config_of(data={"files": [str(file)]}), "--run", tmp_path / "run")
    assert done.returncode == 1
    assert "preference_row 40" in done.stderr and "train.objective" in done.stderr
    assert not (tmp_path / "run/attempts").exists()


@needs_shared
@pytest.mark.parametrize("name", ["kto_en_demo.json", "dpo_en_demo.json"])
def test_files_of_other_trainers_are_recognised_to_the_last_row(name: str) -> None:
    for row in json.loads((SHARED / "data/chat" / name).read_text()):
        with pytest.raises(BadRow) as bad:
            parse_example(row, "auto")
        assert bad.value.reason == "preference_row"


UNUSED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"question": "q", "answer": "a", "rating": 1, "id": 7, "source": "x"}, ["rating"], ["id", "source"]),
    ({"instruction": "q", "output": "a", "loss_weight": 0.0, "category": "x"}, ["loss_weight"], ["category"]),
    ({"instruction": "q", "output": "a", "system": "be brief", "history": [["a", "b"]]}, [], []),
    ({"prompt": "q", "completion": "a", "system": "be brief", "history": [["a", "b"]]}, ["history", "system"], []),
    ({"messages": TURNS, "history": [["a", "b"]], "response": "b"}, ["history"], ["response"]),
    ({"messages": TURNS[:1], "response": "b"}, [], []),
    ({"input": TURNS[:1], "output": "b", "model": "m"}, [], ["model"]),
    (
        {"prompt": "q", "completion": "a", "isCorrect": "no", "bewertung": "4,5", "created_at": 17},
        ["bewertung", "isCorrect"],
        ["created_at"],
    ),
    ({"Question": "q", "Answer": "a", "Score": None, "Notes": "", "tags": []}, [], []),
    ({"messages": [TURNS[0], TURNS[1] | {"weight": 0}], "system": "s", "tools": []}, [], []),
    ({"messages": [SYSTEM, *TURNS], "system": "s "}, [], []),
    ({"messages": [SYSTEM, *TURNS], "System": "another"}, ["System"], []),
    ({"messages": TURNS, "system": "s", "system_instruction": "another"}, ["system_instruction"], []),
    ({"prompt": [SYSTEM, TURNS[0]], "completion": TURNS[1:], "system": [{"text": "another"}]}, ["system"], []),
    ({"messages": [TURNS[0] | {"weight": 2}, TURNS[1] | {"rank": 1}]}, ["messages[].rank", "messages[].weight"], []),
    ({"text": "t", "label": "spam", "language": "en"}, ["label"], ["language"]),
    ({"prompt": "q", "response": "a", "chat_template_kwargs": {"enable_thinking": False}}, ["chat_template_kwargs"], []),
    ({"instruction": "q", "input": "more", "output": "a"}, [], []),
]


@pytest.mark.parametrize(("row", "telling", "others"), UNUSED)
def test_fields_that_are_not_used_are_told_and_those_that_change_a_rows_meaning_first(
    row: dict[str, Any], telling: list[str], others: list[str]
) -> None:
    unused = UnusedFields()
    unused.add([(row, parse_example(row, "auto"))], {})
    assert (sorted(unused.telling), sorted(unused.others)) == (telling, others)


def test_fields_are_told_in_the_rows_own_order_in_every_process() -> None:
    names = ["zone", "alpha", "page", "shelf", "box", "room", "city", "floor"]
    unused = UnusedFields()
    unused.add([(dict.fromkeys([*names, "instruction", "output"], "x"), Example(layout="alpaca"))], {})
    assert list(unused.as_json()["others"]) == names


def test_a_field_that_is_mapped_is_used() -> None:
    unused = UnusedFields()
    row = {"frage": "q", "Antwort": "a", "stars": 5}
    unused.add([(row, Example(layout="question-answer"))], {"question": "frage", "answer": "antwort"})
    assert (dict(unused.telling), dict(unused.others)) == ({"stars": 1}, {})


def test_what_train_does_not_use_of_its_rows_is_told_before_anything_is_trained(
    assets: SimpleNamespace, config_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [row | {"rating": at % 5, "source": "wiki"} for at, row in enumerate(make_rows(30))]
    rows[3]["output"] += " mail me: jane.doe@acme-corp.com"
    rows[5]["output"] = rows[9]["output"] = ""
    rows[7] = {"rating": 1, "title": "t"}
    rows[11] = {"messages": [SYSTEM, *TURNS], "system": "another", "rating": 1, "source": "wiki"}
    file = write_rows(tmp_path / "rows.jsonl", rows)
    for _ in range(2):  # the second time from the cache
        run = RunFolder(tmp_path / f"run{_}")
        run.path.mkdir()
        config = load_config(config_of(data={"files": [str(file)], "fields": {"output": "output"}}))
        check_data(run, config, read_model(str(assets.model)), Terminal(to_stderr=False, quiet=False))
        said = capsys.readouterr().out
        assert (
            "! not used, though it may change what a row means: rating (27 rows), system (1 row); every row is learned from its text"
            in said
        )
        assert "fields that are not used: source" in said
        assert "notes on rows that are trained on as they are: email_address 1; the rows: holdfast data check " in said
        assert f"data check {file} --tokenizer {assets.model} --field output=output --max-tokens " in said, "as this config reads them"
        data = json.loads(run.data_report_file.read_text())
        assert (data["notes"], data["unused_fields"]["telling"]) == ({"email_address": 1}, {"rating": 27, "system": 1})
        places = f"empty_answer {file}:6, missing_field {file}:8"
        assert f"the first row rejected for each reason: {places}\n" in said and f"email_address {file}:4" in said
        assert data["first_rejected"] == {
            reason: {"file": str(file), "line": at} for reason, at in (("empty_answer", 6), ("missing_field", 8))
        }


def test_answers_that_lose_their_end_are_told_as_a_loss(
    assets: SimpleNamespace, config_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_rows(20)
    rows[7]["output"] = " ".join(["amber birch cedar delta"] * 30)
    rows[8]["instruction"] = " ".join(["amber birch cedar delta"] * 40)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = load_config(config_of(data={"files": [str(write_rows(tmp_path / "rows.jsonl", rows))]}))
    check_data(run, config, read_model(str(assets.model)), Terminal(to_stderr=False, quiet=True))
    said = capsys.readouterr().out
    assert "! 1 answer cut off at 96 tokens: how they end, and that they do, is not learned; a higher limit, or data.too_long" in said
    assert "! 1 row rejected, because nothing that is learned lies within 96 tokens: a higher limit takes them" in said


def test_the_doctor_tells_of_fields_that_are_not_used(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [row | {"score": at / 7, "id": at} for at, row in enumerate(make_rows(5))]
    config = load_config(config_of(data={"files": [str(write_rows(tmp_path / "rows.jsonl", rows))]}))
    (told,) = [finding for finding in foresee(config, {}).findings if finding.id == "data-fields"]
    assert told.severity == "warn" and told.message.endswith("what a row means: score")


@pytest.mark.parametrize(
    ("question", "better", "worse"),
    [
        ("", "Antwort gut", "Antwort schlecht"),
        ("Frage", "Antwort gut", "Antwort schlecht"),
        ("Frage", "bessere Antwort", "schlechtere Antwort"),
        ("question", "bonne réponse", "mauvaise reponse"),
        ("Pregunta", "respuesta_buena", "respuesta_mala"),
        ("prompt", "winner", "loser"),
        ("prompt", "goodAnswer", "badAnswer"),
        ("", "correct", "incorrect"),
        ("вопрос", "лучший ответ", "худший ответ"),
        ("问题", "好的回答", "差的回答"),
        ("質問", "採用回答", "不採用回答"),
        ("질문", "좋은 답변", "나쁜 답변"),
    ],
)
def test_two_answers_in_columns_of_other_names_are_told_as_such_and_the_named_options_read_them(
    question: str, better: str, worse: str
) -> None:
    row = ({question: "two and two?"} if question else {}) | {better: "four", worse: "five"}
    for given in (row, dict(reversed(row.items()))):
        with pytest.raises(BadRow) as bad:
            parse_example(given, "auto")
        assert bad.value.reason == "preference_row" and "train.objective dpo" in bad.value.detail
        fields = asked_fields(_options(bad.value.detail))
        assert dict(fields)["chosen"] == better and dict(fields)["rejected"] == worse
        if question:
            pair = parse_example(given, "auto", dict(fields), "pairs")
            assert [turn.content for turn in pair.messages] == ["two and two?", "four"] and pair.worse[-1].content == "five"


def _options(detail: str) -> list[str]:
    words = shlex.split(detail.partition("for example ")[2].partition(", in a config")[0])
    assert words[::2] == ["--field"] * (len(words) // 2)
    return words[1::2]


@pytest.mark.parametrize("names", [("letter", "word"), ("good question", "bad answer"), ("Buchstabe", "Wort"), ("first", "best")])
def test_other_columns_are_not_taken_for_two_answers(names: tuple[str, str]) -> None:
    assert two_answers(names) is None


def test_a_pair_whose_worse_answer_is_missing_is_still_told_as_a_pair() -> None:
    with pytest.raises(BadRow) as bad:
        parse_example({"prompt": "two?", "chosen": "four", "rejected": None}, "auto")
    assert bad.value.reason == "preference_row" and "completion=chosen" not in bad.value.detail


TOOL = {"type": "function", "function": {"name": "stock", "parameters": {"type": "object", "properties": {}}}}
CALLED = {"tool_calls": [{"type": "function", "function": {"name": "stock", "arguments": {"part": "M3"}}}]}
ASKED = [{"role": "user", "content": "how many?"}]
KEPT: list[dict[str, Any]] = [
    {"prompt": ASKED, "chosen": [{"role": "assistant", "content": "", **CALLED}], "rejected": "many", "tools": [TOOL]},
    {"messages": [*ASKED, {"role": "assistant", "content": "", **CALLED}], "rejected_response": "many", "tools": json.dumps([TOOL])},
    {"messages": [*ASKED, {"role": "assistant", "content": "", **CALLED}], "rejected_messages": [*ASKED, TURNS[1]], "tools": [TOOL]},
    {
        "conversations": [{"from": "human", "value": "how many?"}],
        "chosen": {"from": "function_call", "value": json.dumps(CALLED["tool_calls"])},
        "rejected": {"from": "gpt", "value": "many"},
        "functions": [TOOL["function"]],
    },
    {
        "input": {"messages": ASKED, "tools": [TOOL], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", **CALLED}],
        "non_preferred_output": [{"role": "assistant", "content": "many"}],
    },
]


@pytest.mark.parametrize(("row", "wanted"), [(row, "pairs") for row in KEPT] + [(row, "marks") for row in KEPT if "chosen" in row])
def test_tools_and_calls_of_a_pair_are_kept(row: dict[str, Any], wanted: Any) -> None:
    pair = parse_example(row, "auto", {}, wanted)
    assert pair.tools == (TOOL,)
    assert pair.messages[-1].calls == tuple(CALLED["tool_calls"]) and not pair.worse[-1].calls
    assert pair.messages[:-1] == pair.worse[:-1] == (Message("user", "how many?"),)


def test_reasoning_of_the_better_answer_is_kept_beside_a_worse_one() -> None:
    said = {"role": "assistant", "content": "four", "reasoning_content": "2 + 2"}
    pair = parse_example({"messages": [TURNS[0], said], "rejected_response": "five"}, "auto", {}, "pairs")
    assert (pair.messages[-1].thinking, pair.messages[-1].content, pair.worse[-1].content) == ("2 + 2", "four", "five")


def test_a_question_is_no_better_answer() -> None:
    row = {"messages": [*TURNS, ASKED[0]], "rejected_response": "many"}
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto", {}, "pairs")
    assert bad.value.reason == "no_assistant_turn"


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "and three?", "input": "", "chosen": "six", "rejected": "five"},
        {"question": "and three?", "answer": "six", "rejected_response": "five"},
        {"prompt": "and three?", "completion": "six", "rejected_response": "five"},
    ],
)
@pytest.mark.parametrize("system", ["system", "system_instruction"])
def test_what_stands_before_the_question_of_a_pair_is_kept(row: dict[str, Any], system: str) -> None:
    pair = parse_example(row | {"history": [["two?", "four"]], system: "be brief"}, "auto", {}, "pairs")
    roles = [("system", "be brief"), ("user", "two?"), ("assistant", "four"), ("user", "and three?")]
    assert [(one.role, one.content) for one in pair.messages[:-1]] == roles
    assert (pair.messages[-1].content, pair.worse[-1].content) == ("six", "five")


_SAID = "\n\nHuman: two?\n\nAssistant: "
_TURNS = [[{"role": "user", "content": "two?"}, {"role": "assistant", "content": answer}] for answer in ("four", "five")]


@pytest.mark.parametrize(
    ("row", "before"),
    [
        ({"prompt": "two?", "chosen": f"{_SAID}four", "rejected": f"{_SAID}five"}, []),
        ({"prompt": "two?", "chosen": "\n\nAssistant: four", "rejected": "\n\nAssistant: five"}, []),
        ({"system": "be brief", "chosen": f"{_SAID}four", "rejected": f"{_SAID}five"}, ["be brief"]),
        ({"system": "be brief", "prompt": "two?", "chosen": _TURNS[0], "rejected": _TURNS[1]}, ["be brief"]),
        ({"system": "be brief", "chosen": _TURNS[0], "rejected": [{"role": "system", "content": "be long"}, *_TURNS[1]]}, None),
    ],
)
def test_two_whole_conversations_stand_behind_the_system_alone(row: dict[str, Any], before: list[str] | None) -> None:
    """As HH writes them in a text, or as turns; a prompt beside them is in them."""
    if before is None:
        with pytest.raises(BadRow):
            parse_example(row, "auto", {}, "pairs")
        return
    pair = parse_example(row, "auto", {}, "pairs")
    for turns, answer in ((pair.messages, "four"), (pair.worse, "five")):
        assert [(one.role, one.content) for one in turns] == [
            *(("system", text) for text in before), ("user", "two?"), ("assistant", answer),
        ]  # fmt: skip


def test_a_history_beside_turns_is_told_as_unused_in_a_pair_too() -> None:
    row = {"messages": ASKED, "chosen": "19", "rejected": "many", "history": [["two?", "four"]]}
    unused = UnusedFields()
    unused.add([(row, parse_example(row, "auto", {}, "pairs"))], {})
    assert "history" in unused.telling
