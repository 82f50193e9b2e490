"""Name the likeliest cause of a failure report from its evidence and the book's failure cards. Pure: no files, no clock.

What an exit code or the trainer's own account says comes before any text. Roots beat echoes, the first error wins, advice ("try
setting ...") is never evidence. Where no card fires the words are compared; `unknown` with the best clues is an answer.
"""

from __future__ import annotations

import math
import re
import signal
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from holdfast.base.units import loss_and_norm
from holdfast.book.kinds.failure import Failure
from holdfast.diagnosis.logs.curve import points
from holdfast.diagnosis.logs.doubts import doubted, doubts
from holdfast.diagnosis.logs.frames import tracebacks
from holdfast.diagnosis.logs.harmless import of_weight, without_passing
from holdfast.diagnosis.logs.readings import readings
from holdfast.diagnosis.logs.sift import sift
from holdfast.diagnosis.logs.text import Evidence, Line, clean
from holdfast.diagnosis.logs.unfinished import CutShort, closed_since, cut_short
from holdfast.diagnosis.word_similarity import guess
from holdfast.run.outcomes import DISK_TAKES_NOTHING
from holdfast.run.types import Clue, Diagnosis, FailureReport

_LOW_MEMORY_BYTES = 512 << 20
_ADVICE = re.compile(  # up to the end of the line: advice follows the fact, unless it is all that the error says
    r"(?<!Error: )\b(?:If (?:reserved\b|you\b|this\b|the problem)|[Pp]lease (?:try|consider|check|make sure|see)\b|[Cc]onsider\b"
    r"|For debugging\b"
    r"|(?:also )?[Tt]ry (?:to |set|using|with|increas|reduc|lower)|Compile with `TORCH_USE|[Mm]ake sure\b"
    r"|Possible (?:reasons|causes|solutions)|Hint:|[Ss]ee (?:documentation|https?:)"
    r"|To (?:fix|avoid|resolve|solve|suppress|disable) this)[^\n]*"
)
_EXCEPTION = re.compile(
    r"^\W*(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Timeout|Expired|Found|Exit)\b|^terminate called|what\(\):|^\S*: fatal"
)
_BOXED = re.compile(r"^[│|\s]*([^│|\s]\S*\.py):(\d+) in ([^│|\s]*)[│|\s]*$")  # a frame as rich draws it
_SOURCE = re.compile(r"^│ +(?:❱ *)?\d+ │[ │]*(.*[^ │])?[ │]*$")  # and a line of its source
_TROUBLE = re.compile(r"error|exception|fail|fatal|abort|kill|fault|cannot|can't|unable|denied|timed? ?out|\bnan\b", re.I)
_SIGNS = re.compile(  # of a failure, in a log that is nothing but a piece of one
    r"traceback|^[ \t]*File \"|❱|invalid|not found|no such|missing|unsupported|undefined|refused|illegal|mismatch|\bhang|stuck|lost|crash"
    r"|\bstall|panick|dumped|corrupt|insufficient|non-?finite|disagree|unresolv"
    r"|assert|^[^\w\n]*#\d+ +0x[0-9a-f]+ in |is_available\(\)\S{0,80}\s+False",
    re.I | re.M,
)
_OF_A_PROCESS = re.compile(r"killed process|segfault at|traps:|oom[-_]", re.I)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\b\w*Warning:")  # what a program calls itself no error
_CRASH = re.compile(r"^reading: killed by SIG(?:SEGV|ABRT|BUS|ILL|FPE)\b|^Fatal Python error: ")
_SIGKILL_ALONE = ("host-oom-sigkill",)  # the card that is led by nothing but the signal
ASKED_TO_END = ("launch-ended-by-signal",)  # and that of the signals by which others end a program
ECHO_BESIDE_ROOT = 0.2
MERE_WARNING = 0.25  # a line that calls itself a warning, in a program that crashed
LIVED = 3  # losses behind a failure that say that training went on
OUTLIVED = 0.5  # what training went on after, to its closing words
LATER = 0.75  # an error after the first one
ECHO_BESIDE_EXCEPTION = 0.6  # a silence, where an exception speaks
WARNED_BEFORE = 0.5  # a line that calls itself a warning, where no card knows the exception
AROUND = 3  # lines on either side of an exception that a guess goes by
AGAINST_ENDING = 0.7  # a text that says otherwise than the signal that ended the program
AGAINST_MEASURED = 0.6  # words that say otherwise than what was measured
IN_PASSING = 0.85  # a line that is no exception, where an exception was recognised
ENOUGH = 0.3  # below this no card is believed
ENOUGH_TO_ACT = 0.4  # below this a run of our own is not steered by it
UNSEEN = 0.93  # how much less often cards are right on threads nobody read for them (benchmarks/results/diagnose.md)
_BAR = re.compile(r"^[^|%\[]{0,80}\d{1,3}%\|[^|]{0,200}\| {0,4}[^ \[]{1,40} \[[^\]]{0,120}\]\s*")
CLUES, LONGEST_CLUE = 5, 500
_OF_DEVICES = ("hardware_fault", "driver_or_firmware", "device_access_denied", "wrong_device_selected")  # why a GPU may be gone
_OF_MEMORY = ("gpu_out_of_memory", "gpu_memory_unavailable", "host_out_of_memory")
_OF_LOADING = ("native_library_mismatch", "package_conflict", "native_build_failure")  # what is tried before there is anything to compute
READING = "reading: "
_ENDED_WELL = "the exit code is 0: the program lived through this, or nobody passed on how it ended"
HEALTHY = "reading: loss is finite and does not climb"


