"""`data split`, `data sample`, `data diff`: no row lost, what is alike on one side, the same again by the same seed."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_rows, write_rows
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.data.duplicates.keys import keys_of, lines_of
from holdfast.data.duplicates.portion import Amount, divide, groups

Call = Callable[..., Json]


def alike_rows(groups_of_rows: int) -> list[dict[str, Any]]:
    """Groups of four: a row, its prompt in capitals with another answer, its texts with one more letter, and the row again."""
    rows = []
    for n in range(groups_of_rows):
        long = " ".join(f"{(n + 3) * 7919 * (k + 1) % 99991}" for k in range(40))
        kind = {"category": "small" if n % 5 == 0 else "large", "group": n}
        rows += [
            {"prompt": f"Question {n}", "completion": long} | kind,
            {"prompt": f"QUESTION  {n}", "completion": f"no {n}"} | kind,
            {"prompt": f"Question {n}?", "completion": long + "!"} | kind,
            {"prompt": f"Question {n}", "completion": long} | kind,
        ]
    return rows[::2] + rows[1::2]  # apart from each other


def of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("how", [[], ["--by-hash"], ["--stratify", "category"]])
def test_what_is_alike_goes_to_one_side_and_no_row_is_lost(call: Call, tmp_path: Path, how: list[str]) -> None:
    file = write_rows(tmp_path / "rows.jsonl", alike_rows(100))
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    answer = call("split", file, "--into", f"{one}=0.75", "--into", f"{two}=0.25", *how)
    assert sorted(one.read_bytes().splitlines() + two.read_bytes().splitlines()) == sorted(file.read_bytes().splitlines())
    assert not {row["group"] for row in of(one)} & {row["group"] for row in of(two)}
    assert (answer["rows"], answer["groups"], answer["largest_group"], answer["left_out"]) == (400, 100, 4, 0)
    assert call("check", one, "--held-out", two)["in_held_out"] == 0
    if not how:
        assert answer["files"] == {str(one): 300, str(two): 100}
    if "--stratify" in how:
        assert Counter(row["category"] for row in of(two)) == {"small": 20, "large": 80}
    again = tmp_path / "again.jsonl"
    call("split", file, "--into", f"{again}=0.75", "--into", f"{tmp_path / 'other.jsonl'}=0.25", *how)
    assert again.read_bytes() == one.read_bytes()


def test_by_hash_a_row_keeps_its_side_when_rows_are_added(call: Call, tmp_path: Path) -> None:
    rows = alike_rows(60)
    sides = []
    for tag, part in (("few", rows[:120]), ("many", rows)):
        held = tmp_path / f"{tag}-held.jsonl"
        file = write_rows(tmp_path / f"{tag}.jsonl", part)
        call("split", file, "--by-hash", "--into", f"{tmp_path / tag}-train.jsonl=rest", "--into", f"{held}=0.3")
        sides.append({row["group"] for row in of(held)})
    assert sides[0] == {group for group in sides[1] if group in {row["group"] for row in rows[:120]}}
    assert sides[0]


def test_one_file_for_each_value(call: Call, tmp_path: Path) -> None:
    rows = [
        {"text": "a", "kind": "x/y"},
        {"text": "b", "kind": "x y"},
        {"text": "c"},
        {"text": "d", "kind": "x/y"},
        {"text": "e", "kind": 3},
    ]
    answer = call("split", write_rows(tmp_path / "rows.jsonl", rows), "--per", "kind", "--out", tmp_path / "out")
    assert sum(answer["files"].values()) == 5
    found = {Path(name).name: [row["text"] for row in of(Path(name))] for name in answer["files"]}
    assert found == {"none.jsonl": ["c"], "3.jsonl": ["e"], "x-y.jsonl": ["b"], "x-y-.jsonl": ["a", "d"]}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    seed=st.integers(0, 5),
    equal=st.booleans(),
)
def test_single_rows_are_divided_to_the_row(sizes: list[int], counts: list[int], seed: int, equal: bool) -> None:
    import numpy as np

    category = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    total = len(category)
    numbers = np.arange(1, total + 1)
    none = np.zeros((0, 64), np.uint8)
    from holdfast.data.duplicates.keys import RowKeys

    keys = RowKeys(numbers, numbers, numbers, np.zeros(total, np.bool_), none, category, tuple(map(str, range(len(sizes)))))
    part = divide(keys, [Amount(count=count) for count in counts], seed, np.arange(total), equal)
    left = total
    for number, count in enumerate(counts):
        assert (part == number).sum() == min(count, left)
        left -= min(count, left)
    assert (part == -1).sum() == left


def test_a_sample_is_drawn_in_order_and_over_categories(call: Call, tmp_path: Path) -> None:
    rows = [{"text": str(n), "kind": "rare" if n % 10 == 0 else "common"} for n in range(200)]
    file, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    answer = call("sample", file, "--rows", 40, "--out", out, "--stratify", "kind")
    assert (answer["sampled"], answer["by_category"]) == (40, {"rare": 4, "common": 36})
    drawn = [int(row["text"]) for row in of(out)]
    assert drawn == sorted(set(drawn))
    assert call("sample", file, "--rows", 40, "--out", out, "--stratify", "kind", "--equal")["by_category"] == {"rare": 20, "common": 20}
    call("sample", file, "--rows", "0.2", "--out", tmp_path / "other.jsonl", "--seed", 1)
    assert len({row["text"] for row in of(tmp_path / "other.jsonl")} - set(map(str, drawn))) > 10


def test_what_changed_between_two_versions(call: Call, tmp_path: Path) -> None:
    rows = [{"instruction": f"q{n}", "output": f"a{n}", "n": n} for n in range(20)] + [{"text": "twice"}, {"text": "twice"}]
    new = [{key: row[key] for key in reversed(row)} for row in rows]  # the order of fields is no difference
    new[3] = new[3] | {"output": "other"}
    new[4] = new[4] | {"instruction": " Q4"}
    new[5] = {"instruction": "new", "output": "row"}
    del new[-1], new[0]
    new.reverse()
    old, other = write_rows(tmp_path / "old.jsonl", rows), tmp_path / "new.json"
    other.write_text(json.dumps(new, indent=1))
    answer = call("diff", old, other, "--by", "n")
    counts = [answer[name] for name in ("same", "alike", "answer_changed", "removed", "added")]
    assert (counts, answer["reordered"]) == ([17, 1, 1, 3, 1], True)
    assert [row["line"] for row in answer["examples"]["removed"]] == [1, 6, 22]
    assert answer["by_category"]["5"] == {"before": 1, "after": 0}
    assert call("diff", old, old)["same"] == 22


def test_groups_hang_together_over_neighbours(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "1"}, {"prompt": "b", "completion": "2"}, {"prompt": "a", "completion": "3"}, {"text": "x"}]
    keys = keys_of(lines_of([str(write_rows(tmp_path / "rows.jsonl", rows))], whole=True), "", compared=True)
    assert groups(keys).tolist() == [0, 1, 0, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["split", "ROWS"], 2, "say how to divide"),
        (["split", "ROWS", "--into", "a.jsonl"], 2, "write FILE=AMOUNT"),
        (
            ["split", "ROWS", "--into", "a.csv=0.9", "--into", "b.jsonl=0.1"],
            2,
            "a.csv: rows are written as JSON Lines\n  -> name it a.jsonl",
        ),
        (["split", "ROWS", "--into", "a.PARQUET=1"], 2, "rows are written as JSON Lines"),
        (["sample", "ROWS", "--rows", "1", "--out", "a.jsonl.gz"], 2, "rows are written as JSON Lines"),
        (["make", "--rows", "9", "--out", "a.tsv"], 2, "rows are written as JSON Lines"),
        (["split", "ROWS", "--into", "a.jsonl=many"], 2, "is no amount of rows"),
        (["split", "ROWS", "--into", "a.jsonl=0.7", "--into", "b.jsonl=0.6"], 2, "the shares make 1.3"),
        (["split", "ROWS", "--into", "a.jsonl=99"], 1, "99 rows are asked for, there are 3"),
        (["split", "ROWS", "--into", "a.jsonl=0.9", "--into", "b.jsonl=2"], 1, "2 rows and shares of 2 are asked for, there are 3"),
        (["sample", "ROWS", "--rows", "0.1", "--out", "a.jsonl"], 2, "--rows 0.1 of 3 rows is less than one"),
        (["split", "ROWS", "--into", "ROWS=0.5"], 2, "is one of the inputs"),
        (["split", "ROWS", "--into", "a.jsonl=0.5", "--stratify", "kind"], 2, "no row has a field 'kind'"),
        (["split", "BAD", "--into", "a.jsonl=0.5"], 1, "holdfast data clean"),
        (["sample", "ROWS", "--rows", "0.5", "--out", "a.jsonl", "--equal"], 2, "--equal needs a field"),
        (["diff", "ROWS", "nothing.jsonl"], 2, "no such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}, {"text": "c"}])
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    names = {"ROWS": "rows.jsonl", "BAD": "bad.jsonl"}
    given = [part.replace("ROWS", "rows.jsonl") if part.startswith("ROWS=") else names.get(part, part) for part in arguments]
    assert main(["data", *given]) == code
    assert says in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.jsonl", "rows.jsonl"]


@pytest.mark.parametrize("shared", ["system", "tools"])
def test_a_system_prompt_or_tools_that_all_rows_share_make_none_alike(call: Call, tmp_path: Path, shared: str) -> None:
    """They may be most of each row's text: all rows but one were dropped for it, and a split had one side."""
    long = " ".join(f"rule {n} is {n * 7919 % 99991}" for n in range(200))
    texts = [" ".join(f"{(n + 3) * 7919 * (k + 1) % 99991}" for k in range(40)) for n in range(40)]
    texts.append(texts[0] + "!")
    tools = [{"type": "function", "function": {"name": "look", "description": long, "parameters": {"type": "object"}}}]
    rows: list[dict[str, Any]] = []
    for n, text in enumerate(texts):
        turns = [{"role": "user", "content": f"Question {n}: {text}"}, {"role": "assistant", "content": text[::-1]}]
        told = [{"role": "system", "content": long}] if shared == "system" else []
        rows.append({"messages": [*told, *turns]} | ({"tools": tools} if shared == "tools" else {}))
    file, one, two = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert call("check", file)["near_duplicates"] == 1
    assert call("clean", file, "--out", tmp_path / "clean.jsonl", "--drop", "near-duplicate")["kept"] == 40
    answer = call("split", file, "--into", f"{one}=33", "--into", f"{two}=rest")
    assert (answer["groups"], answer["largest_group"], len(of(one)), len(of(two))) == (40, 2, 33, 8)


