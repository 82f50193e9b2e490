"""`data check` and `data clean`: every row accounted for whatever its bytes, what is mended and counted, what is shown."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import ROOT, SHARED, assert_law, lines, make_rows, needs_shared, write_rows
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.data.duplicates.keys import keys_of, lines_of
from holdfast.data.duplicates.portion import groups
from holdfast.data.duplicates.similar import Near, key_of, signatures
from holdfast.data.survey.languages import strays
from holdfast.data.survey.lengths import Lengths
from holdfast.report.data.lines import facts, wrapped
from holdfast.report.svg import WIDTH, histogram

Call = Callable[..., Json]
GOOD = {"instruction": "Name a tree", "output": "birch"}


def cleaned(call: Call, folder: Path, *paths: object, tag: str = "") -> tuple[Json, bytes, list[Json]]:
    out, rejects = folder / f"clean{tag}.jsonl", folder / f"rejects{tag}.jsonl"
    answer = call("clean", *paths, "--out", out, "--rejects", rejects)
    return answer, out.read_bytes(), lines(rejects)


# ---- the law

PARTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            json.dumps(GOOD).encode(),
            b'{"text": "sch\xc3\x83\xc2\xb6n"}',
            b'{"text": "a\\u0000b"}',
            b'{"prompt": "q", "completion": NaN, "x": 1}',
            b'{"prompt": "q", "completion": "a", "x": NaN, "y": 123456789012345678901234567890}',
            b'{"text": "\\u0001", "z": "\\ud800"}',
            b'{"text": "a"}{"text": "b"} {"text": "c"}',
            b'{"text": "a", "text": "b"}',
            b"[" * 2000,
            b'{"a":' * 2000,
            b'[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]',
            b"{\n",
            b'"output": "x",\n',
            b"}",
            b"[",
            b"]",
            b",",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\x1f\x8b\x08",
            b"\r",
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@example(parts=[b'\xfe\xff{\x00"'], between=b"\n", suffix="jsonl")
@example(parts=[b"\0", b'[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'], between=b"\n", suffix="jsonl")
@example(parts=[b"\0", b"0"], between=b"\n", suffix="csv")  # a table, and of JSON Lines only text is looked for
@example(parts=[b"\0", b"0"], between=b"\n", suffix="csv")
@given(
    parts=st.lists(PARTS, max_size=8),
    between=st.sampled_from([b"\n", b"\r\n", b"", b",\n"]),
    suffix=st.sampled_from(["jsonl", "csv", "txt"]),
)
def test_the_law_holds_and_cleaning_again_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], between: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("law")
    file = folder / f"rows.{suffix}"
    file.write_bytes(between.join(parts))
    found = [quietly("clean", file, folder, "1")]
    if "columns" not in found[0]:  # a CSV file of numbers is a table, and JSON Lines are one only where a config says so
        found.append(quietly("clean", folder / "clean1.jsonl", folder, "2"))
    for tag, answer in zip("12", found, strict=False):
        assert_law(answer, (folder / f"clean{tag}.jsonl").read_bytes(), lines(folder / f"rejects{tag}.jsonl"))
    for again in found[1:]:
        assert (folder / "clean2.jsonl").read_bytes() == (folder / "clean1.jsonl").read_bytes()
        assert (again["rows"], again["rejected"]) == (found[0]["kept"] + found[0]["mended"], 0)
    assert file.read_bytes() == between.join(parts)


def quietly(kind: str, file: Path, folder: Path, tag: str) -> Json:
    """Call the command line where hypothesis allows no fixture of a function's."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["data", kind, str(file), "--out", f"{folder}/clean{tag}.jsonl", "--rejects", f"{folder}/rejects{tag}.jsonl", "--json"])
    assert code == 0
    answer: Json = json.loads(out.getvalue())
    return answer


