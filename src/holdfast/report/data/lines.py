"""What `data check` shows in a terminal: the counts, the reasons, and the worst rows quoted. Every text of a row is escaped."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.data.templates.dropped import told_of_dropped
from holdfast.data.tokens.taught import told_of
from holdfast.report.words import beyond, row_weights, unused_fields, visible

_EXAMPLES = 2
_LANGUAGES = 12  # in one line
_WIDTH = 120  # of what is quoted of a row
_DETAIL = 500
_ONE_SIDED = 0.7  # of the pairs
_LEANING = ": a model learns that length, whatever else the answers say"


def show(answer: Json) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(headline(answer), markup=False)
    for line in facts(answer):
        console.print(wrapped(f"  {line}", console.width if console.is_terminal else 0, 4), markup=False)
    reasons(console, "what is wrong", answer["by_reason"], answer)
    reasons(console, "notes (rows that are kept as they are)", repeated(answer) | answer["notes"], answer)
    reasons(console, "rows in another language than the rest (kept as they are)", strays(answer), answer)
    if answer.get("out"):
        console.print(
            f"clean rows: {answer['out']}; rejects: {answer['rejects']}; originals of repaired rows: {answer['originals_of_mended']}",
            markup=False,
        )


def wrapped(text: str, width: int, indent: int) -> str:
    """Return the text in lines of at most `width` columns, broken between words, all but the first indented; as it is where width is 0."""
    if not width:
        return text
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def headline(answer: Json) -> str:
    """Return the law of rows in one line."""
    counts = f"{counted(answer['rows'], 'row')} = {answer['kept']:,} kept + {answer['mended']:,} repaired + {answer['rejected']:,} rejected"
    return f"{counts}  ({answer['seconds']:.1f} s, {answer['speed']['rows_per_s']:,.0f} rows/s)"


def facts(answer: Json) -> list[str]:
    """Describe forms, layouts and lengths in sentences."""
    forms = ", ".join(sorted({file["form"] for file in answer["files"]}))
    layouts = ", ".join(f"{layout} {count:,}" for layout, count in answer["layouts"].items()) or "none"
    lines = [f"{counted(len(answer['files']), 'file')} ({forms}); layouts: {layouts}"]
    sizes = {file["file"]: file["bytes"] for file in answer["files"]}
    for file in answer["empty_files"]:
        why = f"holds no row ({sizes[file]:,} bytes)" if sizes[file] else "is empty (0 bytes)"
        lines.append(f"! {visible(file)} {why}: train refuses it")
    if answer["mixed_files"]:
        lines.append(f"! rows of different layouts in one file: {', '.join(answer['mixed_files'][:3])}")
    if found := answer["in_held_out"]:
        same = answer["same_as_held_out"]
        lines.append(
            f"! {counted(found, 'row')} in the held-out set: {same:,} word for word but for case, {found - same:,} by the prompt alone"
        )
    if answer["kept"] + answer["mended"] == 1:
        lines.append("! of 1 row none can be held out: nothing will say whether a model trained on it is better than its base")
    if answer["max_tokens"]:
        lines += [f"! {told}" for told in beyond(answer["by_reason"], f"{answer['max_tokens']:,} tokens")]
    lines += [*told_of(answer["learned"]), *told_of_dropped(answer["notes"])]
    lines += map(visible, unused_fields(answer["unused_fields"]))
    lines += map(visible, _many_answers(answer["many_answers"], answer["layouts"], answer["conflicting_answers"]))
    if told := row_weights(answer["weights"], answer["kept"] + answer["mended"]):
        lines.append(told)
    elif answer["row_weight"]:
        lines.append(f"! no row has a weight in a field {visible(repr(answer['row_weight']))}: train refuses it")
    tokens = answer["tokens"]
    if tokens["max"] is not None:
        spread = ", ".join(f"{name} {tokens[name]:,}" for name in ("min", "p50", "p90", "p99", "max"))
        one = "a pair, its prompt with either answer" if list(answer["layouts"]) == ["preference"] else "a row"
        lines.append(f"tokens: {tokens['total']:,} in all; {one}: {spread}; counted by {answer['tokenizer']}")
        lines.append(f"batches of 8 rows as they stand would be {answer['outlook']['padding']:.0%} padding; packed ones, the default, none")
    if len(answer["scripts"]) > 1:
        lines.append("scripts: " + ", ".join(f"{script} {count:,}" for script, count in answer["scripts"].items()))
    if longer := answer["longer_answers"]:
        pairs = sum(longer.values())
        words = f"in {longer['better']:,} of {counted(pairs, 'pair')} the better answer is the longer one, in {longer['worse']:,} the worse"
        lines.append(f"{words}{_LEANING if max(longer['better'], longer['worse']) >= _ONE_SIDED * pairs else ''}")
    if marked := answer["marked"]:
        alone = "" if all(marked.values()) else ": of one kind alone no model learns which answers are better"
        lines.append(f"{'! ' if alone else ''}{counted(marked['good'], 'answer')} marked as good, {marked['bad']:,} as bad{alone}")
    if answer["languages"]:
        lines.append("languages: " + ", ".join(f"{language} {count:,}" for language, count in [*answer["languages"].items()][:_LANGUAGES]))
    if answer["stray_languages"]:
        few = sum(answer["stray_languages"].values())
        most = next(language for language in answer["languages"] if language != "unclear")
        lines.append(f"! {few:,} rows are in other languages than the rest ({most}); about one row in a thousand is labelled wrongly")
    if look := answer.get("second_look"):
        usual = f"median loss {look['median']:.2f} nats, spread {look['spread']:.2f}" if look["median"] is not None else "too few to tell"
        lines.append(f"second look: {look['rows']:,} rows under {look['model']}; {usual}")
    return lines


def strays(answer: Json) -> dict[str, int]:
    """Count the rows in another language than the rest, under the names of their examples."""
    return {f"language_{language}": count for language, count in answer["stray_languages"].items()}


def repeated(answer: Json) -> dict[str, int]:
    """Count the rows that repeat something, under the names of their kinds."""
    kinds = {"duplicates": "duplicate", "near_duplicates": "near_duplicate"}
    counts = {kinds.get(key, key): answer[key] for key in ("duplicates", "near_duplicates", "conflicting_answers", "in_held_out")}
    return {key.replace("answers", "answer"): count for key, count in counts.items() if count and key not in answer["by_reason"]}


def _many_answers(found: Json, layouts: Json, conflicting: int) -> list[str]:
    """Say where a field that is not used tells the answers of one prompt apart; empty where none does."""
    if not found or not found["told_apart_by"]:
        return []
    rows, prompts = counted(found["rows"], "row"), counted(found["prompts"], "prompt")
    told = ", ".join(f"{name} tells {count:,} of them apart" for name, count in found["told_apart_by"].items())
    most = f"the most, {found['most']:,}, have that of {Path(found['file']).name}:{found['line']}"
    if (more := conflicting - (found["rows"] - found["prompts"])) > 0:
        most += f"; {more:,} more were not looked at"
    alpaca = f" (Alpaca rows without an input: --field input={next(iter(found['told_apart_by']))})" if "alpaca" in layouts else ""
    asked = f"{told}, but is not part of what is asked: write it into the prompt{alpaca}"
    return [f"! {rows} share {prompts} and have different answers ({most}): {asked}"]


def reasons(console: Console, title: str, counts: dict[str, int], answer: Json) -> None:
    """Print each reason with its rows and a few of them quoted."""
    if counts:
        console.print(f"{title}:", markup=False)
    for reason, count in sorted(counts.items(), key=lambda item: -item[1]):
        console.print(f"  [bold]{count:>9,}[/bold]  {escape(reason)}")
        for example in answer["examples"].get(reason, [])[:_EXAMPLES]:
            place = f"{Path(example['file']).name}:{example['line']}"
            before = " " * (len(place) + 15)
            told = wrapped(before + visible(example["detail"])[:_DETAIL], console.width if console.is_terminal else 0, 15)
            console.print(f"             [dim]{escape(place)}[/dim]  {escape(told.lstrip())}")
            console.print(f"               [dim]{escape(visible(example['text'])[:_WIDTH])}[/dim]")
