"""Fit the remedies of cards to the log at hand: names that it gives, settings it has already, keys as its program calls them. Pure."""

from __future__ import annotations

import re

from holdfast.base.files import Json
from holdfast.diagnosis.arguments import remedies_for_argument

_ELSEWHERE: dict[str, str | dict[str, str]] = {  # what the Trainer, TRL, PEFT, LLaMA-Factory and Axolotl call what a patch sets
    "train.precision": {"fp32": "bf16: false, fp16: false", "bf16": "bf16: true, fp16: false"},
    "train.attention": {"eager": "attn_implementation: eager (LLaMA-Factory: flash_attn: disabled)"},
    "train.checkpointed_layers": "gradient_checkpointing: true",
    "train.micro_batch_tokens": "per_device_train_batch_size (Axolotl: micro_batch_size), smaller",
    "train.max_tokens": "max_length (LLaMA-Factory: cutoff_len, Axolotl: sequence_len), smaller",
    "train.lr": "learning_rate, lower",
    "train.max_grad_norm": "max_grad_norm",
    "train.warmup": "warmup_ratio, longer",
    "save.keep": "save_total_limit",
    "adapter.r": "r of LoraConfig (lora_r, lora_rank)",
    "adapter.targets": "target_modules of LoraConfig (lora_target, lora_target_modules)",
}
_PACKAGES = {  # whose modules have another name
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "bs4": "beautifulsoup4",
    "google.protobuf": "protobuf",
    "dateutil": "python-dateutil",
    "git": "gitpython",
    "skimage": "scikit-image",
    "flash_attn": "flash-attn",
}
_MODULE = re.compile(r"No module named '?([A-Za-z_][\w.]*)'?|ModuleNotFoundError: '?([A-Za-z_][\w.]*)'?\s*$", re.M)
_PACKAGE = re.compile(
    r"(?i)`?pip3? install (?:-U |--upgrade |-q )*[\"']?([A-Za-z][\w-]*)|(?:requires|install) the ([A-Za-z][\w-]+) (?:library|package)"
    r"|No package metadata was found for ([A-Za-z][\w-]*)|The '([A-Za-z][\w-]*)[^']*' distribution was not found"
)
_IS_FP32 = re.compile(r"(?i)\b(?:torch_)?dtype['\"]?\s*[:=]+\s*['\"]?(?:torch\.)?float32|\bprecision['\"]?\s*[:=]+\s*['\"]?(?:fp32|32\b)")
_IS_HALF = re.compile(r"(?i)\b(?:bf16|fp16)['\"]?\s*[:=]+\s*true|torch\.(?:b?float16|half)\b|mixed.precision['\"]?\s*[:=]+\s*['\"]?[bf]")
_OF_A_RUN = re.compile(r"(?i)checkpoint-\d+|step[-_]\d+|resum|optimizer\.(?:pt|bin)|trainer_state")
_OF_A_BASE = re.compile(
    r"from_pretrained|models--|model-\d{5}-of-\d{5}|pytorch_model(?:-\d+-of-\d+)?\.bin|/model\.safetensors|vllm|llama-server"
)
_OF_A_PROGRAM = re.compile(
    r"(?i)Traceback \(most|site-packages|transformers|axolotl|llama_?factory|unsloth|deepspeed|accelerate|torchrun|lightning"
)
_ARCH = re.compile(r"\bgfx(?:\d{3,4}|9\d[a-f])\b")
_SIBLINGS_OF_1030 = {f"gfx103{last}" for last in range(1, 7)}
_VERSIONS = "matching-versions"
_GO_BACK = ("one-before", "other-checkpoint", "newest-whole")
GOES_ON = ": holdfast goes on where it was"
_GOES_ON_ELSEWHERE = "; it goes on from its newest checkpoint where it has saved one and is told to"
_DOWNLOAD = {
    "id": "download-again",
    "what": "Download the base model's files again: one of them is cut off or damaged",
    "patch": {},
    "command": "hf download MODEL --force-download",
}


def fitted(remedies: list[Json], text: str, of_holdfast: bool) -> list[Json]:
    """Fit the remedies to a log of this text; `of_holdfast`: of a run of ours."""
    found = []
    archs = set(_ARCH.findall(text))
    for remedy in remedies:
        if "GFX_VERSION=10.3.0" in remedy["command"] and archs and not archs & _SIBLINGS_OF_1030:
            continue  # another instruction set: code of gfx1030 faults there
        if len(archs) == 1:
            remedy = remedy | {"command": remedy["command"].replace("[device-gfx1151]", f"[device-{min(archs)}]")}
        if remedy["patch"] == {"train.precision": "fp32"} and _IS_FP32.search(text) and not _IS_HALF.search(text):
            continue
        if remedy["id"] in _GO_BACK and _OF_A_BASE.search(text) and not _OF_A_RUN.search(text):
            remedy = remedy | _DOWNLOAD
        if remedy["id"] == _VERSIONS and not of_holdfast:
            for_argument = remedies_for_argument(text)
            found += for_argument
            if len(for_argument) > 1:  # the argument is known: newer packages have it no more
                continue
        if re.search(r"\bNAME\b", remedy["command"]) and (name := package_in(text)):
            remedy = remedy | {"command": re.sub(r"\bNAME\b", name, remedy["command"])}
        found.append(remedy if of_holdfast else _of_another(remedy))
    return [remedy for at, remedy in enumerate(found) if remedy["id"] not in [other["id"] for other in found[:at]]]


def package_in(text: str) -> str:
    """Return the package whose module a log misses, or that it says to install; empty where it names none."""
    if module := _MODULE.search(text):
        name = module[1] or module[2]
        return _PACKAGES.get(name) or _PACKAGES.get(name.partition(".")[0]) or name.partition(".")[0].replace("_", "-")
    package = _PACKAGE.search(text)
    return next(filter(None, package.groups())) if package else ""


def _of_another(remedy: Json) -> Json:
    """Convert a remedy to a program that is not ours: no command of ours, and nothing that only a run of ours does."""
    remedy = remedy | {"what": remedy["what"].replace(GOES_ON, _GOES_ON_ELSEWHERE)}
    if remedy["command"].startswith("holdfast train"):
        what = re.sub(r"[;,][^;,]*\bholdfast\b[^;,]*", "", remedy["what"])
        remedy = remedy | {"what": what, "command": ""}
    return remedy


def elsewhere(patch: Json) -> list[str]:
    """Return what other programs call the settings of a patch of ours; empty where they have none."""
    said = [(_ELSEWHERE.get(key, ""), value) for key, value in patch.items()]
    return [found for one, value in said if (found := one if isinstance(one, str) else one.get(str(value), ""))]


def program_of(text: str) -> str:
    """Return whose log this is: "ours", "another's", or "" where neither shows."""
    return "ours" if "holdfast" in text else "another's" if _OF_A_PROGRAM.search(text) else ""
