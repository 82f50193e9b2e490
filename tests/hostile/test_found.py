"""What fuzzing and fresh seeds have found, each kind once: files that were answered with a bug of ours, without an end, or not at all."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from conftest import write_table
from holdfast.base.errors import Stop
from holdfast.base.files import cut_torn_line, read_lines
from holdfast.base.locks import taken
from holdfast.base_model.folder import ModelFacts
from holdfast.cli.main import main
from holdfast.config.load import load_config
from holdfast.data.recipe.recipe_file import read_file
from holdfast.export.registry import read_registry
from holdfast.learn.gate import held_rows, own_general
from holdfast.learn.policy import Policy
from holdfast.run.adapter_folder import read_start
from holdfast.supervision import diagnose_run
from holdfast.supervision.foreign_checkpoints.newest import newest_whole
from holdfast.supervision.foreign_checkpoints.proof import prove
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole
from holdfast.tables.table.frames import open_frames
from holdfast.verify.expectations import read_prompts
from support.hostile import answers, bounded
from support.old_runs import settle


def archive(how: int = zipfile.ZIP_STORED, size: int = 64) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as held:
        held.writestr("archive/data.pkl", b"\x80\x02N.")
        held.writestr("archive/data/0", bytes(size))
    return out.getvalue()


def encrypted() -> bytes:
    data = bytearray(archive())
    for sign, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(sign)
        data[at + flags] |= 1
    return bytes(data)


def headed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(8)


TORN = {
    "an encrypted archive": ("optimizer.pt", encrypted(), "encrypted"),
    "an archive that swells": ("optimizer.pt", archive(zipfile.ZIP_DEFLATED, 1 << 20), "would unpack to"),
    "packed bytes that are none": ("optimizer.pt", archive(zipfile.ZIP_DEFLATED).replace(b"\x63\x60", b"\xff\xff"), "torn|checksum"),
    "half a pair": ("model.safetensors", headed(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}}'), "describes no tensors"),
    "a negative place": ("model.safetensors", headed(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,8]}}'), "describes no tensors"),
}


@pytest.mark.parametrize("name", TORN)
def test_a_checkpoint_file_that_is_none_is_not_gone_on_from(name: str, tmp_path: Path) -> None:
    file, data, why = TORN[name]
    (tmp_path / file).write_bytes(data)
    with pytest.raises(NotWhole, match=why):
        prove(tmp_path / file, "files")


def test_a_pipe_with_the_name_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model-7.pt")
    found = newest_whole(tmp_path, "files", {})
    assert found.path is None and "not a regular file" in found.aside[0][1]


def test_a_shard_whose_name_is_none_is_a_checkpoint_that_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(NotWhole, match="File name too long"):
        prove(tmp_path, "files")


def plant(kind: str, file: Path) -> None:
    {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda it: it.symlink_to(it.name), "device": lambda it: it.symlink_to("/dev/zero")}[
        kind
    ](file)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device"])
def test_what_is_no_file_is_no_journal_and_no_lock(kind: str, tmp_path: Path) -> None:
    plant(kind, tmp_path / "planted")
    with pytest.raises(Stop, match="is damaged"):
        list(read_lines(tmp_path / "planted"))
    with pytest.raises(Stop, match="is damaged"):
        cut_torn_line(tmp_path / "planted")
    assert not taken(tmp_path / "planted")


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "promoted", "name": "a", "version": 1}',
        '{"event": "exported", "name": "a", "version": "1"}',
        '{"name": "a", "version": 1}',
        "{}",
    ],
)
def test_a_list_of_models_with_entries_of_nobody_is_told_with_the_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "models.jsonl").write_text(line + "\n")
    with pytest.raises(Stop, match=r"models.jsonl is damaged: line 1"):
        read_registry(tmp_path / "models.jsonl")


def test_a_fact_of_a_machine_that_has_a_line_break_is_one_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "machine.json").write_text(json.dumps({"os": "a\nb\n" * 40, "torch": {"arch_list": ["x\n"]}, "gpus": [{"arch": "y\n"}]}))
    (tmp_path / "a.log").write_text("RuntimeError: CUDA error: out of memory\n")
    assert main(["diagnose", str(tmp_path / "a.log"), "--machine", str(tmp_path / "machine.json"), "--exit-code", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "gpu_out_of_memory"


@pytest.mark.parametrize("value", [10**40, -(10**40), 1e30, "9" * 60])
def test_a_whole_number_beyond_all_use_is_a_problem_of_its_key(value: object, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"model": "tiny", "data": {"files": "rows.jsonl"}, "train": {"effective_batch": value}})
    )
    with pytest.raises(Stop, match="effective_batch"):
        load_config(tmp_path / "c.yaml")


def quoted(file: Path) -> None:
    file.write_text(file.read_text().replace(",a,", ',"a,', 1))


def cut_in_the_middle(file: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_csv(file)
    frame.write_parquet(file)
    data = bytearray(file.read_bytes())
    data[40:200] = bytes(160)
    file.write_bytes(data)


def beyond_its_end(file: Path) -> None:
    """An Arrow file whose footer places its one block behind the end of the file, which makes polars panic."""
    polars = pytest.importorskip("polars")
    polars.read_csv(file).write_ipc(file)
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[-10:-6], "little")
    footer = len(data) - 10 - size
    block = next(
        at for at in range(footer, len(data) - 10, 4) if data[at : at + 8] == (data.index(b"\xff\xff\xff\xff", 12)).to_bytes(8, "little")
    )
    data[block : block + 8] = (1 << 40).to_bytes(8, "little")
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "suffix", "told"),
    [
        (quoted, "csv", "cannot be read as CSV"),
        (cut_in_the_middle, "parquet", "damaged behind row 0"),
        (beyond_its_end, "arrow", "damaged behind row 0"),
    ],
)
def test_a_table_that_polars_cannot_read_is_told_and_not_shown(
    spoil: Callable[[Path], None], suffix: str, told: str, tmp_path: Path
) -> None:
    pytest.importorskip("polars")
    file = write_table(tmp_path / f"table.{suffix}", 40)
    spoil(file)
    with pytest.raises(Stop, match=told) as stop:
        list(open_frames(file).chunks(["x0", "x1"], 1000))
    assert len(str(stop.value)) < 1000


@pytest.mark.parametrize("size", [-512, 0, True, "x", None])
def test_a_size_of_a_model_that_is_none_is_unknown(size: object, tmp_path: Path) -> None:
    facts = ModelFacts(tmp_path, {"max_position_embeddings": size, "hidden_size": size}, {}, 0)
    assert facts.positions is None and facts.number("hidden_size", default=7) == 7


@pytest.mark.parametrize("saved", ["lm_head", [{"a": 1}], [None], 7, {}])
def test_modules_of_an_adapter_that_are_no_names_are_told(saved: object, tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "modules_to_save": saved}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(headed(b"{}")[:-8])
    with pytest.raises(Stop, match="modules_to_save is no list of names"):
        read_start(tmp_path)


@pytest.mark.parametrize("kind, told", [("pipe", "nobody has written"), ("device", "a device, no log")])
def test_a_log_without_a_writer_or_an_end_is_not_waited_for(kind: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_run, "WRITER_S", 1)
    plant(kind, tmp_path / "crash.log")
    with pytest.raises(Stop, match=told):
        diagnose_run.read_lines_of(str(tmp_path / "crash.log"))


def test_a_pipe_with_a_writer_is_read_to_its_end() -> None:
    out, into = os.pipe()
    os.write(into, b"CUDA error: out of memory\n")
    os.close(into)
    assert [line.text for line in diagnose_run.read_lines_of(f"/dev/fd/{out}")] == ["CUDA error: out of memory"]
    os.close(out)


@pytest.mark.parametrize("key", ["gate.rows", "gate.prompts", "replay.general_rows", "--prompts", "recipe"])
def test_what_is_no_file_where_a_file_is_read_at_once_is_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link to /dev/zero was read until memory ran out, or its rows counted for ever; a pipe was waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "held.jsonl").write_text('{"instruction": "a", "output": "b"}\n' * 20)
    for place in (pipe, Path("/dev/zero")):
        tree = {"gate": {"rows": str(tmp_path / "held.jsonl")}, "replay": {"general": 0.1}}
        if "." in key:
            section, name = key.split(".")
            tree[section] |= {name: str(place)}
            made = {"gate": tree["gate"], "replay": tree["replay"]}
            policy = Policy.model_validate(
                {"name": "n", "config": "c", "sources": [{"folder": str(tmp_path)}], "round": {"rows": 40}} | made
            )
            read = {
                "gate.rows": held_rows,
                "gate.prompts": lambda one: read_prompts(Path(one.gate.prompts)),
                "replay.general_rows": own_general,
            }
            with bounded(f"{key} {place}"), pytest.raises(Stop, match=r"is not a regular file"):
                read[key](policy)
        elif key == "recipe":
            with bounded(f"{key} {place}"), pytest.raises(OSError, match=r"is not a regular file"):
                read_file(place)
        else:
            with bounded(f"{key} {place}"), pytest.raises(Stop, match=r"is not a regular file"):
                read_prompts(place)


@pytest.mark.parametrize("lost", ["data.safetensors", "plan.json", "timeline.jsonl", "steps.jsonl", "config.yaml"])
@pytest.mark.parametrize("verb", [("train", "text.yaml", "--run"), ("move",), ("report",), ("bundle",)])
def test_a_device_in_the_place_of_a_runs_file_is_told(
    lost: str, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(settle(tmp_path, "text"))
    run = tmp_path / "runs/text"
    (run / lost).unlink()
    (run / lost).symlink_to("/dev/zero")
    more = {"move": ("--to", str(tmp_path / "away")), "bundle": ("--out", str(tmp_path / "b.zip"))}.get(verb[0], ())
    answers(f"{lost} {verb}", *verb, run, *more)
