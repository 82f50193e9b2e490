"""Measure two models on the same rows and prompts in a child, and put the answer of `verify` together. Prints nothing."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.units import counted, span
from holdfast.data.duplicates.linked import joined as joined_rows
from holdfast.data.duplicates.linked import links_of_equal
from holdfast.data.files.raw_row import Source
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.token_set.learned_rows import learned_by
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.plain_form import written_template
from holdfast.data.tokens.prompt import prompt_ids, question_in
from holdfast.export.child import PartAnswer, measure
from holdfast.export.endings import end_tokens
from holdfast.export.samples import MARKED_BAD, Samples, against_run, of_file, of_general, of_run, rules_of_rows
from holdfast.export.subject import Subject, subject_codec
from holdfast.run.folder import RunFolder
from holdfast.verify.expectations import Prompt, failed
from holdfast.verify.suite import Suite, ask_suite, paired_tests
from holdfast.verify.verdict import Losses, Pairs, ab_answer, judge, loss_answer, no_longer_ends, numbered, pairs_answer

MOST_TOKENS = 4096
_ALONE = 24  # rows that are measured once more, each alone: what another batch changes is noise
_LEAST_FLOOR = 1e-5  # nats a token
_SHOWN = 12  # answers
REFUSAL = re.compile(
    r"\b(?:I(?:'m| am) sorry|I can(?:'t|not)|I(?:'m| am) (?:not able|unable)|as an AI|I won't|cannot (?:help|assist))\b".replace(
        "'", "['\u2019]"
    ),
    re.I,
)


@dataclass(frozen=True)
class Question:
    """What is to be answered. prompt: of the user's file, else None; wanted: the row's own answer, else None; cluster: of prompts alike.

    may_end: whether the row's own answer is short enough for the limit, so that one as it stands there would have ended; may_match: whether
    its text is, so that one could be the same.
    """

    ids: list[int]
    wanted: str | None
    prompt: Prompt | None
    cluster: Hashable
    may_end: bool = True
    may_match: bool = True


@dataclass(frozen=True)
class Request:
    """against: another adapter of the same base, or None for the base itself; generate: how many rows are answered, too."""

    subject: Subject
    against: Subject | None
    rows: Path | None
    prompts: list[Prompt]
    generate: int
    longest: int
    env: Mapping[str, str]
    say: Callable[[str], None]
    suite: Suite | None = None
    groups: Callable[[Source], Sequence[str]] | None = None  # the names of a row's groups; each is judged by itself, too
    general_lines: frozenset[int] | None = None  # of the general set, those that are measured on
    people: Callable[[Source], str] | None = None  # whose a row is, "" where that is not known; those of one person count as one


def verify(request: Request) -> Json:
    """Return the answer of `holdfast verify`. Raises Stop where there is nothing to measure on, or the models cannot be compared."""
    subject = request.subject
    codec = subject_codec(subject)
    longest = min(MOST_TOKENS, *(one.longest_row or MOST_TOKENS for one in (subject, request.against or subject)))
    task = _seen_by_other(request, _task_rows(request, codec, longest))
    if request.people:
        task = task.of_people([request.people(source) for source in task.sources])
    general = of_general(codec, longest, request.general_lines)
    ends = end_tokens(codec, subject.facts)
    asked = _asked(request, task, codec, longest, ends)
    parts = []
    for name, of in (("base", request.against), ("tuned", subject)):
        part: Json = {"name": name, **(of.loaded() if of else {"model": str(subject.facts.folder), "adapter": None})}
        part |= {"pad": codec.pad, "losses": True, "alone": 0 if request.groups else min(_ALONE, len(task))}  # a gate reads no noise
        parts.append(part | {"prompts": [one.ids for one in asked], "ends": ends, "longest": request.longest})
    held = subject.held() if request.against is None or request.against.held() == subject.held() else None
    with tempfile.TemporaryDirectory(prefix="holdfast-suite-", ignore_cleanup_errors=True) as work:
        suite = _suite(request, codec, parts, Path(work), held)
    general_rows = f" and {counted(len(general), 'general one')}, which show what is forgotten" if len(general) else ""
    measured = f"measuring the loss on {task}{general_rows}"
    measured += price_of(subject.run, len(task.ids) + len(general.ids)) if request.groups else ""
    request.say(f"{measured}; both models answer {counted(len(asked), 'prompt')}" if asked else measured)
    with tempfile.TemporaryDirectory(prefix="holdfast-verify-", ignore_cleanup_errors=True) as work:
        found = measure(Path(work), task.with_(general), parts, request.env, request.say, held)
        return _answer(request, codec, task, general, asked, found, suite)


def price_of(run: RunFolder | None, tokens: int) -> str:
    """Say what it takes to read so many tokens under two models, by what one took in training, half of which is to read it."""
    steps = run.steps() if run else []
    told = [(int(one["tokens"]), float(one["seconds"])) for one in steps if one.get("tokens") and one.get("seconds")]
    if not told:
        return ""
    took = tokens * sum(seconds for _, seconds in told) / sum(count for count, _ in told)
    return f": {counted(tokens, 'token')}, about {span(took)} under both by the pace of its training"


def _suite(request: Request, codec: Codec, parts: list[Json], work: Path, held: Json | None) -> Json | None:
    """Return what lm-eval found; asked first of all, because a name it does not know ends the command."""
    if request.suite is None:
        return None
    request.say(f"lm-eval asks both models {', '.join(request.suite.names)}")
    own = codec.template.source is not None and codec.given is None
    return ask_suite(request.suite, parts, work, request.env, held, None if own else written_template(codec))


def _task_rows(request: Request, codec: Codec, longest: int) -> Samples:
    run = request.subject.run
    if request.rows is not None:
        found = of_file(request.rows, codec, longest, rules_of_rows(run.config()) if run else (Rules(),))
        return against_run(found, run) if run else found
    if run is None:
        raise Stop(USAGE, f"{request.subject.tuned} was given without its run", "give rows it was not trained on with --rows FILE")
    found = of_run(run)
    if not len(found):
        text = f"all {found.left_out[MARKED_BAD]:,} rows that {run.path} held out are marked bad"
        raise Stop(USAGE, f"{text}: none of them is to be answered like that", "give rows with good answers with --rows FILE")
    return found


def _seen_by_other(request: Request, task: Samples) -> Samples:
    """Return the same rows with what of them the model has learned that is compared with, where that is known."""
    other = request.against.run if request.against else None
    learned = learned_by(other) if other else None
    if request.against is None or other is None or learned is None:
        return task
    own = request.subject.run or other
    alike = own.config().data.chat_template == other.config().data.chat_template
    unknown = learned.unknown if alike else request.against.name  # by another template the same rows are other tokens
    return replace(task, overlap_against=task.overlap_with(learned.keys, other), unknown=task.unknown or unknown)


def _asked(request: Request, task: Samples, codec: Codec, longest: int, ends: Sequence[int]) -> list[Question]:
    """Return all that is to be answered: rows first, then the user's prompts."""
    found: list[Question] = []
    clusters = task.clusters.tolist()
    for number in range(min(request.generate, len(task))):
        prompt, answer = task.prompt_and_answer(number, codec, ends)
        if len(prompt) < longest:
            text = codec.tokenizer.decode(answer, skip_special_tokens=True).strip()
            whole = codec.tokenizer.decode(answer[: request.longest], skip_special_tokens=True).strip() == text
            found.append(Question(prompt, text, None, clusters[number], len(answer) <= request.longest, whole))
    given: list[list[int]] = []
    for wanted in request.prompts:
        turns = tuple(Message(role, text) for role, text in wanted.messages)
        try:
            given.append(prompt_ids(codec, turns, longest))
        except BadRow as bad:
            if bad.reason != "too_long":
                raise Stop(USAGE, f"line {wanted.line} of the prompts: {bad.detail}", "mend that line") from None
            raise Stop(USAGE, f"line {wanted.line} of the prompts is longer than the model's {longest:,} tokens", "shorten it") from None
    together = clusters_of(request.prompts, given)
    return found + [Question(*one) for one in zip(given, [None] * len(given), request.prompts, together, strict=True)]


