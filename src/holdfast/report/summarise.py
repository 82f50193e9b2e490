"""Put a run's journals together into its summary: what every run has, and what only a trainer of ours or a command shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.report.seen_progress import (
    begin_of,
    believed,
    computed_twice,
    disagreeing,
    disobeyed,
    each_step_told,
    furthest,
    stands_at,
    useful_seconds,
)
from holdfast.run.evaluations import best_of

_BESIDE_ATTEMPTS = ("run_created", "final_evaluation_ended")  # events of what takes time before and after the attempts
# what only a trainer of ours knows
_UNKNOWN = ("samples_seen", "tokens_per_second", "peak_bytes", "artifact_sha256", "adapter_sha256", "exit_code")


@dataclass(frozen=True)
class Journals:
    """What a run folder tells of its attempts. rows: of steps.jsonl, or of a command's progress.jsonl; launches, endings: by attempt."""

    rows: list[Json]
    events: list[Json]
    failure_reports: list[Json]
    launches: dict[int, Json]
    endings: dict[int, Json]


def summarise(status: str, reason: str | None, told: Journals, known: Json) -> Json:
    """Return the content of summary.json (docs/reference/run-folder.md). Times in seconds; None is unknown.

    known: what `of_steps` or `of_progress` makes of the rows; `useful_s` in it are the seconds in steps that count, None: unknown;
    `began` and `reached`, where they are there, the step each attempt was seen to begin after and to reach; `disbelieved` the attempts
    whose end was written down with steps that counted something else; `doubts` what speaks against the result.
    """
    known = dict(known)
    began: dict[int, int | None] | None = known.pop("began", None)
    reached: dict[int, int] = known.pop("reached", {})  # what an attempt printed may be believed after its end
    disbelieved: set[int] = known.pop("disbelieved", set())
    ends = [
        _as_reached(one, reached[number], number in disbelieved) if (number := one.get("attempt")) in reached else one
        for one in told.failure_reports
    ]
    losses = [row["loss"] for row in told.rows if row.get("loss") is not None]
    wall = wall_seconds(told.launches, told.endings, {row["attempt"]: row["time"] for row in told.rows})
    if wall:
        wall += sum(event["seconds"] for event in told.events if event["event"] in _BESIDE_ATTEMPTS and "seconds" in event)
    useful = known["useful_s"]
    found = {
        "status": status,
        "reason": reason,
        "loss": {"first": losses[0] if losses else None, "last": losses[-1] if losses else None, "eval_base": None, "eval_tuned": None},
        "attempts": len(told.launches),
        "incidents": incidents(
            told.rows, told.events, ends, began, known.get("steps_computed_twice_exact") is not False, known.get("total_steps")
        ),
        "quarantined": [],
        "goodput": round(min(1.0, useful / wall), 4) if wall and useful is not None else None,
        "wall_seconds": round(wall, 3) if wall else None,
    }
    more = {name: value for name, value in known.items() if name not in ("useful_s", "loss", "doubts")}
    place = second_place(told.events)
    more |= {"second_place": place} if place else {}
    more |= {"notify_failed": True} if any(event["event"] == "notify_failed" for event in told.events) else {}
    doubts = {"doubt": "; ".join(known["doubts"]) or None} if "doubts" in known else {}
    return found | more | doubts | {"loss": found["loss"] | known.get("loss", {})}


def _as_reached(failure_report: Json, reached: int, disbelieved: bool) -> Json:
    """Return a failure report with the step that its attempt is known to have reached by now: numbers are believed later, or no more."""
    if not disbelieved:
        return failure_report | {"committed_after": max(failure_report["committed_after"], reached)}
    return failure_report | {"committed_after": max(failure_report.get("committed_before", 0), reached), "step": None}


def samples_in_words(summary: Json) -> str:
    """Say how many samples the steps took."""
    seen = summary["samples_seen"]
    return "of how many samples is unknown: rows of steps.jsonl are lost" if seen is None else counted(seen, "sample")


def first_to_last(loss: Json, digits: int) -> str:
    """Say the training loss of the first and the last step; "?" is unknown."""
    return " -> ".join("?" if value is None else f"{value:.{digits}f}" for value in (loss["first"], loss["last"]))


