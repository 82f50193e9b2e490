"""Fit the router of experts, and measure it on rows that none of them has seen: right choices, the cost of wrong ones, what it gains."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json, write_bytes
from holdfast.data.files.raw_row import json_line
from holdfast.data.tokens.codec import Codec
from holdfast.export.child import measure
from holdfast.export.samples import Samples, general_text, joined, of_file
from holdfast.export.subject import Subject, subject_codec
from holdfast.serve.router import NONE, Router, fit, threshold_of
from holdfast.supervision.launch import measuring_environment
from holdfast.verify.compare import MOST_TOKENS
from holdfast.verify.stats import share_interval
from holdfast.verify.verdict import Losses, judge, loss_answer

GENERAL = "general answers"
Named = list[tuple[str, Json]]  # (domain or "", row)
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldPrompts:
    """Rows with the domain of each, and whose they are: an expert's number, or NONE; people: who gave each, "" where that is not known."""

    samples: Samples
    names: tuple[str, ...]
    truth: tuple[int, ...]
    people: tuple[str, ...]

    def prompts(self) -> list[list[int]]:
        return [self.samples.prompt_and_answer(number)[0] for number in range(len(self.samples))]

    def part(self, chosen: Sequence[int]) -> HeldPrompts:
        """Return the rows of these numbers."""
        rows = [(*self.samples.row(number), self.samples.sources[number]) for number in chosen]
        kept = joined(rows, self.samples.kind)
        names, people = (tuple(of[one] for one in chosen) for of in (self.names, self.people))
        return HeldPrompts(kept, names, tuple(self.truth[one] for one in chosen), people)


def route(
    shared: Subject,
    experts: dict[str, Subject],
    learned: Named,
    held: Named,
    people: Sequence[str],
    merged: Path | None,
    work: Path,
    say: Callable[[str], None],
) -> tuple[Router, Json]:
    """Fit a router to the prompts of `learned`; set its threshold on one half of `held`, and measure it on the other.

    people: who gave each row of `held`, those of one person counting as one; merged: the adapter that was merged of the experts, if any.
    Of the general rows that ship, half are nobody's while it is fitted, and a quarter each while its threshold is set and it is measured.
    """
    codec, names = subject_codec(shared), [*experts]
    longest = min(MOST_TOKENS, shared.facts.positions or MOST_TOKENS)
    general = general_text().encode().splitlines(keepends=True)
    seen = _read(learned, general[::2], names, codec, longest, work / "fitted.jsonl")
    kept = _read(held, general[1::2], names, codec, longest, work / "held.jsonl", people)
    router = fit(seen.prompts(), seen.truth, len(names))
    first, second = (kept.part(half) for half in _halves(kept))
    scores = np.stack([router.scores(ids) for ids in first.prompts()])
    router = replace(router, threshold=threshold_of(scores, first.truth))
    chosen = [router.choose(ids) for ids in second.prompts()]
    return router, _measured(shared, experts, merged, second, chosen, codec, say)


def _read(
    rows: Named, general: list[bytes], names: list[str], codec: Codec, longest: int, file: Path, people: Sequence[str] = ()
) -> HeldPrompts:
    write_bytes(file, b"".join([json_line(row) for _, row in rows] + general), durable=False)
    samples = of_file(file, codec, longest)
    told = [rows[source.line - 1][0] if source.line <= len(rows) else GENERAL for source in samples.sources]
    truth = tuple(names.index(name) if name in names else NONE for name in told)
    whose = tuple(people[source.line - 1] if source.line <= len(people) else "" for source in samples.sources)
    return HeldPrompts(samples, tuple(told), truth, whose)


