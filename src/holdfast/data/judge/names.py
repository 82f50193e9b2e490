"""What fields of a row are called: ours, theirs, and in which case. Reads no text."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.data.files.tables import MISSING


class Pair(NamedTuple):
    """A question and its answer in fields of their own; `extra` is put behind the question."""

    layout: str
    question: str
    extra: str
    answer: str


PAIRS = (
    Pair("alpaca", "instruction", "input", "output"),
    Pair("alpaca", "instruction", "context", "response"),
    Pair("prompt-completion", "prompt", "", "completion"),
    Pair("question-answer", "question", "context", "answer"),
    Pair("question-answer", "prompt", "", "response"),
    Pair("question-answer", "input", "", "output"),
    Pair("question-answer", "problem", "", "solution"),
    Pair("question-answer", "query", "", "response"),
    Pair("question-answer", "question", "", "response"),
    Pair("question-answer", "query", "", "answer"),
    Pair("question-answer", "input_text", "", "output_text"),
    Pair("question-answer", "user", "", "assistant"),
    Pair("question-answer", "human", "", "assistant"),
    Pair("question-answer", "human", "", "gpt"),
    Pair("question-answer", "human", "", "bot"),
    *(
        Pair("question-answer", question, "context" if question == "question" else "", answer)
        for question in ("instruction", "prompt", "question", "query", "problem", "input")
        for answer in ("answer", "response", "completion", "output")
    ),  # of other data sets: those that are no pair of the above, and read after `text`
)
FIRST_PAIRS = 15  # of them, before a row's `text`
TALKS = ("messages", "conversations", "conversation", "contents", "dialogue", "dialog", "chat", "turns", "content")  # hold turns
TURN_MARKS = frozenset(
    (
        "loss",
        "loss_scale",
        "loss_weight",
        "train",
        "training",
        "trainable",
        "weight",
        "loss_mask",
        "training_mask",
        "train_mask",
        "train_detail",
        "masked",
        "output_with_loss",
    )
)  # of a turn: whether it is learned; masked: whether it is not
ROW_MASKS = frozenset(("loss_mask", "loss_masks", "training_mask", "train_mask"))  # of a row: the same for each of its turns
BESIDE_PAIRS = frozenset(("system", "systeminstruction", "system_instruction", "history"))  # what stands before a question
TWO_ANSWERS = (
    ("chosen", "rejected"),
    ("response_j", "response_k"),
    ("preferred", "dispreferred"),
    ("preferred_output", "non_preferred_output"),
)  # the better one first
REJECTED = ("rejected_response", "rejected_messages", "rejected_input")  # beside an answer of any layout: the worse one
MARKS = ("label", "kto_tag")  # beside one answer: whether it is a good one
THINKING = ("reasoning_content", "reasoning", "thinking")  # of a turn: what was thought before the answer
FIELDS = frozenset(
    {name for pair in PAIRS for name in pair[1:] if name} | {"text", "tools", "functions", *TALKS} | BESIDE_PAIRS
)  # all that a row is read from
PREFERENCE = frozenset((*(name for names in TWO_ANSWERS for name in names), *REJECTED, *MARKS))
KNOWN_NAMES = FIELDS | PREFERENCE


def under_our_names(value: dict[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Add to the row, under our names, the fields that it names otherwise: those that `fields` maps, and those of another case."""
    if not fields and value.keys() <= KNOWN_NAMES:
        return value
    cased: dict[str, list[str]] = {}
    for name in value:
        cased.setdefault(in_our_case(name), []).append(name)
    for ours, theirs in fields.items():
        same = [theirs] if theirs in value else cased.get(in_our_case(theirs), [])
        if len(same) == 1:
            given = value[same[0]]
            value = value | {ours: json.dumps(given) if isinstance(given, int | float) else given}  # asked for: learned as its text
    meant = {ours: same[0] for ours, same in cased.items() if ours in KNOWN_NAMES and ours not in value and len(same) == 1}
    return value | {ours: value[theirs] for ours, theirs in meant.items()} if meant else value


def fields_read(value: Mapping[str, Any], layout: str, fields: Mapping[str, str]) -> set[str]:
    """Return the names in `value`, as they stand there, that a row of this layout is read from. `fields`: names of ours and theirs."""
    ours_of = {name: {in_our_case(name)} for name in value}
    for ours, theirs in fields.items():
        for name in ours_of:
            if in_our_case(theirs) == in_our_case(name):
                ours_of[name] = ours_of[name] | {ours}
    named = dict.fromkeys(one for ours in ours_of.values() for one in ours)
    pair = pair_of(named, layout)
    if pair:
        read = set(pair[1:])
    elif layout == "text":
        read = {"text" if "text" in named else "content"}
    elif layout == "preference":
        read = {*KNOWN_NAMES} - ({"history"} if any(name in named for name in ("messages", "conversations")) else set())
    else:
        turns = next((name for name in TALKS if name in named), "")
        one = next((with_extra(pair, named) for pair in PAIRS if pair.question in named and pair.answer in named), None)
        talk = next((name for name, ours in ours_of.items() if turns in ours), "")
        read = {turns, "tools", "functions", answer_beside(value, talk), *BESIDE_PAIRS, *ROW_MASKS}
        read |= set() if turns or one is None else set(one[1:])
        read -= {"history"} if turns else set()
    return {name for name, ours in ours_of.items() if ours & read}


