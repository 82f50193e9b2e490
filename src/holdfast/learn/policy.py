"""The file of `holdfast learn`: where rows come from, what is kept, when a round begins, how it trains, what lets it through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from holdfast.base.errors import USAGE, Stop
from holdfast.base.units import counted
from holdfast.config.load import find_path, read_yaml, root_of_file
from holdfast.config.problems import problems_of
from holdfast.config.section import Section
from holdfast.verify.stats import FEWEST

_SHOWN = "docs/how-to/learn.md shows one"

Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class Origin(Section):
    """One source: exactly one of files, folder, votes, redis."""

    files: str | list[str] | None = Field(None, description="log files or files of rows, also as patterns")
    folder: str | None = Field(None, description="a folder: every file in it")
    votes: str | None = Field(None, description="folder of a run, or the preferences.jsonl that serve --ab writes")
    redis: str | None = Field(None, description="address of a Redis server; with its stream and group")
    stream: str | None = Field(None, description="the stream to read")
    group: str = Field("holdfast", description="the consumer group")
    cluster: bool = Field(False, description="the address is that of one node of a Redis Cluster")

    @model_validator(mode="after")
    def _one_kind(self) -> Origin:
        given = [name for name in ("files", "folder", "votes", "redis") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"one of files, folder, votes, redis is needed, {' and '.join(given) or 'none'} is given")
        if self.redis and not self.stream:
            raise ValueError("a Redis server needs the name of a stream: {redis: redis://127.0.0.1:6379/0, stream: requests}")
        return self


class Keep(Section):
    """What of the rows is kept."""

    drop: list[Literal["duplicate", "near_duplicate", "conflicting_answer", "in_held_out"]] = Field(
        ["duplicate", "near_duplicate", "in_held_out"], description="repetitions that are rejected; in_held_out: a row of the gate's"
    )
    consent: bool = Field(False, description="only rows whose people said yes (a no is always respected)")
    good: float | list[str] | None = Field(
        None,
        description="which ratings are good: from a number on (4 of 1 to 5), or these words; left out, thumbs are known "
        "(-1, 0, 1, up, down), and rows with other ratings wait",
    )
    redact: Literal["all", "secrets", "none"] = Field("all", description="what is taken out of texts")
    person: str = Field("person", description="the field that says whose a row is")
    per_person: float = Field(0.25, gt=0.0, le=1.0, description="at most this share of round.rows from one person, where several are named")
    rejected: float = Field(0.5, gt=0.0, le=1.0, description="a round of which a larger share is rejected is not trained on")


class Begin(Section):
    """When a round begins."""

    rows: int = Field(200, ge=1, description="when so many new kept rows are there")
    hours: float | None = Field(None, gt=0, description="or when so long has passed since the last one began, or the policy's first look")
    at: str | None = Field(None, description='or once this time of day has passed since then, local, as in "03:00"')
    least: int = Field(2 * FEWEST, ge=1, description="new kept rows that hours and at wait for: fewer could tell nothing")
    most: int | None = Field(None, ge=1, description="rows that one round takes at most; what is left waits for the next")

    @field_validator("at", mode="before")
    @classmethod
    def _is_time_of_day(cls, value: object) -> object:
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", value)):
            raise ValueError('a time of day from "00:00" to "23:59", in quotes')
        return value


class Replay(Section):
    """Shares of a round's rows that are not new."""

    old: Share = Field(0.3, description="rows of the rounds before, that the promoted version has learned")
    general: Share = Field(0.1, description="general rows")
    carried: bool = Field(True, description="all rows of rounds refused only because too few rows told nothing, so that evidence adds up")
    general_rows: str | None = Field(None, description="file of general rows (default: half of those that ship with holdfast)")

    @model_validator(mode="after")
    def _room_for_new(self) -> Replay:
        if self.old + self.general >= 1:
            raise ValueError(f"old {self.old:g} and general {self.general:g} leave no room for new rows: their sum must be below 1")
        return self


class Gate(Section):
    """What a round must show."""

    rows: str = Field(description="file of rows that no round trains on")
    domains: str | None = Field(None, description="the field that names a row's domain")
    margin: float = Field(0.02, ge=0.0, description="nats a token by which a domain, and general answers, may get worse")
    drift: float = Field(
        0.1, ge=0.0, description="nats a token by which a domain may be worse than it ever was in place; where margin is more, that"
    )
    new: float = Field(0.2, gt=0.0, lt=1.0, description="share of a round's new rows that is held out, to be measured on")
    by_person: bool = Field(
        True, description=f"rows of one person (keep.person) count as one, where several are named; fewer than {FEWEST} people tell nothing"
    )
    certain: bool = Field(False, description="the whole interval of each domain must lie within the margin, not its estimate alone")
    contradiction: bool = Field(
        True, description="refuse where a domain's new rows get better and its rows at the gate surely worse, though within margin"
    )
    prompts: str | None = Field(None, description="prompts with rules for their answers (verify --prompts): none that held may be lost")


