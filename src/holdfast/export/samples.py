"""The rows a model is measured on: those a run held out, those of a file, or a small general set that ships with holdfast."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.safe_open import naming
from holdfast.base.units import counted
from holdfast.config.config import Config
from holdfast.data.duplicates.linked import joined as joined_rows
from holdfast.data.duplicates.linked import links_of_equal
from holdfast.data.files.raw_row import Source
from holdfast.data.judge.rules import NO_LIMIT, Rules, rules_of
from holdfast.data.token_set.learned_rows import learned_before, learned_by
from holdfast.data.token_set.overlap import Keys, Overlap, begun_among, keys_of, overlap_in, overlap_of
from holdfast.data.token_set.overlap import joined as joined_keys
from holdfast.data.token_set.token_set import load_tokens, sequences, split
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.prompt import asked_and_answered
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.run.folder import RunFolder
from holdfast.run.plan import read_plan

GENERAL = "general.jsonl"  # beside this file
MARKED_BAD = "marked_bad"  # why a row is not measured: its answer is one that is not to be given


@dataclass(frozen=True)
class Samples:
    """Tokenised rows: row i is ids[starts[i]:starts[i+1]]; learned is 1 where a token is an answer's.

    ids int32, learned uint8 [tokens], starts int64 [rows + 1]; sources: where each row stood; kind: held_out, training, file, general.
    groups: of each row the first of its run that it hangs together with, [rows], by what grouped_by names; None: not looked at.
    overlap: with the rows its run was trained on, and those of the adapter that began with; None: not looked at. unknown: that adapter,
    where its rows are not here. overlap_against: with the rows of the model that is compared with.
    left_out: how many rows of the file, or of those held out, are not measured, by reason; cut: how many are, but for their end.
    trained: keys of the rows as training has them, a pair with its worse answer; None: they are these rows.
    """

    ids: npt.NDArray[np.int32]
    learned: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sources: tuple[Source, ...]
    kind: str
    groups: npt.NDArray[np.int64] | None = None
    grouped_by: tuple[str, ...] = ()
    overlap: Overlap | None = None
    unknown: str = ""
    overlap_against: Overlap | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    trained: Keys | None = None

    @property
    def clusters(self) -> npt.NDArray[np.int64]:
        """Which rows belong together, int64 [rows]: those of one line of a file, of one prompt or text, of one group of their run."""
        rows = np.arange(len(self))
        line = np.unique([str(source) for source in self.sources], return_inverse=True)[1].astype(np.int64)
        whole, prompt = keys_of(self.ids, self.learned, self.starts)
        links = [links_of_equal(line, rows), links_of_equal(whole, rows), links_of_equal(prompt, np.flatnonzero(prompt))]
        return joined_rows(len(self), links + ([links_of_equal(self.groups, rows)] if self.groups is not None else []))

    def of_people(self, people: Sequence[str]) -> Samples:
        """Return these rows of a file, those of one person together. people: whose each row is, "" where that is not known."""
        first: dict[str, int] = {}
        groups = [first.setdefault(person, at) if person else at for at, person in enumerate(people)]
        return replace(self, groups=np.array(groups, np.int64), grouped_by=("person",))

    def overlap_with(self, learned: Keys, run: RunFolder) -> Overlap:
        """Return how many of these rows stand among those that a run has learned, whose own limit may have cut them."""
        plan = read_plan(run.plan_file)
        begun = begun_among(self.ids, self.starts, plan.max_tokens, learned) if plan and plan.max_tokens else None
        return overlap_of(self.trained or keys_of(self.ids, self.learned, self.starts), learned, begun=begun)

    def __len__(self) -> int:
        return len(self.sources)

    def __str__(self) -> str:
        return counted(len(self), f"{self.kind.replace('_', '-')} row")

    def row(self, number: int) -> tuple[list[int], list[int]]:
        """Return (token ids, whether each is learned) of a row."""
        span = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return self.ids[span].tolist(), self.learned[span].tolist()

    def save(self, file: Path) -> None:
        with naming(file):
            np.savez(file, ids=self.ids, learned=self.learned, starts=self.starts)

    def prompt_and_answer(self, number: int, codec: Codec | None = None, ends: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Return the tokens up to a row's first answer, and that answer, of a row that is all learned by its codec and end tokens."""
        return asked_and_answered(*self.row(number), codec, ends)

    def with_(self, other: Samples) -> Samples:
        """Return these rows, followed by the others."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        ids, learned = np.concatenate([self.ids, other.ids]), np.concatenate([self.learned, other.learned])
        return Samples(ids, learned, starts, (*self.sources, *other.sources), self.kind)

    def first(self, most: int) -> Samples:
        """Return the first `most` rows."""
        if len(self) <= most:
            return self
        end = int(self.starts[most])
        return Samples(self.ids[:end], self.learned[:end], self.starts[: most + 1], self.sources[:most], self.kind)


def joined(rows: list[tuple[list[int], list[int], Source]], kind: str) -> Samples:
    """Join rows of (token ids, learned, source) into one set."""
    ids = np.array([number for row, _, _ in rows for number in row], np.int32)
    learned = np.array([flag for _, flags, _ in rows for flag in flags], np.uint8)
    starts = np.cumsum([0, *(len(row) for row, _, _ in rows)], dtype=np.int64)
    return Samples(ids, learned, starts, tuple(source for _, _, source in rows), kind)


def of_run(run: RunFolder, most: int | None = None) -> Samples:
    """Return the rows a run held out, as it tokenised them, else rows it was trained on; of a pair the better answer, and no answer that is
    marked bad. Raises Stop(1) without its data.
    """
    config = run.config()
    try:
        tokens = load_tokens(run.data_file)
    except (OSError, ValueError) as error:
        text = f"{run.data_file}, the rows of this run, cannot be read: {error}"
        raise Stop(BLOCKED, text, "give rows with --rows FILE") from None
    training, held_out = split(tokens, config.data, config.train.seed)
    chosen, kind = (held_out, "held_out") if len(held_out) else (training, "training")
    found: list[tuple[list[int], list[int], Source]] = []
    numbers: list[int] = []
    left_out = Counter[str]()
    for number in chosen.tolist():
        if len(found) == most:
            break
        (ids, learned), good = sequences(*tokens.row(number))[0]
        if good:
            found.append((ids.tolist(), learned.tolist(), tokens.source(number)))
            numbers.append(number)
        else:
            left_out[MARKED_BAD] += 1
    chosen = np.array(numbers, np.int64)
    made = replace(joined(found, kind), left_out=left_out)
    if tokens.grouped_by is not None:
        group = np.arange(len(tokens)) if tokens.group is None else tokens.group
        made = replace(made, groups=group[chosen], grouped_by=tokens.grouped_by)
    if kind != "held_out" or most is not None:
        return made
    before = learned_before(run)
    keys = keys_of(tokens.ids, tokens.learned, tokens.starts)
    trained = Keys(keys.whole[chosen], keys.prompt[chosen])
    return replace(made, overlap=overlap_in(tokens, training, chosen, before.keys, keys), unknown=before.unknown, trained=trained)


def against_run(samples: Samples, run: RunFolder) -> Samples:
    """Return the same rows with what of them the run has learned; unchanged where its rows cannot be read."""
    learned = learned_by(run)
    return replace(samples, overlap=samples.overlap_with(learned.keys, run), unknown=learned.unknown) if learned else samples


def rules_of_rows(config: Config) -> tuple[Rules, ...]:
    """Return by which rules a file of rows is read to measure a run of this config: its own, else those of plain answers.

    They are the run's fields, layout, objective, and which answers are learned. Rows count alike, and of a run that learns all tokens the
    answers do, since it is those that are asked for.
    """
    own = rules_of(config, NO_LIMIT)
    learns = "assistant" if own.learns == "all" else own.learns
    return (replace(own, too_long="cut", weight="", learns=learns), Rules())


def of_file(file: Path, codec: Codec, most_tokens: int, ways: Sequence[Rules] = (Rules(),)) -> Samples:
    """Read the rows of a data file by the same reader and checks as training: by the first of `ways` in which one can be used.

    Raises Stop(2) where none can.
    """
    if not file.is_file():
        what = "is no file" if file.exists() else "no such file"
        raise Stop(USAGE, f"--rows {file}: {what}", "give a file of rows as holdfast train takes them")
    read = []
    for rules in ways:
        read.append(_tokenise(file, codec, replace(rules, max_tokens=most_tokens)))
        if len(read[-1]):
            return read[-1]
    told = ", ".join(f"{count:,} {reason}" for reason, count in read[0].left_out.most_common()) or "none is there"
    asked = {"answers": "", "pairs": " --objective dpo", "marks": " --objective kto"}[ways[0].wanted]
    raise Stop(USAGE, f"{file} has no row that can be used (left out: {told})", f"why: holdfast data check {shlex.quote(str(file))}{asked}")


def of_general(codec: Codec, most_tokens: int, lines: frozenset[int] | None = None) -> Samples:
    """Tokenise the small general set: what a model could do before, and should still. lines: those that count, None for all."""
    with as_file(files("holdfast.export") / GENERAL) as file:
        found = _tokenise(file, codec, Rules(max_tokens=most_tokens))
        chosen = [number for number in range(len(found)) if lines is None or found.sources[number].line in lines]
        return joined([(*found.row(number), found.sources[number]) for number in chosen], "general")


def general_text() -> str:
    """Return the small general set as JSON Lines."""
    return (files("holdfast.export") / GENERAL).read_text(encoding="utf-8")


def _tokenise(file: Path, codec: Codec, rules: Rules) -> Samples:
    """Return the rows of a file that can be used: of a pair the better answer, and no answer that is marked bad."""
    found: list[tuple[list[int], list[int], Source]] = []
    keys: list[Keys] = []
    left_out, cut = Counter[str](), 0
    for block in blocks(str(file)):
        shard = tokenise(block, rules, codec)
        starts = np.concatenate([[0], np.cumsum(shard.lengths, dtype=np.int64)])
        own, used = keys_of(shard.ids, shard.learned, starts), []
        for number, line in enumerate(shard.lines.tolist()):
            span = slice(int(starts[number]), int(starts[number + 1]))
            (ids, learned), good = sequences(shard.ids[span], shard.learned[span])[0]
            if not good:
                left_out[MARKED_BAD] += 1
                continue
            found.append((ids.tolist(), learned.tolist(), Source(str(file), block.first_line + line)))
            used.append(number)
        keys.append(Keys(own.whole[used], own.prompt[used]))
        rejects = Counter(reject["reason"] for reject in shard.rejected(str(file), block.first_line))
        left_out += rejects
        cut += shard.verdicts.by_reason["answer_cut"] - rejects["answer_cut"]
    return replace(joined(found, "file"), left_out=left_out, cut=cut, trained=joined_keys(keys))
