"""A training step on a pretended card: where its tensors are, what it waits for, what it launches, what it needs. No data, real shapes.

`python benchmarks/gpu/roofline.py` prints the same for a whole table. Where a change makes one of the numbers here smaller, write it down.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import faked
from simulated import card
from support.architectures import ARCHITECTURES
from support.selection import part_of

pytestmark = card.needed

LAUNCHES_A_LAYER = {"": 151, "dropout": 151, "nf4": 173, "nf4, dropout": 173}  # forward and backward, in bf16
_CHANGED: dict[str, dict[str, Any]] = {"dropout": {"dropout": 0.05}, "nf4": {"frozen": "nf4"}}
PLANNED_BEYOND, PLANNED_ROUGHLY = 1.08, 1.16  # of what a step needs; never less than it needs
_SMALL = {"tokens": 128, "length": 32, "rank": 4}
SMALL = part_of((name, dtype) for name in ARCHITECTURES for dtype in ("bf16", "fp32"))
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def steps(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    done = faked.run(faked.FOLDER / "measured.py", folder, file)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """A step of each architecture, by its name and arithmetic: two micro-batches with dropout in bf16, one without in fp32."""
    kinds = {"bf16": {"dropout": 0.1, "micro_batch_tokens": 64}, "fp32": {}}
    cases = [{"model": ARCHITECTURES[name]().to_dict(), "dtype": dtype} | _SMALL | kinds[dtype] for name, dtype in SMALL]
    return dict(zip(SMALL, steps(tmp_path_factory.mktemp("small"), cases), strict=True))


def made(step: dict[str, Any], *operations: str) -> Counter[str]:
    """How many results of these operations there are of each type; of all operations where none is named."""
    counted: Counter[str] = Counter()
    for name, kind, count in step["types"]:
        counted[kind] += count * (not operations or name in operations)
    return +counted


def small_in(wanted: str) -> list[str]:
    return [name for name, dtype in SMALL if dtype == wanted]


@pytest.mark.parametrize(("name", "dtype"), SMALL)
def test_all_a_step_computes_with_is_on_the_card(small: dict[Any, dict[str, Any]], name: str, dtype: str) -> None:
    assert small[name, dtype]["micro_batches"] == (2 if dtype == "bf16" else 1)
    assert small[name, dtype]["strangers"] == {}


@pytest.mark.parametrize("name", small_in("bf16"))
def test_products_of_mixed_precision_are_in_bf16(small: dict[Any, dict[str, Any]], name: str) -> None:
    assert set(made(small[name, "bf16"], *_PRODUCTS)) == {"bfloat16"}


@pytest.mark.parametrize("name", small_in("fp32"))
def test_nothing_but_weights_is_narrow_in_fp32(small: dict[Any, dict[str, Any]], name: str) -> None:
    step = small[name, "fp32"]
    assert set(made(step, *_PRODUCTS)) == {"float32"}
    assert made(step)["bfloat16"] == made(step, "embedding")["bfloat16"], "rows of an embedding, before they are widened"


@pytest.mark.parametrize("name", small_in("bf16"))
def test_a_step_waits_at_its_gate_alone(small: dict[Any, dict[str, Any]], name: str) -> None:
    assert small[name, "bf16"]["waits"] == {"tolist step.py:compute_gradients": 1}
    keys = [] if name == "gpt2" else [1]  # its layers are no nn.Linear: none of them is fused
    copies = sorted(small[name, "bf16"]["copies"].values())
    assert copies == [*keys, 2], "dropout's keys, and each micro-batch, from pinned memory"


@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
def test_kernels_of_triton_are_counted_by_what_they_read_and_write() -> None:
    done = faked.run(faked.FOLDER / "kernels_counted.py")
    assert done.returncode == 0, done.stderr[-3000:]


def test_with_numbers_too_and_what_the_next_step_needs_is_laid_out_meanwhile() -> None:
    done = card.run(faked.FOLDER.parent / "waits_on_card.py")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """Steps of the 0.5B shape with two and four layers, by what is changed and layers."""
    names = [(changed, layers) for changed in LAUNCHES_A_LAYER for layers in (2, 4)]
    cases = []
    for changed, layers in names:
        case = {"model": "qwen0.5b", "rank": 16, "layers": layers}
        for word in filter(None, changed.split(", ")):
            case |= _CHANGED[word]
        cases.append(case)
    return dict(zip(names, steps(tmp_path_factory.mktemp("deep"), cases), strict=True))


@pytest.mark.parametrize("changed", LAUNCHES_A_LAYER)
def test_a_layer_launches_no_more_than_it_did(deep: dict[Any, dict[str, Any]], changed: str) -> None:
    assert (deep[changed, 4]["launches"] - deep[changed, 2]["launches"]) / 2 <= LAUNCHES_A_LAYER[changed]


PLANNED: dict[str, dict[str, Any]] = {  # a few layers say it all: what is left out is as many times one layer
    "0.5B": {"model": "qwen0.5b", "rank": 16, "layers": 12},
    "0.5B with dropout": {"model": "qwen0.5b", "rank": 16, "dropout": 0.05, "layers": 6},
    "7B": {"model": "qwen7b", "layers": 6},
    "8B": {"model": "llama8b", "layers": 6},
    "7B with dropout": {"model": "qwen7b", "dropout": 0.05, "layers": 4},
    "Mistral 7B, rank 64": {"model": "mistral7b", "rank": 64, "layers": 4},
    "1.6B, keys for every head": {"model": "wide", "layers": 6},
    "0.5B, dropout without kernels": {"model": "qwen0.5b", "rank": 16, "dropout": 0.05, "fused": False, "layers": 4, "tokens": 2048},
    "0.5B, samples by themselves": {"model": "qwen0.5b", "rank": 16, "varlen": False, "layers": 4, "tokens": 2048},
    "Qwen3-4B": {"model": "qwen3-4b", "layers": 4, "tokens": 16384, "length": 1024},
    "Qwen3-4B in fp32": {"model": "qwen3-4b", "dtype": "fp32", "layers": 4, "tokens": 4096, "length": 1024},
    "7B in 4 bits": {"model": "qwen7b", "frozen": "nf4", "dropout": 0.05, "layers": 4, "tokens": 2048},
    "Gemma 2B": {"model": "gemma-2b", "layers": 4, "tokens": 16384, "length": 1024},
    "Gemma 3 1B": {"model": "gemma3-1b", "layers": 4, "length": 1024},
    "Gemma 2 2B, soft-capped": {"model": "gemma2-2b", "layers": 4, "length": 1024},
}
PLANNED["0.5B, eager without kernels"] = PLANNED["0.5B, dropout without kernels"] | {"attention": "eager"}
ROUGHLY: dict[str, dict[str, Any]] = {
    "8B, layers computed again": {"model": "llama8b", "checkpointed_layers": 4, "layers": 6},
    "0.5B, eager": {"model": "qwen0.5b", "rank": 16, "attention": "eager", "layers": 4, "tokens": 2048},
}


USUAL = (
    *("0.5B", "7B with dropout", "7B in 4 bits", "0.5B, samples by themselves", "Gemma 3 1B", "8B, layers computed again"),
    *("0.5B, eager", "0.5B, eager without kernels"),
)
OTHERS = tuple(name for name in PLANNED | ROUGHLY if name not in USUAL)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[str, dict[str, Any]]]:
    """Steps of these cases, all traced by one process, which is started once."""

    @cache
    def traced(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        cases = [(PLANNED | ROUGHLY)[name] for name in names]
        return dict(zip(names, steps(tmp_path_factory.mktemp("planned"), cases), strict=True))

    return traced


TAKEN = tuple(part_of(USUAL))


@pytest.mark.parametrize("name", [*TAKEN, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_a_step_needs_what_the_plan_says(planned: Callable[[tuple[str, ...]], dict[str, dict[str, Any]]], name: str) -> None:
    step = planned(TAKEN if name in TAKEN else OTHERS)[name]
    plan = sum(size for kind, size in step["plan"].items() if kind != "snapshot")  # that one comes after the step
    beyond = PLANNED_BEYOND if name in PLANNED else PLANNED_ROUGHLY
    assert step["peak"] <= plan <= beyond * step["peak"], f"{plan / step['peak']:.2f} of {step['peak']:,} bytes"
