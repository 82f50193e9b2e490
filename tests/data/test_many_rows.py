"""What is asked of many rows at once finds what one row at a time finds: lines in chunks, rows by the names of their fields, screens."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import Stop
from holdfast.book import cards_of
from holdfast.book.kinds.data_check import DataCheck
from holdfast.data.duplicates import similar
from holdfast.data.duplicates.seen import SeenKeys
from holdfast.data.duplicates.similar import signatures
from holdfast.data.files import read
from holdfast.data.judge.layouts import example_of, parse_example, prompt_and_answer
from holdfast.data.tokens.shard import blocks

CARDS: dict[str, DataCheck] = cards_of("checks_data")
NAMES = [("instruction", "input", "output"), ("instruction", "context", "response"), ("prompt", "completion"), ("question", "answer")]
FILLER = "An ordinary sentence, with a disk-usage of 12 % and some_name in it.\n" * 300


@pytest.mark.parametrize("names", [*NAMES, ("text",), ("input", "output", ""), ("messages", "instruction", "output"), ("x",)], ids=str)
def test_rows_read_by_their_names_are_the_same(names: tuple[str, ...]) -> None:
    quick = 0
    for values in itertools.product(("q", "", " \n", None, 7, ["q"], "é"), repeat=len(names)):
        row = dict(zip(names, values, strict=True)) | {"category": "c"}
        found = prompt_and_answer(row)
        if found:
            quick += 1
            example = parse_example(row, "auto")
            assert (example_of(*found), found[0]) == (example, example.layout), row
    assert quick > 0 or names == ("x",)


def test_what_is_no_object_is_left_to_the_parser() -> None:
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert [prompt_and_answer(value) for value in ([], "text", None, 3, chat)] == [None] * 5


@pytest.mark.parametrize("name", [name for name, card in CARDS.items() if card.is_screened])
def test_a_screen_sees_a_hit_among_much_text(name: str) -> None:
    card = CARDS[name]
    for hit in card.hits:
        text = f"{hit.get('prompt', '')}\n{hit.get('answer', '')}"
        assert card.screen(f"{FILLER}{text}\n{FILLER}"), hit
        assert card.screen(f"{FILLER}é\n{text}"), hit
    if name not in ("hidden-characters", "mixed-normal-forms", "lost-characters", "mojibake", "email-address"):
        assert not card.screen(FILLER), "a screen that lets everything through spares nothing"


@pytest.mark.parametrize("name", [name for name, card in CARDS.items() if card.sift])
def test_sifting_leaves_what_is_worth_a_look(name: str) -> None:
    card = CARDS[name]
    rows: list[dict[str, Any]] = [*card.misses, *card.hits, *card.misses]
    places = card.sifted(*[[row.get(field, empty) for row in rows] for field, empty in (("prompt", ""), ("answer", ""), ("tokens", None))])
    assert set(range(len(card.misses), len(card.misses) + len(card.hits))) <= set(places)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([b"{}", b'{"a": 1}{"b": 2}', b" ", b"", b"x" * 30, b"\r", b"y" * 90]), max_size=12), st.integers(1, 40))
def test_lines_do_not_depend_on_the_chunks_they_are_read_in(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], chunk: int
) -> None:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_bytes(b"\n".join(parts))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "LARGEST_ROW", 64)
        for size in (chunk, 1 << 18):
            patch.setattr(read, "_CHUNK", size)
            found.append([row._replace(raw=row.raw[:64]) for row in read.read_unparsed(str(file))])
    assert found[0] == found[1]
    numbered = [(number, line) for number, part in enumerate(parts, 1) for line in part.replace(b"}{", b"}\n{").split(b"\n")]
    assert [(row.line, row.raw) for row in found[0]] == [(number, line[:64]) for number, line in numbered if line.strip()]
    sizes = [row.damage[1].split()[3] for row in found[0] if row.damage]
    assert sizes == [str(90 + (number < len(parts))) for number, line in numbered if len(line) == 90], "the line break counts"


def test_signatures_do_not_depend_on_what_is_hashed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "a", "", *("word " * n + f"number {n}" for n in range(60)), "", "é" * 100, ""]
    whole, enough = signatures(texts)
    for at_once in (1, 100, 1000):
        monkeypatch.setattr(similar, "_AT_ONCE", at_once)
        found, again = signatures(texts)
        assert (found == whole).all() and (again == enough).all()
    alone = [signatures([text])[0][0] for text, long in zip(texts, enough, strict=True) if long]
    assert (whole[enough] == alone).all()


def test_blocks_reach_another_process_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"text": "a"}\n\n{"text": "b"}{"text": "c"}\n')
    table = tmp_path / "rows.csv"
    table.write_bytes(b"text,x\na,1\n")
    for block in [*blocks(str(file)), *blocks(str(table))]:
        assert pickle.loads(pickle.dumps(block)) == block


@pytest.mark.parametrize("in_memory", [1, 300, 5000, 1 << 22])
def test_keys_in_files_are_known_like_those_in_memory(in_memory: int) -> None:
    numbers = np.random.default_rng(0)
    seen, known = SeenKeys(in_memory), set[int]()
    for _ in range(60):
        keys = numbers.integers(-(1 << 63), 1 << 63, 500)
        keys[::3] = numbers.integers(-4000, 4000, len(keys[::3]))
        before = [key in known or key in keys[:at].tolist() for at, key in enumerate(keys.tolist())]
        assert seen.of(keys).tolist() == [key in known for key in keys.tolist()]
        assert seen.add(keys).tolist() == before
        known.update(keys.tolist())
    assert bool(seen._runs) == (in_memory <= 5000)
    assert len(seen._runs) < 16


@pytest.mark.parametrize("in_memory", [1, 300, 1 << 22])
def test_the_place_of_a_key_is_that_of_the_first(in_memory: int) -> None:
    numbers = np.random.default_rng(1)
    seen, first = SeenKeys(in_memory, placed=True), dict[int, int]()
    for turn in range(40):
        keys = numbers.integers(-5000, 5000, 500)
        places = np.arange(500) + 500 * turn
        expected = []
        for key, place in zip(keys.tolist(), places.tolist(), strict=True):
            expected.append(first.get(key, -1))
            first.setdefault(key, place)
        assert seen.add_at(keys, places).tolist() == expected
        assert seen.places_of(keys).tolist() == [first[key] for key in keys.tolist()]
    assert bool(seen._runs) == (in_memory <= 300)


def test_a_full_disk_is_told_by_what_repeats(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(Stop, match=r"cannot be written \(No space left on device\); 4\.0 MB") as told:
        SeenKeys(in_memory=1000).add(np.arange(500_000))
    assert "TMPDIR" in told.value.hint
