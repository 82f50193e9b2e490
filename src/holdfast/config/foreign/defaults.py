"""What other trainers do where their file says nothing, and holdfast would do otherwise: their defaults. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config.adapter_kinds import KINDS
from holdfast.config.foreign.keys import ForeignConfig

Default = tuple[Any, str]
BY_ROWS = "TRL learns whole conversations unless told; for rows of prompt and completion write assistant"
DEFAULTS: dict[str, dict[str, Default]] = {
    "transformers": {
        "train.lr": (5e-5, "the Trainer's default"),
        "train.effective_batch": (8, "the Trainer's default: 8 a device"),
        "train.epochs": (3.0, "the Trainer's default"),
        "train.schedule": ("linear", "the Trainer's default"),
        "train.warmup": (0.0, "the Trainer's default: none"),
        "train.seed": (42, "the Trainer's default"),
        "train.max_tokens": (1024, "the script cuts rows itself, if at all"),
        "data.held_out": (0.0, "the script trains on every row it is given; 0.05 would keep some to measure by"),
        "data.train_on": ("all", "a plain Trainer learns every token it is given as a label"),
    },
    "LLaMA-Factory": {
        "train.lr": (5e-5, "LLaMA-Factory's default"),
        "train.effective_batch": (8, "LLaMA-Factory's default: 8 a device"),
        "train.epochs": (3.0, "LLaMA-Factory's default"),
        "train.schedule": ("linear", "LLaMA-Factory's default"),
        "train.warmup": (0.0, "LLaMA-Factory's default: none"),
        "train.seed": (42, "LLaMA-Factory's default"),
        "train.max_tokens": (2048, "LLaMA-Factory's default"),
        "data.held_out": (0.0, "LLaMA-Factory trains on every row unless told; 0.05 would keep some to measure by"),
    },
    "Axolotl": {
        "train.effective_batch": (1, "Axolotl's default: 1 a device"),
        "train.seed": (42, "Axolotl's default"),
        "data.held_out": (0.0, "Axolotl trains on every row unless told; 0.05 would keep some to measure by"),
        "data.too_long": ("reject", "Axolotl drops rows that are longer"),
    },
    "ms-swift": {
        "train.lr": (1e-4, "ms-swift's default"),
        "train.epochs": (3.0, "ms-swift's default"),
        "train.effective_batch": (16, "ms-swift accumulates until a step has 16 rows"),
        "train.weight_decay": (0.1, "ms-swift's default"),
        "train.beta2": (0.95, "ms-swift's default"),
        "train.warmup": (0.0, "ms-swift's default: none"),
        "train.seed": (42, "ms-swift's default"),
        "data.held_out": (0.0, "ms-swift trains on every row unless told, before 3.6 on 99 of 100; 0.05 would keep some to measure by"),
        "data.too_long": ("reject", "ms-swift drops rows that are longer"),
    },
    "torchtune": {
        "train.warmup": (0.0, "torchtune has none unless told"),
        "train.schedule": ("constant", "torchtune has none unless told"),
        "data.held_out": (0.0, "torchtune trains on every row; 0.05 would keep some to measure by"),
        "train.max_grad_norm": (1e6, "torchtune clips no gradients unless told: no norm gets there"),
    },
    "Soup": {
        "train.lr": (2e-5, "Soup's default"),
        "train.effective_batch": (16, "Soup's default: 4 x 4, its size where the batch is auto"),
        "train.epochs": (3.0, "Soup's default"),
        "train.weight_decay": (0.01, "Soup's default"),
        "train.max_tokens": (2048, "Soup's default"),
        "data.held_out": (0.1, "Soup's default"),
    },
}
DEFAULTS["TRL"] = DEFAULTS["transformers"] | {
    "train.lr": (2e-5, "TRL's default for SFT"),
    "train.max_tokens": (1024, "TRL's default"),
    "data.train_on": ("all", BY_ROWS),
}
DEFAULTS["Unsloth"] = DEFAULTS["TRL"] | {"train.max_tokens": (2048, "Unsloth's default")}
UNCUT = "rows stay uncut there, whatever their length"
_TRL_LR = {"dpo": 1e-6, "kto": 1e-6, "orpo": 1e-6, "simpo": 1e-6, "reward": 1e-4}
_BY_UNSLOTH = {  # what it puts in the place of the defaults of TRL's own classes of arguments
    "train.lr": (5e-5, "Unsloth's default"),
    "train.effective_batch": (8, "Unsloth's default: 4 a device, two of them a step"),
    "train.warmup": (0.1, "Unsloth's default"),
    "train.weight_decay": (0.001, "Unsloth's default; older ones have 0.01"),
    "train.seed": (3407, "Unsloth's default"),
    "train.optimizer": ("adamw8bit", "Unsloth's default"),
}
_PLAIN_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments")
_A_DEVICE = {"transformers": 8, "TRL": 8, "Unsloth": 8, "LLaMA-Factory": 8, "Axolotl": 1, "ms-swift": 1}
_ROWS_OF_SWIFT = 16  # that it accumulates at least, unless told how often
_BEST_IS_LAST = ("transformers", "TRL", "Unsloth", "LLaMA-Factory", "Axolotl", "torchtune", "ms-swift")
_NESTED = ("Axolotl", "LLaMA-Factory", "Unsloth", "ms-swift")  # whose scales of 4 bits are quantised unless told
_DECAYING = re.compile(r"adamw(8bit|4bit|fp8)?$", re.IGNORECASE)  # of torch's, bitsandbytes' and torchao's optimizers
_MODULES = (  # that PEFT takes where none are named, by a word in the model's name
    (("gpt2", "gpt-2", "starcoder", "santacoder", "gpt_bigcode"), ["c_attn"]),
    (("bloom", "pythia", "gpt-neox", "gpt_neox", "falcon", "chatglm"), ["query_key_value"]),
    (("mpt-",), ["Wqkv"]),
)
_OF_PEFT = {"adapter.r": 8, "adapter.alpha": 8.0, "adapter.dropout": 0.0}
_OF_TRL = {"adapter.r": 16, "adapter.alpha": 32.0, "adapter.dropout": 0.05}
_OF_UNSLOTH = {"adapter.r": 16, "adapter.alpha": 16.0, "adapter.dropout": 0.0}
_OF_SWIFT = {"adapter.r": 8, "adapter.alpha": 32.0, "adapter.dropout": 0.05}
_OF_ADALORA = {"adapter.r": 12, "adapter.target_r": 8, "adapter.alpha": 8.0, "adapter.dropout": 0.0}


def batch_factors(source: ForeignConfig) -> dict[str, int]:
    """Return the factors of the rows of a step where a file gives only others of them."""
    if _is_patched(source):
        return {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    if source.program == "ms-swift":
        factors = ("per_device_train_batch_size", "nproc_per_node", "NPROC_PER_NODE")
        rows = math.prod(key.value for key in source.keys if key.theirs in factors and type(key.value) is int)
        return {"per_device_train_batch_size": 1, "gradient_accumulation_steps": math.ceil(_ROWS_OF_SWIFT / max(1, rows))}
    return {"per_device_train_batch_size": _A_DEVICE[source.program]} if source.program in _A_DEVICE else {}


def modules_of_peft(model: str) -> list[str]:
    """Return the modules that PEFT adapts where none are named; of a model that is called so."""
    return next((modules for words, modules in _MODULES if any(word in model.lower() for word in words)), ["q_proj", "v_proj"])


def defaults_of(source: ForeignConfig, given: Mapping[str, Any], tree: Mapping[str, Any], objective: str) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and reason of what theirs does where neither its file nor what was made of it (tree) says otherwise."""
    found = dict(DEFAULTS.get(source.program, {}))
    if source.program in ("TRL", "Unsloth") and objective in _TRL_LR:
        found["train.lr"] = (_TRL_LR[objective], f"TRL's default for {objective}")
    if _is_patched(source):
        found |= _BY_UNSLOTH
    if source.program == "ms-swift" and given["_full"]:
        found["train.lr"] = (1e-5, "ms-swift's default where all weights are trained")
    if source.program in ("torchtune", "ms-swift") or (given["_uncut"] and source.program in ("TRL", "Unsloth")):
        found["train.max_tokens"] = (2048, UNCUT)
    if given.get("_constant") and "train.warmup" not in found:
        found["train.warmup"] = (0.0, "the schedule constant there has no warm-up")
    found |= _of_objective(source, given, objective) | _of_optimizer(source, given) | _of_evaluation(source, given, tree)
    found |= _of_adapter(source, given, tree) | _of_bits(source, given, tree)
    for path, (value, why) in found.items():
        if (path == "train.epochs" and "train.steps" in tree) or (path == "data.train_on" and objective != "sft"):
            continue
        if path == "data.held_out" and "data.held_out_files" in tree:
            continue
        if path not in tree:
            yield path, value, why