class Experts(Section):
    """Which domains (gate.domains) have an adapter of their own, beside the one for all."""

    rows: int = Field(30, ge=8, description="rows of a domain that were learned, from which it has one")
    held: int = Field(20, ge=10, description="and of its rows at the gate: half set the router's threshold, the others measure it")


class Budget(Section):
    """What the rounds may cost."""

    disk_gb: float | None = Field(None, gt=0, description="of the folder of rounds: beyond it checkpoints go, then no round begins")
    hours_a_week: float | None = Field(None, gt=0, description="of training: no round begins once so many were trained in seven days")


class Policy(Section):
    """The whole file."""

    name: str = Field(min_length=1, description="its versions stand in `holdfast models` under this name")
    config: str = Field(description="config of a round's training; it starts from the promoted adapter")
    sources: list[Origin] = Field(min_length=1, description="where rows come from")
    keep: Keep = Field(default_factory=lambda: Keep(), description="what of them is kept")
    round: Begin = Field(default_factory=lambda: Begin(), description="when a round begins")
    replay: Replay = Field(default_factory=lambda: Replay(), description="shares of a round's rows that are not new")
    gate: Gate = Field(description="what a round must show")
    experts: Experts | None = Field(None, description="also train an adapter for each domain, and a router that chooses one by the prompt")
    budget: Budget = Field(default_factory=lambda: Budget(), description="what the rounds may cost")
    folder: str | None = Field(None, description="where the rounds are kept (default: runs/learn/NAME beside the policy)")
    retain: int = Field(3, ge=0, description="refused rounds whose trained states are kept; rows, fates and verdicts always are")

    @model_validator(mode="after")
    def _domains_of_experts(self) -> Policy:
        if self.experts and not self.gate.domains:
            raise ValueError("experts are trained by domain: gate.domains names the field that tells a row's")
        return self

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not re.fullmatch(r"\w[\w.-]*", value):
            raise ValueError("a name has letters, digits, _, . and -, and begins with none of the last two")
        return value


def load_policy(file: Path) -> Policy:
    """Read a policy, its paths made absolute: they are looked up beside it, then in the current folder. Raises Stop(2).

    The rounds' folder is without links, as the list of models names the runs in it.
    """
    tree = read_yaml(file, keys=_SHOWN)
    if not tree.get("sources") and "model" in tree:
        raise Stop(USAGE, f"{file} is the config of a run; a policy names one", f"write `config: {file}` into a policy; {_SHOWN}")
    try:
        policy = Policy.model_validate(tree)
    except ValidationError as error:
        problems = [f"  - {one}" for one in problems_of(error, Policy, root_of_file(file))]
        raise Stop(USAGE, f"{file}: {counted(len(problems), 'problem')} in the policy\n" + "\n".join(problems), _SHOWN) from None
    folder = file.resolve().parent
    sources = [_origin(one, folder) for one in policy.sources]
    gate = policy.gate.model_copy(
        update={
            "rows": _there(policy.gate.rows, folder, "gate.rows"),
            "prompts": policy.gate.prompts and _there(policy.gate.prompts, folder, "gate.prompts"),
        }
    )
    general = policy.replay.general_rows and _there(policy.replay.general_rows, folder, "replay.general_rows")
    return policy.model_copy(
        update={
            "config": _there(policy.config, folder, "config"),
            "sources": sources,
            "gate": gate,
            "replay": policy.replay.model_copy(update={"general_rows": general}),
            "folder": str((_place(policy.folder, folder) if policy.folder else _own_folder(policy.name, folder)).resolve()),
        }
    )


def _origin(origin: Origin, folder: Path) -> Origin:
    files = [origin.files] if isinstance(origin.files, str) else origin.files
    found = {"files": [str(_place(name, folder)) for name in files] if files else None}
    places = {name: str(_place(value, folder)) for name in ("folder", "votes") if (value := getattr(origin, name))}
    return origin.model_copy(update=found | places)


def _own_folder(name: str, folder: Path) -> Path:
    """Return the rounds' folder: beside the policy, so that it is found from anywhere; in the current folder where it exists there."""
    here = Path("runs/learn", name).resolve()
    return here if here.exists() else folder / "runs" / "learn" / name


def _place(name: str, folder: Path) -> Path:
    """Return a place beside the policy, unless it is in the current folder alone."""
    path = Path(name).expanduser()
    here, root = folder / path, path.parts[0] if path.parts else ""
    return here if (folder / root).exists() or not Path(root).exists() else Path.cwd() / path


def _there(name: str, folder: Path, key: str) -> str:
    found = find_path(name, folder)
    if found is None:
        places = " and in ".join(dict.fromkeys(map(str, (folder, Path.cwd()))))
        raise Stop(USAGE, f"{key}: {name}: no such file", f"correct the path; a relative one is looked up in {places}")
    return str(found)
