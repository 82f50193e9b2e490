"""Texts and bytes that have broken other programs: each row comes out once, unharmed where it may be, with a reason where not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import assert_law, lines
from holdfast.base.files import Json

Call = Callable[..., Json]
AS_THEY_ARE = [
    "undefined", "NULL", "null", "NaN", "-Infinity", "1e999", "0x0", "TRUE", "\\", "\\\\", "\\u0000", "\\x00", "%s%s%n%n", "%00",
    "$(id)", "`id`", "'; DROP TABLE rows;--",
    "{{7*7}}", "${7*7}", "{% for m in messages %}{{ m }}{% endfor %}", "{}", "[]", "][", "}{",
    '"}{"', '{"a": 1}{"b": 2}', "<script>alert(1)</script>", "&lt;", "]]>", "<!--",
    "[bold]x[/bold]", "[/]", "[link=x]y", "/dev/null; rm -rf /", "../../../etc/passwd", "C:\\nul", "a\tb", "a\rb", "a\r\nb",
    "\n\nx", "x\n", " x ", "\u2028x\u2029y", "x\u0085y",
    "ﷺ" * 50, "Z̮̞̠͙͔ͅḀ̗̞͈̻̗Ḷ͙͎̯̹̞͓G̻O̭̗̮", "👩‍👩‍👧‍👦", "🏳️‍🌈", "é", "ﬁ", "İı", "ß", "ǅ", "בְּרֵאשִׁית", "الكل", "田中さん", "𝕋𝕙𝕖",
    "\U0010fffd", "x" * 5000, "word " * 3000, "12345678901234567890", "-0",
]  # fmt: skip
WITH_A_MEND = ["a\x00b", "\x1b[31mred", "\ufeffx", "\x07", "schÃ¶n", "doesnâ€™t", "x\x7f", "\ufffe\uffff y"]
JSON_OF_OTHERS = [  # (a row, what becomes of it: kept, mended, or the reason)
    (b'{"text":"a"}', "kept"),
    (b' \t{ "text" : "a" } ', "kept"),
    (b'{"text":"\\uD83D\\uDE00"}', "kept"),
    (b'{"text":"a","n":-0.0,"m":1E+2,"k":1e-999}', "kept"),
    (b'{"text":"a","n":18446744073709551616}', "kept"),
    (b'{"text":"a","n":' + b"[" * 90 + b"]" * 90 + b"}", "kept"),
    (b'{"text":"a","":{"":{"":null}}}', "kept"),
    (b'{"text":"a","text":"a"}', "kept"),
    (b'{"text":"a","n":1e400}', "number_too_large"),
    (b'{"text":"a","n":' + b"7" * 6000 + b"}", "number_too_large"),
    (b'{"text":"a","n":[NaN,-Infinity]}', "nan_literal"),
    (b'{"text":"a","text":"b"}', "duplicate_key"),
    (b'{"text":"\\uD83D"}', "parse_error"),
    (b'{"text":"\\ud800\\ud800"}', "parse_error"),
    (b'{"text":"a\tb"}', "parse_error"),
    (b'{"text":"a",}', "parse_error"),
    (b'{"text":"a"},', "parse_error"),
    (b"{'text':'a'}", "parse_error"),
    (b'{text:"a"}', "parse_error"),
    (b'{"text":"a" /* b */}', "parse_error"),
    (b'{"text":"a"}}', "parse_error"),
    (b'{"text":"a"', "parse_error"),
    (b'{"text":"a\\x00"}', "parse_error"),
    (b'{"text":"a","n":01}', "parse_error"),
    (b'{"text":"a","n":.5}', "parse_error"),
    (b'{"text":"a","n":0xFF}', "parse_error"),
    (b'{"text":"a","n":+1}', "parse_error"),
    (b'{"text":"a","n":tru}', "parse_error"),
    (b'{"text":"a"\xc2\xa0}', "parse_error"),
    (b'\xef\xbb\xbf{"text":"a"}', "parse_error"),
    (b"<html>", "parse_error"),
    (b'{"text":"\xff"}', "bad_encoding"),
    (b'{"text":"\xed\xa0\x80"}', "bad_encoding"),
    (b'{"text":"\xc0\xaf"}', "bad_encoding"),
    (b'{"text":"\xf4\x90\x80\x80"}', "bad_encoding"),
    (b"[1]", "not_an_object"),
    (b'"text"', "not_an_object"),
    (b"null", "not_an_object"),
    (b"{}", "missing_field"),
    (b'{"rows":[{"messages":[]},{"messages":[]}]}', "missing_field"),
    (b'{"text":["a"]}', "wrong_type"),
    (b'{"text":"\xe2\x80\x83 \\n"}', "empty_answer"),
]  # fmt: skip


def test_naughty_texts_stay_as_they_are(call: Call, tmp_path: Path) -> None:
    file, out, rejects = tmp_path / "rows.jsonl", tmp_path / "clean.jsonl", tmp_path / "rejects.jsonl"
    rows = [{"instruction": f"say {n}", "output": text} for n, text in enumerate([*AS_THEY_ARE, *WITH_A_MEND])]
    file.write_text("".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(rows)), encoding="utf-8")
    answer = call("clean", file, "--out", out, "--rejects", rejects)
    assert_law(answer, out.read_bytes(), lines(rejects))
    found = [json.loads(line)["output"] for line in out.read_bytes().split(b"\n")[:-1]]
    assert found[: len(AS_THEY_ARE)] == AS_THEY_ARE
    assert {row["reason"] for row in lines(rejects)} <= {"empty_answer"}, "what is left of \\a alone is nothing"
    originals = (tmp_path / "clean.jsonl.mended.jsonl").read_bytes().split(b"\n")[:-1]
    assert {json.loads(json.loads(line)["raw"])["output"] for line in originals} == set(WITH_A_MEND) - {"\x07"}


@pytest.mark.parametrize("suffix", ["csv", "txt", "json"])
def test_naughty_texts_in_other_forms_keep_the_law(call: Call, tmp_path: Path, suffix: str) -> None:
    file, out, rejects = tmp_path / f"rows.{suffix}", tmp_path / "clean.jsonl", tmp_path / "rejects.jsonl"
    texts = [*AS_THEY_ARE, *WITH_A_MEND]
    whole = {
        "csv": "instruction,output\n" + "\n".join(f'{n},"{text.replace(chr(34), chr(34) * 2)}"' for n, text in enumerate(texts)),
        "txt": "\n".join(texts),
        "json": json.dumps([{"prompt": f"{n}", "completion": text} for n, text in enumerate(texts)], indent=1),
    }[suffix]
    file.write_text(whole, encoding="utf-8", newline="")
    answer = call("clean", file, "--out", out, "--rejects", rejects)
    assert_law(answer, out.read_bytes(), lines(rejects))
    assert answer["kept"] >= 50
    again = call("clean", out, "--out", tmp_path / "again.jsonl", "--rejects", tmp_path / "r2.jsonl")
    assert (again["rejected"], (tmp_path / "again.jsonl").read_bytes()) == (0, out.read_bytes())


def test_json_as_others_write_it(call: Call, tmp_path: Path) -> None:
    file, out, rejects = tmp_path / "rows.jsonl", tmp_path / "clean.jsonl", tmp_path / "rejects.jsonl"
    file.write_bytes(b'{"text":"first"}\n' + b"\n".join(row for row, _ in JSON_OF_OTHERS) + b"\n")
    answer = call("clean", file, "--out", out, "--rejects", rejects)
    assert_law(answer, out.read_bytes(), lines(rejects))
    became = {row["line"]: row["reason"] for row in (*lines(rejects), *lines(tmp_path / "clean.jsonl.mended.jsonl"))}
    found = [became.get(number, "kept") for number in range(2, len(JSON_OF_OTHERS) + 2)]
    assert list(zip((row for row, _ in JSON_OF_OTHERS), found, strict=True)) == JSON_OF_OTHERS


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_wide_encodings_may_be_cut_off_anywhere(call: Call, tmp_path: Path, encoding: str, cut: int) -> None:
    file = tmp_path / "rows.jsonl"
    data = '\ufeff{"text": "Größe 😀"}\n{"text": "b"}\n'.encode(encoding)
    file.write_bytes(data[: len(data) - cut])
    answer = call("check", file, code=1 if cut else 0)
    assert answer["rows"] == 2
    assert answer["kept"] >= 1


def test_secrets_and_addresses_are_taken_out_when_asked(call: Call, tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIabc\n-----END RSA PRIVATE " + "KEY-----"
    token = "ghp_" + "a1B2" * 9
    rows = [
        {"instruction": "log in", "output": f"use {token} or jane.doe@mailbox.org, not user@example.com", "note": f"also {token}"},
        {"instruction": f"what is {key}?", "output": "a key"},
        {"instruction": "q", "output": "a"},
    ]
    file, out, rejects = tmp_path / "rows.jsonl", tmp_path / "clean.jsonl", tmp_path / "rejects.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("check", file)["notes"] == {"secret": 2, "email_address": 1}
    answer = call("clean", file, "--out", out, "--rejects", rejects, "--redact")
    assert_law(answer, out.read_bytes(), lines(rejects))
    assert (answer["mended"], answer["notes"], answer["by_reason"]) == (2, {}, {"secret": 2, "email_address": 1})
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"instruction": "log in", "output": "use [SECRET] or [EMAIL], not user@example.com", "note": "also [SECRET]"},
        {"instruction": "what is [SECRET]?", "output": "a key"},
        rows[2],
    ]
