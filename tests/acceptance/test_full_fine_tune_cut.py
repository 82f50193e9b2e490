"""Full fine-tunes cut between ranks: the bits of one rank, whoever dies; checkpoints any number of ranks goes on from; proof by hash."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
import torch.distributed as dist
import yaml
from safetensors.torch import load_file
from test_ranks import fault, same, trained, with_one_killed
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from conftest import events, holdfast, lines, make_rows, start, wait_until, write_rows
from holdfast.config.config import Config
from holdfast.config.train import Train
from holdfast.processes.attempt import Attempt
from holdfast.run.snapshots.memory_file import MemoryFile, Snapshot
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.run.snapshots.piece_files import facts_of, newest_of
from holdfast.run.snapshots.pieces import join, piece_name, piece_of
from holdfast.run.timeline import read_timeline
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.piece_image import PieceImage
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import ALONE
from holdfast.trainer.model.trained import cut as cut_module
from holdfast.trainer.model.trained.cut import CutPieces, units_of
from holdfast.trainer.model.trained.pieces import Pieces
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.state.together import prove
from support.architectures import small_llama

pytestmark = pytest.mark.usefixtures("no_leftovers")

TRAIN = {"steps": 6, "effective_batch": 12, "reduction_parts": 4, "micro_batch_tokens": 80, "fsdp": True, "precision": "fp32"}


@pytest.fixture(scope="module")
def alone(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A full fine-tune of one rank whose steps are cut into four parts, evaluated on the way."""
    folder = tmp_path_factory.mktemp("cut")
    tree: dict[str, Any] = {
        "model": str(assets.model),
        "data": {"files": str(write_rows(folder / "rows.jsonl", make_rows(90))), "held_out": 0.1},
        "adapter": {"type": "full"},
        "train": TRAIN | {"lr": 1e-3, "max_tokens": 96, "threads": 1},
        "evaluate": {"every": 3, "generate": 0},
        "run": {"standby": False},
    }

    def write(name: str, adapter: dict[str, Any] | None = None, **train: Any) -> Path:
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(tree | {"train": tree["train"] | train, "adapter": adapter or tree["adapter"]}))
        return file

    return SimpleNamespace(write=write, summary=trained(write("alone")), run=folder / "alone")


def stopped(config: Path, step: int, *more: object) -> Path:
    """The run folder of a run that ends in `step`, by an error that nothing mends."""
    faults = config.with_suffix(".faults")
    faults.write_text(fault("raise", rank=0, step=step))
    done = holdfast("train", config, "--run", config.with_suffix(""), "run.trials=0", "--faults", faults, *more)
    assert done.returncode == 3, done.stderr
    return config.with_suffix("")


def without_snapshots(run: Path) -> None:
    """The machine was restarted: what lay in shared memory is gone."""
    own = json.loads((run / "run.json").read_text())["id"][:12]
    found = list(Path("/dev/shm").glob(f"holdfast-{own}*"))
    assert len(found) >= 2, "each rank's own"
    for file in found:
        file.unlink()