def second_place(events: Iterable[Json]) -> Json | None:
    """Return {to, step, reason} of a run kept at a second place: the newest state there (None: none), and why a newer one is not."""
    found: Json | None = None
    for event in events:
        if event["event"] == "state_sent":
            found = {"to": event["to"], "step": event["step"], "reason": None}
        elif event["event"] == "state_not_sent":
            found = {"to": event["to"], "step": found["step"] if found else None, "reason": event["reason"]}
    return found


def place_in_words(place: Json) -> str:
    """Put what `second_place` found into a sentence."""
    there = f"the state after step {place['step']:,} is at {place['to']}" if place["step"] is not None else f"nothing is at {place['to']}"
    return there + (f"; newer ones are not: {place['reason']}" if place["reason"] else "")


def of_steps(
    told: Journals,
    *,
    health: list[Json],
    evaluation: Json,
    evaluations: list[Json],
    stopped_early: Json | None,
    quarantined: list[Json],
    artifact_step: int | None,
    artifact_sha256: str | None,
    is_adapter: bool = True,
    until: Json | None = None,
    learns: Json | None = None,
) -> Json:
    """Summarise what a trainer of ours tells beside the rest."""
    rows, in_steps = told.rows, sum(row["seconds"] for row in told.rows)
    steps = rows[-1].get("step", 0) if rows else 0
    lost = steps > len(rows)  # rows that went with the power: what follows from all of them is unknown
    return {
        "useful_s": None if lost else in_steps,
        "steps": steps,
        "samples_seen": None if lost else sum(len(row["samples"]) for row in rows),
        "loss": {name: evaluation.get(name) for name in ("eval_base", "eval_tuned")}
        | ({"reference": evaluation["reference"]} if evaluation.get("reference") else {})
        | ({"first": None} if rows and rows[0].get("step", 1) > 1 else {}),
        "evaluations": _evaluations(evaluations),
        "stopped_early": stopped_early,
        **({"learns": learns} if learns else {}),
        **({"until": _until(until, told.events)} if until else {}),
        "health": health,
        "quarantined": [{name: row[name] for name in ("file", "line", "reason", "evidence", "step")} for row in quarantined],
        "tokens_per_second": round(sum(row["tokens"] for row in rows) / in_steps, 1) if in_steps else None,
        "peak_bytes": max((row["peak_bytes"] for row in rows), default=None),
        "artifact_step": artifact_step,
        "artifact_sha256": artifact_sha256,
        "adapter_sha256": artifact_sha256 if is_adapter else None,
        **{name: evaluation[name] for name in ("verdict", "says", "metrics") if name in evaluation},
    }


def of_progress(told: Journals, command: Json, code: int | None) -> Json:
    """Summarise what was seen of somebody else's command. Rows are {time, attempt, step, total, source, loss}."""
    rows, events = told.rows, told.events
    rows = believed(rows)
    kept = {number: furthest([row for row in rows if row["attempt"] == number]) or 0 for number in told.launches}
    went_on = {event["attempt"]: event["step"] for event in events if event["event"] == "loop_resumed"}
    refused = {event["attempt"] for event in events if event["event"] == "option_unknown"}  # they ended before they began to train
    trained = {
        number: launch | ({"resumed_step": went_on[number]} if number in went_on else {})
        for number, launch in told.launches.items()
        if number not in refused
    }
    total = next((row["total"] for row in reversed(rows) if row.get("total")), None)
    if len(trained) > 1 and any(row.get("stages") for row in rows):
        total = None  # the numbers of the newest attempt may be those of a later stage alone
    reached = stands_at(rows, trained)
    dropped = sum(event["count"] for event in events if event["event"] == "gradients_dropped")
    return {
        **dict.fromkeys(_UNKNOWN),
        "useful_s": useful_seconds(rows, trained),
        "doubts": [*disobeyed(rows, trained), *disagreeing(rows), *_shared_places(events), *_rows_twice(events)],
        "command": command["argv"],
        "launcher": command["launcher"],
        "exit_code": code,
        "began": {number: begin_of(rows, trained, number) for number in trained},
        "reached": {number: kept[number] for number in trained},
        "disbelieved": {row["attempt"] for row in told.rows if row["step"] > kept.get(row["attempt"], 0)},
        "steps": furthest(rows),
        **({"steps_exact": False} if total is None and any(row.get("from_zero") or row.get("stages") for row in rows) else {}),
        "total_steps": total,
        "incomplete": reached < total if reached is not None and total else None,
        "progress_from": rows[-1]["source"] if rows else None,
        "checkpoints_set_aside": [event["now"] for event in events if event["event"] == "checkpoint_set_aside"],
        "steps_computed_twice": computed_twice(rows, trained),
        "steps_computed_twice_exact": each_step_told(rows, trained),
        "steps_dropped": dropped if any(event["event"] == "callback_seen" for event in events) else None,
        "remedies": [{"remedy": event["remedy"], "change": event["change"]} for event in events if event["event"] == "remedy_helped"],
    }


