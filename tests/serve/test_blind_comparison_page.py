"""The page that compares blind, in a real browser: asked, judged, kept, and read back by `data collect`."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import __version__
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec
from holdfast.report.pages import page_template
from holdfast.serve.engines import Wanted
from holdfast.serve.gateway import State, open_gateway
from holdfast.serve.preferences import Blind

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed")
ANSWERS = {"base": "dir", "tuned": "ls -la <b>&"}


class Parrot:
    """An engine that says the same always."""

    name = "parrot"

    def stream(self, wanted: Wanted) -> Iterator[tuple[str, int, str | None]]:
        yield ANSWERS[wanted.model], 1, None
        yield "", 0, "stop"

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The endpoint with its page: `.page`, `.kept`."""
    kept = tmp_path / "preferences.jsonl"
    page = page_template("ab.html").render(name="<i>first</i>", version=__version__)
    state = State(load_codec(EMBEDDED["tiny"]), "first", 512, "secret", Blind(kept, "first"), page)
    state.engine = Parrot()
    server = open_gateway(state, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(page=f"http://127.0.0.1:{server.server_address[1]}/?token=secret", kept=kept)
    server.shutdown()
    server.server_close()


class Tab:
    """A page in a headless browser, by its debugging protocol. errors: what its console said, and what it asked of elsewhere."""

    def __init__(self, folder: Path) -> None:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
        ]
        command = [str(CHROMIUM), *flags, f"--user-data-dir={folder / 'profile'}", "--window-size=900,800", "about:blank"]
        self.browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._open = contextlib.ExitStack()
        self._open.callback(self._end)
        port, path = _when(lambda: (folder / "profile/DevToolsActivePort").read_text().split())
        self._number, self._session, self.errors = 0, "", list[str]()
        self._socket = self._open.enter_context(client.connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None))
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        self._number += 1
        about = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": given} | about))
        while True:
            said = json.loads(self._socket.recv(timeout=60))
            if said.get("id") == self._number:
                assert "error" not in said, said
                return dict(said["result"])
            if said.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                self.errors.append(json.dumps(said["params"])[:300])
            url = said.get("params", {}).get("request", {}).get("url", "") if said.get("method") == "Network.requestWillBeSent" else ""
            if url and not url.startswith(("http://127.0.0.1", "data:", "about:")):
                self.errors.append(url)

    def value(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, awaitPromise=True)["result"].get("value")

    def wait(self, script: str) -> None:
        _when(lambda: self.value(script) or int("not yet"))

    def picture(self, file: Path, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._open.close()

    def _end(self) -> None:
        self.browser.terminate()
        self.browser.wait()


def _when(look: Any, seconds: float = 60) -> Any:
    """What `look` finds, once it can."""
    until = time.monotonic() + seconds
    while True:
        try:
            return look()
        except (OSError, ValueError):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_what_is_clicked_is_kept_and_becomes_rows(served: SimpleNamespace, tmp_path: Path, call: Any) -> None:
    tab = Tab(tmp_path)
    try:
        tab.call("Page.navigate", url=served.page)
        tab.wait("document.readyState === 'complete' && location.search === ''")
        assert "secret" not in tab.value("location.href"), "the token is no part of what is bookmarked"
        for number, choice in enumerate(("left", "right", "same")):
            tab.value(f"document.getElementById('prompt').value = 'How do I list files? {number}'")
            tab.value("document.querySelector('form button').click()")
            tab.wait("!document.getElementById('votes').hidden")
            shown = {side: tab.value(f"document.getElementById('{side}').textContent") for side in ("left", "right")}
            assert sorted(shown.values()) == sorted(ANSWERS.values()), "an answer is text, whatever it says"
            tab.picture(tmp_path / "light.png", "light")
            tab.value(f"document.querySelector('[data-choice={choice}]').click()")
            tab.wait("document.getElementById('said').textContent.startsWith('kept')")
            row = json.loads(served.kept.read_text().splitlines()[-1])
            assert row["voted"] == "same" if choice == "same" else row["chosen"] == shown[choice]
            if number == 0:
                tab.value("location.reload()")  # the tab knows its token
                tab.wait("document.readyState === 'complete' && document.getElementById('said').textContent === ''")
        tab.picture(tmp_path / "dark.png", "dark")
        assert "no difference 1" in tab.value("document.getElementById('said').textContent")
        assert tab.errors == []
    finally:
        tab.close()
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
    answer = call("collect", served.kept, "--out", tmp_path / "rows.jsonl")
    assert answer["rows"] == 2 and answer["by_reason"] == {"no_response": 1}