def test_two_ranks_give_the_bits_of_one_although_one_of_them_is_killed(alone: SimpleNamespace) -> None:
    summary = with_one_killed(alone)
    run = alone.run.with_name("two")
    assert sum(incident["lost_steps"] for incident in summary["incidents"]) == 0
    assert [event["state"] for event in events(run, "restored")] == ["the beginning", "the snapshot of step 3"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_two_ranks_is_the_file_of_one_and_others_go_on_from_it(alone: SimpleNamespace) -> None:
    config = alone.write("durable", ranks=2)
    run = stopped(config, 5)
    (folder,) = run.glob("checkpoints/step-00000004")
    state = load_file(folder / "model.safetensors")
    read = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(read, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert state and all(torch.equal(read[name], tensor) for name, tensor in state.items()), "torch.distributed.checkpoint reads it"
    without_snapshots(run)
    summary = trained(config, "train.ranks=4")
    assert summary["status"] == "finished"
    same("durable", alone)
    assert events(run, "restored")[-1]["state"] == "the checkpoint of step 4"


HANGS = [
    pytest.param("full", "forward", "the weights of layer 0", marks=pytest.mark.long),
    ("full", "backward", "the gradients of layer 1"),
    pytest.param("lora", "forward", "the weights of layer 0", marks=pytest.mark.long),
    ("lora", "backward", "the weights of layer 1"),
]


@pytest.mark.parametrize(("kind", "phase", "awaited"), HANGS)
def test_a_rank_that_hangs_in_a_pass_is_named_and_what_the_others_wait_for(
    alone: SimpleNamespace, kind: str, phase: str, awaited: str
) -> None:
    """Each pass is one of all ranks, so the others are in the middle of it."""
    config = alone.write(f"hang-{kind}-{phase}", {"r": 4} if kind == "lora" else None, ranks=2)
    faults, run = config.with_suffix(".faults"), config.with_suffix("")
    faults.write_text(fault("hang", rank=1, step=4, phase=phase, attempt=1))
    summary = trained(config, "--faults", faults, "run.hang_s=10")
    hang = json.loads((run / "attempts/001/hang.json").read_text())
    assert hang["rank"] == 1 and hang["step"] == 4
    assert hang["ranks"] == {"0": f"waits for the others: {awaited}", "1": "step"}
    assert f"rank 1 of 2 hangs, the others wait for {awaited}" in hang["reason"]
    log = (run / "attempts/001/output.log").read_text()
    first, second = (log.index(f"holdfast: stacks of rank {rank}") for rank in (0, 1))
    assert "distributed_c10d" in log[first:second] and "announce" in log[second:], "whose stack is whose"
    assert summary["attempts"] == 2 and sum(incident["lost_steps"] for incident in summary["incidents"]) == 0
    if kind == "full":
        same(run.name, alone)


def test_a_part_that_is_damaged_on_another_rank_is_passed_over_by_all(alone: SimpleNamespace) -> None:
    """Each rank looks at its own part, once; the state before is whole on both."""
    config = alone.write("damaged", ranks=2)
    run = stopped(config, 5)
    own = json.loads((run / "run.json").read_text())["id"][:12]
    (file,) = Path("/dev/shm").glob(f"holdfast-{own}*.rank1")
    with MemoryFile.open(file) as memory:  # type: ignore[union-attr]
        newest = memory.newest_header()
        assert newest is not None and newest.step == 4
        memory.memory[memory.payload_offsets(newest.index)[1] + 999] ^= 1
    shutil.rmtree(run / "checkpoints/step-00000004")  # that of step 3, the best, stays
    before = len(list(run.glob("attempts/*")))
    assert trained(config)["status"] == "finished" and len(list(run.glob("attempts/*"))) == before + 1, "no attempt was lost to it"
    same("damaged", alone)
    assert events(run, "restored")[-1]["state"] == "the snapshot of step 3"


def test_the_first_rank_looks_at_its_own_part_alone_where_the_others_look_at_theirs(tmp_path: Path) -> None:
    parts = parts_of({"a": torch.randn(4, 4)}, 2)
    files = []
    for rank, image in enumerate(parts):
        memory = MemoryFile.create(of_rank(tmp_path / "m.rank0", rank), tmp_path, len(image), len(image))
        slot = memory.free_slot()
        memory.begin(slot)
        for at in memory.payload_offsets(slot):
            memory.memory[at : at + len(image)] = image
        memory.seal(slot, 3, 3, facts_of(2, 1), pin=False)
        files.append(memory)
    first, other = files
    header = first.newest_header()
    assert header is not None and newest_of(first, header, 2) == newest_of(first, header, 2, each_its_own=True) is not None
    other.memory[other.payload_offsets(0)[0] + 5] ^= 1
    assert newest_of(first, header, 2) is None
    found = newest_of(first, header, 2, each_its_own=True)
    assert found is not None and found.artifact == parts[0]
    assert newest_of(first, header, 4, each_its_own=True) is None, "another number of ranks needs all of it"


@pytest.mark.parametrize("phase", ["forward", pytest.param("backward", marks=pytest.mark.long)])
def test_memory_that_runs_out_in_a_pass_of_one_rank_costs_an_attempt_and_no_step(alone: SimpleNamespace, phase: str) -> None:
    """The others wait in that pass, and cannot be told: all begin the step again, with smaller micro-batches."""
    config = alone.write(f"full-{phase}", ranks=2)
    faults, run = config.with_suffix(".faults"), config.with_suffix("")
    faults.write_text(fault("oom", rank=1, step=3, attempt=1, phase=phase, tokens=[41, 10_000]))
    summary = trained(config, "--faults", faults)
    (incident,) = summary["incidents"]
    assert (summary["attempts"], incident["lost_steps"]) == (2, 0)
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 7))
    (entry,) = [one for one in read_timeline(run / "timeline.jsonl") if one.from_step == 3]
    assert entry.settings["micro_batch_tokens"] < TRAIN["micro_batch_tokens"] and "out of memory at step 3" in entry.reason
    other = alone.write(f"full-{phase}-alone")
    other.with_suffix(".faults").write_text(fault("oom", step=3, phase=phase, tokens=[41, 10_000]))
    assert trained(other, "--faults", other.with_suffix(".faults"))["status"] == "finished"
    log = (run / "attempts/001/output.log").read_text()
    assert "Traceback" not in log


