"""Break the code on purpose, one small change at a time, and count how often the tests notice.

    nice python scripts/mutations.py --out OUT                          # draws the places, writes OUT/sites.jsonl
    nice python scripts/mutations.py --out AFTER --sites OUT/sites.jsonl      # the same places in another tree

Works in a copy of the tree below the temporary folder. A mutant meets the tests of the few files that import
its module most directly, of each file as many as pass within `--seconds` of CPU time without it, the nearest file
first; it is caught when one fails or when they take five times as long and a minute more. A second call goes on.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutants import Site, draw, found_again, mutated, sites_in

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "runs", "build")
RUNS_COMMANDS = re.compile(r"\b(holdfast|start|call|main)\(|-m holdfast|\"-m\", ")
HANG_FACTOR, HANG_MORE_S, WALL_PER_CPU = 5, 60, 8
MARK, CPU_S = "MUTATIONS_OF", "MUTATIONS_CPU_S"
Ended = tuple[int | None, list[tuple[str, bool]]]


@dataclass(frozen=True)
class Tests:
    """What of one test file passes on the unbroken tree within the time given to a file."""

    file: str
    passing: list[str]
    seconds: float


@dataclass
class TrainingState:
    """A private copy of a tree, and how its tests are run there."""

    tree: Path
    package: str
    out: Path
    files: int
    seconds: float
    known: dict[str, Tests] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mutations-"))
        self.copy = self.home / "tree"
        shutil.copytree(self.tree, self.copy, ignore=LEFT_OUT, symlinks=True)
        self.source = self.copy / "src" / self.package
        self.near = Nearness(self.copy, self.package)
        if (self.out / "unbroken.jsonl").exists():
            self.known = {row["file"]: Tests(**row) for row in _rows(self.out / "unbroken.jsonl")}

    def judge(self, site: Site) -> dict[str, Any]:
        """Break one place, run the tests that see it, mend it again."""
        chosen = self._tests_for(site.path)
        keep = [name for tests in chosen for name in tests.passing]
        files = [tests.file for tests in chosen]
        answer: dict[str, Any] = {"site": asdict(site), "files": files, "tests": len(keep)}
        file = self.source / site.path
        source = file.read_bytes()
        broken = mutated(source, site)
        if not keep or not _compiles(broken):
            return answer | {"outcome": "unseen" if not keep else "invalid", "seconds": 0.0, "by": None}
        began = time.monotonic()
        try:
            _replace(file, broken)
            limit = HANG_FACTOR * sum(tests.seconds for tests in chosen) + HANG_MORE_S
            code, told = self._pytest(files, limit, keep)
        finally:
            _replace(file, source)
        failed = next((name for name, passed in told if not passed), "collection" if code else None)
        by = "hang" if code is None else failed
        outcome = "survived" if code == 0 else "caught"
        return answer | {"outcome": outcome, "seconds": round(time.monotonic() - began, 1), "by": by}

    def _tests_for(self, path: str) -> list[Tests]:
        """The nearest files that have a test which passes in time."""
        chosen: list[Tests] = []
        for file in self.near.files(path):
            if len(chosen) < self.files and (tests := self._unbroken(file)).passing:
                chosen.append(tests)
        return chosen

    def _unbroken(self, file: str) -> Tests:
        if file not in self.known:
            began = time.monotonic()
            _, told = self._pytest([file], WALL_PER_CPU * self.seconds, None)
            passing = [name for name, passed in told if passed]
            self.known[file] = Tests(file, passing, round(time.monotonic() - began, 1))
            _append(self.out / "unbroken.jsonl", asdict(self.known[file]))
        return self.known[file]

    def _pytest(self, files: list[str], limit_s: float, keep: list[str] | None) -> Ended:
        """Exit code (None: the limit passed) and (test, whether it passed); leaves no process, no file."""
        scratch = Path(tempfile.mkdtemp(dir=self.home))
        (scratch / "keep").write_text(json.dumps(keep))
        paths = f"{self.copy / 'src'}:{Path(__file__).parent}"
        extra = {MARK: str(scratch), "TMPDIR": str(scratch), "PYTHONPATH": paths, CPU_S: str(self.seconds)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutations", *files]
        command += ["-x"] if keep is not None else []
        with (scratch / "output").open("wb") as output:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            child = subprocess.Popen(command, cwd=self.copy, env=os.environ | extra, **streams)
            try:
                code: int | None = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_all(str(scratch))
                child.wait()
        told = scratch / "told"
        ends = [(row["test"], row["passed"]) for row in _rows(told)] if told.exists() else []
        shutil.rmtree(scratch, ignore_errors=True)
        return code, ends


class Nearness:
    """Which test files see a module, the most direct first, by imports that are written in the code."""

    def __init__(self, tree: Path, package: str) -> None:
        self._package = package
        files = {self._module(file, tree / "src"): file for file in (tree / "src" / package).rglob("*.py")}
        self._names = set(files)
        self._uses = {name: self._named_in(file) for name, file in files.items()}
        self._give_orphans_a_parent()
        tests = (tree / "tests").rglob("test_*.py")
        self._tests = {file.relative_to(tree).as_posix(): file for file in tests}

    def files(self, path: str) -> list[str]:
        """Test files by imports between them and the module, then by how often they name it, then by size."""
        module = self._module(Path(self._package, path), Path())
        room, word = module.split(".")[-2:]
        steps = self._steps_to(module)
        ranked = []
        for name, file in self._tests.items():
            text = file.read_text(encoding="utf-8")
            uses = self._named_in(file)
            if RUNS_COMMANDS.search(text):
                uses |= self._commands_in(text)
            reached = [steps[use] for use in uses if use in steps]
            if reached:
                named = [len(re.findall(rf"\b{known}\b", text)) for known in (word, room)]
                ranked.append((min(reached), word not in name, -named[0], -named[1], len(text), name))
        return [name for *_, name in sorted(ranked)]

    def _commands_in(self, text: str) -> set[str]:
        """The command line, and the modules of the verbs that a test of it names."""
        words = re.findall(r'"(\w+)"', text)
        verbs = {f"{self._package}.verbs.{part}{word}" for word in words for part in ("", "data_")}
        return (verbs | {f"{self._package}.cli"}) & self._names

    def _steps_to(self, module: str) -> dict[str, int]:
        """How many imports lie between each module and this one."""
        steps, border = {module: 0}, {module}
        while border:
            border = {name for name, uses in self._uses.items() if uses & border} - set(steps)
            steps |= dict.fromkeys(border, max(steps.values()) + 1)
        return steps

    def _named_in(self, file: Path) -> set[str]:
        """Modules that are imported, or named in a string as one that is started is."""
        names = set()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            elif isinstance(node, ast.Constant) and str(node.value).startswith(f"{self._package}."):
                names |= {str(node.value), f"{node.value}.__main__", str(node.value).rstrip(".")}
        return names & self._names

    def _give_orphans_a_parent(self) -> None:
        """A module that nobody names is loaded from its folder: by the nearest package that is named."""
        named = set().union(*self._uses.values())
        for orphan in sorted(self._names - named):
            parent = orphan.rpartition(".")[0]
            while parent and parent not in named:
                parent = parent.rpartition(".")[0]
            if parent:
                self._uses[parent].add(orphan)

    @staticmethod
    def _module(file: Path, top: Path) -> str:
        return ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """In the child: keep the tests that pass on the unbroken tree."""
    keep = json.loads(Path(os.environ[MARK], "keep").read_text())
    if keep is not None:
        wanted = set(keep)
        items[:] = [item for item in items if item.nodeid in wanted]


def pytest_runtest_setup() -> None:
    """In the child: leave out what comes after the file's time on the unbroken tree, as the clock of the CPU has it."""
    if json.loads(Path(os.environ[MARK], "keep").read_text()) is None and _cpu_s() > float(os.environ[CPU_S]):
        pytest.exit("the time of this file is over", 0)


