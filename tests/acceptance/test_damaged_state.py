"""A state that training cannot have made is named and gone back behind, on record; data, state, rate and kernel are told apart."""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some
from safetensors import safe_open
from safetensors.torch import load, save

from conftest import events, holdfast, kill, lines, processes_of, settings_with, start, wait_until
from holdfast.base.files import Json
from holdfast.config.train import Train
from holdfast.diagnosis.divergence import FROM_THE_START, left_level
from holdfast.experiments.investigate import investigate
from holdfast.experiments.replay import TrialChange
from holdfast.experiments.state import blame_the_rate, blame_the_state
from holdfast.experiments.trials import Lab
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import memory_places
from holdfast.run.types import Diagnosis, Ending, FailureReport, Verdict
from holdfast.supervision.policy.ledgers import PastAttempt
from holdfast.supervision.policy.moves import RollBack
from holdfast.supervision.policy.next_move import ROLLBACKS, of_death, of_verdict
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.state.sound import damage
from support.known import known

STEPS, STOOD = 10, 7
Write = Callable[..., Path]
ADAPTER, STATE = "adapter_model.safetensors", "state.safetensors"
pytestmark = pytest.mark.usefixtures("no_leftovers")

# ---- real runs


def begin(assets: SimpleNamespace, folder: Path, **train: Any) -> Path:
    """A run that was killed in step 8, with its snapshot beside it, and checkpoints of steps 3, 6 and 7; its config is beside it, too."""
    run, config, faults = folder / "run", folder / "c.yaml", folder / "f.yaml"
    train = {"steps": STEPS, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "threads": 1} | train
    data = {"files": [str(assets.rows)], "held_out": 0.1}
    tree = {"model": str(assets.model), "data": data, "adapter": {"r": 4, "dropout": 0.1}, "train": train, "save": {"every": 3}}
    config.write_text(yaml.safe_dump(tree | {"evaluate": {"generate": 0}, "run": {"standby": False}}))
    faults.write_text(json.dumps([{"when": {"step": STOOD + 1, "attempt": 1}, "effect": "slow", "seconds": 600}]))
    child = start("train", config, "--run", run, "--faults", faults)
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) == STOOD)
    wait_until(lambda: (run / "checkpoints/step-00000006").exists())
    shutil.copyfile(memory_of(run), folder / "snapshot")
    child.send_signal(signal.SIGTERM)
    kill(processes_of(run)["trainer"])
    child.communicate()
    assert (run / f"checkpoints/step-{STOOD:08d}").exists()
    return run


