"""Write the generated pages of docs/reference/ from the code; tests/project/test_reference_pages.py says when.

config.md comes from the config's schema, commands/ from the parsers, events.md from the calls that write an event and the sentences
of scripts/event_sentences.yaml, exit-codes.md from base/errors.py.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pages import write_pages

import holdfast
from holdfast.base import errors
from holdfast.cli.main import VERBS, build_parser
from holdfast.config.config import Config
from holdfast.config.key_lines import default_of, section_in, type_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
SENTENCES = Path(__file__).parent / "event_sentences.yaml"
NOTE = "<!-- written by scripts/reference_pages.py; do not edit -->\n"
SAMPLE = {"table": "target: price", "data": "files: rows.jsonl"}  # what a section needs to be valid
CODES = {  # in the order of the table; AGAIN is told to launchers only
    "DONE": "Done; nothing is wrong.",
    "BLOCKED": "Something blocks, or a check failed: the message says what and how to fix it.",
    "USAGE": "A wrong option, or a mistake in the config: nothing was begun.",
    "GAVE_UP": "Given up: the run cannot finish. The best state is kept, and the reason is told.",
    "OUR_BUG": "A bug in holdfast. Please report it with the lines above.",
    "AGAIN": "Only among ranks that another launcher started: start the same command again on all of them.",
    "INTERRUPTED": "Stopped by you (Ctrl-C, SIGTERM, `holdfast stop`). The same command resumes.",
}
MORE = {  # where to read on, below docs/
    "attach": ["how-to/background.md"],
    "bundle": ["how-to/ask-for-help.md"],
    "chat": ["how-to/compare-models.md"],
    "check": ["how-to/check-a-run.md"],
    "compare": ["how-to/compare-runs.md"],
    "completion": ["how-to/first-config.md"],
    "data": ["how-to/check-and-clean-rows.md", "how-to/chat-templates.md", "reference/row-checks.md", "explanation/data.md"],
    "diagnose": ["tutorial/3-when-it-fails.md", "how-to/troubleshoot.md", "explanation/diagnosis.md"],
    "doctor": ["how-to/check-a-machine.md", "reference/doctor-tables.md", "reference/gpus.md"],
    "drill": ["how-to/rehearse-faults.md", "reference/faults.md"],
    "explain": ["how-to/write-a-card.md", "book/README.md"],
    "export": ["how-to/export.md"],
    "init": ["how-to/first-config.md", "how-to/rate-and-rank.md"],
    "learn": ["how-to/learn.md"],
    "models": ["how-to/promote-and-roll-back.md"],
    "move": ["how-to/move-a-run.md"],
    "plan": ["how-to/plan-for-a-card.md", "explanation/plan.md"],
    "report": ["reference/run-folder.md"],
    "run": ["tutorial/2-protect-your-trainer.md", "how-to/supervise-any-command.md", "explanation/supervision.md"],
    "schema": ["reference/config.md"],
    "serve": ["how-to/compare-models.md"],
    "status": ["how-to/background.md", "reference/json.md"],
    "stop": ["how-to/background.md"],
    "train": ["tutorial/1-first-run.md", "how-to/resume-extend-stop.md", "reference/config.md"],
    "trial": ["how-to/replay-a-step.md", "explanation/lab.md"],
    "tune": ["how-to/climb-to-faster-settings.md"],
    "verify": ["how-to/compare-models.md"],
    "watch": ["how-to/watch-runs.md", "reference/json.md"],
    "walk": ["how-to/walk-forward.md"],
}


def pages() -> dict[str, str]:
    """The text of each generated page by its path below docs/reference/."""
    return {"config.md": config_page(), "events.md": events_page(), "exit-codes.md": codes_page()} | dict(command_pages())


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(map(cell, row))} |" for row in rows)]
    return "\n".join(lines) + "\n"


# ---- the config


def config_page() -> str:
    schema = Config.model_json_schema()
    sections = {name: section_in(part) for name, part in schema["properties"].items()}
    plain = {name: part for name, part in schema["properties"].items() if not sections[name]}
    text = [
        f"{NOTE}# Config keys\n\nA config is one YAML file. `holdfast train CONFIG key=value` changes single keys, `holdfast schema`"
        " prints the same as a JSON schema for your editor. A wrong key is answered with the nearest right one. Paths are looked up"
        " beside the config file first, then in the current folder.\n\n## At the top\n",
        table(("key", "type", "default", "meaning"), _rows("", {"properties": plain, "required": schema.get("required", [])})),
    ]
    for name, inner in sections.items():
        if not inner:
            continue
        section = schema["$defs"][inner]
        text += [f"## {name}\n", f"{section['description']}\n" if section.get("description") else ""]
        text.append(table(("key", "type", "default", "meaning"), _rows(f"{name}.", section)))
    text.append("`faults` is a list in a language of its own: [faults](faults.md).\n")
    return "\n".join(part for part in text if part)


def _rows(above: str, section: dict[str, Any]) -> list[tuple[str, ...]]:
    required = section.get("required", [])
    return [
        (f"`{above}{name}`", type_of(part), "required" if name in required else default_of(part), part.get("description", ""))
        for name, part in section["properties"].items()
    ]


# ---- the commands


def command_pages() -> Iterator[tuple[str, str]]:
    parser = build_parser()
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    index = [f"{NOTE}# Commands\n", "`holdfast COMMAND --help` prints the same. Exit codes: [the table](exit-codes.md).\n"]
    index += ["| command | what it does |", "|---|---|", *(f"| [{name}](commands/{name}.md) | {what} |" for name, what in VERBS.items())]
    yield "commands.md", "\n".join(index) + "\n"
    for name, child in verbs.items():
        yield f"commands/{name}.md", f"{NOTE}# holdfast {name}\n\n" + "\n".join(_command(child, name)) + _more(name)


def _more(name: str) -> str:
    found = [f"[{page.rpartition('/')[2].removesuffix('.md').lstrip('0123456789-')}](../../{page})" for page in MORE.get(name, [])]
    return f"\nMore: {', '.join(found)}.\n" if found else ""


def _command(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    if fill := getattr(parser, "fill", None):
        parser.fill = None  # type: ignore[attr-defined]  # it is filled now, and must not be again
        fill()
    said = re.sub(r"^`holdfast [^`]*`: ", "", parser.description or "")
    yield said[:1].upper() + said[1:].rstrip() + "\n"
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for word, child in action.choices.items():
            yield f"## {word}\n"
            yield from _command(child, f"{name} {word}")
    if inner:
        return
    actions = [action for action in parser._actions if action.dest != "help"]
    words = [_word(action) for action in actions if not action.option_strings]
    yield f"```text\nholdfast {' '.join([name, *words])} [options]\n```\n"
    yield table(("argument", "meaning"), [(f"`{_named(action)}`", action.help or "") for action in actions])
    if parser.epilog:
        yield f"```text\n{parser.epilog.partition('example:')[2].strip()}\n```\n"


def _word(action: argparse.Action) -> str:
    word = _metavar(action)
    return {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} [{word} ...]"}.get(str(action.nargs), word)


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    options = ", ".join(action.option_strings)
    return options if action.nargs == 0 else f"{options} {_metavar(action)}"


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())


# ---- the events


def events_page() -> str:
    found, told = events(), yaml.safe_load(SENTENCES.read_text(encoding="utf-8"))
    text = (
        f"{NOTE}# Events\n\n`RUN/events.jsonl` has one JSON object a line: `time` (seconds since 1970), `event`, and the facts"
        " below; those of a trainer also have `attempt`. It is append-only. `holdfast attach` and the"
        " report say the ones a person should hear of.\n\n"
    )
    rows = [(f"`{kind}`", told.get(kind, ""), ", ".join(f"`{fact}`" for fact in sorted(facts))) for kind, facts in sorted(found.items())]
    return text + table(("event", "what happened", "facts"), rows)


HANDED_ON = {  # facts that a writer is handed as one mapping
    "attempt_ended": {"diagnosis", "decision", "verdict"},
    "best_checkpoint_lost": {"checkpoint", "reason"},
    "checkpoint_passed_over": {"checkpoint", "reason"},
    "length_bias": {"longer", "pairs", "times"},
    "restored": {"attention", "frozen_bytes_held", "frozen_sha256", "loss", "network"},
    "rows_lost": {"from", "to"},
}


@functools.cache
def events() -> dict[str, set[str]]:
    """Every kind of event that the code writes, with the names of the facts that are written down with it."""
    found = {kind: set(facts) for kind, facts in HANDED_ON.items()}
    for file in sorted(Path(holdfast.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        tells = _passes_on(tree)
        for node in ast.walk(tree):
            for kind, facts in _event(node, tells):
                found.setdefault(kind, set()).update(facts | ({"text"} if file.parent.name == "callback" else set()))
    return found


def _passes_on(tree: ast.Module) -> bool:
    """Whether a file has a function _tell whose kind is the event's."""
    tells = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_tell"]
    return any(argument.arg == "kind" for node in tells for argument in node.args.args)


