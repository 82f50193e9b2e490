"""Rows made from the shipped recipe: what they promise a training run, and what a bad recipe is told."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.data.recipe.generate import Row, load_recipe, make_set, shingles

CATEGORIES = {
    "SELinux",
    "cgroups",
    "containers",
    "ROCm GPUs",
    "CUDA GPUs",
    "OSTree",
    "bootc",
    "networking",
    "firewall",
    "systemd",
    "kernel",
    "storage",
    "filesystems",
    "monitoring",
    "packages",
    "users",
    "ssh",
    "virtualisation",
    "databases",
    "Redis",
    "AI frameworks",
    "llama.cpp",
    "training",
    "security",
}
SMALL = """
pools:
  port: {from: 1, to: 9}
  unit: [nginx, redis]
category: one
templates:
  open:
    wishes: ["open {port} for {unit}"]
    answer: "open {unit} {port}"
"""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return make_set(load_recipe(), rows=1500, seed=1).rows


def test_same_seed_gives_the_same_rows_and_another_seed_others(rows: list[Row]) -> None:
    assert make_set(load_recipe(), rows=1500, seed=1).rows == rows
    other = {row["output"] for row in make_set(load_recipe(), rows=1500, seed=2).rows}
    assert len(other & {row["output"] for row in rows}) < 300


def test_all_categories_have_their_share(rows: list[Row]) -> None:
    sizes = Counter(row["category"] for row in rows)
    assert set(sizes) == CATEGORIES
    assert set(sizes.values()) == {62, 63}
    assert sum(sizes.values()) == 1500


@pytest.mark.parametrize("count", [1, 23, 25, 100, 4000])
def test_any_number_of_rows_comes_out_exactly(count: int) -> None:
    made = make_set(load_recipe(), rows=count, seed=3).rows
    assert len(made) == count
    assert sum(row["split"] == "held_out" for row in made) == round(count / 10)


def test_each_category_has_at_least_eight_templates_in_several_phrasings() -> None:
    recipe = load_recipe()
    for category in recipe.categories:
        assert len(category.templates) >= 8, category.name
        for template in category.templates:
            assert len(template.wishes) * len(recipe.frames) >= 16, f"{category.name} {template.id}"
            assert template.slots, f"{category.name} {template.id}"


def test_a_tenth_is_held_out_and_every_template_keeps_training_rows(rows: list[Row]) -> None:
    assert sum(row["split"] == "held_out" for row in rows) == 150
    trained = Counter((row["category"], row["template"]) for row in rows if row["split"] == "train")
    for row in rows:
        assert trained[row["category"], row["template"]] >= 2


def test_no_held_out_answer_stands_in_any_training_row(rows: list[Row]) -> None:
    trained = "\n".join(f"{row['instruction']}\n{row['input']}\n{row['output']}" for row in rows if row["split"] == "train")
    leaks = [row["output"] for row in rows if row["split"] == "held_out" and row["output"] in trained]
    assert leaks == []


def test_an_answer_that_is_the_beginning_of_another_is_never_held_out(tmp_path: Path) -> None:
    """`open nginx 1` stands in `open nginx 12`; drawn by chance alone, most of these short answers would leak."""
    (tmp_path / "small.yaml").write_text(SMALL.replace("to: 9", "to: 150"))
    made = make_set(load_recipe(tmp_path / "small.yaml"), rows=130, seed=1).rows
    trained = "\n".join(f"{row['instruction']}\n{row['output']}" for row in made if row["split"] == "train")
    held_out = [row["output"] for row in made if row["split"] == "held_out"]
    assert len(held_out) == 13
    assert [output for output in held_out if output in trained] == []


def test_no_row_stands_twice_and_no_question_has_two_answers(rows: list[Row]) -> None:
    assert len({(row["instruction"], row["input"]) for row in rows}) == 1500


def test_near_duplicates_stay_below_two_percent(rows: list[Row]) -> None:
    """Near-duplicate: Jaccard similarity of at least 0.8 between the 5-character shingles (and, apart, the 3-word shingles) of two rows."""
    texts = [f"{row['instruction']}\n{row['output']}" for row in rows]
    words = [frozenset(zip(parts, parts[1:], parts[2:], strict=False)) for parts in (text.split() for text in texts)]
    assert near_duplicates([shingles(text) for text in texts]) < 0.02 * 1500
    assert near_duplicates(words) < 0.02 * 1500


def near_duplicates(rows: list[frozenset[str]] | list[frozenset[tuple[str, str, str]]]) -> int:
    """Count the rows that are near-duplicates of an earlier one, comparing all pairs (as bit sets, which is fast)."""
    places: dict[object, int] = {}
    masks = [sum(1 << places.setdefault(shingle, len(places)) for shingle in row) for row in rows]
    sizes = [len(row) for row in rows]
    found = 0
    for at, mask in enumerate(masks):
        for other in range(at):
            low, high = sorted((sizes[at], sizes[other]))
            if low >= 0.8 * high and (both := (mask & masks[other]).bit_count()) >= 0.8 * (low + high - both):
                found += 1
                break
    return found


def test_every_answer_is_one_line_made_of_what_the_question_says(rows: list[Row]) -> None:
    for row in rows:
        assert "\n" not in row["output"] and row["output"] == row["output"].strip()
        assert "{" not in row["instruction"] + row["output"], row
        digits = [
            word for word in row["output"].replace(":", " ").replace("/", " ").replace(",", " ").split() if word.isdigit() and len(word) > 3
        ]
        assert all(word in row["instruction"] or word in {"4000", "100000"} for word in digits), row


def test_splits_and_order_are_mixed(rows: list[Row]) -> None:
    assert sum(one["category"] == other["category"] for one, other in pairwise(rows)) < 150


def test_two_draws_from_one_pool_differ(rows: list[Row]) -> None:
    pairs = [row["output"].removeprefix("AllowUsers ").split() for row in rows if row["template"] == "allow"]
    assert pairs and all(one != other for one, other in pairs)


def test_a_recipe_may_be_one_file(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    made = make_set(load_recipe(tmp_path / "small.yaml"), rows=10, seed=1).rows
    assert {row["category"] for row in made} == {"one"}
    assert all(row["output"].startswith("open ") for row in made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{port} for {unit}", "{port}"), "small.yaml.templates.open.wishes[0]: this wish lacks the slot {unit}"),
        (("open {unit} {port}", "open {unit}"), "small.yaml.templates.open.wishes[0]: the answer lacks the slot {port}"),
        (("open {unit} {port}", "open {unit} {prot}"), "small.yaml.templates.open.answer: no pool for the slot {prot}"),
        (("open {unit} {port}", "open {unit} {port"), "small.yaml.templates.open.answer: expected '}'"),
        (("open {unit} {port}", "open {unit} {port.x}"), "small.yaml.templates.open.answer: {port.x} is no slot name"),
        (("answer:", "anser:"), "small.yaml.templates.open.anser: unknown key, known: answer, difficulty, tool, wishes (line 9 of "),
        (("templates:", "template:"), "small.yaml.template: unknown key"),
        (
            ("category: one", ""),
            "small.yaml.templates: unknown key, known: categories, difficulty, facts, frames",
        ),
        (("to: 9", "to: 0"), "small.yaml.pools.port: from 1 to 0 step 1 holds no number"),
        (("[nginx, redis]", "[on, off]"), "small.yaml.pools.unit: a pool is a list of texts or numbers (quote on, off, yes, no)"),
        (("[nginx, redis]", "{join: ['{app}']}"), "small.yaml.pools.unit.join: no pool for the slot {app}"),
        (("[nginx, redis]", "{join: ['{unit}']}"), "small.yaml.pools.unit.join: the pool of {unit} must be described above this one"),
        (("  unit:", "  Unit2:"), "small.yaml.pools.Unit2: a pool's name has small letters and _ only"),
        (('["open {port} for {unit}"]', "open"), "small.yaml.templates.open.wishes: must be a list of texts"),
        (("pools:", "pools: ["), "small.yaml: not a YAML text"),
    ],
)
def test_a_bad_recipe_is_told_where_it_is_wrong(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    file = tmp_path / "small.yaml"
    assert change[0] in SMALL
    file.write_text(SMALL.replace(*change, 1))
    with pytest.raises(ValueError) as told:
        load_recipe(file)
    assert said in str(told.value)


def test_a_tool_that_cannot_be_guessed_must_be_named(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace('"open {unit} {port}"', '"{unit} {port}"'))
    with pytest.raises(ValueError, match=r"small\.yaml\.templates\.open\.tool: the answer starts with no word that names a tool"):
        load_recipe(file)
    file.write_text(
        SMALL.replace('"open {unit} {port}"', '"{unit} {port}"\n    tool: gate').replace("pools:", "frames: ['{tool}: {wish}']\npools:")
    )
    made = make_set(load_recipe(file), rows=5, seed=1).rows
    assert all(row["instruction"].startswith("gate: open ") for row in made)
    file.write_text(SMALL.replace("pools:", "frames: ['{wish}', '{wisch}']\npools:"))
    with pytest.raises(ValueError, match=r"small\.yaml\.frames\[1\]: unknown slot {wisch}"):
        load_recipe(file)


def test_a_recipe_that_runs_dry_says_how_far_it_got(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    with pytest.raises(ValueError, match=r"small: category one: gives 1\d different rows, 60 are wanted"):
        make_set(load_recipe(tmp_path / "small.yaml"), rows=60, seed=1)


def test_a_missing_recipe_and_an_empty_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such recipe file or folder"):
        load_recipe(tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match="no category in this recipe"):
        load_recipe(tmp_path)


def test_no_rows_is_not_a_number_of_rows() -> None:
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        make_set(load_recipe(), rows=0, seed=1)


@pytest.mark.parametrize("held_out", [False, True])
def test_no_field_of_the_rows_looks_as_if_it_changed_their_meaning(held_out: bool, tmp_path: Path) -> None:
    """`data check` and `doctor` warn of fields such as `split`: of our own rows there is nothing to warn of."""
    from holdfast.cli.main import main
    from holdfast.data.judge.unused import tells

    files = [tmp_path / "rows.jsonl", *([tmp_path / "kept.jsonl"] if held_out else [])]
    assert main(["data", "make", "--rows", "48", "--out", str(files[0]), *(["--held-out", str(files[1])] if held_out else [])]) == 0
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(rows) == 48
    assert not {name for row in rows for name in row if name not in ("instruction", "input", "output") and tells(name, row[name])}
