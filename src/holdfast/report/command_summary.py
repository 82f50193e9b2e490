"""Put the journals of a run of somebody else's command together into its summary. Pure."""

from __future__ import annotations

from itertools import pairwise

from holdfast.base.files import Json
from holdfast.report.summarise import incidents, wall_seconds

# what only a trainer of ours knows
_UNKNOWN = ("samples_seen", "tokens_per_second", "peak_bytes", "artifact_sha256", "adapter_sha256", "exit_code")


def summarise_command(
    *,
    status: str,
    reason: str,
    command: Json,
    code: int | None,
    progress: list[Json],
    events: list[Json],
    failure_reports: list[Json],
    launches: dict[int, Json],
    endings: dict[int, Json],
) -> Json:
    """The content of summary.json; None is unknown. progress: rows of {time, attempt, step, total, source, loss}."""
    went_on = {event["attempt"]: event["step"] for event in events if event["event"] == "loop_resumed"}
    launches = {number: launch | ({"resumed_step": went_on[number]} if number in went_on else {}) for number, launch in launches.items()}
    wall = wall_seconds(launches, endings, {row["attempt"]: row["time"] for row in progress})
    losses = [row["loss"] for row in progress if row.get("loss") is not None]
    refused = {event["attempt"] for event in events if event["event"] == "option_unknown"}  # they ended before they began to train
    trained = {number: launch for number, launch in launches.items() if number not in refused}
    useful = useful_seconds(progress, trained)
    return {
        **dict.fromkeys(_UNKNOWN),
        "status": status,
        "reason": reason,
        "command": command["argv"],
        "launcher": command["launcher"],
        "exit_code": code,
        "steps": max((row["step"] for row in progress), default=None),
        "total_steps": next((row["total"] for row in reversed(progress) if row.get("total")), None),
        "progress_from": progress[-1]["source"] if progress else None,
        "loss": {"first": losses[0] if losses else None, "last": losses[-1] if losses else None, "eval_base": None, "eval_tuned": None},
        "attempts": len(launches),
        "incidents": incidents(progress, events, failure_reports),
        "checkpoints_set_aside": [event["now"] for event in events if event["event"] == "checkpoint_set_aside"],
        "steps_computed_twice": computed_twice(progress, trained),
        "steps_dropped": sum(event["count"] for event in events if event["event"] == "gradients_dropped")
        if _has_callback(events)
        else None,
        "remedies": [{"remedy": event["remedy"], "change": event["change"]} for event in events if event["event"] == "remedy_helped"],
        "quarantined": [],
        "goodput": round(min(1.0, useful / wall), 4) if wall and useful is not None else None,
        "wall_seconds": round(wall, 3) if wall else None,
    }


def _has_callback(events: list[Json]) -> bool:
    return any(event["event"] == "callback_seen" for event in events)


def _by_attempt(progress: list[Json]) -> dict[int, list[Json]]:
    found: dict[int, list[Json]] = {}
    for row in progress:
        found.setdefault(row["attempt"], []).append(row)
    return found


def began_at(rows: list[Json], launch: Json) -> int:
    """The step an attempt went on from: that of its checkpoint, or 0 where the steps it showed say that it began anew.

    A step 0 says nothing: a Trainer's bar begins there, wherever it goes on from.
    """
    resumed = int(launch.get("resumed_step") or 0)
    return 0 if any(0 < row["step"] < resumed for row in rows) else resumed


def computed_twice(progress: list[Json], launches: dict[int, Json]) -> int | None:
    """Steps that a later attempt computed again; None where an attempt that was followed by another told no step at all."""
    seen, total = _by_attempt(progress), 0
    for earlier, later in pairwise(sorted(launches)):
        rows = seen.get(earlier, [])
        if not rows and not progress:
            return None
        if rows:
            begin = began_at(seen.get(later, []), launches[later])
            total += max(0, rows[-1]["step"] - begin)
    return total


def useful_seconds(progress: list[Json], launches: dict[int, Json]) -> float | None:
    """Seconds in steps that were not computed again, as far as two sightings of a step tell; None where none do."""
    seen, seconds, told = _by_attempt(progress), 0.0, False
    numbers = sorted(launches)
    for at, number in enumerate(numbers):
        rows = seen.get(number, [])
        if len(rows) < 2 or rows[-1]["step"] <= rows[0]["step"]:
            continue
        told = True
        kept = rows[-1]["step"]
        if at + 1 < len(numbers):
            following = numbers[at + 1]
            kept = min(kept, began_at(seen.get(following, []), launches[following]))
        share = (kept - rows[0]["step"]) / (rows[-1]["step"] - rows[0]["step"])
        seconds += max(0.0, share) * max(0.0, rows[-1]["time"] - rows[0]["time"])
    return seconds if told else None
