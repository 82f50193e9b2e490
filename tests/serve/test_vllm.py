"""`serve --engine vllm`: adapters are loaded by name into a server that speaks as vLLM's documentation says, and requests passed on."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.cli.commands import serve
from holdfast.export.subject import read_subject, subject_codec
from holdfast.serve.engines import AnswerRequest
from holdfast.serve.experts import RoutedExperts
from holdfast.serve.vllm import Vllm
from support.shipped import make_adapter, make_family


@pytest.fixture(scope="module")
def adapter(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    return make_adapter(make_family("qwen2", assets.model, folder / "base"), folder / "adapter", size=0.3)


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """It answers three words and which model said them. `.loaded`: {name: path}; `.updating`: loads adapters as it runs, up to `.rank`."""
    world = SimpleNamespace(loaded={}, updating=True, rank=512, bodies=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lora = [{"id": name, "parent": "the/base"} for name in world.loaded]
            self.reply(200, {"data": [*lora, {"id": "the/base", "parent": None}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("lora_adapter") and not world.updating:
                self.reply(404, {"detail": "Not Found"})
            elif self.path == "/v1/load_lora_adapter":
                config = Path(body["lora_path"], "adapter_config.json")
                takes = config.is_file() and json.loads(config.read_text())["r"] <= world.rank
                world.loaded |= {body["lora_name"]: body["lora_path"]} if takes else {}
                self.reply(200 if takes else 400, {"error": {"message": f"no adapter there of a rank up to {world.rank}"}})
            elif self.path == "/v1/unload_lora_adapter":
                world.loaded.pop(body["lora_name"])
                self.reply(200, {})
            elif body["model"] not in (*world.loaded, "the/base"):
                self.reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
            else:
                world.bodies.append(body)
                said = "base" if body["model"] == "the/base" else "tuned"
                parts = [("one", 1, None), (" two", 2, None), (f" {said}", 4, None), ("", 5, "stop")]
                lines = [
                    json.dumps({"choices": [{"text": text, "finish_reason": why}], "usage": {"completion_tokens": made}})
                    for text, made, why in parts
                ]
                self.reply(200, "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode())

        def reply(self, status: int, what: Any) -> None:
            data = what if isinstance(what, bytes) else json.dumps(what).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    world.url = f"http://127.0.0.1:{http.server_port}"
    yield world
    http.shutdown()
    http.server_close()


def engine(adapter: Path, url: str | None, **experts: Path) -> Vllm:
    subject = read_subject(adapter)
    return Vllm(url, subject, subject_codec(subject), {f"expert:{name}": read_subject(one) for name, one in experts.items()})


def answer(one: Vllm, model: str) -> tuple[str, int, str | None]:
    parts = list(one.stream(AnswerRequest(model, [5, 6, 7], 20, 0.7, 0.9, 3)))
    return "".join(text for text, _, _ in parts), sum(count for _, count, _ in parts), parts[-1][2]


def test_base_and_adapter_are_asked_by_name_and_a_server_that_came_back_empty_is_given_it_again(
    adapter: Path, server: SimpleNamespace
) -> None:
    one = engine(adapter, server.url + "/v1/")
    assert list(server.loaded.values()) == [str(adapter.resolve())]
    assert answer(one, "base") == ("one two base", 4, "stop"), "the token that ends it is none of the answer's"
    assert answer(one, "tuned") == ("one two tuned", 4, "stop")
    body = server.bodies[-1]
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == ([5, 6, 7], 20, 0.7, 0.9, 3)
    assert body["stop_token_ids"], "an answer ends where training ended it"
    server.loaded.clear()
    assert answer(one, "tuned") == ("one two tuned", 4, "stop")
    another = engine(adapter, server.url)
    one.close()
    assert answer(another, "tuned")[0] == "one two tuned", "what another version has loaded stays"
    assert len(server.loaded) == 1 and one.trouble == ""


def test_what_cannot_be_is_told_with_the_command_that_starts_a_server(adapter: Path, server: SimpleNamespace) -> None:
    command = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {adapter.parent / 'base'} --enable-lora --max-lora-rank 8"
    with pytest.raises(Stop, match="--engine-url says where") as none:
        engine(adapter, None)
    with pytest.raises(Stop, match=r"no vLLM answers at http://127\.0\.0\.1:9") as away:
        engine(adapter, "http://127.0.0.1:9")
    server.updating = False
    with pytest.raises(Stop, match="loads no adapters while it runs") as fixed:
        engine(adapter, server.url)
    assert [one.value.code for one in (none, away, fixed)] == [USAGE, BLOCKED, USAGE]
    assert all((one.value.hint or "").startswith(command) for one in (none, away, fixed))


def test_a_server_that_was_told_too_low_a_rank_for_the_merged_expert_serves_all_others(
    adapter: Path, server: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = shutil.copytree(adapter, tmp_path / "merged")
    config = json.loads((merged / "adapter_config.json").read_text())
    (merged / "adapter_config.json").write_text(json.dumps(config | {"r": 40}))
    server.rank = config["r"]
    one = engine(adapter, server.url, ssh=adapter, **{"(merged)": merged})
    assert [*server.loaded.values()] == [str(adapter.resolve())] * 2
    assert "does not load expert:(merged): no adapter there of a rank up to" in one.left_out
    assert "--enable-lora --max-lora-rank 64" in one.left_out, "how one starts that does"
    experts = RoutedExperts(("ssh", "(merged)"), (read_subject(adapter), read_subject(merged)), SimpleNamespace())
    monkeypatch.setattr(serve, "_experts", lambda *_: experts)
    asked = argparse.Namespace(base=None, context=None, engine="vllm", engine_url=server.url)
    served = serve._served(asked, read_subject(adapter), "helper 2", tmp_path)
    assert served.models == ["base", "tuned", "routed", "expert:ssh"]
    assert "does not load expert:(merged)" in capsys.readouterr().err
    with pytest.raises(Stop, match=r"does not load .*merged"):
        engine(adapter, server.url, ssh=merged)
    server.rank = 512
    assert engine(adapter, server.url, **{"(merged)": merged}).left_out == ""


def test_the_command_serves_what_a_vllm_computes(adapter: Path, server: SimpleNamespace) -> None:
    command = [sys.executable, "-m", "holdfast", "serve", str(adapter), "--json", "--engine", "vllm", "--engine-url", server.url]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    ready = json.loads(child.stdout.readline())
    assert ready["engine"] == "vllm" and ready["models"] == ["base", "tuned"]
    for model in ready["models"]:
        data = json.dumps({"model": model, "messages": [{"role": "user", "content": "Join amber and 37"}], "max_tokens": 9}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ready['token']}"}
        with urllib.request.urlopen(urllib.request.Request(ready["url"] + "/v1/chat/completions", data, headers), timeout=300) as found:
            told = json.loads(found.read())
        assert told["choices"][0]["message"]["content"] == f"one two {model}" and told["usage"]["completion_tokens"] == 4
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    assert child.returncode == 0 and server.loaded == {}, "it takes its adapters with it"
