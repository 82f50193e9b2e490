"""Write docs/llms.txt and docs/skill/SKILL.md for people's assistants, from the help and the docs: `python scripts/assistant_pages.py`."""

from __future__ import annotations

from pathlib import Path

from pages import write_pages

from holdfast.cli.main import VERBS, build_parser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SKILL_HEAD = """---
name: holdfast
description: Fine-tune language models and networks on tables with holdfast, find out why a training failed, and keep runs alive.
---
"""
RULES = (
    "Look before a run: `holdfast doctor CONFIG` (exit code 1: blocked), `holdfast plan CONFIG` (1: does not fit).",
    "From a config, command line or script of another trainer: `holdfast init --from FILE --out NEW.yaml --json`; tell `not_carried` keys.",
    "An unfinished run goes on by the same command; never delete a run folder to resume.",
    "A failed log of any trainer: `holdfast diagnose LOG --machine machine.json --json`; follow `remedies` in their order.",
    "Ask with `--json`: one JSON object on standard output, all else on standard error.",
    "Exit codes: 0 done, 1 something blocks, 2 usage or config, 3 given up with the best state kept, 70 a bug, 130 interrupted.",
    "Keys of a config: `holdfast schema`; a single one is changed as `train.lr=1e-4` behind the config.",
)


def pages() -> dict[str, str]:
    """The text of each page by its path below docs/."""
    return {"llms.txt": index(), "skill/SKILL.md": skill()}


def index() -> str:
    """The docs as llmstxt.org has it."""
    lines = ["# holdfast", "", "> Fine-tuning runs that finish: a command line for training, supervision, diagnosis and proof.", ""]
    for folder, title in (("tutorial", "Tutorial"), ("how-to", "How to"), ("reference", "Reference"), ("explanation", "Explanation")):
        files = [file for file in sorted((DOCS / folder).glob("*.md")) if file.name != "README.md"]
        lines += [f"## {title}", "", *(f"- [{_title(file)}]({folder}/{file.name})" for file in files), ""]
    return "\n".join(lines)


def skill() -> str:
    """Commands with an example each, and what an assistant has to know."""
    lines = [SKILL_HEAD + "# holdfast", "", *(f"* {rule}" for rule in RULES), "", "## Commands", ""]
    choices = next(dict(action.choices) for action in build_parser()._actions if isinstance(action.choices, dict))
    for name, summary in VERBS.items():
        child = choices[name]
        child.fill()
        example = str(child.epilog or "").partition("\n")[2].strip()
        lines.append(f"* `holdfast {name}`: {summary}" + (f". `{example}`" if example else ""))
    return "\n".join([*lines, ""])


def _title(file: Path) -> str:
    first = next((line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
    return first.removeprefix("# ") or file.stem


if __name__ == "__main__":
    write_pages(DOCS, pages())
