"""Talk to base and tuned model side by side. Reads lines from standard input; each side remembers what it said itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.prompt import prompt_ids
from holdfast.export.endings import end_tokens
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.trainer.tasks.text.answer import answers
from holdfast.trainer.tasks.text.evaluation import Sides

_CUT = " […]"  # behind an answer that ends at the limit
_POSITIONS = 4096  # where the model's config does not say


class Talk:
    """Two conversations with the same questions. ends: tokens that end an answer; limit: tokens of prompt and answer together."""

    def __init__(self, codec: Codec, ends: Sequence[int], limit: int, wishes: dict[str, Any]) -> None:
        self.codec, self.ends, self.limit, self.wishes = codec, ends, limit, wishes
        self.said: dict[str, list[Message]] = {"base": [], "tuned": []}
        self.forgot = False

    def prompt(self, side: str, question: str) -> list[int] | str:
        """Return the tokens of the conversation up to a question, without old turns that do not fit; words where it alone is too long."""
        system = [Message("system", self.wishes["system"])] if self.wishes.get("system") else []
        while True:
            try:
                return prompt_ids(self.codec, (*system, *self.said[side], Message("user", question)), self.limit - self.wishes["longest"])
            except BadRow as bad:
                if not self.said[side]:
                    return f"that is too long: {bad.detail}" if bad.reason == "too_long" else bad.detail
            self.said[side], self.forgot = self.said[side][2:], True

    def answer(self, side: str, model: Any, question: str) -> str:
        """Generate what a side says, with a mark where it was cut off."""
        prompt = self.prompt(side, question)
        if isinstance(prompt, str):
            return prompt
        codec, longest = self.codec, self.wishes["longest"]
        said = answers(model, [prompt], codec.tokenizer, codec.pad, self.ends, longest)[0]
        if self.wishes["history"]:
            self.said[side] += [Message("user", question), Message("assistant", said)]
        cut = len(codec.tokenizer.encode(said, add_special_tokens=False).ids) >= longest - 1
        return said + (_CUT if cut else "") if said else "(nothing)"


def chat(path: Path) -> int:
    """Answer each line with both models until the input ends (Ctrl-D) or says `exit`; or one prompt, and end."""
    wishes = json.loads(os.environ.get("HOLDFAST_CHAT") or "{}")
    wishes = {"prompt": "", "longest": 512, "history": True, "only": None, "system": None} | wishes
    run = RunFolder(path)
    config = run.config()
    model = read_model(config.model)
    limit = room_of(config, model.positions)
    wishes["longest"] = min(wishes["longest"], limit // 2)
    codec = codec_of(config, model.folder)
    talk = Talk(codec, end_tokens(codec, model), limit, wishes)
    planned = settings_of_process(read_timeline(run.timeline_file))
    sides = Sides(run, config, planned.model_copy(update={"device": None}))  # to talk, any device will do
    if wishes["prompt"]:
        _reply(talk, sides, wishes["prompt"])
        return 0
    remembers = "each remembers its own answers, /new forgets" if wishes["history"] else "each line is a question of its own"
    who = wishes["only"] or f"base and tuned ({run.path.name}) answer side by side"
    print(f"{who}; {remembers}; at most {wishes['longest']} tokens an answer; an empty line or Ctrl-D ends", flush=True)
    while True:
        if sys.stdin.isatty():
            print("\n> ", end="", flush=True)
        question = sys.stdin.readline().strip()
        if not question or question == "exit":
            return 0
        if question == "/new":
            talk.said = {"base": [], "tuned": []}
            continue
        _reply(talk, sides, question)


def room_of(config: Config, positions: int | None) -> int:
    """Return how many tokens of a conversation the model takes, behind those that a prompt adapter has learned."""
    before = config.adapter.virtual_tokens if config.adapter.kind.prefix else 0
    return max((positions or _POSITIONS) - before, 16)


def _reply(talk: Talk, sides: Sides, question: str) -> None:
    """Print what each side says."""
    only = talk.wishes["only"]
    if only != "tuned":
        with sides.base() as model:
            print(f"base : {talk.answer('base', model, question)}", flush=True)
    if only != "base":
        print(f"tuned: {talk.answer('tuned', sides.tuned, question)}", flush=True)
    if talk.forgot:
        print("(the conversation is longer than the model takes: its first turns are forgotten)", flush=True)
        talk.forgot = False