@needs_shared
def test_every_broken_file_keeps_the_law(call: Call, tmp_path: Path) -> None:
    files = sorted(file for file in (SHARED / "data" / "broken").rglob("*") if file.is_file())
    answer, good, rejects = cleaned(call, tmp_path, *files)
    assert_law(answer, good, rejects)
    assert len(files) > 300
    must_parse = {file.name for file in files if file.name.startswith("y_")}
    refused = {Path(row["file"]).name for row in rejects if row["reason"] in ("parse_error", "bad_encoding")}
    assert not must_parse & refused


# ---- mending, repetitions, limits


def test_a_mended_row_keeps_its_numbers_and_its_original(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    raw = '{"id": 123456789012345678901234567890, "score": NaN, "text": "schÃ¶n\\u0000", "old": 1.50}'
    file.write_text(f"{raw}\n" + json.dumps(GOOD) + "  \n", encoding="utf-8")
    answer, good, rejects = cleaned(call, tmp_path, file)
    assert_law(answer, good, rejects)
    assert (answer["kept"], answer["mended"]) == (1, 1)
    assert good.splitlines()[0].decode() == '{"id": 123456789012345678901234567890, "score": null, "text": "schön", "old": 1.5}'
    assert good.splitlines()[1] == json.dumps(GOOD).encode()
    originals = lines(tmp_path / "clean.jsonl.mended.jsonl")
    assert [(row["line"], row["reason"], row["raw"]) for row in originals] == [
        (1, reason, raw) for reason in ("nan_literal", "control_characters", "mojibake")
    ]


@pytest.mark.parametrize("rows", [1, 2])
def test_of_one_row_it_is_said_that_nothing_can_be_held_out(call: Call, tmp_path: Path, rows: int) -> None:
    told = facts(call("check", write_rows(tmp_path / "rows.jsonl", make_rows(rows))))
    assert any("none can be held out" in line for line in told) is (rows == 1)


def test_repetitions_are_counted_and_dropped_when_asked(call: Call, tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(40))
    rows = [
        {"prompt": "Describe it", "completion": long},
        {"prompt": "describe  IT", "completion": long},
        {"prompt": "Describe it", "completion": long + "!"},
        {"prompt": "Another question", "completion": "42"},
    ]
    file, held_out = write_rows(tmp_path / "rows.jsonl", rows), write_rows(tmp_path / "held.jsonl", rows[3:])
    answer = call("check", file, "--held-out", held_out)
    assert [answer[kind] for kind in ("duplicates", "near_duplicates", "conflicting_answers", "in_held_out")] == [1, 1, 1, 1]
    asked_again = write_rows(tmp_path / "asked-again.jsonl", [rows[3], rows[0] | {"completion": "x"}])
    against = call("check", file, "--held-out", asked_again)
    assert (against["in_held_out"], against["same_as_held_out"]) == (4, 1)
    assert any("4 rows in the held-out set: 1 word for word but for case, 3 by the prompt alone" in line for line in facts(against))
    assert answer["rejected"] == 0
    where = {kind: shown[0]["detail"].rpartition(": ")[2] for kind, shown in answer["examples"].items() if kind != "too_alike"}
    assert where == {
        "duplicate": f"{file}:1",
        "near_duplicate": f"{file}:2",
        "conflicting_answer": f"{file}:1",
        "in_held_out": f"{held_out}:1",
    }
    out, rejects = tmp_path / "c.jsonl", tmp_path / "r.jsonl"
    dropped = call("clean", file, "--out", out, "--rejects", rejects, "--drop", "duplicate", "--drop", "near-duplicate")
    assert_law(dropped, out.read_bytes(), lines(rejects))
    assert [(row["line"], row["reason"], json.loads(row["raw"])) for row in lines(rejects)] == [
        (2, "duplicate", rows[1]),
        (3, "near_duplicate", rows[2]),
    ]


def test_weights_are_told_of_the_rows_that_are_left(call: Call, tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n // 2}", "completion": "a", "weight": 5 if n % 2 else 2} for n in range(8)] + [
        {"prompt": "x", "completion": "y"}
    ]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    out = ("--out", tmp_path / "c.jsonl", "--row-weight", "weight")
    answer = call("clean", file, *out, "--drop", "duplicate")
    assert (answer["kept"], answer["weights"]) == (5, {"rows": 4, "min": 2.0, "mean": 2.0, "max": 2.0})
    assert any("in 4 of 5 rows" in line for line in facts(answer))
    assert call("clean", file, *out)["weights"] == {"rows": 8, "min": 2.0, "mean": 3.5, "max": 5.0}


def test_where_the_other_row_stands_is_told_over_blocks_and_files(call: Call, tmp_path: Path) -> None:
    one = write_rows(tmp_path / "one.jsonl", [{"prompt": f"q{n}", "completion": "a"} for n in range(3000)])
    two = write_rows(tmp_path / "two.jsonl", [{"prompt": "q2500", "completion": "b"}, {"prompt": "Q 7", "completion": "a"}])
    shown = call("check", one, two)["examples"]["conflicting_answer"]
    assert [(row["line"], row["detail"].rpartition(": ")[2]) for row in shown] == [(1, f"{one}:2501")]


def test_prompts_with_many_answers_beyond_the_most_are_told_as_not_looked_at(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"command": f"c{n}", "instruction": f"Display help {n % 3}", "output": f"--help {n}"} for n in range(30)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    told = next(line for line in facts(call("check", file)) if "different answers" in line)
    assert told.startswith("! 30 rows share 3 prompts") and "not looked at" not in told
    monkeypatch.setattr("holdfast.data.survey.many_answers._MOST_ROWS", 6)
    told = next(line for line in facts(call("check", file)) if "different answers" in line)
    assert told.startswith("! 6 rows share 3 prompts") and "; 24 more were not looked at)" in told


@pytest.mark.parametrize("name", ["command", "meta"])
def test_a_field_that_tells_the_answers_of_one_prompt_apart_is_named(call: Call, tmp_path: Path, name: str) -> None:
    rows = [{"id": n, name: f"tool {n}", "q": "x", "instruction": "Display help", "output": f"--help {n}"} for n in range(9)]
    rows += [{"id": n, name: "", "q": "x", "instruction": f"What is {n}?", "output": f"It is {n}"} for n in range(9)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    answer = call("check", file)
    found = answer["many_answers"]
    told = next(line for line in facts(answer) if "different answers" in line)
    assert told.endswith(f"write it into the prompt (Alpaca rows without an input: --field input={name})")
    asked = call("check", file, "--field", f"input={name}")
    assert (answer["conflicting_answers"], asked["conflicting_answers"]) == (8, 0) or name == "meta"
    assert found == {"prompts": 1, "rows": 9, "most": 9, "file": str(file), "line": 1, "told_apart_by": {name: 9}}
    blind = [row | {name: "the same"} for row in rows]
    assert call("check", write_rows(tmp_path / "blind.jsonl", blind))["many_answers"]["told_apart_by"] == {}
    assert call("check", write_rows(tmp_path / "good.jsonl", rows[9:]))["many_answers"] == {}


def test_rows_that_are_too_long(call: Call, tmp_path: Path, assets: SimpleNamespace) -> None:
    rows = [*make_rows(3), {"instruction": "Say", "output": "amber " * 200}, {"instruction": "amber " * 200, "output": "x"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    options = ("check", file, "--tokenizer", assets.model, "--max-tokens", 64)
    cut = call(*options, code=1)
    assert (cut["by_reason"], cut["tokens"]["max"]) == ({"answer_cut": 1, "all_labels_masked": 1}, 64)
    assert call(*options, "--too-long", "reject", code=1)["by_reason"] == {"too_long": 2}


def test_train_and_check_agree_on_every_row(call: Call, tmp_path: Path, assets: SimpleNamespace) -> None:
    from holdfast.data.judge.rules import Rules
    from holdfast.data.tokens.codec import load_codec
    from holdfast.data.tokens.shard import blocks, tokenise

    odd = [
        {"instruction": "q", "output": ""},
        {"text": "a\x00b"},
        {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "q"}]},
        {"instruction": "a", "output": "b " * 99},
    ]
    file = write_rows(tmp_path / "rows.jsonl", [*make_rows(50), *odd])
    answer = call("check", file, "--tokenizer", assets.model, "--max-tokens", 64, code=1)
    (block,) = blocks(str(file))
    shard = tokenise(block, Rules(max_tokens=64), load_codec(assets.model))
    found = shard.verdicts
    assert (found.kept, found.mended, found.rejected) == (answer["kept"], answer["mended"], answer["rejected"]) == (50, 2, 2)
    assert dict(found.by_reason) == answer["by_reason"]
    assert answer["tokens"]["total"] == len(shard.ids)


@pytest.mark.parametrize("limit", [32, 40])
def test_pairs_are_judged_by_both_answers_as_training_judges_them(tmp_path: Path, assets: SimpleNamespace, limit: int) -> None:
    from holdfast.data.judge.rules import Rules
    from holdfast.data.survey.survey import check_block, read_survey
    from holdfast.data.tokens.codec import load_codec
    from holdfast.data.tokens.shard import blocks, tokenise

    rows = [{"prompt": f"Join {at}", "chosen": "yes", "rejected": "no " * (at % 30)} for at in range(1, 60)]
    (block,) = blocks(str(write_rows(tmp_path / "pairs.jsonl", rows)))
    rules, codec = Rules(max_tokens=limit, too_long="cut", wanted="pairs", learns="last"), load_codec(assets.model)
    shard, survey = tokenise(block, rules, codec), read_survey(check_block(block, rules, codec))
    one, other = shard.verdicts, survey.verdicts
    assert (one.kept, one.mended, one.rejected, one.by_reason) == (other.kept, other.mended, other.rejected, other.by_reason)
    assert one.mended and one.kept, "some do not fit, by their worse answer"
    assert shard.lengths.tolist() == survey.lengths.tolist()


# ---- what is shown


def test_the_page_and_the_table_escape_what_rows_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*make_rows(50), {"instruction": "<script>alert(1)</script>", "output": ""}, {"instruction": "x", "output": None}]
    file, page = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "rows.html"
    with file.open("ab") as handle:
        handle.write(b"[bold]\x1b[2J\x07\n")
    assert main(["data", "check", str(file), "--max-tokens", "400", "--html", str(page)]) == 1
    shown, text = capsys.readouterr().out, page.read_text()
    assert "53 rows = 50 kept + 0 repaired + 3 rejected" in shown
    assert "\x1b" not in shown
    assert "[bold]\\x1b[2J" in shown
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert 'class="marker"' in text, "the cap is drawn into the lengths"
    assert "What training makes of these lengths" in text
    assert not [address for address in ("http://", "https://", "src=") if address in text]


def test_what_training_makes_of_lengths() -> None:
    lengths = np.array([10, 20, 30, 40, 10, 10, 10, 10, 100], np.int32)
    found = lengths_of(lengths, lengths, 9).outlook()
    assert (found["tokens"], found["padding"]) == (240, round(1 - 240 / (8 * 40 + 100), 4))
    assert found["limits"] == [
        {"max_tokens": 32, "rows": 2, "tokens": 8 + 68},
        {"max_tokens": 64, "rows": 1, "tokens": 36},
        {"max_tokens": 128, "rows": 0, "tokens": 0},
    ]
    assert Lengths().outlook() == {"tokens": 0, "padding": 0.0, "limits": []}
    assert (Lengths().spread()["p50"], Lengths().histogram()) == (None, {"counts": [], "edges": []})


def lengths_of(trained: npt.NDArray[np.int32], whole: npt.NDArray[np.int32], at_once: int) -> Lengths:
    found = Lengths()
    for begin in range(0, len(trained), at_once):
        found.add(trained[begin : begin + at_once], whole[begin : begin + at_once])
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 200_000) | st.integers(1, 50), min_size=1, max_size=80), st.integers(1, 20))
def test_lengths_are_those_of_all_rows_however_they_come(tokens: list[int], at_once: int) -> None:
    rows = np.array(tokens, np.int32)
    found = lengths_of(rows, rows, at_once)
    assert list(found.spread().values()) == [sum(tokens), *map(int, np.percentile(rows, [0, 50, 90, 99, 100]))]
    shape = found.histogram()
    grow = shape["edges"][-1] - shape["edges"][-2] > 2 * (shape["edges"][1] - shape["edges"][0])
    assert grow == (max(tokens) > 8 * sorted(tokens)[math.ceil(0.9 * len(tokens)) - 1])
    assert shape["counts"] == np.histogram(rows, bins=shape["edges"] if grow else min(40, max(tokens) + 1))[0].tolist()
    padded = sum(max(tokens[at : at + 8]) * len(tokens[at : at + 8]) for at in range(0, len(tokens), 8))
    assert found.outlook()["padding"] == round(1 - sum(tokens) / padded, 4)