def _is_patched(source: ForeignConfig) -> bool:
    """Return whether its arguments are of TRL's classes, whose defaults Unsloth has changed; those of transformers keep theirs."""
    return source.program == "Unsloth" and not any(key.where.startswith(_PLAIN_ARGUMENTS) for key in source.keys)


def _of_objective(source: ForeignConfig, given: Mapping[str, Any], objective: str) -> dict[str, Default]:
    if objective != "simpo" or source.program == "Soup":
        return {}
    found: dict[str, Default] = {"preference.beta": (0.1, f"{source.program}'s default")}
    if source.program == "ms-swift":
        of_simpo = {"preference.beta": (2.0, "ms-swift's default of rlhf_type simpo")} if given.get("objective") == "simpo" else {}
        found |= {"preference.margin": (1.0, "ms-swift's default of simpo_gamma")} | of_simpo
    if source.program != "LLaMA-Factory":
        found["preference.sft_weight"] = (1.0, "TRL's default of cpo_alpha; 0 is SimPO alone")
    return found


def _of_optimizer(source: ForeignConfig, given: Mapping[str, Any]) -> dict[str, Default]:
    if source.program != "torchtune" or not _DECAYING.search(str(given.get("optim", ""))):
        return {}
    return {"train.weight_decay": (0.01, f"the default of {given['optim']}"), "train.lr": (1e-3, f"the default of {given['optim']}")}


