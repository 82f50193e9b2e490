"""`verify` measures base and tuned on the same rows, and answers bad input with a sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PromptTuningConfig, get_peft_model

from conftest import make_rows, write_rows
from holdfast.base.errors import Stop
from holdfast.base.files import sha256
from holdfast.base_model.folder import EMBEDDED, read_model
from holdfast.cli.commands.verify import told_beside
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set import learned_rows
from holdfast.data.token_set.learned_rows import learned_by
from holdfast.data.token_set.overlap import told_of_held_out
from holdfast.data.tokens.codec import load_codec
from holdfast.data.tokens.given_template import NAMED
from holdfast.export import samples
from holdfast.export import subject as subjects
from holdfast.export.samples import against_run, of_file, of_run, rules_of_rows
from holdfast.export.subject import read_subject
from holdfast.export.words import of_base
from holdfast.report.shipped import verdict
from holdfast.report.shipped.verdict import headline, is_good, next_command, page
from holdfast.run.artifact import ARTIFACT
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry
from holdfast.supervision.preparation.rows import check_data
from holdfast.terminal.run_view import Terminal
from holdfast.trainer.model.greedy import batches, greedy
from holdfast.trainer.model.place import ModelPlace, at_first_that_fits, in_one_form, places
from holdfast.verify import compare
from holdfast.verify.compare import Request, verify
from holdfast.verify.expectations import read_prompts
from support.rounding import but_for_rounding
from support.shipped import make_adapter, measure_here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("verify")
    base = EMBEDDED["tiny"]
    rows = write_rows(folder / "rows.jsonl", make_rows(30))
    return SimpleNamespace(
        base=base, rows=rows, good=make_adapter(base, folder / "small", size=0.001), bad=make_adapter(base, folder / "large", size=0.5)
    )


def request_of(made: SimpleNamespace, adapter: Path, **changes: Any) -> Request:
    given: dict[str, Any] = {"against": None, "rows": made.rows, "prompts": [], "generate": 3, "longest": 6, "env": {}}
    return Request(read_subject(adapter), **given | {"say": lambda _: None} | changes)


@pytest.mark.parametrize(
    ("verdict", "general", "told"),
    [
        ("better", "same", "holdfast export runs/one --to merged --out one-merged"),
        ("better", "worse", "holdfast chat runs/one"),
        ("worse", "same", "holdfast chat runs/one"),
        ("cannot_tell", "same", "holdfast verify runs/one --rows MORE.jsonl"),
    ],
)
def test_a_verdict_says_what_to_type_next(verdict: str, general: str, told: str) -> None:
    assert next_command({"verdict": verdict, "forgotten": {"verdict": general}}, Path("runs/one")) == told


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measure", measure_here)


def test_a_damaged_model_is_worse_than_its_base_and_the_other_way_round_better(made: SimpleNamespace) -> None:
    same = verify(request_of(made, made.good, generate=0))
    assert same["verdict"] == "same" == same["forgotten"]["verdict"]
    worse = verify(request_of(made, made.bad))
    assert worse["verdict"] == "worse" == worse["forgotten"]["verdict"] and worse["ab"]["losses"] == 30
    assert worse["loss"]["base"] == but_for_rounding(same["loss"]["base"], 10_000) and worse["loss"]["interval"][0] > 0
    turned = verify(request_of(made, made.good, against=read_subject(made.bad), generate=0))
    assert turned["verdict"] == "better" and turned["loss"]["base"] == but_for_rounding(worse["loss"]["tuned"], 10_000)
    assert [is_good(one) for one in (same, worse, turned)] == [True, False, True]


def test_rows_of_one_person_count_as_one(made: SimpleNamespace) -> None:
    """Thirty rows that are all worse say nothing of other people where they are four persons'; nobody's rows stand alone."""
    for people, clusters, word in ((4, 4, "cannot_tell"), (6, 6, "worse"), (0, 30, "worse")):
        whose = {line: f"p{line % people}" if people else "" for line in range(1, 31)}
        found = verify(request_of(made, made.bad, generate=0, people=lambda source, of=whose: of[source.line]))
        assert (found["loss"]["clusters"], found["verdict"]) == (clusters, word)
        assert found["grouped_by"] == ["line", "prompt", "person"]


@pytest.mark.parametrize(
    ("learned", "general", "good", "told"),
    [
        ("better", "worse", False, "is better than the base on rows the run held out; it lost on general rows: 1.6300 -> 3.9800 (+2.3500"),
        ("same", "worse", False, "is as good as the base on rows the run held out; it lost on general rows"),
        ("better", "cannot_tell", True, "whether it lost on general rows cannot be told: 1.6300 -> 3.9800"),
        ("better", "same", True, "nothing was lost on general rows"),
        ("worse", "better", False, "is worse than the base on rows the run held out; general rows are better, too"),
        ("cannot_tell", "same", False, "cannot be told on rows the run held out (about 40 rows would tell); nothing was lost"),
    ],
)
def test_the_headline_says_what_was_learned_and_what_was_lost(learned: str, general: str, good: bool, told: str) -> None:
    loss = {"base": 1.63, "tuned": 3.98, "difference": 2.35, "interval": [2.1, 2.6], "clusters": 60}
    ab = {"wins": 30, "losses": 0, "ties": 0, "p_value": 1e-6}
    answer: dict[str, Any] = {"verdict": learned, "against": "base", "kind": "held_out", "rows": 30, "why": "", "loss": loss, "ab": ab}
    answer |= {"rows_needed": 40 if learned == "cannot_tell" else None, "exact_match": None, "expectations": None, "suite": None}
    answer |= {"forgotten": {"verdict": general, "rows": 60, "loss": loss}, "answers": None, "samples": [], "hashes": {}}
    answer |= {"grouped_by": ["line", "prompt"], "overlap": None, "overlap_against": None, "not_looked_at": []}
    assert told in headline(answer, "it") and is_good(answer) is good
    assert ('class="verdict bad"' in page(answer, "it")) is not good and told.partition(":")[0] in page(answer, "it")


def test_answers_that_no_longer_end_stand_in_the_headline() -> None:
    loss = {"base": 1.6, "tuned": 1.2, "difference": -0.4, "interval": [-0.5, -0.3], "clusters": 60}
    answer: dict[str, Any] = {"verdict": "better", "against": "base", "kind": "held_out", "rows": 60, "loss": loss, "rows_needed": None}
    answer |= {"forgotten": {"verdict": "same", "loss": loss}, "endings": {"only_base": 9, "asked": 10, "limit": 128, "no_longer": True}}
    told = "; 9 of 10 answers run on to the limit of 128 tokens, which the base ended; nothing was lost on general rows"
    assert told in headline(answer, "it") and not is_good(answer)
    answer["endings"]["no_longer"] = False
    assert "limit" not in headline(answer, "it") and is_good(answer)


def test_only_answers_that_would_end_are_counted_as_endless() -> None:
    asked = [compare.Question([1], "a", None, number, may_end=number < 3) for number in range(4)]
    ended, endless = (SimpleNamespace(facts={"answers": [{"ended": one}] * 4}) for one in (True, False))
    found = compare._endings(asked, ended, endless, 6)  # type: ignore[arg-type]
    assert found and (found["asked"], found["base"], found["tuned"], found["limit"], found["no_longer"]) == (3, 3, 0, 6, True)
    assert compare._endings(asked[3:], ended, endless, 6) is None  # type: ignore[arg-type]


def test_an_answer_longer_than_the_limit_is_no_miss() -> None:
    asked = [compare.Question([1], "a", None, number, may_match=number < 3) for number in range(4)]
    found = compare._passed(asked, {"base": ["b"] * 4, "tuned": ["a"] * 4}, 6)["exact_match"]
    assert (found["asked"], found["base"], found["tuned"], found["too_long"], found["limit"]) == (3, 0, 3, 1, 6)
    none = compare._passed(asked[3:], {"base": ["b"], "tuned": ["b"]}, 6)["exact_match"]
    assert (none["asked"], none["too_long"], none["p_value"]) == (0, 1, 1.0)


def test_what_would_tell_is_counted_in_groups_where_rows_stand_in_groups() -> None:
    loss = {"base": 4.1, "tuned": 0.9, "difference": -3.2, "interval": [-3.6, 0.2], "clusters": 5}
    answer = {"verdict": "cannot_tell", "against": "base", "kind": "held_out", "rows": 32, "loss": loss, "rows_needed": 6}
    assert "(about 6 groups of them would tell)" in headline(answer | {"forgotten": {"verdict": "same", "loss": loss}}, "it")


def test_rows_of_one_prompt_are_one_cluster_and_none_is_called_independent(made: SimpleNamespace, tmp_path: Path) -> None:
    rows = make_rows(30)
    again = [row | {"output": f"{row['output']} {n}"} for row in rows[:6] for n in range(3)]
    request = request_of(made, made.good, rows=write_rows(tmp_path / "rows.jsonl", again), generate=0)
    answer = verify(request)
    assert (answer["rows"], answer["loss"]["clusters"], answer["grouped_by"], answer["overlap"]) == (18, 6, ["line", "prompt"], None)
    told = dict(verdict.lines(answer))
    assert told["rows"] == "18 rows of the file, in 6 groups by line and prompt"
    assert told["in training"] == "not looked at: the rows of its run are not here, or cannot be read"
    lost, kept = (dict(verdict.lines(answer | {"forgotten": answer["forgotten"] | {"verdict": word}})) for word in ("worse", "same"))
    assert "train.epochs" in lost["to forget less"] and "to forget less" not in kept


def test_what_the_run_was_trained_on_is_counted_in_rows_of_a_file(assets: SimpleNamespace, tmp_path: Path) -> None:
    """And the rows that it held out are in the groups that it drew."""
    rows = [{"prompt": f"question {n}", "completion": f"answer {n} is {n * n}"} for n in range(20)]
    again = [row | {"completion": "no"} for row in rows]
    file = write_rows(tmp_path / "rows.jsonl", rows + again)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = Config(model=str(assets.model), data={"files": [str(file)], "held_out": 0.2})
    run.write_config(config)
    check_data(run, config, read_model(config.model), Terminal(to_stderr=False, quiet=True))
    held = of_run(run)
    assert held.overlap == (8, 0, 0) and len(np.unique(held.clusters)) == 4 and held.grouped_by
    lines = {source.line - 1 for source in held.sources}
    trained = next(n for n in range(20) if n not in lines)
    asked = [rows[trained], rows[trained] | {"completion": "perhaps"}, {"prompt": "never asked", "completion": "x y"}]
    found = of_file(write_rows(tmp_path / "asked.jsonl", asked), load_codec(assets.model), 100)
    assert found.overlap is None and against_run(found, run).overlap == (3, 1, 2)
    assert compare._trained_on(against_run(found, run)) == compare._trained_on(found) == "", "one of three"
    of_training = of_file(write_rows(tmp_path / "seen.jsonl", [rows[trained], again[trained]]), load_codec(assets.model), 100)
    assert compare._trained_on(against_run(of_training, run)) == "2 of 2 rows stand in training word for word"


@pytest.mark.parametrize("too_long", ["cut", "split"])
def test_texts_that_training_has_cut_are_known_by_their_beginning(
    assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, too_long: str
) -> None:
    """Measured whole they are other rows than those of training, and what they show is memory all the same."""
    words = ("amber", "birch", "cedar", "delta", "ember", "fjord")
    texts = [{"text": " ".join(f"Join {word} and {n}." for n in range(9))} for word in words]
    file = write_rows(tmp_path / "rows.jsonl", texts[:4])
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = Config(model=str(assets.model), data={"files": [str(file)], "held_out": 0.0, "too_long": too_long}, train={"max_tokens": 24})
    run.write_config(config)
    check_data(run, config, read_model(config.model), Terminal(to_stderr=False, quiet=True))
    monkeypatch.setattr(samples, "read_plan", lambda _: SimpleNamespace(max_tokens=24))
    asked = write_rows(tmp_path / "asked.jsonl", [*texts, *texts])
    found = against_run(of_file(asked, load_codec(assets.model), 256, rules_of_rows(config)), run)
    assert min(np.diff(found.starts)) > 24 and found.overlap == (12, 8, 8)
    assert compare._trained_on(found) == "8 of 12 rows stand in training word for word"
    assert len(np.unique(found.clusters)) == 6, "a text that stands there twice is no second one"


TURNS = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]


@pytest.mark.parametrize(
    ("sections", "rows", "learned", "left_out"),
    [
        ({"data": {"train_on": "last"}}, [{"messages": TURNS}], ["d"], {}),
        ({}, [{"messages": TURNS}], ["b\nd"], {}),
        (
            {"data": {"fields": {"instruction": "q", "output": "a"}}},
            [{"q": "say hi", "a": "hi", "instruction": "other", "output": "nonsense"}],
            ["hi"],
            {},
        ),
        ({"data": {"fields": {"instruction": "q", "output": "a"}}}, [{"instruction": "say hi", "output": "hi"}], ["hi"], {}),
        ({"train": {"objective": "dpo"}}, [{"prompt": "say hi", "chosen": "hi", "rejected": "go"}], ["hi"], {}),
        ({"train": {"objective": "dpo"}}, [{"prompt": "say hi", "completion": "hi"}], ["hi"], {}),
        (
            {"train": {"objective": "kto"}},
            [{"prompt": "say hi", "completion": word, "label": word == "hi"} for word in ("hi", "go", "no")],
            ["hi"],
            {"marked_bad": 2},
        ),
        ({}, [{"prompt": "say hi", "completion": "hi"}, {"prompt": "say hi"}], ["hi"], {"missing_field": 1}),
    ],
    ids=["last answer", "all answers", "its fields", "usual fields", "pairs", "answers for pairs", "marks", "a row without an answer"],
)
def test_rows_of_a_file_are_read_as_its_run_reads_rows(
    sections: dict[str, Any], rows: list[dict[str, Any]], learned: list[str], left_out: dict[str, int], tmp_path: Path
) -> None:
    """They were read as plain rows: of other columns, of other answers, or refused. What is not measured is counted."""
    file = write_rows(tmp_path / "rows.jsonl", rows)
    config = Config(model="tiny", **sections | {"data": {"files": ["x"]} | sections.get("data", {})})
    codec = load_codec(EMBEDDED["tiny"])
    found = of_file(file, codec, 100, rules_of_rows(config))
    texts = [codec.tokenizer.decode([token for token, flag in zip(*found.row(at), strict=True) if flag]) for at in range(len(found))]
    assert [text.strip() for text in texts] == learned and found.left_out == left_out


def test_answers_that_are_marked_bad_are_not_measured_as_if_they_were_to_be_given(assets: SimpleNamespace, tmp_path: Path) -> None:
    """A run that has learned to leave them loses on them: it was called worse for what it was trained to do."""
    rows = [{"prompt": f"question {n}", "completion": f"answer {n}", "label": n % 3 > 0} for n in range(30)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = Config(model=str(assets.model), data={"files": [str(file)], "held_out": 0.4}, train={"objective": "kto"})
    run.write_config(config)
    check_data(run, config, read_model(config.model), Terminal(to_stderr=False, quiet=True))
    held = of_run(run)
    assert held.kind == "held_out" and all(rows[source.line - 1]["label"] for source in held.sources)
    assert len(held) + held.left_out["marked_bad"] == 12 and held.left_out["marked_bad"] > 0
    assert held.overlap and held.overlap.rows == len(held) and held.groups is not None and len(held.groups) == len(held)
    again = of_file(file, load_codec(assets.model), 100, rules_of_rows(config))
    assert len(again) == 20 and against_run(again, run).overlap == (20, 20 - len(held), 20 - len(held))


def test_a_pair_that_was_trained_on_is_known_again_in_a_file(assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [{"prompt": f"question {n}", "chosen": f"answer {n}", "rejected": f"no {n}"} for n in range(20)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = Config(model=str(assets.model), data={"files": [str(file)], "held_out": 0.2}, train={"objective": "dpo"})
    run.write_config(config)
    check_data(run, config, read_model(config.model), Terminal(to_stderr=False, quiet=True))
    found = against_run(of_file(file, load_codec(assets.model), 100, rules_of_rows(config)), run)
    assert found.overlap == (20, 16, 16) and "16 of 20 rows stand in training" in compare._trained_on(found)


def test_rows_that_are_not_measured_are_told(made: SimpleNamespace, tmp_path: Path) -> None:
    rows = [*make_rows(6), {"instruction": "no answer"}, *[row | {"output": "long " * 5000} for row in make_rows(1)]]
    request = request_of(made, made.good, rows=write_rows(tmp_path / "rows.jsonl", rows), generate=0)
    answer = verify(request)
    assert (answer["rows"], answer["left_out"], answer["cut"]) == (7, {"missing_field": 1}, 1)
    told = dict(verdict.lines(answer))
    assert told["left out"] == "1 row (1 missing field)" and told["cut"].startswith("1 row:")


def test_two_states_of_one_run_are_told_by_their_steps(made: SimpleNamespace, tmp_path: Path) -> None:
    """So that no verdict says that a run is better than itself; two runs of one name by their places."""
    run = RunFolder(tmp_path / "first")
    end = replace(read_subject(made.good), name="first", run=run, tuned=run.adapter)
    early = replace(end, tuned=run.checkpoints / "step-00000003")
    assert (end.state, early.state, read_subject(made.good).state) == ("first", "first at step-00000003", made.good.name)
    assert [told_beside(one, end) for one in (early, end)] == ["first at step-00000003", str(run.adapter)]


@pytest.mark.parametrize(
    ("frozen", "timeline", "told"),
    [("nf4", {}, "nf4"), ("half", {}, None), ("nf4", {"frozen": "half"}, None), (None, {"frozen": "int8"}, "int8")],
)
def test_a_base_that_training_held_in_fewer_bits_is_told(
    frozen: str | None, timeline: dict[str, Any], told: str | None, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured and shipped stands on the files' 16 bits; a start whose proof failed steps down to these."""
    run = RunFolder(tmp_path)
    add_entry(run.timeline_file, Entry(1, {"steps": 1, "samples": 1, "micro_batch_tokens": 1, "threads": 1, **timeline}))  # type: ignore[typeddict-item]
    monkeypatch.setattr(subjects, "read_plan", lambda _: SimpleNamespace(frozen=frozen))
    subject = read_subject(made.good)
    held = replace(subject, run=run).held_otherwise()
    assert held == ({"base_held": {"trained": told, "measured": str(subject.facts.stored).lower()}} if told else {})
    assert (of_base(held) or "").endswith(f"training held its matrices in {told}, on which losses are others") == bool(told)


