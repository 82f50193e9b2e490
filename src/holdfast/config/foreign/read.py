"""Read a file of another trainer: a config, a command line or a script, and see whose it is. Nothing of it is run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from holdfast.base.errors import USAGE, Stop
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.config.foreign.command_line import read_command
from holdfast.config.foreign.keys import ForeignConfig, Key, flatten
from holdfast.config.foreign.rules_rows import HubName
from holdfast.config.foreign.script import read_script
from holdfast.config.yaml_tree import LOADER, in_one_line

_TAKEN = (
    "it takes configs of Axolotl, LLaMA-Factory, TRL, ms-swift, Soup and torchtune, shell scripts with a training command, "
    "and training scripts"
)
_MARKS = {  # keys that only one program has
    "LLaMA-Factory": (
        "finetuning_type cutoff_len lora_target stage template dataset_dir overwrite_cache plot_loss model_class "
        "train_dataset dist_config peft_config kernel_config quant_config export_dir infer_backend"
    ),
    "Axolotl": (
        "base_model sequence_len micro_batch_size sample_packing val_set_size num_epochs lora_target_linear "
        "dataset_prepared_path lora_model_dir train_on_inputs pad_to_sequence_len evals_per_epoch saves_per_epoch "
        "load_in_8bit rl"
    ),
    "TRL": (
        "model_name_or_path per_device_train_batch_size dataset_name num_train_epochs use_peft lora_target_modules "
        "logging_steps report_to output_dir gradient_accumulation_steps learning_rate eval_strategy lr_scheduler_type "
        "max_length attn_implementation"
    ),
}
_OF_SWIFT = {"train_type", "tuner_type", "split_dataset_ratio", "rlhf_type", "truncation_strategy", "attn_impl"}
_BESIDE_BASE = {
    "datasets",
    "adapter",
    "lora_r",
    "learning_rate",
    "pretraining_dataset",
    "output_dir",
}  # of Axolotl; others have a base_model, too
_OF_LITGPT = (
    "holdfast init --model FOLDER --data ROWS, with the folder that LitGPT converted (in Hugging Face's layout), then write into it: "
    "train.effective_batch is its global_batch_size, train.lr its optimizer's lr, train.max_tokens its max_seq_length, "
    "adapter.r and adapter.alpha its lora_r and lora_alpha, data.held_out its val_split_fraction"
)
_NAMED = re.compile(r"\$\{(\w+)\}")
_LAUNCH = {"compute_environment", "distributed_type", "zero_optimization"}


def read_foreign(file: Path) -> tuple[ForeignConfig, dict[str, str]]:
    """Read the keys of a file, and files of data sets by the names it calls them. Raises Stop(2) where it is of no known kind."""
    text = _text(file)
    suffix = file.suffix.lower()
    if suffix in (".py", ".ipynb"):
        source = _script(file, text)
    elif suffix in (".yaml", ".yml", ".json"):
        source = read_config(file, text)
    else:
        source = _command(file, text)
    known, described = _named_sets(file, source)
    return (replace(source, keys=(*source.keys, *described)) if described else source), known


def _text(file: Path) -> str:
    try:
        return read_small(file, LARGEST_JSON).decode("utf-8-sig")
    except FileNotFoundError:
        raise Stop(USAGE, f"--from {file}: no such file", f"the current folder is {Path.cwd()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(USAGE, f"--from {file}: not readable as text ({error})", _TAKEN) from None


def _script(file: Path, text: str) -> ForeignConfig:
    try:
        source = read_script(text, file.name)
    except (SyntaxError, ValueError, RecursionError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise Stop(USAGE, f"--from {file}{place}: not readable as Python ({error})", _TAKEN) from None
    if not source.program:
        text = f"--from {file}: no Trainer, SFTConfig or LoraConfig with arguments is called in it"
        hint = f"a script that parses its command line: give the shell file that calls it; or `holdfast run --callback -- python {file}`"
        raise Stop(USAGE, text, hint)
    return source


def read_config(file: Path, text: str) -> ForeignConfig:
    """Read a config in YAML or JSON."""
    try:
        tree = json.loads(text) if file.suffix == ".json" else yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = in_one_line(error) if isinstance(error, yaml.YAMLError) else str(error)
        raise Stop(USAGE, f"--from {file}: not readable: {said}", "check that line") from None
    if not isinstance(tree, dict):
        raise Stop(USAGE, f"--from {file}: holds no keys", _TAKEN)
    program = program_of_tree(tree)
    if program == "holdfast":
        raise Stop(USAGE, f"--from {file}: this is a config of holdfast already", f"holdfast plan {file}")
    if not program:
        if _LAUNCH & tree.keys():
            raise Stop(USAGE, f"--from {file}: it configures a launcher, not a training", _of_launcher(tree))
        if "checkpoint_dir" in tree and isinstance(tree.get("train"), dict):
            raise Stop(USAGE, f"--from {file}: a config of LitGPT, whose keys are not translated", _OF_LITGPT)
        raise Stop(USAGE, f"--from {file}: its keys are of no trainer that is known: {_some(tree)}", _TAKEN)
    tree = _numbers(tree)
    return ForeignConfig(program, "config", tuple(flatten(_interpolated(tree, tree) if program == "torchtune" else tree)), "")


def _of_launcher(tree: dict[str, Any]) -> str:
    """Return what to do with a config of accelerate or DeepSpeed: which of its values go into the config of what it launches."""
    inner = tree.get("deepspeed_config")
    deepspeed: dict[str, Any] = inner if isinstance(inner, dict) else tree
    zero = deepspeed.get("zero_optimization")
    stage = str(deepspeed.get("zero_stage") or (zero.get("stage") if isinstance(zero, dict) else ""))
    ranks, precision = tree.get("num_processes"), tree.get("mixed_precision")
    ours = [f"ranks: {ranks}"] * (isinstance(ranks, int) and ranks > 1)
    ours += ["fsdp: true"] * (str(tree.get("distributed_type")).upper() == "FSDP" or stage == "3")
    ours += [f"precision: {precision}"] * (precision in ("bf16", "fp16"))
    into = f", then write train: {{{', '.join(ours)}}} into the config" if ours else ""
    return f"give the script or the command that it launches: holdfast init --from train.py{into}"


def program_of_tree(tree: dict[str, Any]) -> str:
    """Return the program that a config is for, by its keys; empty where it is of none known."""
    if "_component_" in str(tree):
        return "torchtune"
    if "base" in tree and ("task" in tree or isinstance(tree.get("training"), dict)):
        return "Soup"
    if isinstance(tree.get("data"), dict) and "files" in tree["data"]:
        return "holdfast"
    counts = {program: len(set(names.split()) & tree.keys()) for program, names in _MARKS.items()}
    best = max(counts, key=lambda program: counts[program])
    if counts["LLaMA-Factory"] and tree.keys() & {"finetuning_type", "cutoff_len", "model_class", "stage"}:
        return "LLaMA-Factory"
    if "model" in tree and counts["TRL"] and (_OF_SWIFT & tree.keys() or ("dataset" in tree and "lora_rank" in tree)):
        return "ms-swift"
    if "base_model" in tree and not _LAUNCH & tree.keys() and (counts["Axolotl"] > 1 or _BESIDE_BASE & tree.keys()):
        return "Axolotl"
    return best if counts[best] >= 2 and not _LAUNCH & tree.keys() else ""


def _numbers(value: Any) -> Any:
    """Convert texts that other readers of YAML take for numbers, as 1e-4, to numbers."""
    if isinstance(value, dict):
        return {str(name): _numbers(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_numbers(inside) for inside in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _interpolated(value: Any, root: dict[str, Any]) -> Any:
    """Fill in texts with ${NAME} of a key at the top, as OmegaConf has them."""
    if isinstance(value, dict):
        return {name: _interpolated(inside, root) for name, inside in value.items()}
    if isinstance(value, list):
        return [_interpolated(inside, root) for inside in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _NAMED.fullmatch(value)
    if whole and not isinstance(root.get(whole[1]), dict | str | None):
        return root[whole[1]]
    found = _NAMED.sub(lambda match: str(root.get(match[1]) or match[0]), value)
    return _NAMED.sub(lambda match: str(root.get(match[1]) or match[0]), found)


def _some(tree: dict[str, Any]) -> str:
    return ", ".join(list(map(str, tree))[:6]) or "none"


def _command(file: Path, text: str) -> ForeignConfig:
    source, configs = read_command(text)
    if not source.program:
        raise Stop(
            USAGE,
            f"--from {file}: no training command in it (python, torchrun, accelerate, trl, llamafactory-cli, swift ...)",
            _TAKEN,
        )
    for name in configs:
        path = next((path for path in (file.parent / name, Path(name)) if path.is_file()), None)
        if path is None:
            copied = f"`tune cp {name} FILE.yaml` copies it, name FILE.yaml in its place"
            hint = copied if source.program == "torchtune" else f"put {name} beside it"
            raise Stop(USAGE, f"--from {file}: its command reads the config {name}, which is not here", hint)
        inner = read_config(path, _text(path))
        told = {key.theirs for key in source.keys}
        keys = [Key(key.theirs, key.value, str(path)) for key in inner.keys if key.theirs not in told]
        source = ForeignConfig(inner.program, source.kind, (*source.keys, *keys), source.trains)
    return source


def _named_sets(file: Path, source: ForeignConfig) -> tuple[dict[str, str], list[Key]]:
    """Read the files that LLaMA-Factory's dataset_info.json gives to names, beside the config or where dataset_dir says.

    Return with them what it says of those that are trained on: what their columns are called, and how many rows are taken.
    """
    if source.program != "LLaMA-Factory":
        return {}, []
    folder = next((str(key.value) for key in source.keys if key.theirs == "dataset_dir" and key.value), "data")
    for place in (file.parent / folder, Path(folder)):
        try:
            tree = json.loads((place / "dataset_info.json").read_text())
        except (OSError, ValueError):
            continue
        entries = {name: entry for name, entry in tree.items() if isinstance(entry, dict)}
        files = {name: str(place / entry["file_name"]) for name, entry in entries.items() if entry.get("file_name")}
        files |= {name: HubName(entry["hf_hub_url"]) for name, entry in entries.items() if name not in files and entry.get("hf_hub_url")}
        given = next((str(key.value) for key in source.keys if key.theirs in ("dataset", "train_dataset") and key.value), "")
        used = [name for one in given.split(",") if (name := one.strip()) in entries]
        told = [{key: entries[name][key] for key in ("columns", "num_samples") if entries[name].get(key)} for name in used]
        return files, list(flatten({"dataset_info": [one for one in told if one]}, "", "dataset_info.json")) if any(told) else []
    return {}, []
