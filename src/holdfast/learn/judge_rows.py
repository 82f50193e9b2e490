"""What of the rows that have come is kept: readable, new, no repetition, none of the gate's, not one person's alone. Writes no round."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from holdfast.base.files import Json, read_exact_lines
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.data.collect.outfile import append, row_key
from holdfast.data.judge.rules import NO_LIMIT, Rules, rules_of
from holdfast.data.survey.clean import clean_files
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import clean_block, survey_of
from holdfast.data.token_set.kin import Kin, groups_of
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_with, template_source
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.data.workers.workers import Copies
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import Round
from holdfast.learn.sources import RATED_BAD, ArrivedRecord

_LEAST_OF_A_PERSON = 3
ONE_PERSON = "one_person"  # what is left of theirs is their share: others' rows are trained on
OLD_REASONS = ("seen_before", "withdrawn")  # a source that tells everything again is no attack
DETAILS = {
    "seen_before": "a round has had this row",
    ONE_PERSON: "more rows of one person than keep.per_person allows",
    RATED_BAD: "another entry says that its people found this answer bad",
}


@dataclass(frozen=True)
class JudgedRows:
    """[rows that came] why each is rejected, "" where it is kept; the rows that are kept as they are trained on, by their number; of each
    the first of those it hangs together with: by conversation, prompt or likeness."""

    reasons: list[str]
    kept: dict[int, Json]
    together: dict[int, int]

    @property
    def rejected(self) -> int:
        return len(self.reasons) - len(self.kept)

    @property
    def by_reason(self) -> Json:
        return dict(Counter(filter(None, self.reasons)).most_common())

    @property
    def flood(self) -> Counter[str]:
        """Count by reason those rejected for what they are: not for having been here before, nor for being too many of one person's."""
        return Counter(reason for reason in self.reasons if reason not in ("", ONE_PERSON, *OLD_REASONS))


def round_config(policy: Policy, train: Path, start: Path | None = None) -> tuple[Config, list[str]]:
    """Return the config of a round's training, and the settings that make it one. Raises Stop(2)."""
    settings = [f'data.files=["{train}"]', "data.held_out=0", "data.held_out_files=[]", "data.weights={}"]
    settings += [f'adapter.start="{start}"'] if start else []
    return load_config(Path(policy.config), settings, need_rows=False), settings


def seen_keys(rounds: list[Round]) -> set[int]:
    """Return the hash of every row that a round has kept, promoted or not."""
    return {row_key(row) for each in rounds for file in (each.rows, each.new) for row in read_exact_lines(file)}


def judge_rows(policy: Policy, came: list[ArrivedRecord], seen: set[int], disliked: frozenset[int] = frozenset()) -> JudgedRows:
    """Judge which rows are kept, in their order. The same rows after the same rounds give the same answer. Raises Stop, OSError.

    disliked: answers that earlier rounds heard were found bad. Of two ratings of one answer the later one counts.
    """
    reasons = [one.reason for one in came]
    last = {one.disliked: number for number, one in enumerate(came) if one.disliked is not None}
    known = set(seen)
    for number, one in enumerate(came):
        if one.row is not None and (key := row_key(one.row)) in seen:
            reasons[number] = "seen_before"
        elif one.row is not None and (last.get(key, -1) > number or (one.row.get("rating") is None and (key in disliked or key in last))):
            reasons[number] = RATED_BAD
        elif one.row is not None:
            if "duplicate" in policy.keep.drop and key in known:
                reasons[number] = "duplicate"
            known.add(key)
    kept, together = _checked(policy, came, reasons)
    for number in [number for number, row in kept.items() if row_key(row) in seen]:  # a round keeps rows as the checks have mended them
        reasons[number] = "seen_before"
        del kept[number]
    _limit_persons(policy, came, reasons, kept)
    return JudgedRows(reasons, kept, together)


