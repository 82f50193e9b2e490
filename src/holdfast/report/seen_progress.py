"""What was seen of the steps of somebody else's command, and what that proves. Pure.

Rows are those of progress.jsonl: {time, attempt, step, total, source, first, wrote}. first: the first step above 0 that the attempt had
shown; wrote: first and newest step of the checkpoints that it had written. Older rows lack the last two. stages: True where its numbers
began anew behind a last step.
"""

from __future__ import annotations

from holdfast.base.files import Json


def believed(rows: list[Json]) -> list[Json]:
    """Return the rows of the best source of each attempt: once the callback told steps, what was printed before counted something else.

    A count of the output up to another number than the best source knows in the end does, too: a bar of rows, of files.
    """
    called = {row["attempt"]: at for at, row in enumerate(rows) if row["source"] == "callback"}  # what comes behind, it has left to others
    rows = [row for at, row in enumerate(rows) if row["source"] == "callback" or at > called.get(row["attempt"], -1)]
    if any(row.get("stages") for row in rows):  # so are those of another attempt
        rows = [row | {"stages": True} for row in rows]
    last = {row["attempt"]: row for row in rows}
    ends = {number: row["step"] for number, row in last.items() if row["source"] in ("checkpoint", "trainer_state.json")}
    rows = [row for row in rows if row["source"] != "output" or row["step"] <= ends.get(row["attempt"], row["step"])]
    rows = [row for row in rows if row["source"] != "output" or not row.get("total") or (row.get("wrote") or (0, 0))[1] <= row["total"]]
    if not any(row.get("stages") for row in rows):
        saved = max((row["wrote"][1] for row in rows if row.get("wrote")), default=0)
        rows = [row for row in rows if row["source"] != "output" or not row.get("total") or saved <= row["total"]]
    sure = [row["total"] for row in rows if row.get("total") and (row["source"] in ("callback", "trainer_state.json") or row.get("wrote"))]
    began: dict[int, int | None] = {}  # by attempt: the first step of an earlier stage, of another length
    for row in rows:
        if row["source"] == "output" and row.get("total") in sure and row["total"] != sure[-1]:
            began.setdefault(row["attempt"], row.get("first"))
    rows = [row for row in rows if row["source"] != "output" or not sure or row.get("total") in (None, sure[-1])]
    return [row | {"first": began[row["attempt"]]} if began.get(row["attempt"]) else row for row in rows]


def furthest(rows: list[Json]) -> int | None:
    """Return the furthest step that any source told of; None where none told of one."""
    return max((max(row["step"], (row.get("wrote") or (0, 0))[1]) for row in rows), default=None)


def _by_attempt(progress: list[Json]) -> dict[int, list[Json]]:
    found: dict[int, list[Json]] = {}
    for row in progress:
        found.setdefault(row["attempt"], []).append(row)
    return found


def began_at(rows: list[Json], launch: Json, first: list[Json] | None = None) -> int:
    """Return the step an attempt went on from: that of its checkpoint, or an earlier one where what it showed or wrote says so.

    That is 0 where it began where the first attempt did (first: the rows of that one, empty: it told nothing; None: any earlier step is
    one of a beginning), else the one before the first step that it showed or wrote: it began there or earlier, as it does where the
    checkpoint's name tells no step (last.pt, epoch_3), or it was told of none and may look for one itself. A step 0 says nothing: a
    Trainer's bar begins there, wherever it goes on from.
    """
    resumed = int(launch.get("resumed_step") or 0)
    shown = [row["first"] for row in rows if row.get("first")] or [_next_to(row) for row in rows]
    wrote = [row["wrote"][0] for row in rows if row.get("wrote")]
    if not resumed and (first is not None or launch.get("resumed_from")):
        return min((step for step in (*shown, *wrote) if step > 0), default=1) - 1
    last = rows[-1].get("total") if rows else None  # one that has nothing left to do may write its last checkpoint again
    if rows and (rows[0].get("stages") or rows[0].get("first") == resumed + 1):  # numbers that begin anew tell nothing; one that fits, all
        return resumed
    shown, wrote = _early(shown, resumed), [step for step in wrote if 0 < step < resumed or step == resumed != last]
    if not shown and not wrote:
        return resumed
    if first is None or _begins(shown, [row.get("first") or row["step"] for row in first]):
        return 0
    if not shown and _begins(wrote, [row["wrote"][0] for row in first if row.get("wrote")]):
        return 0
    return int(min((*shown, *wrote))) - 1


def _next_to(row: Json) -> int:
    """Return the step that an attempt showed; the next one where a bar or a callback told it before any step of its own."""
    return int(row["step"]) + (row["step"] > 0 and "first" in row and row["source"] in ("output", "callback"))


def _early(steps: list[int], resumed: int) -> list[int]:
    return [step for step in steps if 0 < step < resumed]


def _begins(steps: list[int], of_first: list[int]) -> bool:
    """Return whether the earliest of these steps is no later than the first attempt's: that one has begun at the beginning."""
    return bool(steps) and min(steps) <= max(1, min(filter(None, of_first), default=1))


def _of_no_step(launch: Json) -> bool:
    """True if an attempt was told to go on from a checkpoint whose name tells no step."""
    return bool(launch.get("resumed_from")) and launch.get("resumed_step") is None


