"""Make a config of holdfast from what another trainer's file says, and account for every key of it. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from holdfast.config.config import Config
from holdfast.config.foreign import rules, rules_adapter, rules_optimizer, rules_rows
from holdfast.config.foreign.defaults import BY_ROWS, UNCUT, batch_factors, defaults_of
from holdfast.config.foreign.keys import SAME, AccountRow, ComputedValue, Contents, Draft, ForeignConfig, Key, KeyOutcome, left
from holdfast.config.foreign.left_out import why_left
from holdfast.config.foreign.rules_rows import RowFile, of_torchtune, row_files
from holdfast.config.foreign.vocabulary import common_name

_RULES = rules.RULES | rules_optimizer.RULES | rules_adapter.RULES | rules_rows.RULES
_OF_TRAINER = {"DPO": "dpo", "KTO": "kto", "ORPO": "orpo", "CPO": "simpo", "Reward": "reward", "SFT": "sft"}
_REFUSED = ("grpo", "ppo", "rloo", "online", "bco", "gkd", "prm", "xpo", "nash", "ebft", "gdpo", "embedding", "distill", "diffusion", "asr")
_UNREFUSED = ("Trainer", "Seq2SeqTrainer", "TrainingArguments", "UnslothTrainer", "UnslothTrainingArguments", "Seq2SeqTrainingArguments")
_ADAPTER_KEYS = ("lora_r", "lora_alpha", "target_modules", "lora_dropout", "lora_attn_modules", "adapter_start", "adapter_kind")
_STEPS = {  # of a script, by how script_changes names them
    "dataset_step": "the script makes other rows of those it loads, and the config's rows are those of the file",
    "script_step": "the script changes model, tokens or trainer, and the config does not",
}
_ROWS = "data/rows.jsonl"


def convert(
    source: ForeignConfig, data: list[str] | None = None, model: str | None = None, known: Mapping[str, str] | None = None
) -> Draft:
    """Convert a source to a draft. data, model: given beside the file, and stronger; known: files of data sets by their names in it."""
    draft = Draft(source.program)
    named = [(common_name(source.program, key.pattern), key) for key in source.keys]
    given = _given(source, named, data, known or {})
    outcomes = [_outcome(common, key, given, source.program) for common, key in named]
    for (_, key), outcome in zip(named, outcomes, strict=True):
        draft.rows.append(_row(draft, key, outcome))
    _name_sections(draft, source)
    _fill(draft, source, given, data, model)
    _keep_valid(draft)
    return draft


def _given(source: ForeignConfig, named: list[tuple[str, Key]], data: list[str] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that rules read: each by its common name, and those that follow from several."""
    given: dict[str, Any] = {}
    for common, key in named:
        if not isinstance(key.value, Contents | ComputedValue) and not _empty(key.value):
            given.setdefault(common, key.value)
    names = [key.theirs for key in source.keys]
    made = row_files(named, known, of_hub=source.program != "LLaMA-Factory" or "train_dataset" in names)
    given |= {"_program": source.program, "_row_files": made, "_data": data, "_objective": _objective(source, given)}
    given["_held"] = {key.theirs for common, key in named if common == "held_out_file"}
    given["_unread"] = [key for common, key in named if common in ("dataset", "dataset_split") and isinstance(key.value, ComputedValue)]
    given["_named"] = {common for common, key in named if isinstance(key.value, ComputedValue) or not _empty(key.value)}
    given["_uncut"] = any(common == "max_length" and key.value is None for common, key in named)
    given["_factors"] = {name: factor for name, factor in batch_factors(source).items() if name not in given["_named"]}
    given["_formats"] = {rules_rows.format_of(key.value) for common, key in named if common == "dataset_type"}
    given["_by_transformers"] = source.kind == "script" and source.program in ("transformers", "TRL")
    given["_constant"] = rules_optimizer.is_constant(given)
    given["_full"] = _is_full(source, given)
    given["_four_bits"] = (
        rules.is_true(given.get("load_in_4bit"))
        or str(given.get("quantization_bit")) == "4"
        or (given.get("adapter_kind") == "qlora" or str(given.get("quantization")) in ("4bit", "True"))
    )
    return given


