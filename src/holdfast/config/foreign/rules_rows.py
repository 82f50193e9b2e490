"""What becomes of keys of another trainer that say what rows are learned, and what of them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from holdfast.config.foreign.keys import ComputedValue, Contents, Key, KeyOutcome, implied, left, same, turned
from holdfast.config.foreign.rules import Given, Rule, is_true, number, switch

FILES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".zst", ".gz")
_READERS = ("json", "csv", "parquet", "text", "arrow")
_FORMATS = {
    "alpaca": "alpaca",
    **dict.fromkeys(("chat_template", "sharegpt", "chatml", "chat", "openai"), "chat"),
    **dict.fromkeys(("completion", "pretrain", "plaintext", "text"), "text"),
}
_TUNE = {  # builders of torchtune's and what they load
    "alpaca_dataset": "tatsu-lab/alpaca",
    "alpaca_cleaned_dataset": "yahma/alpaca-cleaned",
    "samsum_dataset": "Samsung/samsum",
    "grammar_dataset": "liweili/c4_200m",
    "slimorca_dataset": "Open-Orca/SlimOrca-Dedup",
    "stack_exchange_paired_dataset": "lvwerra/stack-exchange-paired",
    "wikitext_dataset": "EleutherAI/wikitext_document_level",
    "cnn_dailymail_articles_dataset": "ccdv/cnn_dailymail",
    "hh_rlhf_helpful_dataset": "RLHFlow/HH-RLHF-Helpful-standard",
}
_TEMPLATES = {  # names of theirs and of ours, for the same turns
    **dict.fromkeys(("chatml", "llama3", "gemma"), ""),
    "llama-3": "llama3",
    **dict.fromkeys(("gemma2", "gemma-2"), "gemma"),
}


class HubName(str):
    """The name of a data set of the hub, where a file's path may stand."""


class RowFile(NamedTuple):
    """A file of rows for the config, and what makes it of a data set; nothing where the file is theirs."""

    file: str
    command: str = ""

    def todo(self) -> str:
        return f"save the rows: {self.command}" if self.command.startswith("python") else self.command


def fetched(name: str, config: Any = None, split: Any = None) -> RowFile:
    """Return the file that a data set of the hub is saved in, and how."""
    more = f", {config!r}" if isinstance(config, str) and config else ""
    part = split if isinstance(split, str) and split else "train"
    told = "-".join([name, *([part] if part != "train" else [])])
    file = f"data/{re.sub(r'[^A-Za-z0-9._-]+', '-', told).strip('-')}.jsonl"
    return RowFile(file, f'python -c "from datasets import load_dataset; load_dataset({name!r}{more}, split={part!r}).to_json({file!r})"')


def _sampled(file: str, count: str) -> RowFile:
    """Return the file with so many rows of another."""
    fewer = f"data/{PurePath(file).stem}-{count}.jsonl"
    return RowFile(fewer, f"draw the rows: holdfast data sample {file} --rows {count} --out {fewer}")


def _registered(name: str) -> RowFile:
    """Return the file of a data set that a list of LLaMA-Factory's names, which is not here."""
    file = f"data/{name}.jsonl"
    return RowFile(file, f"put the rows of {name}, whose file LLaMA-Factory's dataset_info.json names, at {file}, or write their place")


def row_files(keys: list[tuple[str, Key]], known: Mapping[str, str], of_hub: bool = True) -> dict[str, list[RowFile]]:
    """Return the row files that each key of theirs comes to, by its path.

    keys: with their common names; known: files of data sets by name; of_hub: other names are those of data sets of the hub.
    """
    found: dict[str, list[RowFile]] = {}
    for common, key in keys:
        if common not in ("dataset", "data_files", "held_out_file") or isinstance(key.value, Contents | ComputedValue) or not key.value:
            continue
        head = key.theirs.rpartition(".")[0]
        beside = {name: other.value for name, other in keys if other.theirs.rpartition(".")[0] == head and other.where == key.where}
        names = key.value if isinstance(key.value, list) else str(key.value).split(",")
        if common == "dataset" and beside.get("data_files") and str(key.value) in _READERS:
            continue
        for name in (str(one).strip() for one in names):
            if not name or name in _READERS:
                continue
            name, _, count = name.partition("#")
            if count:  # of ms-swift: so many rows of it
                base, _, subset = name.partition(":")
                drawn = f"train[:{count}]" if count.isdigit() else "train"
                made = _sampled(name, count) if _is_file(name) else fetched(base, subset, drawn)
                found.setdefault(key.theirs, []).append(made)
                continue
            hub = fetched(name, beside.get("dataset_config"), beside.get("dataset_split")) if of_hub else _registered(name)
            named = known.get(name, name if _is_file(name) else "")
            made = fetched(named) if isinstance(named, HubName) else RowFile(named) if named else hub
            found.setdefault(key.theirs, []).append(made)
    return found


