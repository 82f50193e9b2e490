"""The README.md of an export: what it is, what it was trained on and how, what was measured, what happened on the way."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from holdfast.base.files import Json, read_json
from holdfast.base.inert import inert
from holdfast.base.versions import __version__
from holdfast.base_model.folder import GENERATION, ModelFacts, hub_name
from holdfast.base_model.parts import of_experts
from holdfast.base_model.server_keys import HALF, HF_FILES, RSLORA, VLLM_RANKS, IgnoredKeys, has_mistrals_files, ignored, older_servers
from holdfast.base_model.types import CAUSAL, has_text_half, loads_as
from holdfast.data.templates.template import load_template
from holdfast.export import words
from holdfast.export.endings import TEMPLATE, base_ends
from holdfast.export.subject import Subject, on_the_way, plain_scale
from holdfast.run.artifact import ARTIFACT
from holdfast.run.plan import read_plan
from holdfast.run.rows_of_run import data_sets

_KINDS = {
    "adapter": "a PEFT adapter",
    "merged": "base and adapter merged, in the base model's own precision",
    "gguf": "base and adapter merged, as GGUF for llama.cpp",
    "whole merged": "a model of which weights themselves were trained, in the precision they were trained in",
    "whole gguf": "a model of which weights themselves were trained, as GGUF for llama.cpp",
    "gguf-adapter": "the adapter as GGUF, for a base model in GGUF",
}
_ASKED = (  # what ends an answer and how a conversation is written: the adapter's own, not the base's
    "model.generation_config = GenerationConfig.from_pretrained({here!r})\ntokenizer = AutoTokenizer.from_pretrained({here!r})"
)
_USE = {
    "adapter": "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer, GenerationConfig\n"
    "model = AutoPeftModelForCausalLM.from_pretrained({here!r})\n",
    "merged": "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
    "model = AutoModelForCausalLM.from_pretrained({here!r})\ntokenizer = AutoTokenizer.from_pretrained({here!r})",
}


def write_card(folder: Path, subject: Subject, kind: str, checked: Json) -> None:
    """Write README.md. Paths of this machine stay out of it: a card is what is published."""
    facts, whole = subject.hashes(), subject.whole is not None
    base = subject.base_name if not Path(subject.base_name).is_absolute() else Path(subject.base_name).name
    name, revision = hub_name(base)
    at = f" (commit `{revision}`)" if revision else ""
    front = {
        "base_model": name,
        "base_model_relation": "adapter" if "adapter" in kind else "finetune",
        **_licence(subject.facts.folder),
        **({"datasets": known} if (known := data_sets(subject.run) if subject.run else []) else {}),
        "library_name": "peft" if kind == "adapter" else "transformers",
        "tags": ["holdfast", *([] if whole else ["lora"])],
    }
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n# {subject.name}\n",
        f"This is {_what(subject, kind, checked)}: `{name}`{at} fine-tuned with holdfast {__version__}.\n",
    ]
    if kind in _USE:
        parts.append(f"```python\n{use_line(subject, kind)}\n```\n")
    if kind == "adapter":
        parts.append(f"{HALF}.\n" if has_text_half(subject.facts.config) else "")
        parts.append(serve_line(subject, folder))
    parts += [
        _template(folder, subject.facts.folder),
        _equal(checked, subject.told),
        _training(subject),
        _results(subject),
        _incidents(subject),
    ]
    parts.append(
        "## Where it comes from\n\n| | |\n|---|---|\n"
        + "".join(
            f"| {name.replace('_', ' ')} | `{facts[name]}` |\n" for name in ("adapter_sha256", "base_sha256", "data_sha256") if facts[name]
        )
    )
    (folder / "README.md").write_text(inert("\n".join(part for part in parts if part)), encoding="utf-8")


def _what(subject: Subject, kind: str, checked: Json) -> str:
    """Say what an export is; a merge of which the base's precision would leave too little is in another one."""
    own = subject.model.stored
    if kind == "merged" and subject.whole is None and checked.get("type") not in (None, own):
        return f"base and adapter merged, in {checked['type']}: rounded to the base model's own {own}, too little of the adapter is left"
    return _KINDS[f"whole {kind}" if subject.whole is not None else kind]


