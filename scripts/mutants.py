"""Where code can be broken by one small change, and the change. Runs nothing: that is mutations.py's job."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Place = tuple[int, int]  # line from 1, byte in it from 0
KINDS = ("comparison", "condition", "constant", "call")
TURNED = {
    ast.Lt: ("<", ">"),
    ast.Gt: (">", "<"),
    ast.LtE: ("<=", ">="),
    ast.GtE: (">=", "<="),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
COMPOUND = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(frozen=True)
class Site:
    """One place and the text put there; known in another tree by function, kind, code and ordinal."""

    path: str  # below the package
    function: str  # qualified name inside its module
    kind: str
    code: str  # the statement or condition around the place, as ast.unparse writes it
    ordinal: int  # among places alike in all of the above
    line: int
    begin: int  # byte offsets in the file
    end: int
    text: str

    @property
    def room(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")


Pair = tuple[Site, Site]


def sites_of(path: str, source: bytes) -> list[Site]:
    """Every place of one file, in the file's order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for function, home, node in _walk(ast.parse(source), "", None):
        for kind, first, last, new in _changes(node):
            begin, end = starts[first[0] - 1] + first[1], starts[last[0] - 1] + last[1]
            change = new(source[begin:end].decode("utf-8"))
            if change is None:
                continue
            code = ast.unparse(home)
            key = (function, kind, code)
            found.append(Site(path, function, kind, code, seen[key], first[0], begin, end, change))
            seen[key] += 1
    return found


def mutated(source: bytes, site: Site) -> bytes:
    return source[: site.begin] + site.text.encode("utf-8") + source[site.end :]


def sites_in(package: Path, without: Collection[str] = ()) -> list[Site]:
    """Every place of a package but of folders or files in `without`, sorted by what survives a move."""
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        if not any(path == name or path.startswith(f"{name}/") for name in without):
            found += sites_of(path, file.read_bytes())
    return sorted(found, key=lambda site: (site.function, site.kind, site.code, site.ordinal, site.path))


def draw(sites: Iterable[Site], count: int, seed: int) -> list[Site]:
    """`count` places, as many of each kind as there are, at random."""
    by_kind: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_kind[site.kind].append(site)
    for kind in KINDS:
        random.Random(f"{seed} {kind}").shuffle(by_kind[kind])
    drawn: list[Site] = []
    while len(drawn) < count and any(by_kind.values()):
        drawn += [by_kind[kind].pop() for kind in KINDS if by_kind[kind]]
    return drawn[:count]


def found_again(recorded: list[Site], sites: list[Site], seed: int) -> tuple[list[Site], list[Pair]]:
    """The recorded places in this tree, and each that is gone with the one drawn from its room instead."""
    alike: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for site in sites:
        alike[site.function, site.kind, site.code].append(site)
    here: list[Site] = []
    gone = []
    for old in recorded:
        candidates = [site for site in alike[old.function, old.kind, old.code] if site not in here]
        if candidates:
            here.append(min(candidates, key=lambda site: _apart(old, site)))
        else:
            gone.append(old)
    replaced = []
    for old in gone:
        left = [site for site in sites if site not in here and site.kind == old.kind]
        new = draw([site for site in left if site.room == old.room] or left, 1, seed)[0]
        here.append(new)
        replaced.append((old, new))
    return here, replaced


def _apart(old: Site, new: Site) -> tuple[bool, bool, bool, int]:
    names = Path(old.path).name != Path(new.path).name
    return old.path != new.path, names, old.room != new.room, abs(old.ordinal - new.ordinal)


def _walk(node: ast.AST, function: str, home: ast.AST | None) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(qualified name, statement or condition around it, node) of all code that runs; annotations do not."""
    for child in _children(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _walk(child, f"{function}.{child.name}".lstrip("."), None)
        elif isinstance(child, (*COMPOUND, ast.ExceptHandler, ast.match_case)):
            if isinstance(child, (ast.If, ast.While)):
                yield function, child.test, child
            yield from _walk(child, function, None)
        else:
            around = home if home and not isinstance(child, ast.stmt) else child
            yield function, around, child
            yield from _walk(child, function, around)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations, decorators and f-strings, whose parts have no true places before Python 3.12."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield child


def _changes(node: ast.AST) -> Iterator[tuple[str, Place, Place, Callable[[str], str | None]]]:
    """(kind, begin, end, what the text between becomes)."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        word, other = TURNED[type(node.ops[0])]
        right = node.comparators[0]
        yield "comparison", _end(node.left), _begin(right), lambda old: _swapped(old, word, other)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for moved in (node.value + 1, node.value - 1):
            yield "constant", _begin(node), _end(node), lambda _, moved=moved: f"({moved!r})"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call", _begin(node), _end(node), lambda _: "pass"
    tests = [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp)) else getattr(node, "ifs", [])
    for test in tests:
        yield "condition", _begin(test), _end(test), lambda old: f"(not ({old}))"


def _swapped(old: str, word: str, other: str) -> str | None:
    pattern = rf"\b{word}\b" if word[0].isalpha() else re.escape(word)
    new, times = re.subn(pattern, other, old)
    return new if times == 1 else None


def _begin(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
