"""Recipes of one's own: facts, quotas, difficulty, limits; and what a mistake in one is told."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, lines, write_rows
from holdfast.data.recipe.generate import make_set, near_duplicates, parts_of
from holdfast.data.recipe.recipe import load_recipe

Call = Callable[..., dict[str, Any]]
RECIPE = """
rows: 40
seed: 3
pools:
  unit: [nginx, redis, sshd, grafana, postgresql, minio, haproxy, dovecot, telegraf, prometheus]
  port: {from: 1025, to: 9999, step: 7}
categories:
  services:
    quota: 25%
    templates:
      open:
        wishes: ["open {port} for {unit}", "let {unit} listen on {port}"]
        answer: "open {unit} {port}"
  errors:
    facts:
      error:
        - {seen: "{unit} says address in use", cause: "another process holds port {port}"}
        - {seen: "{unit} says connection refused", cause: "nothing listens on port {port}"}
        - {seen: "{unit} is killed at once", cause: "it needs more memory than there is"}
    templates:
      why:
        difficulty: hard
        tool: systemd
        wishes: ["find out why {error.seen} at port {port}"]
        answer: "{error.cause}"
      show:
        wishes: ["show the state of {unit} and the port {port}"]
        answer: "status {unit} {port}"
"""


def recipe_in(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_the_rows_of_the_quick_start_stay_as_they_are(call: Call, tmp_path: Path) -> None:
    """The README's and the demo's numbers rest on these bytes."""
    answer = call("make", "--out", tmp_path / "rows.jsonl")
    assert answer["rows"] == 1500 and len(answer["by_category"]) == 24
    assert hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest().startswith("7de89a1e3901527b")


def test_made_rows_hold_no_field_that_the_doctor_would_warn_of(call: Call, tmp_path: Path) -> None:
    call("make", "--rows", 24, "--out", tmp_path / "rows.jsonl", "--held-out", tmp_path / "held.jsonl")
    for file in ("rows.jsonl", "held.jsonl"):
        assert call("check", tmp_path / file)["unused_fields"]["telling"] == {}


def test_quotas_are_met_to_the_row(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_in(tmp_path))
    assert Counter(row["category"] for row in make_set(recipe, 40, 3).rows) == {"services": 10, "errors": 30}
    text = RECIPE.replace("quota: 25%", "quota: 7")
    assert Counter(row["category"] for row in make_set(load_recipe(recipe_in(tmp_path, text)), 20, 3).rows) == {"services": 7, "errors": 13}


def test_parts_add_up() -> None:
    assert parts_of(10, [1, 1, 1]) == [4, 3, 3]
    assert parts_of(1500, [1] * 24) == [63] * 12 + [62] * 12
    assert parts_of(7, [0.6, 0.3, 0.1]) == [4, 2, 1]
    assert parts_of(0, []) == []


def test_every_fact_comes_in_its_turn_and_the_answer_is_its_own(tmp_path: Path) -> None:
    made = make_set(load_recipe(recipe_in(tmp_path)), 40, 3)
    assert (made.facts_used, made.facts_known) == (3, 3)
    for row in made.rows:
        if row["template"] == "why":
            assert ("address in use" in row["instruction"]) == row["output"].startswith("another process holds port")
            assert ("killed at once" in row["instruction"]) == (row["output"] == "it needs more memory than there is")


def test_difficulties_have_their_parts(call: Call, tmp_path: Path) -> None:
    arguments = (
        "make",
        "--recipe",
        recipe_in(tmp_path, RECIPE.replace("    quota: 25%\n", "    quota: 0\n")),
        "--out",
        tmp_path / "rows.jsonl",
    )
    answer = call(*arguments, "--rows", 20, "--difficulty", "easy=3,hard=1")
    assert answer["by_difficulty"] == {"easy": 15, "hard": 5}
    assert Counter((row["difficulty"], row["template"]) for row in lines(tmp_path / "rows.jsonl")) == {
        ("easy", "show"): 15,
        ("hard", "why"): 5,
    }
    assert "has no medium template" in call(*arguments, "--difficulty", "medium=1", code=2)["error"]
    assert "extreme is no difficulty" in call(*arguments, "--difficulty", "extreme=1", code=2)["error"]


def test_the_shipped_recipe_has_tasks_and_errors_in_every_category(call: Call, tmp_path: Path) -> None:
    answer = call("make", "--rows", 960, "--difficulty", "easy=6,medium=3,hard=1", "--out", tmp_path / "rows.jsonl")
    rows = lines(tmp_path / "rows.jsonl")
    found = Counter((row["category"], row["difficulty"]) for row in rows)
    assert len(found) == 72 and set(found.values()) == {24, 12, 4}
    assert answer["near_duplicates"] <= 0.02 * 960
    assert sum("\n" in row["output"] for row in rows if row["difficulty"] != "easy") > 200
    assert not any("{" in row["instruction"] for row in rows)


def test_ten_thousand_shipped_rows_hardly_repeat_each_other(call: Call, tmp_path: Path) -> None:
    made = call("make", "--rows", 10_156, "--out", tmp_path / "rows.jsonl")
    checked = call("check", tmp_path / "rows.jsonl", "--workers", 1)
    assert (checked["rows"], checked["kept"], checked["duplicates"], checked["conflicting_answers"]) == (10_156, 10_156, 0, 0)
    assert max(checked["near_duplicates"], made["near_duplicates"]) < 0.02 * 10_156


def test_rows_that_repeat_are_counted_as_data_check_counts_them(call: Call, tmp_path: Path) -> None:
    """Short rows that are the same were left out of the count where there were long ones that are nearly so."""
    told = "Explain in a few words how the sea was named by those who lived at its shore in earlier times"
    asked = [(f"Name {n}", "x") for n in (1, 2, 3)] * 2 + [(told, f"They said what they saw: {word}") for word in ("blue", "gray", "blue")]
    rows: list[Any] = [
        {"category": "c", "template": "t", "instruction": one, "input": "", "output": other, "split": "train"} for one, other in asked
    ]
    checked = call("check", write_rows(tmp_path / "rows.jsonl", rows))
    assert near_duplicates(rows) == checked["duplicates"] + checked["near_duplicates"] == 5


def test_more_near_duplicates_than_allowed_are_refused_and_nothing_is_written(call: Call, tmp_path: Path) -> None:
    same = RECIPE.replace(
        "  errors:\n", "  again:\n    templates: {open: {wishes: ['open {port} for {unit}'], answer: 'open {unit} {port}'}}\n  errors:\n"
    )
    long = " ".join(f"part{number * 7919 % 1000}" for number in range(40))
    units = same.replace("[nginx, redis, sshd, grafana, postgresql, minio, haproxy, dovecot, telegraf, prometheus]", f"[{long}]")
    few = units.replace("{from: 1025, to: 9999, step: 7}", "[1, 2, 3, 4, 5, 6, 7, 8, 9]").replace("quota: 25%", "quota: 1")
    arguments = ("make", "--recipe", recipe_in(tmp_path, few), "--rows", 3, "--out", tmp_path / "rows.jsonl")
    answer = call(*arguments, code=2)
    assert "nearly like an earlier one, at most 2.0% may be" in answer["error"]
    assert not (tmp_path / "rows.jsonl").exists()
    assert call(*arguments, "--near-duplicates", 1)["rows"] == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("quota: 25%", "quota: 250%", "mine.yaml.categories.services.quota: must be a share such as 25% or 0.25, it is '250%' (line 9 of "),
        ("quota: 25%", "quota: -1", "mine.yaml.categories.services.quota: must be a whole number of at least 0, it is -1 (line 9 of "),
        ("rows: 40", "rows: many", "mine.yaml.rows: must be a whole number of at least 1, it is 'many' (line 2 of "),
        ("difficulty: hard", "difficulty: huge", "why.difficulty: must be one of easy, medium, hard, it is 'huge' (line 22 of "),
        ("rows: 40", "difficulty: {easy: x}", "mine.yaml.difficulty: the part of easy must be a number from 0 on, it is 'x' (line 2 of "),
        ("rows: 40", "difficulty: {easy: 0}", "mine.yaml.difficulty: no difficulty has a part of the rows (line 2 of "),
        ("rows: 40", "near_duplicates: 3", "mine.yaml.near_duplicates: must be a share such as 25% or 0.25, it is 3 (line 2 of "),
        ("{error.seen} at", "{error.sen} at", "why.wishes[0]: no fact {error.sen}, known: error.cause, error.seen (line 24 of "),
        (" at port {port}", "", "why.wishes[0]: this wish lacks the slot {port}; wishes and answer must name the same slots (line 24 of "),
        ("{error.seen} at", "this at", "facts.error[0] and [1] make the same question and other answers (line 24 of "),
        (
            'cause: "nothing',
            'because: "nothing',
            "errors.facts.error[1]: has the fields because, seen, the first one has cause, seen (line 18 of ",
        ),
        ("      show:", "      why:", "mine.yaml.categories.errors.templates: duplicate key why, in lines 21 and 26"),
        ("  services:", "  ? [a]\n  :", "a key must be a text (line 8)"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in RECIPE
    with pytest.raises(ValueError) as told:
        load_recipe(recipe_in(tmp_path, RECIPE.replace(old, new, 1)))
    assert said in str(told.value)


def test_facts_that_no_template_uses_are_told(tmp_path: Path) -> None:
    text = RECIPE.replace("    templates:\n      why:", "      other: [{a: b}]\n    templates:\n      why:")
    with pytest.raises(ValueError, match=r"mine.yaml.categories.errors.facts.other: no template uses these facts \(line 20 of"):
        load_recipe(recipe_in(tmp_path, text))


def test_quotas_that_do_not_add_up_are_told(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_in(tmp_path, RECIPE.replace("quota: 25%", "quota: 50")))
    with pytest.raises(ValueError, match="the quotas of its categories add up to 50 rows, 40 are wanted"):
        make_set(recipe, 40, 0)


def test_progress_tells_of_every_row(tmp_path: Path) -> None:
    told: list[int] = []
    make_set(dataclasses.replace(load_recipe(recipe_in(tmp_path)), near_duplicates=1.0), 40, 3, told.append)
    assert sum(told) == 40 and len(told) > 2


def test_the_recipe_in_the_docs_works(call: Call, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "recipes.md").read_text()
    recipe = recipe_in(tmp_path, text.split("```yaml\n")[1].split("```")[0])
    answer = call("make", "--recipe", recipe, "--rows", 40, "--out", tmp_path / "rows.jsonl")
    assert answer["rows"] == 40 and answer["facts"]["known"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", 0), "--rows 0: at least 1 is needed"),
        (("--near-duplicates", 2), "--near-duplicates 2.0: a share from 0 to 1 is needed"),
        (("--difficulty", "easy"), "--difficulty easy"),
        (("--held-out", "{out}"), "is named twice"),
    ],
)
def test_a_wrong_option_is_told(call: Call, tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    out = tmp_path / "rows.jsonl"
    given = [out if argument == "{out}" else argument for argument in arguments]
    assert said in call("make", "--out", out, *given, code=2)["error"]