def answer_beside(value: Mapping[str, Any], talk: str) -> str:
    """Return the name of the field with the answer to turns of which the last one asks; "" where the turns need none."""
    turns = value.get(talk)
    last = turns[-1] if isinstance(turns, list) and turns else None
    if not isinstance(last, dict) or last.get("role") != "user":
        return ""
    return next((name for name in _ANSWERS_BESIDE if value.get(name) and isinstance(value[name], str | dict)), "")


_ANSWERS_BESIDE = ("response", "completion", "answer", "output", "message")


def in_our_case(name: Any) -> str:
    return str(name).strip().lower()


def pair_of(value: Mapping[str, Any], layout: str) -> Pair | None:
    mine = [pair for pair in PAIRS if pair.layout == layout]
    found = next((pair for pair in mine if pair.question in value and pair.answer in value), mine[0] if mine else None)
    return found and with_extra(found, value)


def with_extra(pair: Pair, value: Mapping[str, Any]) -> Pair:
    """Return the pair with the field that the row has behind its question: of an instruction either, whatever its answer is called."""
    if pair.question != "instruction" or pair.extra in value:
        return pair
    return pair._replace(extra=next((name for name in _BEHIND_INSTRUCTION if name in value), pair.extra))


_BEHIND_INSTRUCTION = ("input", "context")


def asked(question: str, extra: str) -> str:
    """Join a question and its input (`extra`) by a line break; either may be missing."""
    return "\n".join(filter(str.strip, (question, "" if extra.strip() in MISSING else extra)))


def name_them(
    value: Mapping[str, Any], as_it_stands: Mapping[str, Any], is_read: Callable[[Mapping[str, Any], Mapping[str, str]], bool]
) -> str:
    """Name the options that map this row's question and answer, with names it has, the likeliest first; "" where none helps.

    is_read: whether the row is read where the fields are called so.
    """
    known = next((pair for pair in PAIRS if pair.question in value or pair.answer in value), PAIRS[3])
    missing = [(ours, like) for ours, like in ((known.question, _QUESTIONS), (known.answer, _ANSWERS)) if ours not in value]
    texts = [
        name
        for name, inside in as_it_stands.items()
        if (isinstance(inside, str) or (isinstance(inside, int | float) and in_our_case(name) in _CLASSES))
        and in_our_case(name) not in known
        and not (isinstance(inside, str) and is_about_the_row(name, inside, as_it_stands))
    ]
    meant: dict[str, str] = {}
    for ours, like in missing:
        if name := _likeliest([name for name in texts if name not in meant.values()], like):
            meant[ours] = name
    left = [name for name in texts if name not in meant.values()]
    meant |= dict(zip([ours for ours, _ in missing if ours not in meant], left, strict=False))
    told = [(ours, meant.get(ours, "THEIRS")) for ours, _ in missing]
    if not told or (len(meant) == len(missing) and not is_read(as_it_stands, meant)):
        return ""
    options = " ".join("--field " + shlex.quote(f"{ours}={theirs}") for ours, theirs in told)
    in_config = ", ".join(f"{ours}: {theirs}" for ours, theirs in told)
    return f"say what yours are called, for example {options}, in a config data.fields: {{{in_config}}}"


def two_answers(names: Iterable[str]) -> tuple[str, str] | None:
    """Find the two columns that are called alike but for a word, which says of one that it is the better and of the other the worse.

    As "good_answer" and "bad_answer", "Antwort gut" and "Antwort schlecht", "winner" and "loser". Returns (better, worse).
    """
    good, bad = ([(rest, name) for name in names if (rest := _without(name, words)) is not None] for words in (_GOOD, _BAD))
    return next(((better, worse) for rest, better in good for other, worse in bad if rest == other and better != worse), None)


