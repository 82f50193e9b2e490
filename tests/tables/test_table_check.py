"""`data check` and `data clean` of tables: every row accounted for, what a run would refuse told before it, rows of text left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from conftest import lines
from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.tables.table.build import _without_point
from holdfast.tables.table.frames import open_frames
from holdfast.tables.table.look import look_at
from holdfast.tables.table.schema import _odd_number
from holdfast.tables.table.times import times_of

ODD = """when,x,kind,y
2025-01-01T00:00:00Z,1,a,1.5
2025-01-01T00:01:00Z,2,b,2.5
2025-01-01T00:02:00Z,three,a,3.5

2025-01-01T00:03:00Z,inf,b,4.5
2025-01-01T00:04:00Z,5,a,
2025-01-01T00:05:00Z,6,a,6,1.5
nonsense,6,a,1
2025-01-01T00:07:00Z,,"a,b",1.5
2025-01-01T00:08:00Z,1,a,six
"""
REASONS = {4: "text_in_number", 6: "infinite_number", 7: "target_missing", 8: "too_many_fields", 9: "time_unreadable"}
REASONS |= {11: "target_not_a_number"}
COUNTS = {"rows", "kept", "mended", "rejected", "by_reason", "tokens", "duplicates", "near_duplicates", "seconds"}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.csv").write_text(ODD)
    return tmp_path / "odd.csv"


def told(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> Json:
    capsys.readouterr()
    assert main(["data", *map(str, arguments), "--json"]) == code
    found: Json = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_cleaned_table_holds_every_row_or_its_reason(form: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, rejects = tmp_path / f"clean.{form}", tmp_path / "rejects.jsonl"
    answer = told(capsys, 0, "clean", odd, "--target", "y", "--time", "when", "--out", out, "--rejects", rejects)
    assert set(answer) >= COUNTS and answer["rows"] == 9 == answer["kept"] + answer["mended"] + answer["rejected"]
    found = lines(rejects)
    assert {row["line"]: row["reason"] for row in found} == REASONS
    assert "x is 'three'" in found[0]["detail"] and found[3]["raw"] == "2025-01-01T00:05:00Z,6,a,6,1.5"
    table = {"csv": pl.read_csv, "parquet": pl.read_parquet, "jsonl": pl.read_ndjson}[form](out)
    assert table.columns == ["when", "x", "kind", "y"] and len(table) == answer["kept"] == 3
    assert table["kind"].to_list() == ["a", "b", "a,b"] and table["x"].cast(pl.Float64).to_list() == [1.0, 2.0, None]
    if form != "jsonl":  # which no run on tables reads
        again = told(capsys, 0, "clean", out, "--target", "y", "--time", "when", "--out", tmp_path / f"2.{form}", "--rejects", rejects)
        assert again["rejected"] == 0 and (tmp_path / f"2.{form}").read_bytes() == out.read_bytes()


def test_a_table_is_known_by_its_columns(odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys, 1, "check", odd)
    assert answer["target"] is None and answer["time"] == "when" and answer["rejected"] == 5
    kinds = {column["name"]: column["kind"] for column in answer["columns"]}
    assert kinds == {"when": "time", "x": "number", "y": "number", "kind": "name"}
    assert {"text-in-numbers", "infinite-numbers"} <= {finding["id"] for finding in answer["findings"]}
    (tmp_path / "text.csv").write_text("id,Question,Answer\n1,Name a tree,birch\n2,Name a bird,wren\n")
    assert told(capsys, 0, "check", tmp_path / "text.csv")["layouts"] == {"question-answer": 2}


def test_what_its_run_would_refuse_is_told_by_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"2025-01-01T{n // 60:02}:{n % 60:02}:00Z,{n % 7},{n * 7 % 31 + 1},{(n + 1) * 7 % 31 + 1}\n" for n in range(90))
    (tmp_path / "t.csv").write_text(f"t,x,close,next\n{rows}")
    table: dict[str, Any] = {"target": "close", "time": "t", "horizon": 5}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "tabular", "data": {"files": "t.csv", "held_out": 0.2}, "table": table}))
    answer = told(capsys, 1, "check", "--config", tmp_path / "c.yaml")
    assert answer["rejected"] == 0 and answer["notes"] == {"no_future": 5}
    assert [one["severity"] for one in answer["findings"] if one["id"] == "leaking-column"] == ["block"]
    page = tmp_path / "page.html"
    table["ignore"] = "next"
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "tabular", "data": {"files": "t.csv", "held_out": 0.2}, "table": table}))
    assert told(capsys, 0, "check", "--config", tmp_path / "c.yaml", "--html", page)["learned"] == "regression"
    assert "Every row accounted for" in page.read_text()


def test_a_column_of_ids_stops_no_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("id,x,y\n" + "".join(f"id-{n},{n},{n % 7}\n" for n in range(9000)))
    answer = told(capsys, 0, "check", tmp_path / "t.csv")
    assert [one["id"] for one in answer["findings"]] == ["many-names", "row-numbers"]
    assert next(column for column in answer["columns"] if column["name"] == "id")["values"] is None


REFUSED = {
    "nothing named": (["check"], 2, "no file is named"),
    "no such target": (["check", "odd.csv", "--target", "Y"], 1, "has no column Y"),
    "a time alone": (["check", "odd.csv", "--time", "when"], 2, "--time belongs to --target"),
    "an option of text": (["check", "odd.csv", "--redact"], 2, "--redact is for rows of text"),
    "another form": (["clean", "odd.csv", "--out", "o.xlsx", "--rejects", "r.jsonl"], 2, "a table is written as"),
    "over the input": (["clean", "odd.csv", "--out", "odd.csv", "--rejects", "r.jsonl"], 2, "one of the inputs"),
    "columns differ": (["check", "odd.csv", "other.csv"], 1, "lacks"),
    "many columns": (["check", "wide.csv"], 1, "has 20,000 columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_looked_at_is_told_in_a_sentence(
    name: str, odd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(odd.parent)
    Path("other.csv").write_text("when,x\n2025-01-01,1\n")
    Path("wide.csv").write_text(",".join(f"c{n}" for n in range(20_000)) + "\n")
    arguments, code, said = REFUSED[name]
    assert main(["data", *arguments]) == code
    text = capsys.readouterr().err
    assert said in text and "Traceback" not in text and len(text) < 600
    assert odd.read_text() == ODD


def test_short_lines_have_missing_values_and_an_open_quote_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.csv").write_text("x,z,y\n1,2\n2,3\n4,5\n")
    answer = told(capsys, 1, "check", tmp_path / "short.csv", "--target", "y")
    assert answer["by_reason"] == {"target_missing": 3} and answer["findings"][0]["severity"] == "block"
    (tmp_path / "open.csv").write_text('x,y\n1,2\n"3,4\n5,6\n')
    assert main(["data", "check", str(tmp_path / "open.csv"), "--target", "y"]) == 1
    assert "a quote that is not closed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('"price, USD",x,y', ("price, USD", "x", "y")),
        ('a;"b, c, d, e"', ("a", "b, c, d, e")),
        ('"x""y",b', ('x"y', "b")),
        (f'"{"a" * 200_000}",b', ("a" * 200_000, "b")),
    ],
)
def test_a_separator_in_the_quotes_of_a_header_parts_no_column(header: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """Else each column has the values of the next one, and the last has none."""
    separator = ";" if header[0] == "a" else ","
    (tmp_path / "t.csv").write_text(f"{header}\n{separator.join('123'[: len(names)])}\n")
    frames = open_frames(tmp_path / "t.csv")
    assert frames.names == names
    assert next(frames.chunks([*names], 10)).row(0)[: len(names)] == (*"123"[: len(names)],)


@pytest.mark.parametrize(
    ("texts", "odd"), [(["1,5", "2", "3"], "1,5"), (["\uff11\uff12", "3"], "\uff11\uff12"), (["1e5", "0", "-0.5"], None)]
)
def test_an_odd_number_is_one_that_is_not_read_as_a_number(texts: list[str], odd: str | None) -> None:
    """Python's float takes digits of any script, and the reader of columns does not: they became names, and nobody was told."""
    assert _odd_number(pl.Series("x", texts)) == odd


