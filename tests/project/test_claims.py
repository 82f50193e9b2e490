"""Words of judgement: each is printed in its own place alone, and the page of claims names the place, what was looked at, and a test."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT

SOURCE, PAGE = ROOT / "src" / "holdfast", ROOT / "docs" / "explanation" / "claims.md"

# claim, as the page names it -> how it is recognised in a text that is printed
CLAIMS = {
    "better": r"\bbetter (than|by)\b|\b[Bb]etter, ",
    "as good as": r"\bas good as\b",
    "equal": r"\bequals?\b",
    "ready": r"\bready: ",
    "healthy": r"\bhealthy\b",
    "it fits": r"\b(it|chosen) fits\b",
    "the same bits": r"\bsame bits\b|\bto the bit\b",
    "went on": r"\bwent on from\b|\b[Rr]esumed from\b|\bgoes on where\b",
    "no committed step computed again": r"\bno committed step\b",
    "survived": r"\bsurvived\b",
    "proven": r"\b[Pp]roven\b",
    "unseen": r"\bunseen\b|\bnot seen\b",
    "stops": r"\bstops where\b",
    "finished": r"\b(Finished|[Ee]nded well|Trained to its end|training is complete)\b",
}

NEVER = r"\bindependent\b"  # of rows: nobody can have looked at that

# texts that use the word in another sense: of what a command is for, of what was not found, of a name
OTHERWISE = {
    ("better", "cli.main.VERBS"),
    ("better", "data.token_set.overlap.told_of_held_out"),  # that nothing will say so
    ("better", "report.data.lines.facts"),
    ("better", "report.words.nothing_judged"),
    ("equal", "cli.main.VERBS"),
    ("it fits", "cli.main.VERBS"),
    ("proven", "cli.main.VERBS"),
    ("unseen", "cli.main.VERBS"),
    ("equal", "book.checks_tables.leaking_column.CARD"),
    ("equal", "cli.commands.data.sample.run"),
    ("equal", "machine.differences.unlike"),
    ("healthy", "cli.commands.explain._EVERYDAY"),  # names of cards
    ("healthy", "diagnosis.logs.curve.curve_readings"),
    ("it fits", "book.checks.memory_plan.look"),
    ("no committed step computed again", "supervision.preparation.prepare._take_up"),
    ("proven", "config.foreign.left_out._WHY"),
    ("proven", "config.foreign.rules.attention"),
    ("proven", "config.foreign.rules.RULES"),
    ("proven", "config.train.Train.ladder"),
    ("proven", "config.train.Train.liger"),
    ("proven", "planning.ladder.read_proof"),
    ("the same bits", "config.train.Train.deterministic"),
    ("the same bits", "config.train.Train.reduction_parts"),
    ("the same bits", "machine.differences.unlike"),
    ("unseen", "book.checks_data.hidden_characters.look"),
    ("unseen", "supervision.diagnose_run._unfinished"),
    ("went on", "config.foreign.left_out._WHY"),
}


@functools.cache
def printed(source: Path = SOURCE) -> list[tuple[str, str]]:
    """(place, text) of each text of several words in the source that is no docstring; a place is module.function or module.NAME."""
    return list(_printed(source))


def _printed(source: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(source.rglob("*.py")):
        module = ".".join(file.relative_to(source).with_suffix("").parts)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            for place, inner in _outer(node):
                for text in _texts(inner):
                    yield f"{module}.{place}", text


def _outer(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of what a module's statement defines; of a class, its statements."""
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from ((f"{node.name}.{name}", found) for name, found in _outer(inner))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name, node
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        yield ast.unparse(target), node
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield type(node).__name__, node


def _texts(node: ast.AST) -> Iterator[str]:
    docs = {
        id(one.body[0].value)
        for one in ast.walk(node)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.body and isinstance(one.body[0], ast.Expr)
    }
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docs and " " in one.value:
            yield one.value


def rows() -> dict[str, tuple[set[str], str, set[str]]]:
    """Of each claim of the page: the places that print it, what was looked at, the tests that show it false where it is not so."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| **") and len(cells) == 4:
            name = cells[0].strip("*")
            found[name] = (set(re.findall(r"`([^`]+)`", cells[1])), cells[2], set(re.findall(r"`([^`]+)`", cells[3])))
    return found


def test_a_claim_is_printed_in_its_own_place_alone() -> None:
    told = rows()
    assert set(told) == set(CLAIMS)
    assert not [found for found in printed() if re.search(NEVER, found[1])]
    strangers = {
        (claim, place, text)
        for place, text in printed()
        for claim, words in CLAIMS.items()
        if re.search(words, text) and place not in told[claim][0] and (claim, place) not in OTHERWISE
    }
    assert not strangers, "a word of judgement: add what it rests on, and a test, to docs/explanation/claims.md"


def test_what_the_page_names_is_there() -> None:
    texts: dict[str, list[str]] = {}
    for place, text in printed():
        texts.setdefault(place, []).append(text)
    for claim, (places, looked_at, tests) in rows().items():
        assert looked_at and tests, claim
        for place in places:
            assert any(re.search(CLAIMS[claim], text) for text in texts.get(place, ())), (claim, place)
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
    for claim, place in OTHERWISE:
        assert any(re.search(CLAIMS[claim], text) for text in texts.get(place, ())), f"{place} says {claim} no more"


@pytest.mark.parametrize(("text", "claim"), [("the adapter is better than the base", "better"), ("ready: go on", "ready")])
def test_a_new_claim_is_seen(text: str, claim: str, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(f'def tell():\n    """Say whether it is better than, ready: or not."""\n    return f"{{1}} {text}"\n')
    assert [(place, claim) for place, found in printed(tmp_path) if re.search(CLAIMS[claim], found)] == [("new.tell", claim)]
