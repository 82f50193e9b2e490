"""Which of the data sets that a script loads its trainer learns from, and which judge: followed through its assignments. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LOADERS = ("load_dataset", "load_from_disk")
_SAME_ROWS = {  # methods of a data set that give the same rows, some of them or others made of them
    *("map", "filter", "shuffle", "select", "sort", "take", "skip", "shard", "flatten", "flatten_indices", "train_test_split", "batch"),
    *("rename_column", "rename_columns", "remove_columns", "select_columns", "add_column", "cast", "cast_column", "class_encode_column"),
    *("with_format", "with_transform", "to_iterable_dataset", "repeat"),
}
_ROWS_KEPT = {"flatten", "flatten_indices", "with_format", "to_iterable_dataset", "class_encode_column", "batch"}  # of them; the same rows
_STANDARDISED = ("standardize_sharegpt", "standardize_data_formats", "to_sharegpt")  # functions of Unsloth's: rows written in another way
_JOINED = ("concatenate_datasets", "interleave_datasets")
_POSITIONS = {"DPOTrainer": 4}  # of train_dataset among the arguments of a trainer; of eval_dataset one more
_POSITION, _DEEPEST = 3, 50


class DatasetOrigin(NamedTuple):
    """A call that loads a data set, and what picks a split of it; None where nothing does. cut, part: of a train_test_split."""

    call: ast.Call
    split: ast.expr | None
    cut: ast.Call | None = None
    part: ast.expr | None = None


class Bound(NamedTuple):
    """An assignment: its line, what is assigned, and which of several names it was (-1: the only one)."""

    line: int
    value: ast.expr
    place: int


@dataclass
class Assignments:
    """Of a script: by the name. instead: lines of which a run has either the first or the second, as of `if` and `else`."""

    of: dict[str, list[Bound]] = field(default_factory=dict)
    instead: list[tuple[range, range]] = field(default_factory=list)

    def before(self, name: str, line: int) -> Bound | None:
        """Return what a name stands for at a line; None where that is nothing, or one thing or another."""
        found = sorted((one for one in self.of.get(name, ()) if one.line < line), key=lambda one: one.line)
        if not found:
            return None
        either = any(
            found[-1].line in second and line not in second and any(one.line in first for one in found) for first, second in self.instead
        )
        return None if either else found[-1]


@dataclass
class ScriptRows:
    """What a script's trainers are given. unread: what stands for train_dataset where that cannot be followed, else ""."""

    learned: list[DatasetOrigin] = field(default_factory=list)
    judging: list[DatasetOrigin] = field(default_factory=list)
    unread: str = ""

    @property
    def known(self) -> bool:
        """Whether all that is learned could be followed to where it is loaded."""
        return bool(self.learned) and not self.unread


def rows_given(tree: ast.AST, trainers: list[ast.Call]) -> ScriptRows:
    """Return what the trainers of a script are given as train_dataset and eval_dataset."""
    bound = _bound_in(tree)
    found = ScriptRows()
    for call in trainers:
        for place, name in enumerate(("train_dataset", "eval_dataset")):
            given = argument(call, name, _POSITIONS.get(_called(call), _POSITION) + place)
            if given is None or (isinstance(given, ast.Constant) and given.value is None):
                continue
            origins = _origins(given, call.lineno, bound)
            if name == "eval_dataset":
                found.judging += origins or []
            elif origins is None:
                found.unread = ast.unparse(given)[:100]
            else:
                found.learned += origins
    return found


def changes_of_rows(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Return the calls that make other rows of a data set the script loads, with the method's name."""
    bound = _bound_in(tree)
    methods = _SAME_ROWS - _ROWS_KEPT
    calls = [(_called(node), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        (name, call)
        for name, call in calls
        if (name in _STANDARDISED or (name in methods and isinstance(call.func, ast.Attribute))) and _origins(call, call.lineno, bound)
    ]


def _bound_in(tree: ast.AST) -> Assignments:
    """Return the assignments of a script, and which of its lines are instead of others."""
    bound = Assignments()
    for node in ast.walk(tree):
        for name, one in _assigned(node):
            bound.of.setdefault(name, []).append(one)
        if isinstance(node, ast.If | ast.Try) and (other := node.orelse if isinstance(node, ast.If) else node.handlers):
            bound.instead.append((_lines(node.body), _lines(other)))
    return bound


def _lines(nodes: Sequence[ast.stmt | ast.ExceptHandler]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return what a call gives by name or by place."""
    named = next((word.value for word in call.keywords if word.arg == name), None)
    return named or (call.args[place] if len(call.args) > place else None)


def _assigned(node: ast.AST) -> list[tuple[str, Bound]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [(node.target.id, Bound(node.lineno, node.value, -1))]
    if not isinstance(node, ast.Assign):
        return []
    found = []
    for target in node.targets:
        if isinstance(target, ast.Name):
            found.append((target.id, Bound(node.lineno, node.value, -1)))
        elif isinstance(target, ast.Tuple | ast.List):
            names = [(one.id, at) for at, one in enumerate(target.elts) if isinstance(one, ast.Name)]
            found += [(name, Bound(node.lineno, node.value, at)) for name, at in names]
    return found


def _origins(node: ast.expr, line: int, bound: Assignments, depth: int = 0) -> list[DatasetOrigin] | None:
    """Trace where the rows of an expression at this line come from; None where that cannot be followed."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Name():
            one = bound.before(node.id, line)
            return _of_assignment(one, bound, depth) if one else None
        case ast.Subscript():
            inside = _origins(node.value, line, bound, depth + 1)
            return inside and [_picked(one, node.slice) for one in inside]
        case ast.Call() if _called(node) in LOADERS:
            return [DatasetOrigin(node, argument(node, "split", len(node.args)))]
        case ast.Call() if _called(node) in _STANDARDISED and (of_rows := argument(node, "dataset", 0)):
            return _origins(of_rows, line, bound, depth + 1)
        case ast.Call() if _called(node) in _JOINED and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            parts = [_origins(one, line, bound, depth + 1) for one in node.args[0].elts]
            return None if None in parts else [one for part in parts for one in part or ()]
        case ast.Call(func=ast.Attribute(attr=method, value=inner)) if method in _SAME_ROWS:
            of = _origins(inner, line, bound, depth + 1)
            return [one._replace(cut=node, part=None) for one in of] if of and method == "train_test_split" else of
    return None


def _picked(one: DatasetOrigin, name: ast.expr) -> DatasetOrigin:
    """Return the part of this name: of a train_test_split where one was made, else of what was loaded."""
    if one.cut is not None and one.part is None:
        return one._replace(part=name)
    return one if one.split is not None else one._replace(split=name)


def _of_assignment(one: Bound, bound: Assignments, depth: int) -> list[DatasetOrigin] | None:
    if one.place < 0:
        return _origins(one.value, one.line, bound, depth + 1)
    if isinstance(one.value, ast.Tuple | ast.List):
        return _origins(one.value.elts[one.place], one.line, bound, depth + 1) if one.place < len(one.value.elts) else None
    inside = _origins(one.value, one.line, bound, depth + 1)
    if inside is None or len(inside) != 1 or not isinstance(splits := inside[0].split, ast.List | ast.Tuple):
        return None  # what a call gives of several is not known
    return [inside[0]._replace(split=splits.elts[one.place])] if one.place < len(splits.elts) else None
