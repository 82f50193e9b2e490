"""Answers that a run is judged by, and that chat shows, end where the chat template ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.tokens.codec import Codec
from holdfast.export.endings import end_tokens
from holdfast.trainer.jobs.chat import Talk, room_of
from holdfast.trainer.model.greedy import greedy
from holdfast.trainer.tasks.text import evaluation
from holdfast.trainer.tasks.text.answer import _generate, answers, ignore
from support.chat_templates import SHAPES, codec_with
from support.stand import model_folder


class Parrot:
    """A model that says its lines and, behind the end of a turn, whatever comes next: generate stops at the tokens it is given alone."""

    def __init__(self, codec: Codec, said: str) -> None:
        self.says = codec.tokenizer.encode(said, add_special_tokens=False).ids

    def parameters(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(1)

    def generate(self, input_ids: torch.Tensor, eos_token_id: list[int] | None, max_new_tokens: int, **_: Any) -> torch.Tensor:
        ends = [at + 1 for at, number in enumerate(self.says) if number in (eos_token_id or [])]
        said = self.says[: min([*ends, max_new_tokens])]
        return torch.cat([input_ids, torch.tensor([said] * len(input_ids))], dim=1)


@pytest.fixture
def taught(tmp_path: Path) -> SimpleNamespace:
    """A model whose turns end with another token than its tokenizer's end of text, as Gemma's and Qwen2.5's bases do."""
    codec = codec_with(tmp_path / "model", SHAPES["plain"].replace("<|im_end|>", "<|endoftext|>"))
    for name in ("config.json", "model.safetensors"):
        (codec.folder / name).write_bytes((read_model("tiny").folder / name).read_bytes())
    model = Parrot(codec, "ls -la<|endoftext|>\n<|im_start|>user\nAnd then?<|im_end|>")
    return SimpleNamespace(codec=codec, facts=read_model(str(codec.folder)), model=model)


def test_an_answer_ends_with_the_turn(taught: SimpleNamespace) -> None:
    codec, ends = taught.codec, end_tokens(taught.codec, taught.facts)
    assert ends[0] != codec.eos and codec.eos in ends
    assert answers(taught.model, [[1, 2], [1]], codec.tokenizer, codec.pad, ends, 64) == ["ls -la"] * 2
    assert answers(taught.model, [[1]], codec.tokenizer, codec.pad, (), 64)[0].endswith("And then?"), "the parrot itself goes on"


def test_an_answer_that_is_longer_than_any_may_be_is_compared_with_none(taught: SimpleNamespace) -> None:
    """Each counted as a miss: 0 exact matches were told of two models that may have been right in every row."""
    codec = taught.codec
    texts = ("ls -la<|endoftext|>\n", "a b c d e f g h i j k l m n")
    parts = [([1], codec.tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    shortest = len(codec.tokenizer.encode("ls -la", add_special_tokens=False).ids)
    said = ["ls -la", "a b c"]
    found = evaluation._compare_answers(parts, said, ["", "a b c"], codec, shortest)["exact_match"]
    assert found == {"asked": 1, "base": 0, "tuned": 1, "too_long": 1, "limit": shortest}
    assert evaluation._compare_answers(parts, said, said, codec, 64)["exact_match"]["asked"] == 2
    none = evaluation._compare_answers(parts, said, said, codec, shortest - 1)["exact_match"]
    assert (none["asked"], none["tuned"], none["too_long"]) == (0, 0, 2)


def test_a_penalty_that_a_model_has_for_sampling_changes_no_answer_a_run_is_judged_by(tmp_path: Path) -> None:
    """Qwen2.5 has 1.1: words of the prompt that an answer repeats were avoided, and exact matches were fewer than verify's."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder(tmp_path / "model"))
    prompts = [[5, 6, 7, 5, 6], [9, 8]]
    wanted = [answer.ids for answer in greedy(model, prompts, 0, (), 24)]
    assert len({*wanted[0]}) < 24, "it repeats itself"
    model.generation_config.repetition_penalty, model.generation_config.no_repeat_ngram_size = 1.5, 2
    assert _generate(model, prompts, 0, (), 24, ignore) == wanted


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
@pytest.mark.parametrize("virtual", [0, 4])
def test_an_answer_ends_where_a_table_of_positions_does(virtual: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verify, and the evaluation of a finished run on GPT-2, ended with "index out of range in self" behind a long prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder(tmp_path / "model", "gpt2", n_positions=16 + virtual))
    if virtual:
        model = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=virtual)).eval()
    prompts = [[5 + at for at in range(length)] for length in (14, 3, 16, 14)]
    found = greedy(model, prompts, 0, (), 8)
    assert [len(answer.ids) for answer in found] == [3, 8, 1, 3] and not any(answer.ended for answer in found)
    words: Any = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    assert answers(model, prompts, words, 0, (), 8) == [" ".join(map(str, answer.ids)) for answer in found]
    monkeypatch.setattr("holdfast.trainer.model.greedy.batches", lambda *_: False)
    assert [answer.ids for answer in greedy(model, prompts, 0, (), 8)] == [answer.ids for answer in found]


def test_chat_leaves_room_for_the_tokens_that_a_prompt_adapter_puts_before() -> None:
    rest = {"model": "tiny", "data": {"files": "x"}}
    of_kind = {kind: Config.model_validate(rest | {"adapter": {"type": kind}}) for kind in ("prompt", "lora")}
    assert (room_of(of_kind["prompt"], 512), room_of(of_kind["lora"], 512)) == (492, 512)
    assert room_of(of_kind["prompt"], None) == room_of(of_kind["lora"], None) - 20


def test_chat_and_the_evaluation_of_a_run_end_answers_so(taught: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wishes = {"longest": 64, "history": True, "system": None}
    talk = Talk(taught.codec, end_tokens(taught.codec, taught.facts), 256, wishes)
    assert talk.answer("tuned", taught.model, "What lists files?") == "ls -la"
    assert [one.content for one in talk.said["tuned"]] == ["What lists files?", "ls -la"]

    asked = list[Any]()
    monkeypatch.setattr(evaluation, "answers", lambda *of: asked.append(of[4]))
    sides = SimpleNamespace(tuned=None, is_adapter=True, device=None, from_start=False)
    sides.give_up_tuned, sides.before = (lambda: None), contextlib.nullcontext
    monkeypatch.setattr(evaluation, "Sides", lambda *_: sides)
    monkeypatch.setattr(evaluation, "load_tokens", lambda file: None)
    monkeypatch.setattr(evaluation, "split", lambda *_: ([], SimpleNamespace(tolist=lambda: [0])))
    monkeypatch.setattr(evaluation, "_first_turn", lambda *_: ([1], [2]))
    monkeypatch.setattr(evaluation, "mean_loss", lambda *_: 1.0)
    monkeypatch.setattr(evaluation, "_compare_answers", lambda *_: {})
    config = Config.model_validate({"model": str(taught.codec.folder), "data": {"files": ["rows.jsonl"]}})
    evaluation.compared(SimpleNamespace(data_file=tmp_path), config, SimpleNamespace(), ignore)  # type: ignore[arg-type]
    assert asked == [end_tokens(taught.codec, taught.facts)] * 2
