"""Every form a file of rows has: compressed, recoded, damaged, huge, as a table; and every layout of a row."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shlex
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from conftest import make_rows, write_rows
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.data.files.form import form_of
from holdfast.data.files.paths import expand
from holdfast.data.files.raw_row import RawRow, Reject
from holdfast.data.files.read import read_rows, read_unparsed
from holdfast.data.judge.judge import judge
from holdfast.data.judge.layouts import parse_example, prompt_and_answer
from holdfast.data.judge.names import fields_read
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow

Call = Callable[..., Json]
GOOD = {"instruction": "Name a tree", "output": "birch"}


# ---- forms of files


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzipped,
    "two gzip members": lambda data: gzipped(data[:50]) + gzipped(data[50:]),
    "bz2": bz2.compress,
    "two bz2 members": lambda data: bz2.compress(data[:50]) + bz2.compress(data[50:]),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "pzstd": lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.ZstdCompressor().compress(data),
    "UTF-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16 big-endian, no mark": lambda data: data.decode().encode("utf-16-be"),
    "Latin-1": lambda data: data.decode().encode("latin-1"),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", ["lines", "array", "pretty array", "pretty objects", "csv"])
def test_the_same_rows_come_out_of_every_form_of_file(tmp_path: Path, shape: str, name: str) -> None:
    rows = [{"instruction": f"Größe, Übung {n}?", "output": f'schöne "Antwort" {n}\nin zwei Zeilen'} for n in range(30)]
    as_text = {
        "lines": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "array": json.dumps(rows, ensure_ascii=False),
        "pretty array": json.dumps(rows, ensure_ascii=False, indent=2),
        "pretty objects": "\n".join(json.dumps(row, ensure_ascii=False, indent=1) for row in rows),
        "csv": "instruction,output\n" + "\n".join(f'"{r["instruction"]}","{r["output"].replace(chr(34), chr(34) * 2)}"' for r in rows),
    }[shape]
    file = tmp_path / ("rows.csv" if shape == "csv" else "rows.jsonl")
    file.write_bytes(FORMS[name](as_text.encode()))
    found = [row.value for row in read_rows(str(file)) if not hasattr(row, "reason")]
    if name == "CRLF" and shape == "csv":
        rows = [row | {"output": row["output"].replace("\n", "\r\n")} for row in rows]
    assert found == rows


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_are_read(tmp_path: Path, kind: str, call: Call) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([*make_rows(2500), {"instruction": "x", "input": "", "output": None}])
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, file, row_group_size=700)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    answer = call("check", file, code=1)
    assert (answer["rows"], answer["by_reason"]) == (2501, {"missing_field": 1})
    file.write_bytes(file.read_bytes()[:-200])
    assert call("check", file, code=1)["by_reason"]["damaged_file"] == 1


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: zlib.decompressobj(31).decompress(data),
    "bz2": lambda data: bz2.BZ2Decompressor().decompress(data),
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize("count", [200, 2000])
def test_a_torn_archive_gives_what_stands_before_the_tear(tmp_path: Path, name: str, count: int) -> None:
    import random

    draw = random.Random(0)
    rows = [{"text": "".join(draw.choices("abcdefghijklmnop ", k=900))} for _ in range(count)]
    packed = FORMS[name]("\n".join(map(json.dumps, rows)).encode())
    torn = packed[: len(packed) // 2]
    file = tmp_path / "rows.jsonl.packed"
    file.write_bytes(torn)
    found = list(read_rows(str(file)))
    good = [row.value for row in found if not hasattr(row, "reason")]
    assert len(good) == UNPACK[name](torn).count(b"\n")
    assert good == rows[: len(good)]
    assert len(good) > 100 or count == 200
    assert found[-1].reason == "damaged_file"


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize("behind", ["rows as they are", "a member with a damaged head"])
def test_what_stands_behind_a_member_and_is_none_is_told(name: str, behind: str, tmp_path: Path) -> None:
    """bz2's own reader passes over it without a word, zstd's gives nothing of a file that is as small."""
    rows = b'{"text": "a"}\n{"text": "b"}\n'
    more = rows if behind == "rows as they are" else b"\x00" + FORMS[name](rows)[1:]
    (tmp_path / "rows.jsonl").write_bytes(FORMS[name](rows) + (more if name != "gzip" else b"\x01" + more))
    *good, last = read_rows(str(tmp_path / "rows.jsonl"))
    assert [row.value for row in good if isinstance(row, RawRow)] == [{"text": "a"}, {"text": "b"}]
    assert isinstance(last, Reject) and last.reason == "damaged_file" and f"the {name} data is damaged" in last.detail


def test_columns_of_one_name_are_refused_where_they_differ_and_joined_streams_are_read_to_their_end(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.Table.from_arrays([pa.array(["a", "b"]), pa.array(["c", "b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "rows.parquet")
    with pa.OSFile(str(tmp_path / "one.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "rows.arrow").write_bytes(2 * (tmp_path / "one.arrow").read_bytes())
    for kind, times in (("parquet", 1), ("arrow", 2)):
        found = list(read_rows(str(tmp_path / f"rows.{kind}")))
        assert [row.value if isinstance(row, RawRow) else row.reason for row in found] == times * ["duplicate_key", {"text": "b"}]


def test_a_damaged_array_is_read_on_behind_the_damage(tmp_path: Path) -> None:
    rows = make_rows(5)
    texts = [json.dumps(row) for row in rows]
    texts[2] = texts[2][:-3]  # its closing quote and bracket are missing
    file = tmp_path / "rows.json"
    file.write_text("[\n" + ",\n".join(texts) + "\n]")
    found = list(read_rows(str(file)))
    assert [getattr(row, "value", None) for row in found] == [rows[0], rows[1], None, rows[3], rows[4]]
    assert (found[2].reason, found[2].source.line) == ("parse_error", 4)
    assert found[2].raw.decode() == texts[2]


@pytest.mark.parametrize("before", [b"{", b"[{", b"{\n "], ids=["line", "array", "object"])
def test_a_huge_row_is_refused_in_bounded_memory(tmp_path: Path, before: bytes) -> None:
    file = tmp_path / "rows.jsonl"
    with file.open("wb") as handle:
        handle.write(before + b'"text": "')
        for _ in range(200):
            handle.write(b"x" * (1 << 20))
        handle.write(b'"\n{"text": "after"}\n')
    tracemalloc.start()
    found = list(read_rows(str(file)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0].reason == "too_large"
    assert "209,7" in found[0].detail
    assert len(found[0].raw) == 1 << 16
    assert peak < 130 << 20, f"{peak:,}"
    assert found[1].value == {"text": "after"}


def test_a_nesting_bomb_is_one_reject(tmp_path: Path) -> None:
    for number, bomb in enumerate(
        (b"[" * 3_000_000, b'{"a":' * 1_000_000, b'{"text": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    ):
        file = tmp_path / f"{number}.json"
        file.write_bytes(bomb + b"\n")
        (row,) = read_rows(str(file))
        assert row.reason in ("parse_error", "too_large")


def test_folders_patterns_and_what_is_not_there(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "two.jsonl.gz").write_bytes(gzipped(json.dumps(GOOD).encode()))
    for name in ("a/one.jsonl", "a/.hidden.jsonl", "a/notes.pdf"):
        write_rows(tmp_path / name, [GOOD])
    assert [Path(entry["file"]).name for entry in call("check", tmp_path / "a")["files"]] == ["two.jsonl.gz", "one.jsonl"]
    assert call("check", f"{tmp_path}/a/*.jsonl", tmp_path / "a" / "one.jsonl")["rows"] == 2
    assert main(["data", "check", str(tmp_path / "a" / "one.json")]) == 2
    assert f"did you mean {tmp_path}/a/one.jsonl?" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["data", "check", str(tmp_path / "pipe")]) == 2


@pytest.mark.parametrize("asked", ["", "*.*"])
def test_one_name_in_several_forms_is_told(asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    (folder / "other").mkdir(parents=True)
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl", "b.csv", "c.jsonl", "c.d.jsonl", "other/c.csv"):
        (folder / name).write_bytes(b"{}\n")
    place = str(folder / asked)
    assert len(expand([place])) == (6 if asked else 7)
    said = capsys.readouterr().err
    assert f"{place}: a is there as a.jsonl and a.jsonl.gz; where these hold the same rows, each row is read 2 times" in said
    assert f"{place}: b is there as b.csv and b.jsonl;" in said and said.count("is there as") == 2


def test_a_file_says_how_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json.gz"
    file.write_bytes(gzipped("[]".encode("utf-16")))
    assert form_of(str(file)).words == "a JSON array, gzip, UTF-16-LE"


@pytest.mark.parametrize(
    ("header", "encoding", "form"),
    [
        ("question\tanswer", "utf-16", "csv, UTF-16-LE"),  # Excel's "Unicode text"
        ("Betreff\tInhalt", "utf-16", "csv, UTF-16-LE"),
        ("question\tanswer", "utf-8", "csv"),  # Excel's "Text (tab delimited)"
        ("Frage\tAntwort\tNr", "utf-8-sig", "csv, UTF-8-SIG"),
        ("A first line\tof prose", "utf-8", "plain text"),
        ("\tindented", "utf-16", "plain text, UTF-16-LE"),
        ("a question and an answer", "utf-8", "plain text"),
    ],
)
def test_a_text_file_of_columns_is_the_table_it_is(header: str, encoding: str, form: str, tmp_path: Path) -> None:
    file, tabs = tmp_path / "rows.txt", header.count("\t")
    lines = [header, *("\t".join(["cell", *["another"] * tabs]) for _ in range(3))]
    file.write_bytes(("\r\n".join(lines) + "\r\n").encode(encoding))
    assert form_of(str(file)).words.removesuffix(", UTF-8-SIG") == form.removesuffix(", UTF-8-SIG")
    rows = [*read_rows(str(file))]
    assert len(rows) == (3 if form.startswith("csv") else 4)
    if form.startswith("csv"):
        assert not isinstance(rows[0], Reject) and list(rows[0].value) == header.split("\t")


QUOTES = {
    "a table without quoting": ('"Yes" in French?\tOui', ['"Yes" in French?', "Oui"]),
    "in the middle": ('a 5" pipe\tand a 6" one', ['a 5" pipe', 'and a 6" one']),
    "at the end": ('the word "yes"\tsay "no"', ['the word "yes"', 'say "no"']),
    "before a comma": ('"Yes" in French?,Oui', ['"Yes" in French?', "Oui"]),
    "doubled": ('"say ""yes"" , then",Oui', ['say "yes" , then', "Oui"]),
    "spaces around": ('"yes, no" , "maybe, so"', ["yes, no", "maybe, so"]),
    "a space before": ('yes, "maybe, so"', ["yes", "maybe, so"]),
    "a space and a quote": ('"he said, ""x""", no', ['he said, "x"', " no"]),
    "over two lines": ('"yes\nno","maybe ""so"""', ["yes\nno", 'maybe "so"']),
    "not doubled": ('"say "yes" to me",Oui', None),
    "not doubled, with tabs": ('"say "yes" to me"\tOui', None),
    "with backslashes": (r'"say \"yes\" to me",Oui', None),
    "a comma within": ('"Yes" in French, please?,Oui', None),
}