def pytest_runtest_logreport(report: Any) -> None:
    """In the child: write down how each test ended, at once, because the child may be ended any time."""
    if report.failed or (report.when == "call" and report.passed):
        _append(Path(os.environ[MARK], "told"), {"test": report.nodeid, "passed": report.passed})


def _cpu_s() -> float:
    """Seconds of this process and of those it waited for."""
    return sum(os.times()[:4])


def _end_all(mark: str) -> None:
    """End every process that was started with this mark in its environment, detached ones too."""
    ours = f"{MARK}={mark}".encode()
    for _ in range(3):
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and ours in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.05)


def _replace(file: Path, source: bytes) -> None:
    """Write, and forget what was compiled: two changes within a second may have one size and one time."""
    file.write_bytes(source)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row) + "\n")


def places(arguments: argparse.Namespace, source: Path) -> list[Site]:
    """What is broken in this tree: as OUT has it, as a recorded list has it, or drawn now."""
    kept = arguments.out / "sites.jsonl"
    if kept.exists():
        return [Site(**row) for row in _rows(kept)]
    everywhere = sites_in(source, arguments.without)
    if arguments.sites:
        recorded = [Site(**row) for row in _rows(arguments.sites)]
        chosen, replaced = found_again(recorded, everywhere, arguments.seed)
        for old, new in replaced:
            gone = f"gone: {old.path} {old.function} ({old.kind}: {old.code})"
            print(f"{gone}; instead: {new.path} {new.function}: {new.code}")
    else:
        chosen = draw(everywhere, arguments.count, arguments.seed)
    for site in chosen:
        _append(kept, asdict(site))
    return chosen


