"""Ten rows are learned by heart: by each kind of what is trained, each objective and each optimizer, on a random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.pairs import pairs_of
from support.stand import Stand, model_folder

WIDE: dict[str, Any] = {"r": 16, "alpha": 32}
ADAPTERS: dict[str, tuple[dict[str, Any], float]] = {
    "lora": (WIDE, 1e-2),
    "lora+": (WIDE | {"lr_ratio": 4.0}, 1e-2),
    "gaussian": (WIDE | {"init": "gaussian"}, 1e-2),
    "orthogonal": (WIDE | {"init": "orthogonal"}, 1e-2),
    "pissa": (WIDE | {"init": "pissa"}, 1e-2),
    "olora": (WIDE | {"init": "olora"}, 1e-2),
    "head too": (WIDE | {"modules_to_save": ["lm_head"]}, 1e-2),
    "rslora": (WIDE | {"type": "rslora"}, 1e-2),
    "dora": (WIDE | {"type": "dora"}, 1e-2),
    "adalora": (WIDE | {"type": "adalora", "target_r": 8}, 3e-2),
    "prompt": ({"type": "prompt", "virtual_tokens": 32}, 0.3),
    "ia3": ({"type": "ia3"}, 0.3),
    "full": ({"type": "full"}, 1e-2),
    "layers": ({"type": "layers", "layers": 1}, 1e-2),
}
KINDS = ("lora", "rslora", "dora", "adalora", "prompt", "ia3", "full", "layers")  # with each objective they take
LEAST = {"sft": 0.05, "dpo": 0.05, "orpo": 0.2, "simpo": 0.05, "kto": 0.1, "reward": 0.01}
OPTIMIZERS: dict[str, float] = {
    "adamw": 1e-2,
    "adamw8bit": 1e-2,
    "paged": 1e-2,
    "schedule_free": 1e-2,
    "adafactor": 0.1,
    "lion": 3e-3,
    "muon": 3e-2,
    "sgd": 0.3,
}
NARROW = ("ia3", "prompt")  # factors and prompts steer what is there, and random weights hold two answers that way, not ten


def takes(adapter: str, objective: str) -> bool:
    """Whether there is such a run: what trains weights of the model's own has no reference and no head."""
    return not (adapter in ("full", "layers") and objective in ("dpo", "kto", "reward")) and (adapter, objective) != ("prompt", "reward")


CELLS = [(adapter, objective, "adamw") for adapter in KINDS for objective in LEAST if takes(adapter, objective)]
CELLS += [(adapter, "sft", "adamw") for adapter in ADAPTERS if adapter not in KINDS]
CELLS += [(adapter, "sft", optimizer) for adapter in ("lora", "full") for optimizer in OPTIMIZERS if optimizer != "adamw"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16, hidden_size=64, intermediate_size=128, head_dim=16)


def marked(adapter: str, objective: str, optimizer: str) -> Any:
    """Each kind, objective and optimizer once in every run of the tests, in all their pairs in the long one."""
    once = objective == "sft" if optimizer == "adamw" and adapter != "lora" else adapter == ("lora" if optimizer == "adamw" else "full")
    return pytest.param(adapter, objective, optimizer, marks=[] if once else [pytest.mark.long])


@pytest.mark.parametrize(("adapter", "objective", "optimizer"), [marked(*cell) for cell in CELLS])
def test_ten_rows_are_learned_by_heart(model: Path, adapter: str, objective: str, optimizer: str) -> None:
    if optimizer in ("adamw8bit", "paged"):
        pytest.importorskip("bitsandbytes")
    learn_by_heart(model, adapter, objective, optimizer, {})


@pytest.fixture
def threads() -> Iterator[None]:
    """Afterwards, the process computes in as many threads as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("adapter", ["lora", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "lora")])
def test_ten_rows_are_learned_by_heart_in_two_threads(model: Path, adapter: str) -> None:
    learn_by_heart(model, adapter, "sft", "adamw", {"threads": 2})


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("adapter", ["lora", pytest.param("rslora", marks=pytest.mark.long)])
def test_ten_rows_are_learned_by_heart_by_parts_side_by_side(model: Path, adapter: str) -> None:
    learn_by_heart(model, adapter, "sft", "adamw", {"threads": 2, "shards": 2, "at_once": 2, "part_threads": 1})


def learn_by_heart(model: Path, adapter: str, objective: str, optimizer: str, settings: dict[str, Any]) -> None:
    sections, lr = ADAPTERS[adapter]
    tokens = pairs_of(2 if adapter in NARROW and objective in ("sft", "orpo") else 10, marked=objective in ("sft", "kto"))
    train = {"objective": objective, "optimizer": optimizer, "lr": lr if optimizer == "adamw" else OPTIMIZERS[optimizer]}
    stand = Stand(model, tokens=tokens, train=train, adapter=sections, settings={"steps": 300} | settings)
    for step in range(1, 301):
        if stand.step(step) < LEAST[objective]:
            return
    raise AssertionError(f"after 300 steps the loss is {stand.compute(301).loss:.3f}")
