"""What is small and becomes large when it is read: rows, logs, a user's own expression. Bounded work and memory, and a sentence."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import shutil
from collections import deque
from pathlib import Path

import pytest
import zstandard

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base_model.folder import EMBEDDED, read_model
from holdfast.config.load import load_config
from holdfast.data.files import stream
from holdfast.data.files.raw_row import Reject
from holdfast.data.files.read import read_rows
from holdfast.data.judge.rules import Rules
from holdfast.data.tokens.codec import load_codec
from holdfast.diagnosis.logs import file
from holdfast.diagnosis.logs.file import read_log
from holdfast.machine.facts import has_bf16
from holdfast.machine.machine_file import read, training_devices
from holdfast.machine.sound_facts import sound_facts
from holdfast.planning.plan import _memory_limit
from holdfast.run.command import Command
from holdfast.supervision.command.signs import Signs
from support.hostile import MACHINE, answers, bounded

MIB = 1 << 20
ROW = b'{"prompt": "a", "completion": "b"}\n'
PACKED = {"gzip": gzip.compress, "zstd": zstandard.compress}


def zeros(kind: str, count: int, unit: bytes = bytes(MIB)) -> bytes:
    """A file of `count` times a unit, packed piece by piece."""
    return PACKED[kind](ROW) + PACKED[kind](unit) * count


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("unit", [bytes(MIB), b"\n" * MIB, b'{"a":1}\n' * (MIB // 8)])
def test_rows_that_unpack_to_far_more_than_text_does_are_damaged_from_there_on(
    kind: str, unit: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MOST_UNPACKED", 8 * MIB)
    rows_file = tmp_path / "rows.jsonl"
    rows_file.write_bytes(zeros(kind, 1000, unit))
    with bounded(kind):
        last = deque(read_rows(str(rows_file)), maxlen=1)[0]
    assert isinstance(last, Reject) and last.reason == "damaged_file" and "300 times its size" in last.detail


def test_text_that_packs_well_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MOST_UNPACKED", MIB)
    rows_file = tmp_path / "rows.jsonl"
    rows = [b'{"prompt": "How much room is left on disk %d?", "completion": "df -h /dev/sd%d"}\n' % (n * 7919, n) for n in range(40_000)]
    for kind, pack in PACKED.items():
        rows_file.write_bytes(pack(b"".join(rows)))
        assert sum(1 for _ in read_rows(str(rows_file))) == len(rows), kind


def test_a_log_without_line_ends_is_read_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 MiB with a word of trouble in each, what surrounds the first ones and the end is kept."""
    pieces: list[int] = []
    line = (b"x" * (MIB // 2 - 20) + b" RuntimeError: no ") * 128
    monkeypatch.setattr(file, "_decode", lambda data: pieces.append(len(data)) or data.decode())
    assert read_log(io.BytesIO(line), chunk=MIB) and sum(pieces) < 8 * MIB


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:(\d+)|\w|.)*x(\d)", r"(.*.*.*.*.*.*=(\d))"])
def test_an_expression_that_backtracks_is_left_after_a_while(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.supervision.command.signs._PATTERN_S", 0.2)
    log = tmp_path / "output.log"
    log.write_text("a" * 4000 + "!\n")
    signs = Signs(Command(("true",), str(tmp_path), progress=pattern), tmp_path, 0.0)
    with bounded(pattern):
        assert signs.look(None).step is None and signs.too_slow
        log.write_text(log.read_text() + "".join(f"step {n}/9\n" for n in range(1, 6)))
        assert signs.look(None).step == 5


def test_an_expression_of_ordinary_cost_is_asked_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("".join(f"done {n} of 20000 at last\n" for n in itertools.chain(range(20000))))
    signs = Signs(Command(("true",), str(tmp_path), progress=r"done (\d+) of (\d+)"), tmp_path, 0.0)
    seen = signs.look(None)
    assert (seen.step, seen.total, signs.too_slow) == (19999, 20000, False)


ODD: tuple[object, ...] = (-1, 0, 1e308, 10**40, True, "x", [1], {}, {"a": 1}, [[1]], [None], None)
CARD_ODD = ("name", "arch", "vendor", "memory_bytes", "integrated")


@pytest.mark.parametrize("name", [*("os", "cpu", "gpus", "torch", "env", "memory_bytes", "disk_free_bytes"), *CARD_ODD])
def test_facts_of_a_wrong_kind_are_unknown_to_a_plan(name: str) -> None:
    """As doctor takes them: whoever computes with a fact finds one that it can compute with."""
    card = {"vendor": "amd", "arch": "gfx1201", "memory_bytes": 16 << 30}
    for odd in ODD:
        for place in ("gpus", "devices"):
            cards = [card | ({name: odd} if name in CARD_ODD else {})]
            facts = MACHINE | {"gpus": cards if place == "gpus" else [], "cpu": {"threads": odd}}
            facts["torch"] = {"version": "2.9.1", "devices": cards if place == "devices" else odd}
            facts |= {} if name in CARD_ODD else {name: odd}
            found = sound_facts(facts)
            assert not read(found).odd, (name, odd)
            assert sound_facts(MACHINE) == MACHINE
            assert (_memory_limit(found) or 1) > 0
            assert all(isinstance(has_bf16(gpu["arch"]), bool | None) for gpu in training_devices(found) if gpu.get("arch"))


@pytest.mark.parametrize(
    "facts", [{"gpus": [{"name": "x"}] * 2000}, {"torch": {"devices": [1] * 2000}}, {"env": {str(n): "x" for n in range(10**5)}}]
)
def test_a_machine_of_a_hundred_thousand_parts_is_none(facts: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE | facts))
    for verb in (("doctor",), ("diagnose", tmp_path / "machine.json")):
        assert "no machine has more than" in answers("a machine", *verb, "--machine", tmp_path / "machine.json", codes=(2,))


def replaced(text: str, by: str, kind: str = "String") -> dict[str, object]:
    return {"type": "Replace", "pattern": {kind: text}, "content": by}


def in_order(*parts: dict[str, object]) -> dict[str, object]:
    return {"type": "Sequence", "normalizers": [*parts]}


EMPTY = {"id": 5000, "content": "", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
AROUND = {
    "type": "TemplateProcessing",
    "single": [TEXT] * 5000,
    "pair": [TEXT, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+(b+)+$"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZERS = {
    "a normalizer that doubles": ({"normalizer": in_order(*[replaced("a", "aa")] * 40)}, "times as long"),
    "one that triples each letter": ({"normalizer": in_order(*[replaced("[a-z]", "aaa", "Regex")] * 30)}, "times as long"),
    "one that writes between all letters": ({"normalizer": replaced("", "x" * 1000)}, "times as long"),
    "long beginnings": ({"normalizer": {"type": "Prepend", "prepend": "x" * 10**6}}, "times as long"),
    "one that swallows all": ({"normalizer": replaced(r"[\s\S]+", "", "Regex")}, "makes no token of"),
    "tokens around": ({"post_processor": AROUND}, "tokens around each text"),
    "an expression that backtracks": ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}}, "fails on these rows"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_makes_much_of_little_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    changes, says = TOKENIZERS[name]
    shutil.copytree(EMBEDDED["tiny"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with bounded(name), pytest.raises(Stop, match=says) as stop:
        load_codec(tmp_path).encode([[("a" * 40 + "!", False), ("a" * 40 + "!", True)]], Rules(max_tokens=512))
    assert stop.value.code == BLOCKED


def test_an_added_token_without_a_text_is_none(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED["tiny"], tmp_path, dirs_exist_ok=True)
    pieces = [[("a" * 40 + "!", False), ("a" * 40 + "!", True)]]
    (plain,) = load_codec(tmp_path).encode(pieces, Rules(max_tokens=512))
    file = tmp_path / "tokenizer.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"added_tokens": [*told["added_tokens"], EMPTY]}))
    with bounded("an added token without text"):
        assert load_codec(tmp_path).encode(pieces, Rules(max_tokens=512)) == [plain]


CONFIGS: dict[str, dict[str, object]] = {
    "a million architectures": {"architectures": ["LlamaForCausalLM"] * 10**6},
    "a million ends": {"eos_token_id": list(range(10**6))},
    "a hundred thousand keys": {f"key{n}": n for n in range(10**5)},
    "layer types of lists": {"layer_types": [["full_attention"]]},
    "a type that is a list": {"model_type": ["llama"]},
    "a text model's type": {"text_config": {"model_type": 5}},
    "a size beyond numbers": {"hidden_size": 10**18},
}
INDEXES: tuple[object, ...] = (
    [],
    None,
    "x",
    {},
    {"a": 5},
    {"a": None},
    {"a": ["b"]},
    {"a": ""},
    {"a": "x" * 5000},
    {"a": "/etc/passwd"},
    {"a": "../x"},
)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_other_forms_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED["tiny"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | CONFIGS[name]))
    with bounded(name), pytest.raises(Stop, match=r"config\.json") as stop:
        read_model(str(tmp_path))
    assert stop.value.code == BLOCKED and len(str(stop.value)) < 500


@pytest.mark.parametrize("found", INDEXES, ids=lambda found: str(found)[:20])
def test_an_index_of_other_forms_is_refused_in_a_sentence(found: object, tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED["tiny"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": found}))
    with pytest.raises(Stop, match=r"index\.json names") as stop:
        read_model(str(tmp_path))
    assert stop.value.code == BLOCKED and len(str(stop.value)) < 500


LISTED = "model: tiny\ndata: {files: [rows.jsonl]}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LISTED + "".join(f"k{n}: {n}\n" for n in range(10**5)), "more than 20,000 keys and values"),
        (LISTED + "train:\n" + "".join(f"  k{n}: {n}\n" for n in range(10**5)), "more than 20,000 keys and values"),
        ("model: tiny\ndata: {files: [" + "rows.jsonl," * 10**5 + "]}\n", "more than 20,000 keys and values"),
        (LISTED + "".join(f"k{n}: {n}\n" for n in range(3000)), "and 2,9"),
    ],
    ids=["keys", "keys of a section", "files", "fewer keys"],
)
def test_a_config_of_a_hundred_thousand_entries_is_refused_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "rows.jsonl").write_bytes(ROW)
    with bounded(says), pytest.raises(Stop) as stop:
        load_config(tmp_path / "config.yaml")
    assert says in str(stop.value) and len(str(stop.value)) < 20_000
