"""`serve NAME`: the version in place answers, another one takes over while answers are on their way, and none is dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.cli.commands.serve import _name
from holdfast.data.tokens.codec import load_codec
from holdfast.export import registry
from holdfast.serve import follow
from holdfast.serve.endpoint import RequestRefused, token_of
from holdfast.serve.experts import FILE, experts_folder, stamp_of
from holdfast.serve.follow import VersionFollower, in_place, shown
from holdfast.serve.served import GatewayState, ServedModel


class Engine:
    name = "parrot"

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A list of models with `helper 1` in place, served and followed; `.said`: what was told, `.refused`: why nothing can be loaded."""
    file, said = tmp_path / "models.jsonl", list[str]()
    codec = load_codec(EMBEDDED["tiny"])
    world = SimpleNamespace(file=file, said=said, refused="", state=GatewayState("secret"), bases=[])

    def subject_of(version: registry.Version, base: str | None) -> Any:
        world.bases.append(base)
        if world.refused:
            raise Stop(BLOCKED, world.refused)
        return version

    def make(subject: Any, name: str) -> ServedModel:
        return ServedModel(codec, name, 512, Engine())  # type: ignore[arg-type]

    monkeypatch.setattr(follow, "subject_of", subject_of)
    promote(file, 1)
    version = in_place(file, "helper")
    world.state.served = make(version, shown(version))
    world.following = VersionFollower(file, "helper", version, world.state, make, said.append, "/where/it/is/now")
    return world


def promote(file: Path, number: int) -> None:
    hashes = {"run": f"/runs/{number}", "base": "b", "adapter_sha256": f"{number}" * 64, "behaviour_sha256": f"{number}" * 64}
    assert registry.record_verdict(file, "helper", hashes, None, "better") == number
    registry.promote(file, "helper", number, "a trial")


def test_who_was_asked_before_a_promotion_answers_to_the_end(world: Any) -> None:
    with world.state.held() as old:
        promote(world.file, 2)
        world.following.look()
        with world.state.held() as new:
            assert (old.name, new.name, old.engine.closed) == ("helper 1", "helper 2", 0)
        assert (old.engine.closed, new.engine.closed) == (0, 0)
    assert (old.engine.closed, new.engine.closed) == (1, 0)
    registry.rollback(world.file, "helper")
    world.following.look()
    assert (world.state.served.name, new.engine.closed) == ("helper 1", 1)
    assert world.said == ["helper 2 answers from now on", "helper 1 answers from now on"]
    assert world.bases == ["/where/it/is/now"] * 2, "as --base said of the first"


def test_experts_that_are_made_after_a_promotion_answer_without_another(world: Any, tmp_path: Path) -> None:
    run = tmp_path / "0002" / "run"
    hashes = {"run": str(run), "base": "b", "adapter_sha256": "c" * 64, "behaviour_sha256": "c" * 64}
    registry.promote(world.file, "helper", registry.record_verdict(world.file, "helper", hashes, None, "better"), "a trial")
    world.following.look()
    before = world.state.served
    world.following.look()
    assert world.state.served is before
    experts_folder(run).mkdir(parents=True)
    (experts_folder(run) / FILE).write_text("{}")
    made = world.following._make
    world.following._make = lambda subject, name: replace(made(subject, name), stamp=stamp_of(run))
    world.following.look()
    after = world.state.served
    assert after is not before and before.engine.closed == 1
    world.following.look()
    assert world.state.served is after


def test_what_cannot_be_loaded_is_told_once_and_the_old_one_goes_on(world: Any) -> None:
    world.refused = "its base is gone"
    promote(world.file, 2)
    for _ in range(3):
        world.following.look()
    assert (world.state.served.name, world.said) == ("helper 1", ["! helper 1 goes on: its base is gone"])
    world.refused = ""
    promote(world.file, 3)
    world.following.look()
    assert world.state.served.name == "helper 3"


def test_a_version_that_was_withdrawn_gives_no_further_answer(world: Any) -> None:
    registry.withdraw(world.file, "helper", ["/runs/1"])
    world.following.look()
    world.state.refuse("base")
    with pytest.raises(RequestRefused, match="no version of helper is in place") as refused:
        world.state.refuse("tuned")
    assert refused.value.status == 503
    promote(world.file, 2)
    world.following.look()
    world.state.refuse("tuned")


def test_the_token_file_is_made_for_its_owner_and_used_again(tmp_path: Path) -> None:
    file = tmp_path / "helper.token"
    token = token_of(file)
    assert (token_of(file), file.stat().st_mode & 0o777, len(token) >= 32) == (token, 0o600, True)
    file.write_text("short\n")
    with pytest.raises(Stop, match="5 letters are too few"):
        token_of(file)
    with pytest.raises(Stop, match="No such file"):
        token_of(tmp_path / "nowhere" / "token")


def test_what_is_neither_a_folder_nor_a_name_is_refused_with_the_names_there_are(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(world.file))
    assert _name(Path("helper")) == "helper"
    assert _name(tmp_path) is None and _name(tmp_path / "helper") is None
    with pytest.raises(Stop, match=r"halper is not a folder here, and no name of a model: .* lists helper") as stop:
        _name(Path("halper"))
    assert stop.value.code == USAGE


def test_a_damaged_list_of_models_stops_no_answer(world: Any) -> None:
    with world.file.open("a") as out:
        out.write('{"event": "promoted", "name": "helper", "version": 9}\n')
    world.following.look()
    assert world.state.served.name == "helper 1"
    assert "helper 1 goes on" in world.said[0]
