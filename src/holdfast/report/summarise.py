"""Put a run's journals together into its summary. Pure."""

from __future__ import annotations

from itertools import pairwise

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.run.evaluations import best_of


def summarise(
    *,
    status: str,
    reason: str | None,
    steps: list[Json],
    events: list[Json],
    health: list[Json],
    failure_reports: list[Json],
    launches: dict[int, Json],
    endings: dict[int, Json],
    evaluation: Json,
    evaluations: list[Json],
    stopped_early: Json | None,
    quarantined: list[Json],
    artifact_step: int | None,
    artifact_sha256: str | None,
    is_adapter: bool = True,
) -> Json:
    """The content of summary.json (docs/reference/run-folder.md). Times in seconds; None is unknown."""
    wall, last = wall_seconds(launches, endings, _last_signs(steps)), steps[-1] if steps else {}
    if wall:
        wall += sum(event["seconds"] for event in events if event["event"] in _BESIDE_ATTEMPTS and "seconds" in event)
    in_steps = sum(row["seconds"] for row in steps)
    losses = [row["loss"] for row in steps if row["loss"] is not None]
    return {
        "status": status,
        "reason": reason,
        "steps": last.get("step", 0),
        "samples_seen": sum(len(row["samples"]) for row in steps),
        "loss": {
            "first": losses[0] if losses else None,
            "last": losses[-1] if losses else None,
            **{name: evaluation.get(name) for name in ("eval_base", "eval_tuned")},
        },
        "evaluations": _evaluations(evaluations),
        "stopped_early": stopped_early,
        "health": health,
        "attempts": len(launches),
        "incidents": incidents(steps, events, failure_reports),
        "quarantined": [{name: row[name] for name in ("file", "line", "reason", "evidence", "step")} for row in quarantined],
        "goodput": round(in_steps / wall, 4) if wall else None,
        "wall_seconds": round(wall, 3) if wall else None,
        "tokens_per_second": round(sum(row["tokens"] for row in steps) / in_steps, 1) if in_steps else None,
        "peak_bytes": max((row["peak_bytes"] for row in steps), default=None),
        "artifact_step": artifact_step,
        "artifact_sha256": artifact_sha256,
        "adapter_sha256": artifact_sha256 if is_adapter else None,
        **{name: evaluation[name] for name in ("verdict", "says", "metrics") if name in evaluation},
    }


def _evaluations(rows: list[Json]) -> Json | None:
    """The evaluations on the way in short; None where there was none."""
    if not rows:
        return None
    best = best_of(rows)
    facts = {"best_step": best["step"], "best_loss": best["loss"]} if best else {"best_step": None, "best_loss": None}
    return {"count": len(rows), "last_loss": rows[-1]["loss"], **facts, "seconds": round(sum(row["seconds"] for row in rows), 3)}


def incidents(steps: list[Json], events: list[Json], failure_reports: list[Json]) -> list[Json]:
    """One entry for each attempt that ended early against the user's will."""
    restored = {event["attempt"]: event for event in events if event["event"] == "restored"}
    found = []
    for before, failure_report in pairwise([{}, *failure_reports]):
        if "decision" not in failure_report or _still_gone(before, failure_report):
            continue
        following = [event for number, event in restored.items() if number > failure_report["attempt"]]
        next_state = following[0] if following else None
        next_row = next(
            (row for row in steps if row["attempt"] > failure_report["attempt"] and row["time"] >= failure_report["died"]), None
        )
        lost = max(0, failure_report["committed_after"] - next_state["step"]) if next_state else None
        found.append(
            {
                "step": failure_report["step"] if failure_report["step"] is not None else failure_report["committed_after"] + 1,
                "cause": failure_report["diagnosis"]["cause"],
                "samples": failure_report["samples"],
                "remedy": failure_report["decision"]["remedy"],
                "evidence": _story(failure_report, next_state, lost),
                "lost_steps": lost,
                "seconds_to_recover": round(next_row["time"] - failure_report["died"], 3) if next_row else None,
                "attempt": failure_report["attempt"],
                "ending": _ending_words(failure_report),
            }
        )
    return found


def _still_gone(before: Json, failure_report: Json) -> bool:
    """Whether the attempt looked once more for a GPU that the one before it had missed: that is one incident."""
    return all(one.get("ending", {}).get("kind") == "device_gone" for one in (before, failure_report))


def _ending_words(failure_report: Json) -> str:
    words = str(failure_report["words"])
    clues = [clue for clue in failure_report["diagnosis"]["clues"] if clue != words]
    return words + (f" ({'; '.join(clues)})" if clues else "")


def _story(failure_report: Json, next_state: Json | None, lost: int | None) -> str:
    story = f"attempt {failure_report['attempt']}: {_ending_words(failure_report)}"
    if verdict := failure_report.get("verdict"):
        story += f"; {verdict['trials']} trials: {verdict['evidence']}; {failure_report['decision']['reason']}"
    if next_state is None:
        return story
    again = "no committed step computed again" if not lost else f"{counted(lost, 'committed step')} computed again"
    return f"{story}; went on from {next_state['state']}, {again}"


_BESIDE_ATTEMPTS = ("run_created", "final_evaluation_ended")  # events of what takes time before and after the attempts


def _last_signs(steps: list[Json]) -> dict[int, float]:
    """When each attempt committed its last step."""
    return {row["attempt"]: row["time"] for row in steps}


def wall_seconds(launches: dict[int, Json], endings: dict[int, Json], signs: dict[int, float] | None = None) -> float | None:
    """Time somebody was in charge of the run: its attempts, and the gaps between two attempts of one session.

    An attempt whose end nobody saw, in a session that ended with it, counts up to its last sign of life (`signs`).
    """
    total = 0.0
    numbers = sorted(launches)
    for number in numbers:
        began, ended = launches[number].get("started"), endings[number].get("ended")
        if began is None:
            return None
        following = launches.get(number + 1, {})
        if following and following.get("session") == launches[number].get("session"):
            ended = following.get("started")
        elif ended is None:
            ended = (signs or {}).get(number)
        total += max(0.0, ended - began) if ended is not None else 0.0  # below 0: the clock was put back meanwhile
    return total or None