@pytest.mark.parametrize("tail", [[15_817] * 3, [4_000], [100_000, 2_000_000]])
def test_a_few_long_rows_leave_the_others_their_bars(tail: list[int]) -> None:
    found = Lengths()
    body = np.arange(13, 166, dtype=np.int32)
    rows = np.concatenate([body, np.array(tail, np.int32)])
    found.add(rows, rows)
    shape = found.histogram()
    assert sum(shape["counts"]) == len(rows)
    assert sum(count > 0 for count in shape["counts"]) >= 9
    bars = histogram(shape["edges"], shape["counts"], "tokens")
    left, wide = ([float(x) for x in re.findall(rf'<rect class="bar"[^>]* {name}="([\d.]+)"', bars)] for name in ("x", "width"))
    assert max(wide) - min(wide) < 0.3 and max(left) < WIDTH


def test_scripts_and_categories_are_counted(call: Call, tmp_path: Path) -> None:
    texts = ["plain", "日本語のテキスト", "Где дом? Wo ist das Haus?", "привет", "한국어", "12 + 3 = 15 ✓", "中文字 and me"]
    file = write_rows(tmp_path / "rows.jsonl", [{"text": text, "category": f"c{n % 2}"} for n, text in enumerate(texts)])
    answer = call("check", file)
    assert answer["scripts"] == {"Latin": 3, "Han": 2, "Cyrillic": 2, "Kana": 1, "Hangul": 1}
    assert answer["categories"] == {"c0": 4, "c1": 3}