@pytest.mark.long
def test_a_sample_that_does_not_fit_on_one_rank_is_an_end_that_names_it(alone: SimpleNamespace) -> None:
    config = alone.write("too-long", ranks=2, steps=3)
    faults = config.with_suffix(".faults")
    faults.write_text(fault("oom", rank=1, step=2))
    done = holdfast("train", config, "--run", config.with_suffix(""), "--json", "--faults", faults)
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["status"], summary["steps"]) == (3, "gave_up", 1)
    assert "one sample of" in done.stderr and "rows.jsonl:" in done.stderr and "rank 1: holdfast: out of memory at step 2" in done.stderr
    assert "the state after step 1 is kept" in done.stderr and all(not incident["lost_steps"] for incident in summary["incidents"])


def test_a_rank_killed_while_it_gathers_a_layer_costs_no_step(alone: SimpleNamespace) -> None:
    """The first rank is held up in front of its pass, so the second one is in the gathering of weights, for certain."""
    config = alone.write("gather", ranks=2)
    faults, run = config.with_suffix(".faults"), config.with_suffix("")
    faults.write_text(json.dumps({"faults": [{"effect": "slow", "seconds": 600, "when": {"rank": 0, "step": 4, "attempt": 1}}]}))
    child = start("train", config, "--run", run, "--faults", faults)
    attempt = Attempt(1, run / "attempts/001", shim=None)
    wait_until(lambda: "weights of layer" in str((attempt.pulse(1) or {}).get("waits")))
    os.kill(json.loads((run / "attempts/001/rank1.json").read_text())["identity"]["pid"], signal.SIGKILL)
    child.communicate()
    assert child.returncode == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["attempts"] == 2 and sum(incident["lost_steps"] for incident in summary["incidents"]) == 0
    assert json.loads((run / "attempts/001/wreck.json").read_text())["words"] == "rank 1 killed by SIGKILL"
    same("gather", alone)


@pytest.mark.parametrize("sizes", [(2, 1), pytest.param((4, 2), marks=pytest.mark.long)], ids=str)
def test_a_run_goes_on_with_the_ranks_that_are_left_and_takes_those_that_are_back(alone: SimpleNamespace, sizes: tuple[int, int]) -> None:
    """What the first number of ranks left in memory is made a checkpoint of, which the second reads; and the other way."""
    many, few = sizes
    config = alone.write(f"lost-{many}", ranks=many)
    faults, run = config.with_suffix(".faults"), config.with_suffix("")
    gone = {"effect": "device_gone", "when": {"rank": 0, "step": 3, "attempt": 1}, "message": "torch finds no GPU"}
    faults.write_text(json.dumps({"faults": [gone, {"effect": "kill", "when": {"rank": 0, "step": 5, "attempt": 2}}]}))
    summary = trained(config, "--faults", faults)
    assert summary["attempts"] == 3 and sum(incident["lost_steps"] for incident in summary["incidents"]) == 0
    launches = [json.loads((run / f"attempts/{number:03d}/launch.json").read_text())["devices"] for number in (1, 2, 3)]
    assert [len(devices) for devices in launches] == [many, few, many] and 0 not in launches[1]
    assert [event["step"] for event in events(run, "restored")][:2] == [0, 2]
    same(run.name, alone)


@pytest.mark.long
def test_fewer_ranks_than_ranks_min_wait_for_their_devices(alone: SimpleNamespace) -> None:
    config = alone.write("least", ranks=2, ranks_min=2)
    faults, run = config.with_suffix(".faults"), config.with_suffix("")
    gone = {"effect": "device_gone", "when": {"rank": 0, "step": 3, "attempt": 1}, "message": "torch finds no GPU"}
    faults.write_text(json.dumps({"faults": [gone]}))
    summary = trained(config, "--faults", faults, "run.device_s=3")
    launches = [json.loads((run / f"attempts/{number:03d}/launch.json").read_text())["devices"] for number in (1, 2)]
    assert summary["attempts"] == 2 and launches == [[0, 1], [0, 1]]
    same("least", alone)