# Sentences of languages in the pages of one byte a letter that their spreadsheets write.
WESTERN = {
    "German": "Größe und Maß: Die schöne Müllerin übt täglich. Äpfel, Öl und Übung.",
    "French": "Où est l'école ? Il a été reçu à Noël par sa sœur, qui préfère les crêpes. Ça coûte 3 €.",
    "Spanish": "¿Dónde está el niño? La canción más difícil es aquélla. El pingüino nadó.",
    "Portuguese": "A informação não está disponível. Três lições, às vezes põem-se à venda. Útil.",
    "Italian": "Perché la città è così bella? Però lunedì andrò più in là. Già, virtù.",
    "Swedish": "Får får får? Nej, får får lamm. Östersjön är kall på våren. Idé, armén.",
    "Danish": "Rødgrød med fløde på øen. Å æ u å æ ø i æ å. Én gang til, æbler.",
    "Icelandic": "Það er ekki hægt að þýða þetta. Íslendingar eiga góða hesta. Ýmsir þættir.",
    "Estonian": "Öö on õhtust pikem. Šokk ja žest. Mäe ääres käib töö. Üks õun.",
    "several": "Größe, école, niño, täglich, préfère, canción, schön, où, ça, Straße, à, más",
}
OTHERS = {
    "Russian": ("cp1251", "Лев Толстой и никто другой. Там я вижу книгу, и с ней тетрадь. Я в доме."),
    "Ukrainian": ("cp1251", "Це є моя хата, і я її люблю. Ґанок."),
    "Greek": ("cp1253", "Αυτό είναι ένα βιβλίο και η γάτα ή ο σκύλος. Τι κάνεις."),
    "Polish": ("cp1250", "Są to książki i żółte kwiaty, które się nie mieszczą w tę torbę. Źle, ćma, śnieg, dzień."),
    "Czech": ("cp1250", "Je to malý žlutý květ, který roste na louce. Příliš žluťoučký kůň. Ještě něco, člověče."),
    "Hungarian": ("cp1250", "Árvíztűrő tükörfúrógép. Az idő jó, a nő szép, erdő és gyűrű. Költő született Győrött."),
    "Turkish": ("cp1254", "Nasıl gidiyor? İyi, teşekkür ederim. Şimdi dağa çıkıyorum, çünkü hava güneşli."),
    "Lithuanian": ("cp1257", "Ąžuolas ir šešėlis, kurį mačiau vakar. Žmogus eina į mišką, kur jų nėra."),
}


