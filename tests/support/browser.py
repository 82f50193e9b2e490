"""A page in a real browser, driven by its debugging protocol. Skips what imports it where there is no Chromium."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)
client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed")


class Tab:
    """A page in a headless browser, by its debugging protocol. errors: what its console said, and what it asked of elsewhere."""

    def __init__(self, folder: Path, size: str = "900,800") -> None:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
        ]
        command = [str(CHROMIUM), *flags, f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", "about:blank"]
        self.browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._open = contextlib.ExitStack()
        self._open.callback(self._end)
        self._number, self._session, self.errors = 0, "", list[str]()
        try:
            self._attach(folder / "profile/DevToolsActivePort")
        except BaseException:
            self.close()
            raise

    def _attach(self, place: Path) -> None:
        """Connect to the page. place: where the browser writes its port and path, which is there before they are."""
        port, path = when(lambda: _port_and_path(place))
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
            said = json.loads(self._socket.recv(timeout=300))
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
        when(lambda: self.value(script) or int("not yet"))

    def picture(self, file: Path, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._open.close()

    def _end(self) -> None:
        self.browser.terminate()
        self.browser.wait()


def _port_and_path(place: Path) -> tuple[str, str]:
    """Raises OSError or ValueError while they are not written."""
    port, path = place.read_text().split()
    return port, path


def when(look: Any, seconds: float = 300) -> Any:
    """What `look` finds, once it can."""
    until = time.monotonic() + seconds
    while True:
        try:
            return look()
        except (OSError, ValueError):
            assert time.monotonic() < until
            time.sleep(0.05)
