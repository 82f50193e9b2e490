"""Rows from real use: what each kind of log gives, what is never written, and that nothing is lost or taken twice."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import lines, write_rows
from holdfast.book import cards_of
from holdfast.data.collect.pairs import record_of
from holdfast.data.collect.record import Record
from holdfast.data.collect.redact import redact
from holdfast.data.collect.redisstream import unpacked

Call = Callable[..., dict[str, Any]]


def pair(question: str, answer: str, **more: Any) -> dict[str, Any]:
    response = {"model": "small", "choices": [{"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]}
    return {"request": {"model": "small", "messages": [{"role": "user", "content": question}]}, "response": response} | more


def collect(call: Call, folder: Path, records: list[dict[str, Any]], *more: object, name: str = "log.jsonl") -> dict[str, Any]:
    return call("collect", write_rows(folder / name, records), "--out", folder / "out.jsonl", *more)


def test_pairs_become_conversations(call: Call, tmp_path: Path) -> None:
    answer = collect(call, tmp_path, [pair("What is 2+2?", "4"), pair("Name a tree", "birch", metadata={"category": "trees"})])
    assert answer["rows"] == 2 and answer["by_category"] == {"requests": 1, "trees": 1}
    first, second = lines(tmp_path / "out.jsonl")
    assert first["messages"] == [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "4"}]
    assert first["source"].endswith("log.jsonl:1") and first["model"] == "small" and second["category"] == "trees"
    assert call("check", tmp_path / "out.jsonl")["kept"] == 2


CALLED = {"type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
CHUNKS = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in ("bir", "ch")]
CHUNKS.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
ASKED = {"messages": [{"role": "user", "content": "Name a tree"}]}
FORMS: dict[str, dict[str, Any]] = {
    "bodies as text": {"request": json.dumps(ASKED), "response": json.dumps(pair("", "birch")["response"])},
    "bodies under body": {"request": {"body": ASKED}, "response": {"status_code": 200, "body": pair("", "birch")["response"]}},
    "messages beside the response": {**ASKED, "response": pair("", "birch")["response"]},
    "server-sent events": {
        "request": ASKED,
        "response": "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n",
    },
    "chunks": {"request": ASKED, "response": CHUNKS},
    "completions": {"request": {"prompt": "Name a tree"}, "response": {"choices": [{"text": "birch", "finish_reason": "stop"}]}},
    "llama.cpp": {"request": {"prompt": "Name a tree"}, "response": {"content": "birch", "stop_type": "eos"}},
    "responses": {
        "request": {"input": "Name a tree", "instructions": "Be short"},
        "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "birch"}]}]},
    },
    "plain texts": {"prompt": "Name a tree", "response": "birch"},
    "instruction": {"instruction": "Name a tree", "input": "", "output": "birch"},
    "instruction without input": {"instruction": "Name a tree", "output": "birch"},
    "input and output": {"input": "Name a tree", "output": "birch"},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_record_gives_the_same_row(call: Call, tmp_path: Path, form: str) -> None:
    answer = collect(call, tmp_path, [FORMS[form]])
    assert answer["rows"] == 1, lines(tmp_path / "out.jsonl.rejects.jsonl")
    row = json.dumps(lines(tmp_path / "out.jsonl"))
    assert "Name a tree" in row and '"birch"' in row
    assert ("Be short" in row) == (form == "responses")


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_no_part_of_a_streamed_answer_is_lost_for_a_sign_in_it(call: Call, tmp_path: Path, sign: str, end: str) -> None:
    chunks = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in ("bir", f"c{sign}h", " tree")]
    told = [json.dumps(chunk, ensure_ascii=False) for chunk in (*chunks, CHUNKS[-1])]
    collect(call, tmp_path, [{"request": ASKED, "response": "".join(f"data: {one}{end}{end}" for one in (*told, "[DONE]"))}])
    (row,) = lines(tmp_path / "out.jsonl")
    assert row["messages"][-1]["content"] == f"birc{sign}h tree"


def test_rows_that_call_otherwise_are_no_duplicates(call: Call, tmp_path: Path) -> None:
    def calling(at: str, offered: str, number: str) -> dict[str, Any]:
        function = {"name": "look", "arguments": json.dumps({"at": at})}
        record = pair("Go on, please: look at what is there and tell me all about it, as you did before", "")
        record["request"]["tools"] = [{"type": "function", "function": {"name": offered, "parameters": {}}}]
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": number, "type": "function", "function": function}]}
        record["response"]["choices"][0] = {"message": message, "finish_reason": "tool_calls"}
        return record

    answer = collect(
        call, tmp_path, [calling("sky", "look", "1"), calling("sea", "look", "2"), calling("sky", "find", "3"), calling("sky", "look", "4")]
    )
    assert (answer["rows"], answer["duplicates"]) == (3, 1)
    out = tmp_path / "out.jsonl"
    checked = call("check", out)
    assert (checked["duplicates"], checked["conflicting_answers"]) == (0, 1)
    write_rows(tmp_path / "twice.jsonl", [json.loads(line) for line in out.read_text().splitlines() * 2])
    cleaned = call("clean", tmp_path / "twice.jsonl", "--out", tmp_path / "clean.jsonl", "--drop", "duplicate")
    assert (cleaned["kept"], cleaned["by_reason"]) == (3, {"duplicate": 3})


@pytest.mark.parametrize(
    ("beside", "inside", "consent"),
    [
        ({"consent": "no"}, {"consent": "yes"}, False),
        ({"consent": "yes"}, {"consent": "no"}, False),
        ({"opt_out": "yes"}, {"consent": "yes"}, False),
        ({"metadata": {"consent": "no"}}, {"metadata": {"consent": "yes"}}, False),
        ({"consent": "yes"}, {"consent": "yes"}, True),
        ({}, {"consent": "yes"}, True),
        ({"consent": "yes"}, {}, True),
        ({}, {}, None),
    ],
)
def test_a_no_beside_a_record_or_in_it_is_a_no(beside: dict[str, Any], inside: dict[str, Any], consent: bool | None) -> None:
    found = record_of(unpacked({"data": pair("q", "a", **inside), **beside}), "asked/1", "", "redis")
    assert isinstance(found, Record) and found.consent is consent


CARD = 4111111111111111


def test_redaction_leaves_json_what_it_is(call: Call, tmp_path: Path) -> None:
    said = json.dumps({"number": CARD, "all": [CARD, 1], "why": f"a, {CARD}, \\ b", "quoted": f'"{CARD}"'})
    expected = {"number": "[CARD]", "all": ["[CARD]", 1], "why": "a, [CARD], \\ b", "quoted": '"[CARD]"'}
    once = redact(said, "all", Counter())
    assert json.loads(once) == expected and redact(once, "all", Counter()) == once
    assert redact(f"pay with {CARD}, [CARD] or {{x}}", "all", Counter()) == "pay with [CARD], [CARD] or {x}"
    record = pair("Pay", "")
    called = {"type": "function", "function": {"name": "pay", "arguments": json.dumps({"with": CARD})}}
    record["response"]["choices"][0] = {"message": {"role": "assistant", "content": said, "tool_calls": [called]}, "finish_reason": "stop"}
    assert collect(call, tmp_path, [record])["rows"] == 1
    (row,) = lines(tmp_path / "out.jsonl")
    assert json.loads(row["messages"][-1]["content"]) == expected
    assert json.loads(row["messages"][-1]["tool_calls"][0]["function"]["arguments"]) == {"with": "[CARD]"}


def test_tool_calls_and_tools_are_kept(call: Call, tmp_path: Path) -> None:
    record = pair("Is it blue?", "")
    record["request"]["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    record["response"]["choices"][0] = {
        "message": {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        "finish_reason": "tool_calls",
    }
    collect(call, tmp_path, [record])
    (row,) = lines(tmp_path / "out.jsonl")
    assert row["tools"] == record["request"]["tools"] and row["messages"][-1]["tool_calls"] == [CALLED]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (pair("a", "b", status_code=500), "failed_request"),
        ({"request": ASKED, "response": {"error": {"message": "overloaded"}}}, "failed_request"),
        ({"request": ASKED, "response": {"choices": [{"message": {"content": "cut"}, "finish_reason": "length"}]}}, "cut_off_answer"),
        ({"request": ASKED, "response": CHUNKS[:2]}, "cut_off_answer"),
        ({"request": ASKED, "response": {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}}, "filtered_answer"),
        ({"request": ASKED}, "no_response"),
        ({"request": {"input": [0.1], "model": "e"}, "response": {"data": []}}, "no_response"),
        ({"request": {"model": "e"}, "response": pair("", "x")["response"]}, "no_conversation"),
        ({"request": {"prompt": [1, 2, 3]}, "response": {"choices": [{"text": "x"}]}}, "wrong_type"),
        ({"nothing": "known"}, "missing_field"),
        (pair("a", "   "), "empty_answer"),
        ({"request": ASKED, "response": {"choices": [None]}}, "no_response"),
        ({"request": ASKED, "response": {"choices": "x"}}, "no_response"),
    ],
)
def test_what_is_no_row_is_kept_with_its_reason(call: Call, tmp_path: Path, record: dict[str, Any], reason: str) -> None:
    answer = collect(call, tmp_path, [record, pair("a", "b")])
    assert answer["by_reason"] == {reason: 1} and answer["rows"] == 1 and answer["read"] == 2
    (reject,) = lines(tmp_path / "out.jsonl.rejects.jsonl")
    assert reject["line"] == 1 and json.loads(reject["raw"]) == record


def test_consent_is_respected_and_nothing_of_a_refusal_is_written(call: Call, tmp_path: Path) -> None:
    records = [
        pair("one", "1", consent=True),
        pair("very private two", "2", consent=False),
        pair("very private three", "3", metadata={"opt_out": "true"}),
        pair("four", "4"),
        pair("very private five", "5", consent="perhaps"),
        pair("very private six", "6", consent=True, metadata={"do_not_train": True}),
    ]
    assert collect(call, tmp_path, records)["by_reason"] == {"no_consent": 4}
    assert [row["messages"][0]["content"] for row in lines(tmp_path / "out.jsonl")] == ["one", "four"]
    assert "private" not in "".join(file.read_text() for file in tmp_path.glob("out*"))
    asked = call("collect", tmp_path / "log.jsonl", "--out", tmp_path / "asked.jsonl", "--require-consent")
    assert asked["rows"] == 1 and asked["by_reason"] == {"no_consent": 4, "consent_unknown": 1}


KEY = "sk-proj-" + "a1B2" * 10
SECRETS = [
    f"my key is {KEY} ok",
    "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENGbPxRfiCYzzzzzzzKEY",
    "curl -u admin:hunter22 https://x.org",
    "postgres://bob:s3cr3tpw@db.lan/x",
    "Authorization: Bearer abcdef0123456789abcdef",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabcdef\n-----END RSA PRIVATE KEY-----",
    '{"password": "correct-horse-9"}',
    "mysql -uroot -pS3cret99 shop",
]
PERSONAL = [
    "write to jane.doe@mailbox.org",
    "call +49 170 1234567 now",
    "card 4111 1111 1111 1111",
    "IBAN DE89 3704 0044 0532 0130 00",
    "from 93.184.215.14 today",
    "in /home/janedoe/work",
    "SSN 078-05-1120",
]
HARMLESS = [
    "ssh root@10.0.0.1 and ping 8.8.8.8, then git clone git@github.com:a/b.git",
    "version 1.2.3.4 of 2024-05-01 10:20:30, id 1234567890123",
    "password: $PASSWORD, token=<your-token>, api_key: ${KEY}",
    "the password must be changed; token count: many",
    "torch.tensor tokens = tokenizer(text)",
    "/home/user/models and port 8080-9090, AKIAIOSFODNN7EXAMPLE",
]


@pytest.mark.parametrize("text", [*SECRETS, *PERSONAL])
def test_secrets_and_personal_data_are_taken_out(text: str) -> None:
    found: Counter[str] = Counter()
    clean = redact(text, "all", found)
    assert "[" in clean and found
    for word in (
        KEY,
        "wJalrX",
        "hunter22",
        "s3cr3tpw",
        "abcdef01",
        "MIIE",
        "correct-horse",
        "S3cret99",
        "jane",
        "1234567",
        "4111",
        "3704",
        "93.184",
        "078-05",
    ):
        assert word not in clean
    assert redact(clean, "all", Counter()) == clean
    assert (redact(text, "secrets", Counter()) == text) == (text in PERSONAL)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stay(text: str) -> None:
    assert redact(text, "all", Counter()) == text


def test_what_data_check_notes_is_redacted() -> None:
    for name in ("secret", "email-address"):
        for hit in cards_of("checks_data")[name].hits:
            text = " ".join(hit.values())
            assert redact(text, "all", Counter()) != text


def test_secrets_reach_neither_the_rows_nor_the_rejects(call: Call, tmp_path: Path) -> None:
    records = [
        pair(f"use {KEY}", "jane.doe@mailbox.org"),
        pair(f"bad {KEY}", "x", status_code=500),
        pair("fine", "x", rating={"comment": KEY}),
    ]
    answer = collect(call, tmp_path, records)
    assert answer["redacted"] == {"secret": 2, "email": 1}
    assert KEY not in "".join(file.read_text() for file in tmp_path.glob("out*"))
    assert lines(tmp_path / "out.jsonl")[0]["messages"][1]["content"] == "[EMAIL]"


def test_the_same_command_again_adds_nothing_and_new_rows_are_added(call: Call, tmp_path: Path) -> None:
    records = [pair("one", "1"), pair("ONE ", "1"), pair("one", "another")]
    assert collect(call, tmp_path, records)["duplicates"] == 1
    before = (tmp_path / "out.jsonl").read_bytes()
    again = collect(call, tmp_path, [*records, pair("two", "2")])
    assert (again["rows"], again["duplicates"], again["in_file"]) == (1, 3, 3)
    assert (tmp_path / "out.jsonl").read_bytes().startswith(before)


def test_ratings_are_kept_also_those_that_come_later(call: Call, tmp_path: Path) -> None:
    collect(call, tmp_path, [pair("one", "1"), pair("two", "2", rating=5), pair("three", "3")])
    answer = collect(call, tmp_path, [pair("one", "1", feedback="up"), pair("two", "2", rating=1), pair("one", "1", rating=3)])
    assert answer["rated_later"] == 1 and answer["rows"] == 0
    assert [row.get("rating") for row in lines(tmp_path / "out.jsonl")] == [3, 5, None]


@pytest.mark.parametrize("form", [dict, json.dumps], ids=["objects", "texts"])
def test_a_whole_number_beyond_64_bits_keeps_its_digits(call: Call, tmp_path: Path, form: Callable[[Any], Any]) -> None:
    """Those of an object were rounded, those of a body as text ended the command; a rating that came later rounded what stood there."""
    wei = 10**22 + 1
    record = pair("Pay", "")
    called = {"type": "function", "function": {"name": "pay", "arguments": {"wei": wei}}}
    record["response"]["choices"][0] = {
        "message": {"role": "assistant", "content": "", "tool_calls": [called]},
        "finish_reason": "tool_calls",
    }
    record = {name: form(body) for name, body in record.items()}
    for rating in ({}, {"rating": 5}):
        assert collect(call, tmp_path, [record | rating])["duplicates"] == len(rating)
        (row,) = lines(tmp_path / "out.jsonl")
        assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == {"wei": wei} and row.get("rating") == rating.get("rating")


def test_a_file_of_somebody_is_appended_to_and_never_cut(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"prompt": "name a tree", "completion": "birch"}\nno JSON at all\n{"text": "the last line has no end"}')
    before = out.read_bytes()
    collect(call, tmp_path, [{"prompt": "Name a  tree", "response": "birch"}, pair("one", "1")])
    assert out.read_bytes().startswith(before + b"\n") and len(out.read_bytes().splitlines()) == 4


def test_a_line_that_a_kill_tore_goes_to_the_rejects(call: Call, tmp_path: Path) -> None:
    collect(call, tmp_path, [pair("one", "1")])
    with (tmp_path / "out.jsonl").open("a") as handle:
        handle.write('{"messages": [{"role": "user", "con')
    assert collect(call, tmp_path, [pair("one", "1"), pair("two", "2")])["rows"] == 1
    assert len(lines(tmp_path / "out.jsonl")) == 2
    assert lines(tmp_path / "out.jsonl.rejects.jsonl")[0]["reason"] == "torn_line"


LLAMA = """main: server is listening on http://127.0.0.1:8080 - starting the main loop
srv  log_server_r: request: GET /health 127.0.0.1 200
srv  log_server_r: request:  \nsrv  log_server_r: response: {"status":"ok"}
srv  params_from_: Chat format: Content-only
srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200
srv  log_server_r: request:  {"messages":[{"role":"user","content":"Name a tree"}],
  "temperature": 0.5}