@pytest.mark.parametrize("name", WESTERN)
@pytest.mark.parametrize("times", [1, 50])
def test_a_file_of_windows_1252_is_read_in_each_language_that_it_is_for(name: str, times: int, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(("question;answer\r\n" + f"why;{WESTERN[name]}\r\n" * times).encode("cp1252"))
    assert [row.value["answer"] for row in read_rows(str(file)) if isinstance(row, RawRow)] == [WESTERN[name]] * times


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_of_another_page_is_not_read_as_other_letters(name: str, suffix: str, tmp_path: Path) -> None:
    page, text = OTHERS[name]
    lines = ["question;answer", *[f"why;{text}"] * 20] if suffix == "csv" else [json.dumps({"text": text}, ensure_ascii=False)] * 20
    file = tmp_path / f"rows.{suffix}"
    file.write_bytes("\r\n".join(lines).encode(page))
    rows = [*read_rows(str(file))]
    assert len(rows) == 20
    windows = page.replace("cp", "WINDOWS-")
    assert all(isinstance(row, Reject) and row.reason == "bad_encoding" and f"iconv -f {windows} " in row.detail for row in rows)
    damaged = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\xd0"
    (tmp_path / "damaged.jsonl").write_bytes(damaged)
    (row,) = read_rows(str(tmp_path / "damaged.jsonl"))
    assert isinstance(row, Reject) and row.reason == "bad_encoding" and "iconv" not in row.detail
    file.write_bytes(file.read_bytes().decode(page).encode())  # what iconv makes of it
    assert all(isinstance(row, RawRow) and text in row.value.values() for row in read_rows(str(file)))


@pytest.mark.parametrize("name", QUOTES)
def test_no_quote_of_a_table_is_lost_without_a_word(name: str, tmp_path: Path) -> None:
    record, expected = QUOTES[name]
    separator = "\t" if "\t" in record else ","
    file = tmp_path / "rows.csv"
    file.write_text(f"question{separator}answer\nfirst{separator}one\n{record}\nlast{separator}two\n", newline="")
    rows = [*read_rows(str(file))]
    assert len(rows) == 3
    assert [isinstance(row, RawRow) and [*row.value.values()] for row in rows[::2]] == [["first", "one"], ["last", "two"]]
    if expected is None:
        assert isinstance(rows[1], Reject) and rows[1].reason == "parse_error" and "written twice" in rows[1].detail
    else:
        assert isinstance(rows[1], RawRow) and [*rows[1].value.values()] == expected


@pytest.mark.parametrize("error", ["#REF!", "#N/A", "#VALUE!", "#NAME?", "#DIV/0!"])
def test_a_row_with_a_spreadsheets_error_is_rejected_for_that(error: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"question,answer,note\nq1,{error},x\nq2,a2,{error}\n{error},a3,x\n")
    (tmp_path / "pairs.csv").write_text(f"prompt,chosen,rejected\nq1,{error},b\nq2,a,{error}\nq3,a,b\n")
    (tmp_path / "named.csv").write_text(f"instruction,input,output\nq1,{error},a\nq2,,a\n")
    for name, wanted, lines in (
        ("rows", "answers", [(2, "answer"), (4, "prompt")]),
        ("pairs", "pairs", [(2, "chosen"), (3, "rejected")]),
        ("named", "answers", [(2, "prompt")]),
    ):
        rejects = judge(read_unparsed(str(tmp_path / f"{name}.csv")), 0, Rules(wanted=wanted), ())[1]
        told = [(one.source.line, one.reason, one.detail) for one in sorted(rejects, key=lambda one: one.source.line)]
        assert told == [
            (line, "spreadsheet_error", f"a spreadsheet error stands in the cell of the {cell}: {error}") for line, cell in lines
        ]


# ---- layouts


TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
RESULT = {"role": "tool", "content": "1"}
CALLS = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "q", "answer": "a"}, None),
        ({"instruction": "q", "context": "c", "response": "a"}, None),
        (TALK, None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, TALK[1]]}, None),
        (
            {"messages": [TALK[0], {"role": "assistant", "content": None, "tool_calls": CALLS}, RESULT, TALK[1]]},
            None,
        ),
        ({"messages": [TALK[0], {"role": "assistant", "content": None, "tool_calls": CALLS}, *TALK]}, "tool_call_without_result"),
        ({"messages": [TALK[1], *TALK]}, "wrong_order"),
        ({"messages": [TALK[0], {"role": "assistant", "content": ""}, *TALK]}, "empty_turn"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, TALK[1]]}, "wrong_type"),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}]},
            "no_place_for_tool_calls",
        ),
        ({"instruction": "same words here", "output": "same  words here"}, "answer_equals_prompt"),
        ({"messages": [TALK[0], {"role": "assistant", "content": "a<|im_end|>b"}]}, "special_token_in_text"),
        ({"text": "rendered<|im_end|>"}, None),
    ],
)
def test_layouts_and_what_is_wrong_with_their_turns(
    call: Call, tmp_path: Path, assets: SimpleNamespace, row: Any, reason: str | None
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [GOOD, row])
    answer = call("check", file, "--tokenizer", assets.model, code=1 if reason else 0)
    assert answer["by_reason"] == ({reason: 1} if reason else {})