@pytest.fixture(scope="module")
def stood(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(such a run, the artifact it ends with where nothing is damaged)"""
    run = begin(assets, tmp_path_factory.mktemp("stood"))
    return run, finished(moved(run, run.parent / "whole"))["artifact_sha256"]


def memory_of(run: Path) -> Path:
    return Path(json.loads((run / "attempts/001/ready.json").read_text())["memory_file"])


def moved(run: Path, to: Path) -> Path:
    """A copy of a run, which knows no snapshot, as after a reboot."""
    shutil.copytree(run, to, symlinks=True)
    return to


def finished(run: Path) -> dict[str, Any]:
    config = next(folder for folder in (run.parent, run.parent.parent) if (folder / "c.yaml").exists()) / "c.yaml"
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def damaged(data: bytes, metadata: dict[str, str] | None, part: str, value: float, all_of_it: bool = False) -> tuple[bytes, str]:
    """A safetensors image with a wrong value in the first tensor whose name has `part` in it; that name."""
    tensors = load(data)
    names = [name for name in sorted(tensors) if part in name]
    for name in names if all_of_it else names[:1]:
        tensors[name].view(-1)[slice(None) if all_of_it else slice(5, 6)] = value
    made = save(tensors, metadata)
    assert len(made) == len(data)
    return made, names[0]


def damage_checkpoint(run: Path, step: int, file: str, part: str, value: float, all_of_it: bool = False) -> str:
    """Put a wrong value into a checkpoint whose manifest then agrees with it again; the tensor's name."""
    folder = run / f"checkpoints/step-{step:08d}"
    with safe_open(folder / file, "pt") as opened:  # type: ignore[no-untyped-call]
        metadata = opened.metadata()
    data, name = damaged((folder / file).read_bytes(), metadata, part, value, all_of_it)
    (folder / file).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return name


@pytest.mark.parametrize(
    ("file", "part", "value", "steps", "to"),
    [
        (ADAPTER, "layers.1", float("nan"), [7], 6),
        (ADAPTER, "lora_B", 1e30, [7, 6], 3),
        (STATE, "exp_avg/", float("inf"), [7], 6),
        (STATE, "exp_avg_sq/", -1.0, [7, 6, 3], 0),
    ],
    ids=["a weight", "a huge weight in two checkpoints", "a moment", "all checkpoints"],
)
def test_a_damaged_checkpoint_is_named_and_gone_back_behind(
    stood: tuple[Path, str], tmp_path: Path, file: str, part: str, value: float, steps: list[int], to: int
) -> None:
    shutil.copyfile(stood[0].parent / "c.yaml", tmp_path / "c.yaml")
    run = moved(stood[0], tmp_path / "run")
    names = {damage_checkpoint(run, step, file, part, value).replace("base_model.model.", "") for step in steps}
    summary = finished(run)
    assert_gone_back(run, summary, names.pop(), to)
    assert summary["artifact_sha256"] == stood[1], "what is computed again comes to the same bits"
    assert len(list((run / "rollbacks/001/checkpoints").iterdir())) == sum(step > to for step in (3, 6, 7))


def assert_gone_back(run: Path, summary: dict[str, Any], name: str, to: int) -> None:
    (back,) = events(run, "rolled_back")
    assert (back["step"], back["to"]) == (STOOD, to)
    incident = summary["incidents"][-1]
    assert (incident["cause"], incident["remedy"], incident["step"]) == ("hardware_fault", "rollback", STOOD)
    assert name in incident["evidence"] and incident["lost_steps"] == STOOD - to
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, STEPS + 1))
    assert not list(run.glob("trials/*")), "the state speaks for itself"


