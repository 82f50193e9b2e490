"""`holdfast plan`: parameter counts to the unit, bytes by kind that add up, a choice for a limit, sentences for what cannot be planned."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import holdfast, settings_with
from holdfast.base_model.folder import ModelFacts
from holdfast.book.graphics_cards import named_card
from holdfast.cli.commands import plan as plan_command
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.config.train import Train
from holdfast.machine.read import read_machine
from holdfast.planning.memory.arithmetic import trained_bytes
from holdfast.planning.memory.demand import Demand, between, with_some_again
from holdfast.planning.memory.fit import Choice, Room, Shape, Sweep, alternatives, choose
from holdfast.planning.plan import PROCESS_BYTES, make_plan
from holdfast.planning.planning import Planner, RowLengths, plan_run, with_card
from holdfast.planning.tracing import Tracer, tracer
from holdfast.run.plan import Params
from support.plans import LLAMA, MODEL

CONFIGS = Path(os.environ.get("HOLDFAST_MODEL_CONFIGS", Path(__file__).parents[3] / "shared" / "data" / "configs"))
MIB = 1 << 20
CONTRACT = {
    *("fits", "peak_bytes", "capacity_bytes", "reserve_bytes", "bytes", "params", "micro_batch_tokens", "accumulation"),
    *("checkpointed_layers", "precision", "frozen", "host_bytes", "disk_bytes", "seconds", "alternatives", "reasons"),
}
KINDS = {
    *("weights", "adapter", "gradients", "optimizer", "activations", "logits", "snapshot", "workspace", "allocator", "context"),
}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A config whose model is a config.json alone, and whose rows are not there yet."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    config = "model: model\ndata: {files: rows.jsonl}\nadapter: {r: 4, alpha: 8}\ntrain: {max_tokens: 64, effective_batch: 4}\n"
    (tmp_path / "run.yaml").write_text(config)
    return tmp_path / "run.yaml"


def test_a_model_without_weights_is_planned_to_the_byte(bare: Path) -> None:
    done = holdfast("plan", bare, "--memory", "8GiB", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan.keys() >= CONTRACT and plan["bytes"].keys() == KINDS
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 160 * 64
    trained = 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 160)) * 4
    assert plan["params"] == {"total": 4 * (layer + 2 * 64) + 64 + 2 * 512 * 64 + trained, "trainable": trained}
    assert (plan["bytes"]["adapter"], plan["bytes"]["gradients"], plan["bytes"]["optimizer"]) == (4 * trained, 4 * trained, 8 * trained + 4)
    assert plan["peak_bytes"] == sum(plan["bytes"].values()), "at the moment of the peak nothing is left out and nothing counted twice"
    assert (plan["fits"], plan["capacity_bytes"], plan["micro_batch_tokens"]) == (True, 8 << 30, 256)
    assert plan["seconds"] is None and "how long it takes is unknown" in plan["reasons"][-1]
    assert plan["unseen_rows"] and f"memory is planned for rows of {plan['unseen_rows']:,} tokens" in plan["reasons"][-1]
    assert plan["reserve_bytes"] == pytest.approx(0.2 * (8 << 30), abs=1)
    changes = [entry["change"] for entry in plan["alternatives"]]
    assert {"train.checkpointed_layers=4", "train.micro_batch_tokens=64", "train.max_tokens=32"} <= set(changes), changes
    assert all(entry["peak_bytes"] <= plan["peak_bytes"] for entry in plan["alternatives"] if "precision" not in entry["change"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory", "32 GB", "--card", "RTX 4090"], "--memory 32 GB is more than RTX 4090 has: 24 GiB"),
        (["--memory", "32"], "did you mean --memory 32GiB?"),
        (["--memory", "8192"], "did you mean --memory 8192MiB?"),
        (["--memory", "32G"], "did you mean 32GiB?"),
        (["--memory", "0"], "--memory 0 is 0 bytes"),
        (["--memory=-1"], "--memory -1 is not a size"),
        (["--memory", "9" * 400 + "GiB"], "is not a size"),
        (["--memory", "much"], "--memory much is not a size"),
        (["--card", "RTX 4091"], "did you mean RTX 4090?"),
        (["--card", "A100"], "A100 is sold with 40 GB and 80 GB"),
        (["--card", "A100-60GB"], "A100 is sold with 40 GB and 80 GB, not with 60 GB"),
        (["--card", "RTX 4090", "--card", "H100"], "--card is given 2 times"),
        (["--card", "RTX 4090", "--memory", "80GiB"], "--memory 80GiB is more than RTX 4090 has: 24 GiB"),
        (["--card", "RTX 4090", "--machine", "m.json"], "--machine and --card both say what to plan for"),
        (["--machine", "m.json"], "m.json cannot be read"),
        (["--price=-1"], "--price -1.0 is no price of an hour"),
        (["--price", "nan"], "--price nan is no price of an hour"),
        (["--table", "model"], "--table takes models, and no config"),
    ],
)
def test_what_cannot_be_planned_for_is_refused_in_a_sentence(bare: Path, arguments: list[str], says: str) -> None:
    done = holdfast("plan", bare, *arguments, cwd=bare.parent)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None}, "hidden_size = None is not a model size"),
        ({"hidden_size": 10**12}, "hidden_size = 1000000000000 is not a model size"),
        ({"hidden_size": 65536, "num_hidden_layers": 1000}, "1,000 layers of 65,536 are more than 25 trillion parameters"),
        ({"num_hidden_layers": -4}, "num_hidden_layers = -4 is not a model size"),
        ({"vocab_size": "many"}, "vocab_size = 'many' is not a model size"),
        ({"model_type": "warbler"}, "model_type 'warbler' is no causal language model of the installed transformers"),
        ({"model_type": None}, "model_type None is no causal language model"),
        (
            {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]},
            "names BartForConditionalGeneration, an encoder with a decoder",
        ),
        ({"model_type": "marian", "architectures": ["MarianMTModel"]}, "names MarianMTModel, an encoder with a decoder"),
        ({"intermediate_size": -5}, "intermediate_size = -5 is not a model size"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0 is not a model size"),
        pytest.param({"num_attention_heads": 5}, "the step could not be traced", marks=pytest.mark.long),
    ],
)
def test_a_config_that_describes_no_model_is_refused_in_a_sentence(bare: Path, change: dict[str, Any], says: str) -> None:
    (bare.parent / "model" / "config.json").write_text(json.dumps(LLAMA | change))
    done = holdfast("plan", bare, "--memory", "8GiB")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert says in done.stderr, done.stderr


def test_a_size_that_is_left_out_is_not_made_up(bare: Path) -> None:
    left = {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"}
    (bare.parent / "model" / "config.json").write_text(json.dumps(left))
    done = holdfast("plan", bare)
    assert done.returncode == 1 and "does not say num_hidden_layers, so the model's size is unknown" in done.stderr


@pytest.mark.parametrize(
    ("name", "arch", "gib"),
    [
        ("RTX 4090", "sm_89", 24),
        ("NVIDIA GeForce RTX 4090", "sm_89", 24),
        ("a100-80gb", "sm_80", 80),
        ("RX 9070 XT", "gfx1201", 16),
        ("AMD Instinct MI300X", "gfx942", 192),
        ("A10G", "sm_86", 24),  # its letter is no unit
        ("NVIDIA A10G", "sm_86", 24),
        ("A10G 24GB", "sm_86", 24),
        ("A10", "sm_86", 24),
    ],
)
def test_a_card_is_known_by_its_name(name: str, arch: str, gib: int) -> None:
    card = named_card(name)
    assert (card["arch"], card["memory_bytes"]) == (arch, gib << 30)


# -- the choice, with a stand-in for the tracing: weights 100 MiB a layer; a layer keeps 10 MiB a row, 1 MiB where it is computed again


def _asked(shape: Shape) -> Demand:
    layers = shape.layers or 10
    tokens = shape.rows * shape.row / 64
    kept = max(10 * (layers - shape.again), 12 * bool(shape.again)) * tokens + shape.again * tokens
    width = 1 if shape.dtype == "fp32" else 0.5
    sizes = {"weights": 100 * layers * width, "activations": kept * width, "workspace": 0}
    kinds = dict.fromkeys(("adapter", "gradients", "optimizer", "logits"), 0.0) | {name: size * MIB for name, size in sizes.items()}
    total = sum(kinds.values())
    return Demand(
        bytes=kinds,
        phase="forward",
        building=0,
        held=total,
        params=Params(total=layers, trainable=1),
        layers=layers,
        flops=layers + shape.again / 2,
    )


def _chosen(mib: int, rows: int = 8) -> tuple[Shape, bool]:
    room, sweep = Room(mib * MIB, 0, 0, heap=False), Sweep(_asked, 10)
    choice = choose(_asked, sweep, room, Shape(64, rows, "fp32"), rows_fixed=False, again_fixed=False)
    return choice.shape, room.fits(choice.demand)


@pytest.mark.parametrize(
    ("mib", "expected", "fits"),
    [
        (1800, (8, 0), True),  # all of it
        (1799, (7, 0), True),  # one row less
        (1100, (1, 0), True),
        (1099, (1, 1), True),  # layers computed again, as few as let a row fit
        (1000, (1, 10), False),  # the least there is
    ],
)
def test_a_smaller_device_gets_fewer_rows_then_layers_computed_again(mib: int, expected: tuple[int, int], fits: bool) -> None:
    shape, found = _chosen(mib)
    assert ((shape.rows, shape.again), found) == (expected, fits)


def test_the_closed_form_gives_what_a_whole_trace_gives() -> None:
    sweep = Sweep(_asked, 10)
    for shape in (Shape(64, 1, "fp32"), Shape(64, 5, "fp32"), Shape(64, 5, "bf16", again=10)):
        assert sweep(shape).peak == pytest.approx(_asked(shape).peak)
    some = Shape(64, 2, "fp32", again=4)
    assert sweep(some).peak >= _asked(some).peak, "between none and all it may say too much, never too little"


@pytest.mark.parametrize(("adapter", "longest"), [({}, 64), ({"type": "prompt", "virtual_tokens": 20}, 44)])
def test_a_plan_is_for_the_longest_row_that_learned_tokens_leave_places_for(adapter: dict[str, Any], longest: int) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "adapter": adapter, "train": {"max_tokens": 100}})
    model = replace(MODEL, config=MODEL.config | {"max_position_embeddings": 64})
    assert Planner(config, {}, model, Tracer(None)).rows == RowLengths(longest, longest * config.train.effective_batch)


@pytest.mark.parametrize(
    ("train", "lengths"),
    [
        ({"micro_batch_tokens": 4096, "effective_batch": 1}, [100]),  # a step has one row, whatever a micro-batch may hold
        ({"micro_batch_tokens": 4096, "effective_batch": 3}, [100, 100, 100]),
        ({"micro_batch_tokens": 190, "effective_batch": 8}, [100, 90]),  # shorter rows fill what the longest leaves
        ({"micro_batch_tokens": 190, "effective_batch": 8, "packing": False}, [100]),
        ({"micro_batch_tokens": 50, "effective_batch": 8}, [100]),
        ({"effective_batch": 8}, [100] * 8),
        ({"effective_batch": 8, "reduction_parts": 4}, [100] * 2),  # rows of the other parts are not beside them
        ({"effective_batch": 9, "reduction_parts": 4}, [100] * 3),
        ({"effective_batch": 8, "ranks": 2}, [100]),
        ({"effective_batch": 8, "reduction_parts": 4, "micro_batch_tokens": 250}, [100, 100]),
    ],
    ids=str,
)
def test_a_micro_batch_is_planned_with_as_many_tokens_as_a_step_may_put_into_it(train: dict[str, Any], lengths: list[int]) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": train | {"max_tokens": 100, "precision": "fp32"}})
    assert Planner(config, {}, MODEL, Tracer(None)).wanted().lengths == lengths
    rows = {"max": 100, "mean": 100, "rows": 100, "step": 100 * train["effective_batch"]}
    whole = make_plan(config, MODEL, {}, rows).bytes.activations
    alone = config.model_copy(update={"train": Train(max_tokens=100, precision="fp32", effective_batch=1)})
    one = make_plan(alone, MODEL, {}, rows | {"step": 100}).bytes.activations
    parts = train.get("reduction_parts", 8 if "ranks" in train else 1)
    of_part = -(-train["effective_batch"] // parts) * 100
    assert whole == one * max(100, min(train.get("micro_batch_tokens", 2048), of_part)) // 100


def test_a_model_is_cut_down_to_no_fewer_layers_than_the_run_names() -> None:
    asked: list[int | None] = []
    sweep = Sweep(lambda shape: asked.append(shape.layers) or _asked(shape), 10, least=3)  # type: ignore[func-returns-value]
    assert sweep(Shape(64, 5, "fp32")).peak == pytest.approx(_asked(Shape(64, 5, "fp32")).peak) and asked == [3, 4]


@pytest.mark.long
def test_a_very_deep_model_is_planned_by_the_closed_form(bare: Path) -> None:
    (bare.parent / "model" / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 1000}))
    done = holdfast("plan", bare, "--memory", "8GiB", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 160 * 64 + 2 * 64
    assert plan["params"]["total"] - plan["params"]["trainable"] == 1000 * layer + 64 + 2 * 512 * 64
    assert any("by the closed form, from traces of a few layers" in reason for reason in plan["reasons"])


@pytest.mark.parametrize(
    ("named", "trained"),
    [("adapter.layers=3", 3), ("adapter.layers=[model.layers.2.self_attn]", 0), (r"adapter.layers='.*\.layers\.[23]\..*'", 2)],
)
def test_layers_that_a_run_names_are_planned(bare: Path, named: str, trained: int) -> None:
    done = holdfast("plan", bare, "adapter.type=layers", named, "--memory", "8GiB", "--json")
    assert done.returncode == 0, done.stderr
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 160 * 64 + 2 * 64
    assert json.loads(done.stdout)["params"]["trainable"] == (trained * layer or layer - 3 * 160 * 64 - 2 * 64)


def test_where_nothing_fits_the_smallest_changes_that_would_are_told() -> None:
    room, sweep = Room(600 * MIB, 0, 0, heap=False), Sweep(_asked, 10)
    choice = choose(_asked, sweep, room, Shape(64, 8, "fp32"), rows_fixed=False, again_fixed=False)
    told = alternatives(sweep, room, choice, halves_speed=2.0)
    assert not room.fits(choice.demand)
    fitting = [other for other in told if other.fits]
    assert [other.change for other in fitting] == ["train.precision=bf16"] and fitting[0].slower == 0.5
    assert {other.slower for other in alternatives(sweep, room, choice, None) if "precision" in other.change} == {None}, (
        "unknown is unknown"
    )


@pytest.mark.parametrize("worse", [False, True])
def test_two_changes_are_not_asked_about_where_all_together_need_less_and_do_not_fit(worse: bool) -> None:
    """Each is some traces of a second. worse: all together need more than one alone does, so two may fit nevertheless."""
    asked: set[tuple[int, int, str]] = set()
    wanted, all_changes = Shape(64, 8, "fp32", again=10), (32, 1, "bf16")

    def ask(shape: Shape) -> Demand:
        asked.add(changed := (shape.row, shape.rows, shape.dtype))
        return _asked(replace(shape, row=64, rows=9, dtype="fp32") if worse and changed == all_changes else shape)

    sweep = Sweep(ask, 10)
    room = Room(_asked(replace(wanted, rows=1, dtype="bf16")).peak if worse else 1, 0, 0, heap=False)
    told = alternatives(sweep, room, Choice(wanted, _asked(wanted)), None)
    if worse:
        assert told[-1].fits and told[-1].change == "train.micro_batch_tokens=64 train.precision=bf16"
    else:
        assert told[-1].change == "train.micro_batch_tokens=64 train.precision=bf16 train.max_tokens=32" and not told[-1].fits
        assert asked == {(64, 8, "fp32"), (64, 1, "fp32"), (64, 8, "bf16"), (32, 8, "fp32"), (32, 1, "bf16")}


@pytest.mark.parametrize(("spare", "faster", "offered"), [(1.2, None, False), (9, None, True), (9, 2.0, False), (9, 0.5, True)])
def test_what_needs_more_is_offered_where_it_fits_and_may_be_faster(spare: float, faster: float | None, offered: bool) -> None:
    """A card was offered fp32, which did not fit, beside bf16, which did. faster: how many times 16 bits are."""
    wanted, sweep = Shape(64, 1, "bf16"), Sweep(_asked, 10)
    choice = Choice(wanted, _asked(wanted))
    room = Room(int(spare * choice.demand.peak), 0, 0, heap=False)
    told = alternatives(sweep, room, choice, faster)
    assert room.fits(choice.demand)
    assert ("train.precision=fp32" in [one.change for one in told]) is offered and "train.max_tokens=32" in [one.change for one in told]
    assert all(one.fits for one in told)


def test_bytes_grow_evenly_between_two_traces() -> None:
    none, every = _asked(Shape(64, 1, "fp32")), _asked(Shape(64, 1, "fp32", again=10))
    assert between(none, every, 0.0).peak == none.peak and between(none, every, 1.0).peak == every.peak
    assert with_some_again(none, every, 0) == none and with_some_again(none, every, 10).peak == every.peak


def test_another_place_can_have_the_peak_of_a_deeper_model() -> None:
    """As in a full fine-tune in 16 bits: copies of all weights lie in forward, while few layers take the most in backward."""

    def of(layers: int) -> Demand:
        one = _asked(Shape(64, 1, "fp32", layers=layers))
        rest = dict.fromkeys(one.bytes, 0.0)
        places = {"forward mlp": rest | {"workspace": 30.0 * layers}, "backward mlp": rest | {"workspace": 100.0 + 10 * layers}}
        return one.model_copy(update={"bytes": places["backward mlp"], "phase": "backward", "places": places, "held": 107.0 + 10 * layers})

    low, high = of(1), of(2)
    assert (between(low, high, 1).peak, between(low, high, 1).phase) == (120, "backward")
    deep = between(low, high, 9)
    assert (deep.peak, deep.phase, deep.allocator()) == (300, "forward", 7)


@pytest.mark.parametrize(
    ("train", "cards", "batches", "processes"),
    [
        ({}, 1, 1, 2),
        ({"ranks": 1}, 4, 1, 2),
        ({"ranks": "auto"}, 4, 8, 5),  # 8 parts of 2 rows each
        ({"ranks": 2}, 2, 8, 3),
        ({"ranks": 2, "reduction_parts": 4}, 2, 4, 3),
        ({"ranks": 2, "reduction_parts": "off"}, 2, 1, 3),
        ({"micro_batch_tokens": 256}, 1, 4, 2),
    ],
)
def test_a_step_that_is_cut_has_a_micro_batch_for_each_part_and_each_rank_a_process(
    train: dict[str, Any], cards: int, batches: int, processes: int
) -> None:
    gpus = [{"vendor": "nvidia", "arch": "sm_80", "memory_bytes": 80 << 30}] * cards
    machine = {"gpus": gpus, "torch": {"version": "2.13.0+cu128", "cuda": "12.8", "hip": None, "devices": gpus}, "memory_bytes": 64 << 30}
    given = {"max_tokens": 64, "effective_batch": 16, "precision": "fp32"} | train
    config = Config.model_validate({"model": "m", "data": {"files": "rows"}, "train": given})
    model = ModelFacts(Path("m"), {"num_hidden_layers": 10, "hidden_size": 64}, {"layers.0.q_proj.weight": (64, 64)}, 0)
    child = SimpleNamespace(demand=lambda *asked: _asked(Shape(max(asked[3]), len(asked[3]), "fp32", layers=asked[5]["layers"])))
    planned = Planner(config, machine, model, child)  # type: ignore[arg-type]
    plan = planned.chosen().plan
    assert plan.accumulation == batches
    assert plan.host_bytes == processes * PROCESS_BYTES + trained_bytes(config, 1, True).snapshots


# -- real configs, where they are at hand


def _planned(name: str, card: str, **train: Any) -> Any:
    folder = CONFIGS / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    tree = {"model": str(folder), "data": {"files": "rows"}, "adapter": {"r": 32, "alpha": 64}, "train": {"max_tokens": 1024} | train}
    return plan_run(Config.model_validate(tree), with_card({}, named_card(card))).plan


@pytest.mark.long
def test_a_real_model_is_counted_to_the_unit() -> None:
    """Qwen2.5-Coder-7B has the sizes of Qwen2.5-7B-Instruct."""
    plan = _planned("Qwen2.5-7B-Instruct", "H100")
    assert plan.params == Params(total=7_696_356_864, trainable=80_740_352)
    assert plan.fits and plan.bytes.weights == pytest.approx(2 * (plan.params.total - plan.params.trainable), rel=0.02)


@pytest.fixture(scope="module")
def counted() -> Iterator[Any]:
    """Modules' own counts, in a process that has torch."""
    script = (
        "import json, sys, torch, transformers\n"
        "for line in sys.stdin:\n"
        "    with torch.device('meta'):\n"
        "        about = transformers.AutoConfig.for_model(**json.loads(line))\n"
        "        model = transformers.AutoModelForCausalLM.from_config(about)\n"
        "    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != 'lm_head']\n"
        "    total, sides = sum(p.numel() for p in model.parameters()), sum(m.in_features + m.out_features for m in linear)\n"
        "    print(json.dumps([total, sides]), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout

    def count(config: dict[str, Any]) -> tuple[int, int]:
        assert child.stdin and child.stdout
        child.stdin.write(json.dumps(config) + "\n")
        child.stdin.flush()
        total, sides = json.loads(child.stdout.readline())
        return total, sides

    yield count
    child.stdin.close()
    child.wait()
    child.stdout.close()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(folder.name for folder in CONFIGS.iterdir()) if CONFIGS.is_dir() else ["none"])
