"""What rows teach under published chat templates, held against transformers and against the training templates of TRL.

    git clone --depth 1 https://github.com/huggingface/trl && python benchmarks/chat_templates.py trl/trl/chat_templates

Each NAME.jinja is asked for the same conversations. `text`: our sequences are what transformers' own renderer writes of the turns up to
their last answer, for each sequence. `spans`: where the template, or NAME_training.jinja beside it, marks what is generated, the answers
learned are those marked, after white space and end tokens. The files are read, and nothing of them is kept.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow, Example
from holdfast.data.templates.chat_template import write
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.templates.sandbox import sandbox
from holdfast.data.templates.skeleton import followable
from holdfast.data.templates.template import THOUGHT, ChatTemplate

_SPECIAL = re.compile(r"<[|｜][^<>|｜\n]+[|｜]>|<end_of_turn>|<start_of_turn>|<turn\|>|<\|turn>|</s>|\[/?INST\]")
ASK = {"role": "user", "content": "How many are left?"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "stock", "arguments": {"part": "M3"}}}
TOOL = {"type": "function", "function": {"name": "stock", "description": "stock", "parameters": {"type": "object", "properties": {}}}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [ASK, {"role": "assistant", "content": "Nineteen."}]},
    "two turns": {"messages": [ASK, {"role": "assistant", "content": "Nineteen."}, ASK, {"role": "assistant", "content": "Twenty."}]},
    "reasoning": {"messages": [ASK, {"role": "assistant", "content": "Nineteen.", "reasoning_content": "Count them."}]},
    "a call": {
        "messages": [
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "stock", "tool_call_id": "abcdefghi", "content": "19"},
            {"role": "assistant", "content": "Nineteen."},
        ],
        "tools": [TOOL],
    },
}


def template_of(file: Path) -> ChatTemplate:
    source, environment = file.read_text(), sandbox()
    specials = tuple(sorted({*_SPECIAL.findall(source)}))
    shapes: Any = {} if followable(environment, source) else None
    return ChatTemplate(source, "<bos>", "<eos>", environment.from_string(source), shapes, specials=specials)


def theirs(source: str, row: dict[str, Any], until: int, mask: bool = False) -> tuple[str, list[Any]]:
    texts, spans = render_jinja_template(
        [row["messages"][:until]],
        tools=row.get("tools"),
        chat_template=source,
        return_assistant_tokens_mask=mask,
        bos_token="<bos>",
        eos_token="<eos>",
    )
    return texts[0], spans[0] if mask else []


def as_taken(row: dict[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """The row for a template that has no field for reasoning, or adds arguments to a text: as we hand it over."""
    turns = [dict(turn) for turn in row["messages"]]
    for turn in turns:
        if "reasoning_content" in turn and not template.thinking_names:
            turn["content"] = THOUGHT.format(turn.pop("reasoning_content")) + turn["content"]
        if "tool_calls" in turn and template.known.get("text_arguments"):
            turn["tool_calls"] = [CALL | {"function": {"name": "stock", "arguments": '{"part": "M3"}'}}]
    return row | {"messages": turns}


def compare_text(source: str, row: dict[str, Any], written: RenderedRow) -> str:
    """ "same", or how one of the sequences is no beginning of what transformers writes of the turns up to its last answer."""
    ends = [at + 1 for at, turn in enumerate(row["messages"]) if turn["role"] == "assistant"]
    for pieces in written.sequences:
        ours = "".join(text for text, _ in pieces)
        if not any(theirs(source, row, end)[0].startswith(ours) for end in ends):
            return "thought put back" if "<think>\n" in ours else "differs"
    return "same"


def compare_spans(training: str, row: dict[str, Any], written: RenderedRow) -> str:
    text, spans = theirs(training, row, len(row["messages"]), mask=True)
    marked = [bare(text[begin:end]) for begin, end in spans]
    ours = [bare(text) for pieces in written.sequences for text, learned in pieces if learned]
    if ours == marked:
        return "same"
    if len(ours) == len(marked) and all(one in two or two in one for one, two in zip(ours, marked, strict=True)):
        return "same answers, other frame"
    return f"{len(ours)} answers, {len(marked)} marked"


def bare(text: str) -> str:
    """A learned text without its special tokens and the white space around it."""
    return re.sub(r"\s+", " ", _SPECIAL.sub("", text).replace("<eos>", "")).strip()


def judge(file: Path, row: dict[str, Any]) -> tuple[str, str]:
    example: Example = parse_example(row, "auto")
    try:
        template = template_of(file)
        written = write(example, template)
    except BadRow as bad:
        try:
            theirs(file.read_text(), row, len(row["messages"]))
        except Exception:  # noqa: BLE001  a template's own refusal, in whatever form
            return "both refuse", ""
        return f"refused: {bad.reason}", ""
    row = as_taken(row, template)
    training = file if template.marked else file.with_name(f"{file.stem}_training.jinja")
    text = compare_text(file.read_text(), row, written)
    return text, compare_spans(training.read_text(), row, written) if training.is_file() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    files = sorted(parser.parse_args().folder.glob("*.jinja"))
    names = [*CONVERSATIONS]
    print("| template | " + " | ".join(f"{name}: text | spans" for name in names) + " |\n|" + "---|" * (2 * len(names) + 1))
    for file in files:
        cells = [cell for name in names for cell in judge(file, CONVERSATIONS[name])]
        print(f"| {file.stem} | " + " | ".join(cells) + " |")
    print(f"\n{len(files)} templates")


if __name__ == "__main__":
    main()