def test_fields_of_other_names_and_mixed_layouts(call: Call, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"frage": "q", "antwort": "a"}, GOOD, {"text": "t"}])
    mapped = call("check", file, "--field", "instruction=frage", "--field", "output=antwort")
    assert (mapped["kept"], mapped["layouts"], mapped["mixed_files"]) == (3, {"alpaca": 2, "text": 1}, [str(file)])


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ({"Question": "q", "Answer": "a"}, "question-answer"),
        ({"INSTRUCTION": "q", "Input": "more", "Output": "a"}, "alpaca"),
        ({"instruction": "q", "Input": "more", "output": "a"}, "alpaca"),
        ({" Prompt ": "q", "Completion": "a"}, "prompt-completion"),
        ({"Text": "t"}, "text"),
        ({"Messages": [{"Role": "User", "Content": "q"}, {"role": "Assistant", "content": "a"}]}, "chat"),
        ([{"Role": "USER", "Content": "q"}, {"Role": "assistant", "Content": "a"}], "chat"),
        ({"Conversations": [{"From": "Human", "Value": "q"}, {"From": "GPT", "Value": "a"}]}, "chat"),
    ],
)
def test_a_name_in_another_case_is_the_same_name(row: Any, layout: str) -> None:
    example = parse_example(row, "auto")
    assert example.layout == layout
    assert "more" not in str(row) or example.messages[0].content == "q\nmore"
    quick = prompt_and_answer(row)
    assert quick is None or quick[1:] == (example.given or "\n".join(turn.content for turn in example.messages[:-1]), "a")


