"""Everything between a config and the first start of a trainer: lock, machine, data, plan, run folder. Starts no training."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
from pydantic import ValidationError

from holdfast.book.examine import examine
from holdfast.book.knowledge import has_fused_attention
from holdfast.core.cache import cache_folder
from holdfast.core.config.config import Config, Train
from holdfast.core.config.settings import Settings, problems
from holdfast.core.errors import BLOCKED, USAGE, Stop, reading
from holdfast.core.facts.model_folder import ModelFacts, read_model
from holdfast.core.files import Json, is_full, read_json, replacing, sha256, write_json
from holdfast.core.identity import myself
from holdfast.core.inert import inert, refuse_unwritable_name
from holdfast.core.order.step_table import learning_rate, run_length
from holdfast.core.run.base_model import follow_pinned, identity, pinned, refuse_changed, take_repaired
from holdfast.core.run.checkpoint import checkpoint_name, checkpoint_steps
from holdfast.core.run.folder import RunFolder, differences
from holdfast.core.run.plan import RowCounts, RunPlan, unknown_keys, write_plan
from holdfast.core.run.timeline import Entry, add_entry, newest_settings, read_timeline, settings_of_process
from holdfast.core.safe_open import lock_descriptor
from holdfast.core.seat import seat_of
from holdfast.core.types import Finding
from holdfast.core.units import counted
from holdfast.mind.plan import make_plan, settings_of
from holdfast.mind.ranks import ranks_on
from holdfast.rows.crew.build import Checked, check_rows, report
from holdfast.rows.crew.workers import Workers
from holdfast.rows.judge.rules import rules_of
from holdfast.rows.tokens.cache import TokenCache, cache_key
from holdfast.rows.tokens.codec import load_codec
from holdfast.rows.tokens.token_set import TokenSet, epoch_rows, join_parts, load_tokens, split, step_table
from holdfast.supervisor.changes import take_up_changes
from holdfast.supervisor.needs import refuse_what_is_missing, tell_limits
from holdfast.supervisor.refused import LEFT, take_back
from holdfast.supervisor.start import take_start
from holdfast.supervisor.tables import check_table, plan_run
from holdfast.ui.datatable import visible
from holdfast.ui.terminal import Terminal
from holdfast.ui.words import cut_answers, shown, unused_fields
from holdfast.world.machine import read_machine
from holdfast.world.system import usable_threads

HELD_LOCK = "HOLDFAST_HELD_LOCK"  # in the environment of a detached supervisor: the inherited descriptor


@contextlib.contextmanager
def held(path: Path) -> Iterator[tuple[RunFolder, int]]:
    """Open (or make) a run folder and hold it against other supervisors; the folder, and the descriptor that holds its lock.

    A process that detaches hands that descriptor on, so that the run is held all the while.
    Raises Stop when the folder is held or cannot be written.
    """
    for name in (path, Path.cwd()):
        refuse_unwritable_name(name)
    run = RunFolder(path)
    inherited = os.environ.pop(HELD_LOCK, None)
    try:
        _claim_folder(run)
        descriptor = int(inherited) if inherited else lock_descriptor(run.supervisor_lock)
    except OSError as error:
        raise Stop(BLOCKED, f"{path} cannot be written: {error.strerror}", "choose another place with --run DIR") from None
    try:
        _lock(run, descriptor)
        entry = {
            "identity": myself(),
            "host": platform.node(),
            "since": time.strftime("%F %T"),
            "folder": str(Path.cwd()),
            "command": shlex.join(["holdfast", *sys.argv[1:]]),
        }
        with contextlib.suppress(OSError):  # on a full disk only the name of the holder is missing
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, orjson.dumps(entry), 0)
        try:
            yield run, descriptor
        except Stop:
            take_back(run)
            raise
    finally:
        os.close(descriptor)


def _lock(run: RunFolder, descriptor: int) -> None:
    """Take the lock; for a fifth of a second, because `holdfast status` shares it for an instant when it asks who is there."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)
        except OSError as error:
            text = f"{run.path} cannot be locked: {error.strerror}"
            raise Stop(BLOCKED, text, "choose a place on a file system that has locks, with --run DIR") from None
    holder = read_json(run.supervisor_lock) or {}
    pid, since = holder.get("identity", {}).get("pid"), holder.get("since", "an unknown time")
    text = f"{run.path} is held by process {pid} on {holder.get('host')} since {since}: {holder.get('command')}"
    name = shown(run.path)
    raise Stop(BLOCKED, text, f"follow it: holdfast attach {name}; stop it (it can be resumed): holdfast stop {name}")


