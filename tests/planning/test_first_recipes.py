"""Recipes by card and goal: each is a config, and fits the card that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.book.graphics_cards import named_card
from holdfast.config.load import load_config
from holdfast.planning.advice import far_off
from holdfast.planning.planning import plan_run, with_card
from holdfast.planning.siblings import largest_sibling
from holdfast.run.plan import Bytes, Params, Plan

FOLDER = Path(__file__).parent.parent.parent / "examples" / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
QWEN = {  # hidden, intermediate, layers, heads, key heads, tied
    "0.5B": (896, 4864, 24, 14, 2, True),
    "1.5B": (1536, 8960, 28, 12, 2, True),
    "3B": (2048, 11008, 36, 16, 2, True),
    "7B": (3584, 18944, 28, 28, 4, False),
}
CARD = re.compile(r"Card: ([^.]+)\.")


def model_folder(place: Path, name: str) -> Path:
    """A folder with nothing but the config.json of a Qwen2.5."""
    hidden, inner, layers, heads, keys, tied = QWEN[name.rpartition("-")[2]]
    config: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": hidden}
    config |= {"intermediate_size": inner}
    config |= {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": keys, "tie_word_embeddings": tied}
    config |= {"vocab_size": 151_936, "max_position_embeddings": 32_768, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}
    folder = place / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


OFTEN = ("small-rank", "free-notebook-t4")  # the others are traced in the long run of the suite


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(recipe, id=recipe.stem, marks=[] if recipe.stem in OFTEN else [pytest.mark.long]) for recipe in RECIPES],
)
def test_a_recipe_fits_the_card_that_it_names(tmp_path: Path, recipe: Path) -> None:
    config = load_config(recipe, need_rows=False)
    folder = model_folder(tmp_path, Path(config.model).name)
    config = config.model_copy(update={"model": str(folder)})
    named = CARD.search(recipe.read_text())
    machine: dict[str, Any] = {"memory_bytes": 64 << 30, "disk_free_bytes": 1 << 40, "gpus": []}
    plan = plan_run(config, with_card(machine, named_card(named[1])) if named else machine).plan
    assert plan.fits is True, f"{plan.peak_bytes / 2**30:.1f} GiB of {(plan.capacity_bytes or 0) / 2**30:.1f}"
    assert not [*far_off(config, plan.params.total)]


def test_recipes_say_for_whom_they_are() -> None:
    assert len(RECIPES) >= 14
    assert all(recipe.read_text().startswith("# ") for recipe in RECIPES)


def test_a_plan_that_does_not_fit_names_the_largest_sibling_that_does() -> None:
    numbers = Params(total=7_600_000_000, trainable=40_000_000)
    plan = Plan(
        precision="bf16",
        micro_batch_tokens=512,
        checkpointed_layers=28,
        fits=False,
        peak_bytes=18 << 30,
        capacity_bytes=12 << 30,
        reserve_bytes=1 << 30,
        bytes=Bytes(weights=15 << 30, activations=2 << 30, context=1 << 30),
        params=numbers,
        accumulation=1,
    )
    assert "Qwen2.5 of 3B" in largest_sibling("Qwen/Qwen2.5-7B-Instruct", plan)
    assert largest_sibling("some/unknown-7B", plan) == ""


NAMES = ("T4", "V100-32GB", "RX 6800", "RX 6900 XT", "MI25", "MI50-16GB", "MI50 32GB", "MI60", "MI100", "Radeon VII")


@pytest.mark.parametrize("name", NAMES)
def test_cards_of_newcomers_are_known(name: str) -> None:
    assert named_card(name)["memory_bytes"] >= 16 << 30


def test_the_list_of_recipes_names_each_with_its_own_first_line() -> None:
    rows = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", (FOLDER / "README.md").read_text(), re.M))
    assert rows == {recipe.name: recipe.read_text().splitlines()[0].removeprefix("# ") for recipe in RECIPES}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("P40", ""),
        ("GTX 1080 Ti", ""),
        ("GTX 1660 Ti", ""),
        ("RTX A2000", ""),
        ("M2 Max", ""),
        ("RTX 4900", "RTX 4090"),
        ("RXT 4090", "RTX 4090"),
        ("RTX-5090-Ti", "RTX 5090"),
    ],
)
def test_only_a_card_of_the_same_family_is_offered_for_a_name_nobody_knows(name: str, meant: str) -> None:
    with pytest.raises(Stop) as stopped:
        named_card(name)
    assert (f"did you mean {meant}?" in stopped.value.hint) if meant else "did you mean" not in stopped.value.hint
