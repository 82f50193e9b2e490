"""The simulated card is itself what it claims: devices, bytes, copies, late errors and other processes' memory are a card's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import events, holdfast, lines
from simulated import card

pytestmark = card.needed


def test_the_card_behaves_as_a_card(tmp_path: Path) -> None:
    done = card.run(Path(__file__).parent / "on_card.py", devices=2, total=1 << 30, ledger=tmp_path / "ledger", release_s=0.3)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all of it" in done.stdout


def test_a_whole_run_goes_through_on_it(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = holdfast("train", config_of(data={"held_out": 0.1}), "--run", run, env=card.environment())
    assert done.returncode == 0, done.stderr[-4000:]
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 9))
    assert lines(run / "steps.jsonl")[-1]["peak_bytes"] < 1 << 26, "bytes of the device, not of a process with torch in it"
    assert not events(run, "evaluation_failed")