def _claim_folder(run: RunFolder) -> None:
    if run.path.is_dir() and {entry.name for entry in run.path.iterdir()} - LEFT and not run.begun():
        raise Stop(USAGE, f"{run.path} is not empty and is not a run folder", "give an empty or new folder with --run DIR")
    if run.begun():
        run.refuse_foreign()
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.path.mkdir(mode=0o700, exist_ok=True)  # rows, rejected ones too, and what they taught are nobody else's


def open_run(run: RunFolder, config: Config, extend: bool, terminal: Terminal) -> None:
    """Prepare a new run, or check that an existing one is of this config. Raises Stop with the difference."""
    if not run.config_file.exists():
        _in_a_writable_folder(run, lambda: _prepare(run, config, terminal))
        return
    with reading(run.path):
        _take_up(run, config, extend, terminal)


def _take_up(run: RunFolder, config: Config, extend: bool, terminal: Terminal) -> None:
    """Go on with an existing run, as far as its preparation goes. Raises Stop."""
    _check_timeline(run, terminal)
    _tell_of_plan(run, terminal)
    old = run.config()
    if config.model and old.model:
        config = config.model_copy(update={"model": follow_pinned(config.model, old.model)})
    changed = differences(take_up_changes(run, old, config, terminal), config)
    old = run.config()
    if extend:
        _extend(run, old, config, changed, terminal)
    elif changed:
        listed = "\n".join(f"  {change}" for change in changed)
        longer = "add --extend to train this run on, or " if not _beside_length(changed) else ""
        hint = f"{longer}give another folder with --run DIR, or name (run.name)"
        if config.task == "sft" and (steps := checkpoint_steps(run)):
            newest = shown(run.checkpoints / checkpoint_name(max(steps)))
            hint += f"; to begin a new run with what this one has learned: adapter.start={newest} --run DIR"
        if not run.committed():
            hint = f"it has no committed step yet: remove it (rm -r {shlex.quote(shown(run.path))}), or {hint}"
        raise Stop(USAGE, f"{run.path} belongs to another config:\n{listed}", hint)
    if (read_json(run.summary_file) or {}).get("status") != "finished":
        take_repaired(run, old.model)
        refuse_changed(run, old.model)
    _check_data_file(run, config, terminal)


