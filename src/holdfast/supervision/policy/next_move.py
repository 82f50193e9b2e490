"""What is done after an attempt has ended, from all that is known of it. Pure: no clock, no files, no environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.base.files import Json
from holdfast.base.units import counted, listed, setting
from holdfast.config.config import Run
from holdfast.config.settings import PartialSettings, Settings
from holdfast.diagnosis.divergence import FROM_THE_START, SLOWER, Trouble
from holdfast.run.timeline import Entry, settings_at, unlearned
from holdfast.run.types import Diagnosis, FailureReport, Verdict
from holdfast.supervision.policy.ledgers import OF_TRAINER, PastAttempt, RetryRules, deaths_in_step, in_step, repeats, without_progress
from holdfast.supervision.policy.moves import Accept, Change, Done, GiveUp, LeaveGpu, Move, Resume, RollBack, StopRequested, TryRemedy, Wait

ROLLBACKS = 3  # in a row without getting beyond where the first of them began
EXPERIMENTS_AFTER = 2  # deaths in the same step without a new one; the first restart is the first experiment
FINAL_KINDS = ("refused", "stuck", "no_state")  # another attempt would meet the same
_NO_CASE = ("never_started", "damaged", "interrupted", "finished")  # for the lab: no step has failed
NO_TRIALS = Verdict("uncertain", 0, 0.0, "no trials")


@dataclass(frozen=True)
class Known:
    """What is known of an ended attempt and of its run, whoever's program it was.

    history: the attempts that ended since the run was last given up or stopped, this one last; rules: when they are too many. over:
    it ended well, and nothing speaks against that. final: why another attempt would meet the same, as found beside the failure report.
    told: its end in words, where more is known than its ending says. remedy_left: something may be changed at the next start.

    Of our own trainer: timeline: its entries; asked: the config's `run`. rolled: rollbacks in a row that came to nothing. away_s:
    seconds for which the GPU has been gone, None: it is there. trouble: the loss left its level for good, which is what is dealt with
    then; back_to: the newest step before it whose state is there. fewer: ranks to go on with, where the device of one is gone and others
    are left. earlier: the attempt was an earlier command's, and dead when it was found.
    """

    failure_report: FailureReport
    diagnosis: Diagnosis
    history: list[PastAttempt]
    timeline: Sequence[Entry] = ()
    asked: Run = field(default_factory=Run)
    rolled: int = 0
    away_s: float | None = None
    trouble: Trouble | None = None
    back_to: int | None = None
    earlier: bool = False
    fewer: int | None = None
    rules: RetryRules = OF_TRAINER
    over: bool = False
    final: str = ""
    told: str = ""
    remedy_left: bool = False


def next_move(known: Known, verdict: Verdict | None, stop: bool) -> Move | StopRequested | Done:
    """Return the move after an attempt. verdict: of the lab, where it was asked; stop: the user wants to stop."""
    if stop or (known.trouble is None and known.failure_report.ending.kind == "interrupted"):
        return StopRequested(earlier=known.earlier and not stop)
    if known.over:
        return Done()
    if known.trouble is not None:
        return of_course(known, known.trouble, verdict or NO_TRIALS)
    if known.fewer is not None:
        reason = str(known.failure_report.ending.facts.get("reason") or "a device is gone")
        return Resume(f"rank {known.failure_report.ending.facts.get('rank')}: {reason}; going on with {known.fewer} of the ranks")
    before = of_gpu(known, known.away_s) if known.away_s is not None else of_death(known)
    return before if verdict is None else of_verdict(known, verdict, before)


def wants_trials(known: Known) -> bool:
    """True if the lab is to be asked before a move: about the course of the loss, or a step that has ended several attempts."""
    if known.trouble is not None:
        return known.back_to is not None and known.trouble.kind != "divergence" and known.asked.trials > 0
    return wants_experiments(known.failure_report, known.history)


def of_death(known: Known) -> Move:
    """Resume as it is while the rules allow it, or with a remedy that is left."""
    failure_report = known.failure_report
    if failure_report.ending.kind == "damaged":
        return _of_damage(failure_report, known.rolled)
    if failure_report.ending.kind == "no_state":
        return _of_no_state(failure_report, known.rolled)
    if known.final or is_final(failure_report):
        return GiveUp(known.final or str(failure_report.ending.facts.get("reason") or "; ".join(known.diagnosis.words())))
    history = [past for past in known.history if past.kind != "device_gone"]  # a GPU that was away explains nothing else
    words = {"ended": failure_report.ending.words(), "where": _where(failure_report), "told": known.told}
    return of_rules(history, known.rules, words, known.remedy_left)


def _where(failure_report: FailureReport) -> str:
    """Say how far an attempt came. A power cut may take its pulse, which names the step in flight, and leave the committed steps."""
    if failure_report.step is not None:
        return f"at step {failure_report.step}"
    after = failure_report.committed_after
    return f"after step {after}" if after > failure_report.committed_before else "before its first step"


def of_rules(history: list[PastAttempt], rules: RetryRules, words: dict[str, str], remedy_left: bool) -> Move:
    """Decide by two ledgers: repeats (same cause, same launch, no new progress), and barren attempts, whatever the cause."""
    last, alike, barren = history[-1], repeats(history), without_progress(history)
    if rules.retries is not None and len(history) > rules.retries:
        return GiveUp(f"{words['ended']}; {counted(len(history), 'attempt')}, and --retries {rules.retries} allows no more")
    if remedy_left and not last.from_outside and alike >= rules.same:
        return TryRemedy(f"{words['told']} again without progress; trying what is known to help")
    if alike >= rules.most_alike(history):
        return GiveUp(rules.alike.format(count=alike, **words))
    if barren >= rules.barren:
        return GiveUp(rules.changing.format(count=barren, **words))
    return Resume(rules.again.format(**words))


def is_final(failure_report: FailureReport) -> bool:
    """True if another attempt would meet the same: as measured, or as the trainer found. Words in its output prove nothing."""
    return failure_report.disk_is_full or failure_report.ending.kind in FINAL_KINDS


def of_gpu(known: Known, away_s: float) -> Move:
    """Return the move where the plan's GPU has been gone for `away_s` seconds: look again, give up, or go on without where allowed."""
    reason, asked = str(known.failure_report.ending.facts.get("reason") or "torch finds no GPU"), known.asked
    if away_s < asked.device_s:
        told = f"{reason}; the run was planned for one: looking for it again for {asked.device_s:g} s (run.device_s)"
        return Wait(told, again=away_s > 0)
    if asked.allow_cpu:
        return LeaveGpu(f"{reason} for {away_s:.0f} s; continuing on the CPU, as run.allow_cpu says")
    return GiveUp(f"{reason} for {away_s:.0f} s (run.device_s = {asked.device_s:g})")