def test_a_column_of_lists_and_one_class_in_two_spellings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedding in a Parquet file; a file that wrote 0 and 1, and one that wrote 0.0 and 1.0 because a row of it had none."""
    pl.DataFrame({"v": [[1.0, 2.0]] * 20, "x": range(20), "y": range(20)}).write_parquet(tmp_path / "t.parquet")
    assert main(["data", "check", str(tmp_path / "t.parquet"), "--target", "y"]) == 1
    assert "the column v holds lists or objects" in capsys.readouterr().err
    rows = [f"{n},{n % 2 if n < 20 else n % 2 / 1}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    tree = {"task": "tabular", "data": {"files": "t.csv", "held_out": 0}, "table": {"target": "y", "kind": "classification"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    findings = told(capsys, 1, "check", "--config", tmp_path / "c.yaml")["findings"]
    assert any("the classes 0 and 0.0, which are one number" in one["message"] for one in findings)
    kept = ["10", "01", "1.50", "1.10", "v1.0", "1.0.0"]
    assert [*map(_without_point, [*kept, "10.0", "-1.00"])] == [*kept, "10", "-1"]


@pytest.mark.parametrize(("texts", "refused"), [(["2025091109", "2025091110"], True), (["1757597400", "2025091109"], False)])
def test_a_time_from_the_year_to_the_hour_is_no_unix_time(texts: list[str], refused: bool) -> None:
    """Hourly weather is written so; read in seconds since 1970, its rows were a second apart, in 2034."""
    if refused:
        with pytest.raises(Stop, match="such as 2025091109"):
            times_of(pl.Series("t", texts), "UTC")
    else:
        assert times_of(pl.Series("t", texts), "UTC").at[0] == 1_757_597_400_000_000


@pytest.mark.parametrize("apart", ["files", "groups"])
def test_a_feature_that_knows_the_next_row_is_found_in_each_of_many_series(apart: str, tmp_path: Path) -> None:
    """Five series of the same times: in the order of time alone, the next row of one stands five rows later."""
    draw = np.random.default_rng(0)
    rows = []
    for name in "abcde":
        moves = draw.normal(size=61).round(6)
        rows.append([f"2025-01-01T00:{n:02}:00Z,{name},{moves[n]},{moves[n + 1]}\n" for n in range(60)])
    parts = rows if apart == "files" else [[line for lines in zip(*rows, strict=True) for line in lines]]
    files = [str(tmp_path / f"{number}.csv") for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        Path(file).write_text("time,name,move,soon\n" + "".join(part))
    table = {"target": "move", "time": "time", "group": "name"}
    config = Config.model_validate({"task": "tabular", "data": {"files": files, "held_out": 0.2}, "table": table})
    found = look_at(files, config, tmp_path / "work", print)["findings"]
    assert [one["message"] for one in found if one["id"] == "leaking-column"] == [
        "the feature soon is the target 1 rows later (agreement 100.0000%): it gives away what is to be learned"
    ]


def test_a_horizon_longer_than_the_rows_that_have_one_is_looked_at(tmp_path: Path) -> None:
    """Of a hundred rows forty have one sixty rows ahead: none of them stands sixty rows before another."""
    rows = [f"2025-01-01T{n // 60:02}:{n % 60:02}:00Z,{n * 7 % 31},{n * 5 % 17 + 1}\n" for n in range(100)]
    (tmp_path / "t.csv").write_text("time,x,price\n" + "".join(rows))
    table = {"target": "price", "time": "time", "horizon": 60}
    tree = {"task": "tabular", "data": {"files": str(tmp_path / "t.csv"), "held_out": 0}, "table": table}
    answer = look_at([str(tmp_path / "t.csv")], Config.model_validate(tree), tmp_path / "work", print)
    assert answer["notes"] == {"no_future": 60} and not answer["findings"]


@pytest.mark.parametrize("first", [0, 1, 700])
def test_an_index_that_was_written_with_the_table_is_told(first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As pandas writes it, in a file that is sorted by what is learned: with it each row is known, also those held out."""
    rows = [f"{first + n},{n * 7 % 11},{n * 5 % 13},{n // 20}\n" for n in range(60)]
    (tmp_path / "t.csv").write_text(",x,y,kind\n" + "".join(rows))
    tree = {"task": "tabular", "data": {"files": "t.csv", "held_out": 0.2}, "table": {"target": "kind", "kind": "classification"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    findings = told(capsys, 0, "check", "--config", tmp_path / "c.yaml")["findings"]
    assert [one["message"] for one in findings if one["id"] == "row-numbers"] == [
        "columns that count the rows of their file: (one without a name)"
    ]