def _shared_places(events: list[Json]) -> list[str]:
    """Describe the folders of checkpoints that another run saved to at the same time."""
    places = dict.fromkeys(event["place"] for event in events if event["event"] == "checkpoints_shared")
    return [f"another holdfast run saved to {place} at the same time: what lies there may be of either" for place in places]


def _rows_twice(events: list[Json]) -> list[str]:
    """Describe the starts that were to go on where a Trainer takes rows of its data set again."""
    return [f"attempt {event['attempt']}: {event['reason']}" for event in events if event["event"] == "rows_twice"]


def _until(goals: Json, events: list[Json]) -> Json:
    """Return what was to end the run, and which of it did since it was extended or rolled back, at which step; else None."""
    told = [event for event in events if event["event"] in ("goal_reached", "extended", "rolled_back")]
    reached = [event for event in told[-1:] if event["event"] == "goal_reached"]
    facts = {"reached": reached[0]["goal"], "step": reached[0]["step"], "reason": reached[0]["reason"]} if reached else {}
    return {"goals": goals, "reached": None, "step": None, "reason": None} | facts


def _evaluations(rows: list[Json]) -> Json | None:
    """Summarise the evaluations on the way; None where there was none."""
    if not rows:
        return None
    best = best_of(rows)
    facts = {"best_step": best["step"], "best_loss": best["loss"]} if best else {"best_step": None, "best_loss": None}
    return {"count": len(rows), "last_loss": rows[-1]["loss"], **facts, "seconds": round(sum(row["seconds"] for row in rows), 3)}


def incidents(
    steps: list[Json],
    events: list[Json],
    failure_reports: list[Json],
    began: dict[int, int | None] | None = None,
    exact: bool = True,
    total: int | None = None,
) -> list[Json]:
    """Return an entry for each attempt that ended early against the user's will. began: as in `summarise`; None: what was restored counts.

    exact: each step was told, so that what was lost is no lower bound. total: the last step there is, where that is known.
    """
    restored = {event["attempt"]: event for event in events if event["event"] == "restored"}
    told = [one for before, one in pairwise([{}, *failure_reports]) if "decision" in one and not _still_gone(before, one)]
    following = [next((event for number, event in restored.items() if number > one["attempt"]), None) for one in told]
    found = []
    for failure_report, next_state in zip(told, following, strict=True):
        next_row = next(
            (row for row in steps if row["attempt"] > failure_report["attempt"] and row["time"] >= failure_report["died"]), None
        )
        start = next_state["step"] if next_state else None
        if next_state and began is not None:
            start = began.get(next_state["attempt"])
        reached = failure_report["committed_after"] if began is not None else _reached(failure_report, restored)
        lost = max(0, reached - start) if start is not None else None
        if lost and failure_report is not _loser([one for one, event in zip(told, following, strict=True) if event is next_state]):
            lost = 0
        step, following_step = failure_report["step"], failure_report["committed_after"] + 1
        if step is None and (began is None or reached):  # of a command that showed none, it is not known
            step = min(following_step, total or following_step)
        found.append(
            {
                "step": step,
                "cause": failure_report["diagnosis"]["cause"],
                "samples": failure_report["samples"],
                "remedy": failure_report["decision"]["remedy"],
                "evidence": _story(failure_report, next_state, start, lost, exact, began is not None),
                "lost_steps": lost,
                "seconds_to_recover": round(next_row["time"] - failure_report["died"], 3) if next_row else None,
                "attempt": failure_report["attempt"],
                "ending": _ending_words(failure_report),
            }
        )
    return found


