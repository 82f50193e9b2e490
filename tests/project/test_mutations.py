"""scripts/mutations.py on a package made here: what a test notices is caught, what none does survives."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import mutants
import mutations
import pytest

SOURCE = """
def seen(count: int) -> None:
    if count > 10:
        print("many")
"""
TESTS = """
from toy.counts import seen

def test_a_fault_of_its_own():
    assert False

def test_many_are_told(capsys):
    seen(5)
    assert capsys.readouterr().out == ""
    seen(20)
    assert capsys.readouterr().out == "many\\n"
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    tree = {"src/toy/__init__.py": "", "src/toy/counts.py": SOURCE, "tests/test_counts.py": TESTS}
    for name, text in tree.items():
        file = tmp_path / "toy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "toy"


def outcomes(toy: Path, out: Path, *more: str) -> dict[tuple[str, str], str]:
    mutations.main(["--tree", str(toy), "--package", "toy", "--out", str(out), *more])
    rows = [json.loads(line) for line in (out / "outcomes.jsonl").read_text().splitlines()]
    return {(row["site"]["kind"], row["site"]["code"] + row["site"]["text"]): row["outcome"] for row in rows}


def test_what_a_test_notices_is_caught(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes(toy, tmp_path / "out")
    assert found == {
        ("comparison", "count > 10 < "): "caught",
        ("condition", "count > 10(not (count > 10))"): "caught",
        ("call", "print('many')pass"): "caught",
        ("constant", "count > 10(11)"): "survived",
        ("constant", "count > 10(9)"): "survived",
    }
    assert (toy / "src/toy/counts.py").read_text() == SOURCE and not list(toy.rglob("__pycache__"))
    assert "all          3 of   5 caught (60%)" in capsys.readouterr().out

    outcomes(toy, tmp_path / "out")
    kept = (tmp_path / "out/outcomes.jsonl").read_text().splitlines()
    assert len(kept) == len(found), "a second call goes on where it was"


def test_a_place_is_found_again_in_a_file_that_was_moved_and_formatted_anew() -> None:
    before = mutants.sites_of("core/counts.py", SOURCE.encode())
    moved = SOURCE.replace("count > 10", "(\n        count\n        > 10\n    )").replace("many", "plenty")
    after = mutants.sites_of("rows/numbers.py", moved.encode())
    here, replaced = mutants.found_again(before, after, seed=1)
    assert [(old.code, new.code) for old, new in replaced] == [("print('many')", "print('plenty')")]
    assert [(site.kind, site.ordinal) for site in here] == [(site.kind, site.ordinal) for site in before]


def test_each_change_is_one_that_compiles_and_differs() -> None:
    package = Path(mutations.__file__).parent.parent / "src" / "holdfast"
    chosen = mutants.draw(mutants.sites_in(package), 40, seed=3)
    assert {site.kind for site in chosen} == set(mutants.KINDS)
    for site in chosen:
        source = (package / site.path).read_bytes()
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(mutants.mutated(source, site)))
