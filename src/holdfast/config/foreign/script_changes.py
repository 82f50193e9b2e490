"""What a training script does to its rows, model and tokenizer between loading and training, which no key carries. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.config.foreign.keys import ComputedValue, Key
from holdfast.config.foreign.script_rows import changes_of_rows

_LONGEST = 80
_SET = {"requires_grad": "model.requires_grad", "chat_template": "tokenizer.chat_template"}
_CALLED = {
    "requires_grad_": "model.requires_grad",
    "resize_token_embeddings": "model.resize_token_embeddings",
    "add_tokens": "tokenizer.add_tokens",
    "add_special_tokens": "tokenizer.add_tokens",
}
_METHODS = ("compute_loss", "training_step", "create_optimizer", "get_train_dataloader", "_get_train_sampler")


def changes(tree: ast.AST) -> Iterator[Key]:
    """Yield a key for each step of a script that changes rows, weights, tokens or the trainer itself, with its line, in their order."""
    steps = [(call.end_lineno or 0, f"dataset_step.{method}", _arguments(method, call)) for method, call in changes_of_rows(tree)]
    steps += [step for node in ast.walk(tree) for step in _of_node(node)]
    for line, name, text in sorted(steps, key=lambda step: step[0]):
        shown = " ".join(text.split())
        yield Key(name, ComputedValue(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ..."), f"line {line}")


def _arguments(method: str, call: ast.Call) -> str:
    return f".{method}({', '.join(ast.unparse(one) for one in [*call.args, *call.keywords])})"


def _of_node(node: ast.AST) -> Iterator[tuple[int, str, str]]:
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
