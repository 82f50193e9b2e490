"""`holdfast learn POLICY`: let a model learn from use, round by round, behind a gate that can say no.

A round takes the rows that have come, trains from the promoted adapter, is measured against it, and is promoted or refused. It can be
killed at any moment: the same command goes on with it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say, teller
from holdfast.base.locks import hold
from holdfast.base.units import counted, span
from holdfast.learn.experts import make_experts
from holdfast.learn.forget import forget, price
from holdfast.learn.learn import Learner, mark_told, untold
from holdfast.learn.policy import load_policy
from holdfast.learn.rounds import rounds_of
from holdfast.learn.usable import refuse_unusable

EXAMPLE = "holdfast learn helper.yaml --rounds 1"
_LOOK_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", type=Path, metavar="POLICY", help="the policy's YAML file")
    parser.add_argument("--rounds", type=int, metavar="N", help="end after so many rounds (default: when too few rows are left for one)")
    parser.add_argument("--follow", action="store_true", help="wait for rows until Ctrl-C or SIGTERM")
    parser.add_argument("--forget", metavar="PERSON", help="withdraw the rows of a person (keep.person): the price; with --yes it is done")
    parser.add_argument("--yes", action="store_true", help="train again what has learned the rows that --forget withdraws")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.rounds is not None and arguments.rounds < 1:
        raise Stop(USAGE, f"--rounds {arguments.rounds}: counts from 1", "leave it out to go on while there are rows")
    if arguments.forget == "":
        raise Stop(
            USAGE, "--forget names nobody: it would withdraw every row that names no person", "give the person as keep.person has it"
        )
    policy = load_policy(arguments.policy)
    refuse_unusable(policy)

    tell = teller(arguments.json)
    learner = Learner(policy, tell)
    learner.folder.mkdir(parents=True, exist_ok=True)
    with hold(learner.folder / ".lock", wait=False) as ours:
        if not ours:
            raise Stop(BLOCKED, f"another `holdfast learn` is at work in {learner.folder}", "wait for it, or stop it")
        if arguments.forget is not None:
            return _forget(learner, arguments, tell)
        done = 0
        waiting: Json = {}
        unrated: Json = {}
        told: str | None = None
        experts = make_experts(policy, tell)
        while arguments.rounds is None or done < arguments.rounds:
            one, waiting = learner.next_round()
            unrated = _tell_unrated(waiting.get("unrated") or unrated, unrated, tell)
            if one is None and not arguments.follow:
                break
            if one is None:
                if told != (told := _why(waiting)):
                    tell(f"waits for rows: {waiting['rows']} new ones of {waiting['needed']} that begin a round{told}")
                time.sleep(_LOOK_S)
                continue
            learner.finish(one)
            done, waiting, told = done + 1, {}, None  # what it took waits no more
            tell(_line(one.answer()))
            experts = make_experts(policy, tell)
        new = untold(learner.folder)
        if len(new) > done:  # rounds of a command that a failing disk ended behind their last phase
            learner.write_page()
        answer: Json = {"rounds": [one.answer() for one in new], "all": [one.answer() for one in rounds_of(learner.folder)]}
        answer |= {
            "waiting": waiting or None,
            "folder": str(learner.folder),
            "name": policy.name,
            "report": str(learner.page) if learner.page.exists() else None,
            "experts": experts,
        }
        mark_told(new)
    if not arguments.json and new:
        say(f"all rounds: {learner.page}")
    if not arguments.json and not new:
        say(f"no round: {waiting['rows']} new rows of {waiting['needed']} that begin one ({waiting['rejected']} rejected){_why(waiting)}")
    return DONE, answer


def _why(waiting: Json) -> str:
    """Say what stands in the way of a round, beside the number of its rows."""
    why = f"; {waiting['why']}" if waiting.get("why") else ""
    if waiting.get("one_person"):
        why += "; more rows of some people than keep.per_person allows do not count"
    return why + (f"; nothing is there yet of {', '.join(waiting['not_there'])}" if waiting.get("not_there") else "")


def _forget(learner: Learner, arguments: argparse.Namespace, tell: Callable[[str], None]) -> tuple[int, Json]:
    """Tell the price first; with --yes do the work."""
    answer = price(learner, arguments.forget)
    again = ", ".join(map(str, answer["rounds_again"])) or "none"
    steps, took = counted(answer["steps"], "step"), span(answer["seconds"])
    tell(
        f"{arguments.forget}: {counted(answer['rows'], 'row')} in the rounds; trained again: {again} ({steps}, {took} when first computed)"
    )
    if answer["waiting"]:
        tell(f"{counted(answer['waiting'], 'row')} of theirs wait in the sources: they are left out, and what comes of them later")
    for one in answer["exports"]:
        tell(f"! {one['path']} has learned their rows, too: remove it ({one['kind']})")
    if not arguments.yes:
        tell("nothing was changed; add --yes to do it")
        return DONE, answer | {"done": False, "version": None}
    answer |= {"done": True, "version": forget(learner, arguments.forget)}
    tell("their rows are gone from the rounds" + (f"; version {answer['version']} is in place" if answer["version"] else ""))
    return DONE, answer


def _tell_unrated(found: Json, before: Json, tell: Callable[[str], None]) -> Json:
    """Tell which rows wait because nobody knows what their rating says, where that has changed; return what was found."""
    if found != before and found.get("rows"):
        said = ", ".join(found["ratings"])
        tell(f"! {counted(found['rows'], 'row')} wait, rated {said}: keep.good does not say which ratings are good (4 of 1 to 5, or words)")
    return found


def _line(one: Json) -> str:
    rows = one["rows"]
    law = f"{rows['in']} rows in, {rows['kept']} kept, {rows['rejected']} rejected, {rows['replayed']} replayed"
    end = f"promoted as version {one['version']}" if one["promoted"] else "not promoted"
    return f"round {one['round']}: {law}; {end}: {one['why']}"
