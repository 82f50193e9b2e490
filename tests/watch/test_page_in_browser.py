"""The page over all runs in a real browser, as wide as a phone and as a desk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

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
        tab.value("document.querySelector('#runs a').focus(); document.activeElement.click()")
        tab.wait("document.querySelector('#chart svg') !== null")
        assert tab.value("document.getElementById('name').textContent") == "made"
        assert HOSTILE.partition("\x1b")[0] in tab.value("document.getElementById('output').textContent")
        assert tab.value("document.title.length > 1 && !document.querySelector('#detail img')"), "output is text, whatever it says"
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        assert "native_crash" in tab.value("document.getElementById('incidents').textContent")
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
