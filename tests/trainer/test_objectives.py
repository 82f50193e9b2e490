"""Preferences: rows of every common form, losses equal to their papers' formulas on plain PEFT, steps as pure as any other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model

from conftest import holdfast, lines, write_rows
from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow
from holdfast.data.token_set.token_set import TokenSet, sequences
from holdfast.run.timeline import Entry, add_entry
from holdfast.trainer.common.decoder import table_of_positions
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.step.step import compute_gradients
from holdfast.trainer.tasks.text import evaluation
from holdfast.trainer.tasks.text.compared import SequenceGroup, StartValues, mixed
from holdfast.trainer.tasks.text.reference import Portions, StoredValues, Values
from holdfast.trainer.tasks.text.task import budgets_of_order
from support.architectures import TERMS
from support.pairs import pairs_of
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, announced_and_asked, model_folder

SUMS = 16  # the size of an answer's log-probability, whose exponential a loss is

ASKED = {"role": "user", "content": "two and two?"}
FOUR, FIVE = {"role": "assistant", "content": "four"}, {"role": "assistant", "content": "five"}
SAID = ["user:two and two?", "assistant:four"]
PAIRS: dict[str, Json] = {
    "TRL, texts": {"prompt": "two and two?", "chosen": "four", "rejected": "five"},
    "TRL, turns": {"prompt": [ASKED], "chosen": [FOUR], "rejected": [FIVE]},
    "TRL, whole conversations": {"chosen": [ASKED, FOUR], "rejected": [ASKED, FIVE]},
    "Axolotl, ultra": {"prompt": "two and two?", "chosen": [ASKED, FOUR], "rejected": [ASKED, FIVE]},
    "Axolotl, intel": {"question": "two and two?", "chosen": "four", "rejected": "five"},
    "Axolotl, chat_template": {"messages": [ASKED], "chosen": FOUR, "rejected": FIVE},
    "LLaMA-Factory, alpaca": {"instruction": "two and two?", "input": "", "chosen": "four", "rejected": "five"},
    "LLaMA-Factory, sharegpt": {
        "conversations": [{"from": "human", "value": "two and two?"}],
        "chosen": {"from": "gpt", "value": "four"},
        "rejected": {"from": "gpt", "value": "five"},
    },
    "HH": {"chosen": "\n\nHuman: two and two?\n\nAssistant: four", "rejected": "\n\nHuman: two and two?\n\nAssistant: five"},
    "OpenAI": {"input": {"messages": [ASKED]}, "preferred_output": [FOUR], "non_preferred_output": [FIVE]},
    "answer and worse one": {"question": "two and two?", "answer": "four", "rejected_response": "five"},
    "j and k": {"question": "two and two?", "response_j": "four", "response_k": "five"},
}
BAD: list[tuple[str, Json, str]] = [
    ("pairs", {"chosen": [ASKED, FOUR], "rejected": [{"role": "user", "content": "what?"}, FIVE]}, "prompts_differ"),
    ("pairs", {"prompt": "two?", "chosen": "four", "rejected": " "}, "empty_answer"),
    ("pairs", {"prompt": "two?", "chosen": None, "rejected": "five"}, "empty_answer"),
    ("pairs", {"prompt": "two?", "chosen": 4, "rejected": "five"}, "wrong_type"),
    ("pairs", {"chosen": "four", "rejected": "five"}, "missing_field"),
    ("pairs", {"instruction": "two?", "output": "four"}, "no_preference"),
    ("marks", {"instruction": "two?", "output": "four"}, "no_mark"),
    ("marks", {"prompt": "two?", "completion": "four", "label": "perhaps"}, "no_mark"),
    ("answers", {"prompt": "two?", "chosen": "four", "rejected": "five"}, "preference_row"),
]


@pytest.mark.parametrize("form", PAIRS)
def test_a_pair_of_any_form_is_two_conversations_that_differ_in_their_end(form: str) -> None:
    found = parse_example(PAIRS[form], "auto", {}, "pairs")
    assert [f"{turn.role}:{turn.content}" for turn in found.messages] == SAID
    assert found.worse[:-1] == found.messages[:-1] and found.worse[-1].content == "five"


@pytest.mark.parametrize(("wanted", "row", "reason"), BAD)
def test_what_is_no_preference_is_named(wanted: Any, row: Json, reason: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto", {}, wanted)
    assert bad.value.reason == reason


@pytest.mark.parametrize(("mark", "good"), [(True, True), ("false", False), (1, True), ("desirable", True)])
def test_a_mark_says_whether_an_answer_is_good(mark: Any, good: bool) -> None:
    assert parse_example({"prompt": "q", "completion": "a", "label": mark}, "auto", {}, "marks").good is good


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


WANTED: dict[str, tuple[str, Json]] = {
    "dpo": ("dpo", {}),
    "dpo, smoothed, with the answer's loss": ("dpo", {"label_smoothing": 0.1, "sft_weight": 0.3, "beta": 0.4}),
    "dpo, per token": ("dpo", {"length_normalised": True, "beta": 2.0}),
    "ipo": ("dpo", {"loss": "ipo"}),
    "hinge": ("dpo", {"loss": "hinge", "beta": 0.3}),
    "orpo": ("orpo", {}),
    "simpo": ("simpo", {"margin": 0.7}),
    "simpo, smoothed, with the answer's loss": ("simpo", {"margin": 0.7, "label_smoothing": 0.1, "sft_weight": 0.3}),
    "kto": ("kto", {"desirable_weight": 1.5}),
}


def stand_of(model: Path, name: str, folder: Path | None = None) -> Stand:
    objective, preference = WANTED[name]
    tokens = pairs_of(marked=objective == "kto")
    return Stand(model, tokens=tokens, folder=folder, train={"objective": objective, "lr": 0.02}, preference=preference)


def plain_logps(stand: Stand, base: bool, rows: list[Any], own: Any = None) -> torch.Tensor:
    """Log-probabilities of answers by PEFT's and transformers' own forward pass, each sequence alone: [sequences]. own: to be derived."""
    found = []
    model: Any = own or stand.task.model
    for ids, learned in rows:
        numbers = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.set_grad_enabled(own is not None and not base), stand.task.own_attention():
            with model.disable_adapter() if base else nullcontext():
                logits = model(input_ids=numbers).logits[0]
            each = F.log_softmax(logits.double(), -1)[:-1].gather(1, numbers[0, 1:, None])[:, 0]
            found.append(each[torch.from_numpy(learned[1:].astype(bool))].sum())
    return torch.stack(found)


def expected(stand: Stand, name: str, start: Stand | None = None, own: Any = None) -> torch.Tensor:
    """The formulas of the papers, in fp64, on answers computed one by one. start: holds the reference, if not the base. own: the model."""

    def before(rows: list[Any]) -> torch.Tensor:
        return plain_logps(start or stand, start is None, rows, own)

    objective, given = WANTED[name]
    rows = [sequences(*stand.task.tokens.row(number)) for number in stand.rows]
    flat = [part for row in rows for part, _ in row]
    policy, reference = plain_logps(stand, False, flat, own), before(flat)
    counts = torch.tensor([int(learned[1:].sum()) for _, learned in flat])
    beta = given.get("beta", 2.0 if objective == "simpo" else 0.1)
    share = given.get("label_smoothing", 0.0)
    if objective == "kto":
        good = torch.tensor([row[0][1] for row in rows])
        mixed = []
        for at, (ids, learned) in enumerate(flat):
            other, flags = flat[(at + 1) % len(flat)]
            mine, theirs = int(learned.argmax()), int(flags.argmax())
            mixed.append((np.concatenate([ids[:mine], other[theirs:]]), np.concatenate([learned[:mine], flags[theirs:]])))
        drift = (plain_logps(stand, False, mixed, own) - before(mixed)).mean().clamp_min(0).detach()
        ahead = policy - reference
        up = given["desirable_weight"] * (1 - torch.sigmoid(beta * (ahead - drift)))
        return torch.where(good, up, 1 - torch.sigmoid(beta * (drift - ahead))).mean()
    (pc, pr), (rc, rr), (nc, nr) = (values.view(-1, 2).unbind(1) for values in (policy, reference, counts))
    if objective == "orpo":
        one, two = pc / nc, pr / nr
        odds = (one - two) - (torch.log1p(-one.exp()) - torch.log1p(-two.exp()))
        return (-one - beta * F.logsigmoid(odds)).mean()
    ahead, behind = pc - rc, pr - rr
    if given.get("length_normalised") or given.get("loss") == "ipo":
        ahead, behind = ahead / nc, behind / nr
    margin = beta * (pc / nc - pr / nr) - given["margin"] if objective == "simpo" else beta * (ahead - behind)
    if given.get("loss") == "ipo":
        return ((ahead - behind - 1 / (2 * beta)) ** 2).mean()
    if given.get("loss") == "hinge":
        return torch.relu(1 - margin).mean()
    losses = -F.logsigmoid(margin) * (1 - share) - F.logsigmoid(-margin) * share
    return (losses - given.get("sft_weight", 0.0) * pc / nc).mean()


@pytest.mark.parametrize("name", WANTED)
def test_a_gradient_is_that_of_its_papers_formula_by_autograd_on_plain_peft(model: Path, name: str) -> None:
    """TRL 1.16's trainers gave the same losses and gradients, to 2e-5, but for ORPO's own loss, which there learns the prompt, too."""
    stand = stand_of(model, name)
    torch.manual_seed(3)
    for tensor in stand.task.trained.values():
        tensor.data.copy_(0.3 * torch.randn_like(tensor))
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    plain: Any = get_peft_model(base, LoraConfig(**stand.task.form.config | {"inference_mode": False}))
    theirs = {key.replace(".default", ""): tensor for key, tensor in plain.named_parameters() if "lora" in key}
    assert theirs.keys() == stand.task.trained.keys()
    for key, tensor in theirs.items():
        tensor.data.copy_(stand.task.trained[key])
    computed = stand.compute(1, budget=60)
    wanted = expected(stand, name, own=plain)
    wanted.backward()  # type: ignore[no-untyped-call]
    assert computed.loss == but_for_rounding(wanted.item(), TERMS, condition=SUMS)
    flat = torch.cat([theirs[key].grad.flatten() for key in stand.task.trained])  # type: ignore[union-attr]
    assert_equal_but_for_rounding(stand.optimizer.gradient, flat, SUMS * TERMS)


@pytest.mark.parametrize("name", WANTED)
def test_a_step_has_the_loss_of_its_papers_formula_and_is_pure(model: Path, name: str, tmp_path: Path) -> None:
    stand = stand_of(model, name, tmp_path)
    first = stand.step(1)
    losses = [stand.step(step) for step in range(2, 5)]
    wanted = float(expected(stand, name))
    computed = stand.compute(5)
    assert computed.loss == but_for_rounding(wanted, TERMS, condition=SUMS)
    assert computed.labels == 5 and computed.loss < first
    split = stand.compute(5, budget=30)
    assert split.loss == but_for_rounding(computed.loss, TERMS, condition=SUMS)
    assert split.measured == but_for_rounding(computed.measured, TERMS, condition=SUMS)
    again = stand_of(model, name, tmp_path / "elsewhere")  # its reference values are computed anew
    assert [again.step(step) for step in range(1, 5)] == [first, *losses]
    assert again.saved() == stand.saved()


@pytest.mark.parametrize("name", ["dpo, smoothed, with the answer's loss", "ipo", "kto"])
def test_what_begins_from_an_adapter_is_held_against_that_adapter_at_every_step(model: Path, name: str, tmp_path: Path) -> None:
    stand, start = stand_of(model, name, tmp_path), stand_of(model, name)
    torch.manual_seed(3)
    values = {key: 0.3 * torch.randn_like(tensor) for key, tensor in stand.task.trained.items()}
    for tensors in (stand.task.trained, start.task.trained):
        for key, tensor in tensors.items():
            tensor.data.copy_(values[key])
    task: Any = stand.task
    task.compared.start = StartValues.copied(values)
    assert abs(expected(stand, name) - expected(stand, name, start)) > 0.01, "which reference it is can be told from the loss"
    for step in range(1, 5):
        wanted = float(expected(stand, name, start))
        before = stand.saved()[0]
        computed = stand.compute(step, budget=60 if step == 3 else None)
        assert computed.loss == but_for_rounding(wanted, TERMS, condition=SUMS)
        assert stand.saved()[0] == before, "the weights are back to the bit"
        block = stand.optimizer.weights.clone()
        with task.compared._before_training():
            assert torch.equal(stand.optimizer.weights, block), "a snapshot's copy may be reading them meanwhile"
            assert all(torch.equal(tensor, values[key]) for key, tensor in task.trained.items())
        if step == 2:  # values that are lost are made again with the weights of then, not with those of now
            next(tmp_path.glob("reference-*.bin")).unlink()
            del task.compared.values
        stand.training.apply(step, computed)


@pytest.mark.parametrize("parts", [2, 4])
def test_the_drift_is_that_of_the_whole_step_whichever_parts_it_is_cut_into(model: Path, parts: int) -> None:
    train = {"objective": "kto", "lr": 0.05}
    stand = Stand(model, tokens=pairs_of(count=8, marked=True), train=train, preference={"undesirable_weight": 0.01})
    for step in range(1, 5):
        stand.step(step)
    found = []
    for shards in (1, parts):
        stand.optimizer.clear()
        of: Any = (stand.task, stand.optimizer, 5, stand.rows, 400, lambda *_: 1.0)
        found.append((compute_gradients(*of, shards=shards).loss, stand.optimizer.gradient.clone()))
    (whole, gradient), (cut, other) = found
    task: Any = stand.task
    assert float(task.compared._drift(SequenceGroup(stand.rows, 400))) > 0.01
    assert cut == but_for_rounding(whole, TERMS, condition=SUMS)
    assert_equal_but_for_rounding(other, gradient, SUMS * TERMS)


def test_marked_answers_have_the_drift_of_an_evaluation_on_the_way_at_the_end_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"objective": "kto", "lr": 0.05}
    stand = Stand(model, tokens=pairs_of(marked=True), train=train, preference={"undesirable_weight": 0.01})
    for step in range(1, 5):
        stand.step(step)
    task: Any = stand.task
    on_the_way = task.compared._drift(SequenceGroup(stand.rows, 400))
    sides: Any = SimpleNamespace(tuned=task.model, settings=stand.settings, device=task.device)
    sides.before = lambda: _without_adapter(task.model)
    with task.own_attention():
        at_the_end = evaluation._drift(sides, task.tokens, stand.rows, lambda _: None)
        monkeypatch.setattr(evaluation, "HELD_OUT_AT_ONCE", 2)
        apart = evaluation._drift(sides, task.tokens, stand.rows, lambda _: None)
    assert float(on_the_way) > 0.01
    assert at_the_end.tolist() == [but_for_rounding(float(on_the_way), TERMS, condition=SUMS)] * 5
    assert apart[0] == apart[1] and float(apart[4]) == 0.0, "a row alone has no other's answer"


def test_under_weights_that_are_held_otherwise_the_reference_is_another_one(model: Path, tmp_path: Path) -> None:
    """As where a start found that 4 bits compute wrong with the libraries of now: what was scored under them is no reference any more."""
    files = [stand_of(model, "dpo", tmp_path).task]
    files.append(Stand(model, tokens=pairs_of(), folder=tmp_path, train={"objective": "dpo"}, settings={"frozen": "half"}).task)
    one, other = (task.compared.file for task in files if task.compared is not None)
    assert one is not None and one.name == "reference-fp32-sdpa.bin" and other != one


def test_a_drift_that_is_no_number_reaches_the_gate_on_every_rank(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks tell each other in JSON, which has null in its place."""
    stand = Stand(model, tokens=pairs_of(marked=True), train={"objective": "kto"})
    task: Any = stand.task
    monkeypatch.setattr(task.compared, "_apart", lambda rows, _: [torch.full((len(rows),), math.nan)])

    class Told(Rank):
        def exchange(self, facts: Json) -> list[Json]:
            told: list[Json] = [orjson.loads(orjson.dumps(facts))]
            return told

    laid = [task.batches(stand.rows, 400)]
    task.compared.share_drift(stand.rows, laid, Told())
    assert math.isnan(float(laid[0][0].group.drift))