def of_torchtune(component: Any) -> str:
    """Return the data set of the hub that a builder of torchtune's loads; empty where it has none of its own."""
    return _TUNE.get(str(component).rpartition(".")[2], "")


def _is_file(name: str) -> bool:
    return PurePath(name.partition("?")[0]).suffix.lower() in FILES or name.startswith(("/", "./", "../", "~"))


def rows(value: Any, given: Given) -> KeyOutcome:
    made: dict[str, list[RowFile]] = given["_row_files"]
    mine = made.get(given["_at"], [])
    if given.get("_data"):
        return turned("data.files", given["_data"], "--data names the rows")
    if not mine:
        return implied("data.files", "how the file is read, which holdfast sees for itself")
    everything = [one.file for name, files in made.items() if name not in given["_held"] for one in files]
    if any(one.command for one in mine):
        of_hub, drawn = (any(one.command.startswith(start) for one in mine) for start in ("python", "draw"))
        where = "a data set of the hub" if of_hub else "some of its rows" if drawn else "a name of dataset_info.json, which is not here"
        return turned("data.files", everything, f"{where}: see what is left to do")
    return same("data.files", everything, "the same file")


def held_rows(value: Any, given: Given) -> KeyOutcome:
    mine = given["_row_files"].get(given["_at"], [])
    if not mine or any(one.command for one in mine):
        return left("rows for evaluation stand in files of their own here", "data.held_out_files")
    return same("data.held_out_files", [one.file for one in mine])


def split(value: Any, given: Given) -> KeyOutcome:
    if "[" in str(value) and not any(one.command for files in given["_row_files"].values() for one in files):
        return left("a part of the rows there; all of the file's are trained on here (`holdfast data sample` draws some)", "data.files")
    return implied("data.files", "in the command that saves the rows")


def test_split(value: Any, given: Given) -> KeyOutcome:
    """Tell how the rows that TRL judges by are saved; nothing where it does not evaluate."""
    if str(given.get("eval_strategy") or "no").lower() in ("no", "false"):
        return implied("data.held_out_files", "not looked at there either: eval_strategy is no")
    name = str(given.get("dataset") or "")
    saved = "" if not name or _is_file(name) else f": {fetched(name, given.get('dataset_config'), value).command}"
    return left(f"rows of split {value} judge there: save them, and name their file at data.held_out_files{saved}", "data.held_out_files")


def format_of(value: Any) -> str:
    """Return the layout of rows that a type of theirs names; empty where it names none of ours."""
    return _FORMATS.get(_type_in(value), "")


def _type_in(value: Any) -> str:
    text = str(value)
    return text.rpartition(".")[2] if text.startswith("torchtune") else text.partition(".")[0].partition(":")[0]


def kind(value: Any, given: Given) -> KeyOutcome:
    name = _type_in(value)
    if of_torchtune(value) and not given.get("_data"):
        made = fetched(of_torchtune(value), given.get("dataset_config"), given.get("dataset_split"))
        return turned("data.files", [made.file], f"the data set {of_torchtune(value)}: save its rows in this file first")
    if len(given["_formats"]) > 1:
        return implied("data.format", f"{value}, and other data sets are of other types: the fields of each row tell (auto)")
    if name in _FORMATS:
        why = "the prompt is written by the model's own chat template, not as Alpaca's text" if name == "alpaca" else "the layout of a row"
        sets: dict[str, Any] = {"data.format": _FORMATS[name]} | ({"data.train_on": "all"} if name in ("completion", "pretrain") else {})
        return KeyOutcome("changed", why, "data.format", sets)
    return implied("data.format", f"{value}: the fields of each row tell (auto); data.fields names them where they are called otherwise")


def share(value: Any, given: Given) -> KeyOutcome:
    amount = number(value)
    if amount > 1:
        return left(f"{amount:g} rows there; data.held_out is a share of the rows, at most 0.5", "data.held_out")
    if amount > 0.5:
        return turned("data.held_out", 0.5, "at most half")
    return same("data.held_out", amount, "a share of the rows, drawn by holdfast's seed")


