"""What becomes of a key of another trainer: how it is trained, saved and measured. Pure; rules of other things stand beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.config.foreign.keys import KeyOutcome, implied, left, same, turned

Given = Mapping[str, Any]
Rule = Callable[[Any, Given], KeyOutcome]
_TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
_OBJECTIVES = {
    **dict.fromkeys(("sft", "pt", "pretrain", "train_sft"), "sft"),
    **dict.fromkeys(("dpo", "ipo", "hinge", "train_dpo"), "dpo"),
    "kto": "kto",
    "orpo": "orpo",
    "simpo": "simpo",
    **dict.fromkeys(("rm", "reward", "reward_model"), "reward"),
}


def is_true(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "yes", "1", "auto", "unsloth")


def number(value: Any) -> float:
    """Convert to a number, also where YAML has read it as a text, as 1e-4. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number")
    return float(value)


def whole(value: Any) -> int:
    found = number(value)
    if found != int(found):
        raise ValueError(f"{value} is no whole number")
    return int(found)


def plain(ours: str, kind: Callable[[Any], Any] = number) -> Rule:
    """Return the rule of a key that means the same in both."""
    return lambda value, given: same(ours, kind(value))


def switch(on: KeyOutcome, off: KeyOutcome) -> Rule:
    """Return the rule of a key that is on or off."""
    return lambda value, given: on if is_true(value) else off


def model(value: Any, given: Given) -> KeyOutcome:
    if revision := given.get("model_revision"):
        return turned("model", f"{value}@{revision}", "the name with its revision")
    return same("model", str(value))


_FACTORS = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size", "nnodes")


def batch(value: Any, given: Given) -> KeyOutcome:
    """Compute the rows of a step: micro-batch times accumulation times devices."""
    usual = given.get("_factors", {})
    factors = {name: given.get(name, usual.get(name)) for name in _FACTORS}
    told = {name: whole(factor) for name, factor in factors.items() if factor not in (None, "auto", "", "gpu") and str(factor) != "-1"}
    if value == "auto" or "per_device_train_batch_size" not in told:
        if "per_device_train_batch_size" not in told and value != "auto":
            return left("a factor of the rows of a step, whose other factor is not given", "train.effective_batch")
        return left("chosen there when it runs; train.effective_batch is the rows of a step", "train.effective_batch")
    product = 1
    for factor in told.values():
        product *= factor
    shown = " x ".join(str(factor) for factor in told.values())
    why = f"{shown} = {product} rows a step" if len(told) > 1 else "rows a step"
    if "world_size" not in told:
        why += " on one device: multiply by the number of devices it ran on"
    for name in (name for name in told if name not in given and name in usual):
        why += f"; {usual[name]} is the default of {name} there"
    if is_true(given.get("packing")):
        why += "; with packing each held several rows: multiply by its length there / mean tokens of a row (`holdfast data check`)"
    return turned("train.effective_batch", product, f"{why}; how many go through at once is the plan's")


def epochs(value: Any, given: Given) -> KeyOutcome:
    if steps_of(given):
        return left("max_steps counts, there and here", "train.steps")
    return same("train.epochs", number(value))


def steps_of(given: Given) -> int:
    try:
        return max(0, whole(given.get("max_steps") or 0))
    except (TypeError, ValueError):
        return 0


def steps(value: Any, given: Given) -> KeyOutcome:
    return same("train.steps", whole(value)) if whole(value) > 0 else implied(None, "no limit there; train.epochs counts")


def steps_an_epoch(value: Any, given: Given) -> KeyOutcome:
    total = int(whole(value) * number(given.get("num_train_epochs") or 1))
    return turned("train.steps", total, f"{value} in each epoch at most: {total} in all")


def precision(name: str) -> Rule:
    def rule(value: Any, given: Given) -> KeyOutcome:
        if str(value).lower() in ("auto", "full"):
            return same("train.precision", "auto", "by what the device is fast at")
        if is_true(value):
            return same("train.precision", name)
        return implied("train.precision", f"no {name} there; train.precision says what is used")

    return rule