@pytest.mark.parametrize("again", [[], [0], [2, 0]])
def test_ranks_measure_the_drift_of_one_process_also_of_a_row_that_a_step_has_twice(
    model: Path, again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step over the end of an epoch may have it twice, each time with another answer of the next."""
    stand = Stand(model, tokens=pairs_of(marked=True), train={"objective": "kto"})
    task: Any = stand.task
    monkeypatch.setattr(task.compared, "_apart", lambda rows, _: [torch.tensor([float(ids.sum() % 97) for ids, _ in rows])])
    samples = [*stand.rows, *again]
    [alone] = task.batches(samples, 4000)
    laid = [task.batches(samples[:2], 4000), task.batches(samples[2:], 4000)]
    task.compared.share_drift(samples, laid, Rank())
    assert float(laid[0][0].group.drift) == float(task.compared._drift(alone.group)) > 0


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("virtual", [0, 4])
def test_a_prompt_and_anothers_answer_take_no_more_places_than_the_model_has(tmp_path: Path, virtual: int) -> None:
    """A long prompt with another row's long answer ran out of GPT-2's table of positions, and rows were accused of it.

    The learned tokens of a prompt adapter stand in it, too.
    """
    rng = np.random.default_rng(3)
    parts = [(10, 2), (2, 10), (10, 2), (2, 10)]
    learned = np.concatenate([np.repeat([0, 1], part) + 2 * (at % 2) for at, part in enumerate(parts)]).astype(np.uint8)
    rows = np.arange(4)
    ids = rng.integers(3, 211, 48).astype(np.int32)
    tokens = TokenSet(ids, learned, 12 * np.arange(5), np.zeros(4, np.int32), rows + 1, ("rows.jsonl",), 0, 0)
    folder = model_folder(tmp_path / "model", "gpt2", n_positions=12 + virtual)
    adapter = {"adapter": {"type": "prompt", "virtual_tokens": virtual}} if virtual else {}
    stand = Stand(folder, tokens=tokens, train={"objective": "kto", "lr": 0.05}, **adapter)
    assert stand.compute(1).finite
    task: Any = stand.task
    assert task.compared.longest == 12
    found = mixed([sequences(*tokens.row(at))[0][0] for at in range(4)], 12)
    assert [(len(one), int(flags.sum())) for one, flags in found] == [(12, 2), (4, 2), (12, 2), (4, 2)]
    assert table_of_positions(model_of("llama", tmp_path / "other")) is None, "where places are turned, not looked up"


def model_of(kind: str, folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder(folder, kind))


@contextmanager
def _without_adapter(model: Any) -> Iterator[Any]:
    with model.disable_adapter():
        yield model


def test_reference_values_that_were_torn_or_lost_are_made_again_to_the_bit(model: Path, tmp_path: Path) -> None:
    stand = stand_of(model, "dpo", tmp_path)
    loss = stand.compute(1).loss
    (file,) = tmp_path.glob("reference-*.bin")
    kept = file.read_bytes()
    file.write_bytes(kept[:8] + b"\0\0\0\1" + kept[12:])
    again = stand_of(model, "dpo", tmp_path)
    assert again.compute(1).loss == loss and file.read_bytes() == kept
    file.unlink()
    assert stand_of(model, "dpo", tmp_path).compute(1).loss == loss and file.read_bytes() == kept


def test_a_trial_reads_the_reference_values_of_its_run_and_writes_none(model: Path, tmp_path: Path) -> None:
    """On another device, or with other kernels, it left the run values of its own, and the run went on with those."""

    def tried() -> float:
        stand = stand_of(model, "dpo", tmp_path)
        assert stand.task.compared is not None
        stand.task.compared.trial = True
        return stand.compute(1).loss

    first = tried()
    assert not [*tmp_path.glob("reference-*.bin")]
    assert stand_of(model, "dpo", tmp_path).compute(1).loss == first
    (file,) = tmp_path.glob("reference-*.bin")
    kept = StoredValues(file, len(stand_of(model, "dpo", tmp_path).task.tokens))
    kept.put(0, [-1.0, -50.0])
    before = file.read_bytes()
    file.write_bytes(before[:-16] + bytes(16))
    changed = file.read_bytes()
    assert tried() != first and file.read_bytes() == changed, "a value that is lost is made again for the trial alone"


def test_rows_are_scored_with_those_beside_them_in_the_first_epoch_once_each_whoever_asks_first(model: Path, tmp_path: Path) -> None:
    stand = stand_of(model, "dpo", tmp_path)
    order, lengths = stand.task.data.table.order(0), stand.task.data.sizes
    portions = Portions(order, lengths, 2 * int(lengths.max()), packed=True)
    whole = [portions.of(row) for row in order]
    assert sorted({row for portion in whole for row in portion}) == sorted(order) and all(
        row in one for row, one in zip(order, whole, strict=True)
    )
    assert max(map(len, whole)) > 1 and all(sum(lengths[one]) <= 2 * lengths.max() for one in whole)
    padded = [Portions(order, lengths, 90, packed=False).of(row) for row in order]
    assert all(len(one) * lengths[one].max() <= 90 or len(one) == 1 for one in padded) and max(map(len, padded)) > 1
    compared = stand.task.compared
    compared.budget, asked, scores = 2 * int(lengths.max()), list[int](), compared._of_portion
    compared._of_portion = lambda rows: (asked.append(len(rows)), scores(rows))[1]
    for row in [*reversed(order), *order]:
        compared.score([int(row)])
    assert sum(asked) == len(order) and len(asked) < len(order)
    (file,) = tmp_path.glob("reference-*.bin")
    again = stand_of(model, "dpo", tmp_path / "again")
    again.task.compared.budget = compared.budget
    again.task.compared.score([int(row) for row in order])
    assert file.read_bytes() == next((tmp_path / "again").glob("reference-*.bin")).read_bytes()


def test_reference_values_after_memory_ran_out_are_those_of_a_run_that_was_not_stopped(model: Path, tmp_path: Path) -> None:
    """Rows are scored together as the timeline says for the step they are first due in, by a process from before and from after."""
    whole, half, timeline = 400, 60, tmp_path / "timeline.jsonl"
    first = {"threads": 1, "steps": 3, "samples": 6, "micro_batch_tokens": whole}
    add_entry(timeline, Entry(1, first))

    def begin(folder: Path, budget: int) -> Stand:
        stand = stand_of(model, "dpo", folder)
        compared = stand.task.compared
        compared.budget, compared.budgets = budget, partial(budgets_of_order, timeline, len(compared.order), 2)
        return stand

    def asked(stand: Stand) -> list[int]:
        compared, seen = stand.task.compared, list[int]()
        score = compared._of_portion
        compared._of_portion = lambda rows: (seen.append(len(rows)), score(rows))[1]
        return seen

    stand = begin(tmp_path / "on", whole)
    assert stand.task.compared.values is not None, "cut as it was, before memory ran out"
    order = [int(row) for row in stand.task.data.table.order(0)]
    narrow = Portions(np.array(order), stand.task.data.sizes, half, packed=True)
    assert len(narrow.of(order[-1])) < len(order), "the rows are too few to be cut"
    timeline.write_text("")
    add_entry(timeline, Entry(1, first | {"micro_batch_tokens": half}))
    seen = asked(stand)
    stand.compute(1, budget=half, rows=order[:2])
    assert max(seen) == len(narrow.of(order[0])), "what does not fit is smaller at once, and not after a start"
    stand.compute(2, budget=half, rows=order[2:])
    other = begin(tmp_path / "killed", half)
    other.compute(1, budget=half, rows=order[:2])
    other = begin(tmp_path / "killed", half)
    other.compute(2, budget=half, rows=order[2:])
    (one,), (two,) = ((tmp_path / name).glob("reference-*.bin") for name in ("on", "killed"))
    assert one.read_bytes() == two.read_bytes()


def test_how_many_rows_are_scored_together_follows_the_timeline(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.jsonl"
    add_entry(timeline, Entry(1, {"threads": 1, "steps": 4, "samples": 8, "micro_batch_tokens": 40}))
    add_entry(timeline, Entry(3, {"micro_batch_tokens": 10}))
    budgets = budgets_of_order(timeline, 8, 2)
    assert budgets.tolist() == [40] * 4 + [10] * 4
    portions = Portions(np.arange(8), np.full(8, 10), budgets, packed=True)
    assert [portions.of(row) for row in (0, 4, 5)] == [[0, 1, 2, 3], [4], [5]]
    values = Values(portions, None, 8, 1, torch.device("cpu"))
    values.compute([4], lambda rows: torch.ones(len(rows)))
    values.cut(Portions(np.arange(8), np.full(8, 10), 80, packed=True))
    values.compute([0], lambda rows: torch.zeros(len(rows)))
    assert values.of([0, 4, 5]).tolist() == [0, 1, 0], "what is known stays"


WRONG: list[tuple[Json, str]] = [
    ({"train": {"objective": "dpo"}, "adapter": {"type": "full"}}, "adapter.type full has none; take orpo or simpo"),
    ({"train": {"objective": "dpo"}, "data": {"files": "x", "train_on": "all"}}, "train_on all is for train.objective sft"),
    ({"data": {"files": "x", "train_on": "last", "too_long": "split"}}, "too_long split learns every answer once"),
]


@pytest.mark.parametrize(("sections", "said"), WRONG)
def test_what_does_not_go_together_is_told(sections: Json, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"model": "tiny", "data": {"files": "x"}} | sections)


def test_pairs_are_not_cut_in_silence_where_rows_are_to_be_split(config_of: Callable[..., Path], tmp_path: Path) -> None:
    """A run of pairs with too_long split cut them; data check refused it."""
    rows = [{"prompt": f"Join {at}", "chosen": f"amber-{at}", "rejected": f"no {at}"} for at in range(30)]
    data = {"files": [str(write_rows(tmp_path / "rows.jsonl", rows))], "too_long": "split"}
    done = holdfast("train", config_of(data=data, train={"objective": "dpo"}), "--run", tmp_path / "run")
    assert done.returncode == 2 and "too_long split is for train.objective sft: dpo" in done.stderr, done.stderr


def test_a_run_of_pairs_survives_a_kill_to_the_bit_and_tells_margins(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"prompt": f"Join {at}", "chosen": f"amber-{at}", "rejected": f"no {at}"} for at in range(30)]
    rows[4]["rejected"] = rows[4]["chosen"]
    changed = {
        "data": {"files": [str(write_rows(tmp_path / "rows.jsonl", rows))], "held_out": 0.1},
        "train": {"objective": "dpo", "steps": 4},
        "evaluate": {"generate": 0, "every": 2},
    }
    faults = tmp_path / "f.yaml"
    faults.write_text(json.dumps([{"when": {"attempt": 1, "step": 3, "phase": "backward"}, "effect": "kill"}]))
    summaries = []
    for name, more in (("quiet", ()), ("killed", ("--faults", faults))):
        done = holdfast("train", config_of(name, **changed), "--run", tmp_path / name, "--json", *more)
        assert done.returncode == 0, done.stderr
        assert "answers_alike 1" in done.stderr
        summaries.append(json.loads(done.stdout))
    assert summaries[0]["artifact_sha256"] == summaries[1]["artifact_sha256"] and summaries[1]["attempts"] == 2
    last = lines(tmp_path / "killed/steps.jsonl")[-1]
    assert last["pair_accuracy"] > 0.5 and last["margin"] > 0 and last["token_accuracy"] is None
    assert summaries[0]["loss"]["eval_base"] == but_for_rounding(math.log(2), TERMS, condition=SUMS)
    assert summaries[0]["loss"]["eval_tuned"] < math.log(2)
    assert announced_and_asked(tmp_path / "quiet") == (6, 6), "three held-out rows of two models, and none of those for the divergence"


def test_an_answer_that_is_marked_bad_is_not_shown_as_the_one_to_be_given(config_of: Callable[..., Path], tmp_path: Path) -> None:
    """The report showed it as the preferred one beside what the models answer, and its words counted as an exact match."""
    rows = [{"prompt": f"Join {at}", "completion": f"{'no' if at % 2 else 'amber'}-{at}", "label": at % 2 == 0} for at in range(30)]
    config = config_of(
        data={"files": [str(write_rows(tmp_path / "rows.jsonl", rows))], "held_out": 0.4},
        train={"objective": "kto", "steps": 1},
        evaluate={"generate": 3, "max_new_tokens": 16},
    )
    done = holdfast("train", config, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert found["rows"] == 12 and found["exact_match"]["asked"] == len(found["samples"]) == 3
    assert all(sample["wanted"].startswith("amber-") for sample in found["samples"]), found["samples"]


def test_rows_of_the_other_kind_are_refused_with_the_setting_that_takes_them(
    assets: SimpleNamespace, config_of: Callable[..., Path], tmp_path: Path
) -> None:
    pair = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}] * 3)
    for name, changed, said in (
        ("answers", {"train": {"objective": "dpo"}}, "no_preference 120"),
        ("pairs", {"data": {"files": [str(pair)]}}, "train.objective dpo, orpo or simpo"),
    ):
        done = holdfast("train", config_of(name, **changed), "--run", tmp_path / name)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_a_reference_value_that_is_not_finite_is_asked_for_again_at_the_next_start(tmp_path: Path) -> None:
    """A card that erred once had it kept for good: each step of its row failed from then on, and the row was accused."""
    kept = StoredValues(tmp_path / "reference.bin", 4)
    for row, values in enumerate([[-1.0, -2.0], [-1.0, float("nan")], [float("-inf"), -1.0]]):
        kept.put(row, values)
    assert StoredValues(tmp_path / "reference.bin", 4).missing([0, 1, 2, 3], 2) == [1, 2, 3]
    assert kept.missing([0, 1, 2, 3], 1) == [2, 3], "of one sequence"
