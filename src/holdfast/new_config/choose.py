"""Choose the keys of a first config from what was looked at, each with its reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.units import counted, in_millions, listed
from holdfast.new_config.rows import LookedAt
from holdfast.planning.advice import advise
from holdfast.run.sampling.step_table import run_length

_BILLIONS = re.compile(r"(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)\s*([BM])(?![a-z])", re.IGNORECASE)
_GOALS: dict[str, tuple[str, dict[str, Any], str]] = {  # words of a goal and what follows
    "quick": ("quick fast try trial test smoke demo schnell", {"train.epochs": 1, "run.standby": False}, "the goal is a quick look"),
    "thorough": ("best quality thorough overnight careful", {"evaluate.keep_best": True}, "the goal is quality"),
    "small": ("memory small laptop tight low-memory vram", {"train.frozen": "nf4"}, "the goal is little memory"),
}
_TO_LEARN = re.compile(r"\b(predict|forecast|estimate|learn|classify|target|regress)")
_ALL_WEIGHTS = re.compile(r"\bfull[- ]?(fine|tun|param|weight|model|train|sft)|\ball (the )?(weights|parameters)\b", re.IGNORECASE)


@dataclass
class ConfigChoice:
    """Dotted keys of a config with reasons, what is noted beside them, and what is left to do."""

    tree: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any, reason: str) -> None:
        self.tree[key], self.reasons[key] = value, reason


def size_in_name(model: str) -> int | None:
    """Return the number of parameters in a model's name, as in Qwen2.5-7B or, about, Mixtral-8x7B; None where there is none."""
    match = _BILLIONS.search(model.rpartition("/")[2])
    return round(int(match[1] or 1) * float(match[2]) * (1e9 if match[3].upper() == "B" else 1e6)) if match else None


def choose_table(files: list[str], rows: LookedAt, goal: str) -> ConfigChoice:
    """Choose a config for rows of a table: the column to learn is the one that the goal names, else the last."""
    choice = ConfigChoice()
    named = _named_in(goal.lower(), rows.columns)
    target = named[0] if named else rows.columns[-1]
    choice.set("task", "tabular", "the rows are a table: numbers, no prompt and no answer")
    choice.set("data.files", files, "")
    why = "the goal names it" if named else "the last column: write the one to learn"
    choice.set("table.target", target, why)
    if len(named) != 1:
        only = f"the goal names {', '.join(named)}" if named else f"{target} is only the last one"
        choice.todo.append(f"see that table.target is the column to learn: {only}")
    times = [name for name in rows.columns if name.lower() in ("time", "timestamp", "date", "datetime") and name != target]
    if times:
        choice.set("table.time", times[0], "rows in order of time: the newest are held out")
    choice.set("data.held_out", 0.2, "enough rows to see whether it learns")
    choice.set("train.epochs", 10, "a network on a table is small; evaluate.patience ends it early")
    choice.set("evaluate.every", 50, "steps between looks at the held-out rows")
    choice.set("evaluate.patience", 5, "ends when five looks in a row bring nothing")
    return choice