def test_a_file_that_gets_no_row_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "Write on", "completion": f"text {n}"} for n in range(20)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    into = ["--into", f"{tmp_path / 'train.jsonl'}=0.9", "--into", f"{tmp_path / 'held.jsonl'}=0.1"]
    assert main(["data", "split", str(file), *into]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("! "))
    assert told.startswith(f"! {tmp_path / 'held.jsonl'} is empty: 20 of 20 rows share a prompt") and "--apart" in told
    assert main(["data", "split", str(file), *into, "--apart"]) == 0
    assert "! " not in capsys.readouterr().out and len(of(tmp_path / "held.jsonl")) == 2


def test_a_value_has_a_file_of_its_own_on_every_disk(tmp_path: Path, call: Call) -> None:
    """Also where case is not told apart, and a name may have 255 bytes."""
    kinds = ["Apple", "apple", "APPLE", "\u00e9t\u00e9", "e\u0301te\u0301", "\U00020000" * 90]
    rows = [row | {"kind": kinds[at % 6]} for at, row in enumerate(make_rows(12))]
    answer = call("split", write_rows(tmp_path / "rows.jsonl", rows), "--per", "kind", "--out", tmp_path / "out")
    names = [Path(name).name for name in answer["files"]]
    assert [*answer["files"].values()] == [2] * 6 and len({unicodedata.normalize("NFC", name).casefold() for name in names}) == 6
    assert sorted(names) == sorted(file.name for file in (tmp_path / "out").iterdir())
