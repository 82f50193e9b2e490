"""Base and tuned model behind one endpoint: the openai client, the token, streams, and answers compared blind."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast
from holdfast.cli.main import main
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.preferences import parse_pair
from holdfast.serve.preferences import preference_row, tally
from support.shipped import make_adapter, make_family

LLAMA = pytest.param("llama.cpp", marks=pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="module")
def adapter(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    return make_adapter(make_family("qwen2", assets.model, folder / "base"), folder / "adapter", size=0.3)


@pytest.fixture(scope="module", params=[LLAMA, "transformers"])
def served(request: pytest.FixtureRequest, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A running endpoint of each engine; `.kept`: its file of preferences."""
    if request.param == "llama.cpp":
        pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")
    kept = tmp_path_factory.mktemp("kept") / "preferences.jsonl"
    command = [sys.executable, "-m", "holdfast", "serve", adapter, "--json", "--ab", "--engine", request.param, "--preferences", kept]
    child = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout and child.stderr
    line = child.stdout.readline()
    assert line, child.stderr.read()
    ready = json.loads(line)
    yield SimpleNamespace(**ready, kept=kept)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and out == "", "one line of JSON, and no more"


def asked(served: Any, path: str, body: Any = None, token: str | None = "", host: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Host": host} if host else {})
    if token is not None:
        headers["Authorization"] = f"Bearer {token or served.token}"
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(served.url + path, data, headers), timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


CHAT = {"messages": [{"role": "user", "content": "Join amber and 37"}], "max_tokens": 12}


def test_the_openai_client_talks_to_both_models(served: Any) -> None:
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with openai.OpenAI(base_url=served.url + "/v1", api_key=served.token) as client:
        assert [model.id for model in client.models.list()] == ["base", "tuned"]
        texts = {}
        for model in ("base", "tuned"):
            whole = client.chat.completions.create(model=model, temperature=0, **CHAT)
            parts = [*client.chat.completions.create(model=model, temperature=0, stream=True, **CHAT)]
            texts[model] = whole.choices[0].message.content
            assert "".join(part.choices[0].delta.content or "" for part in parts).strip() == texts[model]
            assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
            assert whole.usage.completion_tokens <= 12
        assert texts["base"] != texts["tuned"], "one of them has the adapter on"
        again = client.chat.completions.create(model="base", temperature=0, **CHAT)
        assert again.choices[0].message.content == texts["base"]
        assert client.completions.create(model="tuned", prompt="Join", max_tokens=3, temperature=0).choices[0].text is not None


REFUSED: list[tuple[str, Any, dict[str, Any], int, str]] = [
    ("/v1/models", None, {"token": None}, 401, "token is missing"),
    ("/v1/models", None, {"token": "wrong"}, 401, "token is missing"),
    ("/v1/models", None, {"host": "evil.example:80"}, 403, "this machine alone"),
    ("/v1/chat/completions", b"{", {}, 400, "not JSON"),
    ("/v1/chat/completions", b"[]", {}, 400, "not a JSON object"),
    ("/v1/chat/completions", {"messages": []}, {}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "alien", "content": "x"}]}, {}, 400, "role"),
    ("/v1/chat/completions", CHAT | {"model": "gpt-4"}, {}, 404, "base, tuned"),
    ("/v1/chat/completions", CHAT | {"temperature": "hot"}, {}, 400, "temperature"),
    ("/v1/chat/completions", CHAT | {"n": 3}, {}, 400, "one answer at a time"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c " * 400}]}, {}, 400, "the model takes 256"),
    ("/nowhere", None, {}, 404, "there is no"),
    ("/ab/vote", {"id": "x", "choice": "left"}, {}, 404, "no such pair"),
]


def test_what_is_not_understood_is_refused_with_a_sentence(served: Any) -> None:
    for path, body, given, status, told in REFUSED:
        code, answer = asked(served, path, body, **given)
        assert (code, told in str(answer)) == (status, True), (path, body, answer)
    assert asked(served, "/health", token=None)[0] == 200


def test_answers_are_compared_blind_and_kept_as_rows(served: Any, tmp_path: Path) -> None:
    seen = set()
    for number in range(6):
        code, pair = asked(served, "/ab/ask", {"prompt": f"Join amber and {number}", "max_tokens": 8})
        assert code == 200 and set(pair) == {"id", "left", "right"}
        code, counts = asked(served, "/ab/vote", {"id": pair["id"], "choice": "same" if number == 5 else "left"})
        assert code == 200
        row = json.loads(served.kept.read_text().splitlines()[-1])
        if number < 5:
            assert row["chosen"] == pair["left"] and row["rejected"] == pair["right"]
            seen.add(row["voted"])
    assert counts["tuned"] + counts["base"] == 5 and counts["same"] == 1 and 0 < counts["p_value"] <= 1
    assert asked(served, "/ab/vote", {"id": pair["id"], "choice": "left"})[0] == 404, "a pair is judged once"
    page = urllib.request.urlopen(served.page, timeout=10).read().decode()
    assert "random order" in page and not re.search(r"https?://", page), "nothing is loaded from elsewhere"
    metrics = asked(served, "/metrics")[1]
    assert 'holdfast_requests_total{model="tuned"}' in metrics


def test_preferences_are_rows_that_data_collect_and_preference_training_read(tmp_path: Path, call: Any) -> None:
    shown = {"prompt": "How do I list files?", "answers": {"base": "dir", "tuned": "ls -la"}, "order": ["tuned", "base"]}
    rows = [preference_row(shown, choice, "run") for choice in ("left", "right", "left", "same")]
    assert [row["voted"] for row in rows] == ["tuned", "base", "tuned", "same"]
    file = tmp_path / "preferences.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {k: v for k, v in tally(file).items() if k != "interval"} == {"tuned": 2, "base": 1, "same": 1, "p_value": 1.0}
    answer = call("collect", file, "--out", tmp_path / "rows.jsonl")
    assert (answer["rows"], answer["duplicates"], answer["by_reason"]) == (2, 1, {"no_response": 1})
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["completion"] == "ls -la"
    pair = parse_pair(rows[1], lambda value: parse_example(value, "auto"))
    assert (pair.messages[-1].content, pair.worse[-1].content) == ("dir", "ls -la")


def test_bad_input_is_answered_before_a_model_is_loaded(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = [(["--port", str(taken.getsockname()[1])], "cannot be used"), (["--port", "99999"], "below 65536")]
        cases += [(["--preferences", "x"], "is for --ab"), (["--ab", "--preferences", str(tmp_path / "no/file")], "cannot be written")]
        for given, told in cases:
            assert main(["serve", str(adapter), *given]) == 2
            assert told in capsys.readouterr().err
    assert holdfast("serve", tmp_path / "nothing").returncode == 2
