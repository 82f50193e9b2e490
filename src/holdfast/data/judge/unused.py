"""Which fields of a row nothing is learned from, and which of them look as if they changed what the row means. Judges no text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from holdfast.data.judge.names import BESIDE_PAIRS, TALKS, THINKING, TURN_MARKS, fields_read, in_our_case
from holdfast.data.judge.turns import EXCHANGES, Example, system_of

_MOST_NAMES = 200  # that are counted; rows with more have no columns
_TURN = {"role", "content", "from", "value", "author", "parts", "tool_calls", "function_call", "tool_call_id", "name", "id", *THINKING}
_TEXTS = {"content", "value", "parts"}  # of a turn; without them its `text` is read
_SAYS_WHO = {"role", "from", "author"}
_SYSTEM = BESIDE_PAIRS - {"history"}
_PAIRS = ("alpaca", "prompt-completion", "question-answer")
_BESIDE_PAIR = frozenset(("answer", "response", "completion", "output", "solution", "input"))  # another answer, or more of the question
_ASSISTANT = ("assistant", "gpt", "model", "chatgpt")
_MEANING = re.compile(
    r"(?i)(?<![a-z])(?:weight|rating|score|reward|quality|label|grade|rank|star|vote|upvote|downvote|like|dislike|thumb|feedback|prefer|chosen"
    r"|reject|correct|incorrect|wrong|accept|good|bad|valid|invalid|verif|approv|annotat|split|fold|mask|loss|train|learn|ignore|exclude|skip"
    r"|delete|flag|toxic|unsafe|safe|harm|negative|positive|histor|system|context|document|passage|think|reason|rationale|cot"
    r"|tool|function|kwarg|image|video|audio)"
)
_COUNTING = re.compile(
    r"(?i)(?<![a-z])(?:id|ids|idx|index|uuid|hash|line|row|number|num|no|nr|time|timestamp|date|created|updated|year|len|length|tokens?|chars?"
    r"|words?|count|turns?|column|seed|version|page|offset|start|end|size|order|position|ms|seconds|latency)(?![a-z])"
)
_NUMBER = re.compile(r"[-+]?\d{1,12}(?:[.,]\d{1,12})?%?|true|false|yes|no", re.IGNORECASE)


@dataclass
class UnusedFields:
    """How many rows have a value in each field that is not used. `telling`: those that may change what a row means, by name or value."""

    telling: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Iterable[tuple[Any, Example]], fields: Mapping[str, str], beside: Collection[str] = ()) -> None:
        """Count the fields of rows, each given with what was read of it. beside: fields that are used beside its texts."""
        plain: dict[tuple[str, ...], tuple[str, ...]] = {}
        for value, example in rows:
            layout = example.layout
            names = (layout, *value) if isinstance(value, dict) else ()
            if names not in plain:
                used = fields_read(value, layout, fields) | {name for name in value if in_our_case(name) in beside} if names else set()
                plain[names] = tuple(name for name in names[1:] if name not in used)
            unheard = _unheard(value, example, fields) if names else []
            found = {name: value[name] for name in (*plain[names], *unheard)}
            if layout == "chat":
                found |= dict(_of_turns(value))
            for name, inside in found.items():
                if inside is not None and inside != "" and inside != [] and inside != {}:
                    beside_pair = layout in _PAIRS and in_our_case(name) in _BESIDE_PAIR
                    counter = self.telling if name in unheard or beside_pair or tells(name, inside) else self.others
                    if name in counter or len(counter) < _MOST_NAMES:
                        counter[name] += 1

    def merge(self, other: UnusedFields) -> None:
        for mine, theirs in ((self.telling, other.telling), (self.others, other.others)):
            for name, count in theirs.items():
                if name in mine or len(mine) < _MOST_NAMES:
                    mine[name] += count

    def __sub__(self, other: UnusedFields) -> UnusedFields:
        return UnusedFields(self.telling - other.telling, self.others - other.others)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return `telling` and `others`, the most frequent first; a field whose values tell in some rows is counted with all its rows."""
        telling = Counter({name: count + self.others[name] for name, count in self.telling.items()})
        others = Counter({name: count for name, count in self.others.items() if name not in telling})
        return {"telling": dict(telling.most_common()), "others": dict(others.most_common())}


def tells(name: str, value: Any) -> bool:
    """True if an unlearned field may change what its row means: it is named so, or holds a number or a yes or no."""
    meaning, counting = _says(name)
    if meaning or counting:
        return meaning
    return isinstance(value, int | float) or (isinstance(value, str) and bool(_NUMBER.fullmatch(value.strip())))


def counts_only(name: str) -> bool:
    """True if a field's name is one of a number, place or time of which each row has its own."""
    meaning, counting = _says(name)
    return counting and not meaning


@lru_cache(maxsize=4 * _MOST_NAMES)
def _says(name: str) -> tuple[bool, bool]:
    """Return whether a field's name is about the row's meaning, and whether about a place, time or size. Rows share their names."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return bool(_MEANING.search(words)), bool(_COUNTING.search(words))


def _unheard(value: Mapping[str, Any], example: Example, fields: Mapping[str, str]) -> list[str]:
    """Return the fields with a system's text that no turn has, since the conversation begins with another system turn."""
    if not example.messages or example.messages[0].role != "system":
        return []
    ours = _SYSTEM | {in_our_case(theirs) for name, theirs in fields.items() if name in _SYSTEM}
    said = {turn.content.strip() for turn in example.messages if turn.role == "system"}
    told = {name: system_of({"system": inside}).strip() for name, inside in value.items() if in_our_case(name) in ours}
    return [name for name, text in told.items() if text and text not in said]


def _of_turns(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of turns beside role and content, under the name of the list they stand in. Whether an answer is
    learned is used, and so is that other turns are not."""
    where, turns = "", value
    if isinstance(value, dict):
        named = {name.strip().lower(): name for name in value}
        where = next((named[name] for name in TALKS if name in named and isinstance(value[named[name]], list)), "")
        turns = value.get(where)
    for turn in turns if isinstance(turns, list) else ():
        for name in turn if isinstance(turn, dict) else ():
            if name.lower() in _TURN or turn[name] is None or name in _rarely_read(turn):
                continue
            if name in TURN_MARKS and (not turn[name] or in_our_case(turn.get("role", turn.get("from", "assistant"))) in _ASSISTANT):
                continue
            yield f"{where}[].{name}", turn[name]


def _rarely_read(turn: Mapping[str, Any]) -> Collection[str]:
    """Return the names that are read of a turn of a rarer form: a text beside a role, a question with its answer."""
    if not _SAYS_WHO.isdisjoint(turn):
        return ("text",) if _TEXTS.isdisjoint(turn) else ()
    return next((("system", *names) for names in EXCHANGES if all(isinstance(turn.get(name), str) for name in names)), ())