def dtype(value: Any, given: Given) -> KeyOutcome:
    name = str(value).lower().removeprefix("torch.").removesuffix("_mixed")
    known = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32", "fp32": "fp32"}
    if name in ("auto", "no", ""):
        return same("train.precision", "auto")
    if name not in known:
        return left(f"{value} is not here: fp32, bf16 and fp16 are", "train.precision")
    if is_true(given.get("bf16")) or is_true(given.get("fp16")):
        return implied("train.precision", "the weights' type; bf16 and fp16 say what is computed in")
    return same("train.precision", known[name])


def attention(value: Any, given: Given) -> KeyOutcome:
    if str(value).lower() in ("eager", "disabled", "off"):
        return same("train.attention", "eager")
    if value is False:
        return implied("train.attention", "torch's fused attention is the default")
    return turned("train.attention", "sdpa", f"{value}: here packed rows go through FlashAttention wherever it is proven to give the same")


def packing(value: Any, given: Given) -> KeyOutcome:
    why = "each packed row attends to itself alone" if is_true(value) else "rows are padded in groups of like length"
    return same("train.packing", is_true(value), why)


def checkpointing(value: Any, given: Given) -> KeyOutcome:
    return implied("train.checkpointed_layers", "the plan checkpoints as many layers as memory asks for; no result depends on it")


def noise(value: Any, given: Given) -> KeyOutcome:
    return same("train.neftune", number(value)) if number(value) else implied("train.neftune", "none there, none here")


def seed(value: Any, given: Given) -> KeyOutcome:
    return same("train.seed", whole(value), "the same number; the order of rows is holdfast's own")


def objective(value: Any, given: Given) -> KeyOutcome:
    name = str(value).rpartition(".")[2].lower()
    if name in ("causal_lm", "train", "text"):
        return implied("train.objective", "answers are learned")
    if name not in _OBJECTIVES:
        return left(f"there is no objective {value} here", "train.objective")
    ours = _OBJECTIVES[name]
    if ours == "dpo" and given.get("_objective", ours) in ("orpo", "simpo", "kto"):
        return implied("train.objective", f"its loss is that of {given['_objective']}, an objective of its own here")
    if name == "ipo":
        return KeyOutcome("changed", "dpo with the loss ipo", "train.objective", {"train.objective": "dpo", "preference.loss": "ipo"})
    if name in ("pt", "pretrain"):
        return KeyOutcome(
            "changed", "all tokens of a row are learned", "train.objective", {"train.objective": "sft", "data.train_on": "all"}
        )
    return same("train.objective", ours)


def scalar_head(value: Any, given: Given) -> KeyOutcome:
    if given.get("_program") == "Axolotl" and value is True:
        return same("train.objective", "reward")
    return left("no training by rewards of generated answers is here", "train.objective")


def loss_type(value: Any, given: Given) -> KeyOutcome:
    name = str(value[0] if isinstance(value, list) and len(value) == 1 else value).lower()
    if name in ("sigmoid", "ipo", "hinge"):
        return same("preference.loss", name) if given.get("_objective") == "dpo" else implied("preference.loss", "for dpo alone")
    if name in ("orpo", "simpo", "kto_pair", "kto"):
        return turned("train.objective", name.removesuffix("_pair"), "an objective of its own here")
    if name in ("nll", "chunked_nll", "dft"):
        return implied(None, "cross-entropy, a chunk of logits at a time") if name != "dft" else left("dft is not here")
    return left(f"there is no loss {value} here", "preference.loss")


def beta(value: Any, given: Given) -> KeyOutcome:
    if given.get("_objective", "sft") in ("sft", "reward"):
        return left("it belongs to an objective that holds answers against each other", "preference.beta")
    return same("preference.beta", number(value))


def of_objective(ours: str, *objectives: str) -> Rule:
    def rule(value: Any, given: Given) -> KeyOutcome:
        if given.get("_objective", "sft") not in objectives:
            return left(f"for {', '.join(objectives)} alone", ours)
        return same(ours, number(value))

    return rule


def save_every(value: Any, given: Given) -> KeyOutcome:
    amount = number(value)
    if amount < 1:
        return implied("save.every", "a share of all steps there; here chosen from how long saving takes")
    return same("save.every", whole(value), "steps; each step is in a memory snapshot, too")