ENGLISH = "What does the {} say about the weather in the mountains today, and who wrote it?"


@pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs py3langid")
def test_rows_in_another_language_are_told_and_kept(call: Call, tmp_path: Path) -> None:
    others = [
        "Was sagt die Zeitung heute über das Wetter in den Bergen?",
        "Que dit le journal sur la météo en montagne aujourd'hui ?",
        "ls -la",
    ]
    asked = [*(ENGLISH.format(f"paper number {n}") for n in range(60)), *others, "¿Qué dice el periódico sobre el tiempo en las montañas?"]
    file = write_rows(tmp_path / "rows.jsonl", [{"instruction": text, "output": f"answer {n}"} for n, text in enumerate(asked)])
    answer, page = call("check", file, "--languages", "--html", tmp_path / "page.html"), tmp_path / "page.html"
    assert answer["languages"] == {"en": 60, "de": 1, "fr": 1, "unclear": 1, "es": 1}
    assert answer["stray_languages"] == {"de": 1, "fr": 1, "es": 1}
    assert answer["kept"] == len(asked)
    told = {reason: [found["line"] for found in shown] for reason, shown in answer["examples"].items() if reason.startswith("language_")}
    assert told == {"language_de": [61], "language_fr": [62], "language_es": [64]}
    assert "3 rows are in other languages than the rest (en)" in facts(answer)[-1]
    assert "Was sagt die Zeitung" in page.read_text() and "<h2>Languages</h2>" in page.read_text()
    assert call("check", file)["languages"] == {}
    parts = [file, "--languages", "--out", tmp_path / "c.jsonl", "--rejects", tmp_path / "r.jsonl"]
    assert call("clean", *parts)["languages"] == answer["languages"]