def summary(outcomes: list[dict[str, Any]]) -> str:
    """The share that is caught, in all and per room, and what survived."""
    counts: dict[str, Counter[str]] = {}
    for row in outcomes:
        for room in ("all", Site(**row["site"]).room):
            counts.setdefault(room, Counter())[row["outcome"]] += 1
    lines = []
    for room, ends in counts.items():
        judged = ends["caught"] + ends["survived"]
        rest = "".join(f", {ends[name]} {name}" for name in ("unseen", "invalid") if ends[name])
        share = ends["caught"] / max(judged, 1)
        lines.append(f"{room:10} {ends['caught']:3} of {judged:3} caught ({share:.0%}){rest}")
    for row in outcomes:
        if row["outcome"] in ("survived", "unseen"):
            site = Site(**row["site"])
            place = f"{row['outcome']}: {site.path}:{site.line} {site.function}"
            lines.append(f"{place} ({site.kind} -> {site.text.strip()}): {site.code}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for what was drawn and found")
    parser.add_argument("--sites", type=Path, help="break these places again, as a sites.jsonl has them")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", type=int, default=3, help="test files a mutant meets (3)")
    parser.add_argument("--seconds", type=float, default=10, help="of each test file (10)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a folder with src/ and tests/")
    parser.add_argument("--package", default="holdfast")
    parser.add_argument("--without", nargs="*", default=[], help="files or folders left out")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    out = arguments.out.resolve()
    training = TrainingState(arguments.tree, arguments.package, out, arguments.files, arguments.seconds)
    kept = out / "outcomes.jsonl"
    outcomes = _rows(kept) if kept.exists() else []
    done = [row["site"] for row in outcomes]
    try:
        for site in places(arguments, training.source):
            if asdict(site) not in done:
                row = training.judge(site)
                outcomes.append(row)
                _append(kept, row)
                print(len(outcomes), row["outcome"], site.path, site.function, f"by {row['by']}", flush=True)
    finally:
        shutil.rmtree(training.home, ignore_errors=True)
    text = summary(outcomes)
    (out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    main()
