"""What becomes of a key of another trainer: how it is trained, saved and measured. Pure; rules.py of rows and adapters stand beside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.config.foreign.keys import KeyOutcome, implied, left, same, turned

Given = Mapping[str, Any]
Rule = Callable[[Any, Given], KeyOutcome]
_SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
_OPTIMIZERS = {
    "adamw": "adamw adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw_torch_npu_fused torch.optim.AdamW",
    "adamw8bit": "adamw_8bit adamw_bnb_8bit adamw8bit bitsandbytes.optim.AdamW8bit",
    "paged": "paged_adamw_8bit bitsandbytes.optim.PagedAdamW8bit",
    "lion": "lion lion_pytorch",
    "adafactor": "adafactor",
    "sgd": "sgd torch.optim.SGD",
    "schedule_free": "schedule_free_adamw adamw_schedulefree",
    "muon": "muon",
}
_OPTIMIZER = {theirs.lower(): ours for ours, names in _OPTIMIZERS.items() for theirs in names.split()}
_NEAR = {"paged_adamw_32bit": "adamw", "paged_adamw": "adamw", "lion_8bit": "lion", "paged_lion_8bit": "lion", "paged_lion_32bit": "lion"}
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


def batch(value: Any, given: Given) -> KeyOutcome:
    """Compute the rows of a step: micro-batch times accumulation times devices."""
    factors = {name: given.get(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")}
    told = {name: whole(factor) for name, factor in factors.items() if factor not in (None, "auto", "", "gpu") and str(factor) != "-1"}
    if value == "auto" or "per_device_train_batch_size" not in told:
        if "per_device_train_batch_size" not in told and value != "auto":
            return left("a factor of the rows of a step, whose other factor is not given", "train.effective_batch")
        return left("chosen there when it runs; train.effective_batch is the rows of a step", "train.effective_batch")
    product = 1
    for factor in told.values():
        product *= factor
    shown = " x ".join(str(factor) for factor in told.values())
    why = f"{shown} = {product} rows a step" if len(told) > 1 else "rows a step, on one device"
    if given.get("packing") is True and given.get("_program") == "Axolotl":
        why += "; with sample_packing each held several rows: multiply by sequence_len / mean tokens of a row (`holdfast data check`)"
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
    return turned("train.steps", total, f"{value} in each epoch: {total} in all")


def schedule(value: Any, given: Given) -> KeyOutcome:
    name = str(value).rpartition(".")[2].removeprefix("get_").removesuffix("_schedule_with_warmup")
    if name in _SCHEDULES:
        return same("train.schedule", _SCHEDULES[name])
    return turned("train.schedule", "cosine", f"{value} is not here; cosine, linear and constant are")


def _constant(given: Given) -> bool:
    """Return whether the learning rate is transformers' `constant`, which has no warm-up; `constant_with_warmup` has one."""
    return str(given.get("lr_scheduler_type")).rpartition(".")[2].lower() == "constant"


def _no_warmup(value: Any) -> KeyOutcome:
    return turned("train.warmup", 0.0, f"{value} counts for nothing beside the schedule constant there; constant_with_warmup has a warm-up")


def warmup(value: Any, given: Given) -> KeyOutcome:
    if number(value) and _constant(given):
        return _no_warmup(value)
    if given.get("warmup_steps") and not given.get("_steps_told"):
        return left("warmup_steps counts, there and here", "train.warmup")
    return same("train.warmup", min(number(value), 0.999), "a share of all steps")


def warmup_steps(value: Any, given: Given) -> KeyOutcome:
    amount = number(value)
    if amount and _constant(given):
        return _no_warmup(value)
    if amount == 0 and given.get("warmup_ratio"):
        return left("0: warmup_ratio counts", "train.warmup")
    return same("train.warmup", amount, "steps" if amount >= 1 else "a share of all steps")


def weight_decay(value: Any, given: Given) -> KeyOutcome:
    if number(value) == 0 or given.get("_program") == "torchtune":  # which leaves nothing out either
        return same("train.weight_decay", number(value))
    why = "off every trained weight; a Trainer leaves norms and biases out, which only full and layers train here"
    return same("train.weight_decay", number(value), why)


def optimizer(value: Any, given: Given) -> KeyOutcome:
    name = str(value).lower()
    if name in _OPTIMIZER:
        return same("train.optimizer", _OPTIMIZER[name], f"{value} is {_OPTIMIZER[name]} here")
    if name in _NEAR:
        return turned("train.optimizer", _NEAR[name], f"{value} is not here; the same update with ordinary moments")
    return turned("train.optimizer", "adamw", f"{value} is not here; adamw")


def clip(value: Any, given: Given) -> KeyOutcome:
    if number(value) <= 0:
        return turned("train.max_grad_norm", 1e6, "no clipping there; here a norm that no gradient reaches")
    return same("train.max_grad_norm", number(value))


def betas(value: Any, given: Given) -> KeyOutcome:
    first, second = (number(one) for one in value)
    return KeyOutcome("carried", "both", "train.beta1", {"train.beta1": first, "train.beta2": second})


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
    if name == "ipo":
        return KeyOutcome("changed", "dpo with the loss ipo", "train.objective", {"train.objective": "dpo", "preference.loss": "ipo"})
    if name in ("pt", "pretrain"):
        return KeyOutcome(
            "changed", "all tokens of a row are learned", "train.objective", {"train.objective": "sft", "data.train_on": "all"}
        )
    return same("train.objective", ours)


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
    "batch_size_all": lambda value, given: left("micro_batch_size and gradient_accumulation_steps count", "train.effective_batch"),
    "num_train_epochs": epochs,
    "max_steps": steps,
    "max_steps_per_epoch": steps_an_epoch,
    "learning_rate": plain("train.lr"),
    "lr_scheduler_type": schedule,
    "warmup_ratio": warmup,
    "warmup_steps": warmup_steps,
    "weight_decay": weight_decay,
    "adam_beta1": plain("train.beta1"),
    "adam_beta2": plain("train.beta2"),
    "adam_epsilon": plain("train.epsilon"),
    "adam_betas": betas,
    "max_grad_norm": clip,
    "optim": optimizer,
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
    "loss_type": loss_type,
    "beta": beta,
    "simpo_gamma": of_objective("preference.margin", "simpo"),
    "desirable_weight": of_objective("preference.desirable_weight", "kto"),
    "undesirable_weight": of_objective("preference.undesirable_weight", "kto"),
    "label_smoothing": of_objective("preference.label_smoothing", "dpo", "simpo", "reward"),
    "sft_weight": of_objective("preference.sft_weight", "dpo", "simpo"),
    "max_length": plain("train.max_tokens", whole),
    "save_steps": save_every,
    "save_total_limit": plain("save.keep", whole),
    "eval_steps": evaluate_every,
    "eval_strategy": evaluate_when,
    "early_stopping_patience": patience,
    "eval_max_new_tokens": plain("evaluate.max_new_tokens", whole),
    "output_dir": name_of,
    "run_name": name_of,
    "report_to": trackers,
    "wandb_project": lambda value, given: turned("run.track", ["wandb"], f"tracked; set WANDB_PROJECT={value} in the environment"),
    "use_tensorboard": switch(turned("run.track", ["tensorboard"], "tracked"), implied("run.track", "off")),
}
