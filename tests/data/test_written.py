"""Rows that a language model writes: a real HTTP server that fails in every way servers do, a real kill in the middle."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast, lines, start, wait_until
from holdfast.data.recipe.prompt import rows_in
from support.endpoint import serving

pytest.importorskip("httpx", reason="httpx is not installed (holdfast[endpoint])")

RECIPE = """
rows: 40
categories:
  birds: {templates: {a: {wishes: ["name the bird {bird}"], answer: "bird {bird}"}}, pools: {bird: [wren, rook, kite]}}
  trees: {quota: 15, templates: {a: {wishes: ["name the tree {tree}"], answer: "tree {tree}"}}, pools: {tree: [oak, elm]}}
"""


GIVEN = ("--endpoint", "http://127.0.0.1:1", "--model", "small")


def make(folder: Path, url: str, *more: object) -> tuple[int, dict[str, Any], str]:
    return ask(folder, *command(folder, url)[4:], *more)


def ask(folder: Path, *options: object) -> tuple[int, dict[str, Any], str]:
    (folder / "recipe.yaml").write_text(RECIPE)
    command = ("data", "make", "--out", folder / "rows.jsonl")
    done = holdfast(*command, *options, "--json", env={"OPENAI_API_KEY": "very-secret"})
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def command(folder: Path, url: str) -> list[object]:
    asked = ["--recipe", folder / "recipe.yaml", "--endpoint", url, "--model", "small", "--per-request", 5]
    return ["data", "make", "--out", folder / "rows.jsonl", *asked]


def test_rows_come_in_their_quotas_with_the_bill(tmp_path: Path) -> None:
    with serving() as endpoint:
        code, answer, told = make(tmp_path, endpoint.url, "--price-in", 2, "--price-out", 10)
    assert code == 0, told
    rows = lines(tmp_path / "rows.jsonl")
    assert answer["by_category"] == {"birds": 25, "trees": 15} == Counter(row["category"] for row in rows)
    assert not any("split" in row for row in rows), "a field of rows that looks as if it changed their meaning"
    assert answer["requests"] == 8 and answer["tokens"] == {"in": 8000, "out": 4000, "uncounted_answers": 0}
    assert answer["cost"] == pytest.approx(8000 * 2e-6 + 4000 * 10e-6)
    assert endpoint.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["rows"]
    assert set(endpoint.keys) == {"Bearer very-secret"} and "very-secret" not in told
    assert [file.name for file in tmp_path.iterdir() if "unfinished" in file.name] == []


def test_a_server_that_fails_in_every_way_still_gives_all_rows(tmp_path: Path) -> None:
    """Overload, a torn body, cut-off JSON, the same row again and again, rows of another form, chatter, a slow answer."""
    misdeeds = {1: "no schema", 2: "500", 3: "torn", 5: "cut", 6: "duplicates", 7: "schema", 8: "chatty", 9: "slow", 10: "429", 12: "503"}
    with serving(lambda number: misdeeds.get(number, "")) as endpoint:
        code, answer, told = make(tmp_path, endpoint.url, "--parallel", 2, "--timeout", 0.5)
    assert code == 0, told
    rows = lines(tmp_path / "rows.jsonl")
    assert len(rows) == 40 == len({row["instruction"] for row in rows})
    assert answer["retries"] >= 5
    assert answer["refused"].keys() >= {"cut_off", "duplicate", "missing_field", "empty_answer"}
    assert "response_format" not in endpoint.requests[-1]


def test_a_killed_command_goes_on_and_asks_for_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    journal = tmp_path / ".rows.jsonl.unfinished.jsonl"
    with serving(lambda number: "slow" if number > 3 else "") as endpoint:
        first = start(*command(tmp_path, endpoint.url), "--parallel", 1)
        wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 4)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        kept = [row for entry in lines(journal)[1:] for row in entry["rows"]]
        assert len(kept) >= 15 and not (tmp_path / "rows.jsonl").exists()
        with journal.open("ab") as handle:  # a line the kill tore
            handle.write(b'{"category": "birds", "ro')
        endpoint.misdeed = lambda _: ""
        code, answer, told = make(tmp_path, endpoint.url)
    assert code == 0, told
    rows = lines(tmp_path / "rows.jsonl")
    assert answer["resumed"] == len(kept) and len(rows) == 40
    assert {row["instruction"] for row in kept} <= {row["instruction"] for row in rows}
    assert not journal.exists()


def test_an_endpoint_that_stays_away_ends_with_3_and_keeps_what_there_is(tmp_path: Path) -> None:
    with serving(lambda number: "503" if number > 2 else "") as endpoint:
        code, answer, _ = make(tmp_path, endpoint.url, "--parallel", 1, "--retries", 1)
        assert code == 3 and "failed 2 times in a row: status 503" in answer["error"]
        assert not (tmp_path / "rows.jsonl").exists()
        endpoint.misdeed = lambda _: ""
        code, answer, _ = make(tmp_path, endpoint.url)
        assert code == 0 and answer["resumed"] == 10


def test_what_it_may_cost_is_kept(tmp_path: Path) -> None:
    with serving() as endpoint:
        prices = ("--price-in", 1000, "--price-out", 0, "--parallel", 1)
        code, answer, _ = make(tmp_path, endpoint.url, *prices, "--max-cost", 3)
        assert code == 3 and "15 rows cost 3, --max-cost is 3" in answer["error"]
        assert len(endpoint.requests) == 3
        code, answer, _ = make(tmp_path, endpoint.url, *prices, "--max-cost", 100)
        assert code == 0 and answer["cost"] == 8.0


def test_a_model_that_only_repeats_itself_is_given_up(tmp_path: Path) -> None:
    with serving(lambda number: "duplicates" if number > 1 else "") as endpoint:
        endpoint.rows = lambda count: [{"instruction": "Say it", "input": "", "output": "said"}] * count  # type: ignore[method-assign]
        code, answer, _ = make(tmp_path, endpoint.url, "--parallel", 1)
    assert code == 3 and "8 answers in a row gave no new row (duplicate)" in answer["error"]


def test_tokens_that_are_not_counted_are_not_taken_for_none(tmp_path: Path) -> None:
    with serving(usage=False) as endpoint:
        _, answer, _ = make(tmp_path, endpoint.url)
    assert answer["tokens"] == {"in": 0, "out": 0, "uncounted_answers": 8}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--endpoint", "127.0.0.1:1", "--model", "small"), "not an http address"),
        ((*GIVEN, "--price-in", 1), "--price-in and --price-out belong together"),
        ((*GIVEN, "--max-cost", 1), "--max-cost needs prices to count with"),
        ((*GIVEN, "--parallel", 0), "--parallel 0: at least 1 is needed"),
        (("--endpoint", "http://127.0.0.1:1", "--model", ""), "--endpoint needs --model NAME"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, more: tuple[object, ...], said: str) -> None:
    code, answer, _ = ask(tmp_path, "--recipe", tmp_path / "recipe.yaml", *more)
    assert code == 2 and said in answer["error"]


def test_a_refused_key_ends_at_once_and_another_recipe_does_not_go_on(tmp_path: Path) -> None:
    with serving(lambda number: "401" if number == 2 else "") as endpoint:
        code, answer, _ = make(tmp_path, endpoint.url, "--parallel", 1)
        assert code == 2 and "status 401" in answer["error"] and "--key-env" in answer["hint"]
        code, answer, _ = make(tmp_path, endpoint.url, "--seed", 7)
        assert code == 2 and "is of an unfinished command with another recipe" in answer["error"]


@pytest.mark.parametrize(
    ("text", "rows", "wrong"),
    [
        ('{"rows": [{"a": 1}, {"b": 2}]}', 2, ""),
        ('[{"a": 1}]', 1, ""),
        ('Sure!\n```json\n{"rows": [{"a": 1}]}\n```', 1, ""),
        ('{"rows": [{"a": "x}{"}, {"b": 2}, {"c"', 2, "cut_off"),
        ('{"rows": [', 0, "cut_off"),
        ("I cannot do that.", 0, "not_json"),
        ("", 0, "not_json"),
        ("{" * 100_000, 0, "cut_off"),
    ],
)
def test_whole_rows_are_taken_of_any_answer(text: str, rows: int, wrong: str) -> None:
    found, why = rows_in(text)
    assert (len(found), why) == (rows, wrong)
