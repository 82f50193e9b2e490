"""Say that a log ends before its own end: progress that never got to its total, and no closing words after it. Pure; blames nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.diagnosis.logs.text import Line

_COUNT = r"(?P<done>\d[\d,]*)\s*(?:/|of|out of)\s*(?P<total>\d[\d,]*)"
_PROGRESS = (
    re.compile(rf"(?<![\d.,/-]){_COUNT} \[[\d:]+<"),  # tqdm
    re.compile(rf"\b(?:step|iter|iteration|batch|update|epoch|it)s?\b[\s:=#]*[\[(]?\s*{_COUNT}(?![\d.,]*[/\d])", re.I),
    re.compile(rf"^[^\w\n]*[\[(]\s*{_COUNT}\s*[\])]"),  # [7/2000], at the start of a line
)
_EPOCHS = re.compile(r"\bNum(?:ber of)? [Ee]pochs\s*[=:]\s*(\d+)|\bnum_train_epochs['\"]?\s*[=:]\s*(\d+)")
_EPOCH = re.compile(r"['\"]epoch['\"]\s*:\s*['\"]?(\d+\.\d+)")
_CLOSED = re.compile(
    r"train_runtime|\b(?:training|finetuning|fine-tuning|run|job|everything|all)\b.{0,20}\b(?:complete|completed|finished|done|ended|over)\b"
    r"|\b(?:saving|saved|wrote) (?:the )?(?:final|finished)\b|\b(?:final )?(?:model|adapter|weights) saved\b|\bearly stopping\b"
    r"|\btotal (?:training )?time\b|wandb: (?:Run summary|Run history|\S+ View run)|^[^\w\n]*(?:done|finished|complete)\b"
    r"|^! stopped after step \d",  # as it was asked to, and saved
    re.I,
)
_ALMOST = 0.99  # of its epochs: the last line of a log is not always its last step


@dataclass(frozen=True)
class CutShort:
    """The newest progress of a log that ends before its own end."""

    line: Line
    done: str
    total: str


def cut_short(lines: Sequence[Line]) -> CutShort | None:
    """Return where a log stands that does not reach its own end; None where it does, or does not say how long it is to be."""
    newest: dict[str, tuple[int, int, int]] = {}
    first: dict[str, int] = {}
    as_far: dict[str, int] = {}  # as its rounds come, where a count begins anew: one that is printed now and then ends before its total
    for at, done, total, what in _progress(lines):
        if what in newest and done < newest[what][1]:
            as_far[what] = max(as_far.get(what, 0), newest[what][1])
        newest[what] = at, done, total
        first.setdefault(what, done)
    ends = {what: min(as_far.get(what, total), total - (first[what] == 0)) for what, (_, _, total) in newest.items()}
    going = max((found for what, found in newest.items() if found[1] < ends[what]), default=None)
    if going is None:
        return _between_epochs(lines)
    at, done, total = going
    return None if _closed(lines, at) else CutShort(lines[at], f"{done:,}", f"{total:,}")


def _progress(lines: Sequence[Line]) -> Iterator[tuple[int, int, int, str]]:
    """Yield (position, done, total, counter) of all that counts up to a known total, in order."""
    for at, line in enumerate(lines):
        for kind, pattern in enumerate(_PROGRESS):
            for match in pattern.finditer(line.text):
                done, total = (int(match[name].replace(",", "")) for name in ("done", "total"))
                if total > 0 and done <= total:
                    yield at, done, total, f"{kind} {total}"


def _between_epochs(lines: Sequence[Line]) -> CutShort | None:
    """Return where a trainer stands that says how many epochs there are, and ends at a fraction of them."""
    told = [(at, next(filter(None, match.groups()))) for at, line in enumerate(lines) if (match := _EPOCHS.search(line.text))]
    seen = [(at, match[1]) for at, line in enumerate(lines) if (match := _EPOCH.search(line.text))]
    if not told or not seen or seen[-1][0] < told[-1][0]:
        return None
    (at, epoch), epochs = seen[-1], told[-1][1]
    if float(epoch) >= _ALMOST * float(epochs) or _closed(lines, at):
        return None
    return CutShort(lines[at], f"epoch {epoch}", epochs)


def closed_since(lines: Sequence[Line], number: int) -> bool:
    """Return whether a program says its closing words in that line of its file or below."""
    return any(_CLOSED.search(line.text) for line in lines if (line.number or 0) >= number)


def _closed(lines: Sequence[Line], since: int) -> bool:
    return any(_CLOSED.search(line.text) for line in lines[since:])
