"""What a terminal shows is put back in order, whenever Ctrl-C comes."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from holdfast.base.files import append_line
from holdfast.base.inert import MOST_CHARS, brief, fitted, hanging
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.run.folder import RunFolder
from holdfast.terminal.progress_line import ProgressWords, progress_line
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
    "before": ProgressWords(3, 12_000, "loss 3.8642 ↓", "time left: not known yet", OTHERS),
    "after": ProgressWords(1_123, 12_000, "loss 3.8642 ↓", "110 min to 2.3 h left", OTHERS),
    "starting": ProgressWords(0, 12_000, "starting"),
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


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_sentence_is_broken_at_words_and_a_command_never(width: int) -> None:
    command = "holdfast check my-run.yaml --only overfit --json"
    text = f"on held-out rows nothing was gained; run `{command}` for more, or see /a/path/without/any/space/in/it: {command}"
    first, *others = hanging(text, width, indent=4, begins_at=6).split("\n")
    assert others and all(line.startswith("    ") for line in others)
    assert " ".join([first, *(line.strip() for line in others)]) == text
    assert sum(command in line for line in (first, *others)) == 2
    assert all(len(line) < width or command in line or "/a/path" in line for line in (" " * 6 + first, *others))


def test_a_line_is_broken_under_where_its_words_begin_and_what_is_typed_stays_whole() -> None:
    lines = {
        "  why              it lost on general rows": ["  why              it lost on", " " * 19 + "general rows"],
        "  1. take a smaller batch, or fewer tokens": ["  1. take a smaller batch, or", "     fewer tokens"],
        "! no supervisor watches it: nothing restarts": ["! no supervisor watches it:", "  nothing restarts"],
        "next: cd /a/folder && holdfast train my-run.yaml": None,
        "  next             holdfast export runs/first --to merged": None,
        "  resume with: cd /a/folder && holdfast train my-run.yaml": None,
        "  -> holdfast data check rows.jsonl --field question=user": None,
        "  -> give the base model it was trained on with --base": ["  -> give the base model it was", "     trained on with --base"],
        "     -> export NCCL_DEBUG=INFO NCCL_P2P_DISABLE=1": None,
        "     sudo sysctl -w vm.overcommit_memory=1": None,
        "as wide as the terminal allows": None,
    }
    whole = [line for line, broken in lines.items() if broken is None]
    assert fitted("\n".join(whole), 32).split("\n") == whole
    for line, broken in lines.items():
        assert broken is None or fitted(line, 32).split("\n") == broken


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", [["explain", "gpu-oom-allocator"], ["explain"], ["explain", "no-such-card-anywhere"]])
def test_a_command_breaks_no_word_on_a_terminal_and_nothing_in_a_file(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    said = []
    for kind in (_Screen, io.StringIO):
        outputs = kind(), kind()
        monkeypatch.setattr("sys.stdout", outputs[0])
        monkeypatch.setattr("sys.stderr", outputs[1])
        main(words)
        said.append("".join(one.getvalue() for one in outputs))
    screen, file = said
    assert "".join(screen.split()) == "".join(file.split())
    assert [line for line in file.splitlines() if len(line) >= 72]
    assert all(len(line) < 72 or line.lstrip().startswith(("->", "https://", "sources:")) for line in screen.splitlines()), screen


def test_a_line_about_an_incident_is_cut_between_clauses() -> None:
    whole = "attempt 2: " + "; ".join(f"clause {number} of it" for number in range(30))
    short = brief(whole)
    begin, _, last = short.partition(" …; ")
    assert len(short) <= MOST_CHARS and last == "clause 29 of it" and begin.endswith("of it") and whole.startswith(begin)
    short = brief(f"{whole}; {'what is done, at length, ' * 9}")
    assert len(short) <= MOST_CHARS and short.endswith("of it …") and whole.startswith(short[:-2])
    assert len(brief("x" * 300)) <= MOST_CHARS and brief("as it is; whole") == "as it is; whole"


def test_a_terminal_gets_a_hanging_indent_and_a_file_one_line(tmp_path: Path) -> None:
    said = "attempt 1: killed by SIGKILL at step 242; restarting from the newest state"
    for is_terminal, lines in (
        (True, ["! attempt 1: killed by SIGKILL at", "  step 242; restarting from the", "  newest state"]),
        (False, [f"! {said}"]),
    ):
        terminal, screen = Terminal(to_stderr=True, quiet=False), io.StringIO()
        terminal.console = Console(file=screen, force_terminal=is_terminal, width=36, soft_wrap=True, highlight=False)
        terminal.tell(said)
        assert Text.from_ansi(screen.getvalue()).plain.splitlines() == lines


def test_a_step_is_told_once_however_long_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_EVERY_S", "_PLAIN_LINE_EVERY_S"):
        monkeypatch.setattr(f"holdfast.terminal.run_view.{name}", 0.0)
    monkeypatch.setattr("holdfast.terminal.run_view.newest_settings", lambda _: SimpleNamespace(steps=9))
    run, screen = RunFolder(tmp_path), io.StringIO()
    terminal = Terminal(to_stderr=True, quiet=False)
    terminal.console = Console(file=screen, soft_wrap=True)
    terminal.begin(run, Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}}))
    for step in (1, 2):
        row = {"step": step, "time": 1.0, "loss": 3.9, "grad_norm": 3.6, "lr": 2e-4, "tokens": 9, "seconds": 1.0, "peak_bytes": 9}
        append_line(run.steps_file, row)
        for _ in range(3):
            terminal.tick(SimpleNamespace(unwritten=lambda: 0))  # type: ignore[arg-type]
    assert [line.split("  ")[0] for line in screen.getvalue().splitlines()[1:]] == ["step 1/9", "step 2/9"]


def test_a_start_without_a_step_is_told_of_where_no_live_line_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.terminal.run_view.newest_settings", lambda _: SimpleNamespace(steps=9))
    clock = [100.0]
    monkeypatch.setattr("holdfast.terminal.run_view.time", SimpleNamespace(monotonic=lambda: clock[0]))
    told = {}
    for quiet in (False, True):
        terminal, screen = Terminal(to_stderr=True, quiet=quiet), io.StringIO()
        terminal.console = Console(file=screen, soft_wrap=True)
        clock[0] = 100.0
        terminal.begin(RunFolder(tmp_path), Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}}))
        for clock[0] in (105.0, 114.0, 115.0, 120.0, 129.0, 131.0, 150.0):
            terminal.tick(SimpleNamespace(unwritten=lambda: 0))  # type: ignore[arg-type]
        told[quiet] = [line.partition(";")[0] for line in screen.getvalue().splitlines()[1:]]
    assert told == {False: ["15 s: no step yet", "31 s: no step yet"], True: []}


def test_who_asked_to_stop_before_the_first_step_hears_once_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.terminal.run_view.newest_settings", lambda _: SimpleNamespace(steps=9))
    clock = [100.0]
    monkeypatch.setattr("holdfast.terminal.run_view.time", SimpleNamespace(monotonic=lambda: clock[0]))
    terminal, screen = Terminal(to_stderr=True, quiet=False), io.StringIO()
    terminal.console = Console(file=screen, soft_wrap=True)
    terminal.begin(RunFolder(tmp_path), Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}}))
    for clock[0] in (105.0, 120.0, 150.0, 300.0):
        terminal.tell_stop()
        terminal.tick(SimpleNamespace(unwritten=lambda: 0))  # type: ignore[arg-type]
    told = screen.getvalue().splitlines()[1:]
    assert told == ["asked to stop: the trainer ends as soon as its model is loaded; no step is computed"]
