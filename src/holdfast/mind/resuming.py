"""How a command is told to go on from a checkpoint, by its launcher card. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.core.cards.launcher import LauncherCard, given, place_of, with_argument
from holdfast.core.cards.remedy import RemedyCard

# argparse, click, HfArgumentParser, absl, tyro, fire, getopt and OmegaConf, of an option that they do not know
_UNKNOWN_OPTION = re.compile(
    r"unrecogni[sz]ed (?:arguments?|options?)|no such option|not used by the HfArgumentParser"
    r"|unknown (?:command[- ]line )?(?:flag|option|arg)|could not consume arg|option \S+ not recogni[sz]ed|is not in struct",
    re.IGNORECASE,
)


def known_by(words: Sequence[str], cards: Mapping[str, LauncherCard]) -> LauncherCard | None:
    """The card a command is known by, the most particular first; None where none fits."""
    return next((card for card in sorted(cards.values(), key=lambda card: (card.order, card.id)) if card.matches(words)), None)


def checkpoints_of(words: Sequence[str], card: LauncherCard | None, config: Mapping[str, object]) -> str | None:
    """The folder of checkpoints as the command names it, or as the YAML file does that it is given (`config`)."""
    if card is None:
        return None
    named = next((value for name in card.checkpoints if (value := given(words, name))), None)
    if named is None and card.config_key:
        written = config.get(card.config_key)
        return written if isinstance(written, str) else None
    return named


def resumes_by(words: Sequence[str], card: LauncherCard | None) -> str | None:
    """The flag by which this command is told to go on; None where it takes none."""
    if card is None:
        return None
    used = next((name for name in card.resume if place_of(words, name) is not None), None)
    return used or (None if card.resume_only_given or not card.resume else card.resume[0])


def added_by(words: Sequence[str], card: LauncherCard | None) -> str | None:
    """The flag that `resumed` adds to this command; None where it replaces one that stands there, or there is none."""
    flag = resumes_by(words, card)
    return None if flag is None or place_of(words, flag) is not None else flag


def says_unknown(lines: Sequence[str], flag: str) -> bool:
    """Whether a program's last lines say that it does not know an option, in its parser's words."""
    words = "[-_]".join(map(re.escape, re.split("[-_]", flag.lstrip("-"))))
    name = re.compile(rf"(?<![\w-])-{{0,2}}{words}(?![\w-])")
    return any(_UNKNOWN_OPTION.search(line) and name.search(line) for line in lines)


def resumed(words: Sequence[str], card: LauncherCard | None, checkpoint: str | None) -> tuple[str, ...]:
    """The command that goes on from a checkpoint; as it is where there is none, or it cannot be told."""
    flag = resumes_by(words, card)
    if flag is None or checkpoint is None or card is None:
        return tuple(words)
    return with_argument(words, flag, checkpoint, card.style)


def changed(words: Sequence[str], card: LauncherCard | None, remedy: RemedyCard) -> tuple[tuple[str, ...], str] | None:
    """(command, what was changed) with the arguments that stand for a remedy's settings; None where nothing of it can be said here."""
    told, now = [], tuple(words)
    for change in card.changes.get(remedy.id, ()) if card else ():
        old = given(now, change.flag)
        value = change.value
        if change.factor is not None:
            number = int(old) if old and old.isdecimal() else change.default
            if number is None:
                continue
            value = str(max(1, int(number * change.factor)))
            if number == int(value):
                continue
            old = str(number)
        if value is None or card is None or (old or "").lower() == value.lower():
            continue
        now = with_argument(now, change.flag, value, card.style)
        told.append(f"{change.flag} {value}" + (f" (was {old})" if old else ""))
    return (now, ", ".join(told)) if told else None
