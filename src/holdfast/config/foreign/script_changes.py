"""What a training script does to its rows, model and tokenizer between loading and training, which no key carries. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.config.foreign.keys import ComputedValue, Key
from holdfast.config.foreign.script_rows import ScriptRows, changes_of_rows

_LONGEST = 80
_SET = {"requires_grad": "model.requires_grad", "chat_template": "tokenizer.chat_template"}
_CALLED = {
    "requires_grad_": "model.requires_grad",
    "resize_token_embeddings": "model.resize_token_embeddings",
    "add_tokens": "tokenizer.add_tokens",
    "add_special_tokens": "tokenizer.add_tokens",
}
_METHODS = ("compute_loss", "training_step", "create_optimizer", "get_train_dataloader", "_get_train_sampler")


_SOME = {"select", "take", "skip", "shard"}  # which rows these give depends on their order
_DEFAULT_SHARE = 0.25  # of train_test_split


def changes(tree: ast.AST, given: ScriptRows) -> Iterator[Key]:
    """Yield a key for each step of a script that changes rows, weights, tokens or the trainer itself, with its line, in their order."""
    calls = changes_of_rows(tree)
    ordered = _SOME.isdisjoint(method for method, _ in calls)
    steps = [(call.end_lineno or 0, *_of_rows(method, call, given, ordered)) for method, call in calls]
    steps += [step for node in ast.walk(tree) for step in _of_node(node)]
    for line, name, value in sorted(steps, key=lambda step: step[0]):
        shown = " ".join(value.split()) if isinstance(value, str) else ""
        text = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ..."
        yield Key(name, value if isinstance(value, float) else text if name == "shuffle" else ComputedValue(text), f"line {line}")


def _of_rows(method: str, call: ast.Call, given: ScriptRows, ordered: bool) -> tuple[str, str | float]:
    """Return the key of a step that makes other rows, and its value: a key of others where it has one, as the share that is held out."""
    if method == "train_test_split" and any(one.cut is call and _is(one.part, "train") for one in given.learned):
        named = {word.arg: word.value for word in call.keywords}
        share = call.args[0] if call.args else named.get("test_size")
        if share is None and "train_size" not in named:
            return "test_size", _DEFAULT_SHARE
        if isinstance(share, ast.Constant) and isinstance(share.value, int | float):
            return "test_size", float(share.value)
    if method == "shuffle" and ordered:
        return "shuffle", _arguments(method, call)
    return f"dataset_step.{method}", _arguments(method, call)


def _is(node: ast.expr | None, value: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _arguments(method: str, call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return ast.unparse(call)
    return f".{method}({', '.join(ast.unparse(one) for one in [*call.args, *call.keywords])})"


def _of_node(node: ast.AST) -> Iterator[tuple[int, str, str | float]]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr in _SET:
                yield node.lineno, f"script_step.{_SET[target.attr]}", ast.unparse(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLED:
        yield node.lineno, f"script_step.{_CALLED[node.func.attr]}", ast.unparse(node)
    elif isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Trainer") for base in node.bases):
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name in _METHODS:
                yield inner.lineno, f"script_step.{node.name}.{inner.name}", f"{inner.name} of {node.name}"
