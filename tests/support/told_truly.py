"""Draws plans for drawn_trainer.py, and holds each word that is told of such a run against what the script itself wrote down."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import holdfast

Json = dict[str, Any]
OURS = Path(holdfast.__file__).parent  # a checkout may be called holdfast, too, and the script lies in it
PRINTS = ("bar", "logged bar", "epochs", "words", "no total", "no loss", "dict", "lightning", "nothing")
BESIDE = ("evaluation", "unnamed evaluation", "examples", "download", "shards", "another", "another's bar", "table")


def drawn(seed: int) -> Json:
    """A plan: what the script trains, prints and saves, and what befalls it."""
    draw = random.Random(seed)
    stages = [draw.randint(5, 16)]
    if draw.random() < 0.15:
        stages.append(draw.randint(3, 9))
    prints, total = draw.choice(PRINTS if len(stages) == 1 else ("words", "no total", "dict")), sum(stages)  # losses tell a second stage
    saves = draw.choice(("trainer", "trainer", "steps", "epochs", "last"))
    faults = [
        [draw.choice(("kill", "kill", "kill", "raise", "torn", "exit", "leave")), draw.randint(1, total), call]
        for call in range(1, draw.randint(0, 3) + 1)
    ]
    beside = [[draw.choice(BESIDE), draw.choice((0, 0, total, draw.randint(1, total)))] for _ in range(draw.choice((0, 0, 1, 2)))]
    if prints == "nothing":  # a script that shows no step of its own, and another's twice or a bar without a name, shows another's
        beside = [one for one in beside[:1] if one[0] != "unnamed evaluation"]
    after = draw.choice(("", "", "", "", "push", "exit", "kill", "hang"))
    child = draw.choice(("", "", "", "", "helper", *(() if after == "hang" else ("monitor",))))  # what is printed is a sign of life
    return {
        "seed": seed,
        "stages": stages,
        "prints": prints,
        "each": draw.choice((1, 1, 2, 5)) if len(stages) == 1 else 1,
        "saves": saves,
        "save_steps": draw.choice((0, 1, 2, 3, 4)),
        "resume": draw.choice(("told", "told", "finds", "not")) if saves == "trainer" else draw.choice(("finds", "finds", "not")),
        "faults": faults,
        "beside": beside,
        "after": after,
        "child": child,
        "step_s": draw.choice((0.01, 0.02, 0.05)),
    }


def options(plan: Json) -> list[str]:
    """What `holdfast run` is given beside the command."""
    hang = ["--hang-s", "4"] if plan["after"] == "hang" else []
    return [*hang, *([] if plan["saves"] == "trainer" else ["--checkpoints", "out"])]


def words(plan: Json) -> list[str]:
    return ["--output_dir", "out"] if plan["saves"] == "trainer" else []


class Truth:
    """What the script wrote down: of each start where it began and each step, checkpoints, and whether the last step was done."""

    def __init__(self, place: Path, plan: Json) -> None:
        rows = [json.loads(line) for line in (place / "truth.jsonl").read_text().splitlines()]
        self.began = [row["began"] for row in rows if "start" in row]
        self.told = [row["told"] for row in rows if "start" in row]
        self.steps = [[row["step"] for row in rows if row.get("call") == n and "step" in row] for n in range(1, len(self.began) + 1)]
        self.stages, self.total = plan["stages"], sum(plan["stages"])
        self.complete = self.total in self.steps[-1] or self.began[-1] == self.total
        self.saved: dict[str, int] = {}
        self.torn: set[str] = set()  # as they lie there
        self.ever_torn: set[str] = set()
        for row in rows:
            if "saved" in row:
                self.saved[row["saved"]] = row["step"]
                self.torn.discard(row["saved"])
            if "torn" in row:
                self.torn.add(row["torn"])
        self.ever_torn = {row["torn"] for row in rows if "torn" in row}
        self.furthest = max((max(one, default=0) for one in self.steps), default=0)
        self.twice = sum(map(len, self.steps)) - len({step for one in self.steps for step in one})


def false_words(place: Path, plan: Json, code: int, told: str) -> Iterator[str]:
    """Each word that is not true. told: what the terminal showed."""
    summary = json.loads((place / "run/summary.json").read_text())
    true = Truth(place, plan)
    doubt = summary["doubt"] or ""
    if summary["attempts"] != len(true.began):
        yield f"{summary['attempts']} attempts, there were {len(true.began)}"
    if (code == 0) != (summary["status"] == "finished"):
        yield f"exit code {code} and {summary['status']}"
    another = "another count" in doubt  # it says itself that its count may not be the training's
    if (summary["steps"] or 0) > true.furthest and not another:
        yield f"{summary['steps']} steps, there were {true.furthest}"
    of_stage = next(end for end in accumulate(plan["stages"]) if end >= true.furthest)  # nothing was said of a stage that never began
    totals = {None, true.total, of_stage, *(plan["stages"] if plan["saves"] == "trainer" else ())}  # a Trainer's state tells its stage's
    if summary["total_steps"] not in totals and not another:
        yield f"of {summary['total_steps']} steps, there are {true.total}"
    quiet = (
        plan["prints"] in ("no total", "dict", "lightning", "nothing") or len(plan["stages"]) > 1
    )  # nobody could know how many steps there are
    if "ended well" in told and not true.complete and not quiet:
        yield "ended well, and it was not at its end"
    if summary["incomplete"] is False and not true.complete and true.steps[-1][-1:] != plan["stages"][:1]:
        yield "not incomplete, and it was not at its end"
    if summary["incomplete"] and true.complete and len(plan["stages"]) == 1 and summary["status"] == "finished" and plan["each"] == 1:
        yield "incomplete, and it was at its end"
    twice = summary["steps_computed_twice"] or 0
    if twice > true.twice or (summary["steps_computed_twice_exact"] and twice != true.twice):
        yield f"{twice} computed twice, there were {true.twice}"
    if after := summary["after_training"]:
        last = true.saved.get(Path(after["result"]).name)
        if not true.complete or last != true.total or Path(after["result"]).name in true.torn:
            yield f"complete with {after['result']}, of step {last}; complete: {true.complete}"
    if summary["nothing_saved"] and set(true.saved) - true.torn:
        yield "nothing saved, and there is " + ", ".join(true.saved)
    for aside in summary["checkpoints_set_aside"]:
        if Path(aside).name.removeprefix("set-aside-").removesuffix(".2") not in true.ever_torn:
            yield f"{aside} was whole"
    for number in re.findall(r"attempt (\d+) was told to go on from \S+ and began anew", doubt + told):
        if true.began[int(number) - 1]:
            yield f"attempt {number} began anew, it began at {true.began[int(number) - 1]}"
    if summary["goodput"] is not None and not 0 <= summary["goodput"] <= 1:
        yield f"goodput {summary['goodput']}"
    for incident in summary["incidents"]:
        yield from _of_incident(incident, true)
    for row in map(json.loads, (place / "run/progress.jsonl").read_text().splitlines()) if (place / "run/progress.jsonl").exists() else ():
        best = max(true.steps[row["attempt"] - 1], default=true.began[row["attempt"] - 1])
        counted = summary["progress_from"] == row["source"] and row["total"] in (None, summary["total_steps"]) and not another
        if row["step"] > best and counted:
            yield f"progress.jsonl: step {row['step']} of attempt {row['attempt']}, it came to {best}"
    losses = {round(3 / (step + 1) + 0.1, 4) for step in range(true.total + 1)} | {None}
    if {summary["loss"]["first"], summary["loss"]["last"]} - losses:
        yield f"a loss that it did not print: {summary['loss']}"
    if f'File "{OURS}/' in told:
        yield "a traceback of ours"


def _of_incident(incident: Json, true: Truth) -> Iterator[str]:
    number, story = incident["attempt"], incident["evidence"]
    ended = true.steps[number - 1]
    begin = true.began[number] if number < len(true.began) else None
    if incident["step"] is not None and incident["step"] > true.furthest + 1:
        yield f"an incident at step {incident['step']}"
    if begin is None:
        return
    if went := re.search(r"went on from (\S+?),", story):
        name = Path(went[1]).name
        tells = re.search(r"(?:checkpoint|step)-(\d+)", name) if len(true.stages) == 1 else None
        if (tells and begin != int(tells[1])) or not begin:
            yield f"{story}: it began at {begin}"
    if ("started from the beginning" in story or "began anew" in story) and begin:
        yield f"{story}: it began at {begin}"
    lost = max(0, max(ended, default=true.began[number - 1]) - begin)  # its state held those before it began, too
    if "no committed step computed again" in story and lost:
        yield f"{story}: {lost} were"
    if (incident["lost_steps"] or 0) > lost:
        yield f"{incident['lost_steps']} lost, there were {lost}"
    counted = re.search(r"(at least )?(\d+) committed steps? computed again", story)
    if counted and (int(counted[2]) > lost or (not counted[1] and int(counted[2]) != lost)):
        yield f"{story}: {lost} were"