def _named_in(goal: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a goal names: in its order, those behind a word for learning before the others."""
    places = {name: found.start() for name in columns if (found := re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", goal))}
    told = _TO_LEARN.search(goal)
    return sorted(places, key=lambda name: (told is not None and places[name] < told.start(), places[name]))


def choose(model: str, params: int | None, files: list[str], rows: LookedAt, goal: str, positions: int | None) -> ConfigChoice:
    """Choose a config for a language model. params: of the model, None unknown; positions: the most tokens it takes."""
    choice = ConfigChoice()
    choice.set("model", model, f"{in_millions(params)} parameters" if params else "")
    number = f"{rows.rows:,} rows" if rows.rows is not None else "rows not counted: the files are large"
    choice.set("data.files", files, number + (f", {rows.rejected:,} rejected (`holdfast data check` tells why)" if rows.rejected else ""))
    if rows.rejected:
        total = rows.rejected + (rows.rows or 0)
        choice.todo.append(f"{rows.rejected:,} of {total:,} rows are not trained on: {rows.why}")
    if rows.telling:
        told = listed([f"{name} ({counted(count, 'row')})" for name, count in rows.telling.items()])
        choice.todo.append(f"see whether what is not used changes what a row means: {told}; every row is learned from its text alone")
    objective = {"pairs": "dpo", "marks": "kto"}.get(rows.kind, "sft")
    if objective == "dpo" and (wanted := re.search(r"\b(orpo|simpo)\b", goal.lower())):
        objective = wanted[1]
    share = 0.05 if (rows.rows or 10_000) >= 400 else 0.1 if (rows.rows or 0) >= 50 else 0.2
    choice.set("data.held_out", share, "rows kept aside, so that base and tuned can be compared")
    adapter = "full" if _ALL_WEIGHTS.search(goal) else "lora"
    choice.set("adapter.type", adapter, "small, quick, and the base stays as it is" if adapter == "lora" else "the goal says all weights")
    if objective != "sft":
        choice.set(
            "train.objective", objective, f"the rows hold {'a better and a worse answer' if rows.kind == 'pairs' else 'marked answers'}"
        )
        if rows.numbered:
            choice.todo.append(
                f"see that the numbers beside the answers mark good (1) and bad (0) ones; else train.objective is sft, not {objective}"
            )
    learned = None if rows.rows is None else round(rows.rows * (1 - share))
    for key, value, reason in advise(params, learned, adapter, objective, _asked(goal).get("train.epochs", (None, ""))[0]):
        choice.set(key, value, reason)
    _length(choice, rows, positions)
    _watch(choice, rows, share)
    _follow(choice, goal)
    return choice


def _length(choice: ConfigChoice, rows: LookedAt, positions: int | None) -> None:
    if rows.longest is None or rows.p99 is None:
        choice.set("train.max_tokens", min(2048, positions or 2048), "not counted; `holdfast data check --tokenizer MODEL` tells")
        return
    wanted = max(64, -(-rows.longest // 64) * 64)
    limit = min(4096, positions or 4096)
    if wanted <= limit:
        choice.set("train.max_tokens", wanted, f"the longest row has {rows.longest:,} tokens{_few_long(rows, wanted)}")
        return
    most = f"99 of 100 rows have at most {rows.p99:,} tokens, the longest {rows.longest:,}"
    choice.set("train.max_tokens", limit, f"{most}; longer ones are cut{_few_long(rows, limit)}")


def _few_long(rows: LookedAt, wanted: int) -> str:
    """Say what half of the limit or less would cut, where one row of a hundred at most is longer; "" where more are."""
    few = (one for one in rows.limits if 64 <= one["max_tokens"] <= wanted / 2 and 100 * one["rows"] <= (rows.rows or 0))
    if (less := next(few, None)) is None:
        return ""
    longer = f"{counted(less['rows'], 'row')} of {rows.rows:,} {'is' if less['rows'] == 1 else 'are'} longer than {less['max_tokens']:,}"
    shorter = f"max_tokens {less['max_tokens']} plans memory for rows {wanted / less['max_tokens']:.3g} times shorter"
    return f"; {longer}: {shorter}, and cuts {counted(less['tokens'], 'token')}"


def _watch(choice: ConfigChoice, rows: LookedAt, share: float) -> None:
    """Evaluate on the way where there are enough steps for it."""
    steps, _ = run_length(round((rows.rows or 0) * (1 - share)), choice.tree["train.effective_batch"], choice.tree["train.epochs"], None)
    if steps >= 40:
        every = max(10, steps // 10)
        choice.set("evaluate.every", every, f"{steps // every} looks in about {steps:,} steps; the best state is kept")


def _asked(goal: str) -> dict[str, tuple[Any, str]]:
    """Return the keys that the words of a goal ask for, with the reason."""
    words = set(re.findall(r"[a-z-]+", goal.lower()))
    return {key: (value, why) for names, sets, why in _GOALS.values() if words & set(names.split()) for key, value in sets.items()}


def _follow(choice: ConfigChoice, goal: str) -> None:
    """Apply what the words of the goal ask for."""
    for key, (value, reason) in _asked(goal).items():
        if key == "evaluate.keep_best" and "evaluate.every" not in choice.tree:
            continue
        if key == "train.frozen" and choice.tree["adapter.type"] == "full":
            continue  # nothing is frozen
        choice.set(key, value, reason)