@pytest.mark.parametrize("answer", ["output", "response"])
@pytest.mark.parametrize("extra", ["input", "context", "Input"])
def test_what_stands_behind_an_instruction_is_learned_from_whatever_the_answer_is_called(answer: str, extra: str) -> None:
    row = {"instruction": "Translate", extra: "Guten Tag", answer: "Good day"}
    example = parse_example(row, "auto")
    assert [turn.content for turn in example.messages] == ["Translate\nGuten Tag", "Good day"]
    assert prompt_and_answer(row) in (("alpaca", "Translate\nGuten Tag", "Good day"), None)
    assert parse_example(row, "alpaca") == example
    assert fields_read(row, "alpaca", {}) == {"instruction", extra, answer}
    pair = parse_example({"instruction": "Translate", extra: "Guten Tag", "chosen": "Good day", "rejected": "Bye"}, "auto", wanted="pairs")
    assert pair.messages == example.messages


TALK = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
BOTH = {"instruction": "i", "output": "o", "question": "q", "gold": "g", "body": "b", "talk": TALK}


@pytest.mark.parametrize(
    ("fields", "layout", "answer"),
    [
        ({}, "alpaca", "o"),
        ({"answer": "gold"}, "question-answer", "g"),
        ({"messages": "talk"}, "chat", "a"),
        ({"text": "body"}, "text", "b"),
        ({"output": "gold"}, "alpaca", "g"),
        ({"input": "body"}, "alpaca", "o"),
        ({"system": "body"}, "chat", "o"),
        ({"question": "not there"}, "alpaca", "o"),
    ],
)
def test_a_field_that_is_mapped_is_read_beside_a_layout_of_its_own(fields: dict[str, str], layout: str, answer: str) -> None:
    found = parse_example(BOTH, "auto", fields)
    assert found.layout == layout
    assert (found.messages[-1].content if found.messages else found.learned) == answer
    assert set(fields.values()) - {"not there"} <= fields_read(BOTH, layout, fields)


