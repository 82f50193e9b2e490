"""What becomes of keys of another trainer that say what is trained: adapter, its layers, the frozen weights. Pure."""

from __future__ import annotations

import re
from typing import Any

from holdfast.config.foreign.keys import KeyOutcome, implied, left, same, turned
from holdfast.config.foreign.rules import Given, Rule, is_true, number, plain, switch, whole

_KINDS = {"lora": "lora", "qlora": "lora", "dora": "dora", "full": "full", "none": "full", "adalora": "adalora", "ia3": "ia3"}
_KINDS["prompt_tuning"] = "prompt"
_MLP = ["gate_proj", "up_proj", "down_proj"]
_IN_TORCHTUNE = {"output_proj": "o_proj"}


def kind(value: Any, given: Given) -> KeyOutcome:
    name = str(value).lower()
    if name == "freeze":
        count = whole(given.get("freeze_trainable_layers") or 2)
        first = rf".*\.(layers|h|blocks)\.({'|'.join(map(str, range(-count)))})\..*"
        sets = {"adapter.type": "layers", "adapter.layers": count if count > 0 else first}
        return KeyOutcome("changed", f"the {'last' if count > 0 else 'first'} {abs(count)} layers are trained", "adapter.type", sets)
    if name not in _KINDS:
        return turned("adapter.type", "lora", f"{value} is not here; LoRA of the same rank")
    if name == "qlora":
        sets = {"adapter.type": "lora", "train.frozen": "nf4"}
        return KeyOutcome("changed", "LoRA beside weights held in nf4", "adapter.type", sets)
    return same("adapter.type", _KINDS[name])


def rank(value: Any, given: Given) -> KeyOutcome:
    if str(given.get("adapter_kind")).lower() == "adalora":
        return left("AdaLoRA begins with init_r", "adapter.r")
    return same("adapter.r", whole(value))


def targets(value: Any, given: Given) -> KeyOutcome:
    if given.get("target_regex"):  # of ms-swift, which then reads no names
        return implied("adapter.targets", "target_regex names them")
    if given.get("_program") == "Axolotl" and is_true(given.get("lora_target_linear")):
        return left("lora_target_linear takes all linear layers", "adapter.targets")
    if isinstance(value, str) and value.lower().replace("_", "-") in ("all", "all-linear", "auto"):
        return same("adapter.targets", "all-linear", "all linear layers")
    if isinstance(value, str) and re.search(r"[\\*+(|\[^$]", value):
        return same("adapter.targets", value, "a pattern for a module's whole name, as PEFT takes it")
    names = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())
    names = [str(name) for name in names if name]
    return same("adapter.targets", "all-linear" if names == ["all-linear"] else names)


def attention_layers(value: Any, given: Given) -> KeyOutcome:
    names = [_IN_TORCHTUNE.get(str(name), str(name)) for name in value]
    names += _MLP if is_true(given.get("apply_lora_to_mlp")) else []
    names += ["lm_head"] if is_true(given.get("apply_lora_to_output")) else []
    return turned("adapter.targets", names, "under Hugging Face's names")


def part_of_targets(value: Any, given: Given) -> KeyOutcome:
    if "lora_attn_modules" not in given:
        return left("lora_attn_modules is missing beside it", "adapter.targets")
    return attention_layers(given["lora_attn_modules"], given)


def begin(value: Any, given: Given) -> KeyOutcome:
    name = str(value).lower()
    if name in ("true", "random", "default"):
        return same("adapter.init", "default")
    if name.startswith("pissa"):
        return turned("adapter.init", "pissa", "PiSSA") if name != "pissa" else same("adapter.init", "pissa")
    if name in ("olora", "gaussian", "orthogonal"):
        return same("adapter.init", name)
    return left(f"{value} is not here: default, gaussian, orthogonal, pissa and olora are", "adapter.init")


def bias(value: Any, given: Given) -> KeyOutcome:
    if str(value).lower() == "none":
        return implied(None, "no bias is trained, there and here")
    return left("biases are never trained beside an adapter here")


def modules(value: Any, given: Given) -> KeyOutcome:
    names = value if isinstance(value, list) else str(value).split(",")
    return same("adapter.modules_to_save", [str(name).strip() for name in names])


def in_bits(bits: int) -> Rule:
    def rule(value: Any, given: Given) -> KeyOutcome:
        if not is_true(value):
            return implied("train.frozen", f"not in {bits} bits")
        if given.get("_full"):
            return left("all weights are trained, and trained weights are not quantised", "train.frozen")
        return frozen_in(bits, given)

    return rule


