"""Everything between a config and the first start of a trainer: machine, rows, plan, run folder. Starts no training."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.base.errors import BLOCKED, USAGE, Stop, reading
from holdfast.base.files import Json, is_full, read_json, sha256, write_json
from holdfast.base.inert import inert
from holdfast.base.tasks import kind_of
from holdfast.base.units import counted, listed
from holdfast.checkup.examine import examine
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.config.table import EPOCHS
from holdfast.config.train import Train, Until
from holdfast.data.token_set.token_set import epoch_rows
from holdfast.data.tokens.given_template import with_template
from holdfast.machine.read import read_machine
from holdfast.machine.system import usable_threads
from holdfast.planning.ladder import ladder_entry
from holdfast.planning.plan import settings_of, with_more
from holdfast.planning.ranks import ranks_on
from holdfast.processes.rank_info import rank_info_of
from holdfast.report.audience import Audience
from holdfast.report.words import between, shown
from holdfast.run.base_model import follow_pinned, refuse_changed, take_model_elsewhere, take_repaired
from holdfast.run.folder import RunFolder, differences
from holdfast.run.plan import RunPlan, unknown_keys, write_plan
from holdfast.run.rows_of_run import with_rows
from holdfast.run.sampling.step_table import learning_rate, run_length
from holdfast.run.snapshots.checkpoint import MANIFEST, checkpoint_name, checkpoint_steps
from holdfast.run.timeline import Entry, add_entry, newest_settings, read_timeline, settings_in
from holdfast.run.types import Finding
from holdfast.supervision.preparation.changes import take_up_changes
from holdfast.supervision.preparation.libraries import tell_of_libraries
from holdfast.supervision.preparation.parts import choose_parts
from holdfast.supervision.preparation.start import with_start
from holdfast.supervision.preparation.types import preparation_of


def open_run(run: RunFolder, asked: Config, extend: bool, audience: Audience) -> Config:
    """Prepare a new run, or check that an existing one is of the config that is asked for. Raises Stop with the difference.

    Return what trains: RUN/config.yaml, but for what `differences` does not count, which is this start's.
    """
    config = with_template(with_rows(run, with_start(run, asked), audience.tell))
    if not run.config_file.exists():
        if extend:
            audience.tell(f"--extend: there is no run in {shown(run.path)} yet, this one begins")
        _in_a_writable_folder(run, lambda: _prepare(run, config, audience))
    else:
        with reading(run.path):
            _take_up(run, config, extend, audience)
    kept = run.config()
    train = kept.train.model_copy(update={"ranks": asked.train.ranks, "ranks_min": asked.train.ranks_min})
    return kept.model_copy(update={"run": asked.run, "faults": asked.faults, "train": train})


def _take_up(run: RunFolder, config: Config, extend: bool, audience: Audience) -> None:
    """Go on with an existing run, as far as its preparation goes. Raises Stop."""
    restore_records(run, audience)
    old = run.config()
    if config.model and old.model:
        config = config.model_copy(update={"model": follow_pinned(config.model, old.model)})
        old = take_model_elsewhere(run, old, config.model)
    config = with_length(config, old)
    changed = differences(take_up_changes(run, old, config, audience), config)
    old = run.config()
    if extend:
        _extend(run, old, config, changed, audience)
    elif changed:
        listed = "\n".join(f"  {change}" for change in changed)
        longer = "add --extend to train this run on, or " if not _beside_length(changed) else ""
        hint = f"{longer}give another folder with --run DIR, or name (run.name)"
        if kind_of(config).continues and (steps := checkpoint_steps(run)):
            newest = shown(run.checkpoints / checkpoint_name(max(steps)))
            hint += f"; to begin a new run with what this one has learned: adapter.start={newest} --run DIR"
        if not run.committed():
            hint = f"it has no committed step yet: remove it (rm -r {shown(run.path)}), or {hint}"
        raise Stop(USAGE, f"{run.path} belongs to another config:\n{listed}", hint)
    if (read_json(run.summary_file) or {}).get("status") != "finished":
        take_repaired(run, old.model)
        refuse_changed(run, old.model)
        tell_of_libraries(run, audience)
    _check_data_file(run, config, audience)
    _tell_of_newer_rows(run, config, audience)


def restore_records(run: RunFolder, audience: Audience) -> None:
    """Bring back what a run cannot go on without, as far as the rest tells it: name, journals, timeline. Raises Stop for what is lost."""
    run.heal_journals(audience.tell)
    _check_id(run, audience)
    _check_timeline(run, audience)
    _tell_of_plan(run, audience)


def with_length(config: Config, old: Config) -> Config:
    """Return the config of a run on a table with the epochs that it once began with beside hours or tokens to fill, too."""
    free = config.train.steps is None and config.train.epochs is None
    if kind_of(config).base_model or not free or old.train.epochs != EPOCHS or old.train.until != config.train.until:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"epochs": old.train.epochs})})


def _check_id(run: RunFolder, audience: Audience) -> None:
    """Write a lost run.json again: the run's own name stands in each of its checkpoints. Without one the run is given another."""
    if isinstance((read_json(run.path / "run.json") or {}).get("id"), str):
        return
    manifests = (read_json(run.checkpoints / checkpoint_name(step) / MANIFEST) or {} for step in reversed(checkpoint_steps(run)))
    known = next((name for manifest in manifests if isinstance(name := manifest.get("run"), str)), None)
    run.write_id(known or uuid.uuid4().hex)
    of = "of its newest checkpoint" if known else "with a new name, as no checkpoint tells the old one"
    audience.tell(f"{run.path / 'run.json'} was missing or damaged; it was written again {of}")


