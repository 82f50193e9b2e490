"""Nobody is accused of a random fault: the lab's own search and confirmation against simulated trials, thousands of times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import settings_with
from holdfast.base.files import Json, write_json
from holdfast.book import cards_of
from holdfast.config.settings import Settings
from holdfast.experiments.investigate import ACCIDENT, by_accident, in_order, investigate
from holdfast.experiments.replay import TrialChange
from holdfast.experiments.trials import Lab, trials_left
from holdfast.run.folder import RunFolder
from holdfast.run.types import Verdict

SETTINGS = settings_with(micro_batch_tokens=200, threads=2)
CARDS = in_order(cards_of("remedies").values(), "unknown", {}, set(), allow_cpu=False)


@dataclass(frozen=True)
class Try:
    """What a trial meets: the micro-batches of samples and their tokens, settings, environment, its number."""

    batches: list[list[int]]
    tokens: list[int]
    settings: Settings
    env: dict[str, Any]
    count: int
    chance: random.Random


@dataclass(frozen=True)
class Fault:
    """fails: whether a trial fails. rows, remedies: whom it is right to accuse, if anybody."""

    fails: Callable[[Try], bool]
    rows: set[int] = field(default_factory=set)
    remedies: set[str] = field(default_factory=set)


def lab_of(fault: Fault, lengths: list[int], chance: random.Random, **settings: Any) -> Lab:
    """A lab whose trials are computed here, for a step of a run without any files."""
    in_force, count = SETTINGS.model_copy(update=settings), itertools.count(1)

    def replay(change: TrialChange) -> Json:
        samples = list(change.samples) or list(range(len(lengths)))
        changed = in_force.model_copy(update=change.settings)
        batches = packed(samples, lengths, changed.micro_batch_tokens)
        tokens = [sum(lengths[one] for one in batch) for batch in batches]
        failed = fault.fails(Try(batches, tokens, changed, change.env, next(count), chance))
        facts = {
            "samples": samples,
            "lengths": [lengths[one] for one in samples],
            "sources": [f"rows.jsonl:{one + 1}" for one in samples],
        }
        return facts | {"begun": True, "ending": "killed by SIGABRT" if failed else "finished", "finite": not failed}

    return Lab(RunFolder(Path("/nowhere")), 5, in_force, replay, 60)


def packed(samples: Sequence[int], lengths: list[int], budget: int) -> list[list[int]]:
    """First fit, longest first, as the trainer packs."""
    batches: list[list[int]] = []
    for one in sorted(samples, key=lambda sample: -lengths[sample]):
        room = next((batch for batch in batches if sum(lengths[other] for other in batch) + lengths[one] <= budget), None)
        if room is None:
            batches.append([one])
        else:
            room.append(one)
    return batches


def tried(fault: Fault, lengths: list[int], chance: random.Random) -> Verdict:
    """The verdict on a step that died twice before."""
    return investigate(lab_of(fault, lengths, chance), (), 2, CARDS)


def is_false(verdict: Verdict, fault: Fault) -> bool:
    if verdict.kind == "rows":
        return not set(verdict.rows) <= fault.rows
    return verdict.kind == "setting" and verdict.remedy not in fault.remedies


def of_row(one: int) -> Fault:
    """It fails with one row, whatever else there is."""
    return Fault(lambda seen: any(one in batch for batch in seen.batches), {one})


def random_fault(chance: random.Random, lengths: list[int]) -> Fault:
    """One of many: at random, every n-th time, by shape, by row (always or now and then), by setting, by two at once."""
    rows = range(len(lengths))
    one, other = chance.sample(rows, 2)
    odds, every = chance.random(), chance.randint(2, 9)
    low = chance.randint(20, 190)
    smaller = {"smaller-micro-batch", "no-packing"}
    return chance.choice(
        [
            Fault(lambda seen: seen.chance.random() < odds),
            Fault(lambda seen: seen.chance.random() < odds),
            Fault(lambda seen: seen.count % every == 0),
            Fault(lambda seen: any(low <= tokens <= low + 30 for tokens in seen.tokens), remedies=smaller),
            Fault(lambda seen: any(low <= tokens for tokens in seen.tokens), remedies=smaller),
            Fault(lambda seen: any(low <= tokens for tokens in seen.tokens) and seen.chance.random() < odds, remedies=smaller),
            of_row(one),
            Fault(lambda seen: any(one in batch for batch in seen.batches) and seen.chance.random() < odds, {one}),
            Fault(lambda seen: {one, other} <= {row for batch in seen.batches for row in batch}, {one, other}),
            Fault(lambda seen: seen.settings.attention == "sdpa", remedies={"eager-attention"}),
            Fault(lambda seen: seen.settings.attention == "sdpa" and seen.chance.random() < odds, remedies={"eager-attention"}),
            Fault(lambda seen: "HSA_ENABLE_SDMA" not in seen.env, remedies={"sdma-off"}),
        ]
    )


def false_ones(cases: int, seed: int, fault_of: Callable[[random.Random, list[int]], Fault]) -> list[str]:
    """What was said in the cases in which somebody innocent was accused."""
    chance = random.Random(seed)
    wrong: list[str] = []
    for _ in range(cases):
        lengths = [chance.randint(12, 90) for _ in range(chance.choice([4, 8, 16]))]
        fault = fault_of(chance, lengths)
        verdict = tried(fault, lengths, chance)
        if is_false(verdict, fault):
            wrong.append(f"{verdict.kind} {verdict.remedy}: {verdict.evidence}")
    return wrong


def at_random(chance: random.Random, _lengths: list[int]) -> Fault:
    odds = chance.random()
    return Fault(lambda seen: seen.chance.random() < odds)


def in_a_large_micro_batch(chance: random.Random, lengths: list[int]) -> Fault:
    """It fails with one row where its micro-batch has so many tokens: whoever is long enough beside it is innocent."""
    one = chance.randrange(len(lengths))
    low = lengths[one] + chance.randint(5, 60)
    remedies = {"smaller-micro-batch", "no-packing"}
    return Fault(
        lambda seen: any(one in batch and low <= sum_ for batch, sum_ in zip(seen.batches, seen.tokens, strict=True)), {one}, remedies
    )


@pytest.mark.parametrize(
    ("cases", "fault_of"),
    [(2000, random_fault), (1000, at_random), (300, in_a_large_micro_batch)],
    ids=["all kinds", "purely random", "one row in a large micro-batch"],
)
def test_random_faults_accuse_nobody(cases: int, fault_of: Callable[[random.Random, list[int]], Fault]) -> None:
    """At most one false accusation of rows or settings in a hundred investigations."""
    wrong = false_ones(cases, 6, fault_of)
    assert len(wrong) <= cases / 100, wrong[:10]


def test_the_guilty_are_found() -> None:
    """Such caution costs no certainty: what fails each time is found each time."""
    chance = random.Random(7)
    for _ in range(60):
        lengths = [chance.randint(12, 90) for _ in range(chance.choice([4, 8, 16, 32]))]
        one = chance.randrange(len(lengths))
        row = tried(of_row(one), lengths, chance)
        assert (row.kind, row.rows) == ("rows", (one,)) and row.trials <= 20, row
        setting = tried(Fault(lambda seen: seen.settings.attention == "sdpa"), lengths, chance)
        assert (setting.kind, setting.remedy) == ("setting", "eager-attention")


@pytest.mark.parametrize("count", [8, 16, 32])
def test_the_shortest_and_the_longest_row_may_both_be_bad(count: int) -> None:
    lengths = list(range(20, 20 + count))
    bad = {0, count - 1}
    verdict = tried(Fault(lambda seen: any(bad & set(batch) for batch in seen.batches), bad), lengths, random.Random(1))
    assert (verdict.kind, set(verdict.rows)) == ("rows", bad), verdict


def test_more_rows_than_four_are_found_where_the_trials_last() -> None:
    lengths = [20 + 7 * one % 31 for one in range(16)]
    bad = {1, 4, 5, 9, 14}
    verdict = tried(Fault(lambda seen: any(bad & set(batch) for batch in seen.batches), bad), lengths, random.Random(1))
    assert (verdict.kind, set(verdict.rows)) == ("rows", bad), verdict


def test_what_fails_with_every_row_is_no_rows_fault() -> None:
    broken = Fault(lambda seen: "HSA_ENABLE_SDMA" not in seen.env, remedies={"sdma-off"})
    verdict = tried(broken, [20 + one for one in range(16)], random.Random(1))
    assert verdict.kind != "rows", verdict


@pytest.mark.parametrize("committed", [(0, 1, 3), ()])
def test_a_row_that_is_all_its_step_has_is_held_against_rows_of_other_steps(tmp_path: Path, committed: tuple[int, ...]) -> None:
    run = RunFolder(tmp_path)
    run.steps_file.write_text("".join(f'{{"step": {at}, "loss": 2.0, "samples": [{one}]}}\n' for at, one in enumerate(committed, 1)))

    def said(fault: Fault) -> Verdict:
        lab = lab_of(fault, [40, 50, 60, 70], random.Random(1))
        lab.run = run
        return investigate(lab, (2,), 2, CARDS)

    kernel = Fault(lambda seen: seen.settings.attention == "sdpa", remedies={"eager-attention"})
    assert said(kernel).remedy == "eager-attention"
    assert said(Fault(lambda _: True)).kind == "uncertain"
    row = said(of_row(2))
    assert (row.kind, row.rows) == (("rows", (2,)) if committed else ("uncertain", ())), row
    pair = Fault(lambda seen: {0, 2} <= {one for batch in seen.batches for one in batch}, {0, 2})
    lab = lab_of(pair, [40, 50, 60, 70, 61, 39], random.Random(1))
    run.steps_file.write_text("".join(f'{{"step": {at}, "loss": 2.0, "samples": [{one}]}}\n' for at, one in enumerate((4, 5, 3), 1)))
    lab.run = run
    both = investigate(lab, (0, 2), 2, CARDS)
    assert (both.kind, set(both.rows)) == ("rows", {0, 2}), both


def test_an_accident_is_counted_as_fisher_did() -> None:
    assert by_accident(5, 5, 5) == pytest.approx(1 / 252)
    assert by_accident(5, 5, 5) <= ACCIDENT < by_accident(4, 4, 5)
    assert by_accident(0, 5, 5) == 1


@pytest.mark.parametrize(("deterministic", "odds"), [(True, (1, 1)), (False, (1, 3))])
def test_one_failure_is_a_rule_only_where_the_same_trial_gives_the_same_bits(deterministic: bool, odds: tuple[int, int]) -> None:
    lab = lab_of(Fault(lambda seen: seen.count == 1), [20] * 8, random.Random(1), deterministic=deterministic)
    verdict = investigate(lab, (), 2, [])
    assert (verdict.kind, verdict.odds) == ("uncertain", odds)


def test_all_investigations_of_a_step_share_its_trials(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.config_file.write_text("model: tiny\ndata: {files: rows.jsonl}\nrun: {trials: 60}\n")

    def ended(number: int, step: int, trials: int, go_on: bool = True) -> None:
        run.attempt(number).mkdir(parents=True)
        failure_report = {"step": step, "decision": {"go_on": go_on}, "verdict": {"trials": trials} if trials else None}
        write_json(run.attempt(number) / "wreck.json", failure_report)

    ended(1, 5, 0)
    ended(2, 5, 40)
    ended(3, 6, 7)
    assert (trials_left(run, 5), trials_left(run, 6), trials_left(run, 7)) == (20, 53, 60)
    ended(4, 5, 30)
    assert trials_left(run, 5) == 0
    ended(5, 5, 0, go_on=False)
    assert trials_left(run, 5) == 60, "the user has started it again"


def test_changes_that_ask_for_other_kernels_are_not_the_same() -> None:
    assert TrialChange((1,)).key() == TrialChange((1,)).key() != TrialChange((1,), deterministic=True).key()


@pytest.mark.parametrize(("dtype", "only_there", "told"), [("bf16", True, True), ("bf16", False, False), ("fp32", False, False)])
def test_a_row_that_only_the_number_format_cannot_hold_is_told_from_one_that_is_wrong(dtype: str, only_there: bool, told: bool) -> None:
    bad = Fault(lambda seen: any(3 in batch for batch in seen.batches) and (seen.settings.dtype != "fp32" or not only_there), {3})

    def verdict(most: int) -> Verdict:
        lab = lab_of(bad, [20 + one for one in range(8)], random.Random(1), dtype=dtype, deterministic=True)
        plays, lab.most_trials = lab.replay, most
        lab.replay = lambda change: plays(change) | {"ending": "finished", "loss": 5.0, "grad_norm": None}
        return investigate(lab, (), 2, CARDS)

    found = verdict(60)
    assert (found.kind, found.rows) == ("rows", (3,)), found
    assert ("in fp32 the same goes through: bf16 is what fails there" in found.evidence) is told
    without = verdict(found.trials - told)
    assert (without.kind, without.rows) == ("rows", (3,)), "the last trial is no condition of the verdict"


def test_rows_that_fail_in_several_ways_are_each_said_to_fail_in_their_own() -> None:
    """A row whose loss is no number was put in quarantine as one that was killed, where another row of its step was."""
    lab = lab_of(Fault(lambda seen: any({3, 5} & {*batch} for batch in seen.batches)), [20 + one for one in range(8)], random.Random(1))
    plays = lab.replay

    def replay(change: TrialChange) -> Json:
        found = plays(change)
        finished = {"ending": "finished", "loss": None, "grad_norm": 1.0}
        return found | finished if 3 not in found["samples"] or found["finite"] else found

    lab.replay = replay
    found = investigate(lab, (), 2, [])
    assert (found.kind, set(found.rows)) == ("rows", {3, 5}), found
    assert "rows.jsonl:4: killed by SIGABRT" in found.evidence and "rows.jsonl:6: not finite: loss" in found.evidence, found.evidence
    assert "goes through without them" in found.evidence