@dataclass(frozen=True)
class _FiredCard:
    card: Failure
    line: Line
    place: int

    @property
    def told_by_ending(self) -> bool:
        return self.line.number is None and self.line.text.startswith("reading: killed")


def diagnose_failure(failure_report: FailureReport, cards: Mapping[str, Failure], log: tuple[Line, ...] = ()) -> Diagnosis:
    """Diagnose one ended attempt of holdfast's own trainer, whose account of itself comes before its output.

    `log`: its whole log, where there is more of it than the failure report's last lines.
    """
    return _within_a_limit(_diagnosed(failure_report, cards, log), failure_report, cards)


def _within_a_limit(found: Diagnosis, failure_report: FailureReport, cards: Mapping[str, Failure]) -> Diagnosis:
    """Name the limit on address space under which an allocation on the host failed: more memory or swap would change nothing."""
    ending = failure_report.ending
    space = ending.facts.get("address_space_bytes")
    if found.cause != "host_out_of_memory" or space is None or ending.by_signal == signal.SIGKILL:
        return found
    card = cards["launch-address-space-limit"]
    told = f"{card.title}: each one may have {space / 2**30:,.2f} GiB (ulimit -v). {card.why}"
    clues = (Clue(None, f"ulimit -v: {space >> 10}"), *found.clues[: CLUES - 1])
    return replace(found, cause=card.cause, clues=clues, cards=(card.id,), explanation=told)