@pytest.mark.long
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("phase", ["start", "forward", "backward", "optimizer", "snapshot", "commit"])
def test_four_ranks_then_two_give_the_bits_of_one_whichever_is_killed(alone: SimpleNamespace, rank: int, phase: str) -> None:
    """The second number of ranks begins from what the first left in memory."""
    config = alone.write(name := f"four-{rank}-{phase}", ranks=4)
    when = {"rank": rank, "attempt": 1, "phase": phase} | ({} if phase == "start" else {"step": 3})
    halt = {"name": "stop", "effect": "raise", "when": {"step": 5, "rank": 0}}
    config.with_suffix(".faults").write_text(json.dumps({"faults": [{"effect": "kill", "when": when}, halt]}))
    done = holdfast("train", config, "--run", config.with_suffix(""), "run.trials=0", "--faults", config.with_suffix(".faults"))
    assert done.returncode == 3
    assert trained(config, "train.ranks=2")["status"] == "finished"
    same(name, alone)


# -- pieces


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone: its pieces are all of them, which come and go as those of several do."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def whole_model() -> Any:
    return small_llama().requires_grad_(True)


def cut_training() -> Any:
    """What `prove` looks at: a model that is cut, its optimizer and its images."""
    model = whole_model()
    units, layers = units_of(model, dict(model.named_parameters()), 4)
    cut = CutPieces(model, units, layers, 4, torch.device("cpu"))
    optimizer = AdamW(cut.pieces, Train())
    cut.hold(optimizer)
    artifact, state = cut.image(optimizer.kept(), {"format": "pt"}), cut.image(optimizer.state())
    task = SimpleNamespace(step_hooks=cut, model=model)
    return SimpleNamespace(task=task, optimizer=optimizer, artifact=artifact, state=state, rank=ALONE)


def passed(model: Any, step_hooks: Any) -> float:
    """A pass there and back; its loss."""
    step_hooks.begin_pass(counts=True)
    loss = model(input_ids=torch.arange(12).view(1, 12), labels=torch.arange(12).view(1, 12), use_cache=False).loss
    loss.backward()
    step_hooks.end_pass()
    return float(loss.detach())


@pytest.mark.usefixtures("group")
def test_a_cut_model_learns_what_a_whole_one_learns() -> None:
    """Loss, gradients, their norm and the weights after an update, to the bit; nothing is held whole in between."""
    training, whole = cut_training(), whole_model()
    units, _ = units_of(whole, dict(whole.named_parameters()), 4)
    pieces = Pieces(units, 4)
    optimizer = AdamW(pieces.tensors, Train())
    for step in range(2):
        optimizer.clear()
        assert passed(training.task.model, training.task.step_hooks) == passed(whole, pieces)
        assert torch.equal(training.optimizer.gradient, optimizer.gradient) and optimizer.gradient.abs().sum() > 0
        assert torch.equal(training.task.step_hooks.norm(training.optimizer, lambda _: None), pieces.norm(optimizer, lambda _: None))
        for one, step_hooks in ((training.optimizer, training.task.step_hooks), (optimizer, pieces)):
            one.step(0.1)
            step_hooks.after(step, 2)
        assert torch.equal(training.optimizer.weights, optimizer.weights)
    assert all(weight.untyped_storage().nbytes() == 0 for weight in training.task.model.parameters())


