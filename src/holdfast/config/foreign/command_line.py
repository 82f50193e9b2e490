"""Read the options of a training command out of a shell script: words alone, nothing is run or expanded but variables set in the file."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from holdfast.config.foreign.keys import ComputedValue, ForeignConfig, Key

_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")
_TRAINS = re.compile(
    r"(?<![\w.-])(trl\s+\w+|python3?|torchrun|deepspeed|accelerate|llamafactory-cli|axolotl|tune\s+run|unsloth|soup|swift)(?![\w-])"
)
_LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "tune")
_TASKS = ("sft", "dpo", "kto", "reward", "grpo", "rloo", "orpo", "cpo", "ppo")
_CONFIGS = (".yaml", ".yml", ".json")
_BETWEEN = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"}  # commands, or a command and a file that is no part of it
_OF_DEVICES = re.compile(r"\b(NPROC_PER_NODE|NNODES)=(\d+)")
_INSIDE = "\ue000"  # stands for a # within a word
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?,?")


def read_command(text: str, program: str = "") -> tuple[ForeignConfig, list[str]]:
    """Read the options of the longest training command in a shell text, and config files that it names, in their order."""
    variables = _variables(text)
    lines = [line for line in _lines(text) if _TRAINS.search(line)]
    commands = [words for line in lines for words in _commands(line, variables) if _TRAINS.search(" ".join(words))]
    words = max(commands, key=lambda words: sum(word.startswith("-") for word in words), default=[])
    keys, configs, task, launcher = _options(words)
    if not program and words:
        program = "LLaMA-Factory" if "llamafactory-cli" in words else "Axolotl" if "axolotl" in words else ""
        program = "ms-swift" if words[:1] == ["swift"] else program
        program = program or ("torchtune" if words[:1] == ["tune"] else "Soup" if words[:1] == ["soup"] else "TRL")
    named = {key.theirs for key in keys}
    if program == "TRL" and named & {"finetuning_type", "cutoff_len", "lora_target"}:
        program = "LLaMA-Factory"
    if words[:2] == ["swift", "pt"]:
        keys.append(Key("objective", "pt", "command line"))
    if program in ("LLaMA-Factory", "ms-swift"):
        keys += [Key(name, int(value), "environment") for name, value in dict(_OF_DEVICES.findall(text)).items()]
    if program == "torchtune" and not configs:
        configs = [str(key.value) for key in launcher + keys if key.theirs == "config"]
    keys = [key for key in keys if key.theirs != "config"]
    return ForeignConfig(program if keys or configs else "", "command line", tuple(launcher + keys), task), configs


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n", " ", text)
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _variables(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _lines(text):
        if match := _ASSIGNED.match(line):
            value = match[2].strip()
            found[match[1]] = value[1:-1] if value[:1] in "\"'" and value[-1:] == value[:1] and len(value) > 1 else value.partition(" #")[0]
    return found


def _commands(line: str, variables: dict[str, str]) -> list[list[str]]:
    """Split a line into the words of its commands."""
    found: list[list[str]] = [[]]
    for word in _words(line, variables):
        if word in _BETWEEN:
            found.append([])
        else:
            found[-1].append(word)
    starts = (next((at for at, word in enumerate(words) if not re.match(r"^[A-Za-z_]\w*=", word)), 0) for words in found)
    return [words[start:] for words, start in zip(found, starts, strict=True) if words]  # behind NAME=VALUE


def _words(line: str, variables: dict[str, str]) -> list[str]:
    for _ in range(3):
        line = _VARIABLE.sub(lambda match: variables.get(match[1], match[2] if match[2] is not None else match[0]), line)
    line = re.sub(r"(?<=\S)#", _INSIDE, line)  # begins no comment, which shlex takes it for
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    return [word.replace(_INSIDE, "#") for word in words]


def _options(words: list[str]) -> tuple[list[Key], list[str], str, list[Key]]:
    """Parse words to keys of the training, its config files, its task, and options of the launcher before it."""
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    task = next((word for word in words if word in _TASKS), "")
    if script is not None:
        task = task or next((one for one in _TASKS if re.search(rf"(^|[/_]){one}([_.]|$)", words[script])), "")
    launched = words[:1] and words[0] in _LAUNCHERS
    cut = script if script is not None and launched else 0
    keys: list[Key] = []
    configs = [word for word in words[cut:] if word.endswith(_CONFIGS) and "accelerate" not in word and "deepspeed" not in word]
    launcher = _pairs(words[1:cut], "the launcher's option") if cut else []
    keys = _pairs(words[cut:], "command line")
    others = [key.value for key in keys if key.theirs not in ("config", "config_file")]
    configs = [word for word in configs if not any(word in (value if isinstance(value, list) else [value]) for value in others)]
    return keys, configs, task, launcher


def _pairs(words: list[str], where: str) -> list[Key]:
    """Parse --name value, --name=value, --flag, and name=value."""
    found: list[Key] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            values = [value] if sign else []
            while not sign and at < len(words) and not _ends(words[at], name, values):
                values.append(words[at])
                at += 1
            found.append(Key(name.replace("-", "_"), _value(values), where))
        elif re.match(r"^[A-Za-z_][\w.]*=", word):
            name, _, value = word.partition("=")
            found.append(Key(name, _value([value]), where))
    return found


def _ends(word: str, name: str, values: list[str]) -> bool:
    """True if a word is no value of an option that has these: the next option, or what stands behind its one value."""
    if word.startswith("-"):
        return not _NUMBER.fullmatch(word)
    return bool(values) and (name == "config" or (bool(_NUMBER.fullmatch(values[-1])) and not _NUMBER.fullmatch(word)))


def _value(values: list[str]) -> Any:
    if not values:
        return True
    if any("$" in value for value in values):
        return ComputedValue(" ".join(values))
    plain = [_scalar(value) for value in values]
    return plain[0] if len(plain) == 1 else [str(value).rstrip(",") for value in plain]


def _scalar(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        try:
            return float(value)  # 1e-4, which YAML takes for a text
        except ValueError:
            return value
    return text if isinstance(value, dict) or value is None else value