def _of_damage(failure_report: FailureReport, rolled: int) -> Move:
    """Return the move after a state that training cannot have made: back to the newest sound one."""
    sound, told = int(failure_report.ending.facts["sound"]), "; ".join(failure_report.ending.facts["damaged"])
    if rolled >= ROLLBACKS:
        return GiveUp(f"{told}; that came again after {rolled} rollbacks: test this machine's memory and disk")
    if sound == 0 and (failure_report.step or 0) > FROM_THE_START:
        return GiveUp(f"{told}; no sound state is left, and the beginning is {failure_report.step} steps back")
    return RollBack(f"{told}; back to step {sound}, whose state is sound", told, to=sound)


def _of_no_state(failure_report: FailureReport, rolled: int) -> Move:
    """Return the move where no state of the committed steps is left: begin again, where that is not far."""
    facts = failure_report.ending.facts
    told, step = str(facts.get("reason") or "no state can be read"), int(facts.get("step") or failure_report.committed_after)
    if rolled >= ROLLBACKS:
        return GiveUp(f"{told}; that came again after {rolled} rollbacks: test this machine's memory and disk")
    if step > FROM_THE_START:
        return GiveUp(told)
    return RollBack(f"{told}; beginning again, which computes {counted(step, 'step')} once more", told, to=0)


def wants_experiments(failure_report: FailureReport, history: list[PastAttempt]) -> bool:
    """True if the step in flight is to be tried in the lab: it has ended several attempts. The first restart is the first experiment."""
    if failure_report.ending.cpu_limit_s is not None:
        return False  # each trial is a process with such a limit
    if failure_report.step is None or is_final(failure_report) or failure_report.ending.kind in _NO_CASE:
        return False
    deaths = in_step(history)[-deaths_in_step(history) :]
    if any(past.by_chance for past in deaths):
        return len(deaths) == OF_TRAINER.by_chance  # once more, before the end
    looked = max((at for at, past in enumerate(deaths, 1) if past.investigated), default=0)
    enough = EXPERIMENTS_AFTER + (1 if deaths[-1].from_outside and not looked else 0)
    return len(deaths) - looked >= enough