def test_a_damaged_snapshot_with_a_sound_checksum_is_gone_back_behind(stood: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copyfile(stood[0].parent / "c.yaml", tmp_path / "c.yaml")
    run = moved(stood[0], tmp_path / "run")
    place = memory_places(run, json.loads((run / "run.json").read_text())["id"], None, False)[0]
    shutil.copyfile(stood[0].parent / "snapshot", place)
    memory = MemoryFile.open(place)
    assert memory is not None
    with memory:
        header = memory.newest_header()
        assert header is not None and header.step == STOOD
        snapshot = memory.read(header)
        assert snapshot is not None
        data, name = damaged(snapshot.artifact, {"format": "pt"}, "lora_A", 3e38)
        at, _ = memory.payload_offsets(header.index)
        memory.begin(header.index)
        memory.memory[at : at + len(data)] = data
        memory.seal(header.index, STOOD, header.generation, snapshot.meta, pin=False)
        older = max(one.step for index in range(3) if (one := memory.header(index)) and one.step < STOOD)
    summary = finished(run)
    assert_gone_back(run, summary, name.replace("base_model.model.", ""), older)
    assert "the snapshot of step 7 is damaged" in summary["incidents"][-1]["evidence"]
    assert summary["artifact_sha256"] == stood[1]


def test_a_state_that_only_training_again_can_judge_is_found_by_the_lab(assets: SimpleNamespace, tmp_path: Path) -> None:
    """With these betas a weight may go any way, so the file alone is no proof: the step fails, and goes through from the state before."""
    run = moved(begin(assets, tmp_path, beta1=0.9, beta2=0.5), tmp_path / "moved")
    for part in ("layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj"):
        damage_checkpoint(run, STOOD, ADAPTER, part, 9e9, all_of_it=True)
    summary = finished(run)
    (back,) = events(run, "rolled_back")
    assert (back["step"], back["to"]) == (STOOD, 6)
    incident = summary["incidents"][-1]
    assert (incident["cause"], incident["remedy"]) == ("hardware_fault", "rollback")
    assert "the state after step 7 is damaged: model.layers.0.self_attn." in incident["evidence"] and "9e+09" in incident["evidence"]
    assert summary["quarantined"] == [] and not events(run, "remedy_applied")
    assert summary["artifact_sha256"] == finished(moved(tmp_path / "run", tmp_path / "whole"))["artifact_sha256"]


@pytest.mark.long
def test_an_absurd_weight_of_the_base_model_ends_the_run_with_its_name(assets: SimpleNamespace, config_of: Write, tmp_path: Path) -> None:
    """Finite, so that it may be meant: nothing is refused before the step was tried in every way."""
    model = tmp_path / "model"
    shutil.copytree(assets.model, model)
    tensors = load((model / "model.safetensors").read_bytes())
    for part in ("q_proj", "k_proj"):
        tensors[f"model.layers.0.self_attn.{part}.weight"][3, 4] = 1e38
    (model / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    done = holdfast("train", config_of(model=str(model)), "--run", tmp_path / "run", "--json")
    assert done.returncode == 3, done.stderr
    assert "model.layers.0.self_attn.q_proj.weight: 1 of 1,024 values, the first at [3, 4]" in json.loads(done.stdout)["reason"]


# ---- what a state can be


@settings(max_examples=60, deadline=None)
@given(
    some.integers(1, 40),
    some.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.95, 0.95), (0.0, 0.99), (0.9, 0.82)]),
    some.floats(1e-6, 1.0),
    some.sampled_from([0.1, 1.0, 10.0]),
    some.randoms(use_true_random=False),
)
def test_no_course_of_gradients_leads_to_a_state_that_is_called_damaged(
    steps: int, betas: tuple[float, float], lr: float, clip: float, chance: Any
) -> None:
    """Nothing for long, then as much as clipping lets through, alone or for good, with and against the moment."""
    train = Train(lr=lr, beta1=betas[0], beta2=betas[1], max_grad_norm=clip, steps=100)
    weights = {"a": torch.full((3,), 0.5), "b": torch.zeros(2, 2)}
    optimizer = AdamW(weights, train)
    training: Any = SimpleNamespace(
        artifact=SimpleNamespace(tensors=optimizer.parameters),
        optimizer=optimizer,
        state=SimpleNamespace(tensors=optimizer.state()),
        begun=0.5,
        job=SimpleNamespace(config=SimpleNamespace(train=train), settings=lambda step: settings_with()),
    )
    for step in range(1, steps + 1):
        optimizer.clear()
        size = chance.choice([0.0, 1e-20, clip, clip])
        optimizer.gradient[chance.randrange(7)] = chance.choice([-1, 1]) * size
        optimizer.step(lr)
        assert damage(training, step) is None
    with torch.no_grad():
        optimizer.parameters["b"][1, 0] = 1e6
    assert "b holds 1e+06 at [1, 0] (1 of 4 values" in str(damage(training, steps))


def test_a_snapshot_with_an_absurd_value_never_counts() -> None:
    held = {"a": torch.ones(1000), "b": torch.ones(3)}
    image = TensorImage(held)
    memory = mmap.mmap(-1, image.bytes)
    for value, sound in ((1.0, True), (1e30, False), (-1e30, False), (float("nan"), False), (float("inf"), False)):
        held["a"][7] = value
        image.write(memory, 0)
        assert image.finite(memory, 0) is sound


# ---- what the lab concludes


class StubLab(Lab):
    """A lab whose trials are answered here. Step 8 failed from the state after step 7; states of 6 and 3 are there, and the beginning."""

    def __init__(self, answer: Callable[[TrialChange], Json], **more: Any) -> None:
        def replay(change: TrialChange) -> Json:
            return {"begun": True, "ending": "finished"} | answer(change)

        super().__init__(RunFolder(Path("/nowhere")), 8, settings_with(), replay, 60, **more)
        self.unchanged = [True]

    def older_states(self, at: int) -> list[int]:
        assert at == 7
        return [6, 3, 0]


FAILED: Json = {"ending": "finished", "finite": False, "recomputed": 0}
GROSS: Json = {"tensor": "t", "at": [1], "stored": 1e30, "again": 0.1, "times": 1e31}


def blamed(answer: Callable[[TrialChange], Json]) -> Verdict | None:
    return blame_the_state(StubLab(answer), FAILED, rates=True)