def _of_evaluation(source: ForeignConfig, given: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Default]:
    if "evaluate.every" not in tree or source.program not in _BEST_IS_LAST:
        return {}
    every, saved = tree["evaluate.every"], tree.get("save.every")
    if source.program == "Axolotl" and saved and saved % every == 0:
        return {"evaluate.keep_best": (True, "Axolotl's default where save_steps is a multiple of eval_steps")}
    return {"evaluate.keep_best": (False, f"{source.program} ends with the last state unless told; true takes the best one")}


def _of_adapter(source: ForeignConfig, given: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Default]:
    """Return what an adapter is like where its file names it and not all of it."""
    if given["_full"] or "adapter.start" in tree:
        return {}
    kind = str(tree.get("adapter.type", "lora"))
    values: dict[str, Any]
    if source.program == "Unsloth":
        values, whose = _OF_UNSLOTH, "Unsloth's default"
    elif source.program == "ms-swift":
        values, whose = _OF_SWIFT, "ms-swift's default"
    elif source.program == "TRL" and source.kind != "script":
        values, whose = _OF_TRL, "TRL's default"
    elif source.kind == "script":
        values, whose = _OF_ADALORA if kind == "adalora" else _OF_PEFT, "PEFT's default"
    else:
        values, whose = {}, ""
    found: dict[str, Default] = {path: (value, whose) for path, value in values.items() if path.rpartition(".")[2] in KINDS[kind].keys}
    if (
        values
        and source.program not in ("Unsloth", "ms-swift")
        and kind not in ("prompt", "ia3")
        and "target_modules" not in given["_named"]
    ):
        why = "PEFT's choice for such a model where none are named; all-linear takes every linear layer"
        found["adapter.targets"] = (modules_of_peft(str(tree.get("model", ""))), why)
    return found


def _of_bits(source: ForeignConfig, given: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Default]:
    """Return how frozen weights are held where nothing is said of it."""
    found: dict[str, Default] = {}
    held = tree.get("train.frozen")
    asked = {"load_in_4bit", "load_in_8bit", "load_in_16bit", "full_finetuning"} & given["_named"]
    if source.program == "Unsloth" and not given["_full"] and held is None and not asked:
        held, why = "nf4", "Unsloth's default: load_in_4bit is on unless told"
        found["train.frozen"] = (held, why)
    if held in ("nf4", "fp4") and source.program in _NESTED and "double_quant" not in given["_named"]:
        found["train.double_quant"] = (True, f"{source.program}'s default")
    return found
