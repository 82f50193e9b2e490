"""Token numbers and mask under published chat templates, held against transformers' own, and LLaMA-Factory's rules against theirs.

    python benchmarks/templates/published_templates.py                          fetches the templates
    python benchmarks/templates/compare_templates.py > benchmarks/results/chat-templates.md

Each template is asked for 24 conversations, with a tokenizer of single bytes: texts are equal where token numbers are, and no token
reaches over the place where an answer begins. `equal`, where the template marks what is generated: numbers and mask of
`apply_chat_template(..., return_assistant_tokens_mask=True)`; where it does not: each answer stands behind the prompt that
`add_generation_prompt=True` writes, and is what the whole text has there.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from published_templates import BOS, EOS, SYSTEM, Published, published, versions
from transformers import AutoTokenizer

from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow
from holdfast.data.templates.chat_template import write
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.templates.template import THOUGHT
from holdfast.data.tokens.codec import Codec, Tokens, load_codec

_SPECIAL = re.compile(r"<[|｜][^<>|｜\n]+[|｜]>|<end_of_turn>|<start_of_turn>|<turn\|>|<\|turn>|</s>|\[/?INST\]")
ASK, TELL = {"role": "user", "content": "How many are left?"}, {"role": "assistant", "content": "Nineteen."}
AGAIN, LAST = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Three,\n\nI think."}
RULE, THINK = {"role": "system", "content": SYSTEM}, {"reasoning_content": "Count them."}
FOUND = {"role": "tool", "name": "stock", "tool_call_id": "abcdefghi", "content": "19"}
TOOL = {"type": "function", "function": {"name": "stock", "description": "stock", "parameters": {"type": "object", "properties": {}}}}


def call(content: str = "", times: int = 1, **beside: Any) -> dict[str, Any]:
    calls = [
        {"id": f"abcdefgh{'ij'[at]}", "type": "function", "function": {"name": "stock", "arguments": {"part": f"M{at}"}}}
        for at in range(times)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls} | beside


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [ASK, TELL],
    "two turns": [ASK, TELL, AGAIN, LAST],
    "four turns": [ASK, TELL, AGAIN, LAST, ASK, LAST, AGAIN, TELL],
    "system": [RULE, ASK, TELL],
    "system, two turns": [RULE, ASK, TELL, AGAIN, LAST],
    "system, three turns": [RULE, ASK, LAST, AGAIN, TELL, ASK, TELL],
    "same answers": [ASK, TELL, ASK, TELL],
    "markup": [ASK, TELL | {"content": "<b>[x]</b> {{ y }} {% z %} 'a' \"b\" \\n"}],
    "other scripts": [ASK | {"content": "数?"}, TELL | {"content": "Zwölf 🙂 数"}, AGAIN, LAST],
    "space around": [ASK | {"content": " How?\n"}, TELL | {"content": "\n Nineteen. \n"}, AGAIN, LAST],
    "reasoning": [ASK, TELL | THINK],
    "reasoning, two turns": [ASK, TELL | THINK, AGAIN, LAST | THINK],
    "reasoning, first of two": [ASK, TELL | THINK, AGAIN, LAST],
    "reasoning, last of two": [ASK, TELL, AGAIN, LAST | THINK],
    "reasoning in the text": [ASK, TELL | {"content": "<think>\nCount them.\n</think>\n\nNineteen."}],
    "system, reasoning": [RULE, ASK, TELL | THINK, AGAIN, LAST | THINK],
    "a call": [ASK, call(), FOUND, TELL],
    "a call at the end": [ASK, call()],
    "system, a call": [RULE, ASK, call(), FOUND, TELL, AGAIN, LAST],
    "a call with words": [ASK, call("Let me look."), FOUND, TELL],
    "a call with reasoning": [ASK, call(**THINK), FOUND, TELL | THINK],
    "two calls": [ASK, call(times=2), FOUND, FOUND | {"tool_call_id": "abcdefghj"}, TELL],
    "two rounds of calls": [ASK, call(), FOUND, call(), FOUND, TELL],
    "calls in two turns": [ASK, call(), FOUND, TELL, AGAIN, call(), FOUND, LAST],
}


def codec_of(folder: Path, source: str) -> Codec:
    """Write a model folder with this template and a tokenizer of single bytes and the template's special tokens; load it."""
    bytes_alone = tokenizers.models.BPE({text: at for at, text in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}, [])
    tokenizer = tokenizers.Tokenizer(bytes_alone)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, *sorted({*_SPECIAL.findall(source)} - {BOS, EOS})])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(source)
    return load_codec(folder)