@pytest.mark.usefixtures("group")
def test_a_shard_that_did_not_come_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface/accelerate#4206: after a restart shards were those of a fresh model, and training went on without a word."""
    training = cut_training()
    prove(training, None)
    fresh = {name: tensor.clone() for name, tensor in training.artifact.tensors.items()}
    passed(training.task.model, training.task.step_hooks)
    training.optimizer.step(0.1)
    training.task.step_hooks.after(1, 1)
    saved = Snapshot(1, 0, {}, training.artifact.to_bytes(), training.state.to_bytes())
    prove(training, saved)
    name = "model.layers.1.mlp.up_proj.weight"
    training.artifact.tensors[name].copy_(fresh[name])
    with pytest.raises(Refusal, match=rf"rank 0 does not hold what was saved of {name} \(1 of its tensors\)"):
        prove(training, saved)
    training.artifact.read(saved.artifact)
    training.state.tensors[f"exp_avg/{name}"].zero_()
    with pytest.raises(Refusal, match=f"what was saved of exp_avg/{name}"):
        prove(training, saved)
    training.state.read(saved.state)
    monkeypatch.setattr(cut_module, "_gather", lambda whole, own: whole.copy_(own).index_fill_(0, torch.tensor([7]), 0.5))
    with pytest.raises(Refusal, match="layer 0 does not come back from the ranks as its parts are, on rank 0"):
        prove(training, saved)


@pytest.mark.usefixtures("group")
def test_checksums_of_many_pieces_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a model of 80 million weights add up to more than 64 bits."""
    monkeypatch.setattr(cut_module, "checksum", lambda *_: (1 << 63) - 1)
    cut = cut_training().task.step_hooks
    assert orjson.loads(orjson.dumps(cut.wanted)) == cut.wanted == cut.sums(cut.pieces)


def parts_of(tensors: dict[str, torch.Tensor], ranks: int) -> list[bytes]:
    """Images of ranks that hold neighbouring stretches of each tensor, and a count that all have."""
    whole, found = {name: tensor.shape for name, tensor in tensors.items()}, []
    for rank in range(ranks):
        own = {"step": torch.tensor(3.0)}
        for name, tensor in tensors.items():
            size = tensor.numel()
            start, end = rank * size // ranks, (rank + 1) * size // ranks
            if start < end:
                own[f"exp_avg/{piece_name(name, start, end, size)}"] = tensor.view(-1)[start:end].clone()
        found.append(PieceImage(own, whole).to_bytes())
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_make_up_the_image_of_one_rank_and_others_read_theirs_from_it(ranks: int) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(1), "c.d": torch.randn(7, 2)}
    whole = TensorImage({f"exp_avg/{name}": tensor for name, tensor in tensors.items()} | {"step": torch.tensor(3.0)}).to_bytes()
    joined = bytes(join(parts_of(tensors, ranks)))
    assert joined == whole
    again = PieceImage({"exp_avg/c.d[5:9]": torch.zeros(4), "step": torch.tensor(0.0)}, {name: one.shape for name, one in tensors.items()})
    again.read(joined)
    assert torch.equal(again.tensors["exp_avg/c.d[5:9]"], tensors["c.d"].view(-1)[5:9]) and float(again.tensors["step"]) == 3.0


def test_parts_of_which_one_is_missing_or_another_runs_make_up_nothing() -> None:
    tensors = {"a": torch.randn(4, 4)}
    parts = parts_of(tensors, 2)
    with pytest.raises(ValueError, match="exp_avg/a: its pieces are not those of one state"):
        join(parts[:1])
    with pytest.raises(ValueError, match="pieces are not those of one state"):
        join([parts[0], parts[0]])
    with pytest.raises(ValueError, match="are of different models"):
        join([parts[0], parts_of({"b": torch.randn(4, 4)}, 2)[1]])


def test_names_of_pieces_are_read_as_they_are_written() -> None:
    assert piece_name("a.b", 0, 9, 9) == "a.b" and piece_of("a.b") == ("a.b", None)
    assert piece_of(piece_name("a.b", 3, 9, 9)) == ("a.b", 3)


REFUSED = [
    ({"optimizer": "muon"}, "train.optimizer muon needs whole matrices or blocks of its own; take adamw, lion, sgd"),
    ({"weights": "bf16"}, "train.weights bf16 is rounded by where a weight lies"),
    ({"offload": "optimizer"}, "train.offload optimizer keeps whole moments in main memory"),
    ({"reduction_parts": "off"}, "train.reduction_parts is off, by whose parts it is cut"),
    ({"precision": "fp16"}, "train.precision is fp16; it goes with fp32 and bf16"),
]


@pytest.mark.parametrize(("train", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_does_not_go_in_pieces_is_refused_with_a_sentence(train: dict[str, Any], sentence: str) -> None:
    tree = {"model": "m", "data": {"files": "f"}, "adapter": {"type": "full"}, "train": {"fsdp": True, "ranks": 2} | train}
    with pytest.raises(ValueError, match=sentence):
        Config.model_validate(tree)
