"""Token numbers and mask under templates that other trainers publish, beside transformers' own: equal, or with a reason that is known."""

from __future__ import annotations

import sys

import pytest

from conftest import ROOT
from support.chat_templates import SHAPES
from support.other_prompts import OTHER_PROMPTS

sys.path.append(str(ROOT / "benchmarks" / "templates"))

import compare_templates as ours
import published_templates as theirs

OWN = SHAPES | OTHER_PROMPTS
PAGE = ROOT / "benchmarks" / "results" / "chat-templates.md"


@pytest.mark.parametrize("name", OWN)
def test_each_of_24_conversations_is_equal_or_explained(name: str) -> None:
    ways, _ = ours.judged(theirs.Published("own", name, OWN[name]))
    assert len(ways) == 24
    assert not {conversation: way for conversation, way in ways.items() if way.startswith("unexplained")}


def test_the_comparison_sees_what_is_learned_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    written = ours.write
    monkeypatch.setattr(ours, "write", lambda *given: _shifted(written(*given)))
    for name in ("plain", "marks what is generated"):
        ways, _ = ours.judged(theirs.Published("own", name, OWN[name]))
        assert all(way.startswith("unexplained") for way in ways.values() if not way.startswith("rejected")), ways


def _shifted(row: ours.RenderedRow) -> ours.RenderedRow:
    """The row, with a letter more before each answer."""
    return row._replace(sequences=[[("x" + text if learned else text, learned) for text, learned in pieces] for pieces in row.sequences])


@pytest.mark.parametrize("package", theirs.PACKAGES)
def test_published_templates_are_equal_or_explained_and_the_page_says_so(package: str) -> None:
    here = [version for version in theirs.versions() if version.startswith(f"{package}-")]
    if not here:
        pytest.skip(f"{theirs.FOLDER} has no {package}: python benchmarks/templates/published_templates.py fetches it")
    templates = [one for one in theirs.published() if one.package == package]
    lines, factory = ours.lines_of(templates)
    assert templates and "unexplained" not in "".join([*lines, *factory]), lines
    page = PAGE.read_text()
    if here[0] in page and f"transformers {ours.transformers.__version__}." in page:
        assert lines == [line for line in page.splitlines() if line.startswith(f"| {package} |")]


@pytest.mark.parametrize("name", ["mistral_v2v3", "mistral_v3_tekken", "pixtral"])
def test_a_system_turn_is_learned_from_where_the_last_user_turn_alone_has_it(name: str) -> None:
    found = [one for one in theirs.published() if (one.package, one.name) == ("axolotl", name)]
    if not found:
        pytest.skip(f"{theirs.FOLDER} has no axolotl: python benchmarks/templates/published_templates.py fetches it")
    ways, _ = ours.judged(found[0])
    assert {ways[row] for row in ("system", "system, two turns", "system, three turns")} <= {"equal", ours.PROMPT}