srv  log_server_r: response: {"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"birch"}}],"model":"q"}
0.18.729.178 D srv  log_server_r: request:  {"prompt":"Name a bird","n_predict":4}
0.18.729.180 D srv  log_server_r: response: {"content":"wren","stop":true,"stop_type":"limit"}
srv          stop: data stream, to_send: data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"ro"},"finish_reason":null}]}
srv          stop: data stream, to_send: data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":null}]}
srv          stop: data stream, to_send: data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
srv  log_server_r: request:  {"messages":[{"role":"user","content":"Name another bird"}],"stream":true}
srv  log_server_r: response: {end}
srv  log_server_r: request:  {"messages":[{"role":"user","content":"First of two"}]}
srv  log_server_r: request:  {"messages":[{"role":"user","content":"Second of two"}]}
srv  log_server_r: response: {"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"whose?"}}]}
srv  log_server_r: response: {"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"mine"}}]}
{old}
srv  log_server_r: request:  {"messages":[{"role":"user","content":"Too late"}]}
"""


OLD = {
    "function": "log_server_request",
    "msg": "request",
    "request": '{"prompt": "old form"}',
    "response": '{"content": "yes", "stop": true}',
}


def test_a_llama_server_log_gives_its_conversations(call: Call, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LLAMA.replace("{end}", "").replace("{old}", json.dumps(OLD)))
    answer = call("collect", tmp_path / "server.log", "--out", tmp_path / "out.jsonl")
    rows = lines(tmp_path / "out.jsonl")
    found = [(row["messages"][0]["content"], row["messages"][-1]["content"]) for row in rows if "messages" in row]
    assert ("Name a tree", "birch") in found and ("Name another bird", "rook") in found
    assert "whose?" not in str(rows), "an answer must not be given to another question"
    assert [row["completion"] for row in rows if "prompt" in row] == ["yes"]
    assert answer["by_reason"] == {"cut_off_answer": 1, "mixed_up": 1, "no_response": 1}
    assert answer["by_category"] == {"llama-server": answer["rows"]}


BASH = "#1700000000\nls\n#1700000001\nfor i in 1 2; do\n  echo $i\ndone\n#1700000002\ntar czf x.tgz dir # pack the folder\n"
ZSH = ": 1700000000:0;echo one \\\ntwo\n: 1700000001:0;git \n# show all disks\nlsblk -f\n"
FISH = "- cmd: echo a\\nb \\\\ c\n  when: 1700000000\n- cmd: curl -u me:hunter22 https://x.org\n  when: 1700000001\n  paths:\n    - x\n"


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        (
            ".bash_history",
            BASH,
            [{"text": "for i in 1 2; do\n  echo $i\ndone"}, {"instruction": "pack the folder", "output": "tar czf x.tgz dir"}],
        ),
        (".zsh_history", ZSH, [{"text": "echo one \ntwo"}, {"instruction": "show all disks", "output": "lsblk -f"}]),
        ("fish_history", FISH, [{"text": "echo a\nb \\ c"}, {"text": "curl -u me:[SECRET] https://x.org"}]),
    ],
)
def test_a_shell_history_is_read_when_its_owner_says_so(
    call: Call, tmp_path: Path, name: str, text: str, rows: list[dict[str, str]]
) -> None:
    (tmp_path / name).write_text(text)
    refused = call("collect", tmp_path / name, "--out", tmp_path / "out.jsonl", code=2)
    assert "is a shell history" in refused["error"] and "--shell-history" in refused["hint"]
    assert not (tmp_path / "out.jsonl").exists()
    call("collect", tmp_path / name, "--out", tmp_path / "out.jsonl", "--shell-history")
    found = lines(tmp_path / "out.jsonl")
    assert [{key: row[key] for key in ("text", "instruction", "output") if key in row} for row in found] == rows
    assert all(row["category"] == "shell" for row in found)


def test_a_hash_inside_of_quotes_begins_no_comment(call: Call, tmp_path: Path) -> None:
    commands = ["sed -i 's/ # old//' notes.txt", 'git commit -m "mend # 12 at last"', 'echo "a # b" # say it', "du -sh . # how large"]
    (tmp_path / ".bash_history").write_text("\n".join(commands) + "\n")
    call("collect", tmp_path / ".bash_history", "--out", tmp_path / "out.jsonl", "--shell-history")
    found = [{key: row[key] for key in ("text", "instruction", "output") if key in row} for row in lines(tmp_path / "out.jsonl")]
    assert found == [
        {"text": commands[0]},
        {"text": commands[1]},
        {"instruction": "say it", "output": 'echo "a # b"'},
        {"instruction": "how large", "output": "du -sh ."},
    ]


def test_zsh_bytes_are_read_as_the_shell_means_them(call: Call, tmp_path: Path) -> None:
    plain = ": 1700000000:0;echo grün à\n".encode()
    written = b"".join(b"\x83" + bytes([byte ^ 32]) if byte in range(0x83, 0xA3) else bytes([byte]) for byte in plain)
    (tmp_path / ".zsh_history").write_bytes(written)
    call("collect", tmp_path / ".zsh_history", "--out", tmp_path / "out.jsonl", "--shell-history")
    assert lines(tmp_path / "out.jsonl")[0]["text"] == "echo grün à"


def test_two_commands_do_not_write_to_one_file(call: Call, tmp_path: Path) -> None:
    with (tmp_path / ".out.jsonl.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        answer = call("collect", write_rows(tmp_path / "log.jsonl", [pair("a", "b")]), "--out", tmp_path / "out.jsonl", code=1)
    assert "another `data collect` is writing" in answer["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.jsonl",), "nowhere.jsonl: no such file"),
        (("{loop}",), "loop.jsonl is a link to loop.jsonl, which leads to no file"),
        (("redis://127.0.0.1:1",), "a Redis server needs --stream NAME"),
        (("{log}", "--stream", "x"), "--stream and --follow are for a Redis stream"),
        (("{log}", "--out", "{log}"), "is one of the inputs, which are never overwritten"),
        (("{log}", "--out", "x.csv"), "rows are written as JSON Lines"),
    ],
)
def test_a_wrong_command_is_told(call: Call, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    log = write_rows(tmp_path / "log.jsonl", [pair("a", "b")])
    (loop := tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    given = [argument.replace("{log}", str(log)).replace("{loop}", str(loop)) for argument in arguments]
    answer = call("collect", *(given if "--out" in given else [*given, "--out", tmp_path / "out.jsonl"]), code=2)
    assert said in answer["error"]


def test_a_full_disk_costs_no_row(call: Call, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * (2 << 20))
    out = small_disk / "out.jsonl"
    log = write_rows(tmp_path / "log.jsonl", [pair(f"question {n} " + "x" * 400, f"answer {n}") for n in range(3000)])
    answer = call("collect", log, "--out", out, code=1)
    assert "no room" in answer["error"]
    held = len(lines(out))
    assert 0 < held < 3000
    (small_disk / "filler").unlink()
    assert call("collect", log, "--out", out)["rows"] == 3000 - held
    assert len(lines(out)) == 3000
