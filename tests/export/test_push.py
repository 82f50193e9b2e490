"""An export is put on a hub when asked: in one commit, in a private repository, and a hub that refuses is told of."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.export.push import open_hub, push

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")


class Hub(BaseHTTPRequestHandler):
    """The few addresses of the hub's API that an upload of small files asks for."""

    seen: SimpleNamespace

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer hf_good":
            return self._answer({"error": "Invalid credentials"}, 401)
        return self._answer(
            {"name": "me", "type": "user"} if "whoami" in self.path else {"id": "me/model", "sha": "0" * 40, "siblings": []}
        )

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/api/repos/create":
            self.seen.created.append(json.loads(body))
            return self._answer({"url": "https://huggingface.co/me/model"})
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            return self._answer({"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]})
        entries = [json.loads(line)["value"] for line in body.splitlines()]
        self.seen.files |= {entry["path"]: base64.b64decode(entry["content"]) for entry in entries if "path" in entry}
        return self._answer(
            {"success": True, "commitOid": "c" * 40, "commitUrl": "https://huggingface.co/me/model/commit/" + "c" * 40}, self.seen.status
        )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A hub on loopback that huggingface_hub takes for the real one.

    `.files`, `.created`: what it was given; `.status`: what it answers a commit.
    """
    seen = SimpleNamespace(files={}, created=[], status=200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Hub,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    yield seen
    server.shutdown()
    server.server_close()


def test_what_was_exported_is_one_commit_of_a_private_repository(hub: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/README.md").write_text("# a card")
    (tmp_path / "out/model.safetensors").write_bytes(b"weights")
    pushed = push(open_hub("me/model"), "me/model", {"kind": "merged", "out": str(tmp_path / "out")})
    assert hub.files == {"README.md": b"# a card", "model.safetensors": b"weights"}
    assert hub.created[0]["name"] == "model" and {hub.created[0].get("private"), hub.created[0].get("visibility")} & {True, "private"}
    assert pushed["commit"] == "c" * 40 and pushed["url"].endswith("/me/model")
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    push(open_hub("me/model"), "me/model", {"kind": "gguf", "out": str(tmp_path / "one.gguf")})
    assert hub.files["one.gguf"] == b"GGUF"


@pytest.mark.parametrize(
    ("base", "named"),
    [
        ("{here}/models/my-base", "my-base"),
        ("{here}/hub/models--Qwen--Qwen3-0.6B/snapshots/0123abcd", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B", None),
    ],
)
def test_an_adapter_on_the_hub_names_its_base_without_a_path_of_this_machine(
    hub: SimpleNamespace, tmp_path: Path, base: str, named: str | None
) -> None:
    out, about = tmp_path / "out", {"base_model_name_or_path": base.format(here=tmp_path), "r": 4}
    (out / "more").mkdir(parents=True)
    (out / "adapter_config.json").write_text(json.dumps(about))
    (out / "more/notes.txt").write_text("notes")
    pushed = push(open_hub("me/model"), "me/model", {"kind": "adapter", "out": str(out)})
    assert pushed.get("base") == named
    there = json.loads(hub.files["adapter_config.json"])
    assert there == about | ({"base_model_name_or_path": named} if named else {})
    assert json.loads((out / "adapter_config.json").read_text()) == about, "here PEFT loads it as before"
    assert hub.files["more/notes.txt"] == b"notes" and not any(str(tmp_path).encode() in data for data in hub.files.values())


def test_a_push_that_cannot_be_is_known_before_anything_is_computed(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop, match="not the name of a repository") as stop:
        open_hub("model")
    assert stop.value.code == 2
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(Stop, match="does not take the token"):
        open_hub("me/model")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(Stop, match="there is none on this machine"):
        open_hub("me/model")


def test_an_export_stays_where_the_hub_refuses_it(hub: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    api, hub.status = open_hub("me/model"), 403
    with pytest.raises(Stop, match="was written and not pushed") as stop:
        push(api, "me/model", {"kind": "gguf", "out": str(tmp_path / "one.gguf"), "files": []})
    assert stop.value.code == 1 and stop.value.answer and (tmp_path / "one.gguf").exists()
