"""Long lines, hostile and harmless, cost each pattern about as much as a plain one: failure cards, readings, scrubber, redactor.

CPU time is compared with that of a plain linear pattern on the same text, so a slow or busy machine changes nothing.
"""

from __future__ import annotations

import base64
import random
import re
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import product

import pytest

from holdfast.book import cards_of
from holdfast.diagnosis.logs.text import LONGEST
from support.re_examples import examples
from support.selection import part_of

PLAIN = re.compile(r"(?:[q]\d\dz|[j]\d\dz)")
CUBE = 4**3  # times what a quarter of a text took, where the cost grows with the third power of its length
BUDGET = 800  # times the plain pattern, which takes some 20 us for a line of 4,000 characters
LINES = 1260  # as many as a sifted log has
LOG_MODULES = (
    "diagnosis.logs.text",
    "diagnosis.diagnose",
    *(f"diagnosis.logs.{name}" for name in ("curve", "frames", "harmless", "progress_bars", "readings", "sift", "unfinished")),
)
TEXT_MODULES = ("privacy.scrub", "privacy.secret_forms", "data.collect.redact")
RANDOM = random.Random(0).randbytes(4 * LONGEST)
UNITS = (
    *(
        ".",
        "0",
        "1234567890",
        "a",
        "_",
        "é",
        "ab ",
        "a.",
        "a_",
        "a-",
        "A1",
        "a@",
        "a:",
        "::",
        "1,",
        "x,",
        "1 ",
        "-- ",
        "--a ",
        "a=1 ",
        "key: ",
    ),
    *(
        "(",
        "((",
        "[",
        "[]",
        "{",
        "<",
        "'",
        '"',
        "'a' ",
        '"a": 1, ',
        "\\",
        "/",
        "/a",
        "|",
        "│ ",
        "━",
        "╭─",
        "-",
        "* ",
        "=",
        " ",
        "\t",
        " \t",
    ),
    *("Error ", "Error: ", "failed to ", "not ", "nan ", "is ", "step 1 loss ", "1/2 ", "GPU 0 ", "torch.", "curl ", "File ", "0x00 "),
    *('File "a.py", line 1, in f ', "https://a.b/c?d=e&", "/usr/lib/python3/", "eyJ", "-----BEGIN ", "token "),
)
TEXTS = {
    **{repr(unit): (unit * LONGEST) for unit in UNITS},
    **{
        f"lines of {unit!r}": (unit.strip() + "\n") * LONGEST
        for unit in ("", "(", "[", "│ a", "Error", "a", "File ", "1/2 ", "key: ", "---")
    },
    "hex dump": RANDOM.hex(" "),
    "hex": RANDOM.hex(),
    "base64": base64.b64encode(RANDOM).decode(),
    "xxd": "".join(f"{at:08x}: {RANDOM[at : at + 16].hex(' ', 2)}  {'.' * 16} " for at in range(0, len(RANDOM), 16)),
}
Named = tuple[str, re.Pattern[str]]


def of_cards() -> Iterator[Named]:
    for card in cards_of("failures").values():
        for place in ("patterns", "needs", "unless"):
            yield from ((f"{card.id}.{place}.{at}", pattern) for at, pattern in enumerate(getattr(card, place)))


def of_modules(*modules: str) -> Iterator[Named]:
    for module in modules:
        for name, value in vars(import_module(f"holdfast.{module}")).items():
            yield from patterns_in(f"{module}.{name}", value)


def patterns_in(name: str, value: object) -> Iterator[Named]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, tuple | list):
        for at, part in enumerate(value):
            yield from patterns_in(f"{name}.{at}", part)


def test_all_patterns_are_found() -> None:
    assert len(list(of_cards())) > 2000
    assert len(list(of_modules(*LOG_MODULES))) > 40
    assert len(list(of_modules(*TEXT_MODULES))) > 15


def cost(pattern: re.Pattern[str], text: str) -> float:
    """CPU seconds that all matches in the text take."""
    begin = time.thread_time()
    for _ in pattern.finditer(text):
        pass
    return time.thread_time() - begin


def times_plain(pattern: re.Pattern[str], text: str) -> float:
    """Return how many times as long as a plain pattern it takes now, on a processor that others may slow down."""
    return cost(pattern, text) / min(cost(PLAIN, text) for _ in range(3))


def too_slow(patterns: list[Named], texts: dict[str, str], budget: float) -> list[str]:
    """What takes more than `budget` times a plain pattern, found on a quarter of the text where it is that bad.

    A text is the same all along, so one whose quarter took so little is not read whole.
    """
    found = []
    for kind, text in texts.items():
        plain = min(cost(PLAIN, text) for _ in range(5))
        for name, pattern in patterns:
            quarter = cost(pattern, text[: len(text) // 4])
            if quarter > budget * plain:
                found.append(f"{name} on a quarter of {kind}: more than {budget:.0f} times a plain pattern")
            elif (
                quarter * CUBE > budget * plain < cost(pattern, text)
                and (ratio := min(times_plain(pattern, text) for _ in range(5))) > budget
            ):
                found.append(f"{name} on {kind}: {ratio:.0f} times a plain pattern")
    return found


def cut(texts: dict[str, str], length: int) -> dict[str, str]:
    """The texts in this length; one of empty lines has no more of them than a sifted log."""
    return {kind: text[: min(length, LINES) if kind == "lines of ''" else length] for kind, text in texts.items()}


def test_the_slow_are_seen() -> None:
    slow = [("slow", re.compile(r"\w+Error\b")), ("worse", re.compile(r"^[^\w\n]*(?:[\w.]+\.)?_?\w*(?<!OutOf)MemoryError\b"))]
    assert len(too_slow(slow, {"a": "a" * 12 * LONGEST, ".": "." * 3 * LONGEST}, BUDGET)) == 2


def taken() -> dict[str, str]:
    """The kinds of text that this run takes, for every pattern."""
    return {kind: TEXTS[kind] for kind in part_of(TEXTS)}


def test_no_line_of_a_log_keeps_a_pattern_busy() -> None:
    assert not too_slow([*of_cards(), *of_modules(*LOG_MODULES)], cut(taken(), LONGEST), BUDGET)


def test_no_long_text_keeps_scrubber_or_redactor_busy() -> None:
    texts = {kind: (text * 10)[: 8 * LONGEST] for kind, text in taken().items()}
    assert not too_slow(list(of_modules(*TEXT_MODULES)), texts, BUDGET)


def own_beginnings(patterns: Iterator[Named], length: int) -> list[str]:
    """What is too slow on lines that begin what a pattern looks for again and again, and never end it: the worst for it."""
    slow = []
    for name, pattern in patterns:
        for unit, separator in product(examples(pattern), ("", " ")):
            parts = {unit, unit[:-1], unit[: len(unit) // 2]} - {""}
            texts = {repr(part): ((part + separator) * length)[:length] for part in parts}
            slow += too_slow([(name, pattern)], texts, BUDGET)
    return slow


def test_no_line_of_its_own_beginnings_keeps_scrubber_readings_or_redactor_busy() -> None:
    assert not own_beginnings(of_modules(*LOG_MODULES, *TEXT_MODULES), LONGEST)


@pytest.mark.long
def test_no_line_of_its_own_beginnings_keeps_a_card_busy() -> None:
    assert not own_beginnings(of_cards(), LONGEST)
