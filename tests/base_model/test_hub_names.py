"""A model's name that the hub does not give: what it lacks and the next command, never the library's own lines."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_description, read_model

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")


class _Hub(BaseHTTPRequestHandler):
    seen: SimpleNamespace

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.seen.status)
        self.send_header("X-Error-Code", self.seen.code)
        self.send_header("X-Error-Message", self.seen.code or "no")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A hub that answers everything with `.status` and `.code`."""
    seen = SimpleNamespace(status=404, code="RepoNotFound", url="")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Hub,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    constants = {"ENDPOINT": seen.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": False}
    for name, value in {**constants, "HF_TOKEN_PATH": str(tmp_path / "no-token")}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "exit_code", "message", "hint"),
    [
        (401, "RepoNotFound", 2, "me/model is not a folder, and no model on the hub that can be seen: .* without a token", "HF_TOKEN"),
        (403, "GatedRepo", 1, "me/model is gated", "accept its conditions at"),
        (404, "RevisionNotFound", 2, "me/model has no revision v9", "a tag or a commit"),
        (500, "", 1, r"does not give me/model@v9 now \(status 500\)", "try again later"),
    ],
)
def test_a_name_that_the_hub_refuses(status: int, code: str, exit_code: int, message: str, hint: str, hub: SimpleNamespace) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(Stop, match=message) as stop:
        read_model("me/model@v9")
    assert stop.value.code == exit_code and hint in stop.value.hint, stop.value.hint


def test_offline(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Stop, match="is not a folder, and the hub does not give it: it is not in the cache") as stop:
        read_model("me/model")
    assert stop.value.code == 1 and "hf download me/model" in stop.value.hint


def test_no_network(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        Stop, match=r"me/model is not a folder, and it is not in the cache \(.*\); the hub http://127.0.0.1:9 cannot be reached: "
    ) as stop:
        read_model("me/model")
    assert stop.value.code == 1 and "a local copy of the model" in stop.value.hint


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("https://huggingface.co/me/model-1B/tree/main", "is a page of the hub", "write me/model-1B"),
        ("https://example.org/model", "is an address", "fetch it into a folder first"),
        ("C:\\models\\mine", "is a path of Windows", "/mnt/c"),
        ("$HOME/models/mine", "no variable is filled in", "~/"),
        ("HERE/modles/rows.jsonl", "HERE/modles/rows.jsonl is a file, and no model", "a model is a folder, or OWNER/NAME"),
        ("~/modles/mine", "is not there; did you mean HERE/modles/mine-1B?", "the current folder is"),
    ],
)
def test_what_cannot_be_a_name_is_told_as_what_it_is(
    name: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "modles" / "mine-1B").mkdir(parents=True)
    (tmp_path / "modles" / "rows.jsonl").touch()
    with pytest.raises(Stop) as stop:
        read_model(name.replace("HERE", str(tmp_path)))
    assert stop.value.code == 2 and message.replace("HERE", str(tmp_path)) in stop.value.message and hint in stop.value.hint


@pytest.fixture
def published(assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A model of the hub with its weights in three copies, as Mistral's and gpt-oss have them; the files that were fetched."""
    from huggingface_hub.utils import filter_repo_objects

    there, fetched = tmp_path / "there", []
    for place in ("model.safetensors", "consolidated.safetensors", "original/model.safetensors"):
        (there / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(assets.model / "model.safetensors", there / place)
    for file in assets.model.glob("*.json*"):
        shutil.copy(file, there / file.name)

    def download(_name: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        every = [file.relative_to(there).as_posix() for file in there.rglob("*") if file.is_file()]
        for name in filter_repo_objects(every, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            fetched.append(name)
            (tmp_path / "cache").mkdir(exist_ok=True)
            shutil.copy(there / name, tmp_path / "cache" / name)
        return str(tmp_path / "cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return fetched


def test_a_plan_fetches_no_weights_and_a_run_fetches_them_once(published: list[str], assets: SimpleNamespace) -> None:
    told = read_description("me/model")
    assert told.shapes == {} and told.stored == read_model(str(assets.model)).stored
    assert "config.json" in published and not [name for name in published if name.endswith(".safetensors")]
    published.clear()
    assert read_model("me/model").shapes == read_model(str(assets.model)).shapes
    assert [name for name in published if name.endswith(".safetensors")] == ["model.safetensors"]
    assert read_description("me/model").shapes == read_model("me/model").shapes  # they are there now