def frozen_in(bits: int, given: Given) -> KeyOutcome:
    if bits == 4 and str(given.get("bnb_4bit_quant_type", "nf4")).lower() == "fp4":
        return same("train.frozen", "fp4")
    if bits == 4 and given.get("_by_transformers") and "bnb_4bit_quant_type" not in given["_named"]:
        return turned("train.frozen", "fp4", "transformers' default of bnb_4bit_quant_type; nf4 is usual")
    return turned("train.frozen", "nf4" if bits == 4 else "int8", "the frozen weights, by bitsandbytes")


def quantisation_bit(value: Any, given: Given) -> KeyOutcome:
    if whole(value) in (4, 8):
        return frozen_in(whole(value), given)
    return left(f"{value} bits are not here: 4 (nf4, fp4) and 8 (int8) are", "train.frozen")


def quantisation(value: Any, given: Given) -> KeyOutcome:
    name = str(value).lower()
    if name in ("4bit", "8bit", "true"):
        return frozen_in(8 if name == "8bit" else 4, given)
    if name in ("none", "false", "16bit"):
        return implied("train.frozen", "weights as in their file")
    return left(f"{value} is not here: 4bit and 8bit are", "train.frozen")


def quant_type(value: Any, given: Given) -> KeyOutcome:
    if str(value).lower() in ("nf4", "fp4") and (is_true(given.get("load_in_4bit")) or given.get("quantization_bit") == 4):
        return same("train.frozen", str(value).lower())
    return left("bitsandbytes' nf4, fp4 and int8 are here", "train.frozen")


def double(value: Any, given: Given) -> KeyOutcome:
    if not is_true(value):
        return implied("train.double_quant", "off")
    if not given.get("_four_bits"):
        return left("for weights in 4 bits alone", "train.double_quant")
    return same("train.double_quant", True)


def _of_adapter(rule: Rule) -> Rule:
    """Wrap the rule of a key that means nothing where all weights are trained."""
    return lambda value, given: left("all weights are trained, there is no adapter") if given.get("_full") else rule(value, given)


_FULL = switch(same("adapter.type", "full"), implied("adapter.type", "an adapter"))
RULES: dict[str, Rule] = {
    "adapter_kind": kind,
    "use_peft": switch(same("adapter.type", "lora"), same("adapter.type", "full", "all weights are trained")),
    "freeze_trainable_layers": lambda value, given: implied("adapter.layers", "with finetuning_type: freeze"),
    "full_finetuning": _FULL,
    "full_finetune": _FULL,
    "use_dora": _of_adapter(switch(same("adapter.type", "dora"), implied("adapter.type", "no dora"))),
    "use_rslora": _of_adapter(switch(same("adapter.type", "rslora"), implied("adapter.type", "no rslora"))),
    "lora_r": _of_adapter(rank),
    "init_r": _of_adapter(plain("adapter.r", whole)),
    "target_r": _of_adapter(plain("adapter.target_r", whole)),
    "num_virtual_tokens": _of_adapter(plain("adapter.virtual_tokens", whole)),
    "lora_alpha": _of_adapter(plain("adapter.alpha")),
    "lora_dropout": _of_adapter(plain("adapter.dropout")),
    "target_modules": _of_adapter(targets),
    "target_regex": _of_adapter(plain("adapter.targets", str)),
    "lora_target_linear": _of_adapter(
        switch(turned("adapter.targets", "all-linear", "all linear layers"), implied("adapter.targets", "lora_target_modules names them"))
    ),
    "lora_attn_modules": _of_adapter(attention_layers),
    "apply_lora_to_mlp": _of_adapter(part_of_targets),
    "apply_lora_to_output": _of_adapter(part_of_targets),
    "target_parameters": _of_adapter(lambda value, given: same("adapter.target_parameters", [str(one) for one in value])),
    "modules_to_save": _of_adapter(modules),
    "init_lora_weights": _of_adapter(begin),
    "pissa_init": _of_adapter(switch(same("adapter.init", "pissa"), implied("adapter.init", "off"))),
    "loraplus_lr_ratio": _of_adapter(lambda value, given: same("adapter.lr_ratio", number(value))),
    "adapter_start": _of_adapter(lambda value, given: same("adapter.start", str(value))),
    "lora_bias": bias,
    "unfrozen_parameters": lambda value, given: left("adapter.type layers takes a pattern or names: adapter.layers", "adapter.layers"),
    "load_in_4bit": in_bits(4),
    "load_in_8bit": in_bits(8),
    "load_in_16bit": lambda value, given: implied("train.frozen", "weights as in their file"),
    "quantization_bit": quantisation_bit,
    "quantization": quantisation,
    "bnb_4bit_quant_type": quant_type,
    "double_quant": double,
    "model_component": lambda value, given: implied("model", "the folder's config.json names the architecture"),
}