def _objective(source: ForeignConfig, given: Mapping[str, Any]) -> str:
    asked = str(given.get("objective") or "")
    by_loss = str(given.get("loss_type") or "").removesuffix("_pair")
    if by_loss in ("orpo", "simpo", "kto"):
        return by_loss
    if source.program == "Axolotl" and given.get("reward_model") is True:
        return "reward"
    trained = next((name for start, name in _OF_TRAINER.items() if source.trains.startswith((start, start.lower()))), "")
    found = rules.objective(asked, {}).sets.get("train.objective") if asked else None
    recipe = str(given.get("loss._component_") or "")
    return str(found or trained or ("dpo" if "DPO" in recipe else "sft"))


def _is_full(source: ForeignConfig, given: Mapping[str, Any]) -> bool:
    """True if the other program trains all weights."""
    kind = str(given.get("adapter_kind", "")).lower()
    if kind in ("full", "none") or rules.is_true(given.get("full_finetuning")) or rules.is_true(given.get("full_finetune")):
        return True
    if kind:
        return kind == "freeze"
    if source.program == "TRL" and source.kind != "script":
        return not rules.is_true(given.get("use_peft"))
    if source.program in ("LLaMA-Factory", "Soup", "Unsloth", "ms-swift"):
        return False
    if source.program == "Axolotl" and "adapter_kind" not in given["_named"]:
        return True  # whatever it says of lora_r: `adapter` alone begins one
    return not any(name in given["_named"] for name in _ADAPTER_KEYS)


def _outcome(common: str, key: Key, given: dict[str, Any], program: str) -> KeyOutcome:
    rule = _RULES.get(common)
    if step := _STEPS.get(key.theirs.partition(".")[0]):
        return left(f"{step}: {key.value.source if isinstance(key.value, ComputedValue) else key.value}")
    if isinstance(key.value, Contents):
        return left("")  # settled by what is in it
    if isinstance(key.value, ComputedValue):
        ours = _our_key(common, given)
        where = f"; set {ours} yourself" if ours else ""
        return left(f"computed when it runs ({key.value.source}), and nothing of it is run{where}", ours)
    if _empty(key.value):
        return left("empty there: its default counts" if key.value != "" else "empty there")
    if rule is None:
        return left(why_left(key.pattern, program))
    try:
        return rule(key.value, given | {"_at": key.theirs})
    except (TypeError, ValueError, AttributeError):
        return left(f"{str(key.value)[:60]!r} is no value that holdfast can read for it", _our_key(common, given))


def _our_key(common: str, given: dict[str, Any]) -> str | None:
    """Return the key of ours that a rule sets, tried on a plain value."""
    for sample in (1, "x", True):
        try:
            return _RULES[common](sample, given | {"_at": ""}).ours
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
    return None