def evaluate_every(value: Any, given: Given) -> KeyOutcome:
    if number(value) < 1:
        return left("a share of all steps there; evaluate.every counts steps", "evaluate.every")
    return same("evaluate.every", whole(value))


def evaluate_when(value: Any, given: Given) -> KeyOutcome:
    if str(value).lower() in ("no", "false"):
        return implied("evaluate.every", "not on the way; base and tuned are compared at the end")
    if str(value).lower() == "steps" and given.get("eval_steps"):
        return implied("evaluate.every", "eval_steps says how often")
    return left("evaluate.every counts steps: steps of an epoch are rows / train.effective_batch", "evaluate.every")


def patience(value: Any, given: Given) -> KeyOutcome:
    if not given.get("eval_steps"):
        return left("it needs evaluate.every, the steps between evaluations", "evaluate.patience")
    return same("evaluate.patience", whole(value))


def name_of(value: Any, given: Given) -> KeyOutcome:
    parts = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-._") for part in re.split(r"[/\\]", str(value))]
    name = next((part for part in reversed(parts) if part), "")
    if not name or "$" in str(value) or "{" in str(value):
        return implied("run.name", "the run is called as the config file is")
    return turned("run.name", name, f"the run's folder is runs/{name}, wherever holdfast is started")


def trackers(value: Any, given: Given) -> KeyOutcome:
    names = value if isinstance(value, list) else str(value).split(",")
    known = [str(name).strip() for name in names if str(name).strip() in _TRACKERS]
    if known:
        return same("run.track", known)
    if str(value).lower() in ("none", "all", "[]", "false"):
        return implied("run.track", "none: each step is in steps.jsonl and report.html")
    return left(f"{value} is not here: {', '.join(_TRACKERS)} are", "run.track")


RULES: dict[str, Rule] = {
    "model_name_or_path": model,
    "model_revision": lambda value, given: turned("model", f"{given.get('model_name_or_path')}@{value}", "behind the model's name"),
    "per_device_train_batch_size": batch,
    "gradient_accumulation_steps": batch,
    "world_size": batch,
    "nnodes": batch,
    "batch_size_all": lambda value, given: left("micro_batch_size and gradient_accumulation_steps count", "train.effective_batch"),
    "num_train_epochs": epochs,
    "max_steps": steps,
    "max_steps_per_epoch": steps_an_epoch,
    "seed": seed,
    "bf16": precision("bf16"),
    "pure_bf16": precision("bf16"),
    "fp16": precision("fp16"),
    "dtype": dtype,
    "attn_implementation": attention,
    "packing": packing,
    "gradient_checkpointing": checkpointing,
    "use_liger_kernel": switch(same("train.liger", True, "once proven to give the model's own results"), implied("train.liger", "off")),
    "neftune_noise_alpha": noise,
    "objective": objective,
    "reward_model": scalar_head,
    "loss_type": loss_type,
    "beta": beta,
    "simpo_gamma": of_objective("preference.margin", "simpo"),
    "desirable_weight": of_objective("preference.desirable_weight", "kto"),
    "undesirable_weight": of_objective("preference.undesirable_weight", "kto"),
    "label_smoothing": of_objective("preference.label_smoothing", "dpo", "simpo", "reward"),
    "sft_weight": of_objective("preference.sft_weight", "dpo", "simpo"),
    "cpo_alpha": of_objective("preference.sft_weight", "simpo"),
    "max_length": plain("train.max_tokens", whole),
    "save_steps": save_every,
    "save_total_limit": plain("save.keep", whole),
    "eval_steps": evaluate_every,
    "eval_strategy": evaluate_when,
    "early_stopping_patience": patience,
    "load_best_model_at_end": switch(
        same("evaluate.keep_best", True, "by the held-out loss"), same("evaluate.keep_best", False, "the last state is the result")
    ),
    "eval_max_new_tokens": plain("evaluate.max_new_tokens", whole),
    "output_dir": name_of,
    "run_name": name_of,
    "report_to": trackers,
    "wandb_project": lambda value, given: turned("run.track", ["wandb"], f"tracked; set WANDB_PROJECT={value} in the environment"),
    "use_tensorboard": switch(turned("run.track", ["tensorboard"], "tracked"), implied("run.track", "off")),
}