def _event(node: ast.AST, tells: bool) -> Iterator[tuple[str, set[str]]]:
    """The kinds a node writes. tells: a call of _tell is one of them, too."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        places = {"event": node.args[:1], "_tell": node.args[:2] if tells else []}.get(name, [])
        kinds = [one.value for one in places if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        kinds = [kind for kind in kinds if re.fullmatch(r"[a-z]+(_[a-z]+)*", kind)]
        yield from ((kind, {word.arg for word in node.keywords if word.arg} - {"event", "time"}) for kind in kinds[:1])
    elif isinstance(node, ast.FunctionDef) and node.name in ("look_first", "remarks"):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Yield) and isinstance(inner.value, ast.Tuple) and isinstance(inner.value.elts[0], ast.Constant):
                facts = inner.value.elts[1]
                yield (
                    str(inner.value.elts[0].value),
                    {str(key.value) for key in getattr(facts, "keys", []) if isinstance(key, ast.Constant)},
                )


# ---- the exit codes


def codes_page() -> str:
    rows = [(f"`{getattr(errors, name)}`", says) for name, says in CODES.items()]
    return (
        f"{NOTE}# Exit codes\n\n{table(('code', 'meaning'), rows)}\n`holdfast run` ends with 0 where the command ended well, whatever it"
        " was restarted for; with `--json` standard output carries one JSON object, also where the code is not 0.\n"
    )


if __name__ == "__main__":
    write_pages(FOLDER, pages(), owned="commands/*.md")
