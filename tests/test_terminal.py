"""What a terminal shows is put back in order, whenever Ctrl-C comes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.ui.terminal import Terminal

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