def _diagnosed(failure_report: FailureReport, cards: Mapping[str, Failure], log: tuple[Line, ...]) -> Diagnosis:
    """Diagnose without a look at the limits on memory."""
    ending, facts = failure_report.ending, failure_report.ending.facts
    if ending.kind == "nonfinite":
        known = loss_and_norm(facts["loss"], facts.get("grad_norm")) if "loss" in facts else ""
        seen = known or str(facts.get("reason", ""))
        return Diagnosis.plain("nonfinite_numerics", 0.9, seen)
    if ending.kind == "damaged":
        return Diagnosis.plain("hardware_fault", 0.8, *facts["damaged"])
    if ending.kind == "refused":
        return Diagnosis.plain(str(facts.get("cause", "unknown")), 0.95, str(facts.get("reason", "")))
    if ending.kind == "disk_full" or failure_report.disk_is_full:
        free = "an unknown number of" if failure_report.disk_free_bytes is None else f"{failure_report.disk_free_bytes:,}"
        own = [line.removeprefix("holdfast: ") for line in failure_report.lines if DISK_TAKES_NOTHING in line]
        newest = own[-1:] if not failure_report.disk_is_full else []  # a limit of the process or its user, or another disk
        found = Diagnosis.plain("disk_full", 0.95, *newest, f"the disk of the run folder has {free} bytes free")
        if newest and "File too large" in newest[0]:
            return replace(found, cause="launch_misconfigured", cards=("launch-file-size-limit",))
        return found
    if ending.kind in ("hang", "stuck"):
        return Diagnosis.plain("hang", 0.9, str(facts.get("reason", "")))
    if ending.kind == "no_state":
        return Diagnosis.plain("checkpoint_unreadable", 0.95, str(facts.get("reason", "")))
    if ending.kind == "out_of_memory":
        return Diagnosis.plain("gpu_out_of_memory" if facts.get("device") == "cuda" else "host_out_of_memory", 0.95, str(facts["reason"]))
    if ending.kind == "device_gone":
        return _of_a_device(failure_report, cards)
    if ending.kind not in ("killed", "error"):
        return Diagnosis("unknown", 0.0)
    if ending.cpu_limit_s is not None:
        return Diagnosis("launch_misconfigured", 0.95, (Clue(None, ending.words()),), cards=("launch-cpu-limit",))
    available = failure_report.memory_available_bytes
    if ending.by_signal == signal.SIGKILL:
        named = [text for text in _kernels_words(failure_report) if "Killed process" in text]
        if (kills := failure_report.oom_kills or 0) > 0 or named:  # below 0: counted on two boots
            counted = f"the kernel ended {kills} of its control group for memory" if kills > 0 else "the kernel ran out of memory"
            return Diagnosis.plain("host_out_of_memory", 0.95, ending.words(), *(named[-2:] or [counted]))
        if available is not None and available < _LOW_MEMORY_BYTES:
            return Diagnosis.plain("host_out_of_memory", 0.8, ending.words(), f"{available >> 20} MiB of memory left")
        return Diagnosis.plain("unknown", 0.0, ending.words())  # anybody may have sent it
    lines = log or tuple(line for number, raw in enumerate(failure_report.lines, 1) if (line := clean(raw, number)).text)
    told = tuple(line for text in _kernels_words(failure_report) if (line := clean(text)).text)
    serious, _ = without_passing((*told, *lines))
    found = _by_cards(Evidence(tuple(serious), ending.code), cards)
    if found.confidence < ENOUGH_TO_ACT:
        found = Diagnosis("unknown", 0.0, found.clues, found.also)
    if found.cause == "disk_full" and failure_report.disk_free_bytes is not None:
        room = Clue(None, f"the disk of the run folder has {failure_report.disk_free_bytes / 1e9:.1f} GB free, so it is another one")
        found = replace(found, confidence=round(found.confidence * AGAINST_MEASURED, 3), clues=(*found.clues[: CLUES - 1], room))
    if found.cards == _SIGKILL_ALONE and failure_report.oom_kills == 0 and (available is None or available >= _LOW_MEMORY_BYTES):
        return Diagnosis.plain("unknown", 0.0, *found.words())  # a launcher tells of it, and the kernel has ended nobody for memory
    if found.cards == ASKED_TO_END:  # a launcher such as torchrun that was sent one exits with 1, and says so
        number = ending.by_signal
        by = f"ended by signal {number} ({signal.Signals(number).name})" if number is not None else "sent a signal to end"
        return replace(found, cause="unknown", confidence=0.0, explanation=f"It was {by} from outside. {cards[ASKED_TO_END[0]].why}")
    return found if found.clues else Diagnosis.plain("unknown", 0.0, "no output")


def _of_a_device(failure_report: FailureReport, cards: Mapping[str, Failure]) -> Diagnosis:
    """Explain why there is no device by the kernel's log and the trainer's own, where they name one of the possible causes."""
    texts = (*_kernels_words(failure_report), *failure_report.lines)
    found = _by_cards(Evidence(tuple(line for text in texts if (line := clean(text)).text)), cards)
    if found.cause in _OF_DEVICES and found.confidence >= ENOUGH_TO_ACT:
        return found
    return Diagnosis.plain("device_access_denied", 0.5, str(failure_report.ending.facts.get("reason", "")))