def test_a_mix_of_languages_has_no_strays() -> None:
    assert strays({"en": 40, "de": 35, "fr": 25, "it": 1}) == {}
    assert strays({"en": 960, "unclear": 5000, "de": 40}) == {"de": 40}
    assert (strays({"unclear": 4}), strays({})) == ({}, {})


@pytest.mark.skipif(importlib.util.find_spec("py3langid") is not None, reason="py3langid is installed")
def test_languages_without_the_package_are_refused(call: Call, tmp_path: Path) -> None:
    call("check", write_rows(tmp_path / "rows.jsonl", [GOOD]), "--languages", code=2)


def test_the_memory_of_a_check_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for count in (4_000, 24_000):
        file = write_rows(tmp_path / f"{count}.jsonl", [{"text": f"{n} " + "amber birch " * 40} for n in range(count)])
        script = (
            "import resource, sys; from holdfast.cli.main import main; main(['data', 'check', sys.argv[1], '--workers', '1', '--json']);"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
        )
        command = [sys.executable, "-c", script, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks.append(int(done.stderr.split()[-1]) // 1024)
    assert peaks[1] < peaks[0] + 40, peaks


def test_bytes_that_are_not_text_come_back_whole(call: Call, tmp_path: Path) -> None:
    raw = b'{"text": "\xff\xfe\x80 caf\xc3\xa9"}'
    file = tmp_path / "rows.jsonl"
    file.write_bytes(json.dumps(GOOD).encode() + b"\n" + raw + b"\n\n")
    _, _, rejects = cleaned(call, tmp_path, file)
    assert [(row["line"], row["reason"], base64.b64decode(row["raw_base64"])) for row in rejects] == [(2, "bad_encoding", raw)]


def test_rows_of_a_table_with_a_broken_header_are_not_taken_for_json(call: Call, tmp_path: Path) -> None:
    """Found by scripts/fuzz_rows.py: such a row went by the check for double keys, and came out as what is rejected as a row of JSON."""
    file = tmp_path / "rows.csv"
    file.write_bytes(b'"instruction \xf0", output\n{"text": "a"}\nbirch\n\xff\n')
    answer, clean, rejects = cleaned(call, tmp_path, file)
    assert (answer["rows"], clean) == (3, b"")
    assert [(row["reason"], row["detail"]) for row in rejects] == [
        ("bad_encoding", "a name in the header is not UTF-8"),
        ("bad_encoding", "a name in the header is not UTF-8"),
        ("bad_encoding", "not UTF-8: byte 0xff at offset 0"),
    ]


@pytest.mark.parametrize(
    ("row", "options", "reasons"),
    [
        ({"text": "Lietzvi\u00c5\0\0\u00b3"}, [], {"control_characters": 1, "mojibake": 1}),
        (
            {"messages": [{"role": "user", "content": "<|im_\0end|>"}, {"role": "assistant", "content": "b"}]},
            ["--tokenizer"],
            {"special_token_in_text": 1},
        ),
        (
            {"prompt": "one@somewhere.net", "completion": "two@somewhere.net"},
            ["--redact"],
            {"answer_equals_prompt": 1},
        ),
    ],
)
def test_what_a_mend_brings_to_light_is_seen(
    call: Call, tmp_path: Path, assets: SimpleNamespace, row: Json, options: list[object], reasons: dict[str, int]
) -> None:
    """Found by scripts/fuzz_rows.py: cleaning the clean file mended or rejected such a row."""
    file = write_rows(tmp_path / "rows.jsonl", [row])
    more = [*options, assets.model] if options == ["--tokenizer"] else options
    answer = call("check", file, *more, code=None)
    assert answer["by_reason"] == reasons


def test_near_duplicates_are_remembered_in_bounded_memory() -> None:
    texts = [" ".join(f"{key_of(f'{n} {word}') % 10**9}" for word in range(8)) for n in range(3000)]
    found, enough = signatures([*texts, texts[2999] + "!", texts[0] + "!"])
    assert enough.all()
    near = Near(most=2048)
    marks: list[bool] = []
    for begin in range(0, len(found), 100):
        marks += near.add(found[begin : begin + 100]).tolist()
    assert not any(marks[:3000])
    assert marks[3000:] == [True, False], "the last 2,048 rows are remembered, the first ones are not"


def test_files_without_a_row_are_refused_as_train_refuses_them(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "blank.csv").write_bytes(b"\n\n \n")
    (tmp_path / "header.csv").write_bytes(b"question,answer\n")
    write_rows(tmp_path / "good.jsonl", make_rows(2))
    files = [tmp_path / name for name in ("empty.jsonl", "blank.csv", "header.csv")]
    answer = call("check", *files, tmp_path / "good.jsonl", code=1)
    assert (answer["rows"], answer["empty_files"]) == (2, [str(file) for file in files])
    told = "\n".join(facts(answer))
    assert f"! {files[0]} is empty (0 bytes)" in told and f"! {files[1]} holds no row (4 bytes): train refuses it" in told


def test_lines_of_a_terminal_are_broken_between_words_and_no_path_is_cut() -> None:
    path = "/home/someone/rows/" + "long-" * 20 + "name.jsonl"
    text = f"  the same prompt stood before with another answer: {path}:104, and " + "words of more than one line " * 6
    lines = wrapped(text, 80, 4).splitlines()
    assert " ".join(line.strip() for line in lines) == text.strip() and f"    {path}:104," in lines
    assert all(len(line) <= 80 or path in line for line in lines) and all(line.startswith("    ") for line in lines[1:])
    assert wrapped(text, 0, 4) == text


def test_pairs_and_marks_that_say_the_opposite_are_told_and_no_duplicates(call: Call, tmp_path: Path) -> None:
    pair = {"prompt": "Describe it", "chosen": "a long and good answer", "rejected": "no"}
    again, other, turned = (
        pair | {"prompt": "describe  IT"},
        pair | {"rejected": "never"},
        pair | {"chosen": "no", "rejected": pair["chosen"]},
    )
    file = write_rows(tmp_path / "pairs.jsonl", [pair, again, other, turned])
    answer = call("check", file, "--objective", "dpo")
    assert [answer[kind] for kind in ("duplicates", "near_duplicates", "conflicting_answers")] == [1, 0, 1]
    [conflict] = answer["examples"]["conflicting_answer"]
    assert (
        conflict["line"] == 4
        and conflict["detail"].startswith("what is the better answer here")
        and conflict["detail"].endswith(f"{file}:1")
    )
    assert answer["many_answers"] == {} and answer["marked"] == {}

    good = {"prompt": "Describe it", "completion": "a long and good answer", "label": True}
    rows = [good, good | {"completion": "another"}, good | {"label": False}]
    marked = call("check", write_rows(tmp_path / "marks.jsonl", rows), "--objective", "kto")
    assert [marked[kind] for kind in ("duplicates", "conflicting_answers")] == [0, 1]
    assert marked["marked"] == {"good": 2, "bad": 1} and "2 answers marked as good, 1 as bad" in facts(marked)
    alone = call("check", write_rows(tmp_path / "good.jsonl", rows[:2]), "--objective", "kto")
    assert any(line.startswith("! 2 answers marked as good, 0 as bad: ") for line in facts(alone))


def test_a_split_keeps_what_says_the_opposite_on_one_side(tmp_path: Path) -> None:
    pair = {"prompt": "Describe it", "chosen": "yes", "rejected": "no"}
    rows = [pair, pair | {"chosen": "no", "rejected": "yes"}, {"prompt": "q", "completion": "a", "label": True}]
    rows += [rows[2] | {"label": False}, rows[2] | {"completion": "b"}]
    keys = keys_of(lines_of([str(write_rows(tmp_path / "rows.jsonl", rows))], whole=True), "", compared=True)
    assert len(set(keys.pairs.tolist())) == 5, "none of them is another one"
    assert groups(keys).tolist() == [0, 0, 2, 2, 2]
