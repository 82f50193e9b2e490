"""The page over all runs in a real browser, as wide as a phone and as a desk."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    with closing(Tab(tmp_path, size)) as tab:
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
        long = make_run(site.runs, name="a-run-of-a-name-" + "that-is-long-" * 4)
        tab.wait("document.querySelectorAll('#other option').length === 3")
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "a choice of runs is no wider than the screen either"
        shutil.rmtree(long)
        make_run(site.runs, steps=9)
        tab.wait("document.getElementById('tiles').textContent.includes('9 of 10')")
        shutil.rmtree(site.runs / "other")
        tab.wait("document.querySelectorAll('#runs li').length === 1")
        assert tab.errors == []


def test_a_run_that_went_while_nobody_listened_leaves_the_page(site: SimpleNamespace, tmp_path: Path) -> None:
    """The one that is open, with its stop button; and a name that is no UTF-8 hides no run."""
    make_run(site.runs, name=os.fsdecode(b"L\xe4ufe"))
    make_run(site.runs, name="other")
    with closing(Tab(tmp_path)) as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=_KEPT_STREAM)
        tab.call("Page.navigate", url=f"{site.url}#other")
        tab.wait("document.querySelectorAll('#runs li').length === 3 && !document.getElementById('detail').hidden && !!window.stream")
        tab.value("stream.close()")
        shutil.rmtree(site.runs / "other")
        tab.wait("fetch('/api/runs?token=secret').then(answer => answer.json()).then(found => found.runs.length === 2)")
        assert tab.value("document.querySelectorAll('#runs li').length") == 3
        tab.value("stream.dispatchEvent(new Event('open'))")  # as at the end of a laptop's sleep
        tab.wait("document.querySelectorAll('#runs li').length === 2 && document.getElementById('detail').hidden")
        assert tab.value("document.title") == "runs · holdfast"
        assert tab.value("document.getElementById('said').textContent") == "other is gone: its folder is not where it was"


def test_a_stream_that_is_refused_says_why_and_is_tried_again(site: SimpleNamespace, tmp_path: Path) -> None:
    with closing(Tab(tmp_path)) as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=_KEPT_STREAM)
        tab.call("Page.navigate", url=site.url)
        tab.wait("document.getElementById('said').textContent === '1 run, 0 running' && !!window.stream")
        site.watched.token = "another"
        tab.value("window.first = stream; stream.close(); stream.dispatchEvent(new Event('error'))")
        tab.wait("document.getElementById('said').textContent.startsWith('the token is missing or wrong')")
        tab.wait("stream !== first && stream.readyState === EventSource.CLOSED")
        site.watched.token = "secret"
        make_run(site.runs, name="other")
        tab.wait("stream.readyState === EventSource.OPEN && document.getElementById('said').textContent === '2 runs, 0 running'")


_KEPT_STREAM = "window.EventSource = class extends EventSource { constructor(url) { super(url); window.stream = this; } };"


def test_what_a_living_run_does_without_a_step_is_seen(site: SimpleNamespace, tmp_path: Path) -> None:
    """Nothing of the run's entry changes; how long ago its last step was, and what it prints, does."""
    site.watched.board = Living([site.runs], must_be_runs=True)
    with closing(Tab(tmp_path, "320,640")) as tab:
        tab.call("Page.navigate", url=f"{site.url}#made")
        tab.wait("document.querySelector('#runs a')?.textContent.includes('last step 30.0\u00a0d ago')")
        tab.wait("document.getElementById('tiles').textContent.includes('30.0\u00a0dsince the last step')")
        assert tab.value("document.querySelector('#runs a').textContent").endswith("step 3: native crash; it went on")
        assert not tab.value("document.querySelectorAll('#runs .bad').length"), "what is over is no alarm"
        with (site.runs / "made/attempts/002/output.log").open("a") as log:
            log.write("a new line\n")
        tab.wait("document.getElementById('output').textContent.includes('a new line')")


