"""Pages of report, data, plan, check and verdict in a real browser, as wide as a phone: nothing overflows, axe finds nothing serious."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import write_rows
from holdfast.cli import main
from holdfast.config.load import load_config
from holdfast.planning.memory.demand import Demand
from holdfast.report.check_page import check_page
from holdfast.report.plan.page import plan_page
from holdfast.report.run.report import render
from holdfast.report.shipped.verdict import page as verdict_page
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Alternative
from support.axe import axe_source
from support.browser import Tab
from support.old_runs import FIXTURES, settle
from support.plans import a_plan

SERIOUS = "axe.run().then(found => JSON.stringify(found.violations.filter(one => ['serious', 'critical'].includes(one.impact))"
PAGES = ("report", "data", "plan", "check", "verdict")
CHECKED = {
    "items": [
        {"id": "start", "verdict": "passed", "why": "", "numbers": {"loss_gap": 0.0017891}, "next": None},
        {
            "id": "ten-rows",
            "verdict": "failed",
            "why": "the loss did not fall",
            "numbers": {"first": 2.1},
            "next": "holdfast explain lr-high",
        },
    ],
    "start": {"attention": "fused", "dtype": "bfloat16"},
}
INSTEAD = Alternative(change="train.checkpointed_layers=5", peak_bytes=1 << 19, slower=1.29, fits=True)
PLAN = a_plan(alternatives=(INSTEAD,), reasons=("traced: one row of 64 tokens at once, as long as the longest one",))
CURVE = {"kinds": ["weights", "activations"], "moments": [0, 5, 9], "marks": [[0, "forward"], [5, "backward"]]}
DEMAND = Demand(
    bytes={"weights": 1 << 20},
    phase="forward",
    building=0,
    held=0,
    params=PLAN.params,
    layers=2,
    flops=1,
    largest=[(2 << 20, "activations", "silu base_model.model.model.layers.4.mlp.act_fn"), (1 << 20, "logits", "_to_copy output layer")],
    curve=CURVE | {"bytes": [[1 << 20, 1 << 10], [1 << 20, 9 << 20], [1 << 20, 0]]},
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    inputs = settle(place, "text")
    out = place / "out"
    out.mkdir()
    (out / "report.html").write_text(render(RunFolder(place / "runs" / "text")))
    rows = [
        {"instruction": f"q{n}", "output": "a long answer indeed " * size, "page": "x" * 90} for n, size in enumerate((1, 2, 3, 4, 900))
    ]
    rows += [{"instruction": "q1", "output": "another"}, {"instruction": "q2"}]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inputs)
        (out / "plan.html").write_text(plan_page(load_config(Path("text.yaml")), "tiny", PLAN, DEMAND))
        main(["data", "check", str(write_rows(place / "rows.jsonl", rows)), "--max-tokens", "64", "--html", str(out / "data.html")])
    (out / "check.html").write_text(check_page("text", CHECKED))
    (out / "verdict.html").write_text(verdict_page(json.loads((FIXTURES / "golden" / "verify.json").read_text())["answer"], "text"))
    return out


def test_the_plan_names_modules_without_what_wraps_them(pages: Path) -> None:
    text = (pages / "plan.html").read_text()
    assert '<td data-head="made by">model.layers.4.mlp.act_fn</td>' in text and '<td data-head="made by">output layer</td>' in text
    assert '<td class="n" data-head="peak">0.5 MiB</td>' in text, "a phone, which shows no heads of columns, says what a number is"
    assert "base_model.model" not in text and "_to_copy" not in text


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    tab = Tab(tmp_path, "390,844")
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    tab.call("Page.setBypassCSP", enabled=True)
    yield tab
    tab.close()


def _open(tab: Tab, page: Path) -> None:
    tab.call("Page.navigate", url=page.as_uri())
    tab.wait(f"document.readyState === 'complete' && location.pathname.endsWith('{page.name}')")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_a_phone(name: str, pages: Path, tab: Tab) -> None:
    _open(tab, pages / f"{name}.html")
    assert tab.value("document.documentElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('main *:not(svg *)')].filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1)"
    assert tab.value(f"JSON.stringify({wide}.map(one => one.outerHTML.slice(0, 100)))") == "[]"
    small = "[...document.querySelectorAll('svg text')].filter(one => one.textContent && one.getBoundingClientRect().height < 9)"
    assert tab.value(f"{small}.length") == 0, "the words of a chart are large enough"
    cut = """[...document.querySelectorAll('svg text')].filter(one => {
        const word = one.getBoundingClientRect(), drawing = one.ownerSVGElement.getBoundingClientRect()
        return word.left < drawing.left || word.right > drawing.right
    }).map(one => one.textContent)"""
    assert tab.value(f"JSON.stringify({cut})") == "[]", "no word of a chart leaves it"


def test_no_word_of_a_verdicts_first_column_is_broken_on_a_phone(pages: Path, tab: Tab) -> None:
    _open(tab, pages / "verdict.html")
    broken = """JSON.stringify([...document.querySelectorAll('td:first-child')].flatMap(cell => {
        const text = cell.firstChild
        return !text || text.nodeType !== 3 ? [] : [...text.data.matchAll(/\\S+/g)].filter(word => {
            const range = document.createRange()
            range.setStart(text, word.index)
            range.setEnd(text, word.index + word[0].length)
            return word[0].length < 10 && range.getClientRects().length > 1
        }).map(word => word[0])
    }))"""
    assert tab.value(broken) == "[]"


@pytest.mark.parametrize("name", PAGES)
def test_an_engine_of_accessibility_finds_nothing_serious(name: str, pages: Path, tab: Tab, tmp_path: Path) -> None:
    engine = axe_source()
    _open(tab, pages / f"{name}.html")
    for scheme in ("light", "dark"):
        tab.picture(tmp_path / "seen.png", scheme)
        tab.value(f"{engine};1")
        assert tab.value(f"{SERIOUS}.map(one => one.help + one.nodes[0].html)))") == "[]", scheme
