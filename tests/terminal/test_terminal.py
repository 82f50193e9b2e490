"""What a terminal shows is put back in order, whenever Ctrl-C comes."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from holdfast.base.files import append_line
from holdfast.config.config import Config
from holdfast.run.folder import RunFolder
from holdfast.terminal.progress_line import Shown, progress_line
from holdfast.terminal.run_view import Terminal

OTHERS = ("3,257 tokens/s", "lr 2.0e-04", "grad norm 3.630", "0.62 GiB", "17 s so far")
SHOW_CURSOR = "\x1b[?25h"


@pytest.mark.parametrize("place", ["set_live", "show_cursor", "push_render_hook", "pop_render_hook"])
def test_an_interrupt_while_a_bar_begins_or_ends_is_told_as_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, screen = Terminal(to_stderr=True, quiet=False), io.StringIO()
    terminal.console = Console(file=screen, force_terminal=True)
    calls = 0
    as_it_was = getattr(terminal.console, place)

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return as_it_was(*arguments)

    monkeypatch.setattr(terminal.console, place, interrupted)
    with pytest.raises(KeyboardInterrupt), terminal.counting("rows", 3):
        pass
    assert "\x1b[?25l" not in screen.getvalue().rpartition(SHOW_CURSOR)[2], "the cursor is shown again"


STEP_LINE = {
    "before": Shown(3, 12_000, "loss 3.8642 ↓", "time left: not known yet", OTHERS),
    "after": Shown(1_123, 12_000, "loss 3.8642 ↓", "110 min to 2.3 h left", OTHERS),
    "starting": Shown(0, 12_000, "starting"),
}


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("when", STEP_LINE)
def test_the_live_line_fits_its_terminal_and_cuts_no_word(when: str, width: int) -> None:
    """Asked at the widths people have: 80 columns is what a terminal opens with."""
    shown = STEP_LINE[when]
    line = progress_line(shown, width)
    assert len(line) < width and line.startswith(f"step {shown.step:,}/12,000")
    rest = line.removeprefix(f"step {shown.step:,}/12,000")
    for part in (shown.loss, shown.left, *shown.others):
        rest = rest.replace(part, "")
    assert not rest.strip(" ━─"), f"a piece of a part: {rest!r}"
    if width >= 80:
        assert shown.loss in line and shown.left in line and "─" in line
    if width == 200:
        assert all(part in line for part in shown.others)


@pytest.mark.parametrize(("task", "unit"), [("tabular", "rows/s"), ("text", "tokens/s")])
def test_a_narrow_terminal_sees_step_loss_time_left_and_the_unit_of_its_task(
    task: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.terminal.run_view._LOOK_EVERY_S", 0.0)
    run = RunFolder(tmp_path)
    text = {"model": "tiny", "data": {"files": ["rows.jsonl"]}}
    table = {"task": "tabular", "data": {"files": ["rows.csv"]}, "table": {"target": "price"}}
    terminal, screen = Terminal(to_stderr=True, quiet=False), io.StringIO()
    terminal.console = Console(file=screen, force_terminal=True, width=80, height=25)
    monkeypatch.setattr("holdfast.terminal.run_view.newest_settings", lambda _: SimpleNamespace(steps=900))
    terminal.begin(run, Config.model_validate(table if task == "tabular" else text))
    for step in range(1, 9):
        row = {"step": step, "time": 10.0 * step, "loss": 3.8642, "grad_norm": 3.63, "lr": 2e-4}
        row |= {"tokens": 32_570, "seconds": 10.0, "peak_bytes": 2**29}
        append_line(run.steps_file, row)
        terminal.tick(SimpleNamespace(unwritten=lambda: 0))  # type: ignore[arg-type]
    last = Text.from_ansi(screen.getvalue().rpartition("\r")[2]).plain
    for part in ("step 8/900", "loss 3.8642 →", "2.5 h left", f"3,257 {unit}"):
        assert part in last
    terminal.end()