def _halves(held: HeldPrompts) -> tuple[list[int], list[int]]:
    """Return the numbers of two halves of each domain's rows, drawn by a hash of their prompts: equal ones are in the same half mostly."""
    first: list[int] = []
    second: list[int] = []
    drawn = [hashlib.sha256(np.asarray(ids, np.int32).tobytes()).hexdigest() for ids in held.prompts()]
    for name in dict.fromkeys(held.names):
        theirs = sorted((number for number, one in enumerate(held.names) if one == name), key=lambda number: drawn[number])
        first += theirs[: len(theirs) // 2]
        second += theirs[len(theirs) // 2 :]
    return sorted(first), sorted(second)


def _measured(
    shared: Subject,
    experts: dict[str, Subject],
    merged: Path | None,
    held: HeldPrompts,
    chosen: list[int],
    codec: Codec,
    say: Callable[[str], None],
) -> Json:
    parts: list[Json] = [
        {"name": str(number), **one.loaded(), "pad": codec.pad, "losses": True} for number, one in enumerate([shared, *experts.values()])
    ]
    if merged:
        parts.append(parts[0] | {"name": "merged", "adapter": str(merged)})
    with tempfile.TemporaryDirectory(prefix="holdfast-experts-", ignore_cleanup_errors=True) as work:
        found = measure(Path(work), held.samples, parts, measuring_environment(shared.run), say)
        losses = [np.asarray(found[part["name"]].losses) for part in parts]
        tokens, table = losses[0][:, 0].copy(), np.stack([one[:, 1] for one in losses], axis=1)
    clusters = (held.samples.of_people(held.people) if any(held.people) else held.samples).clusters
    return routes_answer(held.names, np.array(held.truth), np.array(chosen), [*experts], tokens, table, clusters)


def routes_answer(
    names: Sequence[str],
    truth: Numbers,
    chosen: Numbers,
    experts: list[str],
    tokens: npt.NDArray[np.float64],
    table: npt.NDArray[np.float64],
    clusters: Numbers,
) -> Json:
    """Return `measured` of experts.json: right choices, and what they gain or cost in nats a token. Pure.

    names, truth, chosen: domain, own expert and chosen expert of each prompt, NONE: the adapter for all; tokens: learned ones, [rows];
    table: sums of losses under the adapter for all and each expert, [rows, 1 + experts], and last under the merged one where there is one.
    """
    rows = np.arange(len(truth))
    general = np.array([name == GENERAL for name in names])
    shared, routed, oracle = table[:, 0], table[rows, chosen + 1], table[rows, truth + 1]

    def compare(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], of: npt.NDArray[np.bool_]) -> Json | None:
        """Compare two columns of losses on some rows; a difference below 0 says that the other one is better."""
        if not of.any():
            return None
        loss, difference = loss_answer(Losses(tokens[of], one[of], other[of], clusters[of]))
        return {"rows": int(of.sum()), "loss": loss, **judge(loss, difference, {})}

    own, wrong = ~general & (truth != NONE), ~general & (chosen != truth)
    merged = table[:, -1] if table.shape[1] > len(experts) + 1 else None
    others = (table[:, 1 : len(experts) + 1].sum(1) - oracle) / max(len(experts) - 1, 1)  # of rows that have an expert
    by_domain = {}
    for name in dict.fromkeys(names):
        theirs = np.array([one == name for one in names])
        went = Counter("(all)" if number == NONE else experts[number] for number in chosen[theirs])
        by_domain[name] = _shares(chosen[theirs] == truth[theirs]) | {"went_to": dict(went), "routed": compare(shared, routed, theirs)}
    return {
        "accuracy": _shares(chosen[own] == truth[own]),
        "none": _shares(chosen[truth == NONE] == NONE),
        "routed": compare(shared, routed, ~general),
        "oracle": compare(shared, oracle, ~general),
        "routed_beside_oracle": compare(oracle, routed, ~general),
        "wrong_route": compare(oracle, others, own) if len(experts) > 1 else None,
        "wrongly_routed": compare(oracle, routed, wrong),
        "general": compare(shared, routed, general),
        "merged": None if merged is None else compare(routed, merged, ~general),
        "merged_general": None if merged is None else compare(routed, merged, general),
        "by_domain": by_domain,
    }


def _shares(right: npt.NDArray[np.bool_]) -> Json:
    """Count what is right, with the exact interval of its share."""
    count, good = len(right), int(right.sum())
    interval = share_interval(good, count - good)
    return {"rows": count, "right": good, "share": good / count if count else None, "interval": list(interval) if interval else None}


def is_as_good(measured: Json) -> bool:
    """True if the merged adapter is shown to be as good as experts through the router, or better, and no worse on general answers."""
    one, general = measured["merged"], measured["merged_general"]
    return bool(one) and one["verdict"] in ("same", "better") and not (general and general["verdict"] == "worse")


def told_in_words(measured: Json) -> list[str]:
    """Say what was measured, in lines: a word of judgement only where an interval excludes zero."""
    right, none = measured["accuracy"], measured["none"]
    lines = [
        f"the router chose {_of(right)} prompts' own expert; of prompts that are no expert's it left {_of(none)} to the adapter for all"
    ]
    for name, what in (
        ("routed", "experts through the router, beside one adapter for all"),
        ("oracle", "experts by the rows' own domains, beside one adapter for all"),
        ("wrong_route", "another expert in place of a row's own"),
        ("merged", "one adapter merged of the experts, beside the router"),
    ):
        if one := measured.get(name):
            loss = one["loss"]
            interval = f" [{loss['interval'][0]:+.4f}, {loss['interval'][1]:+.4f}]" if loss["interval"] else " (no interval)"
            lines.append(f"{what}: {one['verdict'].replace('_', ' ')}, {loss['difference']:+.4f}{interval} nats a token")
    return lines


def _of(one: Json) -> str:
    interval = f" [{100 * one['interval'][0]:.0f} to {100 * one['interval'][1]:.0f} %]" if one["interval"] else ""
    return f"{one['right']} of {one['rows']}{interval}"