def _kernels_words(failure_report: FailureReport) -> list[str]:
    """Return the kernel's messages, without those about another process."""
    pid = re.compile(rf"\b{failure_report.pid}\b")
    return [text for text in failure_report.kernel_messages or () if not _OF_A_PROCESS.search(text) or pid.search(text)]


def diagnose(evidence: Evidence, cards: Mapping[str, Failure]) -> Diagnosis:
    """Return the likeliest cause in any log. `confidence` is meant as a frequency: benchmarks/diagnosis.py measures it."""
    serious, beyond_doubt = without_passing(evidence.lines)
    troubled = bool(evidence.exit_code) or _is_trouble(beyond_doubt)
    found = _by_cards(replace(evidence, lines=tuple(serious if troubled else beyond_doubt)), cards)
    if found.cause == "healthy" and (against := doubts(evidence.lines)):
        return doubted(against)
    if found.cause == "healthy" and (cut := cut_short(evidence.lines)):
        return _cut_short(cut, evidence.exit_code)
    if (
        evidence.exit_code == 0
        and any(clue.line for clue in found.clues)
        and found.cause not in ("healthy", "unknown", "no_learning_signal")
    ):
        found = replace(found, clues=(*found.clues[: CLUES - 1], Clue(None, _ENDED_WELL)))
    found = _outlived(found, evidence)
    if found.cause != "unknown":
        return found if found.clues else replace(found, clues=tuple(_best_clues(evidence, [])))
    losses = {point.line for point in points(serious)}
    kin = guess(_text(_around_exceptions([line for line in serious if line not in losses])), cards.values())  # a course has its numbers
    if kin and troubled:
        return Diagnosis(*kin[0], found.clues, tuple(kin[1:]))
    return replace(found, clues=found.clues or tuple(_best_clues(evidence, [])), also=found.also or tuple(kin))  # nobody says it failed


def _around_exceptions(lines: Sequence[Line]) -> list[Line]:
    """Return what stands around the exceptions' own lines, or the lines worth matching: what a start prints has words of any cause."""
    own = tracebacks(lines).own
    return [line for at, line in enumerate(lines) if any(-AROUND <= at - one <= AROUND for one in own)] if own else sift(lines)