def _without(name: str, words: frozenset[str]) -> str | None:
    """Return a column's name without the one of these words in it, in small letters without accents; None where it has none."""
    plain = _plain(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    parts = re.findall(r"[^\W\d_]+|\d+", plain)
    if found := next((part for part in parts if part in words), None):
        return " ".join(part.removesuffix("s") for part in parts if part != found)
    written_on = next((word for word in sorted(words, key=len, reverse=True) if word in plain and word > "\u2e80"), None)
    return None if written_on is None else plain.replace(written_on, "", 1).strip()


def _plain(text: str) -> str:
    """Return a text in small letters without accents."""
    return "".join(one for one in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(one))


def name_answers(row: Mapping[str, Any]) -> str:
    """Name the options that map two answers of which one is the better, and their question; "" where no two fields are called like such."""
    texts = [name for name, inside in row.items() if name not in PREFERENCE and (inside is None or isinstance(inside, str | list | dict))]
    better, worse = two_answers(texts) or (_likeliest(texts, like) for like in (_BETTER, _WORSE))
    if not better or not worse or better == worse:
        return ""
    told = [("chosen", better), ("rejected", worse)]
    if FIELDS.isdisjoint(map(in_our_case, row)):
        question = _likeliest([name for name in texts if name not in (better, worse)], _QUESTIONS)
        told = [*([("prompt", question)] if question else []), *told]
    options = " ".join("--field " + shlex.quote(f"{ours}={theirs}") for ours, theirs in told)
    in_config = ", ".join(f"{ours}: {theirs}" for ours, theirs in told)
    return f"say what yours are called, for example {options}, in a config data.fields: {{{in_config}}}"


def is_about_the_row(name: str, text: str, row: Iterable[str] = ()) -> bool:
    """Return whether a column says where a row is from or how it is kept, as an id, a hash, a data set's name: by its name or its text.

    `source` is what is asked for where a `target` stands beside it in the row.
    """
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if words == ["source"] and "target" in map(in_our_case, row):
        return False
    return bool(words and _ABOUT_THE_ROW.fullmatch(words[-1])) or bool(_KEPT_AS.fullmatch(text.strip()))


_ABOUT_THE_ROW = re.compile(
    "ids?|idx|index|uu?id|guid|hash|sha|md|checksum|digest|signature|sources?|src|origin|provenance|datasets?|corpus|subset|split|names?|urls?|uri"
    "|link|href|file|filename|path|folder|lang|language|locale|licen[sc]e|model|engine|author|annotator|version|revision|date|datetime|time"
    "|timestamp|created|updated|nr|no|num|nummer|numero|row|zeile"
)  # the last word of a column's name
_KEPT_AS = re.compile(
    r"(?i)[0-9a-f]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{5,}|https?://\S+|\S+\.(?:jsonl?|parquet|csv|txt|md|html)"
)


def _likeliest(names: Iterable[str], like: tuple[str, ...]) -> str:
    """Return the name that is most like one of `like`; an empty text where none is."""
    scored = [(max(difflib.SequenceMatcher(None, in_our_case(name), one).ratio() for one in like), name) for name in names]
    best, name = max(scored, default=(0.0, ""))
    return name if best > _ALIKE else ""


_QUESTIONS = (
    *("question", "instruction", "prompt", "input", "query", "user", "human", "request", "source", "q"),
    *("frage", "aufgabe", "pregunta", "pergunta", "domanda", "vraag", "pytanie", "otázka", "soru"),
    *("вопрос", "питання", "问题", "質問", "질문"),
)
_ANSWERS = (
    *("answer", "output", "response", "completion", "reply", "assistant", "target", "solution", "label", "ans", "a"),
    *("antwort", "lösung", "respuesta", "resposta", "réponse", "risposta", "antwoord", "odpowiedź", "odpověď", "cevap"),
    *("ответ", "відповідь", "回答", "答案", "답변"),
)
_BETTER = ("chosen", "better", "preferred", "accepted", "winner", "good", "win")
_WORSE = ("rejected", "worse", "dispreferred", "loser", "bad", "lose")
_GOOD = frozenset(
    _plain(
        "chosen better best preferred accepted winner winning win good correct right positive gut gute guter gutes besser "
        "bessere besserer beste bevorzugt bevorzugte gewählt gewählte richtig richtige bon bonne bons bonnes meilleur meilleure "
        "préféré préférée choisi choisie correcte bueno buena mejor elegido elegida preferido preferida correcto correcta bom "
        "boa melhor escolhido escolhida correto buono buona migliore scelto scelta preferito corretta goed goede beter betere "
        "gekozen dobra dobry lepsza lepszy wybrana wybrany dobrá lepší iyi seçilen хороший хорошая лучший лучшая выбранный "
        "гарна хороша краща обрана 好 优 选中 正确 良い 採用 選択 좋은 선택"
    ).split()
)
_BAD = frozenset(
    _plain(
        "rejected worse worst dispreferred discarded loser losing lose bad incorrect wrong negative schlecht schlechte "
        "schlechter schlechtes schlechtere schlechterer schlechteste abgelehnt abgelehnte verworfen verworfene falsch falsche "
        "mauvais mauvaise pire rejeté rejetée incorrecte malo mala peor rechazado rechazada incorrecto incorrecta ruim má pior "
        "rejeitado rejeitada incorreto cattivo cattiva peggiore rifiutato rifiutata scartato scartata sbagliata slecht slechte "
        "slechter slechtere afgewezen zła zły gorsza gorszy odrzucona odrzucony špatná horší kötü reddedilen плохой плохая "
        "худший худшая отклонённый погана гірша відхилена 坏 差 拒绝 错误 悪い 不採用 却下 나쁜 거절"
    ).split()
)
_CLASSES = ("label", "labels", "target", "class")  # of which a number is what is asked for
_ALIKE = 0.6  # of the letters of two names