def _template(folder: Path, base: Path) -> str:
    """Return the chat template of an export where it is not its base's, the form that was trained in; else nothing."""
    file = folder / TEMPLATE
    if not file.is_file() or (source := file.read_text(encoding="utf-8")) == (own := load_template(base).source):
        return ""
    which = "has another" if own else "has none"
    told = f"Conversations are written as in training, by `{TEMPLATE}`; the base model {which}."
    return f"## Chat template\n\n{told}\n\n```jinja\n{source}\n```\n"


def _licence(folder: Path) -> Json:
    """Return the licence that the base's own card names; empty where it names none."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        front = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, UnicodeDecodeError, IndexError, yaml.YAMLError):
        return {}
    known = front if isinstance(front, dict) else {}
    return {key: known[key] for key in ("license", "license_name", "license_link") if isinstance(known.get(key), str)}


def use_line(subject: Subject, kind: str) -> str:
    """Return the Python line that loads it, through the class training used, whose names of weights it has."""
    auto = loads_as(subject.facts.config) or CAUSAL
    if kind == "adapter" and auto != CAUSAL:
        return (
            f"from peft import PeftModel\nfrom transformers import {auto}, AutoTokenizer, GenerationConfig\n"
            f"base = {auto}.from_pretrained('BASE')\nmodel = PeftModel.from_pretrained(base, 'PATH')\n{_ASKED.format(here='PATH')}"
        )
    return (_USE[kind].replace(CAUSAL, auto) + (_ASKED if kind == "adapter" else "")).format(here="PATH")


def _own_files(folder: Path, facts: ModelFacts) -> str:
    """Return the options by which vLLM takes the adapter's ends and chat template, where they are not the base's."""
    ends = read_json(folder / GENERATION) or {}
    named = ends.get("eos_token_id")
    found = "" if {*(named if isinstance(named, list) else [named])} <= {*base_ends(facts)} else " --generation-config PATH"
    own, theirs = ((one / TEMPLATE).read_bytes() if (one / TEMPLATE).is_file() else None for one in (folder, facts.folder))
    return found if own in (None, theirs) else f"{found} --chat-template PATH/{TEMPLATE}"


def largest_rank(configs: Iterable[Json]) -> int:
    return max(int(rank) for config in configs for rank in (config.get("r") or 0, *(config.get("rank_pattern") or {}).values()))


def vllm_takes(config: Json) -> bool:
    """True if vLLM takes an adapter of this kind and rank, by its adapter_config.json."""
    beyond = ("use_dora", "modules_to_save", "trainable_token_indices")
    kind = config.get("peft_type", "LORA") == "LORA" and not any(config.get(name) for name in beyond)
    return kind and largest_rank([config]) <= VLLM_RANKS[-1]


def vllm_options(configs: Iterable[Json], base: Json) -> str:
    """Return vLLM's options for adapters that it takes, of a base with this config.json: the largest rank, and whose files it reads."""
    rank = largest_rank(configs)
    allowed = next(size for size in VLLM_RANKS if size >= rank)
    return f"--max-lora-rank {allowed}" + (f" {HF_FILES}" if has_mistrals_files(base) else "")


def served_with(subject: Subject, folder: Path) -> str | None:
    """Return vLLM's options for the adapter exported to `folder`, as PATH; None where it refuses that, or a server ignores some of it."""
    return _options(subject, folder) if vllm_takes(subject.config) and not _ignored(subject) else None


def _options(subject: Subject, folder: Path) -> str:
    return vllm_options([subject.config], subject.facts.config) + _own_files(folder, subject.facts)


def _ignored(subject: Subject) -> list[IgnoredKeys]:
    return ignored(subject.facts.config, subject.adapter_tensors)


def serve_line(subject: Subject, folder: Path) -> str:
    """Return how vLLM serves an adapter. Where servers ignore some of it, that alone."""
    about = subject.config
    if not vllm_takes(about):
        return "vLLM refuses this kind of adapter: serve it merged into its base model (`holdfast export --to merged`).\n"
    if lost := _ignored(subject):
        way = "`merge_and_unload` of PEFT" if not of_experts(about.get("target_parameters")) else "`holdfast export --to merged`"
        lines = "".join(f"* {one.why}.\n" for one in lost)
        return f"Serve it merged into its base model ({way}):\n\n{lines}"
    name, known = shlex.quote(f"{subject.name}=PATH"), [RSLORA] if plain_scale(about).get("use_rslora") else []
    told = "".join(f"\n{line}.\n" for line in (*known, *older_servers(subject.facts.config)))
    return f"```bash\nvllm serve BASE --enable-lora --lora-modules {name} {_options(subject, folder)}\n```\n{told}"