def clusters_of(prompts: list[Prompt], ids: list[list[int]]) -> list[Hashable]:
    """Return which prompts belong together: those of the same tokens, and those to which the user gave one name."""
    rows = np.arange(len(prompts))
    named = [at for at, one in enumerate(prompts) if one.cluster is not None]
    keys = [numbered([tuple(one) for one in ids]), numbered([one.cluster for one in prompts])]
    links = [links_of_equal(keys[0], rows), links_of_equal(keys[1], np.array(named, np.int64))]
    return [("prompt", first) for first in joined_rows(len(prompts), links).tolist()]


def _answer(
    request: Request,
    codec: Codec,
    task: Samples,
    general: Samples,
    asked: list[Question],
    found: dict[str, PartAnswer],
    suite: Json | None,
) -> Json:
    base, tuned = found["base"], found["tuned"]
    losses, general_losses = _losses(task, base, tuned, 0), _losses(general, base, tuned, len(task))
    for samples, of in ((task, losses), (general, general_losses)):
        if not np.isfinite(of.tuned).all():
            bad = int(np.flatnonzero(~np.isfinite(of.tuned))[0])
            raise Stop(BLOCKED, f"the loss at {samples.sources[bad]} is not finite", "the adapter is damaged, or its base is another one")
    floor = max(_LEAST_FLOOR, *(_noise(one) for one in (base, tuned)))
    loss, difference = loss_answer(losses)
    texts = {name: _texts(one, codec) for name, one in found.items()}
    passed = _passed(asked, texts, request.longest)
    forgotten_loss, forgotten = loss_answer(general_losses)
    groups = {"groups": _groups(task, losses, request.groups)} if request.groups else {}
    verdict = judge(loss, difference, passed | paired_tests(suite), _trained_on(task, request.against))
    return {
        "loads": True,
        "infers": not asked or any(one["ids"] for one in tuned.facts["answers"]),
        "rows": len(task),
        "left_out": dict(task.left_out),
        "cut": task.cut,
        "kind": task.kind,
        "grouped_by": ["line", "prompt", *(kind for kind in task.grouped_by if kind != "prompt")],
        "overlap": task.overlap.as_json() if task.overlap else None,
        "overlap_against": task.overlap_against.as_json() if task.overlap_against else None,
        "not_looked_at": [task.unknown] if task.unknown else [],
        "against": request.against.name if request.against else "base",
        "loss": loss,
        "ab": ab_answer(losses, floor),
        "exact_match": passed.get("exact_match"),
        "expectations": passed.get("expectations"),
        "suite": suite,
        "forgotten": {"rows": len(general), "loss": forgotten_loss, **judge(forgotten_loss, forgotten, {})},
        "answers": {name: _of_answers(one, texts[name]) for name, one in found.items()} if asked else None,
        "endings": _endings(asked, base, tuned, request.longest),
        "noise_floor": floor,
        "held": tuned.facts.get("held"),
        **verdict,
        **groups,
        "samples": _samples(asked, texts, codec),
        "hashes": request.subject.hashes(),
        **({} if tuned.facts.get("held") else request.subject.held_otherwise()),
    }


