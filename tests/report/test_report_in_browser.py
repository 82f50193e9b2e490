"""The report in a real browser: no console message, no request that leaves the page, something to see in light, dark and on a phone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import holdfast, make_rows, write_rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --enable-logging=stderr --log-level=0"
)


@pytest.fixture(scope="module")
def report(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    rows = make_rows(40)
    rows[2]["output"] = ""
    rows[5]["instruction"] = "<img src=http://example.org/x.png onerror=alert(1)>"
    tree = {
        "model": str(assets.model),
        "data": {"files": str(write_rows(folder / "rows.jsonl", rows)), "held_out": 0.3},
        "train": {"steps": 30, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        "faults": [{"when": {"attempt": 1, "step": 9}, "effect": "kill"}],
    }
    (folder / "config.json").write_text(json.dumps(tree))
    done = holdfast("train", folder / "config.json", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run" / "report.html"


def visit(report: Path, folder: Path, width: int, height: int, dark: bool = False) -> tuple[bytes, str, list[str]]:
    """(screenshot as PNG, what the browser logged, URLs asked for)."""
    picture, net = folder / "page.png", folder / "net.json"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    flags = [*FLAGS.split(), f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net}", f"--window-size={width},{height}", *scheme]
    done = subprocess.run([str(CHROMIUM), *flags, f"--screenshot={picture}", report.as_uri()], capture_output=True, text=True, check=False)
    assert picture.exists(), done.stderr
    return picture.read_bytes(), done.stderr, asked_for(net)


def asked_for(net_log: Path) -> list[str]:
    events = json.loads(net_log.read_text())["events"]
    urls = [event["params"]["url"] for event in events if isinstance(event.get("params"), dict) and "url" in event["params"]]
    return [url for url in urls if url.startswith(("http:", "https:", "ws:", "ftp:"))]


@pytest.mark.parametrize(
    ("width", "height", "dark"), [(1100, 1600, False), (1100, 1600, True), (390, 2400, False)], ids=["light", "dark", "phone"]
)
def test_the_page_is_quiet_and_keeps_to_itself(report: Path, tmp_path: Path, width: int, height: int, dark: bool) -> None:
    picture, logged, urls = visit(report, tmp_path, width, height, dark)
    assert "CONSOLE" not in logged
    assert not [url for url in urls if "example.org" in url]
    assert len(picture) > 20_000, "an empty page is a few kilobytes"


def test_a_page_that_misbehaves_is_caught(report: Path, tmp_path: Path) -> None:
    """The checks above can fail: the same page with a script and a foreign image in it."""
    bad = tmp_path / "bad.html"
    text = report.read_text()
    policy = text[text.index("<meta http-equiv") : text.index(">", text.index("<meta http-equiv")) + 1]
    extra = "<script>console.error('boo')</script><img src=http://example.org/x.png>"
    bad.write_text(text.replace(policy, "").replace("</main>", extra + "</main>"))
    _, logged, urls = visit(bad, tmp_path, 800, 600)
    assert "CONSOLE" in logged
    assert [url for url in urls if "example.org" in url]


def test_nothing_is_wider_than_a_phone(report: Path, tmp_path: Path) -> None:
    probe = tmp_path / "probe.html"
    text = report.read_text()
    policy = text[text.index("<meta http-equiv") : text.index(">", text.index("<meta http-equiv")) + 1]
    script = "<script>document.title = 'width ' + document.documentElement.scrollWidth</script>"
    probe.write_text(text.replace(policy, "").replace("</body>", script + "</body>"))
    flags = [*FLAGS.split(), f"--user-data-dir={tmp_path / 'p'}", "--window-size=500,900", "--dump-dom"]
    dom = subprocess.run([str(CHROMIUM), *flags, probe.as_uri()], capture_output=True, text=True, check=False).stdout
    width = int(dom.split("<title>width ")[1].split("<")[0])
    assert width <= 500
