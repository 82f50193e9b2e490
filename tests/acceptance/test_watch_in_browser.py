"""The page in a real browser over real runs: one starts, dies, recovers and is stopped from it; and no serious finding of axe."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import start
from support.axe import axe_source
from support.browser import Tab
from support.watched import make_run, site

__all__ = ["site"]


def keep_picture(tab: Tab, folder: Path, name: str) -> None:
    if kept := os.environ.get("HOLDFAST_SCREENSHOTS"):
        tab.picture(folder / f"{name}.png", "light")
        shutil.copy(folder / f"{name}.png", Path(kept) / f"{name}.png")


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_starts_dies_recovers_and_is_stopped_from_the_page(config_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs", name="older")
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults:\n  - name: kill\n    when: {step: 20, attempt: 1}\n    effect: kill\n")
    config = config_of(train={"steps": 5000, "effective_batch": 2})
    watch = start("watch", "--json", cwd=tmp_path)
    assert watch.stdout
    tab = Tab(tmp_path, "390,844")
    training = None
    try:
        tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        tab.call("Page.navigate", url=json.loads(watch.stdout.readline())["url"])
        tab.wait("document.querySelectorAll('#runs li').length === 1")
        training = start("train", config, "--run", tmp_path / "runs/live", "--faults", faults)
        tab.wait("document.querySelectorAll('#runs li').length === 2")
        tab.value("location.hash = 'live'")
        tab.wait("document.getElementById('incidents').textContent.includes('step 20')")
        tab.wait("document.getElementById('notices').textContent.length > 0 && /step 2[1-9]|step [3-9]\\d|step \\d{3}/.test("
                 "document.querySelector('#runs a[aria-current]').textContent)")  # fmt: skip
        tab.wait("document.querySelector('#charts svg') !== null")
        keep_picture(tab, tmp_path, "watch-phone-recovered")
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the phone"
        assert tab.value("document.getElementById('stop').hidden") is False
        tab.value("document.getElementById('stop').click()")
        assert "Press again" in tab.value("document.getElementById('stop').textContent")
        tab.value("document.getElementById('stop').click()")
        tab.wait("document.getElementById('where').textContent.startsWith('stopped')")
        training.communicate(timeout=300)
        assert training.returncode == 130
        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        keep_picture(tab, tmp_path, "watch-desk-stopped")
        assert tab.errors == []
    finally:
        tab.close()
        for child in (training, watch):
            if child is not None and child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.communicate(timeout=300)


@pytest.mark.matrix
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding(site: SimpleNamespace, tmp_path: Path, width: int, scheme: str) -> None:
    source = axe_source()
    make_run(site.runs, name="other")
    tab = Tab(tmp_path, f"{width},900")
    try:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        tab.call("Page.navigate", url=site.url + "#made")
        tab.wait("document.querySelector('#charts svg') !== null")
        tab.value(source + "; 0")
        found: list[dict[str, Any]] = json.loads(
            tab.value("axe.run(document).then(found => JSON.stringify(found.violations.map("
                      "one => ({id: one.id, impact: one.impact, at: one.nodes.map(node => node.html)}))))")
        )  # fmt: skip
        assert [one for one in found if one["impact"] in ("serious", "critical")] == []
        assert tab.errors == []
    finally:
        tab.close()