def _empty(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


_VARIANTS = ("rslora", "dora")  # of LoRA, which theirs name by a key of its own


def _row(draft: Draft, key: Key, outcome: KeyOutcome) -> AccountRow:
    fate, why = outcome.fate, outcome.why
    for path, value in outcome.sets.items():
        if path == "adapter.type" and draft.tree.get(path) == "lora" and value in _VARIANTS:
            draft.tree[path] = value
            draft.reasons.pop(path, None)
        elif draft.tree.setdefault(path, value) != value and not (value == "lora" and draft.tree[path] in _VARIANTS):
            fate, why = "not_carried", f"{path} is {draft.tree[path]} already, from another key"
        draft.reasons.setdefault(path, key.theirs if why == SAME else f"{key.theirs}: {why}")
    value = key.value.source if isinstance(key.value, ComputedValue) else None if isinstance(key.value, Contents) else key.value
    return AccountRow(key.theirs, outcome.ours, fate, why, value, key.where)


def _name_sections(draft: Draft, source: ForeignConfig) -> None:
    """Set the fate of each section to that of the keys in it."""
    sections = {key.theirs for key in source.keys if isinstance(key.value, Contents)}
    for row in reversed(draft.rows):
        if row.theirs not in sections:
            continue
        inside = [other for other in draft.rows if other is not row and other.theirs.startswith((f"{row.theirs}.", f"{row.theirs}["))]
        fates = {other.fate for other in inside}
        row.fate = fates.pop() if len(fates) == 1 else "changed"
        ours = {other.ours.partition(".")[0] for other in inside if other.ours}
        row.ours = ours.pop() if len(ours) == 1 else None
        whys = {other.why for other in inside}
        row.why = whys.pop() if len(whys) == 1 else "a section; its keys stand by themselves"


def _fill(draft: Draft, source: ForeignConfig, given: dict[str, Any], data: list[str] | None, model: str | None) -> None:
    """Fill in what the file does not say: their defaults where ours are others, rows, model, and reasons for what cannot be done here."""
    tree = draft.tree
    _refuse(draft, source, given)
    for row in draft.rows:
        if row.theirs.partition(".")[0] in _STEPS:
            draft.todo.append(f"{row.where} of the script is not carried over, do it yourself or see that it does not matter: {row.value}")
        elif row.fate == "not_carried" and row.theirs.endswith("split") and source.kind == "script":
            draft.todo.append(f"{row.where} of the script: split={row.value!r} is not carried over: {row.why}")
        elif row.fate == "not_carried" and row.ours == "data.held_out":
            tree["data.held_out"], draft.reasons["data.held_out"] = 0.0, f"{row.theirs}: {row.why}"
            draft.todo.append(f"write the share that is held out at data.held_out: {row.why}")
    objective = str(tree.get("train.objective") or given["_objective"])
    if objective != "sft":
        tree["train.objective"] = objective
        draft.reasons.setdefault("train.objective", f"{source.trains or source.program} trains so")
    if given["_full"] and "adapter.type" not in tree:
        tree["adapter.type"] = "full"
        draft.reasons["adapter.type"] = f"no adapter in {source.program}'s file: all weights are trained"
    if tree.get("adapter.type") == "full" and objective not in ("sft", "orpo", "simpo"):
        tree["adapter.type"] = "lora"
        why = f"theirs trains all weights; {objective} here holds the model against the one without its adapter"
        draft.reasons["adapter.type"] = why
        draft.todo.append(f"an adapter is trained, not all weights: {why}")
        for row in (row for row in draft.rows if row.ours == "adapter.type" and row.fate == "carried"):
            row.fate, row.why = "changed", f"lora: {why}"
    if model:
        tree["model"], draft.reasons["model"] = model, "--model"
    if source.program == "LLaMA-Factory" and "adapter.r" in tree and "adapter.alpha" not in tree:
        tree["adapter.alpha"], draft.reasons["adapter.alpha"] = 2.0 * tree["adapter.r"], "LLaMA-Factory's default: twice the rank"
    for path, value, why in [*defaults_of(source, given, tree, objective)]:
        tree[path], draft.reasons[path] = value, why
    _ask(draft, source, given, objective)
    if "model" not in tree:
        tree["model"], draft.reasons["model"] = "tiny", "the file names no model: write its folder or hub name here"
        draft.todo.append("write the model's folder or hub name at `model`: the file names none")
    if tree.get("evaluate.every") and tree.get("data.held_out") == 0 and "data.held_out_files" not in tree:
        draft.todo.append("write what evaluate.every asks: files at data.held_out_files, or a share at data.held_out; else leave it out")
    _rows(draft, given, data)


def _ask(draft: Draft, source: ForeignConfig, given: Mapping[str, Any], objective: str) -> None:
    """Leave to people what only the rows or they themselves can tell."""
    if objective == "sft" and "beta" in given["_named"] and not source.trains:
        draft.todo.append("write what is trained at train.objective: the file does not say it, and its beta is none of sft's")
    if draft.reasons.get("data.train_on") == BY_ROWS and "dataset_text_field" not in given["_named"]:
        draft.todo.append("write data.train_on: assistant if your rows are of prompt and completion: TRL learns no prompt of such")
    if UNCUT in draft.reasons.get("train.max_tokens", ""):
        draft.todo.append("write how long your rows are at train.max_tokens (`holdfast data check` tells): none is cut there")
    if source.program == "ms-swift" and not rules.is_true(given.get("use_hf")):
        draft.todo.append("see that Hugging Face's hub calls model and data sets so: ms-swift takes ModelScope's unless use_hf is on")
    if "system" in given["_named"]:
        draft.todo.append("write the system text into your rows: the template's own is used where a row has none")
    if rules.is_true(given.get("packing")):
        text = "each packed row there held several: multiply train.effective_batch by its length / mean tokens of a row"
        draft.todo.append(f"{text} (`holdfast data check` tells them)")


def _rows(draft: Draft, given: dict[str, Any], data: list[str] | None) -> None:
    tree = draft.tree
    if data:
        tree["data.files"], draft.reasons["data.files"] = data, "--data"
        return
    made: list[RowFile] = [one for name, files in given["_row_files"].items() if name not in given["_held"] for one in files]
    if name := of_torchtune(given.get("dataset_type")):
        made.append(rules_rows.fetched(name, given.get("dataset_config"), given.get("dataset_split")))
    draft.todo += [one.todo() for one in dict.fromkeys(made) if one.command]
    for key in given["_unread"]:
        draft.todo.append(f"see that data.files are the rows it trains on: {key.theirs} is not read of the script ({key.value.source})")
    if "data.files" not in tree:
        tree["data.files"], draft.reasons["data.files"] = [_ROWS], "the file names no rows that can be read: write yours here"
        draft.todo.append(f"put the rows into {_ROWS}, or write their files at data.files")
    tree["data.files"] = list(dict.fromkeys(tree["data.files"]))


def _refuse(draft: Draft, source: ForeignConfig, given: dict[str, Any]) -> None:
    asked = str(given.get("objective") or "").lower()
    trains = source.trains if source.trains not in _UNREFUSED else ""
    for name in (asked, trains.lower()):
        if any(name.startswith(other) for other in _REFUSED):
            draft.refused.append(f"it trains with {asked or trains}, and holdfast has no such objective")
            return
    kind = str(given.get("task_type", "causal_lm")).lower()
    if source.program == "ms-swift" and kind != "causal_lm":
        draft.refused.append(f"it trains a model for task_type {kind}, and holdfast trains language models")
        return
    if (asked or trains.lower()).startswith("cpo") and "simpo" not in str(given.get("loss_type")).lower():
        draft.refused.append(f"it trains with CPO's own loss ({given.get('loss_type', 'sigmoid')}); of CPO's, loss_type simpo is here")
        return
    component = str(given.get("loss._component_") or "") + str(given.get("teacher_model._component_") or "")
    if any(word in component for word in ("GRPO", "PPO", "teacher", "qwen2_5.", "RSO")) and "teacher" in str(list(given)):
        draft.refused.append("it distils from a teacher model, and holdfast has no such objective")
    elif any(word in component.upper() for word in ("GRPO", "PPO")):
        draft.refused.append("it trains with rewards of generated answers, and holdfast has no such objective")


def _keep_valid(draft: Draft) -> None:
    """Take back what holdfast would refuse, one problem at a time, and say so."""
    for _ in range(len(draft.tree) + 1):
        try:
            Config.model_validate(draft.as_tree())
            return
        except ValidationError as error:
            problem = error.errors()[0]
        path = ".".join(str(part) for part in problem["loc"][:2])
        text = problem["msg"].removeprefix("Value error, ")
        out = path if path in draft.tree else _blamed(draft, text)
        if not out:
            return
        draft.tree.pop(out)
        for row in draft.rows:
            if row.ours == out:
                row.fate, row.why = "not_carried", text


def _blamed(draft: Draft, text: str) -> str:
    """Choose the key that a problem of several is taken from: one that it names, of those that are no model and no rows."""
    needed = ("model", "data.files", "adapter.type", "train.objective")
    named = [path for path in draft.tree if path not in needed and (path in text or path.rpartition(".")[2] in text.split())]
    return named[0] if named else ""