def related(policy: Policy, rows: list[Json], others: list[Json]) -> set[int]:
    """Return the numbers of the rows that hang together with one of the others: by conversation, prompt or likeness."""
    if not rows or not others:
        return set()
    codec, rules = _reader(policy)
    with tempfile.TemporaryDirectory(prefix="holdfast-learn-", ignore_cleanup_errors=True) as work:
        append(Path(work, "rows.jsonl"), [*others, *rows])
        first = _together(Path(work, "rows.jsonl"), rules, codec)
    theirs = {first.get(number, number) for number in range(len(others))}
    return {number for number in range(len(rows)) if first.get(len(others) + number) in theirs}


def _reader(policy: Policy) -> tuple[Codec, Rules]:
    """Return what reads a round's rows as training does."""
    config, _ = round_config(policy, Path("train.jsonl"))
    return codec_for(config, read_model(config.model).folder), rules_of(config, config.train.max_tokens or NO_LIMIT)


def codec_for(config: Config, folder: Path) -> Codec:
    """Return what reads the rows of a round, loaded once for as long as the model's files stay as they are. Raises Stop."""
    files = tuple((one.name, one.stat().st_mtime_ns, one.stat().st_size) for one in sorted(folder.iterdir()))
    return _loaded(folder, template_source(config.data.chat_template), files)


@lru_cache(maxsize=1)
def _loaded(folder: Path, source: str | None, files: tuple[tuple[str, int, int], ...]) -> Codec:
    return codec_with(folder, source)


def _checked(policy: Policy, came: list[ArrivedRecord], reasons: list[str]) -> tuple[dict[int, Json], dict[int, int]]:
    """Return the rows that training's own checks let through, and which hang together; fill in the reasons of the others."""
    codec, rules = _reader(policy)
    left = [number for number, reason in enumerate(reasons) if not reason]
    if not left:
        return {}, {}
    with tempfile.TemporaryDirectory(prefix="holdfast-learn-", ignore_cleanup_errors=True) as work:
        rows, out, rejects, mended = (Path(work, name) for name in ("rows.jsonl", "clean.jsonl", "rejects.jsonl", "mended.jsonl"))
        append(rows, [came[number].row or {} for number in left])
        with Copies(codec, rules, 1, clean_block) as crew:
            findings = Findings(frozenset(policy.keep.drop), partial(survey_of, rules=rules, codec=codec))
            clean_files([str(rows)], [policy.gate.rows], crew, findings, out, rejects, mended, "")
        for entry in read_exact_lines(rejects):
            reasons[left[entry["line"] - 1]] = entry["reason"]
        good = [number for number in left if not reasons[number]]
        first = _together(out, rules, codec)
        return dict(zip(good, read_exact_lines(out), strict=True)), {number: good[first.get(at, at)] for at, number in enumerate(good)}


def _together(file: Path, rules: Rules, codec: Codec) -> dict[int, int]:
    """Return of the rows of a file, counted from 0, the first that each hangs together with, as those of a run are held out by groups."""
    shards = [(block, tokenise(block, rules, codec)) for block in blocks(str(file))]
    if not shards:
        return {}
    line = np.concatenate([block.first_line - 1 + shard.lines.astype(np.int64) for block, shard in shards])
    kin = Kin(*(np.concatenate([getattr(shard, name) for _, shard in shards]) for name in Kin._fields))
    first = groups_of(kin, np.zeros(len(line), np.int32), line).first
    return dict(zip(line.tolist(), line[first].tolist(), strict=True))


def _limit_persons(policy: Policy, came: list[ArrivedRecord], reasons: list[str], kept: dict[int, Json]) -> None:
    """Take out what one person has given beyond their share, where there are rows of anybody else."""
    if len({came[number].person for number in kept}) < 2:
        return
    most = max(_LEAST_OF_A_PERSON, int(policy.keep.per_person * policy.round.rows))
    given: Counter[str] = Counter()
    for number in [*kept]:
        person = came[number].person
        given[person] += 1
        if person and given[person] > most:
            reasons[number] = ONE_PERSON
            del kept[number]