def _prepared(folder: Path, assets: SimpleNamespace, rows: Path, seed: int, **adapter: Any) -> RunFolder:
    """Make a run of these rows: tokenised, with an adapter of `seed` as its result."""
    run = RunFolder(folder)
    (run.path / "adapter").mkdir(parents=True)
    (run.path / "adapter" / ARTIFACT).write_bytes(bytes([seed]))
    (run.path / "run.json").write_text("{}")
    config = Config(model=str(assets.model), data={"files": [str(rows)], "held_out": 0.2}, adapter=adapter, train={"seed": seed})
    run.write_config(config)
    check_data(run, config, read_model(config.model), Terminal(to_stderr=False, quiet=True))
    return run


def test_rows_that_the_start_or_the_model_compared_with_has_learned_show_nothing(
    assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed holds out other rows, so most of them stand in the training of the run before."""
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"question {n}", "completion": f"answer {n * n}"} for n in range(40)])
    first = _prepared(tmp_path / "first", assets, rows, 0)
    second = _prepared(tmp_path / "second", assets, rows, 1, start=str(first.path))
    apart = {source.line for source in of_run(second).sources} - {source.line for source in of_run(first).sources}
    assert len(apart) > 4 and of_run(second).overlap == (8, 0, 0), "no plan says what it began with"
    facts = json.loads(second.data_report_file.read_text())["held_out"]
    assert facts["same"] == len(apart) == facts["before"], "told before the first step"
    (told,) = told_of_held_out(facts, by_file=False)
    assert told.endswith(f"{len(apart)} of them in the training of the adapter that it begins with; what they show is partly memory")

    facts = {"path": str(first.adapter), "sha256": sha256(first.adapter / ARTIFACT)}
    monkeypatch.setattr(learned_rows, "read_plan", lambda file: SimpleNamespace(start_adapter=facts if "second" in str(file) else None))
    held = of_run(second)
    assert held.overlap == (8, len(apart), len(apart)) and not held.unknown
    assert compare._trained_on(held) == f"{len(apart)} of 8 rows stand in training word for word"
    learned = learned_by(second)
    assert learned and len(np.unique(learned.keys.whole)) == 32 + len(apart), "of a file of rows, those of both are counted, too"
    config = first.config()
    first.write_config(config.model_copy(update={"data": config.data.model_copy(update={"chat_template": NAMED["chatml"]})}))
    assert of_run(second).unknown == str(first.adapter), "the same rows by another template are other tokens"
    other = SimpleNamespace(run=first, name="first")
    seen = compare._seen_by_other(SimpleNamespace(against=other, subject=SimpleNamespace(run=second)), held)  # type: ignore[arg-type]
    assert seen.unknown == "first"
    third = _prepared(tmp_path / "third", assets, rows, 1, start=str(first.path))
    told = told_of_held_out(json.loads(third.data_report_file.read_text())["held_out"], by_file=False)
    assert told[-1].startswith(f"whether the held-out rows were learned by {first.path}, which it begins with, is not known")
    first.write_config(config)
    (first.adapter / ARTIFACT).write_bytes(b"another")
    assert (of_run(second).overlap, of_run(second).unknown) == ((8, 0, 0), str(first.adapter))

    request = SimpleNamespace(against=other, subject=SimpleNamespace(run=second))
    seen = compare._seen_by_other(request, replace(held, overlap=None))  # type: ignore[arg-type]
    assert seen.overlap_against == (8, len(apart), len(apart))
    told = f"{len(apart)} of 8 rows stand in training of first word for word"
    assert compare._trained_on(seen, other) == told  # type: ignore[arg-type]


def test_expectations_are_counted_by_name_and_pair(made: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"{n}?", "regex": ".?", "json": True}) for n in range(4)))
    answer = verify(request_of(made, made.bad, prompts=read_prompts(file), generate=0))
    assert answer["expectations"]["by_name"]["regex"] == {"asked": 4, "base": 4, "tuned": 4}
    assert answer["expectations"]["asked"] == 4 and answer["exact_match"] is None and len(answer["samples"]) == 4


def test_batched_answers_are_those_of_plain_generate(made: SimpleNamespace) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(made.base, dtype=torch.float32).eval()
    rng = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 300, (n,), generator=rng).tolist() for n in (3, 17, 9, 30, 4, 21, 8)]
    ends = [2, 11, 45, 200]
    ours = greedy(model, prompts, 0, ends, 12)
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "eos_token_id": ends, "pad_token_id": 0}
        theirs = model.generate(ids, **given)[0, len(prompt) :].tolist()
        ended = theirs[-1] in ends
        assert (answer.ids, answer.ended) == (theirs[:-1] if ended else theirs, ended)
        assert len(answer.margins) == len(theirs) and min(answer.margins) >= 0


@pytest.mark.parametrize(
    "config",
    [
        transformers.BartConfig(  # counts the padding as positions
            vocab_size=300,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            is_decoder=True,
            is_encoder_decoder=False,
            forced_eos_token_id=None,
        ),
        transformers.Mamba2Config(  # keeps its state under another name
            vocab_size=300, hidden_size=32, num_heads=4, head_dim=16, state_size=8, n_groups=1, num_hidden_layers=2
        ),
        transformers.OpenAIGPTConfig(vocab_size=300, n_embd=32, n_layer=2, n_head=4),  # keeps nothing
    ],
    ids=lambda config: str(config.model_type),
)
def test_answers_of_models_that_take_no_batch_are_those_of_plain_generate(config: Any) -> None:
    torch.manual_seed(1)
    model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    prompts = [[7, 90, 33], [5, 6, 17, 80, 9, 12, 40], [100, 20]]
    assert not batches(model, prompts, 0)
    for prompt, answer in zip(prompts, greedy(model, prompts, 0, [2], 8), strict=True):
        ids = torch.tensor([prompt])
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False, "eos_token_id": [2], "pad_token_id": 0}
        theirs = model.generate(ids, **given)[0, len(prompt) :].tolist()
        assert (answer.ids, answer.ended) == (theirs[:-1], True) if theirs[-1] == 2 else (theirs, False)


def test_prompts_are_read_one_by_one_where_a_config_makes_no_cache(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLT's config does not say how many layers the model has, which transformers' cache asks."""
    model = transformers.AutoModelForCausalLM.from_pretrained(made.base, dtype=torch.float32).eval()
    prompts = [[5, 6, 17], [9, 12, 40, 8]]
    wanted = [answer.ids for answer in greedy(model, prompts, 0, [2], 4)]

    def none(**_: Any) -> None:
        raise AttributeError("'BltConfig' object has no attribute 'num_hidden_layers'")

    monkeypatch.setattr("holdfast.trainer.model.greedy.DynamicCache", none)
    assert [answer.ids for answer in greedy(model, prompts, 0, [2], 4)] == wanted


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("no rows", "with --rows FILE"),
        ("no such rows", "no such file"),
        ("no usable row", "data check"),
        ("no such prompts", "No such file"),
        ("prompts with mistakes", "line 1"),
        ("another base", "of other tokens"),
        ("numbers", "--generate counts from 0"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    what: str, told: str, made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, list[Any]] = {
        "no rows": [],
        "no such rows": ["--rows", tmp_path / "none"],
        "no usable row": ["--rows", tmp_path / "bad"],
    }
    given |= {"no such prompts": ["--prompts", tmp_path / "none"], "prompts with mistakes": ["--prompts", tmp_path / "bad"]}
    given |= {"another base": ["--rows", made.rows, "--against", tmp_path / "other"], "numbers": ["--generate", -1]}
    (tmp_path / "bad").write_text('{"a": 1}\n')
    shutil.copytree(made.base, tmp_path / "base")
    config = json.loads((tmp_path / "base/config.json").read_text())
    (tmp_path / "base/config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    shutil.copytree(made.good, tmp_path / "other")
    about = json.loads((tmp_path / "other/adapter_config.json").read_text())
    (tmp_path / "other/adapter_config.json").write_text(json.dumps(about | {"base_model_name_or_path": str(tmp_path / "base")}))
    assert main(["verify", str(made.good), *map(str, given[what])]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
def test_a_trained_prompt_is_measured_as_peft_computes_it(made: SimpleNamespace, tmp_path: Path) -> None:
    wide = transformers.AutoModelForCausalLM.from_pretrained(made.base, dtype=torch.float32)
    wide.name_or_path = str(made.base)
    torch.manual_seed(3)
    model: Any = get_peft_model(wide, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)).eval()
    prompts = [[7, 90, 33], [5, 6, 17, 80, 9, 12, 40], [100, 20]]
    for prompt, answer in zip(prompts, greedy(model, prompts, 0, [2], 8), strict=True):
        ids = torch.tensor([prompt])
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False, "eos_token_id": [2], "pad_token_id": 0}
        theirs = model.generate(input_ids=ids, **given)[0, len(prompt) :].tolist()
        assert answer.ids == (theirs[:-1] if theirs[-1] == 2 else theirs)
    model.save_pretrained(tmp_path / "prompt")
    answer = verify(request_of(made, tmp_path / "prompt", generate=2))
    assert answer["infers"] and answer["loss"]["tuned"] != answer["loss"]["base"]


@pytest.mark.parametrize(("virtual", "against", "limit"), [(None, None, 64), (20, None, 44), (None, 30, 34), ("many", None, 64)])
def test_a_trained_prompt_takes_places_of_the_rows_that_are_measured(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, virtual: Any, against: Any, limit: int
) -> None:
    """With a table of positions, as GPT-2 has one, the longest rows of a file ended it with an index out of range."""
    read = read_subject(made.good)
    facts = replace(read.facts, config=read.facts.config | {"max_position_embeddings": 64})
    first, other = (replace(read, facts=facts, config=read.config | {"num_virtual_tokens": one}) for one in (virtual, against))
    limits: list[int] = []

    def enough(request: Request, codec: Any, longest: int) -> Any:
        limits.append(longest)
        raise Stop(1, "enough")

    monkeypatch.setattr(compare, "_task_rows", enough)
    with pytest.raises(Stop, match="enough"):
        verify(replace(request_of(made, made.good), subject=first, against=other if against else None))
    assert limits == [limit]


FORM = {"kind": "nf4", "double": True, "dtype": "bf16"}


def test_both_sides_are_measured_in_one_form_where_memory_runs_out_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    left, told, done = places(FORM), list[str](), list[tuple[str, str]]()

    def work(part: dict[str, str], place: ModelPlace) -> None:
        if place.held is None and (part["name"] == "tuned" or place.layers_away):
            raise torch.OutOfMemoryError("CUDA out of memory")
        done.append((part["name"], place.held.weights.kind if place.held else "as it comes"))

    for part in in_one_form([{"name": "base"}, {"name": "tuned"}], left):
        at_first_that_fits(left, partial(work, part), told.append)
    assert done == [("base", "as it comes"), ("tuned", "nf4"), ("base", "nf4"), ("tuned", "nf4")]
    assert told[-1].endswith("it lies on the card in nf4, as its run held the base; with the base in 16 bits figures may differ")
    assert [(place.layers_away, bool(place.held)) for place in places(FORM, quick=True)][1:3] == [(False, True), (True, False)]
    assert not any(place.held for place in places())


@pytest.mark.parametrize(("frozen", "held"), [("nf4", FORM), ("auto", None)])
def test_a_run_tells_the_fewer_bits_it_held_its_base_in(made: SimpleNamespace, tmp_path: Path, frozen: str, held: Any) -> None:
    settings = Settings(steps=1, samples=1, threads=1, micro_batch_tokens=8, frozen=frozen, double_quant=True, dtype="bf16")  # type: ignore[arg-type]
    (tmp_path / "timeline.jsonl").write_text(json.dumps({"from_step": 1, "settings": settings.model_dump(), "reason": ""}) + "\n")
    subject = read_subject(made.good)
    assert subject.held() is None, "without a run nothing is known"
    assert replace(subject, run=RunFolder(tmp_path)).held() == held
