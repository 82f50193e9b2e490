"""A child that measures models tells how far it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.data.files.raw_row import Source
from holdfast.export import child
from holdfast.export.child import follow, so_far
from holdfast.export.samples import joined


def line(what: str, done: int, total: int, time: float, part: str = "tuned") -> dict[str, object]:
    return {"part": part, "what": what, "done": done, "total": total, "time": time}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "loading torch"),
        ([line("loading the model", 0, 0, 5.0, "base")], "base: loading the model"),
        (
            [line("loss of rows", 0, 98, 5.0), line("loss of rows", 49, 98, 25.0)],
            "tuned: loss of rows, 49 of 98, about 20 s left of that",
        ),
        (
            [line("loss of rows", 0, 98, 5.0), line("loss of rows", 49, 98, 20.0)],
            "tuned: loss of rows, 49 of 98, about 10 s left of that",
        ),
        ([line("answers", 0, 10, 0.0), line("answers", 9, 10, 9.0)], "tuned: answers, 9 of 10, the next for 16 s by now"),
        ([line("answers", 0, 10, 0.0), line("answers", 10, 10, 9.0)], "tuned: answers, 10 of 10"),
        ([line("loss of rows", 0, 98, 5.0), line("answers", 0, 10, 25.0)], "tuned: answers, 0 of 10"),
        ([line("answers", 0, 1000, 0.0), line("answers", 2, 1000, 25.0)], "tuned: answers, 2 of 1,000"),
        (
            [
                line("answers", 0, 4, 0.0, "base"),
                line("answers", 4, 4, 9.0, "base"),
                line("answers", 0, 4, 10.0),
                line("answers", 1, 4, 25.0),
            ],
            "tuned: answers, 1 of 4, about 45 s left of that",
        ),
    ],
)
def test_what_is_done_is_told_with_the_time_it_still_takes(lines: list[dict[str, object]], said: str) -> None:
    assert so_far(lines, "loading torch", 25.0) == said


def test_rows_are_told_in_words() -> None:
    told = [str(joined([([1, 2], [0, 1], Source("f", 1))] * count, kind)) for count, kind in ((2, "held_out"), (1, "training"))]
    assert told == ["2 held-out rows", "1 training row"]


def test_a_line_is_said_when_its_words_changed_and_not_because_time_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_EVERY_S", 0.0)
    looks = iter([[line("answers", 10, 36, 0.0)]] * 3 + [[line("answers", 11, 36, 0.0)]] * 3)
    said: list[str] = []

    def read(_file: Path) -> list[dict[str, object]]:
        if not (found := next(looks, None)):
            (tmp_path / "enough").touch()
        return found or [line("answers", 11, 36, 0.0)]

    monkeypatch.setattr(child, "read_lines", read)
    waits = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'enough')!r}): time.sleep(0.01)"
    with (tmp_path / "log").open("wb") as log:
        assert follow([sys.executable, "-c", waits], log, {}, said.append, tmp_path / "none") == 0
    assert [text.partition(": ")[2] for text in said] == ["tuned: answers, 10 of 36", "tuned: answers, 11 of 36"]


def test_a_child_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_EVERY_S", 0.0)
    said: list[str] = []
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", "import sys; sys.stdin.read(); print('done'); sys.exit(3)"]
        assert follow(command, log, {}, said.append, tmp_path / "none") == 3
    assert (tmp_path / "log").read_text() == "done\n"
    assert {text.partition(": ")[2] for text in said} <= {"loading torch"}
