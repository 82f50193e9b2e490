"""Talk to base and tuned model side by side. Reads lines from standard input; keeps no history, so that both always see the same."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.base_model.folder import read_model
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import Example, Message
from holdfast.data.tokens.chat_template import pieces
from holdfast.data.tokens.codec import Tokens, load_codec
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.trainer.tasks.text.answer import answers
from holdfast.trainer.tasks.text.evaluation import Sides


def chat(path: Path) -> int:
    """Answer each line with both models until the input ends (Ctrl-D) or says `exit`."""
    run = RunFolder(path)
    config = run.config()
    codec = load_codec(read_model(config.model).folder)
    planned = settings_of_process(read_timeline(run.timeline_file))
    sides = Sides(run, config, planned.model_copy(update={"device": None}))  # to talk, any device will do
    show = sys.stdin.isatty()
    print(f"base and tuned ({run.path.name}) answer side by side; an empty line or Ctrl-D ends", flush=True)
    while True:
        if show:
            print("\n> ", end="", flush=True)
        question = sys.stdin.readline().strip()
        if not question or question == "exit":
            return 0
        example = Example(messages=(Message("user", question), Message("assistant", "x")))
        given = [piece for piece in pieces(example, codec.template) if not piece[1]]
        tokens = codec.encode([[*given, ("x", True)]], Rules(max_tokens=config.train.max_tokens))[0]
        if not isinstance(tokens, Tokens):
            print(f"that is too long: {tokens.detail}", flush=True)
            continue
        prompt = [number for number, learned in zip(tokens.ids, tokens.learned, strict=True) if not learned]
        longest = config.evaluate.max_new_tokens
        with sides.base() as model:
            base = answers(model, [prompt], codec.tokenizer, codec.pad, codec.eos, longest)[0]
        tuned = answers(sides.tuned, [prompt], codec.tokenizer, codec.pad, codec.eos, longest)[0]
        print(f"base : {base}\ntuned: {tuned}", flush=True)