def _groups(task: Samples, losses: Losses, groups_of: Callable[[Source], Sequence[str]]) -> Json:
    """Return the loss of each group of rows under both models, and the verdict on it alone."""
    names = [groups_of(source) for source in task.sources]
    found: Json = {}
    for name in dict.fromkeys(one for each in names for one in each):
        at = np.array([name in each for each in names])
        loss, difference = loss_answer(Losses(losses.tokens[at], losses.base[at], losses.tuned[at], losses.clusters[at]))
        found[name] = {"rows": int(at.sum()), "loss": loss, **judge(loss, difference, {})}
    return found


def _trained_on(task: Samples, against: Subject | None = None) -> str:
    """Return in words that the rows, or half of them and more, are those that a model was trained on; empty where they are not."""
    if task.kind == "training":
        return "the rows are those it was trained on: no row was held out"
    for found, whose in ((task.overlap, ""), (task.overlap_against, f" of {against.name}" if against else "")):
        if found is not None and 2 * found.same >= found.rows:
            return f"{found.same:,} of {found.rows:,} rows stand in training{whose} word for word"
    return ""


def _losses(samples: Samples, base: PartAnswer, tuned: PartAnswer, first: int) -> Losses:
    """Return the losses of `samples`, which begin at row `first` of what was measured."""
    assert base.losses is not None and tuned.losses is not None
    span = slice(first, first + len(samples))
    one, other = np.asarray(base.losses)[span], np.asarray(tuned.losses)[span]
    return Losses(one[:, 0], one[:, 1], other[:, 1], samples.clusters)