def _reached(failure_report: Json, restored: dict[int, Json]) -> int:
    """Return the step that a trainer's state had come to at its end: one that dies while it computes steps again is behind the journal."""
    committed: int = failure_report["committed_after"]
    step, state = failure_report["step"], restored.get(failure_report["attempt"])
    if committed > failure_report.get("committed_before", 0) or state is None:
        return committed
    done = failure_report.get("phase") in ("committed", "evaluate")
    reached: int = state["step"] if step is None else max(state["step"], step if done else step - 1)
    return min(committed, reached)


def _loser(alike: list[Json]) -> Json:
    """Return, of the ends that one state follows, the one that steps were lost by, to count them once: the first, or a rollback."""
    return next((one for one in alike if one["decision"]["remedy"] == "rollback"), alike[0])


def _still_gone(before: Json, failure_report: Json) -> bool:
    """True if the attempt looked once more for a GPU that the one before it had missed: that is one incident."""
    return all(one.get("ending", {}).get("kind") == "device_gone" for one in (before, failure_report))


def _ending_words(failure_report: Json) -> str:
    words = str(failure_report["words"])
    clues = [clue for clue in failure_report["diagnosis"]["clues"] if clue != words]
    return words + (f" ({'; '.join(clues)})" if clues else "")


def _story(failure_report: Json, next_state: Json | None, start: int | None, lost: int | None, exact: bool, seen: bool) -> str:
    """Say how the attempt ended and what followed; that the next one went on, only where it was seen.

    exact: what was lost is no lower bound. seen: start is where the next was seen to begin, and not what it was given.
    """
    story = f"attempt {failure_report['attempt']}: {_ending_words(failure_report)}"
    if verdict := failure_report.get("verdict"):
        story += f"; {verdict['trials']} trials: {verdict['evidence']}; {failure_report['decision']['reason']}"
    if next_state is None:
        return story
    if start is None:
        return f"{story}; the next was to go on from {next_state['state']}, and where it began is not known"
    again = "no committed step computed again" if exact else "no step was seen to be computed again"
    if lost:
        again = f"{'' if exact else 'at least '}{counted(lost, 'committed step')} computed again"
    anew = seen and not start and next_state["state"] not in ("the beginning", "the state in memory")
    if 0 < start < (next_state["step"] or 0) and seen:
        first = f"its first step that was seen is {start + 1:,}"
        return f"{story}; the next was told to go on from {next_state['state']}, and went on from before it: {first}, {again}"
    if start < (next_state["step"] or 0) or anew:
        return f"{story}; the next was told to go on from {next_state['state']}, and began anew, {again}"
    if next_state["state"] == "the beginning":
        where = f"was told of no checkpoint, its first step that was seen is {start + 1:,}" if start else "started from the beginning"
        return f"{story}; the next {where}, {again}"
    return f"{story}; went on from {next_state['state']}, {again}"


def wall_seconds(launches: dict[int, Json], endings: dict[int, Json], signs: dict[int, float] | None = None) -> float | None:
    """Time somebody was in charge of the run: its attempts, and the gaps between two attempts of one session.

    An attempt whose end nobody saw, in a session that ended with it, counts up to its last sign of life (`signs`).
    """
    total = 0.0
    numbers = sorted(launches)
    for number in numbers:
        began, ended = launches[number].get("started"), endings[number].get("ended")
        ended = None if endings[number].get("called_off") else ended  # it never began: that was found, perhaps a night later
        if began is None:
            return None
        following = launches.get(number + 1, {})
        if following and following.get("session") == launches[number].get("session"):
            ended = following.get("started")
        elif ended is None:
            ended = (signs or {}).get(number)
        total += max(0.0, ended - began) if ended is not None else 0.0  # below 0: the clock was put back meanwhile
    return total or None