def _in_a_writable_folder(run: RunFolder, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        if is_full(error):
            raise Stop(BLOCKED, f"the disk of {run.path} is full", "make room, or choose another place with --run DIR") from None
        raise


def _prepare(run: RunFolder, config: Config, terminal: Terminal) -> None:
    """Machine, model, data, plan; config.yaml is written last and makes the folder a run."""
    began = time.monotonic()
    run.write_id(uuid.uuid4().hex)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(read_machine, run.path)
        if config.task == "tabular":
            machine = asked.result()
            plan = plan_run(run, config, machine, terminal)
        else:
            config, machine, plan = _plan_text(run, config, asked, terminal)
    _refuse_if_blocked(examine(machine, config, plan), terminal)
    write_json(run.machine_file, machine)
    write_plan(run.plan_file, plan)
    run.timeline_file.unlink(missing_ok=True)
    seat = seat_of(os.environ)
    ranks = seat.size if seat else ranks_on(config.train, machine)
    settings = settings_of(config, plan, machine, usable_threads(), plan.steps, plan.samples, ranks).as_json()
    add_entry(run.timeline_file, Entry(1, settings, "the config and the plan"))
    run.write_config(config)
    tell_limits(config, terminal)
    run.event("run_created", steps=plan.steps, rows=plan.rows.train, seconds=round(time.monotonic() - began, 3))
    samples = counted(min(config.train.effective_batch, plan.samples), "sample")
    terminal.say(f"plan: {counted(plan.steps, 'step')} of {samples}; {plan.reasons[0]}")


def _plan_text(run: RunFolder, config: Config, asked: Future[Json], terminal: Terminal) -> tuple[Config, Json, RunPlan]:
    """(config with the commit of its model, machine, plan) of a run that fine-tunes a language model; its tokens lie in its folder."""
    model = read_model(config.model)
    refuse_what_is_missing(config, model)
    config = config.model_copy(update={"model": pinned(config.model, model)})
    start = take_start(run, config, model, terminal)
    tokens, data = check_data(run, config, model, terminal)
    machine = asked.result()
    lengths = np.diff(tokens.starts)
    training, held_out = split(tokens, config.data, config.train.seed)
    if not len(training):
        raise Stop(BLOCKED, "no rows left to train on: only held-out rows passed the check", f"each reject: {run.rejects_file}")
    if config.evaluate.every and not len(held_out):
        message = f"evaluate.every = {config.evaluate.every}, but no row is held out to evaluate on"
        raise Stop(BLOCKED, message, "set data.held_out or data.held_out_files, or leave evaluate.every out")
    per_epoch = _rows_per_epoch(config, len(training))
    _, largest = step_table(tokens, training, config.data, config.train).largest_step(lengths)
    spread = {"max": int(lengths.max()), "mean": float(lengths[training].mean()), "rows": len(training), "step": largest}
    steps, samples = run_length(per_epoch, config.train.effective_batch, config.train.epochs, config.train.steps)
    plan = RunPlan(
        **dict(make_plan(config, model, machine, spread, has_fused_attention(machine))),
        steps=steps,
        samples=samples,
        rows=RowCounts(train=len(training), held_out=len(held_out), per_epoch=per_epoch),
        base=identity(model),
        **data,
        start_adapter=start,
    )
    return config, machine, plan


def _rows_per_epoch(config: Config, training: int) -> int:
    rows = epoch_rows(config.data, training)
    if rows > training:
        message = f"data.rows_per_epoch is {rows:,}, but there are {training:,} rows to train on"
        raise Stop(BLOCKED, message, "lower it, or leave it out: then every epoch is all rows")
    return rows


def check_data(run: RunFolder, config: Config, model: ModelFacts, terminal: Terminal) -> tuple[TokenSet, Json]:
    """Check and tokenise the rows into the run folder; facts for the plan. Raises Stop(1) when none can be trained on."""
    codec = load_codec(model.folder)
    limit = min(config.train.max_tokens, model.positions or config.train.max_tokens)
    if limit < config.train.max_tokens:
        run.event("rows_limited", max_tokens=config.train.max_tokens, positions=limit)
        terminal.say(f"rows may have {limit} tokens, all positions the model has, not train.max_tokens = {config.train.max_tokens}")
    rules = rules_of(config, limit)
    folder = cache_folder(os.environ)
    cache = TokenCache(folder / "tokens" if folder else None, run.token_shards, cache_key(codec, rules))
    with replacing(run.rejects_file) as rejects, Workers(codec, rules, usable_threads()) as workers:
        checked = check_rows(config, cache, workers, rejects)
    _tell_of_cache(cache, run, terminal)
    if not sum(part.rows for part in checked.parts):
        raise Stop(BLOCKED, _nothing_left(checked), f"each row and its reason: {run.rejects_file}")
    digest = join_parts(run.data_file, checked.parts, config.data, codec.pad)
    cache.clear_spare()
    tokens = load_tokens(run.data_file)
    summary = report(checked, tokens) | {"max_tokens": limit, "pad": {"id": codec.pad, "reason": codec.pad_reason}}
    write_json(run.data_report_file, summary)
    terminal.say(_data_line(summary, run) + _cache_words(checked))
    _tell_of_rows(summary, config, terminal)
    _refuse_token_numbers(checked.verdicts.largest, tokens, model)
    return tokens, {"data_sha256": digest, "max_tokens": limit, "pad_token_id": codec.pad}


def _tell_of_cache(cache: TokenCache, run: RunFolder, terminal: Terminal) -> None:
    if cache.refused:
        run.event("token_cache_refused", reason=cache.refused)
        terminal.tell(f"no token cache: {cache.refused}; the rows were tokenised into the run folder")
    if cache.damaged:
        run.event("token_shards_rebuilt", shards=len(cache.damaged), first=cache.damaged[0])
        terminal.tell(f"damaged shards of the token cache made again: {len(cache.damaged)}; the first: {cache.damaged[0]}")


def _cache_words(checked: Checked) -> str:
    return f"; from the token cache: {checked.reused:,} of {len(checked.parts):,} blocks" if checked.reused else ""


def _refuse_token_numbers(largest: int, tokens: TokenSet, model: ModelFacts) -> None:
    size = model.number("vocab_size", default=0)
    if size and largest >= size:
        beyond = np.flatnonzero(tokens.ids >= size)
        row = int(np.searchsorted(tokens.starts, beyond[0], side="right")) - 1
        message = f"{tokens.source(row)}: the tokenizer gives token {int(tokens.ids[beyond[0]]):,}, the model's embedding has {size:,}"
        raise Stop(BLOCKED, f"{message} ({len(beyond):,} such tokens in all)", "use the tokenizer that belongs to this model")


def _data_line(summary: Json, run: RunFolder) -> str:
    kinds = " + ".join(f"{summary[kind]:,} {kind}" for kind in ("kept", "mended", "rejected"))
    line = f"data: {counted(summary['rows'], 'row')} = {kinds}"
    if summary["by_reason"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(summary["by_reason"].items(), key=lambda item: -item[1]))
        line += f" ({reasons})"
    return line + (f"; rejects with reasons: {run.rejects_file}" if summary["rejected"] else "")


def _tell_of_rows(summary: Json, config: Config, terminal: Terminal) -> None:
    """Say what is noted of rows that are trained on as they are, and which of their fields are not used."""
    for line in map(visible, unused_fields(summary["unused_fields"])):
        (terminal.tell if line.startswith("! ") else terminal.say)(line.removeprefix("! "))
    if told := cut_answers(summary["by_reason"], f"{summary['max_tokens']:,} tokens"):
        terminal.tell(told)
    if summary["notes"]:
        notes = ", ".join(f"{reason} {count:,}" for reason, count in summary["notes"].items())
        files = " ".join(shown(Path(file)) for file in config.data.files)
        terminal.say(f"notes on rows that are trained on as they are: {notes}; the rows: holdfast data check {files}")


def _nothing_left(checked: Checked) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in checked.verdicts.by_reason.most_common())
    first = checked.first_reject or {}
    place = f"{first.get('file')}:{first.get('line')}: {first.get('detail')}"
    return f"no row can be trained on: all {checked.verdicts.rejected:,} rejected ({reasons})\n  first: {place}"


