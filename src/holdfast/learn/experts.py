"""Experts: of the rows that the version in place has learned, an adapter for each domain that has enough, and a router among them.

Each starts from the version in place and goes on with its domain's rows alone; domains with too few are left to the adapter for all.
RUN/../experts: NAME/train.jsonl, NAME/run  an expert's rows and run   router.safetensors   experts.json  comes last, whole or not at all
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.base.files import Json, read_exact_lines, read_json, sha256, write_bytes, write_json
from holdfast.base.units import counted
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import json_line
from holdfast.export.registry import read_registry, registry_file
from holdfast.export.subject import read_subject
from holdfast.learn.budget import refuse_no_room, time_is_up
from holdfast.learn.gate import domain_of, held_rows, people_at_gate
from holdfast.learn.judge_rows import round_config
from holdfast.learn.merged import merge_experts
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import as_kept, disliked_by, learned_by, rounds_of
from holdfast.learn.routes import Named, is_as_good, route, told_in_words
from holdfast.learn.training import train
from holdfast.run.folder import RunFolder
from holdfast.serve.experts import FILE, MERGED, MERGED_NAME, ROUTER, expert_model, experts_folder


def make_experts(policy: Policy, say: Callable[[str], None]) -> Json | None:
    """Return experts.json of the version in place, made where it is not there; killed in the middle, the same call goes on.

    None where the policy wants none, no version of its rounds is in place, or the time for training is spent.
    """
    rounds = rounds_of(Path(policy.folder or ""))
    current = read_registry(registry_file(os.environ)).current(policy.name)
    line = [*learned_by(rounds, current.facts["run"] if current else None)]
    if policy.experts is None or not line:
        return None
    run = line[0].run
    folder, wanted = experts_folder(run), policy.experts.model_dump() | {"gate_sha256": sha256(Path(policy.gate.rows))}
    told = read_json(folder / FILE)
    if told and told["wanted"] == wanted:
        return told
    if why := time_is_up(policy, rounds):
        say(f"no experts now: {why}")
        return None
    refuse_no_room(policy, rounds)
    bad = as_kept(disliked_by(rounds), rounds)
    rows = (row for each in line for row in read_exact_lines(each.rows) if row_key(row) not in bad)
    learned = [(domain_of(row, policy.gate.domains), row) for row in rows]
    return _make(policy, run, folder, wanted, learned, say)


def _make(policy: Policy, run: Path, folder: Path, wanted: Json, learned: Named, say: Callable[[str], None]) -> Json:
    held = held_rows(policy)
    names, without = divide(learned, held, wanted["rows"], wanted["held"])
    facts: Json = {"of": str(run), "adapter_sha256": read_subject(run).hashes()["adapter_sha256"], "wanted": wanted, "experts": []}
    for name in names:
        theirs = [row for domain, row in learned if domain == name]
        place = folder / _folder_name(name)
        place.mkdir(parents=True, exist_ok=True)
        write_bytes(place / "train.jsonl", b"".join(map(json_line, theirs)))
        _, settings = round_config(policy, place / "train.jsonl", run / "adapter")
        say(f"expert {name}: training on {counted(len(theirs), 'row')}")
        summary = train(policy.config, settings, place / "run")
        if summary["status"] != "finished":
            without[name] = f"its training was given up: {summary.get('reason')}"
            continue
        one = {"name": name, "run": f"{place.name}/run", "rows": len(theirs), "adapter_sha256": summary["artifact_sha256"]}
        facts["experts"].append(one)
    facts |= {"all": without, "measured": None, "merged": None, "threshold": None, "router_sha256": None}
    folder.mkdir(parents=True, exist_ok=True)
    if facts["experts"]:
        experts = {one["name"]: read_subject(folder / one["run"]) for one in facts["experts"]}
        merged, people = folder / MERGED, people_at_gate(policy, held)
        why = merge_experts([one.tuned for one in experts.values()], merged) if len(experts) > 1 else "there is one expert"
        router, measured = route(read_subject(run), experts, learned, held, people, None if why else merged, folder, say)
        facts |= {"measured": measured, "merged": {"shown": is_as_good(measured), "why": why}}
        if not facts["merged"]["shown"]:
            shutil.rmtree(merged, ignore_errors=True)
        write_bytes(folder / ROUTER, router.to_bytes())
        facts |= {"threshold": router.threshold, "router_sha256": sha256(folder / ROUTER)}
    write_json(folder / FILE, facts)
    for one in facts["experts"]:
        shutil.rmtree(RunFolder(folder / one["run"]).checkpoints, ignore_errors=True)
    tell_experts(facts, say)
    return facts


def divide(learned: Named, held: Named, rows: int, at_gate: int) -> tuple[list[str], dict[str, str]]:
    """Return the domains with enough rows learned and at the gate, in order of their names, and why each other one has no expert. Pure."""
    have, there = Counter(name for name, _ in learned if name), Counter(name for name, _ in held)
    without = {}
    for name in sorted(have | there):
        if have[name] < rows:
            without[name] = f"{counted(have[name], 'row')} learned of {rows}"
        elif there[name] < at_gate:
            without[name] = f"{counted(there[name], 'row')} at the gate of {at_gate}"
    return sorted(have.keys() - without), without


def tell_experts(facts: Json, say: Callable[[str], None]) -> None:
    """Say which domains have an expert, which have none and why, and what was measured."""
    names = ", ".join(one["name"] for one in facts["experts"]) or "none"
    rest = "".join(f"; {name} is left to the adapter for all ({why})" for name, why in facts["all"].items())
    say(f"experts: {names}{rest}")
    for line in told_in_words(facts["measured"]) if facts["measured"] else ():
        say(f"  {line}")
    if one := facts["merged"]:
        told = (
            f"it answers as {expert_model(MERGED_NAME)}"
            if one["shown"]
            else f"no merged adapter: {one['why'] or 'it is not shown to be as good'}"
        )
        say(f"  {told}")


def _folder_name(name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)[:40].strip('.-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
