"""`check` names planted causes and none where all is well; `tune` refuses rungs that betray; `compare` names what was changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import holdfast, write_rows
from holdfast.cli.commands.check import _counted
from holdfast.config.load import load_config
from holdfast.experiments.check.bench import Bench
from holdfast.experiments.check.everything import items
from holdfast.experiments.compare import _likely, changed, compare
from holdfast.experiments.tune.climb import REFERENCE, _told_in_each
from holdfast.planning.ladder import Proof, fingerprint, keep_proof, ladder_entry, proof_file, read_proof
from holdfast.run.timeline import Settings

TRAIN = {"steps": 40, "effective_batch": 8, "lr": 2e-3, "max_tokens": 96, "threads": 1}
CONTRADICTING = [
    {"instruction": f"Say something {i % 5}", "output": word}
    for i, word in enumerate(["amber birch", "cedar delta", "ember fjord", "grove heath", "birch 1", "delta 2", "fjord 3", "heath 4"] * 3)
]
PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "a rate of nothing": ({"train": {"lr": 1e-9}}, "rate_too_low"),
    "a rate beyond all": ({"train": {"lr": 50.0}}, "rate_too_high"),
    "an adapter scaled to nothing": ({"adapter": {"alpha": 1e-6}}, "adapter.alpha"),
    "an epsilon above all gradients": ({"train": {"epsilon": 1000.0}}, "train.epsilon"),
    "noise on the embeddings": ({"train": {"neftune": 3000}}, "train.neftune"),
    "decay as large as the weights": ({"train": {"weight_decay": 400.0}}, "train.weight_decay"),
    "a loss that counts no token": ({"faults": [{"effect": "zero_loss"}]}, "masks"),
    "gradients that are not finite": ({"faults": [{"effect": "nan_grad"}]}, "not_finite"),
}
BETRAYALS: dict[str, dict[str, Any]] = {
    "crash": {"effect": "abort"},
    "not a number at one shape": {"effect": "nan_loss", "tokens": [20, 30]},
    "wrong by one per cent": {"effect": "spike", "factor": 1.01},
    "a backward pass that is not finite": {"effect": "nan_grad"},
    "not a number after many steps": {"effect": "nan_loss", "step": 9},
    "broken at import": {"effect": "raise", "phase": "start"},
}


def asked(*arguments: object, code: int | None = None) -> dict[str, Any]:
    done = holdfast(*arguments, "--json")
    assert code is None or done.returncode == code, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.matrix
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_in_the_way_of_learning_is_named(config_of: Callable[..., Path], name: str) -> None:
    sections, cause = PLANTED[name]
    plain = {"train": TRAIN, "adapter": {"r": 4, "dropout": 0.0}}
    tree = {key: plain.get(key, {}) | value if isinstance(value, dict) else value for key, value in {**plain, **sections}.items()}
    (item,) = asked("check", config_of(**tree), "--only", "overfit", code=1)["items"]
    assert item["verdict"] == "failed" and item["numbers"]["cause"] == cause, item
    assert item["next"]


class _RefusedAtStart:
    """A laboratory whose children refuse to build the run."""

    def ask(self, _: str, **__: Any) -> dict[str, Any]:
        return {"ending": "error, exit code 2", "log": ["adapter.targets matches nothing"]}


@pytest.mark.parametrize("only", [["start", "first", "overfit", "speed"], ["first"]])
def test_what_was_not_tried_repeats_no_remedy(only: list[str]) -> None:
    parts: Any = (_RefusedAtStart(), None, None)
    found = list(items(Bench(*parts, "my-run.yaml", {}), only))
    assert [item.verdict for item in found] == ["failed" if item.id == "start" else "unknown" for item in found]
    assert len([item.next for item in found if item.next]) == 1 and found[0].next
    left_out = f"unknown: {', '.join(name for name in only if name != 'start')}"
    failed = "failed: start; " if "start" in only else ""
    assert _counted(found) == f"0 of {len(only)} item{'s' if len(only) > 1 else ''} passed; {failed}{left_out}"


def test_rows_that_contradict_each_other_are_named(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "contra.jsonl", CONTRADICTING)
    (item,) = asked("check", config_of(train=TRAIN, data={"files": [str(rows)]}), "--only", "overfit", code=1)["items"]
    assert item["numbers"]["cause"] == "contradicting_rows" and item["numbers"]["least_loss"] > 0.1


@pytest.mark.parametrize("sections", [{}, {"adapter": {"type": "dora"}}, {"train": TRAIN | {"precision": "bf16"}}])
def test_nothing_is_named_where_all_is_well(config_of: Callable[..., Path], sections: dict[str, Any]) -> None:
    answer = asked("check", config_of(**({"train": TRAIN} | sections)), code=0)
    assert [item["id"] for item in answer["items"]] == ["start", "first", "overfit", "precision", "order", "resume", "speed"]
    assert {item["verdict"] for item in answer["items"]} == {"passed"}, answer
    assert answer["start"]["learns"]["attention"]["parameters"] > 0 and answer["start"]["dtype"]["trained"] == "float32"


def test_a_format_that_is_wrong_is_named_with_the_shape(config_of: Callable[..., Path]) -> None:
    faults = [{"effect": "spike", "factor": 1.05, "when": {"setting": {"dtype": "bf16"}}}]
    (item,) = asked("check", config_of(train=TRAIN | {"precision": "bf16"}, faults=faults), "--only", "precision", code=1)["items"]
    found = item["numbers"]["bf16"]
    assert item["verdict"] == "failed" and found["holds"] is False and found["shape"] == "shortest"
    assert "train.precision=" in item["next"]


def test_an_item_that_is_none_is_refused(config_of: Callable[..., Path]) -> None:
    done = holdfast("check", config_of(), "--only", "start,speeed")
    assert done.returncode == 2 and "speeed" in done.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("name", BETRAYALS)
def test_a_rung_that_betrays_is_refused_and_the_others_are_tried(config_of: Callable[..., Path], name: str) -> None:
    fault = {key: value for key, value in BETRAYALS[name].items() if key in ("effect", "factor")}
    when = {key: value for key, value in BETRAYALS[name].items() if key in ("tokens", "step", "phase")}
    faults = [fault | {"when": when | {"setting": {"attention": "sdpa"}}}]
    answer = asked("tune", config_of(train=TRAIN, faults=faults), code=0)
    rungs = {rung["id"]: rung for rung in answer["rungs"]}
    assert rungs["sdpa"]["verdict"] == "refused" and rungs["sdpa"]["why"], rungs["sdpa"]
    assert rungs["packing"]["verdict"] in ("kept", "slower", "no difference told") and "sdpa" not in answer["chosen"]["rungs"]


def test_a_proof_is_used_where_it_was_made_and_nowhere_else(config_of: Callable[..., Path]) -> None:
    config = load_config(config_of(train=TRAIN | {"ladder": "proven"}), [])
    settings = Settings.model_validate({"micro_batch_tokens": 64, "threads": 1, "steps": 1, "samples": 8})
    here = {"memory_bytes": 1 << 34, "torch": {"version": "2.13.0"}}
    assert ladder_entry(config, here, settings)[0] is None
    file = proof_file(config)
    assert file is not None
    asked("tune", config_of(train=TRAIN), code=0)
    proof = Proof.model_validate(json.loads(file.read_text()))
    other, why = read_proof(config, here)
    assert other is None and "torch" in why
    file.write_text('{"machine": ')
    assert "damaged" in read_proof(config, here)[1]
    file.write_text(proof.model_dump_json())
    file.unlink()


def test_a_proof_without_a_faster_rung_says_which_kernels_a_run_gets(config_of: Callable[..., Path]) -> None:
    config = load_config(config_of(train=TRAIN | {"ladder": "proven"}), [])
    settings = Settings.model_validate({"micro_batch_tokens": 64, "threads": 1, "steps": 1, "samples": 8})
    file = keep_proof(config, Proof(machine=fingerprint({}), rungs=(), reference=REFERENCE, time=time.time()))
    entry, told = ladder_entry(config, {}, settings)
    assert entry is not None and entry.settings == REFERENCE | {"env": settings.env}
    assert told == "train.ladder proven: the reference, plain kernels in fp32" and file is not None
    file.unlink()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([1, 2, 3, 4], []),
        ([4, 2, 3, 1], ["data: the order of its rows"]),
        ([1, 2, 3, 9], ["data: rows that the other does not have (1 of 4, 1 of 4)"]),
        ([1, 2, 3], ["data: rows that the other does not have (1 of 4, 0 of 3)"]),
        ([1, 2, 3, 4, 4], ["data: how often its rows are there"]),
        (None, ["data"]),
    ],
)
def test_it_is_said_how_the_rows_of_two_runs_differ(keys: list[int] | None, told: list[str]) -> None:
    """A file under another name has another hash and the same rows."""
    facts = {"config": {}, "settings": {}, "machine": {}, "model": None}
    one = facts | {"data": {"sha256": "a"}, "row_keys": np.array([1, 2, 3, 4])}
    other = facts | {"data": {"sha256": "b"}, "row_keys": np.array(keys) if keys is not None else None}
    assert changed(one, other) == told


def of_losses(losses: list[float], order: list[int], rate: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"config": {"train.lr": rate}, "settings": {}, "machine": {}, "model": None, "data": {"sha256": "a"}}
    facts |= {
        "artifact_sha256": str(rate),
        "losses": losses,
        "loss_steps": [*range(1, len(losses) + 1)],
        "order": [[at] for at in order],
        "steps": len(losses),
    }
    return facts | {"quarantined": 0, "incidents": [], "tokens_per_second": None, "row_keys": np.array([1, 2])}


def test_losses_of_the_same_batches_are_held_against_each_other_step_by_step() -> None:
    drawn = [5.0, 6.1, 4.7, 5.6, 5.2, 6.3, 4.9, 5.8]
    lower = [loss - 0.02 - 0.001 * at for at, loss in enumerate(drawn)]
    one, two = of_losses(drawn, [*range(8)], 1e-3), of_losses(lower, [*range(8)], 2e-3)
    [same] = _likely(("one", one), ("two", two))
    assert same["cause"] == "train.lr" and "noise of the same steps, one by one" in same["evidence"]
    [drawn_otherwise] = _likely(("one", one), ("two", two | {"order": one["order"][::-1]}))
    assert drawn_otherwise["cause"] == "noise", "batches differ by more than that"
    [few] = _likely(("one", of_losses([5.0], [0], 1e-3)), ("two", of_losses([4.0], [0], 2e-3)))
    assert few["cause"] == "cannot be told" and "one has 1 step, whose noise is unknown" in few["evidence"]


HELD: dict[str, tuple[Any, str]] = {
    "the same rows in another order": ({"held_keys": np.array([6, 5])}, ""),
    "another seed": (
        {"config": {"train.seed": 1}, "held_keys": np.array([5, 7])},
        "it is of other rows or tokens (1 of 2 and 2 are the same)",
    ),
    "more held out": ({"config": {"data.held_out": 0.2}, "held_keys": np.array([5, 6, 7])}, "of other rows or tokens (2 of 2 and 3 are"),
    "another template": ({"config": {"data.chat_template": "x"}, "held_keys": np.array([8, 9])}, "of other rows or tokens (0 of 2 and 2"),
    "another objective": ({"config": {"train.objective": "dpo"}, "held_keys": np.array([5, 6])}, "another kind of loss (train.objective)"),
    "rows that are gone": ({"config": {"train.seed": 1}, "held_keys": None}, "whether it is of the same rows is not known (train.seed)"),
}


@pytest.mark.parametrize("name", HELD)
def test_held_out_losses_of_other_rows_are_not_held_against_each_other(name: str) -> None:
    other, said = HELD[name]
    one = of_losses([5.0, 4.0], [0, 1], 1e-3) | {"loss": {"eval_tuned": 4.0}, "held_keys": np.array([5, 6]), "peak_bytes": 1, "status": "x"}
    two = one | other | {"config": one["config"] | other.get("config", {})}
    told = [text for text in compare([("one", one), ("two", two)])["unknown"] if "better held-out loss" in text]
    assert len(told) == (1 if said else 0) and all(said in text for text in told), told


def test_rows_that_were_left_out_are_no_difference_of_losses() -> None:
    losses = [5.0, 6.1, 4.7, 5.6, 5.2, 6.3, 4.9, 5.8]
    one, two = of_losses(losses, [*range(8)], 1e-3), of_losses(losses, [*range(8)], 1e-3)
    [equal] = _likely(("one", one), ("two", two | {"quarantined": 2, "artifact_sha256": "other"}))
    assert equal["cause"] == "noise" and "0 and 2 rows were left out" in equal["evidence"]
    lower = two | {"losses": [loss - 1 for loss in losses], "quarantined": 2, "artifact_sha256": "other"}
    [apart] = _likely(("one", one), ("two", lower))
    assert apart["cause"] == "incidents" and "0 and 2 rows were left out" in apart["evidence"]


@pytest.mark.parametrize(
    ("below", "above", "verdict"),
    [
        ([100, 100, 100], [110, 104, 120], "kept"),
        ([100, 100, 100], [130, 101, 130], "no difference told"),
        ([100, 60, 100], [102, 102, 102], "no difference told"),
        ([100, 100, 100], [90, 80, 96], "slower"),
        ([100, 100, 0], [110, 104, 120], "no difference told"),
    ],
)
def test_a_speed_is_judged_by_what_each_alternation_says(below: list[float], above: list[float], verdict: str) -> None:
    assert _told_in_each(below, above) == verdict


def test_one_thing_that_was_changed_is_named(config_of: Callable[..., Path], tmp_path: Path) -> None:
    for name, rate in (("low", 1e-5), ("high", 2e-2)):
        assert holdfast("train", config_of(name, train=TRAIN | {"lr": rate}), "--run", tmp_path / name).returncode == 0
    answer = asked("compare", tmp_path / "low", tmp_path / "high", code=0)
    assert {"what": "train.lr", "values": {"low": 1e-5, "high": 2e-2}} in answer["differences"]
    assert answer["likely"][0]["cause"] == "train.lr"
    assert holdfast("compare", tmp_path / "low", tmp_path / "low").returncode == 2
