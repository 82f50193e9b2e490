"""Whether a script trains again behind the place where it stood, as its source says. Reads it, runs nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVE = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def trains_later(frames: Iterable[tuple[str, int]]) -> bool:
    """Return whether another `.train(...)` follows a line that one of these (file, line) stands at; False where that cannot be read.

    Functions of the same file are looked into. `model.train()` is none.
    """
    return any(_follows(Path(file), line) for file, line in frames)


def _follows(file: Path, line: int) -> bool:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    bodies = {node.name: node.body for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    training = {"train"} - set(bodies)
    known = 0
    while len(training) > known:
        known = len(training)
        training |= {name for name, body in bodies.items() if _called(body) & (training | {".train"})}
    return bool(_called(_behind(tree.body, line)) & (training | {".train"}))


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these statements call; `.train` for that method of anything but a model."""
    found = set()
    for node in nodes:
        if isinstance(node, _DEFINES):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_model = ast.unparse(node.func.value).lower().endswith("model")
            found.add(node.func.attr if node.func.attr != "train" else "model.train" if of_model else ".train")
        found |= _called(ast.iter_child_nodes(node))
    return found


def _behind(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements of a body that are carried out behind a line of it: of a loop all, of another branch none."""
    for at, node in enumerate(body):
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        inner = next((block for block in _blocks(node) if block[0].lineno <= line <= (block[-1].end_lineno or 0)), None)
        found = _behind(inner, line) if inner else []
        if isinstance(node, _DEFINES):
            return found
        left = next((one for one in [node, *found] if isinstance(one, _LEAVE)), None)
        if isinstance(node, _LOOPS) and inner is node.body and (left is None or isinstance(left, ast.Continue)):
            found += node.body
        if isinstance(node, ast.Try) and inner is node.body:
            found += [*node.orelse, *node.finalbody]
        rest = list(body[at + 1 :])
        end = next((place for place, one in enumerate(rest, 1) if isinstance(one, _LEAVE)), len(rest))
        return found if isinstance(left, (ast.Return, ast.Raise)) else found + rest[:end]
    return []


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block
    for part in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
        yield part.body