def of_verdict(known: Known, verdict: Verdict, before: Move) -> Move:
    """Return the move that follows from the experiments. `before` is what would have been done without them."""
    step, told = known.failure_report.step, f"{verdict.evidence} ({verdict.trials} trials, {verdict.seconds:.0f} s)"
    if verdict.kind == "stuck":
        return GiveUp(verdict.evidence)
    if verdict.to is not None and known.rolled < ROLLBACKS:
        change = "".join(f" with {name} = {setting(value)}" for name, value in verdict.settings.items())
        reason = f"step {step} goes through from the state after step {verdict.to}{change}; continuing from there"
        return RollBack(reason, told, to=verdict.to, settings=verdict.settings)
    if verdict.kind == "rows":
        return _without_rows(known, verdict, told)
    if verdict.kind == "setting" and verdict.to is None:
        return _with_settings(known, verdict, told)
    if verdict.kind == "weights":
        reason = f"step {step} fails from every state and under every change: {verdict.evidence}; download the model again"
        return GiveUp(reason, told)
    if before.goes_on:
        return Resume(f"{before.reason}; the lab: {verdict.evidence}", told)
    if verdict.kind == "transient":
        return GiveUp(f"{before.reason}; the lab: {verdict.evidence}", told)
    return GiveUp(f"{before.reason}; experiments found no change that helps: {verdict.evidence}", told)


def _without_rows(known: Known, verdict: Verdict, told: str) -> Change:
    """Leave rows out from the failing step on."""
    step = known.failure_report.step
    assert step is not None
    quarantine = [*settings_at(known.timeline, step).quarantine, *verdict.rows]
    return Change(
        f"step {step} fails because of {listed(verdict.sources, 3)}; left out from now on",
        told,
        "quarantine",
        from_step=step,
        step=step,
        cause=verdict.cause or known.diagnosis.cause,
        seen=verdict.evidence,
        settings=unlearned(known.timeline, step) | {"quarantine": quarantine},
        quarantined=_quarantined(verdict, known.failure_report.ending.words(), step),
    )


def _with_settings(known: Known, verdict: Verdict, told: str) -> Change:
    """Go on under settings and environment that were seen to help. The next process has them from its start."""
    step = known.failure_report.step
    assert step is not None
    settings = dict(verdict.settings)
    if verdict.env:
        settings["env"] = settings_at(known.timeline, step).env | verdict.env
    change = ", ".join(f"{name} = {setting(value)}" for name, value in (verdict.settings | verdict.env).items())
    reason = f"step {step} goes through with {change}; continuing with that"
    return Change(
        reason,
        told,
        verdict.remedy,
        from_step=min(step, known.failure_report.committed_after + 1),
        step=step,
        cause=verdict.cause or known.diagnosis.cause,
        seen=verdict.evidence,
        settings=settings,
    )


def of_course(known: Known, trouble: Trouble, verdict: Verdict) -> Move:
    """Return the move after a loss that left its level for good: back to a step before it with a change there, or the end."""
    if verdict.kind == "stuck":
        return GiveUp(verdict.evidence)
    told, to = f"{verdict.evidence} ({verdict.trials} trials, {verdict.seconds:.0f} s)", known.back_to
    if to is None:
        return Accept(f"{trouble.words()}; no state from before it is left, so the run continues as it is", told)
    if trouble.kind == "start" and verdict.kind == "uncertain" and verdict.trials:
        return Accept(f"{trouble.words()}; at lower rates it does the same: the run continues as it is", told)
    settings = settings_at(known.timeline, trouble.step)
    if known.rolled >= ROLLBACKS:
        reason = (
            f"{trouble.words()}; {known.rolled} rollbacks did not cure it, the last one at {settings.lr_factor:g} times the learning rate"
        )
        return GiveUp(f"{reason}; look at the rows around it, or try another train.lr or train.max_grad_norm", told)
    changed = course_settings(verdict, settings)
    change = {
        "transient": "nothing changed, because it did not come again in a trial",
        "rows": f"without {listed(verdict.sources, 3)}",
    }.get(verdict.kind, f"at {changed.get('lr_factor', settings.lr_factor):g} times the learning rate")
    rows = _quarantined(verdict, f"the loss left its level at step {trouble.onset}", to + 1)
    return RollBack(f"{trouble.words()}; back to step {to}, {change}", told, to=to, settings=changed, quarantined=rows)


def course_settings(verdict: Verdict, settings: Settings) -> PartialSettings:
    """Return the settings to change after a rollback, given those in force: what trials showed to help, or half the learning rate."""
    if verdict.kind == "transient":
        return {}
    if verdict.kind == "rows":
        return {"quarantine": [*settings.quarantine, *verdict.rows]}
    return {"lr_factor": settings.lr_factor * SLOWER} | verdict.settings


def _quarantined(verdict: Verdict, reason: str, step: int) -> tuple[Json, ...]:
    """Return the lines of quarantine.jsonl for the rows a verdict names."""
    places = [source.rpartition(":") for source in verdict.sources]
    evidence = verdict.evidence
    return tuple({"file": file, "line": int(line), "reason": reason, "evidence": evidence, "step": step} for file, _, line in places)
