"""The output of a command is kept within bounds while it writes on, and loses no line that it ends with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.processes import command_session as session
from holdfast.processes.command_session import KEPT_HEAD, KEPT_TAIL, MOST_OUTPUT, bound_output, cut_middle

_MIB = b"x" * (1 << 20)


def flood(log: Path) -> None:
    with log.open("wb") as out:
        out.write(b"first\n")
        for _ in range((MOST_OUTPUT >> 20) + 6):
            out.write(_MIB)


@pytest.mark.parametrize("holes", [True, False])
def test_what_is_written_while_the_middle_goes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool) -> None:
    log, real = tmp_path / "output.log", session._punch_hole
    flood(log)
    with log.open("ab") as output, log.open("ab", buffering=0) as writer:

        def punch(file: Path, start: int, length: int) -> bool:
            writer.write(b"\nlast\n")  # after the size was asked for
            return holes and real(file, start, length)

        monkeypatch.setattr(session, "_punch_hole", punch)
        bound_output(log, output)
        bound_output(log, output)  # small enough: nothing is done
        assert os.fstat(output.fileno()).st_blocks * 512 <= KEPT_HEAD + KEPT_TAIL + (1 << 20)
        cut_middle(log, output)
    text = log.read_bytes()
    assert text.startswith(b"first\n") and text.endswith(b"x\nlast\n") and text.count(b"last") == 1
    assert len(text) < KEPT_HEAD + KEPT_TAIL + 100 and text.count(b"bytes of output were left out here") == 1 and b"\0" not in text


def test_an_output_within_bounds_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"first\nlast\n")
    with log.open("ab") as output:
        bound_output(log, output)
        cut_middle(log, output)
    assert log.read_bytes() == b"first\nlast\n"