def _noise(found: PartAnswer) -> float:
    """Return the largest change of a row's loss per token between its batch and itself alone."""
    assert found.losses is not None
    alone = np.asarray(found.facts.get("alone") or []).reshape(-1, 2)
    if not len(alone):
        return 0.0
    batched = np.asarray(found.losses)[: len(alone)]
    return float((np.abs(alone[:, 1] - batched[:, 1]) / np.maximum(alone[:, 0], 1)).max())


def _texts(found: PartAnswer, codec: Codec) -> list[str]:
    return [codec.tokenizer.decode(one["ids"], skip_special_tokens=True).strip() for one in found.facts.get("answers") or []]


def _passed(asked: list[Question], texts: dict[str, list[str]], limit: int) -> dict[str, Json]:
    """Return the paired tests of answers: exact match on rows, the user's expectations on prompts."""
    found: dict[str, Json] = {}
    of_rows = [at for at, one in enumerate(asked) if one.wanted is not None]
    rows = [at for at in of_rows if asked[at].may_match]
    if of_rows:
        match = {name: [given[at] == asked[at].wanted for at in rows] for name, given in texts.items()}
        found["exact_match"] = pairs_answer(Pairs(match["base"], match["tuned"], [asked[at].cluster for at in rows])) | {
            "too_long": len(of_rows) - len(rows),
            "limit": limit,
        }
    prompts = [(at, one.prompt) for at, one in enumerate(asked) if one.prompt is not None]
    if prompts:
        missed = {name: [failed(prompt, given[at]) for at, prompt in prompts] for name, given in texts.items()}
        passes = {name: [not one for one in each] for name, each in missed.items()}
        by_name: dict[str, Json] = {}
        for number, (_, prompt) in enumerate(prompts):
            for name in prompt.expected:
                entry = by_name.setdefault(name, {"asked": 0, "base": 0, "tuned": 0})
                entry["asked"] += 1
                for side in ("base", "tuned"):
                    entry[side] += name not in missed[side][number]
        found["expectations"] = pairs_answer(Pairs(passes["base"], passes["tuned"], [asked[at].cluster for at, _ in prompts])) | {
            "by_name": by_name
        }
    return found


def _endings(asked: list[Question], base: PartAnswer, tuned: PartAnswer, limit: int) -> Json | None:
    """Count the answers that end by themselves, of those that would within the limit; None where there are none."""
    at = [number for number, one in enumerate(asked) if one.may_end]
    if not at:
        return None
    one, other = ([bool(of.facts["answers"][number]["ended"]) for number in at] for of in (base, tuned))
    found = pairs_answer(Pairs(one, other, [asked[number].cluster for number in at]))
    return found | {"limit": limit, "no_longer": no_longer_ends(found)}


def _of_answers(found: PartAnswer, texts: list[str]) -> Json:
    answers = found.facts["answers"]
    return {
        "asked": len(answers),
        "tokens": round(sum(len(one["ids"]) for one in answers) / len(answers), 2),
        "stopped": sum(one["ended"] for one in answers),
        "refused": sum(bool(REFUSAL.search(text)) for text in texts),
        "empty": sum(not text for text in texts),
        "seconds": found.facts["seconds"],
    }


def _samples(asked: list[Question], texts: dict[str, list[str]], codec: Codec) -> list[Json]:
    """Return some answers as they are: those first in which the two part."""
    order = sorted(range(len(asked)), key=lambda at: texts["base"][at] == texts["tuned"][at])
    found: list[Json] = []
    for at in order[:_SHOWN]:
        ids, wanted, prompt = asked[at].ids, asked[at].wanted, asked[at].prompt
        question = prompt.messages[-1][1] if prompt else question_in(codec, ids)
        entry: dict[str, Any] = {"prompt": question, "wanted": wanted if prompt is None else prompt.expected}
        found.append(entry | {"base": texts["base"][at], "tuned": texts["tuned"][at]})
    return found
