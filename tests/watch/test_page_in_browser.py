"""The page over all runs in a real browser, as wide as a phone and as a desk."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import start
from holdfast.watch.board import Board
from holdfast.watch.site import WatchedRuns, open_site
from support.browser import Tab
from support.watched import HOSTILE, make_run, site

__all__ = ["site"]


@pytest.mark.parametrize("size", ["320,640", "1280,900"])
def test_the_page_shows_runs_and_lets_nothing_in(site: SimpleNamespace, size: str, tmp_path: Path) -> None:
    make_run(site.runs, name="other")
    tab = Tab(tmp_path, size)
    try:
        tab.call("Emulation.setDeviceMetricsOverride", width=int(size.split(",")[0]), height=900, deviceScaleFactor=1, mobile=False)
        tab.call("Page.navigate", url=site.url)
        tab.wait("document.querySelectorAll('#runs li').length === 2")
        assert tab.value("performance.getEntriesByType('resource').every(one => one.name.startsWith(location.origin))")
        tab.value("document.querySelector('#runs a').focus(); document.activeElement.click()")
        tab.wait("document.querySelectorAll('#charts svg').length === 3 && document.activeElement.id === 'name'")
        assert tab.value("document.getElementById('name').textContent") == "made"
        assert HOSTILE.partition("\x1b")[0] in tab.value("document.getElementById('output').textContent")
        assert tab.value("document.title.length > 1 && !document.querySelector('#detail img')"), "output is text, whatever it says"
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        incidents = tab.value("document.getElementById('incidents').textContent")
        assert "native crash" in incidents and "holdfast explain crash-signal" in incidents and "done: killed" in incidents
        _reads_values_and_zooms(tab)
        tab.value("const other = document.getElementById('other'); other.value = 'other'; other.dispatchEvent(new Event('change'))")
        tab.wait("document.querySelectorAll('#pair path').length === 2")
        tab.wait("document.getElementById('differs').textContent.includes('no difference is known')")
        for scheme in ("light", "dark"):
            tab.picture(tmp_path / f"{scheme}.png", scheme)
            if kept := os.environ.get("HOLDFAST_SCREENSHOTS"):
                shutil.copy(tmp_path / f"{scheme}.png", Path(kept) / f"watch-{size.split(',')[0]}-{scheme}.png")
        assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
        make_run(site.runs, steps=9)
        tab.wait("document.getElementById('tiles').textContent.includes('9 of 10')")
        shutil.rmtree(site.runs / "other")
        tab.wait("document.querySelectorAll('#runs li').length === 1")
        assert tab.errors == []
    finally:
        tab.close()


def test_an_engine_of_accessibility_finds_nothing_serious(site: SimpleNamespace, tmp_path: Path) -> None:
    if not (engine := os.environ.get("HOLDFAST_AXE")):
        pytest.skip("HOLDFAST_AXE names no axe.min.js: pip download --no-deps axe-playwright-python has one")
    make_run(site.runs, name="other")
    tab = Tab(tmp_path, "390,844")
    try:
        tab.call("Page.setBypassCSP", enabled=True)
        tab.call("Page.navigate", url=f"{site.url}#made&with=other")
        tab.wait("document.querySelectorAll('#charts svg').length === 3 && document.querySelectorAll('#pair path').length === 2")
        for scheme in ("light", "dark"):
            tab.picture(tmp_path / "seen.png", scheme)
            tab.value(f"{Path(engine).read_text()};1")
            serious = "found.violations.filter(one => ['serious', 'critical'].includes(one.impact))"
            assert tab.value(f"axe.run().then(found => JSON.stringify({serious}.map(one => one.help + one.nodes[0].html)))") == "[]"
    finally:
        tab.close()


def _reads_values_and_zooms(tab: Tab) -> None:
    """The chart of the loss by keyboard: what stands at a step, a part of it, its table."""
    tab.value("window.box = document.querySelector('#charts figure'); box.focus()")
    for key, shown in (("ArrowLeft", "1,7"), ("ArrowLeft", "1,7"), ("+", "3.5,6.5"), ("Escape", "1,7")):
        told = tab.value("box.querySelector('output').textContent")
        tab.value(f"box.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
        assert tab.value("box.shown.join()") == shown
    assert told.startswith("step 5: training 0.2")
    tab.value("document.querySelector('#charts summary').click()")
    tab.wait("document.querySelectorAll('#charts details td').length === 14")


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_dies_recovers_and_is_stopped_from_the_page(config_of: Callable[..., Path], tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults:\n  - name: kill\n    when: {step: 3, attempt: 1}\n    effect: kill\n")
    training = start("train", config_of(train={"steps": 5000, "effective_batch": 2}), "--run", tmp_path / "runs/run", "--faults", faults)
    watched = WatchedRuns(Board([tmp_path / "runs"], must_be_runs=False), "secret", lan=False)
    tab = Tab(tmp_path, "390,844")
    with open_site(watched, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            tab.call("Page.navigate", url=f"http://127.0.0.1:{server.server_address[1]}/?token=secret#run")
            tab.wait("document.getElementById('incidents').textContent.includes('step 3: killed by SIGKILL')")
            tab.wait("document.getElementById('where').textContent.startsWith('training')")
            for _ in range(2):  # it asks once more
                tab.value("document.getElementById('stop').click()")
            training.communicate(timeout=300)
            tab.wait("document.getElementById('where').textContent.startsWith('stopped')")
            assert training.returncode == 130 and tab.value("document.getElementById('stop').hidden") and tab.errors == []
        finally:
            tab.close()
            watched.ended.set()
            server.shutdown()
            training.kill()
