"""The commands in README and docs work as they stand there, in the order a newcomer meets them."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from holdfast.cli.main import VERBS, build_parser
from support.thirds import thirds_of

FIRST = ("data", "doctor", "train")  # the others' examples are about what these made
DEAR = ("drill", "walk")  # many runs each, about nothing that others made
ONE = ("export", "verify", "models")  # of these the last is about what the others made
FOR_A_SHELL = frozenset("|&;<>$`*?~{")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "verbs" / f"{page}.md").read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def test_the_examples_of_each_verb_work_one_after_the_other(place: Path) -> None:
    group = {verb: ONE if verb in ONE else (verb,) for verb in VERBS if verb not in (*FIRST, *DEAR)}
    chosen = thirds_of(dict.fromkeys(group.values()))
    for page in (*FIRST, *(verb for verb, verbs in group.items() if verbs in chosen)):
        work_through(page, place)


@pytest.mark.long
@pytest.mark.parametrize("page", DEAR)
def test_the_dear_examples_work(place: Path, page: str) -> None:
    work_through(page, place)


def work_through(page: str, place: Path) -> None:
    found = commands(page)
    assert found, page
    for command in found:
        if command.startswith("holdfast ") and not FOR_A_SHELL.intersection(command):
            words = [sys.executable, "-m", *shlex.split(command, comments=True)]
        else:
            words = ["bash", "-euc", command.replace("holdfast ", f"{sys.executable} -m holdfast ")]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_verb_has_a_page() -> None:
    assert set(VERBS) == {page.stem for page in (ROOT / "docs" / "verbs").glob("*.md")}


def test_every_option_has_a_help_text_and_stands_on_its_verbs_page() -> None:
    found = [*options_of(build_parser(), "")]
    assert len(found) > 60, "the verbs' parsers are filled when they are used"
    for page, command, option, text in found:
        assert text, f"{command} {option} has no help text"
        assert re.search(rf"{option}(?![\w-])", (ROOT / "docs" / "verbs" / f"{page}.md").read_text()), f"{page}.md lacks {option}"


def options_of(parser: argparse.ArgumentParser, page: str) -> Iterator[tuple[str, str, str, str | None]]:
    if fill := getattr(parser, "fill", None):
        fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from options_of(child, page or name)
        elif page:
            yield from ((page, parser.prog, option, action.help) for option in action.option_strings if option not in ("-h", "--help"))


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
