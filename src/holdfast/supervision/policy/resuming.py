"""How a command is told to go on from a checkpoint, by its launcher card. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.book.kinds.launcher import LauncherCard, given, given_with_dashes, place_of, with_argument
from holdfast.book.kinds.remedy import RemedyCard
from holdfast.supervision.policy.shell_string import Inside, commands_in

# argparse, click, HfArgumentParser, absl, tyro, fire, getopt and OmegaConf, of an option that they do not know
_UNKNOWN_OPTION = re.compile(
    r"unrecogni[sz]ed (?:arguments?|options?)|no such option|not used by the HfArgumentParser"
    r"|unknown (?:command[- ]line )?(?:flag|option|arg)|could not consume arg|option \S+ not recogni[sz]ed|is not in struct",
    re.IGNORECASE,
)
# argparse's last line, before anything of the program has run
_REFUSED = re.compile(
    r"^.*: error: (?:unrecognized arguments: |the following arguments are required: |one of the arguments .+ is required$"
    r"|ambiguous option: |argument \S.*: (?:invalid |expected |not allowed with |ignored explicit |conflicting ))"
)


def known_by(words: Sequence[str], cards: Mapping[str, LauncherCard]) -> LauncherCard | None:
    """Return the card a command is known by, the most particular first; None where none fits, or a shell is given several known ones."""
    in_order = sorted(cards.values(), key=lambda card: (card.order, card.id))
    found = [card for one in commands_in(words) if (card := next((card for card in in_order if card.matches(one.words)), None))]
    return found[0] if len(found) == 1 else None


def training_in(words: Sequence[str], card: LauncherCard | None) -> Inside:
    """Return the command that a card is for: the whole of it, or the one of those that a shell is given as a text."""
    fits = [one for one in commands_in(words) if card is not None and card.matches(one.words)]
    return fits[0] if len(fits) == 1 else Inside(tuple(words), tuple(words))


def checkpoints_of(words: Sequence[str], card: LauncherCard | None, config: Mapping[str, object]) -> str | None:
    """Return the folder of checkpoints as the command names it, or as the YAML file does that it is given (`config`)."""
    if card is None:
        return None
    training = training_in(words, card)
    named = next((value for name in card.checkpoints if (value := given(training.words, name))), None)
    if named is None and card.config_key:
        written = config.get(card.config_key)
        named = written if isinstance(written, str) else None
    return training.place(named) if named is not None else None


def resumes_by(words: Sequence[str], card: LauncherCard | None) -> str | None:
    """Return the flag that tells this command to resume, with dashes where it names its folder so; None where it takes none."""
    if card is None:
        return None
    inner = training_in(words, card).words
    used = next((name for name in card.resume if place_of(inner, name) is not None), None)
    if used or card.resume_only_given or not card.resume:
        return used
    flag = card.resume[0]
    dashed = flag.startswith("--") and any(given_with_dashes(inner, name) for name in card.checkpoints)
    return f"--{flag[2:].replace('_', '-')}" if dashed else flag


def added_by(words: Sequence[str], card: LauncherCard | None) -> str | None:
    """Return the flag that `resumed` adds to this command; None where it replaces one that stands there, or there is none."""
    flag = resumes_by(words, card)
    return None if flag is None or given(training_in(words, card).words, flag) is not None else flag


def says_unknown(lines: Sequence[str], flag: str) -> bool:
    """True if a program's last lines say, in its parser's words, that it does not know an option."""
    words = "[-_]".join(map(re.escape, re.split("[-_]", flag.lstrip("-"))))
    name = re.compile(rf"(?<![\w-])-{{0,2}}{words}(?![\w-])")
    return any(_UNKNOWN_OPTION.search(line) and name.search(line) for line in lines)


def resumed(words: Sequence[str], card: LauncherCard | None, checkpoint: str | None) -> tuple[str, ...]:
    """Return the command that resumes from a checkpoint; unchanged where there is none, or it cannot be told."""
    flag = resumes_by(words, card)
    if flag is None or checkpoint is None or card is None:
        return tuple(words)
    training = training_in(words, card)
    return training.around(with_argument(training.words, flag, checkpoint, card.style))


def changed(words: Sequence[str], card: LauncherCard | None, remedy: RemedyCard) -> tuple[tuple[str, ...], str] | None:
    """Return (command, what was changed) with the arguments for a remedy's settings; None where none of them can be given here."""
    training = training_in(words, card)
    told, now = [], training.words
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
    return (training.around(now), ", ".join(told)) if told else None


def refused_arguments(lines: Sequence[str]) -> str:
    """Return the last line of an output where argparse says there that it does not take its arguments; empty where it does not."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last if _REFUSED.match(last) else ""
