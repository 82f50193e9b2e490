"""A function's docstring begins with a verb. What does not yet is counted by file in docstrings.txt, which only shrinks."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docstrings.py"))
HINT = "begin with a verb (one that is missing there goes into VERBS of scripts/docstrings.py, whose --write lowers the counts)"


def test_no_file_has_more_docstrings_without_a_verb_than_it_had() -> None:
    allowed = {path: int(count) for path, count in map(str.split, SCRIPT["ALLOWED"].read_text(encoding="utf-8").splitlines())}
    more = {path: lines for path, lines in SCRIPT["lacking"]().items() if len(lines) > allowed.get(path, 0)}
    assert not more, HINT


@pytest.mark.parametrize(
    ("line", "lacks"),
    [("Return the rank.", False), ("True if it ended.", False), ("The rank.", True), ("Whether it ended.", True), ("Returned rank.", True)],
)
def test_a_verb_is_told_from_a_noun(tmp_path: Path, line: str, lacks: bool) -> None:
    file = tmp_path / "one.py"
    file.write_text(f'class A:\n    def f(self):\n        """{line}"""\n\n    @property\n    def g(self):\n        """The rank."""\n')
    assert [*SCRIPT["docstrings"](file)] == [("A.f", line, lacks)]


def _classes() -> Counter[str]:
    """Count the names of classes in the package."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "src" / "holdfast").rglob("*.py"))
    return Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_no_class_is_named_by_a_bare_participle() -> None:
    """A class is a noun: RestorePoint, not Found."""
    nouns = {"Ending", "Finding", "Setting"}
    irregular = {"Found", "Held", "Kept", "Made", "Told", "Given", "Taken", "Drawn", "Shown", "Seen", "Written", "Taught", "Read"}
    bare = {name.strip("_") for name in _classes()} - nouns
    assert not {name for name in bare if name in irregular or re.fullmatch(r"[A-Z][a-z]+(ed|ing)", name)}


def test_no_public_class_name_is_there_twice() -> None:
    """Run is the one of the Python interface, and a section of the config, which `holdfast schema` prints by its name."""
    assert {name for name, count in _classes().items() if count > 1 and not name.startswith("_")} <= {"Run"}
