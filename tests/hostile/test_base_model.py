"""The base model is part of a run: what was learned belongs to the weights it was learned on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import holdfast, lines
from holdfast.base.errors import Stop
from holdfast.base_model.folder import hub_name, read_model
from holdfast.config.load import load_config
from holdfast.export.subject import read_subject
from holdfast.run.base_model import _hash, changed, follow_pinned, identity, pinned
from holdfast.run.plan import Base, write_plan
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.terminal.run_view import Terminal
from holdfast.trainer.common.job import open_job
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.step.training_state import build
from support.shipped import make_adapter

Write = Callable[..., Path]
COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.fixture
def model(assets: SimpleNamespace, tmp_path: Path) -> Path:
    return shutil.copytree(assets.model, tmp_path / "base")


def test_a_base_that_was_changed_is_refused_at_every_start_and_taken_again_once_it_is_back(config_of: Write, model: Path) -> None:
    config = config_of(model=str(model), train={"steps": 4})
    run, good = config.parent / "run", (model / "model.safetensors").read_bytes()
    assert holdfast("train", config, "--run", run).returncode == 0
    steps = lines(run / "steps.jsonl")
    recorded = json.loads((run / "plan.json").read_text())["base"]
    assert recorded["commit"] is None and {"config.json", "model.safetensors", "tokenizer.json"} <= recorded["files"].keys()

    flip(model / "model.safetensors", -40)
    for verb in (("train", config, "--run", run, "train.steps=6", "--extend"), ("trial", run, "--step", "2"), ("chat", run)):
        done = holdfast(*verb)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert "not the base model that this run began with: model.safetensors is another" in done.stderr
    assert lines(run / "steps.jsonl") == steps

    (model / "model.safetensors").write_bytes(good)
    assert holdfast("train", config, "--run", run, "train.steps=6", "--extend").returncode == 0


def test_a_base_that_is_changed_between_two_attempts_of_one_run_is_not_trained_on(config_of: Write, model: Path, tmp_path: Path) -> None:
    config = config_of(model=str(model), train={"steps": 4})
    with held(tmp_path / "run") as (folder, _lock):
        open_run(folder, load_config(config), False, Terminal(to_stderr=True, quiet=True))
    job = open_job(folder, 1, tmp_path, {})
    flip(model / "model.safetensors", -1)
    with pytest.raises(Refusal, match=r"model\.safetensors is another"):
        build(job, job.settings(1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: flip(folder / "model.safetensors", -1), "model.safetensors is another"),
        (lambda folder: (folder / "config.json").write_text((folder / "config.json").read_text() + " "), "config.json is another"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"), "chat_template.jinja is new"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "tokenizer_config.json is missing"),
        (lambda folder: (folder / "README.md").write_text("about"), None),
    ],
)
def test_what_counts_as_another_base(model: Path, change: Callable[[Path], object], told: str | None) -> None:
    before = identity(read_model(str(model))).files
    change(model)
    after = identity(read_model(str(model))).files
    assert (before != after) == (told is not None)


def test_a_large_file_is_known_by_samples_of_it(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(64 << 20))
    before = _hash(file, True)
    assert before.startswith("sampled:")
    with file.open("r+b") as handle:  # as a fine-tune does, all over
        handle.write(b"\1" * (64 << 20))
    assert _hash(file, True) != before
    file.write_bytes(bytes((64 << 20) - 1))
    assert _hash(file, True) != before


def test_a_large_tokenizer_is_known_whole_and_as_an_older_run_has_it_on_record(model: Path) -> None:
    words = json.loads((model / "tokenizer.json").read_text())
    (file := model / "tokenizer.json").write_text(json.dumps({"about": "x" * (9 << 20), **words}))
    facts, before = read_model(str(model)), identity(read_model(str(model)))
    old = before.model_copy(update={"files": before.files | {file.name: _hash(file, True)}})
    assert identity(facts, old) == old
    flip(file, ((9 << 20) - (1 << 16)) * 30 // 63 + (1 << 16) + 4096)  # between two samples
    assert identity(facts).files[file.name] != before.files[file.name]
    assert identity(facts, old) == old, "a run that began with samples goes on"


def test_a_base_has_one_name_in_runs_of_older_versions_and_of_this_one_and_for_an_adapter_alone(
    config_of: Write, model: Path, tmp_path: Path
) -> None:
    (file := model / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes() + b" " * (9 << 20))
    with held(tmp_path / "run") as (folder, _lock):
        open_run(folder, load_config(config_of(model=str(model))), False, Terminal(to_stderr=True, quiet=True))
    alone = read_subject(make_adapter(model, tmp_path / "adapter"))
    new = replace(alone, run=folder).hashes()
    plan = folder.plan()
    sampled = Base(files=identity(read_model(str(model))).files | {file.name: _hash(file, True)})
    write_plan(folder.plan_file, plan.model_copy(update={"base": sampled}))
    old = replace(alone, run=folder).hashes()
    for name in ("base_sha256", "behaviour_sha256"):
        assert new[name] == old[name] == alone.hashes()[name]
    assert changed(folder, read_model(str(model))) is None, "and a run of either goes on"


@pytest.mark.parametrize(
    ("asked", "begun", "taken"),
    [
        ("owner/name", f"owner/name@{COMMIT}", f"owner/name@{COMMIT}"),
        ("owner/name@main", f"owner/name@{COMMIT}", f"owner/name@{COMMIT}"),
        (f"owner/name@{OTHER}", f"owner/name@{COMMIT}", f"owner/name@{OTHER}"),
        ("owner/other", f"owner/name@{COMMIT}", "owner/other"),
        ("tiny", "tiny", "tiny"),
    ],
)
def test_a_run_stays_with_the_commit_it_began_with(asked: str, begun: str, taken: str) -> None:
    assert follow_pinned(asked, begun) == taken


def hub_cache(model: Path, folder: Path) -> Path:
    """A cache as huggingface_hub lays it out: two commits, `main` and a tag."""
    repo = folder / "models--owner--name"
    for commit in (COMMIT, OTHER):
        shutil.copytree(model, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(OTHER)
    (repo / "refs" / "v1").write_text(COMMIT)
    return repo


def test_a_model_of_the_hub_is_taken_at_the_revision_asked_for(
    assets: SimpleNamespace, config_of: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_cache(assets.model, tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for asked, commit in {"owner/name@v1": COMMIT, "owner/name": OTHER, f"owner/name@{COMMIT}": COMMIT}.items():
        with held(tmp_path / asked.replace("/", "-")) as (folder, _lock):
            open_run(folder, load_config(config_of(model=asked)), False, Terminal(to_stderr=True, quiet=True))
        assert folder.config().model == f"owner/name@{commit}" and folder.plan().base == identity(read_model(folder.config().model))
        assert folder.plan().base.commit == commit
    with pytest.raises(Stop, match="owner/name@v9 is not a folder"):
        read_model("owner/name@v9")


@pytest.mark.long
def test_a_run_on_a_model_of_the_hub_stays_with_its_commit_to_the_end(
    assets: SimpleNamespace, config_of: Write, tmp_path: Path, exec_only: None
) -> None:
    repo = hub_cache(assets.model, tmp_path / "hub")
    surroundings = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    config = config_of(model="owner/name@v1", train={"steps": 2})
    done = holdfast("train", config, "--run", tmp_path / "run", env=surroundings)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["revision"]) == ("owner/name", COMMIT)
    (repo / "refs" / "v1").write_text(OTHER)  # the tag moves on; the run does not
    again = holdfast("train", config, "--run", tmp_path / "run", "--extend", "train.steps=3", env=surroundings)
    assert again.returncode == 0, again.stderr


def test_a_folder_with_an_at_sign_is_a_folder(assets: SimpleNamespace, tmp_path: Path) -> None:
    folder = shutil.copytree(assets.model, tmp_path / "name@v1")
    assert hub_name(str(folder)) == (str(folder), None)
    assert pinned(str(folder), read_model(str(folder))) == str(folder)