def _equal(checked: Json, reference: str) -> str:
    """Write a table of the figures, with a column for each type of a GGUF that is kept."""
    each = [_figures(one) for one in (checked.get("types") or {"": checked}).values()]
    body = "".join(f"| {name} | {' | '.join(one[name] for one in each)} |\n" for name in each[0])
    head = f"| |{' |' * len(each)}\n|---|{'---|' * len(each)}\n"
    return f"## Compared with {reference}\n\n{checked['positions']} positions, {checked['prompts']} prompts.\n\n{head}{body}"


def _figures(checked: Json) -> dict[str, str]:
    return {
        "loaded by": words.of_engine(checked),
        **({"base": base} if (base := words.of_base(checked)) else {}),
        "NMSE of logits": f"{checked['nmse']:.2e}",
        "KL per token": f"{checked['kl_per_token']:.2e} nats",
        "same likeliest token": f"{checked['top1_agreement']:.1%}",
        "what was learned": words.of_learned(checked) or "not compared",
        "greedy answers": words.of_greedy(checked),
        "token ids of the rendered chat equal": words.of_token_ids(checked),
        "stops where training ended its answers": words.of_stops(checked),
    }


def _training(subject: Subject) -> str:
    if subject.run is None:
        return f"## Training\n\nNot known: the adapter was given without its run (`{ARTIFACT}` alone).\n"
    tree = subject.run.config().model_dump(mode="json", exclude={"faults", "run"})
    tree["model"] = Path(tree["model"]).name
    tree["data"] |= {key: [Path(file).name for file in tree["data"][key]] for key in ("files", "held_out_files")}
    tree["adapter"]["start"] = Path(tree["adapter"]["start"]).name if tree["adapter"].get("start") else None
    tree["data"]["weights"] = {Path(file).name: weight for file, weight in tree["data"].get("weights", {}).items()}
    tree = _without_places(tree)
    plan = read_plan(subject.run.plan_file)
    rows = f"{plan.rows.train} rows to train on, {plan.rows.held_out} held out.\n\n" if plan else ""
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return f"## Training\n\n{rows}```yaml\n{text}```\n"


def _without_places(value: Any) -> Any:
    """Return settings with the last part alone of what is a place on this machine or an address, as of `save.to`."""
    if isinstance(value, dict):
        return {key: _without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_places(one) for one in value]
    place = isinstance(value, str) and "\n" not in value and (value.startswith(("/", "~")) or "://" in value)
    return Path(value).name if place else value


def _results(subject: Subject) -> str:
    """Return what the run measured at its end, of what it left: another of its states was not measured there."""
    if on_the_way(subject):
        told = f"This is {subject.tuned.name}, a state on the way; the run's own figures are of what it left at its end."
        return f"## Results\n\n{told} `holdfast verify` measures this one.\n"
    summary = (read_json(subject.run.summary_file) if subject.run else None) or {}
    loss = summary.get("loss") or {}
    if loss.get("eval_base") is None or loss.get("eval_tuned") is None:
        return "## Results\n\nNo held-out loss was measured.\n"
    unit = subject.run.config().train.objective_kind.unit if subject.run else ""
    per = unit if unit in ("per pair", "per answer") else "per token"
    return (
        f"## Results\n\nHeld-out loss {per}: {loss['eval_base']:.4f} ({loss.get('reference') or 'base'}), {loss['eval_tuned']:.4f} (this), "
        f"after {_steps(summary)}. Whether that is more than chance: `holdfast verify`.\n"
    )


def _steps(summary: Json) -> str:
    """Say after how many steps the state is that the run left: the best one may be before the last."""
    steps, own = summary.get("steps"), summary.get("artifact_step")
    return f"{steps} steps" if own in (None, steps) else f"{own} of {steps} steps"


def _incidents(subject: Subject) -> str:
    found = ((read_json(subject.run.summary_file) if subject.run else None) or {}).get("incidents") or []
    if not found:
        return ""
    lines = "".join(f"* step {entry.get('step')}: {entry.get('cause')}; {entry.get('remedy') or 'no change'}\n" for entry in found)
    return f"## Incidents of the run\n\n{lines}"
