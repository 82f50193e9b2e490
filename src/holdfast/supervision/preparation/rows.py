"""The rows of a run on texts: checked and tokenised into its folder, with all that is refused or warned of before the first step."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from holdfast.base.cache import cache_folder
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, replacing, write_json
from holdfast.base.wait import doing
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.data.judge.rules import rules_of
from holdfast.data.templates.dropped import told_of_dropped
from holdfast.data.token_set.learned_rows import LearnedRows, learned_at
from holdfast.data.token_set.overlap import NONE, held_out_facts, told_of_held_out
from holdfast.data.token_set.token_set import TokenSet, epoch_rows, join_parts, load_tokens, split
from holdfast.data.tokens.cache import TokenCache, cache_key
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.taught import told_of
from holdfast.data.workers.build import BuildResult, check_rows, report
from holdfast.data.workers.workers import Workers
from holdfast.machine.system import usable_threads
from holdfast.planning.workload import longest_row
from holdfast.report.audience import Audience
from holdfast.report.data.rows_told import rows_line
from holdfast.report.words import beyond, row_weights, shown, unused_fields, visible
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.shuffle import Rows
from holdfast.supervision.preparation.needs import refuse_no_held_out
from holdfast.supervision.preparation.throwaway import check_command, where_rejects_are

_TOKENS = "tokens"  # of the user's cache


def divide(run: RunFolder, config: Config, tokens: TokenSet) -> tuple[Rows, Rows, int]:
    """Return the rows that are trained and those held out, and the rows of an epoch. Raises Stop(1) where they are too few."""
    training, held_out = split(tokens, config.data, config.train.seed)
    if not len(training):
        raise Stop(
            BLOCKED, "no rows left to train on: only held-out rows passed the check", f"each reject: {where_rejects_are(run, config)}"
        )
    refuse_no_held_out(config, len(held_out))
    return training, held_out, _rows_per_epoch(config, len(training))


def _rows_per_epoch(config: Config, training: int) -> int:
    rows = epoch_rows(config.data, training)
    if rows > training:
        message = f"data.rows_per_epoch is {rows:,}, but there are {training:,} rows to train on"
        raise Stop(BLOCKED, message, "lower it, or leave it out: then every epoch is all rows")
    return rows


def token_cache_of(config: Config, model: ModelFacts) -> Path | None:
    """Return the user's cache folder for rows tokenised with this config; None without a cache."""
    codec, folder = codec_of(config, model.folder), cache_folder(os.environ)
    limit = longest_row(config, model)
    return folder / _TOKENS / cache_key(codec, rules_of(config, limit)) if folder else None


def check_data(run: RunFolder, config: Config, model: ModelFacts, audience: Audience, wanted: str = "") -> tuple[TokenSet, Json]:
    """Check and tokenise the rows into the run folder; facts for the plan. Raises Stop when none can be trained on.

    wanted: the hash of a run that is to go on, which may be older than the groups of rows.
    """
    if config.data.too_long == "split" and config.train.objective_kind.rows != "answers" and not wanted:
        text = f"data.too_long split is for train.objective sft: {config.train.objective} looks at whole answers"
        raise Stop(USAGE, text, "take data.too_long cut or reject")
    codec = codec_of(config, model.folder)
    limit = (run.plan().max_tokens if wanted else None) or longest_row(config, model)
    if limit < config.train.max_tokens:
        run.event("rows_limited", max_tokens=config.train.max_tokens, positions=limit)
        audience.say(f"rows may have {limit} tokens, all positions the model has, not train.max_tokens = {config.train.max_tokens}")
    rules = rules_of(config, limit)
    folder = cache_folder(os.environ)
    cache = TokenCache(folder / _TOKENS if folder else None, run.token_shards, cache_key(codec, rules))
    with replacing(run.rejects_file) as rejects, Workers(codec, rules, usable_threads()) as workers:
        checked = check_rows(config, cache, workers, rejects)
    _tell_of_cache(cache, run, audience)
    if not sum(part.rows for part in checked.parts):
        raise Stop(BLOCKED, _nothing_left(checked), f"each row and its reason: {where_rejects_are(run, config)}")
    if config.data.row_weight and not checked.verdicts.weights.rows:
        message = f"data.row_weight: no row has a weight in a field {config.data.row_weight!r}, so all of them would count alike"
        raise Stop(BLOCKED, message, "correct the name of the field, or leave data.row_weight out")
    with doing(f"looking for rows that hang together, among {sum(part.rows for part in checked.parts):,}"):
        digest = join_parts(run.data_file, checked.parts, config.data, codec.pad)
        if wanted and digest != wanted:
            digest = join_parts(run.data_file, checked.parts, config.data, codec.pad, grouped=False)
    cache.clear_spare()
    tokens = load_tokens(run.data_file)
    summary = report(checked, tokens) | {"max_tokens": limit, "pad": {"id": codec.pad, "reason": codec.pad_reason}}
    before = learned_at(Path(config.adapter.start), config.data.chat_template) if config.adapter.start else LearnedRows(NONE, "")
    summary["held_out"] = held_out_facts(tokens, config.data, config.train.seed, *before)
    write_json(run.data_report_file, summary)
    audience.say(_data_line(summary, run, config) + _cache_words(checked))
    _tell_of_rows(summary, config, audience)
    _refuse_token_numbers(checked.verdicts.largest, tokens, model)
    return tokens, {"data_sha256": digest, "max_tokens": limit, "pad_token_id": codec.pad}


