"""Find out by experiment why a step fails: again as it was, with fewer samples, under one change at a time. Changes nothing in the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb, isfinite

from holdfast.base.files import Json
from holdfast.book.kinds.remedy import RemedyCard
from holdfast.diagnosis.divergence import left_level
from holdfast.experiments.replay import TrialChange, TrialsSpent, failure
from holdfast.experiments.search import guilty, same_size_sets, smallest_failing, swapped_by_length
from holdfast.experiments.state import blame_the_rate, blame_the_state
from holdfast.experiments.trials import Lab, NoAnswer
from holdfast.run.types import Verdict

_CULPRITS = 4  # rows of one step that are searched for in any case
_OF_ROWS = 2 / 3  # of the trials, in which more rows than that are searched for; the rest is left for remedies
_TRANSIENT = 3  # passes in a row after which a failure counts as gone
_ACCUSED = 2  # steps in whose rows were accused lately: where the loss has left its level, it is not the rows
_AGAIN = 2  # more failures of a culprit, and more passes of what is left, before a row is accused
ACCIDENT = 0.004  # how likely a change may look like a cure by accident; five failures without it and five passes with it
_CHANCES = 8  # times as rare where the failure comes and goes: then many changes get their chance of an accident
_BLOCKS = ((1, 1), (4, 3), (5, 5), (5, 5))  # trials with a change and without it, taking turns


def in_order(cards: Iterable[RemedyCard], cause: str, machine: Json, refuted: set[str], allow_cpu: bool) -> list[RemedyCard]:
    """Sort the remedies worth a trial: likely cures of the cause first, the cheaper before the dearer.

    Those of another vendor's GPU than this machine's are left out: each would cost the start of a process. Those of a
    GPU come late where there is none. The last resort comes last, where it is allowed and there is a GPU to leave.
    """
    vendors = {gpu.get("vendor") for gpu in machine.get("gpus") or []}
    here = {"any": True, "gpu": bool(vendors), "amd": "amd" in vendors}
    foreign = {"amd"} if vendors and not vendors & {"amd", None} else set()
    own = [card for card in cards if card.device not in foreign]
    offered = [card for card in own if not card.last_resort or (allow_cpu and here["gpu"])]
    ranked = sorted(offered, key=lambda card: (card.last_resort, not here[card.device], not card.matches(cause), card.cost, card.id))
    return [card for card in ranked if card.id not in refuted]


def investigate(lab: Lab, suspects: Sequence[int], failures: int, remedies: Iterable[RemedyCard]) -> Verdict:
    """Find what is to blame and what helped. `failures`: how often the step has failed already; `remedies` in the order to try.

    `suspects`: the samples that were tried when it failed; nobody: those of the step.
    """
    try:
        return _investigate(lab, list(suspects), failures, list(remedies))
    except TrialsSpent:
        text = f"no answer within {lab.trials} trials and {lab.seconds():.0f} s{_told(lab)}"
        return lab.verdict("uncertain", text)
    except NoAnswer as reason:
        return lab.verdict("uncertain", f"{reason}{_told(lab)}")


def _investigate(lab: Lab, suspects: list[int], failures: int, remedies: list[RemedyCard]) -> Verdict:
    while len(lab.unchanged) < _TRANSIENT and not (lab.exact and any(lab.unchanged)):
        lab.fails_unchanged(suspects)
    if not any(lab.unchanged):
        return lab.verdict("transient", f"the same step went through in {len(lab.unchanged)} of {len(lab.unchanged)} trials")
    certain = all(lab.unchanged)
    everything = TrialChange(tuple(suspects))
    suspects = suspects or lab.outcome(everything).get("samples") or []
    lab.known.setdefault(TrialChange(tuple(suspects)).key(), lab.outcome(everything))
    numbers = certain and lab.outcome(everything)["ending"] == "finished"  # not finite, where others crash or hang
    ill = left_level([*lab.losses(), *_loss(lab, everything)]) if numbers and lab.goes_back else None
    if ill:
        found = blame_the_rate(lab, *ill)
        if found is not None:
            return found
        if lab.accused() >= _ACCUSED:
            text = f"the loss is above {ill[1]:.3g} since step {ill[0]}, and no lower rate keeps it down; rows are accused no more"
            return lab.verdict("uncertain", text, cause="divergence")
    if certain and suspects:
        found = _rows(lab, suspects)
        if found is not None:
            return found
    outcome = lab.outcome(everything)
    traced = {} if outcome["finite"] else _traced(lab, suspects, outcome)
    first = traced.get("first_nonfinite")
    if certain and outcome["ending"] == "finished" and (first is None or first["cause"] != "nonfinite_kernel"):
        found = blame_the_state(lab, outcome, rates=lab.goes_back and not ill)
        if found is not None:
            return found
    tried: list[str] = []
    for remedy in remedies:
        settings = remedy.change(lab.settings)
        if remedy.settings and not settings:
            continue
        passes = _passes(lab, suspects, TrialChange(tuple(suspects), settings, dict(remedy.env)))
        if passes:
            failed, trials = lab.odds() or (0, 0)
            odds = f"failed {failures + failed} of {failures + trials} times without it"
            text = f"{remedy.title}: the step goes through with it ({passes} of {passes} trials) and {odds}{_where(first)}"
            facts: Json = {"remedy": remedy.id, "settings": settings, "env": dict(remedy.env)}
            return lab.verdict("setting", text, cause=first["cause"] if first else None, **facts)
        tried.append(remedy.id)
    if absurd := traced.get("absurd_weights"):
        text = f"weights of the base model hold absurd values, which no training makes: {'; '.join(absurd[:_CULPRITS])}"
        return lab.verdict("weights", text, cause="nonfinite_numerics")
    helped = f"none of these was seen to help: {', '.join(tried)}" if tried else "nothing was left to try"
    return lab.verdict("uncertain", f"{helped}{_told(lab)}{_where(first)}", cause=first["cause"] if first else None)


def _loss(lab: Lab, change: TrialChange) -> list[tuple[int, float]]:
    """Return (step, loss) of a trial whose loss is finite though its gradients are not; else an empty list."""
    loss = lab.outcome(change)["loss"]
    return [(lab.step, float(loss))] if loss is not None and isfinite(loss) else []


def _told(lab: Lab) -> str:
    odds = lab.odds()
    ways = f"; its trials failed in {len(lab.ways)} ways: {'; '.join(lab.ways[:_CULPRITS])}" if len(lab.ways) > 1 else ""
    return f"; as it is, the step failed in {odds[0]} of {odds[1]} trials{ways}" if odds else ways


def _passes(lab: Lab, suspects: list[int], change: TrialChange) -> int:
    """Count the trials in which the step went through with `change`, where that is no accident; 0 where it fails or cannot be told.

    Trials with the change and without it take turns, until so many failures on one side alone are rare (Fisher's exact test).
    """
    passes = 0
    for with_it, without_it in _BLOCKS:
        for _ in range(with_it):
            if lab.fails(change, anew=passes > 0):
                return 0
            passes += 1
        for _ in range(without_it):
            lab.fails_unchanged(suspects)
        limit = ACCIDENT if all(lab.unchanged) else ACCIDENT / _CHANCES
        if by_accident(sum(lab.unchanged), len(lab.unchanged), passes) <= limit:
            return passes
    return 0


def by_accident(failed: int, without: int, passes: int) -> float:
    """Compute the chance that `failed` failures among `without + passes` equal trials all fall on those without the change."""
    return comb(without, failed) / comb(without + passes, failed)


def _rows(lab: Lab, suspects: list[int]) -> Verdict | None:
    """Find the rows that are to blame; None where the failure does not follow rows.

    Samples that are all their step has are held against some of other steps: where most of those fail as well, it is not the rows.
    """
    if _everything_fails(lab, suspects):
        return None
    blamed: list[list[int]] = []
    seen = ""
    left = suspects
    while left and (len(blamed) < _CULPRITS or lab.trials < lab.most_trials * _OF_ROWS) and lab.fails(TrialChange(tuple(left))):
        smallest = smallest_failing(left, lambda some: lab.fails(TrialChange(tuple(some))))
        if len(smallest) > 2:
            return None  # so many that fail together only are a shape
        others = _company(lab, [one for one in left if one not in smallest]) or _sound_elsewhere(lab, smallest)
        others = sorted(others, key=lambda one: _length(lab, one))
        lengths = {one: _length(lab, one) for one in (*left, *others)}
        alike, as_long = same_size_sets(smallest, others, lengths), swapped_by_length(smallest, others, lengths)
        rows, words = guilty(smallest, others, lambda some: lab.fails(TrialChange(tuple(some))), alike, as_long)
        if not rows:
            return None
        blamed.append(rows)
        seen = seen or words
        left = [one for one in left if one not in rows]
    if not _holds(lab, blamed, left):
        return None
    rows = [one for some in blamed for one in some]
    if len(blamed) > 1 and len(rows) > len(blamed):
        return None  # one pair may be unlucky; pairs and more beside them are a number of tokens
    if _are_the_longest(lab, rows, left) or not lab.fails(TrialChange(tuple(rows))):
        return None
    failed = lab.outcome(TrialChange(tuple(rows)))
    first = _traced(lab, rows, failed).get("first_nonfinite")
    them = ("it", "it is") if len(rows) == 1 else ("them", "they are")
    rest = f"the step goes through without {them[0]}" if left else f"{them[1]} all the step has"
    text = f"{seen}, {rest}{_where(first)}; {_ways(lab, blamed)}{_in_fp32(lab, rows, failed)}"
    cause = first["cause"] if first else None
    return lab.verdict("rows", text, remedy="quarantine", rows=tuple(rows), sources=lab.sources(rows), cause=cause)


def _sound_elsewhere(lab: Lab, samples: list[int]) -> list[int]:
    """Return samples of other steps that go through in the place of these; empty where most of those that were tried do not."""
    elsewhere = lab.elsewhere(samples)
    sound = [one for one in elsewhere if not lab.fails(TrialChange((one,)))]
    return sound if 2 * len(sound) >= len(elsewhere) else []


def _ways(lab: Lab, blamed: list[list[int]]) -> str:
    """Say how culprits fail, each of them where they do so in several ways."""
    ways = [failure(lab.outcome(TrialChange(tuple(rows)))) for rows in blamed]
    if len(set(ways)) == 1:
        return ways[0]
    return "; ".join(f"{' and '.join(lab.sources(rows))}: {way}" for rows, way in zip(blamed, ways, strict=True))


def _are_the_longest(lab: Lab, rows: list[int], left: list[int]) -> bool:
    """Return whether several are accused that are longer than all others: their length is as good a reason, and costs no row."""
    return len(rows) > 1 and bool(left) and min(_length(lab, one) for one in rows) > max(_length(lab, one) for one in left)


def _holds(lab: Lab, blamed: list[list[int]], left: list[int]) -> bool:
    """Return whether the culprits fail again, each time, and the rest goes through, each time: an occasional failure accuses nobody."""
    rest = TrialChange(tuple(left))
    if left and (lab.fails(rest) or any(lab.fails(rest, anew=True) for _ in range(_AGAIN))):
        return False
    if not all(lab.fails(TrialChange(tuple(rows)), anew=True) for rows in blamed for _ in range(_AGAIN)):
        return False
    return not any(lab.fails(TrialChange((row,)), anew=True) for rows in blamed if len(rows) > 1 for row in rows for _ in range(_AGAIN))


def _traced(lab: Lab, samples: list[int], failed: Json) -> Json:
    """Run a trial that looks for the first operation whose result is not finite; empty where these samples failed otherwise."""
    return lab.outcome(TrialChange(tuple(samples), trace=True)) if failed["ending"] == "finished" else {}


def _in_fp32(lab: Lab, rows: list[int], failed: Json) -> str:
    """Say so where accused rows are finite in fp32: they may be right, and it is the number format that cannot hold them."""
    if failed["ending"] != "finished" or lab.settings.dtype == "fp32":
        return ""
    try:
        if lab.fails(TrialChange(tuple(rows), {"dtype": "fp32"})):
            return ""
    except TrialsSpent:
        return ""
    return (
        f"; in fp32 the same goes through: {lab.settings.dtype} is what fails there, and train.precision: fp32 would keep what is left out"
    )


def _where(first: Json | None) -> str:
    """Say where values stop being finite, and what the same operation gives in fp32 on the CPU."""
    if first is None:
        return ""
    return f"; first not finite: {first['operation']} ({first['dtype']}) in {first['module']}, {first['says']}"


def _everything_fails(lab: Lab, suspects: list[int]) -> bool:
    """Return whether samples as unlike as the shortest, the longest and some between them each fail alone: then no row is to blame."""
    by_length = sorted(suspects, key=lambda one: _length(lab, one))
    last = len(by_length) - 1
    at = dict.fromkeys((0, last, last // 2, last // 4, 3 * last // 4))  # bad rows are often just the shortest and the longest
    return last > 1 and all(lab.fails(TrialChange((by_length[place],))) for place in at)


def _company(lab: Lab, others: list[int]) -> list[int]:
    """Return the samples that were seen to go through, or all where none was."""
    innocent = {sample for outcome in lab.known.values() if outcome["finite"] for sample in outcome["samples"]}
    return [one for one in others if one in innocent] or others


def _length(lab: Lab, sample: int) -> int:
    return int(lab.fact(sample, "lengths") or 0)