def test_state_rate_and_neither_are_told_apart() -> None:
    state = blamed(lambda change: {"finite": not change.settings and change.since == 4, "differs": GROSS})
    assert state and (state.kind, state.to, state.remedy, state.settings) == ("state", 3, "rollback", {})
    assert "t holds 1e+30 at [1], where the same steps give 0.1 again" in state.evidence
    rate = blamed(lambda change: {"finite": "lr_factor" in change.settings, "loss": 2.0})
    assert rate and (rate.kind, rate.to, rate.settings, rate.cause) == ("setting", 6, {"lr_factor": 0.5}, "divergence")
    assert blamed(lambda change: {"finite": False}) is None, "data or a kernel"


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("again", "state"), [((0.1, 0.1), True), ((0.1, -0.1), True), ((0.1, 9e29), False)])
def test_a_state_is_accused_by_two_trials_that_agree(again: tuple[float, float], state: bool, deterministic: bool) -> None:
    """A weight whose gradient is rounding errors alone is another one each time it is trained again: that is no damage."""
    values = iter(again)
    lab = StubLab(lambda change: {"finite": change.since == 4, "differs": GROSS | {"again": next(values) if change.since == 4 else 0}})
    lab.settings = settings_with(deterministic=deterministic)
    verdict = blame_the_state(lab, FAILED, rates=False)
    assert (verdict is not None) == state


def test_the_largest_rate_is_taken_that_keeps_the_loss_down() -> None:
    def answer(change: TrialChange) -> Json:
        factor = change.settings.get("lr_factor", 1.0)
        return {"finite": factor < 0.5 and change.since == 1, "loss": {0.05: 9.0, 0.005: 2.5, 0.0005: 2.0}.get(round(factor, 5))}

    found = blame_the_rate(StubLab(answer), 3, 3.0)
    assert found and (found.to, found.settings, found.remedy, found.cause) == (0, {"lr_factor": 0.005}, "rollback", "divergence")
    assert blame_the_rate(StubLab(answer), 3, 1.9) is None, "finite, but still above the level"
    assert blame_the_rate(StubLab(answer), 1, 3.0) is None, "no state from before"


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([5.0, 16.6, 16.3], (2, 7.0)),
        ([2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 8.0, 9.0, 8.5], (7, pytest.approx(2.24))),
        ([2.0, 1.9, 1.8, 1.7, 8.0], None),  # one loss is no course
        ([5.0, 16.6, 4.0, 4.1], None),
        ([5.0, 5.1, 4.9, 5.0, 4.8], None),
        ([5.0], None),
        ([], None),
    ],
)
def test_a_course_that_has_left_its_level_is_seen_early(losses: list[float], found: Any) -> None:
    assert left_level(list(enumerate(losses, 1))) == found


class SpoiltLab(StubLab):
    """Step 8 fails with row 3 alone; the loss has been far above its level since step 3 at every rate, and rows are out already."""

    def __init__(self, accused: int, **more: Any) -> None:
        super().__init__(self._fails, **more)
        self.quarantined = accused

    def _fails(self, change: TrialChange) -> Json:
        samples = list(change.samples) or [1, 2, 3, 4]
        ended: Json = {"ending": "finished", "finite": 3 not in samples, "loss": 9.0, "grad_norm": None, "samples": samples}
        return ended | {"lengths": [9] * len(samples), "sources": ["rows.jsonl:1"] * len(samples), "recomputed": 0}

    def losses(self) -> list[tuple[int, float]]:
        return [(1, 2.0), (2, 1.9), *((step, 9.0) for step in range(3, 8))]

    def accused(self) -> int:
        return self.quarantined


def test_rows_are_accused_no_more_where_the_loss_has_left_its_level() -> None:
    assert investigate(SpoiltLab(1), [], 2, []).kind == "rows"
    verdict = investigate(SpoiltLab(2), [], 2, [])
    assert (verdict.kind, verdict.rows, verdict.cause) == ("uncertain", (), "divergence")
    assert "above 2.73 since step 3" in verdict.evidence
    forbidden = SpoiltLab(2, goes_back=False)
    assert investigate(forbidden, [], 2, []).kind == "rows", "run.rollback is off"