def test_every_real_model_is_counted_as_its_modules_are(name: str, counted: Any) -> None:
    plan = _planned(name, "MI300X")
    total, sides = counted(json.loads((CONFIGS / name / "config.json").read_text()))
    assert plan.params == Params(total=total + 32 * sides, trainable=32 * sides)


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "three-billion.md"


@pytest.mark.long
def test_the_page_of_the_three_billion_has_the_plans_numbers() -> None:
    folder = CONFIGS / "Qwen2.5-3B-Instruct"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    tree = {"model": str(folder), "data": {"files": "rows"}, "adapter": {"r": 16, "alpha": 32}}
    config = Config.model_validate(tree | {"train": {"max_tokens": 1024, "micro_batch_tokens": 1024, "precision": "fp32"}})
    plan = plan_run(config, with_card({}, named_card("RTX 5090"))).plan
    page = PAGE.read_text(encoding="utf-8")
    assert plan.fits
    told = [size for kind, size in plan.bytes.by_kind().items() if size] + [plan.peak_bytes, plan.params.trainable]
    told += [other.peak_bytes for other in plan.alternatives]
    assert [f"{size:,}" for size in told if f"{size:,}" not in page] == []
    base = plan.params.total - plan.params.trainable
    assert [f"{width * base:,}" for width in (4, 8) if f"{width * base:,}" not in page] == [], "the old sum"


