"""The commands, configs and links in README and docs work as they stand there.

Blocks of `bash` in docs/tutorial and docs/how-to are run, page by page, in one folder. A comment above a block says otherwise:
`<!-- long -->` is run by `make test-long`; `<!-- not run: WHY -->` is read by the command line's own parser and the config's own
checks, no more. Blocks of `yaml` anywhere are checked as part of a config, but for those marked `<!-- not a config -->`.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from conftest import ROOT
from holdfast.cli.main import VERBS, build_parser
from holdfast.config.load import load_config

DOCS = ROOT / "docs"
FOR_A_SHELL = frozenset("|&;<>$`*?~{\n")
BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)^```$", re.S | re.M)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
HEREDOC = re.compile(r"<<'(\w+)'")
BASE: dict[str, Any] = {"model": "tiny", "data": {"files": ["rows.jsonl"]}}
TABLE: dict[str, Any] = {"task": "tabular", "data": {"files": ["rows.csv"]}, "table": {"target": "price"}}


class Block(NamedTuple):
    page: str
    mark: str
    kind: str
    text: str


def blocks(folder: str) -> list[Block]:
    pages = sorted((DOCS / folder).rglob("*.md")) if (DOCS / folder).is_dir() else [DOCS / folder]
    return [
        Block(str(page.relative_to(DOCS)), mark or "", kind, text) for page in pages for mark, kind, text in BLOCK.findall(page.read_text())
    ]


def commands(block: str) -> list[str]:
    """The commands of a block: one a line, a here-document or a continued line with what belongs to it."""
    found: list[str] = []
    lines = iter(block.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        command = line
        while command.endswith("\\"):
            command = command[:-1] + next(lines).strip()
        if end := HEREDOC.search(command):
            for inner in lines:
                command += f"\n{inner}"
                if inner == end[1]:
                    break
        found.append(command)
    return found


ALL = [block for folder in ("tutorial", "how-to") for block in blocks(folder) if block.kind == "bash"]
RUN = [block for block in ALL if not block.mark]
LONG = [block for block in ALL if block.mark == "long"]
READ = [block for block in ALL if block.mark.startswith("not run: ")]


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    assert len(RUN) > 30
    assert [block for block in ALL if block not in RUN + LONG + READ] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def test_the_pages_commands_work_one_after_the_other(place: Path) -> None:
    for block in RUN:
        work_through(block, place)
    assert (place / "loop-died").exists() and (place / "runs" / "bad-row" / "quarantine.jsonl").stat().st_size


@pytest.mark.long
def test_the_long_commands_work(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in [block for block in ALL if block not in READ]:
        work_through(block, tmp_path)
    assert (tmp_path / "died").exists() and (tmp_path / "out" / "checkpoint-12").is_dir()


def work_through(block: Block, place: Path) -> None:
    """Run a block's commands in `place`. holdfast itself is started directly, also for `> FILE`: a fork in tests."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "HOLDFAST_MODELS": str(place / "models.jsonl")}
    for command in commands(block.text):
        plain, _, file = command.partition(" > ")
        direct = plain.startswith("holdfast ") and not FOR_A_SHELL.intersection(plain + file)
        words = [sys.executable, "-m", *shlex.split(plain, comments=True)] if direct else ["bash", "-euc", command]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, env=environment)
        if direct and file:
            (place / file.strip()).write_text(done.stdout)
        assert done.returncode == 0, f"{block.page}: {command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", [block for block in ALL if block not in RUN], ids=lambda block: block.page)
def test_commands_that_are_not_run_are_valid(block: Block, tmp_path: Path) -> None:
    for command in commands(block.text):
        words = [] if HEREDOC.search(command) else shlex.split(command, comments=True)
        if "holdfast" not in words:
            continue
        found = build_parser().parse_args(
            [*itertools.takewhile(lambda word: word not in ("|", "||", "&&", ">"), words[words.index("holdfast") + 1 :])]
        )
        if getattr(found, "overrides", None):
            config = tmp_path / "config.yaml"
            config.write_text(yaml.safe_dump(TABLE if found.verb == "walk" else BASE))
            load_config(config, found.overrides, need_rows=False)