def test_names_that_differ_in_case_alone_are_left_as_they_are() -> None:
    assert parse_example({"question": "q", "Question": "other", "answer": "a"}, "auto").messages[0].content == "q"
    with pytest.raises(BadRow, match="missing"):
        parse_example({"QUESTION": "q", "Question": "other", "answer": "a"}, "question-answer")
    with pytest.raises(BadRow, match="preferences"):
        parse_example({"Prompt": "q", "Chosen": "a", "Rejected": "b"}, "auto")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"Frage": "q", "Antwort": "a"}, "--field question=Frage --field answer=Antwort"),
        ({"Question": "q", "Ans": "a", "id": "7"}, "--field answer=Ans,"),
        ({"instruction": "q", "the reply": "a"}, "--field 'output=the reply', in a config data.fields: {output: the reply}"),
        ({"user_input": "q", "n": 3, "model_response": "a"}, "--field question=user_input --field answer=model_response"),
        ({"Nr.": "0019", "Frage": "q", "Antwort": "a", "Fach": "Bio"}, "--field question=Frage --field answer=Antwort"),
        ({"lfd_nr": "7", "respuesta": "a", "pregunta": "q"}, "--field question=pregunta --field answer=respuesta"),
        ({"No": "7", "Réponse": "a", "Sujet": "q"}, "--field question=Sujet --field 'answer=Réponse'"),
        ({"id": 3}, "--field question=THEIRS --field answer=THEIRS"),
    ],
)
def test_fields_of_no_known_layout_are_answered_with_options_that_name_them(
    call: Call, tmp_path: Path, row: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    assert says in bad.value.detail and str(sorted(row)) in bad.value.detail
    if "THEIRS" not in says:
        options = shlex.split(bad.value.detail.partition("for example ")[2].partition(", in a config")[0])
        assert call("check", write_rows(tmp_path / "rows.jsonl", [row]), *options)["kept"] == 1, "as the message says"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "q", "better": "a", "worse": "b"}, "--field chosen=better --field rejected=worse"),
        ({"prompt": "q", "winner": "a", "loser": "b"}, "--field chosen=winner --field rejected=loser"),
        ({"prompt": "q", "accepted one": "a", "rejected_one": "b"}, "--field 'chosen=accepted one' --field rejected=rejected_one"),
        ({"prompt": "q", "one": "a", "two": "b"}, ""),
        ({"prompt": "q", "chosen": "a"}, ""),
    ],
)
def test_two_answers_of_other_names_are_answered_with_options_that_name_them(
    call: Call, tmp_path: Path, row: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto", {}, "pairs")
    assert bad.value.reason == "no_preference" and (says or "answers alone are learned with sft") in bad.value.detail
    if says:
        file = write_rows(tmp_path / "rows.jsonl", [row])
        assert call("check", file, *shlex.split(says), "--objective", "dpo")["kept"] == 1, "as the message says"


@pytest.mark.parametrize("row", [{"note": "n", "A": "a"}, {"Q": "why?"}, {"note": "n", "more": "m"}])
@pytest.mark.parametrize(
    ("ours", "answer"), [("question", "answer"), ("instruction", "output"), ("prompt", "completion"), ("query", "response")]
)
@pytest.mark.parametrize("wanted", ["answers", "pairs", "marks"])
def test_a_row_without_a_field_that_is_mapped_is_rejected_by_that_name(row: dict[str, Any], ours: str, answer: str, wanted: Any) -> None:
    fields = {ours: "q", answer: "a"}
    with pytest.raises(BadRow) as bad:
        parse_example(row | ({"label": True} if wanted == "marks" else {}), "auto", fields, wanted)
    if wanted == "answers":
        lacking = [f"{theirs} (as {name})" for name, theirs in fields.items() if theirs not in {one.lower() for one in row}]
        assert f"{' and '.join(lacking)} is missing" in bad.value.detail, bad.value.detail


def test_rows_beside_one_that_lacks_a_mapped_field_are_kept(call: Call, tmp_path: Path) -> None:
    rows = [{"q": f"what is {n}?", "a": f"a number, {n}"} for n in range(40)]
    file = write_rows(tmp_path / "rows.jsonl", [*rows[:17], {"note": "why?", "a": "so"}, *rows[18:]])
    answer = call("check", file, "--field", "question=q", "--field", "answer=a", code=1)
    assert (answer["kept"], answer["by_reason"]) == (39, {"missing_field": 1})


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ("xl/workbook.xml", "an Excel workbook: save its sheet as CSV"),
        ("word/document.xml", "a Word document"),
        ("archive/data.pkl", "a checkpoint of torch"),
        ("rows.jsonl", "a zip archive: unpack it"),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.xlsx"])
def test_an_archive_is_told_by_what_is_in_it(tmp_path: Path, name: str, member: str, says: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(member, "x")
    (row,) = read_rows(str(tmp_path / name))
    assert isinstance(row, Reject) and row.reason == "not_rows" and f"the file is {says}" in row.detail


@pytest.mark.parametrize("how", ["w", "w:gz", "w:bz2"])
def test_no_member_of_a_tar_archive_is_read_as_rows(how: Any, tmp_path: Path) -> None:
    """The first row of each shares its line with the member's head, and would be missing."""
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    with tarfile.open(tmp_path / "rows.tar", how) as archive:
        archive.add(tmp_path / "rows.jsonl")
    (row,) = read_rows(str(tmp_path / "rows.tar"))
    assert isinstance(row, Reject) and row.reason == "not_rows" and "a tar archive: unpack it" in row.detail


def test_a_field_that_is_given_twice_is_refused_unless_both_agree(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "text": "b"}\n{"text": "c", "text": "c"}\n{"text": "x", "meta": {"text": "y"}}\n')
    answer = call("check", file, code=1)
    assert (answer["by_reason"], answer["kept"]) == ({"duplicate_key": 1}, 2)


@pytest.mark.parametrize("twice", ['"content": "a", "content": "b"', '"role": "user", "role": "assistant", "content": "a"'])
def test_a_turn_that_gives_a_field_twice_is_refused(twice: str, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    asked, said = '{"role": "user", "content": "the \\"content\\": of it"}', '{"role": "assistant", "content": "a"}'
    torn = '{"role": "assistant", ' + twice + "}" if twice.startswith('"content"') else "{" + twice + "}"
    tool = '{"type": "object", "properties": {"role": {"type": "a"}, "content": {"type": "b"}}}'
    rows = [f"[{asked}, {torn}]", f"[{asked}, {said}]", f'[{asked}, {said}], "tools": [{{"name": "f", "parameters": {tool}}}]']
    file.write_text("".join(f'{{"messages": {turns}}}\n' for turns in rows))
    answer = call("check", file, code=1)
    assert (answer["by_reason"], answer["kept"]) == ({"duplicate_key": 1}, 2)


def test_what_a_folder_holds_beside_its_rows_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rows.jsonl", "readme.md", "more/table.xlsx", ".hidden.md", "model/config.json", "model/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n')
    assert expand([str(tmp_path)]) == expand([str(tmp_path)]) == [str(tmp_path / "rows.jsonl")]
    told = [line for line in capsys.readouterr().err.splitlines() if "with no ending" in line]
    said = "left out 2 files with no ending that rows have: more/table.xlsx, readme.md; to read readme.md as text, name it itself"
    assert told == [f"holdfast: {tmp_path}: {said}"]


def test_what_runs_and_models_keep_for_themselves_is_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--data .` where runs and exports lie took their journals and configs for rows."""
    kept = ["rows.jsonl", "more/config.jsonl", "more/run.json", "other.plan.json"]
    own = ["runs/models.jsonl", "runs/a/run.json", "runs/a/steps.jsonl", "runs/a/attempts/1/launch.json", "my-run.plan.json"]
    own += ["model/config.json", "model/tokenizer.json", "gguf/holdfast.json"]
    for name in [*kept, *own, "my-run.yaml"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    assert expand([str(tmp_path)]) == sorted(str(tmp_path / name) for name in kept)
    told = capsys.readouterr().err
    assert f"left out {len(own)} files that runs, plans and models keep for themselves" in told
    assert "left out 1 file with no ending that rows have: my-run.yaml\n" in told
    run = tmp_path / "runs" / "a"
    assert expand([str(run)]) == [str(run / name) for name in ("attempts/1/launch.json", "run.json", "steps.jsonl")], "asked for by name"
