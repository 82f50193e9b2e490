"""Read what a training script says, from its syntax tree: literal arguments of calls that are known. Nothing of it is run or imported."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from holdfast.config.foreign.keys import ComputedValue, ForeignConfig, Key, flatten
from holdfast.config.foreign.script_changes import changes
from holdfast.config.foreign.script_rows import LOADERS, DatasetOrigin, ScriptRows, argument, rows_given
from holdfast.row_sources.splits import judges

_ARGUMENTS = {  # classes whose arguments are those of a training
    *("TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments", "SFTConfig", "DPOConfig", "KTOConfig", "ORPOConfig"),
    *("CPOConfig", "RewardConfig", "GRPOConfig", "PPOConfig", "RLOOConfig", "OnlineDPOConfig", "BCOConfig", "GKDConfig", "PRMConfig"),
}
_TRAINERS = {
    *("Trainer", "Seq2SeqTrainer", "UnslothTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer"),
    *("RewardTrainer", "GRPOTrainer", "PPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "BCOTrainer", "GKDTrainer", "PRMTrainer"),
    "SentenceTransformerTrainer",
}
_PEFT_TYPES = {"LoraConfig": "LORA", "AdaLoraConfig": "ADALORA", "IA3Config": "IA3", "PromptTuningConfig": "PROMPT_TUNING"}
_NOT_HERE = "LoHa LoKr Vera OFT BOFT PrefixTuning PromptEncoder LNTuning FourierFT RandLora Shira Miss"
_PEFT_TYPES |= {f"{name}Config": name.upper() for name in _NOT_HERE.split()}
_ADAPTERS = ("get_peft_model", *_PEFT_TYPES)
_QUANTISERS = ("BitsAndBytesConfig",)
_PLAIN = ("train_on_responses_only", "get_chat_template")
_FIRST = {
    "load_dataset": ("path", "name"),
    "load_from_disk": ("path",),
    "from_pretrained": ("model_name",),
    "TrainingArguments": ("output_dir",),
}
_OBJECTS = ("model", "args", "train_dataset", "tokenizer", "processing_class", "eval_dataset", "peft_config", "quantization_config")


def read_script(text: str, file: str = "") -> ForeignConfig:
    """Read the keys of a Python script, or of a notebook. Raises SyntaxError where it is neither."""
    tree = _without_subclasses(ast.parse(_python(text, file)))
    names = _literals(tree)
    keys: list[Key] = []
    trains = ""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = rows_given(tree, [call for call in calls if _name(call.func) in _TRAINERS])
    for call in calls:
        name = _name(call.func)
        if name in _TRAINERS or name in _ARGUMENTS:
            trains = name if name in _TRAINERS or not trains else trains
        keys += _keys_of_rows(call, name, names, given) if name in LOADERS else _keys_of(call, name, names)
    keys = [*_set_later(tree, names), *keys]
    if not any(key.theirs == "peft_type" for key in keys):
        keys += _unread_adapter(calls)
    if not given.known and any(_name(call.func) in LOADERS for call in calls):
        keys.append(Key("train_dataset", ComputedValue(given.unread or "no trainer is given it here"), "trainer"))
    if keys:
        keys += changes(tree, given)
    imports = {part for node in ast.walk(tree) for part in _imported(node)}
    program = "Unsloth" if "unsloth" in imports else "TRL" if "trl" in imports else "transformers"
    if not keys or not (trains or any("get_peft_model" in key.where or "LoraConfig" in key.where for key in keys)):
        program = ""
    return ForeignConfig(program, "script", tuple(keys), trains)


def _without_subclasses(tree: ast.Module) -> ast.Module:
    """Call what a script derives from trainers, and from their arguments, by the name of what it is derived from: it takes the same."""
    derived = {
        node.name: base
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in map(_name, node.bases)
        if base in (*_TRAINERS, *_ARGUMENTS)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            node.func.id = derived.get(node.func.id, node.func.id)
    return tree


def _python(text: str, file: str) -> str:
    """Return the Python of a file: cells of a notebook are joined, lines for the shell or IPython left out."""
    if file.endswith(".ipynb"):
        cells = [cell for cell in json.loads(text).get("cells", []) if cell.get("cell_type") == "code"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    lines = []
    for line in text.splitlines():
        bare = line.lstrip()
        lines.append(f"{line[: len(line) - len(bare)]}pass" if bare[:1] in ("!", "%") else line)
    return "\n".join(lines)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _keys_of(call: ast.Call, name: str, names: dict[str, Any]) -> Iterator[Key]:
    """Yield the keys that a call gives; none where it is no call of a training."""
    of = ast.unparse(call.func) if name == "from_pretrained" else ""
    loads = bool(of) and not any(part in of for part in ("Tokenizer", "Processor", "Config.", "PeftModel."))
    trained = any(key == "is_trainable" and _value(node, names) is True for key, node in _named(call))
    if trained and of.rpartition(".")[0].endswith("PeftModel") and (adapter := argument(call, "model_id", 1)):
        yield Key("adapter_name_or_path", _value(adapter, names), f"PeftModel, line {call.lineno}")
    if not (loads or name in (*_ARGUMENTS, *_TRAINERS, *_ADAPTERS, *_QUANTISERS, *_PLAIN)):
        return
    where = f"{name}, line {call.lineno}"
    role = _role(name, loads)
    if role == "marks":
        named = [Key(f"{name}.{key}", _value(node, names), where) for key, node in _named(call) if key == "chat_template"]
        yield from named or [Key(name, True, where)]
        return
    if name in _PEFT_TYPES:
        yield Key("peft_type", _PEFT_TYPES[name], where)
    positions = ("model",) if name in _TRAINERS else _FIRST.get(name, ())
    given = list(zip(positions, call.args, strict=False)) + [(word.arg, word.value) for word in call.keywords if word.arg]
    for key, node in given:
        is_name = key == "model" and isinstance(node, ast.Name) and isinstance(names.get(node.id), str)
        is_object = key in _OBJECTS and isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        if is_object and not is_name and role in ("trainer", "adapter", "model"):
            continue  # its own call is read
        value = _value(node, names)
        yield from flatten(value, f"{role}.{key}" if role == "quantised" else str(key), where)
    for word in (word for word in call.keywords if word.arg is None):
        yield from _unpacked(word.value, role, names, where)


def _unpacked(node: ast.expr, role: str, names: dict[str, Any], where: str) -> Iterator[Key]:
    """Yield the keys of `**node` in a call; one that is not read where they are no literals."""
    value = _value(node, names)
    for key, inside in value.items() if isinstance(value, dict) else ():
        yield from flatten(inside, f"{role}.{key}" if role == "quantised" else str(key), where)
    if isinstance(value, ComputedValue):
        yield Key(f"**{value.source}", value, where)


def _set_later(tree: ast.AST, names: dict[str, Any]) -> Iterator[Key]:
    """Yield the keys that a script sets on its arguments after it has made them: they count."""
    calls = ((name, value) for node in ast.walk(tree) for name, value in _bound(node) if isinstance(value, ast.Call))
    made = {name for name, call in calls if _name(call.func) in _ARGUMENTS}
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in made:
                assert isinstance(node, ast.Assign)
                yield Key(target.attr, _value(node.value, names), f"set in line {node.lineno}")


def _unread_adapter(calls: list[ast.Call]) -> Iterator[Key]:
    """Yield a key for an adapter whose config is made elsewhere."""
    for call in calls:
        name = _name(call.func)
        config = argument(call, "peft_config", 1 if name == "get_peft_model" else len(call.args))
        made = config is not None and not (isinstance(config, ast.Constant) or "get_peft_config" in ast.unparse(config))
        if config is not None and made and (name in _TRAINERS or name == "get_peft_model"):
            yield Key("peft_type", ComputedValue(ast.unparse(config)[:100]), f"{name}, line {call.lineno}")
            return


def _keys_of_rows(call: ast.Call, name: str, names: dict[str, Any], rows: ScriptRows) -> Iterator[Key]:
    """Yield the keys of a call that loads rows: all, for rows that are learned; the names alone, for those that judge and for others."""
    where = f"{name}, line {call.lineno}"
    positional = zip(_FIRST[name], call.args, strict=False)
    given = {key: _value(node, names) for key, node in [*positional, *_named(call)]}
    files, asked = given.pop("data_files", None), given.pop("split", None)
    learned, judging = ([_split_of(one, names) for one in of if one.call is call] for of in (rows.learned, rows.judging))
    if not rows.known:  # by the name of the split, where it has one
        learned, judging = ([], [asked]) if isinstance(asked, str) and judges(asked.partition("[")[0]) else ([asked], [])
    for number, split in enumerate(learned):
        at = where if not number else f"{where}, again"
        of_split = files[split] if isinstance(files, dict) and isinstance(split, str) and split in files else files
        for key, value in given.items():
            yield from flatten(value, f"dataset.{key}", at)
        if of_split is not None:
            yield from flatten(of_split, "dataset.data_files", at)
        if split is None and rows.known and name == "load_dataset" and files is None:
            split = ComputedValue("train_dataset is given no split of it")
        if split is not None:
            yield Key("dataset.split", split, at)
    for split in judging:
        of_split = files.get(split) if isinstance(files, dict) else files
        if of_split is None or split not in learned:
            yield from flatten(of_split or given.get("path"), "eval_dataset", where)
    if not learned and not judging:
        yield from flatten(files or given.get("path"), "unused_dataset", where)


def _named(call: ast.Call) -> list[tuple[str, ast.expr]]:
    return [(word.arg, word.value) for word in call.keywords if word.arg]


def _split_of(origin: DatasetOrigin, names: dict[str, Any]) -> Any:
    return None if origin.split is None else _value(origin.split, names)


def _role(name: str, loads: bool) -> str:
    if loads:
        return "model"
    if name in _PLAIN:
        return "marks"
    if name in _QUANTISERS:
        return "quantised"
    return "trainer" if name in _TRAINERS else "adapter" if name in _ADAPTERS else "arguments"


def _literals(tree: ast.AST) -> dict[str, Any]:
    """Collect names that stand for one literal, options of argparse with their defaults, and fields of dataclasses, as `args.NAME`."""
    found: dict[str, Any] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        for name, value in _bound(node):
            twice |= {name} if name in found else set()
            found[name] = value
    plain: dict[str, Any] = {}
    for _ in range(3):  # a name may stand for another one
        plain |= {
            name: value for name, node in found.items() if name not in twice and not isinstance(value := _value(node, plain), ComputedValue)
        }
    return plain


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    elif isinstance(node, ast.Call) and _name(node.func) == "add_argument" and node.args:
        option = next((arg.value for arg in node.args if isinstance(arg, ast.Constant) and str(arg.value).startswith("--")), None)
        default = next((word.value for word in node.keywords if word.arg == "default"), None)
        if option and default is not None:
            yield f"args.{str(option).lstrip('-').replace('-', '_')}", default


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Evaluate an expression of literals; return its source where it is none."""
    try:
        return _of(node, names)
    except (ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError):
        return ComputedValue(ast.unparse(node)[:100])


