"""What became of the remedies a run goes on with, from its journal. Pure."""

from __future__ import annotations

from holdfast.base.files import Json

OF_REMEDIES = ("remedy_applied", "remedy_helped", "remedy_refuted", "attempt_ended")  # what `refuted` and `helped` look at
WATCHED = 20  # steps after a remedy in which the same cause shows that it did not help


def refuted(events: list[Json]) -> dict[str, str]:
    """Return the remedies that did not help in this run, with the reason: their cause came back while they were watched."""
    found: dict[str, str] = {}
    applied: list[Json] = []
    for event in events:
        if event["event"] == "remedy_applied":
            applied.append(event)
        elif event["event"] == "attempt_ended" and event.get("step") is not None and "decision" in event:
            for one in applied:
                if one["step"] <= event["step"] < one["step"] + WATCHED and one.get("cause") == event["diagnosis"]["cause"]:
                    found.setdefault(one["remedy"], f"applied at step {one['step']}; {one['cause']} again at step {event['step']}")
    return found


def helped(events: list[Json], committed: int) -> list[Json]:
    """Return the applied remedies that have stood `WATCHED` steps, neither refuted nor told so before."""
    told = {event["step"] for event in events if event["event"] == "remedy_helped"}
    wrong = refuted(events)
    applied = [event for event in events if event["event"] == "remedy_applied"]
    return [one for one in applied if committed >= one["step"] + WATCHED and one["step"] not in told and one["remedy"] not in wrong]
