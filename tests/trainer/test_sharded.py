"""Frozen layers cut between ranks: what a rank holds, that all of it comes back, and what happens where memory runs out in a pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from conftest import holdfast
from holdfast.base.errors import Stop
from holdfast.config.config import Config, Train
from holdfast.config.load import load_config
from holdfast.config.settings import Settings
from holdfast.planning.memory.arithmetic import cut_between, footprint
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.decoder import checksum
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.oom import OutOfMemory
from holdfast.trainer.common.refuse import Refusal, broken_weights
from holdfast.trainer.distributed.rank import ALONE, Rank
from holdfast.trainer.loop import pressure
from holdfast.trainer.model.frozen import sharded
from holdfast.trainer.step.step import run_dummy_passes
from support.architectures import small_llama
from support.plans import MODEL

CPU = torch.device("cpu")


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A group of this process alone: its pieces are whole layers, which come and go as those of several do."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def learned(model: Any) -> torch.Tensor:
    """The gradient of what is trained."""
    hidden = model.model(input_ids=torch.arange(12).view(1, 12), use_cache=False).last_hidden_state
    weight = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    (gradient,) = torch.autograd.grad(hidden.square().sum(), weight)
    return gradient


def test_layers_that_are_cut_compute_the_bits_of_whole_ones(mesh: Any) -> None:
    whole, cut = small_llama(), small_llama()
    trained = [parameter for parameter in cut.parameters() if parameter.requires_grad]
    held = sharded.shard_layers(cut, trained, mesh, CPU)
    assert held == sum(4 * one.numel() for one in whole.parameters() if not one.requires_grad)
    assert torch.equal(learned(cut), learned(whole))
    assert broken_weights(cut)[0] == [], "each rank looks at its own piece"


def test_a_piece_that_does_not_come_back_is_refused(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What huggingface/accelerate#4206 was: after a restart most shards were those of a fresh model, without a word."""
    real = fully_shard

    def forgetful(module: Any, mesh: Any, ignored_params: Any) -> Any:
        cut = real(module, mesh=mesh, ignored_params=ignored_params)
        for name, parameter in module.named_parameters():
            if name.endswith("k_proj.weight"):
                parameter.to_local().zero_()
        return cut

    monkeypatch.setattr(torch.distributed.fsdp, "fully_shard", forgetful)
    with pytest.raises(Refusal, match=r"layer 0 does not come back .* self_attn.k_proj.weight \(1 of 8 weights\)"):
        model = small_llama()
        sharded.shard_layers(model, [one for one in model.parameters() if one.requires_grad], mesh, CPU)


def test_a_checksum_sees_a_bit_and_two_numbers_that_changed_places() -> None:
    tensor = torch.randn(100)
    one, other = tensor.clone(), tensor.clone()
    one.view(torch.int32)[7] ^= 1
    other[3], other[4] = tensor[4], tensor[3]
    sums = {checksum(found) for found in (tensor, one, other)}
    assert len(sums) == 3 and checksum(tensor.clone()) in sums
    assert checksum(tensor.bfloat16()) == checksum(tensor.bfloat16())


def test_where_no_group_is_layers_stay_whole() -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"fsdp": True, "ranks": 2}})
    assert sharded.mesh_of(config, CPU) is None


@pytest.mark.parametrize(
    ("together", "number", "passes", "more"), [(True, 0, [2, 5], 3), (True, 1, [2, 5], 0), (False, 0, [2, 5], 0), (True, 0, [0, 0], 0)]
)
def test_a_rank_with_fewer_micro_batches_passes_along_with_the_others(together: bool, number: int, passes: list[int], more: int) -> None:
    rank, done = Rank(), []
    rank.number, rank.together = number, together
    run_dummy_passes(rank, passes, lambda: done.append(1))
    assert len(done) == more