@pytest.mark.parametrize(
    "block", [one for one in blocks("") if one.kind == "yaml" and one.mark != "not a config"], ids=lambda one: one.page
)
def test_every_config_in_the_docs_is_valid(block: Block, tmp_path: Path) -> None:
    tree = yaml.safe_load(block.text)
    base = TABLE if tree.get("task") == "tabular" or "table" in tree else BASE
    for name, value in base.items():
        tree[name] = value | tree.get(name, {}) if isinstance(value, dict) else tree.get(name, value)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    load_config(tmp_path / "config.yaml", [], need_rows=False)


def test_every_command_is_shown_at_work() -> None:
    shown = {
        words[words.index("holdfast") + 1]
        for block in ALL
        for line in commands(block.text)
        for words in [line.split()]
        if "holdfast" in words
    }
    assert shown >= set(VERBS)


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_link_leads_nowhere(page: Path) -> None:
    for target, anchor in LINK.findall(prose(page)):
        if target.startswith("http"):
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), f"{target}#{anchor}"


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def headings(page: Path) -> set[str]:
    """The anchors GitHub gives the headings of a page."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_paths_that_docstrings_and_pages_name_exist() -> None:
    """Of folders of ours: a name that is gone sends the reader nowhere. Pages of the book quote other people's paths."""
    source = ROOT / "src" / "holdfast"
    ours = {folder.name for folder in source.rglob("*") if folder.is_dir()} | {"core", "ui", "rows"}
    gone = []
    pages = [page for page in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md") if DOCS / "book" not in page.parents]
    for file in (*pages, *source.rglob("*.py"), *(ROOT / "scripts").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
            text = "\n".join(ast.get_docstring(node) or "" for node in nodes)
        for path in re.findall(r"(?<![\w/.~$<>{}-])((?:[a-z_]+/)+[a-z_0-9]+\.py|(?:[a-z_]+/){2,})(?![\w{<*/])", text):
            places = (ROOT, ROOT / "src", ROOT / "tests", source, *file.parents)
            if path.split("/")[0] in {*ours, "src", "scripts", "tests"} and not any((place / path).exists() for place in places):
                gone.append((str(file.relative_to(ROOT)), path))
    assert gone == []


def _printed_texts() -> str:
    """Return all texts of the package's code that are no docstrings, one a line, without the parts that are computed."""
    nodes = [node for file in (ROOT / "src" / "holdfast").rglob("*.py") for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return "\n".join(text for text in texts if isinstance(text, str))


def test_messages_that_a_page_explains_are_printed_somewhere() -> None:
    rows = re.findall(r"^\| ((?!---|It says).+?) \| .+ \|$", (DOCS / "how-to" / "troubleshoot.md").read_text(encoding="utf-8"), re.M)
    quoted = {part.strip() for row in rows for text in re.findall(r"`(.+?)`", row) for part in text.split("...")} - {"!"}
    told = _printed_texts()
    assert len(quoted) > 30 and {text for text in quoted if text not in told} == set()


def test_every_target_named_in_the_readme_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", (ROOT / "README.md").read_text(), re.M):
        assert f"\n{target}:" in makefile, target


def test_every_claim_of_the_readme_names_its_proof() -> None:
    proofs = dict(re.findall(r"^\| (.+?) \| (`.+`) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M))
    readme = (ROOT / "README.md").read_text()
    faults = readme.split("## What it does when something goes wrong")[1].split("\n## ")[0]
    claims = re.findall(r"^\* \*\*(.+?\.)\*\*", readme, re.M) + re.findall(r"^\| (.+?) \| ", faults, re.M)[1:]
    assert len(claims) > 20
    for claim in claims:
        assert claim in proofs, f"the table in CONTRIBUTING.md has no test or benchmark for: {claim}"
    for claim, files in proofs.items():
        for file in re.findall(r"`([^`]+)`", files):
            assert (ROOT / file).is_file(), f"{file}, named for: {claim}"
