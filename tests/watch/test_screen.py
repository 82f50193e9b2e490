"""The full-screen view, driven by textual's pilot."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast
from support.watched import HOSTILE, make_run

pytest.importorskip("textual", reason="textual is not installed")

from textual.widgets import DataTable, Static

from holdfast.base.errors import Stop
from holdfast.cli.commands import watch
from holdfast.run.folder import RunFolder
from holdfast.watch.board import Board
from holdfast.watch.screen import RunsScreen


@pytest.mark.parametrize("size", [(40, 20), (120, 40)])
def test_it_shows_what_the_page_shows_and_stops_a_run_at_the_second_press(tmp_path: Path, size: tuple[int, int]) -> None:
    make_run(tmp_path, name="first")
    make_run(tmp_path, name="second", steps=9)
    asked: list[str] = []

    class Living(Board):
        def rows(self) -> dict[str, Any]:
            return {name: row | {"state": "running", "doing": "training"} for name, row in super().rows().items()}

        def detail(self, name: str) -> dict[str, Any]:
            return (super().detail(name) or {}) | {"notices": [{"time": 3.9, "says": "healthy"}]}

    def stop(folder: RunFolder) -> str:
        asked.append(folder.path.name)
        return ""

    async def drive() -> None:
        screen = RunsScreen(Living([tmp_path], must_be_runs=True), stop)
        async with screen.run_test(size=size) as pilot:

            def text(name: str) -> str:
                return str(screen.query_one(name, Static).content)

            async def until(so: Callable[[], bool]) -> None:
                while not so():
                    await pilot.pause(0.05)

            await until(lambda: screen.query_one(DataTable).row_count == 2 and "native crash" in text("#about"))
            assert text("#said") == "2 runs, 2 running"
            assert re.search(r": training.*, last step [\d.]+ \w+ ago$", text("#about").splitlines()[0]), "the last step is long ago"
            assert time.strftime("%F %T  healthy", time.localtime(3.9)) in text("#about"), "a day that is not today's"
            assert "holdfast explain crash-signal" in text("#about") and "done: killed" in text("#about")
            assert HOSTILE.partition("\x1b")[0] in text("#about") and "\x1b" not in text("#about")
            await pilot.press("down")
            await until(lambda: "second" in text("#about").splitlines()[0])
            await pilot.press("s")
            assert "press s again" in text("#said") and asked == []
            await pilot.press("s")
            await until(lambda: asked == ["second"])
            make_run(tmp_path, name="third")
            await until(lambda: screen.query_one(DataTable).row_count == 3)
            await pilot.press("q")

    asyncio.run(asyncio.wait_for(drive(), 120))


def test_a_name_is_shown_as_it_is(tmp_path: Path) -> None:
    name = "run[bold]x"
    make_run(tmp_path, name=name)
    make_run(tmp_path, name="two\x1b[2J")

    async def drive() -> None:
        screen = RunsScreen(Board([tmp_path], must_be_runs=True), lambda folder: "")
        async with screen.run_test(size=(120, 40)) as pilot:
            table = screen.query_one(DataTable)
            while table.row_count < 2:
                await pilot.pause(0.05)
            assert [str(table.get_cell_at((row, 0))) for row in range(2)] == [name, "two\\x1b[2J"]
            make_run(tmp_path, name=name, steps=9)
            while "9" not in str(table.get_cell_at((0, 2))):
                await pilot.pause(0.05)
            shown = ["".join(part.text for part in table.render_line(line)) for line in range(3)]
            assert name in shown[1] and "two\\x1b[2J" in shown[2]

    asyncio.run(asyncio.wait_for(drive(), 120))


def test_where_it_cannot_be_shown_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs")
    done = holdfast("watch", "--terminal", cwd=tmp_path)
    assert done.returncode == 2 and "no terminal" in done.stderr
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textual" else found(name))
    with pytest.raises(Stop, match="textual"):
        watch._refuse_no_screen()
