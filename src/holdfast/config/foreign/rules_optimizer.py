"""What becomes of keys of another trainer that say how far a step goes: rate, schedule, optimizer, clipping. Pure."""

from __future__ import annotations

import re
from typing import Any

from holdfast.config.foreign.keys import KeyOutcome, left, same, turned
from holdfast.config.foreign.rules import Given, Rule, number, plain

_SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
_OPTIMIZERS = {
    "adamw": "adamw adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw_torch_npu_fused torch.optim.AdamW",
    "adamw8bit": "adamw_8bit adamw_bnb_8bit adamw8bit bitsandbytes.optim.AdamW8bit",
    "paged": "paged_adamw_8bit bitsandbytes.optim.PagedAdamW8bit",
    "lion": "lion lion_pytorch",
    "adafactor": "torch.optim.Adafactor",
    "sgd": "sgd torch.optim.SGD",
    "schedule_free": "schedule_free_adamw adamw_schedulefree",
    "muon": "muon",
}
_OPTIMIZER = {theirs.lower(): ours for ours, names in _OPTIMIZERS.items() for theirs in names.split()}
_NOT_OURS = "adafactor"  # of transformers, whose rate is no share of a weight's size
_NEAR = {"paged_adamw_32bit": "adamw", "paged_adamw": "adamw", "lion_8bit": "lion", "paged_lion_8bit": "lion", "paged_lion_32bit": "lion"}


def schedule(value: Any, given: Given) -> KeyOutcome:
    name = str(value).rpartition(".")[2].removeprefix("get_").removesuffix("_schedule_with_warmup")
    if name in _SCHEDULES:
        return same("train.schedule", _SCHEDULES[name])
    return turned("train.schedule", "cosine", f"{value} is not here; cosine, linear and constant are")


def is_constant(given: Given) -> bool:
    """Return whether the learning rate is transformers' `constant`, which has no warm-up; `constant_with_warmup` has one."""
    return str(given.get("lr_scheduler_type")).rpartition(".")[2].lower() == "constant"


def _no_warmup(value: Any) -> KeyOutcome:
    return turned("train.warmup", 0.0, f"{value} counts for nothing beside the schedule constant there; constant_with_warmup has a warm-up")


def warmup(value: Any, given: Given) -> KeyOutcome:
    if number(value) and is_constant(given):
        return _no_warmup(value)
    if given.get("warmup_steps") and not given.get("_steps_told"):
        return left("warmup_steps counts, there and here", "train.warmup")
    return same("train.warmup", min(number(value), 0.999), "a share of all steps")


def warmup_steps(value: Any, given: Given) -> KeyOutcome:
    amount = number(value)
    if amount and is_constant(given):
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
    if _OPTIMIZER.get(name) == "sgd":
        momentum = _momentum(given)
        sets = {"train.optimizer": "sgd", "train.beta1": momentum}
        return KeyOutcome("carried", f"its momentum, {momentum:g} there, is train.beta1", "train.optimizer", sets)
    if name == _NOT_OURS:
        why = "adafactor there takes its rate as it is, adafactor here as a share of each weight's size; adamw moves about as far"
        return turned("train.optimizer", "adamw", f"{why}, adamw8bit in less memory")
    if name in _OPTIMIZER:
        return same("train.optimizer", _OPTIMIZER[name], f"{value} is {_OPTIMIZER[name]} here")
    if name in _NEAR:
        return turned("train.optimizer", _NEAR[name], f"{value} is not here; the same update with ordinary moments")
    return turned("train.optimizer", "adamw", f"{value} is not here; adamw")


def _momentum(given: Given) -> float:
    """Return the momentum of SGD there, which has none unless told."""
    in_text = re.search(r"momentum\s*=\s*([\d.]+)", str(given.get("optim_args", "")))
    return number(in_text[1] if in_text else given.get("sgd_momentum") or 0.0)


def first_beta(value: Any, given: Given) -> KeyOutcome:
    if _OPTIMIZER.get(str(given.get("optim")).lower()) == "sgd":
        return left("sgd there takes nothing of it", "train.beta1")
    return same("train.beta1", number(value))


def clip(value: Any, given: Given) -> KeyOutcome:
    if number(value) <= 0:
        return turned("train.max_grad_norm", 1e6, "no clipping there; here a norm that no gradient reaches")
    return same("train.max_grad_norm", number(value))


def betas(value: Any, given: Given) -> KeyOutcome:
    first, second = (number(one) for one in value)
    return KeyOutcome("carried", "both", "train.beta1", {"train.beta1": first, "train.beta2": second})


RULES: dict[str, Rule] = {
    "learning_rate": plain("train.lr"),
    "lr_scheduler_type": schedule,
    "warmup_ratio": warmup,
    "warmup_steps": warmup_steps,
    "weight_decay": weight_decay,
    "adam_beta1": first_beta,
    "sgd_momentum": plain("train.beta1"),
    "adam_beta2": plain("train.beta2"),
    "adam_epsilon": plain("train.epsilon"),
    "adam_betas": betas,
    "max_grad_norm": clip,
    "optim": optimizer,
}