def test_a_trial_that_died_before_it_knew_its_rows_is_survived() -> None:
    died: Json = {"ending": "killed by SIGTERM", "finite": None, "loss": None, "grad_norm": None, "samples": None}
    assert investigate(StubLab(lambda change: died), [], 2, []).kind == "uncertain"


def test_a_rate_that_spoils_the_weights_is_lowered_from_before_it_did(config_of: Callable[..., Path], tmp_path: Path) -> None:
    train = {"steps": 24, "lr": 30.0, "max_grad_norm": 1000.0}
    config = config_of(model="tiny", data={"held_out": 0.1}, train=train, evaluate={"generate": 0}, run={"standby": False})
    done = holdfast("train", config, "--run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["quarantined"] == [] and not events(tmp_path / "run", "remedy_applied"), "neither a row nor a kernel is accused"
    back = events(tmp_path / "run", "rolled_back")
    assert back and back[0]["settings"]["lr_factor"] < 0.1, back
    assert summary["loss"]["eval_tuned"] < summary["loss"]["eval_base"], "the adapter is of use"


@pytest.mark.parametrize("differs", [None, GROSS | {"times": 0.01}], ids=["to the bit", "by rounding"])
def test_a_state_that_training_gives_again_is_not_accused(differs: Json | None) -> None:
    assert blamed(lambda change: {"finite": True, "differs": differs}) is None


# ---- what is decided


def failure_report(step: int, sound: int) -> FailureReport:
    facts: Any = {"phase": None, "samples": (), "lines": (), "committed_before": step, "committed_after": step, "died": 0.0}
    ending = Ending("damaged", 69, facts={"sound": sound, "damaged": ["the checkpoint of step 7 is damaged: t holds nan"]})
    return FailureReport(attempt=2, ending=ending, step=step, memory_available_bytes=None, disk_free_bytes=None, **facts)


def test_the_decision_goes_back_and_comes_to_an_end() -> None:
    seen, past = Diagnosis("hardware_fault", 0.8), [PastAttempt(7, "hardware_fault", "damaged", None, False)]
    back = of_death(known(failure_report(7, 6), past, seen))
    assert isinstance(back, RollBack) and back.to == 6 and "t holds nan" in back.reason
    assert of_death(known(failure_report(7, 0), past, seen)).to == 0
    lost = of_death(known(failure_report(FROM_THE_START + 1, 0), past, seen))
    assert not lost.goes_on and "t holds nan" in lost.reason and "no sound state is left" in lost.reason
    again = of_death(known(failure_report(7, 6), past, seen, rolled=ROLLBACKS))
    assert not again.goes_on and "memory and disk" in again.reason


def test_what_the_lab_saw_is_gone_back_to_until_it_came_to_nothing_too_often() -> None:
    verdict = Verdict("state", 5, 9.0, "the state is damaged: t", remedy="rollback", to=3)
    before = of_death(known(failure_report(7, 6), [PastAttempt(7, "x", "error", None, False)], "x"))
    assert of_verdict(known(failure_report(7, 6)), verdict, before).to == 3
    assert of_verdict(known(failure_report(7, 6), rolled=ROLLBACKS), verdict, before).remedy != "rollback"
    base = of_verdict(known(failure_report(7, 6)), Verdict("weights", 5, 9.0, "absurd: q"), before)
    assert not base.goes_on and "absurd: q; download the model again" in base.reason


def test_absurd_base_weights_are_named_where_nothing_helps() -> None:
    def answer(change: TrialChange) -> Json:
        facts = {"absurd_weights": ["q: 1 of 4 values"], "first_nonfinite": {"cause": "nonfinite_numerics"}} if change.trace else {}
        return FAILED | {"samples": [1, 2, 3], "lengths": [5, 6, 7], "sources": ["a", "b", "c"], "loss": None, "grad_norm": None} | facts

    lab = StubLab(answer)
    lab.unchanged = []
    verdict = investigate(lab, [], 2, [])
    assert (verdict.kind, verdict.cause) == ("weights", "nonfinite_numerics") and "q: 1 of 4 values" in verdict.evidence