def _tell_of_cache(cache: TokenCache, run: RunFolder, audience: Audience) -> None:
    if cache.refused:
        run.event("token_cache_refused", reason=cache.refused)
        audience.tell(f"no token cache: {cache.refused}; the rows were tokenised into the run folder")
    if cache.damaged:
        run.event("token_shards_rebuilt", shards=len(cache.damaged), first=cache.damaged[0])
        audience.tell(f"damaged shards of the token cache made again: {len(cache.damaged)}; the first: {cache.damaged[0]}")


def _cache_words(checked: BuildResult) -> str:
    return f"; from the token cache: {checked.reused:,} of {len(checked.parts):,} blocks" if checked.reused else ""


def _refuse_token_numbers(largest: int, tokens: TokenSet, model: ModelFacts) -> None:
    size = model.number("vocab_size", default=0)
    if size and largest >= size:
        beyond = np.flatnonzero(tokens.ids >= size)
        row = int(np.searchsorted(tokens.starts, beyond[0], side="right")) - 1
        message = f"{tokens.source(row)}: the tokenizer gives token {int(tokens.ids[beyond[0]]):,}, the model's embedding has {size:,}"
        hint = "use the tokenizer that belongs to this model; where tokens were added to it, save the model after resize_token_embeddings"
        raise Stop(BLOCKED, f"{message} ({len(beyond):,} such tokens in all)", hint)


def _data_line(summary: Json, run: RunFolder, config: Config) -> str:
    line = f"data: {rows_line(summary)}"
    return line + (f"; rejects with reasons: {where_rejects_are(run, config)}" if summary["rejected"] else "")


def _tell_of_rows(summary: Json, config: Config, audience: Audience) -> None:
    """Say what is noted of rows that are trained on as they are, and which of their fields are not used."""
    for line in map(visible, unused_fields(summary["unused_fields"])):
        (audience.tell if line.startswith("! ") else audience.say)(line.removeprefix("! "))
    for told in beyond(summary["by_reason"], f"{summary['max_tokens']:,} tokens"):
        audience.tell(told)
    if told := row_weights(summary["weights"], summary["kept"] + summary["mended"]):
        audience.say(told)
    for line in (
        *told_of(summary["learned"], config.data.train_on),
        *told_of_dropped(summary["notes"]),
        *told_of_held_out(summary["held_out"], bool(config.data.held_out_files)),
    ):
        (audience.tell if line.startswith("! ") else audience.say)(line.removeprefix("! "))
    if summary["rejected"]:
        audience.say(f"the first row rejected for each reason: {_places(summary['first_rejected'])}")
    if summary["notes"]:
        notes = ", ".join(f"{reason} {count:,}" for reason, count in summary["notes"].items())
        audience.say(f"notes on rows that are trained on as they are: {notes}; the rows: {check_command(config)}")
        audience.say(f"the first row of each note: {_places(summary['first_noted'])}")


def _places(firsts: dict[str, Json]) -> str:
    return ", ".join(f"{reason} {shown(Path(at['file']))}:{at['line']}" for reason, at in firsts.items())


def _nothing_left(checked: BuildResult) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in checked.verdicts.by_reason.most_common())
    first = next(iter(checked.first_rejected.values()), {})
    place = f"{first.get('file')}:{first.get('line')}: {first.get('detail')}"
    return f"no row can be trained on: all {checked.verdicts.rejected:,} rejected ({reasons})\n  first: {place}"