def test_who_has_scrolled_down_sees_that_nobody_answers(site: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.watch.site.ask_to_stop", lambda folder: "it cannot be stopped now")
    site.watched.board = Living([site.runs], must_be_runs=True)
    with closing(Tab(tmp_path, "320,640")) as tab:
        tab.call("Page.navigate", url=f"{site.url}#made")
        tab.wait("document.querySelectorAll('#charts svg').length === 3")
        tab.value("scrollTo(0, document.documentElement.scrollHeight)")
        site.watched.token = "another"
        tab.wait("document.getElementById('said').textContent.startsWith('the token is missing or wrong')")
        assert tab.value("scrollY > 600 && document.getElementById('said').getBoundingClientRect().top >= 0")
        assert not tab.value("document.getElementById('detail').hidden"), "what was known stays"
        site.watched.token = "secret"
        tab.wait("document.getElementById('said').textContent === '1 run, 1 running'")
        tab.value("document.getElementById('stop').click(); document.getElementById('stop').click()")
        tab.wait("document.getElementById('said').textContent === 'it cannot be stopped now'")
        tab.value("count()")  # as with the next step
        assert tab.value("document.getElementById('said').textContent") == "it cannot be stopped now", "long enough to be read"


@pytest.mark.parametrize("last", [5, 84, 100_000])
def test_a_chart_can_be_read_on_a_phone(last: int, site: SimpleNamespace, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"step": step, "loss": 12345.0 - step % 7}) + "\n" for step in (4, 5, last))
    (site.runs / "made/steps.jsonl").write_text(rows)
    with closing(Tab(tmp_path)) as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=320, height=900, deviceScaleFactor=1, mobile=False)
        tab.call("Page.navigate", url=f"{site.url}#made")
        tab.wait("document.querySelectorAll('#charts svg').length === 1")
        labels = json.loads(tab.value(f"JSON.stringify({_LABELS})"))
        under = [one for one in labels if one["under"]]
        assert len(under) >= 2 and all(one["text"].replace(",", "").isdigit() for one in under), under
        assert all(before["right"] < after["left"] for before, after in itertools.pairwise(under)), under
        assert all(one["left"] >= 0 and one["right"] <= 320 for one in labels), labels


_LABELS = """[...document.querySelectorAll('#charts svg > text')].map(one => { const {left, right, top} = one.getBoundingClientRect();
    return {text: one.textContent, left, right, under: one.getAttribute('text-anchor') !== 'end' || +one.getAttribute('y') > 200}; })"""


class Living(Board):
    """Takes each run for one that trains, though its last step is a month old."""

    then = time.time() - 30 * 86400

    def rows(self) -> dict[str, Any]:
        living = {"state": "running", "doing": "training", "last_step_time": self.then}
        return {name: row | living for name, row in super().rows().items()}


def test_an_engine_of_accessibility_finds_nothing_serious(site: SimpleNamespace, tmp_path: Path) -> None:
    if not (engine := os.environ.get("HOLDFAST_AXE")):
        pytest.skip("HOLDFAST_AXE names no axe.min.js: pip download --no-deps axe-playwright-python has one")
    make_run(site.runs, name="other")
    with closing(Tab(tmp_path, "390,844")) as tab:
        tab.call("Page.setBypassCSP", enabled=True)
        tab.call("Page.navigate", url=f"{site.url}#made&with=other")
        tab.wait("document.querySelectorAll('#charts svg').length === 3 && document.querySelectorAll('#pair path').length === 2")
        for scheme in ("light", "dark"):
            tab.picture(tmp_path / "seen.png", scheme)
            tab.value(f"{Path(engine).read_text()};1")
            serious = "found.violations.filter(one => ['serious', 'critical'].includes(one.impact))"
            assert tab.value(f"axe.run().then(found => JSON.stringify({serious}.map(one => one.help + one.nodes[0].html)))") == "[]"


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
