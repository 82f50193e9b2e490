"""What holdfast can train: one record a kind of task. Whoever asks which task a run has asks its record; nobody compares names.

A record names what is done for its kind as "module:name", which is looked up when it is needed. So what belongs to one kind may
stand in a room above all those that ask, and nothing of a kind is imported before a run of it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

_RECORDS = ("holdfast.base.tasks.text:KIND", "holdfast.base.tasks.tabular:KIND")  # the first one is meant where a config says nothing


class _HasTask(Protocol):
    @property
    def task(self) -> str: ...


@dataclass(frozen=True)
class TaskKind:
    """One kind of task. No field has a default, so that a new kind answers each question itself. A path is "module:name".

    In a config:
        name, aliases: what `task` says; an alias is an older name, still read and told once.
        about: the schema's words for it; what, plural: what is trained, as in "a network on tables" and "networks on tables".
        sections: those it uses of the sections that not every kind has.
        own_sections: path of {section: (type, field)} that it brings along; None: it brings none.
        rules: path of (tree) -> tree: raise ValueError for what it cannot use, add its defaults; None: nothing beside
            what holds between sections.
        base_model: whether it trains beside frozen weights of a model, which can be quantised, cut between ranks, kept in main memory.
    Before training:
        packages: what its trainer imports beside torch.
        preparation: path of its supervision/preparation/types.py:Preparation: how rows are read, judged, put into the run folder, planned.
        traced: path of (config, settings, lengths, labels, device) -> (task, layers), made of shapes alone, by which `holdfast plan`
            knows its memory; None: its memory is known when it begins.
        text_rows: whether its rows are texts and turns, as `holdfast data show` prints them.
        row_check: path of a cli/row_check.py:RowCheck for `holdfast data check` and `clean`; None: its rows are texts, or none.
    Training:
        trainer: path of the class behind the protocol of trainer/protocol/task.py.
    What it leaves:
        artifacts: names of run/artifact.py:KINDS; continues: whether another run may begin from one (adapter.start).
        chats: whether `holdfast chat` can talk to it; ships: whether export, verify and serve know it; otherwise: how it is used else.
    How it is told of:
        words: path of (config) -> report/words.py:TaskWords; usage: path of (run, config) -> Python that loads what was made;
        measured: path of (evaluation) -> rows of the report about it.
        verbs: {verb: module} of commands of its own.
    """

    name: str
    aliases: tuple[str, ...]
    about: str
    what: str
    plural: str
    sections: tuple[str, ...]
    own_sections: str | None
    rules: str | None
    base_model: bool
    packages: tuple[str, ...]
    preparation: str
    traced: str | None
    text_rows: bool
    row_check: str | None
    trainer: str
    artifacts: tuple[str, ...]
    continues: bool
    chats: bool
    ships: bool
    otherwise: str
    words: str
    usage: str
    measured: str
    verbs: Mapping[str, str]


@cache
def task_kinds() -> tuple[TaskKind, ...]:
    """Return the record of every kind, that of the default first."""
    return tuple(look_up(path) for path in _RECORDS)


def look_up(path: str) -> Any:
    """Import what "module:name" names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def kind_named(name: object) -> TaskKind | None:
    """Return the kind of this name or alias; None where there is none."""
    return next((kind for kind in task_kinds() if name == kind.name or name in kind.aliases), None)


def kind_of(config: _HasTask | None) -> TaskKind:
    """Return the kind of a config's task; where there is no config, the default."""
    if config is None:
        return task_kinds()[0]
    found = kind_named(config.task)
    assert found is not None, f"a config with task {config.task} was not checked"
    return found


def own_verbs(above: str = "") -> dict[str, str]:
    """Return {verb: module} of the commands that kinds bring along; above: those of this verb, as in `data bars`."""
    named = {name.rpartition(" ")[::2]: module for kind in task_kinds() for name, module in kind.verbs.items()}
    return {word: module for (first, word), module in named.items() if first == above}
