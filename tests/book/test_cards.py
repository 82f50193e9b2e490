"""Every card of every kind proves itself. Adding a card edits no other file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import orjson
import pytest

from holdfast.base.errors import USAGE, Stop
from holdfast.book import cards_of, shelves
from holdfast.book.kinds.catalog import Card, SuggestedRemedy, read_cards
from holdfast.book.kinds.failure import CAUSES, Failure
from holdfast.book.kinds.remedy import RemedyCard
from holdfast.cli.main import build_parser
from holdfast.config.config import Config
from holdfast.diagnosis.diagnose import diagnose, lines_as_seen
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from support.each import assert_each

ALL = {f"{shelf}/{card.id}": (shelf, card) for shelf in shelves() for card in cards_of(shelf).values()}


def test_a_card_proves_itself() -> None:
    def check(entry: tuple[str, Card]) -> None:
        shelf, card = entry
        for hit in card.hits:
            assert card.matches(seen(shelf, hit)), f"it should match {hit!r}"
        for miss in card.misses:
            assert not card.matches(seen(shelf, miss)), f"it should not match {miss!r}"

    assert_each(ALL, check)


def evidence_of(hit: Any) -> Evidence:
    """A log, or a log with what else was known: {log, exit, machine}."""
    known = hit if isinstance(hit, dict) else {"log": hit}
    return Evidence(tuple(clean_lines(known["log"])), known.get("exit"), known.get("machine", {}))


def seen(shelf: str, hit: Any) -> Any:
    """The evidence as cards of this kind meet it."""
    return lines_as_seen(evidence_of(hit))[1] if shelf == "failures" else hit


def test_the_whole_book_finds_the_cause_of_a_cards_hits() -> None:
    book = cards_of("failures")

    def check(card: Failure) -> None:
        for hit in card.hits:
            found = diagnose(evidence_of(hit), book)
            assert found.cause == card.cause or found.confidence < 0.5, f"{hit!r}: {found}"

    assert_each(book, check)


def test_a_card_says_why() -> None:
    def check(entry: tuple[str, Card]) -> None:
        card = entry[1]
        sentences = card.why.count(". ") + card.why.strip().endswith(".")
        assert 1 <= sentences <= 3, f"{sentences} sentences"
        for remedy in card.remedies:
            assert_valid_patch(remedy)

    assert_each(ALL, check)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"attenton": "eager"}, "attenton: no such setting; did you mean attention?"),
        ({"dtype": "fp8"}, "dtype: input should be 'fp32', 'bf16' or 'fp16'"),
        ({"packing": "half"}, "packing: input should be a valid boolean"),
        ({"threads": 0}, "threads: input should be greater than or equal to 1"),
    ],
)
def test_a_remedy_card_of_a_setting_that_is_none_is_refused(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    card = cards_of("remedies")["eager-attention"].as_json()
    (tmp_path / "mine.yaml").write_bytes(orjson.dumps(card | {"settings": settings}))
    with pytest.raises(Stop) as refused:
        read_cards(tmp_path, RemedyCard)
    assert f"mine.yaml: settings: Value error, {says}" in refused.value.message


def assert_valid_patch(remedy: SuggestedRemedy) -> None:
    """A patch is made of config keys and values a config takes."""
    tree: dict[str, object] = {"model": "m", "data": {"files": ["f"]}}
    for key, value in remedy.patch.items():
        section, _, name = key.rpartition(".")
        place = tree.setdefault(section, {}) if section else tree
        assert isinstance(place, dict)
        place[name] = value
    Config.model_validate(tree)


def test_a_command_of_a_card_can_be_typed() -> None:
    """Every `holdfast VERB ...` that a card advises is one the command line takes."""

    def check(entry: tuple[str, Card]) -> None:
        for remedy in entry[1].remedies:
            for typed in re.findall(r"\bholdfast (?!is\b|keep\b|mask\b|does\b)([^;|&#]+)", remedy.command):
                assert_parses(shlex.split(re.sub(r"\bK\b", "1", typed)))  # the K-th step

    assert_each(ALL, check)


def assert_parses(arguments: list[str]) -> None:
    try:
        build_parser().parse_args(arguments)
    except SystemExit:
        raise AssertionError(f"holdfast does not take {arguments}") from None


def test_a_card_can_be_printed_as_json() -> None:
    def check(entry: tuple[str, Card]) -> None:
        assert orjson.loads(orjson.dumps(entry[1].as_json()))["id"] == entry[1].id

    assert_each(ALL, check)


def test_ids_are_unique_over_all_shelves() -> None:
    names = [card.id for _, card in ALL.values()]
    assert len(names) == len(set(names))


CARD = """
title: t
cause: disk_full
sure: 0.5
why: One. Two.
patterns: [gremlin]
source: [https://example.org/1]
hits: [a gremlin]
misses: [a goblin]
"""


def test_a_users_own_cards_are_read_and_replace_ours(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "our-gremlin.yaml").write_text(CARD)
    cards = cards_of("failures", tmp_path)
    assert cards["our-gremlin"].matches("a gremlin")
    assert set(cards_of("failures")) < set(cards)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CARD.replace("disk_full", "gremlins"), "cause"),
        (CARD.replace("gremlin]", "'(']"), "patterns.0"),
        (CARD + "colour: red\n", "colour"),
        (CARD.replace("https://example.org/1", "a friend"), "source.0"),
        ("- a\n- b\n", "mapping"),
        ("a: [", "cannot be read"),
        ("\0\1", "cannot be read"),
    ],
)
def test_a_card_that_is_none_is_told_with_file_and_field(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "odd.yaml").write_text(text)
    with pytest.raises(Stop) as stop:
        cards_of("failures", tmp_path)
    assert stop.value.code == USAGE
    assert told in stop.value.message
    assert "odd.yaml" in stop.value.message


def test_a_book_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="not a folder"):
        cards_of("failures", tmp_path / "none")


def test_the_pages_are_what_the_cards_say() -> None:
    from card_pages import FOLDER, pages

    written = {str(file.relative_to(FOLDER)): file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.md")}
    assert written == pages(), "python scripts/card_pages.py"


def test_no_pattern_runs_on_over_lines_that_hold_no_word() -> None:
    """`^\\W*` does, from each line anew: a screen of drawn bars would cost its square."""
    patterns = [(card.id, one.pattern) for card in cards_of("failures").values() for one in (*card.patterns, *card.needs, *card.unless)]
    assert not [(name, pattern) for name, pattern in patterns if r"^\W" in pattern], r"begin with ^[^\w\n]* instead"


def test_every_cause_has_cards() -> None:
    assert {card.cause for card in cards_of("failures").values()} == set(CAUSES)