def begin_of(progress: list[Json], launches: dict[int, Json], number: int) -> int | None:
    """Return the step an attempt was seen to begin after; None where no step of it was seen, or none that tells where it began.

    One that was told to go on from a checkpoint without a step number has gone on where its first step is later than the first attempt's.
    """
    rows, first = _by_attempt(progress).get(number, []), _by_attempt(progress).get(min(launches), [])
    if not any(row["step"] for row in rows):
        return None
    begin = began_at(rows, launches[number], first)
    if number > min(launches) and rows[0].get("stages"):
        return None
    return None if _of_no_step(launches[number]) and (not first or 0 < begin <= began_at(first, {"resumed_from": "?"})) else begin


def stands_at(progress: list[Json], launches: dict[int, Json]) -> int | None:
    """Return how far the newest attempt came: what it showed, or what it went on from; None where nothing was seen at all."""
    if not progress or not launches:
        return None
    newest = max(launches)
    rows = _by_attempt(progress).get(newest, [])
    return max(furthest(rows) or 0, began_at(rows, launches[newest], _of_first(progress, launches)))


def disobeyed(progress: list[Json], launches: dict[int, Json]) -> list[str]:
    """Describe the attempts that were told to go on from a checkpoint and were seen to begin before it."""
    seen, found = _by_attempt(progress), []
    for number, launch in sorted(launches.items()):
        resumed = launch.get("resumed_step")
        if number not in seen or not (resumed or (_of_no_step(launch) and begin_of(progress, launches, number) == 0)):
            continue
        began = began_at(seen[number], launch, _of_first(progress, launches))
        told = f"attempt {number} was told to go on from {launch.get('resumed_from') or f'step {resumed}'}"
        if not began:
            found.append(f"{told} and began anew: its way to go on has no effect")
        elif resumed and began < resumed:
            found.append(f"{told} and went on from before it: its first step that was seen is {began + 1:,}")
    return found


def _of_first(progress: list[Json], launches: dict[int, Json]) -> list[Json]:
    """Return the rows of the first attempt."""
    return _by_attempt(progress).get(min(launches), []) if launches else []


def disagreeing(rows: list[Json]) -> list[str]:
    """Describe where the newest attempt's checkpoints are of later steps than it told of."""
    if not rows or not (wrote := rows[-1].get("wrote")) or wrote[1] <= (told := rows[-1]["step"]):
        return []
    return [f"step {told} is the last one told of (by: {rows[-1]['source']}), and its newest checkpoint is of step {wrote[1]}"]


def computed_twice(progress: list[Json], launches: dict[int, Json]) -> int | None:
    """Count the steps that a later attempt computed again; None where an attempt that was followed by another told no step at all."""
    if not progress and len(launches) > 1:
        return None
    total = furthest_yet = 0
    for number, rows in sorted(_by_attempt(progress).items()):
        if rows[0].get("stages") and number > min(launches) and not launches.get(number, {}).get("resumed_step"):
            continue  # where it began, no number tells
        if launches.get(number, {}).get("resumed_later"):
            continue  # a later training of it, too, went on from a checkpoint of its own
        if number in launches and (reached := max(rows[-1]["step"], furthest(rows[-1:]) or 0)):
            total += max(0, min(reached, furthest_yet) - began_at(rows, launches[number], _of_first(progress, launches)))
            furthest_yet = max(furthest_yet, reached)
    return total


def each_step_told(progress: list[Json], launches: dict[int, Json]) -> bool | None:
    """True if the count of steps computed twice is exact: the callback told each step of the attempts that were followed by another.

    What is printed, and what checkpoints and event files show, lags behind; where numbers began anew, none tells of which stage it is.
    None where no attempt was followed by another.
    """
    followed = sorted(launches)[:-1]
    if followed and any(row.get("stages") for row in progress):
        return False
    sources = [{row["source"] for row in _by_attempt(progress).get(number, [])} for number in followed]
    return all(one == {"callback"} for one in sources) if followed else None


def useful_seconds(progress: list[Json], launches: dict[int, Json]) -> float | None:
    """Return the seconds in steps that were not computed again, as far as two sightings of a step tell; None where none do.

    Steps may be computed again by a later attempt than the next: one that could not load the newest checkpoint ends before it trains.
    None, too, where the newest attempt showed no step, nor was told of one to go on from: how many it computed again is not known.
    """
    seen, seconds, told = _by_attempt(progress), 0.0, False
    numbers = sorted(launches)
    if numbers and numbers[-1] not in seen and not launches[numbers[-1]].get("resumed_step"):
        return None
    for at, number in enumerate(numbers):
        rows = seen.get(number, [])
        if len(rows) < 2 or rows[-1]["step"] <= rows[0]["step"]:
            continue
        told = True
        following = numbers[at + 1 : at + 2]
        later = [one for one in numbers[at + 1 :] if one in seen or (one in following and launches[one].get("resumed_step"))]
        began = [began_at(seen.get(other, []), launches[other], _of_first(progress, launches)) for other in later]
        kept = min([rows[-1]["step"], *began])
        share = (kept - rows[0]["step"]) / (rows[-1]["step"] - rows[0]["step"])
        seconds += max(0.0, share) * max(0.0, rows[-1]["time"] - rows[0]["time"])
    return seconds if told else None