def template(value: Any, given: Given) -> KeyOutcome:
    name = str(value)
    if name == "jinja" or name.startswith("tokenizer_default"):
        return implied("data.chat_template", "chat_template_jinja has it" if name == "jinja" else "the model's own")
    if name in _TEMPLATES:
        return same("data.chat_template", _TEMPLATES[name] or name)
    hint = "data.chat_template gives another: a file of Jinja, {of: MODEL}, or chatml, llama3, gemma"
    return left(f"{name} is no template by name here: the model's own is used; {hint}", "data.chat_template")


def template_file(value: Any, given: Given) -> KeyOutcome:
    text = str(value)
    is_source = "{{" in text or "{%" in text or PurePath(text).suffix.lower() in (".jinja", ".jinja2", ".j2")
    return same("data.chat_template", text if is_source else {"of": text})


def field(ours: str) -> Rule:
    def rule(value: Any, given: Given) -> KeyOutcome:
        if value == ours:
            return implied("data.fields", "called so here, too")
        return KeyOutcome("carried", "what the file calls the field", "data.fields", {f"data.fields.{ours}": str(value)})

    return rule


def own_columns(value: Any, given: Given) -> KeyOutcome:
    """Carry ms-swift's JSON of what the file's columns are."""
    try:
        read = {str(what): str(own) for own, what in json.loads(value).items()}
    except (TypeError, ValueError, AttributeError):
        read = {}
    if not read or not read.keys() <= {"query", "response", "messages", "system"}:
        return left("data.fields says what a row's fields are called, for example data.fields.query", "data.fields")
    return KeyOutcome(
        "carried", "what the file calls its fields", "data.fields", {f"data.fields.{what}": own for what, own in read.items()}
    )


def one_of(ours: str, names: Mapping[str, str]) -> Rule:
    """Return the rule of a key whose values have other names here."""

    def rule(value: Any, given: Given) -> KeyOutcome:
        name = str(value)
        return same(ours, names[name]) if name in names else left(f"{name} is not here: {', '.join(names)} are", ours)

    return rule


def prompt_column(value: Any, given: Given) -> KeyOutcome:
    """Tell where the prompt stands; of pre-training it is the text."""
    return field("text" if str(given.get("objective")) in ("pt", "pretrain") else "instruction")(value, given)


_COLUMNS = {  # of dataset_info.json, and ours
    "query": "input",
    "response": "output",
    **{name: name for name in ("system", "history", "messages", "tools", "chosen", "rejected", "kto_tag")},
}
_ANSWERS = same("data.train_on", "assistant", "answers alone are learned")
_OF_ANSWERS = ("assistant_only_loss", "completion_only_loss")


def learns_answers(value: Any, given: Given) -> KeyOutcome:
    if is_true(value):
        return _ANSWERS
    if any(is_true(given.get(name)) for name in _OF_ANSWERS):
        return implied("data.train_on", "another key has answers alone learned")
    return same("data.train_on", "all", "all tokens are learned")


RULES: dict[str, Rule] = {
    "dataset": rows,
    "data_files": rows,
    "dataset_split": split,
    "dataset_config": split,
    "dataset_test_split": test_split,
    "dataset_ds_type": lambda value, given: implied("data.files", "the form of a file is seen from its contents"),
    "dataset_type": kind,
    "dataset_dir": lambda value, given: implied("data.files", "where dataset_info.json names the files"),
    "dataset_text_field": lambda value, given: (
        implied("data.fields", "rows of plain text have theirs in `text`") if value == "text" else field("text")(value, given)
    ),
    "dataset_field_messages": field("messages"),
    "columns": own_columns,
    "chat_template": template,
    "chat_template_file": template_file,
    "train_on_all": switch(same("data.train_on", "all", "prompts are learned, too"), _ANSWERS),
    **dict.fromkeys(_OF_ANSWERS, learns_answers),
    "mask_history": switch(same("data.train_on", "last", "the last answer alone"), implied("data.train_on", "every answer")),
    "held_share": share,
    "held_out_file": held_rows,
    "unused_rows": lambda value, given: left("loaded there, and not given to the trainer as train_dataset", "data.files"),
    "dataset_info[].columns.prompt": prompt_column,
    **{f"dataset_info[].columns.{theirs}": field(ours) for theirs, ours in _COLUMNS.items()},
    "max_samples": lambda value, given: left(f"`holdfast data sample FILE --rows {value} --out FEWER` draws rows", "data.files"),
    "loss_scale": one_of("data.train_on", {"default": "assistant", "last_round": "last", "all": "all"}),
    "truncation_strategy": one_of("data.too_long", {"delete": "reject", "right": "cut"}),
    "excess_length_strategy": lambda value, given: same("data.too_long", "cut" if str(value).startswith("trunc") else "reject"),
}