BYTES = "more bytes of a character"
LAST_ALONE = "end of the last turn"
THOUGHT_OPEN = "thought put back"
PROMPT = "prompt_differs"
WAYS = ("equal", LAST_ALONE, THOUGHT_OPEN, PROMPT)


class Compared:
    """One template: its codec, transformers' tokenizer of the same folder, and what comes of a conversation."""

    def __init__(self, source: str, folder: Path) -> None:
        self.codec = codec_of(folder, source)
        self.theirs = AutoTokenizer.from_pretrained(folder)

    def judge(self, turns: list[dict[str, Any]]) -> str:
        """Return "equal", "both refuse", or in what way the two differ; "unexplained: ..." where we say nothing of it."""
        tools = [TOOL] if any("tool_calls" in turn for turn in turns) else []
        try:
            written = write(parse_example({"messages": turns} | ({"tools": tools} if tools else {}), "auto"), self.codec.template)
        except BadRow as bad:
            return "both refuse" if self._refuses(turns, tools) else f"rejected: {bad.reason}"
        turns = self._as_taken(turns)
        return self._marked(turns, tools, written) if self.codec.template.marked else self._behind_prompts(turns, tools, written)

    def _as_taken(self, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the turns for a template that has no field for reasoning, or adds arguments to a text: as we hand them over."""
        template, found = self.codec.template, [dict(turn) for turn in turns]
        for turn in found:
            if "reasoning_content" in turn and not template.thinking_names:
                turn["content"] = THOUGHT.format(turn.pop("reasoning_content")) + turn["content"]
            elif "reasoning_content" in turn:
                turn["thinking"] = turn["reasoning_content"]
            elif template.takes_thoughts_out and turn["content"].startswith("<think>"):
                turn["thinking"] = turn["reasoning_content"] = "Count them."
                turn["content"] = turn["content"].partition("</think>\n\n")[2]
            if "tool_calls" in turn and template.known.get("text_arguments"):
                functions = [one["function"] | {"arguments": json.dumps(one["function"]["arguments"])} for one in turn["tool_calls"]]
                turn["tool_calls"] = [one | {"function": own} for one, own in zip(turn["tool_calls"], functions, strict=True)]
        return found

    def _refuses(self, turns: list[dict[str, Any]], tools: list[Any]) -> bool:
        try:
            self._text(turns, tools)
        except Exception:  # noqa: BLE001  a template's own refusal, in whatever form
            return True
        return False

    def _text(self, turns: list[dict[str, Any]], tools: list[Any], prompt: bool = False) -> str:
        return str(self.theirs.apply_chat_template(turns, tools=tools or None, tokenize=False, add_generation_prompt=prompt))

    def _marked(self, turns: list[dict[str, Any]], tools: list[Any], written: RenderedRow) -> str:
        given = {"return_assistant_tokens_mask": True, "return_dict": True}
        found = self.theirs.apply_chat_template(turns, tools=tools or None, **given)
        ids, mask = self._encoded(written)
        if ids != found["input_ids"]:
            return "unexplained: other token numbers"
        more = [at for at, (one, two) in enumerate(zip(mask, found["assistant_masks"], strict=True)) if one > two]
        if mask == found["assistant_masks"]:
            return "equal"
        if not more:
            return _told(written)
        text = self.codec.tokenizer.decode(ids, skip_special_tokens=False)
        places = self.codec.tokenizer.encode(text, add_special_tokens=False).offsets
        marked = {place for place, own in zip(places, found["assistant_masks"], strict=True) if own}
        return BYTES if {places[at] for at in more} <= marked else "unexplained: more is learned than marked"

    def _encoded(self, written: RenderedRow) -> tuple[list[int], list[int]]:
        (ours,) = self.codec.encode(written.sequences, Rules(max_tokens=100_000))
        assert isinstance(ours, Tokens)
        return ours.ids, [*map(int, ours.learned)]

    def _behind_prompts(self, turns: list[dict[str, Any]], tools: list[Any], written: RenderedRow) -> str:
        expected = []
        for at in (at for at, turn in enumerate(turns) if turn["role"] == "assistant"):
            try:
                expected.append((self._text(turns[:at], tools, True), self._text(turns[: at + 1], tools)))
            except Exception:  # noqa: BLE001  it writes the whole and refuses the beginning of it
                return _told(written)
        ways = {self._way(before, said, expected) for before, said in _learned(written)}
        missing = sum(1 for _ in _learned(written)) != len(expected)
        unexplained = sorted(way for way in ways if way.startswith("unexplained"))
        return unexplained[0] if unexplained else _told(written) if missing or PROMPT in ways else max(ways, key=WAYS.index)

    def _way(self, before: str, said: str, expected: list[tuple[str, str]]) -> str:
        """Return in which of WAYS a learned piece stands in one of the texts expected: the prompt, and the prompt with its answer."""
        ends = said.rstrip().endswith(self.codec.template.ends)
        if any(before == prompt and before + said == whole for prompt, whole in expected):
            return "equal"
        if any(before == prompt and ends and whole.startswith(before + said) for prompt, whole in expected):
            return LAST_ALONE
        rest = said.partition("</think>")[2].lstrip()
        if before.rstrip().endswith("<think>") and rest and any(before == prompt and whole.endswith(rest) for prompt, whole in expected):
            return THOUGHT_OPEN
        if any(whole.startswith(before + said) or (before == prompt and said.strip() in whole) for prompt, whole in expected):
            return PROMPT
        return "unexplained: nothing that transformers writes"

    def as_factory(self, turns: list[dict[str, Any]], rules: Any) -> str:
        """Return "equal", or where numbers and mask are not those of LLaMA-Factory's own rules; "" for what those do not read."""
        if any("tool_calls" in turn or "reasoning_content" in turn or turn["content"].startswith("<think>") for turn in turns):
            return ""
        system = turns[0]["content"] if turns[0]["role"] == "system" else None
        pairs = rules.encode_multiturn(self.theirs, turns[system is not None :], system, None)
        ids, mask = self._encoded(write(parse_example({"messages": turns}, "auto"), self.codec.template))
        theirs = [number for pair in pairs for part in pair for number in part]
        if ids == theirs:
            return "equal" if mask == [own for pair in pairs for own, part in enumerate(pair) for _ in part] else "other mask"
        decode = self.codec.tokenizer.decode
        without = decode(theirs, skip_special_tokens=False).replace(rules.add_thought(), "")
        return "empty thought" if decode(ids, skip_special_tokens=False) == without else "unexplained: other text"


def _learned(written: RenderedRow) -> Iterator[tuple[str, str]]:
    """Yield the text before each learned piece of its sequence, and the piece."""
    for pieces in written.sequences:
        before = ""
        for text, learned in pieces:
            if learned:
                yield before, text
            before += text


_NOTED = ("tool_calls_left_out", "turn_left_out", PROMPT, "reasoning_left_out", "content_left_out", "answer_not_learned")


def _told(written: RenderedRow) -> str:
    """Return the first of our notes that says why what is learned is not what the whole text has."""
    notes = dict(written.notes)
    return next((reason for reason in _NOTED if reason in notes), "unexplained: no note")


def judged(one: Published) -> tuple[dict[str, str], dict[str, str]]:
    """Return what comes of each conversation under the template, and beside LLaMA-Factory's rules."""
    with tempfile.TemporaryDirectory() as folder:
        compared = Compared(one.source, Path(folder))
        found = {name: compared.judge(turns) for name, turns in CONVERSATIONS.items()}
        rules = {name: compared.as_factory(turns, one.rules) for name, turns in CONVERSATIONS.items()} if one.rules else {}
        return found, {name: way for name, way in rules.items() if way}


PAGE = """# What rows teach under published chat templates

Written by `benchmarks/templates/compare_templates.py` from {versions};
transformers {transformers}. {templates} templates are asked for {conversations}
conversations each (several turns, system, reasoning, tool calls, odd texts), {cases:,} in all,
with a tokenizer of single bytes.

*equal*, where a template marks what is generated: token numbers and mask of `apply_chat_template(..., return_assistant_tokens_mask=True)`;
where it does not: each answer stands behind the prompt that `add_generation_prompt=True` writes, and is what the whole text has there.
*both refuse*: the template refuses such turns (roles must alternate, no system). What differs has a reason, which `data check` counts, too:

* **{PROMPT}**: the template's prompt is not what stands before the answer in its own text. The system turn stands in the last user
  turn alone (Mistral), an empty thought stands in one of the two (Qwen 3.5, Gemma 4, Nemotron 3), the prompt opens a thought (DeepSeek).
* **{LAST_ALONE}**: what is written behind the last turn alone (a second end) is not learned of earlier ones.
* **{THOUGHT_OPEN}**: the template throws reasoning away, though its prompt opens it; it is learned there, as a server has it written.
* **tool_calls_left_out**, **rejected: no_place_for_tool_calls**: the template has no place for calls; with no other answer, no row is left.
* **{BYTES}**: an answer ends with a character of several bytes, of which transformers' mask has the first alone.

| package | templates | {conversations} conversations |
|---|---|---|
{table}

LLaMA-Factory's own rules (`encode_multiturn`), token numbers and mask, of conversations of text alone: {factory}. *empty thought*: the
rules put one before an answer without reasoning; the template that LLaMA-Factory writes for the model does not.
"""


def lines_of(templates: list[Published]) -> tuple[list[str], Counter[str]]:
    """Return a line for templates of a package with the same outcome, and what came beside LLaMA-Factory's rules."""
    lines: dict[tuple[str, str], list[str]] = {}
    factory: Counter[str] = Counter()
    for one in templates:
        ways, rules = judged(one)
        factory.update(rules.values())
        told = ", ".join(f"{way} {count}" for way, count in sorted(Counter(ways.values()).items()))
        lines.setdefault((one.package, told), []).append(one.name)
    return [f"| {package} | {', '.join(names)} | {told} |" for (package, told), names in sorted(lines.items())], factory


def page() -> str:
    """Return the page of all templates that are there."""
    found = published()
    if not found:
        raise SystemExit("no templates are there -> python benchmarks/templates/published_templates.py")
    lines, factory = lines_of(found)
    counts = {"templates": len(found), "conversations": len(CONVERSATIONS), "cases": len(found) * len(CONVERSATIONS)}
    names = {"PROMPT": PROMPT, "LAST_ALONE": LAST_ALONE, "THOUGHT_OPEN": THOUGHT_OPEN, "BYTES": BYTES}
    beside = ", ".join(f"{way} {count:,}" for way, count in factory.most_common())
    rest = {"versions": ", ".join(versions()), "transformers": transformers.__version__, "table": "\n".join(lines), "factory": beside}
    return PAGE.format(**counts, **names, **rest)


if __name__ == "__main__":
    print(page(), end="")