def _outlived(found: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return the verdict on what training went on after, to its closing words: less sure, with what stands below it."""
    last = max((clue.line or 0 for clue in found.clues), default=0)
    if not last or found.cause == "healthy":
        return found
    below = [number for number in _finite_losses(evidence.lines) if number > last]
    if len(below) < LIVED or not closed_since(evidence.lines, below[-1]):
        return found
    told = f"{len(below)} losses and the training's closing words stand below this: it was lived through, or those lines were printed late"
    return replace(found, confidence=round(found.confidence * OUTLIVED, 3), clues=(*found.clues[: CLUES - 1], Clue(None, told)))


def _finite_losses(lines: Sequence[Line]) -> list[int]:
    """Return the numbers of the lines that tell a finite training loss."""
    return [point.line.number for point in points(lines) if point.line.number is not None and math.isfinite(point.loss)]


def _cut_short(cut: CutShort, code: int | None) -> Diagnosis:
    """Return the verdict on a log that is cut short: unknown, since losses that look well say nothing about how a program ended."""
    where = f"the log ends at {cut.done} of {cut.total}, without any closing words"
    clues = (Clue(None, where), Clue(cut.line.number, cut.line.text.strip()[-LONGEST_CLUE:]))
    asked = "How did the program end? Tell it with --exit-code N: 137 (or SIGKILL) where it was killed, 0 where it ended by itself."
    told = "The loss looks well as far as it goes, but the log is cut short: whatever ended the program left no line in it."
    return Diagnosis("unknown", 0.0, clues, explanation=f"{told} {asked if code is None else f'It ended with exit code {code}.'}")


def _is_trouble(lines: Sequence[Line]) -> bool:
    text = of_weight(_text(sift(lines)))
    return bool(_TROUBLE.search(text) or _SIGNS.search(text))


def _by_cards(evidence: Evidence, cards: Mapping[str, Failure]) -> Diagnosis:
    """Combine the cards that fire into a diagnosis."""
    fired = _fire(evidence, cards.values())
    warned: list[_FiredCard] = []
    if any(_CRASH.search(one.line.text) for one in fired):
        fired, warned = _without_warnings(fired, evidence, cards.values())
    own = _own_lines(evidence)
    scores = _scores(_without_survived([*fired, *warned], evidence, own), warned, own)
    ranked = sorted(scores, key=lambda cause: -scores[cause])
    confidences = {cause: _confidence(scores, cause) for cause in ranked}
    if not ranked or scores[ranked[0]] < ENOUGH:
        guesses = tuple((cause, confidences[cause]) for cause in ranked[:3])
        return Diagnosis("unknown", 0.0, tuple(_best_clues(evidence, fired)), guesses)
    chosen = [one for one in [*fired, *warned] if one.card.cause == ranked[0]]
    chosen.sort(key=lambda one: (one.line not in own, -one.card.sure, one.place))
    spoken = [one.line for one in chosen]
    if not any(line in own for line in spoken):
        spoken[CLUES - 1 :] = own[-1:]
    clues = dict.fromkeys(clue for line in spoken for clue in _clues(line, evidence))
    also = tuple((cause, confidences[cause]) for cause in ranked[1:4])
    return Diagnosis(ranked[0], confidences[ranked[0]], tuple(clues)[:CLUES], also, tuple(one.card.id for one in chosen))


def lines_as_seen(evidence: Evidence) -> tuple[list[Line], str]:
    """Return what cards are matched against, as lines and as one text: the log without advice, frames in Python's form, then readings."""
    lines = [*sift(evidence.lines), *readings(evidence)]
    return lines, _text(lines)


def _text(lines: Sequence[Line]) -> str:
    """Join the lines as cards meet them, without the source that tracebacks quote."""
    quoted = tracebacks([line for line in lines if not line.text.startswith(READING)]).quoted  # readings come last
    return "\n".join("" if at in quoted else _plain(line) for at, line in enumerate(lines))


def _plain(line: Line) -> str:
    """Return a line without advice, and without the frame that rich draws around a traceback."""
    return _BOXED.sub(r'  File "\1", line \2, in \3', _SOURCE.sub(r"    \1", _ADVICE.sub("", line.text)))


def _fire(evidence: Evidence, cards: Iterable[Failure]) -> list[_FiredCard]:
    """Return the cards that fire, each with the first line it fires on."""
    lines, text = lines_as_seen(evidence)
    starts = list(accumulate((len(part) + 1 for part in text.split("\n")), initial=0))
    found = ((card, card.place(text)) for card in cards)
    places = ((card, bisect_right(starts, place) - 1) for card, place in found if place is not None)
    return [_FiredCard(card, lines[place], place) for card, place in places]


def _without_warnings(fired: list[_FiredCard], evidence: Evidence, cards: Iterable[Failure]) -> tuple[list[_FiredCard], list[_FiredCard]]:
    """Split the fired cards into those that fire without lines that call themselves warnings, and those that fire on warnings alone."""
    kept = _fire(replace(evidence, lines=tuple(line for line in evidence.lines if not _WARNING.search(line.text))), cards)
    ids = {one.card.id for one in kept}
    return kept, [one for one in fired if one.card.id not in ids]


def _scores(fired: list[_FiredCard], warned: Sequence[_FiredCard] = (), own: Sequence[Line] = ()) -> dict[str, float]:
    """Return by cause how sure its cards are together, an echo's weight lowered beside a root, a later error's beside the first.

    warned: those that fired on warnings alone, in a program that crashed; own: the exceptions' own lines.
    """
    fired = [one for one in fired if not _was_survived(one, fired)]
    roots = [one for one in fired if one.card.role == "root" and one not in warned]
    first = min((one.place for one in roots if one.card.sure >= 0.6), default=None)
    named = any(_EXCEPTION.search(one.line.text) for one in roots)
    doubt: dict[str, float] = {}
    ended = {one.card.cause for one in roots if one.told_by_ending}
    unknown = bool(own) and not any(one.line in own for one in roots)
    opening = {one.card.cause for one in roots if one.place == first}
    for one in fired:
        weight = one.card.sure
        if one in warned:
            weight *= MERE_WARNING
        elif one.card.role == "echo":
            weight *= ECHO_BESIDE_EXCEPTION if own and one.line not in own else 1
            weight *= ECHO_BESIDE_ROOT if any(root.card.cause != one.card.cause for root in roots) else 1
        elif not one.told_by_ending:
            weight *= AGAINST_ENDING if ended and one.card.cause not in ended else 1
            weight *= LATER if first is not None and one.place > first and one.card.cause not in opening else 1
            weight *= WARNED_BEFORE if unknown and _WARNING.search(one.line.text) else 1
            weight *= IN_PASSING if named and not _EXCEPTION.search(one.line.text) else 1
        doubt[one.card.cause] = doubt.get(one.card.cause, 1.0) * (1 - weight)
    return {cause: 1 - left for cause, left in doubt.items()}


def _was_survived(one: _FiredCard, fired: list[_FiredCard]) -> bool:
    """Return whether training went on in good health after the line."""
    went_on = max((other.line.number or 0 for other in fired if other.line.text.startswith(HEALTHY)), default=0)
    number = one.line.number
    return number is not None and number < went_on and not one.line.text.startswith(READING)


def _without_survived(fired: list[_FiredCard], evidence: Evidence, own: Sequence[Line]) -> list[_FiredCard]:
    """Leave out what a program went on after, where something of another cause, no echo, stands behind that: losses, or full memory.

    own: the exceptions' own lines. A program that fills a memory has got past all it failed to load, which was no more than an option.
    """
    roots = [one for one in fired if one.card.role == "root" and one.line.number is not None and not one.line.text.startswith(READING)]
    if len({one.card.cause for one in roots}) < 2:
        return fired
    losses = _finite_losses(evidence.lines)
    filled = max((one.line.number or 0 for one in roots if one.card.cause in _OF_MEMORY and one.line in own), default=0)

    def ended_later(one: _FiredCard) -> bool:
        if one.card.cause in _OF_LOADING and (one.line.number or 0) < filled:
            return True
        behind = losses[bisect_right(losses, one.line.number or 0) :][LIVED - 1 : LIVED]
        return bool(behind) and any((other.line.number or 0) > behind[0] and other.card.cause != one.card.cause for other in roots)

    return [one for one in fired if one not in roots or not ended_later(one)]


def _confidence(scores: dict[str, float], cause: str) -> float:
    others = max((score for other, score in scores.items() if other != cause), default=0.0)
    own = scores[cause]
    return round(min(0.97, own * (1 - 0.5 * others) if own >= others else own * (1 - others)) * UNSEEN, 3)


def _own_lines(evidence: Evidence) -> list[Line]:
    """Return the exceptions' own lines, in order."""
    return [evidence.lines[at] for at in tracebacks(evidence.lines).own]


def _best_clues(evidence: Evidence, fired: list[_FiredCard]) -> list[Clue]:
    """Return what a person would look at first: lines that cards fired on, the first trouble, the last line."""
    lines = _own_lines(evidence)[-2:]
    lines += [one.line for one in sorted(fired, key=lambda one: -one.card.sure)[:2]]
    quoted = tracebacks(evidence.lines).quoted
    own_words = [line for at, line in enumerate(evidence.lines) if at not in quoted]
    lines += [line for line in own_words if _TROUBLE.search(_ADVICE.sub("", line.text))][:2]
    lines += own_words[-1:]
    return list(dict.fromkeys(clue for line in lines for clue in _clues(line, evidence)))[:CLUES]


def _behind_a_bar(text: str) -> str:
    """Strip the progress bar that a line was printed behind; a bar alone stays."""
    return _BAR.sub("", text, count=1) or text


def _clues(line: Line, evidence: Evidence) -> list[Clue]:
    """Return a line as it stands in the log; before it the reading that was made from it, where it is one."""
    sentence = line.text.removeprefix(READING)
    if sentence == line.text:
        return [Clue(line.number, _behind_a_bar(line.text.strip())[:LONGEST_CLUE])]
    source = next((told.text for told in evidence.lines if told.number == line.number), None) if line.number else None
    return [Clue(None, sentence), *([Clue(line.number, _behind_a_bar(source.strip())[:LONGEST_CLUE])] if source else [])]