def _of(node: ast.expr, names: dict[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.Attribute():
            source = ast.unparse(node)
            if source.startswith("torch."):
                return source.removeprefix("torch.")
            return names[f"args.{node.attr}"]
        case ast.List() | ast.Tuple():
            return [_of(item, names) for item in node.elts]
        case ast.Dict() if all(key is not None for key in node.keys):
            return {str(_of(key, names)): _of(value, names) for key, value in zip(node.keys, node.values, strict=True) if key is not None}
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return {word.arg: _of(word.value, names) for word in node.keywords if word.arg}
        case ast.UnaryOp(op=ast.USub()):
            return -_of(node.operand, names)
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub() | ast.Div() | ast.FloorDiv()):
            return _computed(node, _of(node.left, names), _of(node.right, names))
        case ast.JoinedStr():
            return "".join(str(_of(part.value if isinstance(part, ast.FormattedValue) else part, names)) for part in node.values)
    raise ValueError(ast.unparse(node))


def _computed(node: ast.BinOp, first: Any, second: Any) -> Any:
    """Compute the arithmetic of two plain numbers, or join two texts."""
    if isinstance(node.op, ast.Add) and isinstance(first, str) and isinstance(second, str):
        return first + second
    if not (isinstance(first, int | float) and isinstance(second, int | float)):
        raise ValueError("no numbers")
    match node.op:
        case ast.Mult():
            return first * second
        case ast.Add():
            return first + second
        case ast.Sub():
            return first - second
        case ast.Div():
            return first / second
    return first // second
