"""Whether a script trains again behind the place where it stood, as its source says. Reads it, runs nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ABOVE = 3  # folders from which its imports may be counted: its own, and those of the packages it is in
_MOST = 100  # files that are read
_LEAVE = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def trains_later(frames: Iterable[tuple[str, int]]) -> bool:
    """Return whether another `.train(...)` follows a line that one of these (file, line) stands at; False where that cannot be read.

    Functions of the same file are looked into, and those of files beside it that it imports. `model.train()` is none.
    """
    return any(_follows(Path(file), line) for file, line in frames)


def _follows(file: Path, line: int) -> bool:
    tree = _tree(file)
    return bool(tree.body and _called(_behind(tree.body, line)) & _that_train(file, tree, {file: set()}))


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _that_train(file: Path, tree: ast.Module, read: dict[Path, set[str]]) -> set[str]:
    """Return the names by which a file calls a training. read: those of the files that were looked into, empty while one is."""
    bodies = {node.name: node.body for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    training = ({"train"} - set(bodies)) | {".train"} | _imported(file, tree, read)
    known = 0
    while len(training) > known:
        known = len(training)
        training |= {name for name, body in bodies.items() if _called(body) & training}
    return training


def _imported(file: Path, tree: ast.Module, read: dict[Path, set[str]]) -> set[str]:
    """Return the names of functions that train and that a file takes from others beside it, or calls as `module.name`."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        level, package = (node.level, node.module or "") if isinstance(node, ast.ImportFrom) else (0, "")
        names = _names_in(file, package, level, read)
        found |= {one.asname or one.name for one in node.names if one.name in names}
        for one in node.names:
            inside = _names_in(file, f"{package}.{one.name}".strip("."), level, read)
            found |= {f"{one.asname or one.name}.{name}" for name in inside}
    return found


def _names_in(file: Path, module: str, level: int, read: dict[Path, set[str]]) -> set[str]:
    """Return the names that train of a module that a file imports; empty where it is none of the files beside it."""
    for root in (file.parents[level - 1 : level] if level else file.parents[:_ABOVE]) if module else ():
        place = root.joinpath(*module.split("."))
        for other in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if other in read or (len(read) < _MOST and other.is_file()):
                if other not in read:
                    read[other] = set()
                    read[other] = _that_train(other, _tree(other), read)
                return read[other]
    return set()


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
            found |= {node.func.attr, ast.unparse(node.func)} if node.func.attr != "train" else {"model.train" if of_model else ".train"}
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