def _in_a_writable_folder(run: RunFolder, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        if is_full(error):
            raise Stop(BLOCKED, f"the disk of {run.path} is full", "make room, or choose another place with --run DIR") from None
        raise


def _prepare(run: RunFolder, config: Config, audience: Audience) -> None:
    """Prepare machine, model, data and plan; config.yaml is written last and makes the folder a run."""
    began = time.monotonic()
    run.write_id(uuid.uuid4().hex)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(read_machine, run.path)
        planned = preparation_of(config).plan_run(run, config, asked, audience)
    config, machine, plan = planned.config, planned.machine, planned.plan
    _refuse_if_blocked(examine(machine, config, plan), audience)
    write_json(run.machine_file, machine)
    write_plan(run.plan_file, plan)
    run.timeline_file.unlink(missing_ok=True)
    _begin_timeline(run, planned.settled, plan, machine)
    entry, told = ladder_entry(config, machine, settings_in(run.timeline_file))
    if entry:
        add_entry(run.timeline_file, entry)
    if told:
        run.event("ladder", says=told)
        audience.say(told)
    if more := _choose_parts(run, planned.settled, plan, machine, audience):
        plan = with_more(plan, config.train, "logits", more)
        write_plan(run.plan_file, plan)
    run.write_config(config)
    run.event("run_created", steps=plan.steps, rows=plan.rows.train, seconds=round(time.monotonic() - began, 3))
    samples = counted(min(config.train.effective_batch, plan.samples), "sample")
    audience.say(f"plan: {counted(plan.steps, 'step')} of {samples}; {plan.reasons[0]}")
    for told in plan.reasons:
        if told.startswith("train.offload"):
            audience.say(told)
    if plan.seconds:
        audience.say(f"wall time: {between(plan.seconds)}; {plan.reasons[-1].removeprefix('wall time ')}")


def _begin_timeline(run: RunFolder, settled: Config, plan: RunPlan, machine: Json) -> None:
    """Write down the settings that follow from the plan: the first entry of the timeline."""
    settings = settings_of(settled, plan, machine, usable_threads(), plan.steps, plan.samples, _ranks(settled, machine)).as_json()
    add_entry(run.timeline_file, Entry(1, settings, "the config and the plan"))


def _choose_parts(run: RunFolder, settled: Config, plan: RunPlan, machine: Json, audience: Audience) -> int:
    """Choose which parts of a step are computed at the same time, and return their bytes beyond the plan; ranks have parts of their own."""
    return choose_parts(run, settled, plan, audience) if _ranks(settled, machine) == 1 else 0


def _ranks(config: Config, machine: Json) -> int:
    """Return how many ranks a run begins with: those that a launcher started, or that its config asks for."""
    rank_info = rank_info_of(os.environ)
    return rank_info.size if rank_info else ranks_on(config.train, machine)


def _refuse_if_blocked(findings: list[Finding], audience: Audience) -> None:
    for finding in findings:
        if finding.severity == "warn" or finding.id == "device":
            audience.say(f"{finding.severity}: {finding.message}" + (f"  -> {finding.fix}" if finding.fix else ""))
    blocking = [finding for finding in findings if finding.severity == "block"]
    if blocking:
        raise Stop(BLOCKED, "\n".join(finding.message for finding in blocking), "\n  -> ".join(finding.fix for finding in blocking))


def _check_timeline(run: RunFolder, audience: Audience) -> None:
    """Tell which settings of another version's run folder are ignored. Raises Stop where one has a value that is none."""
    if not read_timeline(run.timeline_file):
        _begin_timeline_again(run, audience)
    settings_in(run.timeline_file)
    entries = read_timeline(run.timeline_file)
    if unknown := sorted({name for entry in entries for name in entry.settings} - Settings.model_fields.keys()):
        audience.tell(f"{run.timeline_file}: this version has no setting {', '.join(unknown)}; ignored")


def _begin_timeline_again(run: RunFolder, audience: Audience) -> None:
    """Write the timeline's only line, which was torn, again of the plan it followed from. Raises Stop where plan or file is lost."""
    if not run.timeline_file.exists():
        text = f"{run.timeline_file} is missing: which settings the steps were computed with stands there alone"
        raise Stop(BLOCKED, text, f"put it back, or {run.anew()}")
    plan, config = run.plan(), run.config()
    machine, settled = read_json(run.machine_file) or read_machine(run.path), with_start(run, config)
    _begin_timeline(run, settled, plan, machine)
    _choose_parts(run, settled, plan, machine, audience)
    audience.tell(f"{run.timeline_file}: its only line was torn; it was written again of the plan")


def _tell_of_plan(run: RunFolder, audience: Audience) -> None:
    """Tell which parts of another version's plan are ignored. Raises Stop where the plan is none."""
    run.plan()
    if unknown := unknown_keys(run.plan_file):
        audience.tell(f"{run.plan_file}: this version knows nothing of {', '.join(map(inert, unknown))} in a plan; ignored")


def _extend(run: RunFolder, old: Config, new: Config, changed: list[str], audience: Audience) -> None:
    """Record another end of the run: more steps or epochs, and so another end of the schedule, from the next step on."""
    if other := _beside_length(changed):
        listed = "\n".join(f"  {change}" for change in other)
        text = f"--extend changes train.steps, train.epochs or train.until only, the config also has:\n{listed}"
        raise Stop(USAGE, text, "take those changes back")
    _refuse_reached_goal(run, old.train.until, new.train.until)
    now = newest_settings(read_timeline(run.timeline_file))
    train, behind = new.train, now.behind
    if run.committed() == now.steps:
        behind = now.steps * train.effective_batch - now.samples  # what its last step was too small by is drawn next
    rows = epoch_rows(new.data, run.plan().rows.train)
    open_end = _open_end(old.train, train)
    longer = now.steps + math.ceil(rows / train.effective_batch) if open_end else train.steps  # the trainer fits it to the goal
    steps, samples = run_length(rows, train.effective_batch, train.epochs, longer, behind)
    if steps <= run.committed():
        raise Stop(USAGE, f"the run has {run.committed()} steps already, the config ends at {steps}", "raise train.steps or train.epochs")
    if steps < now.steps:
        text = f"the run is to end after {now.steps} steps, the config ends at {steps}: --extend lengthens a run, it never shortens one"
        raise Stop(USAGE, text, f"raise train.steps or train.epochs, or stop it where you want it: holdfast stop {shown(run.path)}")
    early = (read_json(run.summary_file) or {}).get("stopped_early")
    if (steps, samples) != (now.steps, now.samples) or early:
        reason = f"extended from {early['step'] if early else now.steps} steps"
        settings = {"steps": steps, "samples": samples, "patience_from": run.committed() + 1} | ({"behind": behind} if behind else {})
        add_entry(run.timeline_file, Entry(run.committed() + 1, settings, reason))
        rates = _rate_jump(old.train, run.committed(), now.steps, steps, now.lr_factor)
        run.event("extended", steps=steps, before=now.steps, learning_rate=rates)
        until = f" and then to train.until.{open_end}" if open_end else ""
        audience.tell(f"extended from {now.steps:,} to {steps:,} steps{until}; learning rate {rates}")
    run.write_config(old.model_copy(update={"train": new.train.model_copy(update={"lr": old.train.lr})}))
    for told in (run.summary_file, run.evaluation_file):  # of the end that is none any more
        told.unlink(missing_ok=True)


def _refuse_reached_goal(run: RunFolder, before: Until | None, now: Until | None) -> None:
    """Raise Stop where the run ended at a goal that the config still has: it would end again, a step or two later."""
    ended = (read_json(run.summary_file) or {}).get("until") or {}
    goal = ended.get("reached")
    old, new = (getattr(until, goal, None) if goal else None for until in (before, now))
    if old is None or new is None:
        return
    if new >= old if goal == "loss" else new <= old:
        way = "lower" if goal == "loss" else "raise"
        raise Stop(USAGE, f"the run has reached its goal: {ended['reason']}", f"{way} train.until.{goal}, or take it out of the config")


def _open_end(before: Train, now: Train) -> str:
    """Return the changed goal that alone says how long a run is; empty where steps or epochs do, or nothing has changed."""
    until = now.until
    if until is None or until == before.until or now.steps is not None or now.epochs is not None:
        return ""
    return "tokens" if until.tokens is not None else "hours" if until.hours is not None else ""


def _beside_length(changed: list[str]) -> list[str]:
    """Return the changes other than those of the run's length."""
    return [change for change in changed if not change.startswith(("train.epochs:", "train.steps:", "train.until"))]


def _rate_jump(train: Train, committed: int, before: int, steps: int, factor: float) -> str:
    """Describe what extending does to the learning rate, whose schedule now ends later. factor: of a rollback, or another rate since."""
    at = committed + 1
    old, new = (factor * learning_rate(min(at, end), end, train.lr, train.schedule, train.warmup) for end in (before, steps))
    return f"{old:.2e} -> {new:.2e} at step {at}, because the {train.schedule} schedule now ends at step {steps}"


def _check_data_file(run: RunFolder, config: Config, audience: Audience) -> None:
    """Check that the tokenised rows are still those the run began with; lost ones are made again from the data files."""
    wanted = run.plan().data_sha256
    if run.data_file.exists() and sha256(run.data_file) == wanted:
        return
    run.event("data_rebuilt", reason="data.safetensors is missing or damaged")
    if preparation_of(config).check_rows(run, config, audience) != wanted:
        text = f"{shown(run.data_file)} is gone or damaged, and rows made of the data files again are not those that the run began with"
        raise Stop(BLOCKED, text, "restore the data files; where they are as they were, go on with the version that began the run")


def _tell_of_newer_rows(run: RunFolder, config: Config, audience: Audience) -> None:
    """Tell which data files were written after the run had taken its copy of the rows: it never looks at them again."""
    begun = next((event["time"] for event in run.events() if event["event"] == "run_created"), None)
    files = [Path(name) for name in (*config.data.files, *config.data.held_out_files)]
    newer = [str(file) for file in files if begun is not None and file.is_file() and file.stat().st_mtime > begun]
    if newer:
        copy = f"the run has its own copy of the rows as they were, {shown(run.data_file)}"
        audience.tell(f"{listed(newer, 3)}: written after this run began; {copy}. For a run with the rows of now: --run DIR")