@pytest.mark.parametrize("number", [0, 1])
def test_the_rank_that_runs_out_of_memory_in_a_pass_writes_down_what_helps_and_ends(tmp_path: Path, number: int) -> None:
    run = RunFolder(tmp_path)
    settings = Settings.model_construct(micro_batch_tokens=100, checkpointed_layers=0)
    job = Job(run, 1, tmp_path, SimpleNamespace(), SimpleNamespace(), [], [], rank=number)  # type: ignore[arg-type]
    job.settings = lambda step: settings  # type: ignore[method-assign]
    rank = Rank()
    rank.number, rank.together = number, True
    training: Any = SimpleNamespace(job=job, rank=rank, optimizer=SimpleNamespace(clear=lambda: None))

    def work() -> None:
        raise OutOfMemory(Batch((1, 2), ("f:1", "f:2"), (30, 20), 100, 10), "no room")

    with pytest.raises(pressure.BeginAgain, match=r"no room; the other ranks are in the middle of a pass"):
        pressure.within_memory(training, 3, work)
    assert [(one.from_step, one.settings) for one in read_timeline(run.timeline_file)] == [(3, {"micro_batch_tokens": 50})]


@pytest.mark.parametrize("together", [True, False])
def test_what_others_wait_in_is_not_done_once_more_on_one_rank_alone(together: bool) -> None:
    """A pass along with the others, a proof at the start: they are in its collectives, so a second try would meet them there."""
    rank, tries = Rank(), []
    rank.together = together

    def work() -> None:
        tries.append(1)
        raise OutOfMemory(None, "no room", "a pass for the other ranks")

    with pytest.raises(pressure.BeginAgain if together else OutOfMemory, match="no room") as ended:
        pressure.once_more("step 3", work, rank)
    assert len(tries) == (1 if together else 2)
    assert not together or "a pass for the other ranks does not fit into memory" in str(ended.value)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_plan_counts_a_piece_of_each_layer_and_two_layers(ranks: int) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"precision": "fp32"}})
    model = MODEL.__class__(MODEL.folder, MODEL.config | {"num_hidden_layers": 32}, MODEL.shapes, 0)
    whole = footprint(config, model, "fp32", 10)
    cut = cut_between(whole, model, ranks, mixed=False)
    layers, rest = 4 * (64 * 64 + 64 * 128), 4 * (64000 + 64)
    assert cut.fixed["weights"] == pytest.approx(rest + layers / ranks + 2 * layers / 32, abs=4)
    assert cut.fixed | {"weights": 0} == whole.fixed | {"weights": 0}
    again = cut_between(whole, model, ranks, mixed=True)
    assert again.fixed["workspace"] - cut.fixed["workspace"] == 2 * 64 * 128, "the largest matrix, for each product anew"


REFUSED = [
    ({"adapter": {"type": "dora"}}, "adapter.type dora needs whole weights"),
    (
        {"adapter": {"type": "layers", "layers": 2}},
        "adapter.type layers needs whole weights; it goes with adapter.type lora, rslora and full",
    ),
    ({"adapter": {"init": "pissa"}}, "adapter.init pissa needs whole weights"),
    ({"adapter": {"modules_to_save": ["lm_head"]}}, "adapter.modules_to_save needs whole weights"),
    ({"train": {"frozen": "nf4"}}, "train.frozen is nf4; take auto or half"),
    ({"train": {"objective": "dpo"}}, "train.objective is dpo; it goes with sft"),
]


@pytest.mark.parametrize(("tree", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_cannot_be_cut_is_refused_with_a_sentence(config_of: Callable[..., Path], tree: dict[str, Any], sentence: str) -> None:
    train = {"fsdp": True, "ranks": 2} | tree.get("train", {})
    with pytest.raises(Stop) as stop:
        load_config(config_of(**(tree | {"train": train})), [])
    assert stop.value.code == 2 and sentence in str(stop.value)


def test_a_rank_without_others_holds_what_it_always_held() -> None:
    assert not ALONE.together and Train(fsdp=True).ranks == 1


@pytest.mark.long
@pytest.mark.usefixtures("no_leftovers")
def test_memory_that_runs_out_on_one_rank_costs_an_attempt_and_no_step(config_of: Callable[..., Path], tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"faults": [{"effect": "oom", "when": {"rank": 1, "tokens": [61, 10_000], "attempt": 1, "step": 2}}]}))
    config = config_of(train={"fsdp": True, "ranks": 2, "reduction_parts": 2, "micro_batch_tokens": 120}, run={"standby": False})
    done = holdfast("train", config, "--json", "--run", tmp_path / "run", "--faults", faults)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["attempts"]) == ("finished", 2)
    assert "micro_batch_tokens" in read_timeline(tmp_path / "run" / "timeline.jsonl")[-1].settings
    log = (tmp_path / "run/attempts/001/output.log").read_text()
    assert "the ranks are not all there any more" in log and "Traceback" not in log, "the other rank says what it met"