def _refuse_if_blocked(findings: list[Finding], terminal: Terminal) -> None:
    for finding in findings:
        if finding.severity == "warn" or finding.id == "device":
            terminal.say(f"{finding.severity}: {finding.message}" + (f"  -> {finding.fix}" if finding.fix else ""))
    blocking = [finding for finding in findings if finding.severity == "block"]
    if blocking:
        raise Stop(BLOCKED, "\n".join(finding.message for finding in blocking), "\n  -> ".join(finding.fix for finding in blocking))


def _check_timeline(run: RunFolder, terminal: Terminal) -> None:
    """Tell which settings of another version's run folder are ignored. Raises Stop where one has a value that is none."""
    try:
        entries = read_timeline(run.timeline_file)
        settings_of_process(entries)
    except ValidationError as error:
        told = "; ".join(told for _, told in problems(error))
        raise Stop(BLOCKED, f"{run.timeline_file}: {told}", "give another folder with --run DIR") from None
    if unknown := sorted({name for entry in entries for name in entry.settings} - Settings.model_fields.keys()):
        terminal.tell(f"{run.timeline_file}: this version has no setting {', '.join(unknown)}; ignored")


def _tell_of_plan(run: RunFolder, terminal: Terminal) -> None:
    """Tell which parts of another version's plan are ignored. Raises Stop where the plan is none."""
    run.plan()
    if unknown := unknown_keys(run.plan_file):
        terminal.tell(f"{run.plan_file}: this version knows nothing of {', '.join(map(inert, unknown))} in a plan; ignored")


def _extend(run: RunFolder, old: Config, new: Config, changed: list[str], terminal: Terminal) -> None:
    """Record another end of the run: more steps or epochs, and so another end of the schedule, from the next step on."""
    if other := _beside_length(changed):
        listed = "\n".join(f"  {change}" for change in other)
        raise Stop(USAGE, f"--extend changes train.steps or train.epochs only, the config also has:\n{listed}", "take those changes back")
    now = newest_settings(read_timeline(run.timeline_file))
    train, behind = new.train, now.behind
    if run.committed() == now.steps:
        behind = now.steps * train.effective_batch - now.samples  # what its last step was too small by is drawn next
    rows = epoch_rows(new.data, run.plan().rows.train)
    steps, samples = run_length(rows, train.effective_batch, train.epochs, train.steps, behind)
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
        rates = _rate_jump(old.train, run.committed(), now.steps, steps)
        run.event("extended", steps=steps, before=now.steps, learning_rate=rates)
        terminal.tell(f"extended from {now.steps:,} to {steps:,} steps; learning rate {rates}")
    run.write_config(old.model_copy(update={"train": new.train.model_copy(update={"lr": old.train.lr})}))
    run.summary_file.unlink(missing_ok=True)


def _beside_length(changed: list[str]) -> list[str]:
    """The changes that are not of the run's length."""
    return [change for change in changed if not change.startswith(("train.epochs:", "train.steps:"))]


def _rate_jump(train: Train, committed: int, before: int, steps: int) -> str:
    """What extending does to the learning rate, whose schedule now ends later."""
    at = committed + 1
    old, new = (learning_rate(min(at, end), end, train.lr, train.schedule, train.warmup) for end in (before, steps))
    return f"{old:.2e} -> {new:.2e} at step {at}, because the {train.schedule} schedule now ends at step {steps}"


def _check_data_file(run: RunFolder, config: Config, terminal: Terminal) -> None:
    """The tokenised rows must still be those the run began with; lost ones are made again from the data files."""
    wanted = run.plan().data_sha256
    if run.data_file.exists() and sha256(run.data_file) == wanted:
        return
    run.event("data_rebuilt", reason="data.safetensors is missing or damaged")
    if config.task == "tabular":
        found = check_table(run, config, terminal)[1]
    else:
        found = check_data(run, config, read_model(config.model), terminal)[1]["data_sha256"]
    if found != wanted:
        raise Stop(BLOCKED, "the data files have changed since the run began, and its own copy of them is gone", "restore the data files")
