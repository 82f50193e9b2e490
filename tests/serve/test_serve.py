"""Base and tuned model behind one endpoint: the openai client, the token, streams, and answers compared blind."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from conftest import holdfast
from holdfast.cli.commands.serve import _tell_preferred
from holdfast.cli.main import main
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.preferences import parse_pair
from holdfast.serve.engines import AnswerRequest, Transformers
from holdfast.serve.preferences import Blind, preference_row, tally
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
    command += ["--context", 200]
    child = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout and child.stderr
    line = child.stdout.readline()
    assert line, child.stderr.read()
    ready = json.loads(line)
    yield SimpleNamespace(**ready, kept=kept)
    child.send_signal(signal.SIGTERM)
    out, said = child.communicate(timeout=300)
    assert child.returncode == 0 and out == "", "one line of JSON, and no more"
    assert ("tuned preferred" in said) == kept.exists(), "told once no vote follows"


def asked(served: Any, path: str, body: Any = None, token: str | None = "", host: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Host": host} if host else {})
    if token is not None:
        headers["Authorization"] = f"Bearer {token or served.token}"
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(served.url + path, data, headers), timeout=300) as answer:
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
            assert whole.usage.completion_tokens == 12 or whole.choices[0].finish_reason == "stop"
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
    ("/v1/chat/completions", CHAT | {"max_tokens": 0}, {}, 400, "max_tokens"),
    ("/v1/chat/completions", CHAT | {"max_tokens": True}, {}, 400, "max_tokens"),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}, {}, 400, "response_format"),
    ("/v1/chat/completions", CHAT | {"tools": [{"type": "function"}]}, {}, 400, "tools"),
    ("/v1/chat/completions", CHAT | {"logprobs": True}, {}, 400, "logprobs"),
    ("/v1/chat/completions", CHAT | {"frequency_penalty": 0.5}, {}, 400, "frequency_penalty"),
    ("/v1/chat/completions", CHAT | {"min_p": 0.1}, {}, 400, "min_p"),
    ("/v1/completions", {"prompt": "x", "logprobs": 0}, {}, 400, "logprobs"),
    ("/v1/chat/completions", CHAT | {"stop": [""]}, {}, 400, "stop"),
    ("/v1/chat/completions", CHAT | {"stream_options": {"x": 1}}, {}, 400, "stream_options"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c " * 400}]}, {}, 400, "takes 200; start it with --context"),
    ("/nowhere", None, {}, 404, "there is no"),
    ("/ab/vote", {"id": "x", "choice": "left"}, {}, 404, "no such pair"),
]


def test_what_is_not_understood_is_refused_with_a_sentence(served: Any) -> None:
    for path, body, given, status, told in REFUSED:
        code, answer = asked(served, path, body, **given)
        assert (code, told in str(answer)) == (status, True), (path, body, answer)
    code, health = asked(served, "/health", token=None)
    assert (code, health["context"], served.context) == (200, 200, 200)
    assert [model["max_model_len"] for model in asked(served, "/v1/models")[1]["data"]] == [200, 200]


def test_values_that_ask_for_nothing_are_taken(served: Any) -> None:
    asks = {"n": None, "top_p": 0, "temperature": 1, "logprobs": False, "tools": [], "presence_penalty": 0, "user": "me"}
    assert asked(served, "/v1/chat/completions", CHAT | asks)[0] == 200


def test_an_answer_ends_before_a_stop_text(served: Any) -> None:
    body = {"prompt": "Join amber and 37", "max_tokens": 24, "temperature": 0}
    whole = asked(served, "/v1/completions", body)[1]["choices"][0]["text"]
    for stop in (whole[3:6], whole[-2:], "nowhere"):
        choice = asked(served, "/v1/completions", body | {"stop": ["never there", stop]})[1]["choices"][0]
        assert choice["text"] == whole.partition(stop)[0]
        assert stop not in whole or choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("goes_on", "text"), [(True, " world again"), (False, "world again")])
def test_a_word_behind_a_prompt_keeps_its_space(goes_on: bool, text: str) -> None:
    """A tokenizer whose space is a part of the word writes none before the first word of a text."""
    words = [("<unk>", 0.0), ("▁hello", -1.0), ("▁world", -1.0), ("▁again", -1.0)]
    tokenizer = Tokenizer(models.Unigram(words, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    process = SimpleNamespace(
        stdin=io.BytesIO(), stdout=io.BytesIO(b"".join(b'{"of":1,"id":%d}\n' % number for number in (2, 3)) + b'{"of":1,"end":"stop"}\n')
    )
    engine = object.__new__(Transformers)
    engine._lock, engine._number, engine._codec = threading.Lock(), 0, SimpleNamespace(tokenizer=tokenizer)  # type: ignore[assignment]
    engine._child = SimpleNamespace(process=process, asked=lambda: contextlib.nullcontext(lambda: None))  # type: ignore[assignment]
    wanted = AnswerRequest("tuned", [1], 8, 0.0, 1.0, 0, goes_on=goes_on)
    assert "".join(piece for piece, _, _ in engine.stream(wanted)) == text


def test_answers_are_drawn_from_all_tokens_and_given_as_they_are(served: Any) -> None:
    """No engine leaves out tokens by a limit of its own: llama.cpp takes the 40 likeliest, and those above a twentieth of the first.

    And no space of a completion is taken away: it parts a word from the prompt.
    """
    texts = set()
    for seed in range(240):
        body = {"prompt": "Tell", "max_tokens": 1, "temperature": 5, "seed": seed}
        texts.add(text := asked(served, "/v1/completions", body)[1]["choices"][0]["text"])
        if text.isspace() or seed < 3:
            streamed = asked(served, "/v1/completions", body | {"stream": True})[1].splitlines()
            assert text == "".join(json.loads(line[6:])["choices"][0]["text"] for line in streamed if line.startswith("data: {"))
    assert len(texts) > 45 and any(text.isspace() for text in texts)


def test_neither_model_answers_from_what_was_computed_with_the_other(served: Any) -> None:
    """An engine that keeps computed prompts must not give those of one model to the other."""
    draws, first = random.Random(0), dict[tuple[str, str], str]()
    prompts = [
        "Tell",
        "Join amber and 3, then say it again to me",
        "Zebra crossing: what is it about, tell me now",
        "Join birch and 44 and more",
    ]
    for _ in range(60):
        model, prompt = draws.choice(["base", "tuned"]), draws.choice(prompts)
        body = {"model": model, "prompt": prompt, "max_tokens": 9, "temperature": 0}
        text = asked(served, "/v1/completions", body)[1]["choices"][0]["text"]
        assert text == first.setdefault((model, prompt), text)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_shifts_no_answer(served: Any, streamed: bool) -> None:
    prompts = [f"Join {word} and {number}" for word, number in (("amber", 3), ("birch", 44), ("cedar", 555))]
    bodies = [{"model": model, "prompt": prompt, "max_tokens": 9, "temperature": 0} for prompt in prompts for model in ("base", "tuned")]
    right = [asked(served, "/v1/completions", body)[1]["choices"][0]["text"] for body in bodies]
    left = json.dumps({"prompt": "Tell", "max_tokens": 200, "stream": streamed}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer {served.token}\r\nContent-Length: {len(left)}\r\n\r\n"
    )
    for body, wanted in zip(bodies, right, strict=True):
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as line:
            line.sendall(head.encode() + left)
            if streamed:
                assert line.recv(20)
        assert asked(served, "/v1/completions", body)[1]["choices"][0]["text"] == wanted


def test_answers_are_compared_blind_and_kept_as_rows(served: Any, tmp_path: Path) -> None:
    seen = set()
    for number in range(6):
        code, pair = asked(served, "/ab/ask", {"prompt": f"Join amber and {number}", "max_tokens": 8})
        assert code == 200 and set(pair) == {"id", "left", "right"}
        told = asked(served, "/ab/vote", {"id": pair["id"], "choice": "same" if number == 5 else "left"})
        assert told == (200, {"kept": number + 1}), "a count by model tells which side was which"
        row = json.loads(served.kept.read_text().splitlines()[-1])
        if number < 5:
            assert row["chosen"] == pair["left"] and row["rejected"] == pair["right"]
            seen.add(row["voted"])
    counts = tally(served.kept)
    assert counts["tuned"] + counts["base"] == 5 and counts["same"] == 1 and 0 < counts["p_value"] <= 1
    assert asked(served, "/ab/vote", {"id": pair["id"], "choice": "left"})[0] == 404, "a pair is judged once"
    page = urllib.request.urlopen(served.page, timeout=300).read().decode()
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


def test_votes_on_one_version_say_nothing_of_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve NAME` follows promotions with one file of votes: what people thought of version 1 is no verdict on version 2."""
    shown = {"prompt": "Tell", "answers": {"base": "a", "tuned": "b"}, "order": ["tuned", "base"]}
    votes = [("helper 1", "right")] * 12 + [("helper 2", "left")] * 8 + [("helper 2", "same")]
    file = tmp_path / "preferences.jsonl"
    file.write_text("".join(json.dumps(preference_row(shown, choice, name)) + "\n" for name, choice in votes))
    _tell_preferred(Blind(file))
    first, second = capsys.readouterr().err.splitlines()
    assert "helper 1: tuned preferred 0, base 12" in first and "helper 2: tuned preferred 8, base 0, no difference 1" in second
    assert "p = 0.0078" in second
    _tell_preferred(Blind(file, ("tuned", "routed")))
    assert capsys.readouterr().err == ""


def test_bad_input_is_answered_before_a_model_is_loaded(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = [(["--port", str(taken.getsockname()[1])], "cannot be used"), (["--port", "99999"], "below 65536")]
        cases += [(["--preferences", "x"], "is for --ab"), (["--ab", "--preferences", str(tmp_path / "no/file")], "cannot be written")]
        cases += [(["--context", given], "takes 1 to 256 tokens") for given in ("0", "-1", "257")]
        cases += [(["--ab-models", "base,tuned"], "is for --ab"), (["--ab", "--ab-models", "tuned,routed"], "two of base, tuned")]
        cases += [(["--ab", "--ab-models", one], "not two models with a comma") for one in ("tuned", "tuned,", "a,b,c", "tuned,tuned")]
        for given, told in cases:
            assert main(["serve", str(adapter), *given]) == 2
            assert told in capsys.readouterr().err
        (tmp_path / "kept").write_bytes(b"\0\0\n")
        (tmp_path / "folder").mkdir()
        for kept in (tmp_path / "kept", tmp_path / "folder"):
            assert main(["serve", str(adapter), "--ab", "--preferences", str(kept)]) == 1
            assert "is damaged" in capsys.readouterr().err
    assert holdfast("serve", tmp_path / "nothing").returncode == 2