ACCURACY = Path(__file__).parents[2] / "benchmarks" / "plan" / "accuracy.py"
_STEP = {"device": "cpu", "attention": "sdpa", "micro_batch_tokens": 400, "threads": 2, "steps": 1, "samples": 1}
DRAWS: list[dict[str, Any]] = [
    {"settings": _STEP | {"dtype": "fp32", "packing": True, "checkpointed_layers": 2}, "lengths": [150, 100, 90], "labels": 200},
    {"settings": _STEP | {"dtype": "bf16", "packing": False, "checkpointed_layers": 0}, "lengths": [130, 100, 60], "labels": 80}
    | {"train": {"optimizer": "schedule_free"}},
]
if importlib.util.find_spec("bitsandbytes"):
    held = {"dtype": "bf16", "packing": True, "checkpointed_layers": 0, "frozen": "nf4", "double_quant": True}
    DRAWS.append({"settings": _STEP | held, "lengths": [150, 100, 90], "labels": 200, "train": {"optimizer": "lion"}})


PRODUCT_SPARE = 2 << 20  # bytes a thread: by what trainer/traced/inside.py may say too much


def test_a_traced_step_takes_what_the_step_takes() -> None:
    """The same shapes with weights, by torch's own allocator: never 1 % too little, at the most 3 % too much.

    A CPU without AMX does not lay 16-bit matrices out anew for a product: there the plan may be too high by what that is counted with.
    """
    model = LLAMA | {"hidden_size": 256, "intermediate_size": 640, "vocab_size": 8000, "pad_token_id": 0}
    adapter = {"r": 8, "alpha": 16, "dropout": 0.1}
    asked = "".join(json.dumps({"model": model, "adapter": adapter, "stored": "BF16"} | draw) + "\n" for draw in DRAWS)
    said: dict[str, list[int]] = {}
    for role in ("trace", "measure"):
        command = [sys.executable, str(ACCURACY), "--role", role]
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=os.environ)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(found) == len(DRAWS), done.stderr
        said[role] = [one["peak"] for one in found]
        if role == "trace":
            assert len({one["params"]["total"] for one in found}) == 1, "weights in 4 bits are counted as what they are"
    for draw, planned, measured in zip(DRAWS, said["trace"], said["measure"], strict=True):
        settings: dict[str, Any] = draw["settings"]
        packs = settings["dtype"] != "bf16" or torch.cpu._is_amx_tile_supported()
        spare = 0 if packs else settings["threads"] * PRODUCT_SPARE
        assert 0.99 * measured < planned < 1.03 * measured + spare, (draw, planned, measured)


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        ({"peft": "0.15.2", "transformers": "4.57.6"}, "peft 0.15.2 is older than 0.17"),
        ({"peft": "0.17.1", "transformers": "5.0.0"}, "peft 0.17.1 cannot be imported beside transformers 5.0.0"),
        ({"peft": "0.18.1", "transformers": "4.50.1"}, "transformers 4.50.1 is older than 4.57"),
    ],
)
def test_a_library_that_train_stops_for_is_told_and_the_exit_code(
    bare: Path, packages: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = read_machine(bare.parent, ask_torch=False)
    monkeypatch.setattr(plan_command, "read_machine", lambda *_, **__: here | {"packages": here["packages"] | packages})
    assert main(["plan", str(bare), "--memory", "8GiB"]) == 1
    assert f"train stops before it begins: {says}" in capsys.readouterr().out
    assert main(["plan", str(bare), "--card", "RTX 4090"]) == 0 and says not in capsys.readouterr().out, (
        "of another machine's nothing is known"
    )
    (bare.parent / "model/config.json").write_text("{")
    assert main(["plan", str(bare), "--memory", "8GiB"]) == 1
    assert says in capsys.readouterr().err


def test_a_start_in_fp32_of_16_bit_files_is_planned_without_a_second_model() -> None:
    """Its constants are widened beside a model without weights, of which a device holds nothing (tests/simulated/test_weights.py)."""
    tree = {"model": "m", "data": {"files": "f"}, "adapter": {"r": 4}, "train": {"precision": "fp32"}}
    with tracer() as child:
        how = {"layers": None, "curve": False}
        model, settings = ModelFacts(Path("m"), LLAMA, {}, 0, "BF16"), settings_with(device="cuda", attention="eager")
        found = child.demand(Config.model_validate(tree), model, settings, [16], 16, how)
    held = found.bytes["weights"] + found.bytes["adapter"] + found.bytes["gradients"] + found.bytes["optimizer"]
    assert found.building <= 1.02 * held, (found.building, found.bytes)


def test_an_adapter_that_is_the_reference_is_counted_where_its_values_wait() -> None:
    """The reference's values come to a card while it is computed with them; on a CPU they lie beside the run's own all the time."""
    model = ModelFacts(Path("m"), LLAMA, {}, 0, "BF16")
    with tracer() as child:
        for objective, device in (("dpo", "cuda"), ("kto", "cpu")):
            found = []
            for start in (None, "adapter"):
                train = {"objective": objective, "max_tokens": 64}
                tree = {"model": "m", "data": {"files": "f"}, "adapter": {"r": 128, "start": start}, "train": train}
                settings = settings_with(device=device, checkpointed_layers=4, micro_batch_tokens=16, attention="eager")
                how = {"layers": None, "curve": False}
                found.append(child.demand(Config.model_validate(tree), model, settings, [16], 16, how))
            adapter = found[0].bytes["adapter"]
            assert adapter > found[0].bytes["activations"], "so that the copy is more than what backward takes"
            assert 0 < found[1].peak - found[0].peak <= adapter
