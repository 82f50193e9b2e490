"""What a checkpoint has to be flushed, in which order; what the benchmark's page says of it is counted here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config.config import Save
from holdfast.report.pages import write_page
from holdfast.report.run import report
from holdfast.report.run.report import write_report
from holdfast.run.artifact import Artifact
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import save_checkpoint
from holdfast.run.snapshots.memory_file import Snapshot

STAGED = ["adapter_model.safetensors", "adapter_config.json", "state.safetensors", "manifest.json", "step-N"]
NEEDED = ["steps.jsonl", "timeline.jsonl", "plan.json", "config.yaml", "run.json", "run"]


def test_a_checkpoint_is_twelve_flushes_in_the_order_that_a_power_cut_asks_for_and_a_row_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_id("a")
    for file in (run.timeline_file, run.plan_file, run.config_file):
        file.write_text("{}\n")
    done: list[str] = []

    def flush(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(run.path.parent) + "/"))

    replace = Path.rename

    def rename(file: Path, to: Path) -> Path:
        done.append(f"{to.name} is named")
        return replace(file, to)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "rename", rename)
    for step in range(1, 11):
        run.append(run.steps_file, {"step": step})
    assert done == []

    save_checkpoint(run, Snapshot(10, 10, {"rows": []}, b"adapter", b"state"), Artifact("adapter", {}), Save())
    named = done.index("step-00000010 is named")
    assert [_plainly(one) for one in done[:named]] == [*STAGED, *NEEDED]
    assert done[named + 1 :] == ["run/checkpoints"]


@pytest.mark.parametrize("write", [lambda file: write_page(file, "new"), lambda file: write_report(RunFolder(file.parent), file)])
def test_a_page_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    flushed: list[str] = []
    monkeypatch.setattr(report, "render", lambda run: "new")
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(page.read_text()))
    write(page)
    assert (flushed, page.read_text()) == (["old", "new"], "new"), "the new file, then its name"


def _plainly(place: str) -> str:
    name = place.rpartition("/")[2]
    return "step-N" if name.startswith(".step-") else "manifest.json" if name.startswith(".manifest.json.") else name
