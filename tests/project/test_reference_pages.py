"""The generated pages of docs/reference/ say what the code says."""

from __future__ import annotations

import json
import re
import sys
import typing

import pytest
import yaml

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import assistant_pages
import rooms_table
from reference_pages import CODES, FOLDER, MORE, SENTENCES, events, pages

from holdfast.base import errors
from holdfast.cli.main import VERBS
from holdfast.config.config import Config
from holdfast.report.notices import _WORDS

RUNS = ROOT / "tests" / "fixtures" / "runs"


def keys() -> set[str]:
    """Every key of a config with its section, as the model has them."""
    found = set()
    for name, field in Config.model_fields.items():
        kinds = [field.annotation, *typing.get_args(field.annotation)]  # Table | None
        inner = next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), None) if name != "faults" else None
        found |= {f"{name}.{key}" for key in inner} if inner else {name}
    return found


def test_the_pages_are_as_the_script_writes_them() -> None:
    made = pages()
    there = {str(page.relative_to(FOLDER)) for page in FOLDER.rglob("*.md") if "written by scripts/reference_pages.py" in page.read_text()}
    assert there == set(made), "python scripts/reference_pages.py"
    assert [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text] == [], (
        "python scripts/reference_pages.py"
    )


def test_every_key_of_a_config_stands_there_with_its_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.*) \|$", pages()["config.md"], re.M)
    wanted = keys()
    assert len(wanted) > 100
    assert {key for key, *_ in rows} >= wanted
    assert [key for key, _, _, meaning in rows if not meaning.strip()] == []


def test_every_option_stands_on_its_commands_page_with_a_meaning() -> None:
    texts = {name: text for name, text in pages().items() if name.startswith("commands/")}
    assert {name[9:-3] for name in texts} == set(VERBS)
    assert "| `--too-long {cut,reject,split}` |" in texts["commands/data.md"]
    assert [name for name, text in texts.items() if re.search(r"\|  \|$", text, re.M)] == [], "an option without help"
    assert set(MORE) == set(VERBS)


@pytest.mark.parametrize(
    "kind", ["attempt_ended", "checkpoint_saved", "setting_changed", "state_sent", "resume_wrong", "gradients_dropped"]
)
def test_events_are_found_wherever_they_are_written(kind: str) -> None:
    """By the run, the writer, a task's remarks, over several lines, by the callback, by the guard."""
    assert kind in events()


def test_facts_of_events_that_runs_have_written_stand_there() -> None:
    known, told = events(), [json.loads(line) for file in RUNS.rglob("events.jsonl") for line in file.read_text().splitlines()]
    assert len(told) > 100
    assert {(one["event"], fact) for one in told for fact in one.keys() - {"event", "time", "attempt"} - known[one["event"]]} == set()


def test_every_event_has_its_sentence() -> None:
    told = yaml.safe_load(SENTENCES.read_text(encoding="utf-8"))
    assert set(told) == set(events())
    assert set(_WORDS) - {"journal_damaged"} <= set(told), "what the terminal says is an event that somebody writes"  # it stands for a line


def test_every_exit_code_stands_there() -> None:
    assert {name for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)} == set(CODES)


def test_the_table_of_rooms_is_what_their_packages_say() -> None:
    assert all(rooms_table.rooms().values())
    page = rooms_table.PAGE.read_text(encoding="utf-8")
    assert rooms_table.written(page) == page, "python scripts/rooms_table.py"


def test_pages_for_assistants_are_what_the_help_and_the_docs_say() -> None:
    for path, text in assistant_pages.pages().items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text, "python scripts/assistant_pages.py"
