"""Exercises in copying, filling in, extracting and editing for tiny. Each makes one text; mixing them is corpus.py's job.

All commands here belong to tools that do not exist: the base model shall learn to fill values into a form, not which form a real tool
wants, for that is what the shipped recipe teaches.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from facts import FACTS, TALK
from forms import ONE
from values import KINDS, made_up, name, word
from words import COMPUTING, PARTS, PLAIN, PROPER, TOOLS, TYPES, words

Turns = list[tuple[str, str]]
END = "<|endoftext|>"

VERBS = words("""
create remove start stop grow shrink move copy check list open close enable disable mount attach detach restart show set add delete limit
send load build run watch measure allow deny label tune rename export import convert train serve join leave lock unlock update install
""")
WISHES = (
    "{v} {s}",
    "Please {v} {s}",
    "How do I {v} {s}?",
    "I want to {v} {s}.",
    "Which command can {v} {s}?",
    "{v} {s} now.",
    "Write the command to {v} {s}.",
    "Can you {v} {s}?",
    "We need to {v} {s}.",
    "What would {v} {s}?",
    "Give the command that will {v} {s}.",
    "The task: {v} {s}.",
    "Help me {v} {s}.",
)
JOINS = (" with ", " and ", ", ", " for ", " on ", " to ", " using ", " in ", " from ", " at ", " under ", " by ", " as ", " of ")


def chat(turns: Turns) -> str:
    return "".join(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n" for ask, answer in turns) + END


# ---- made-up commands, taught by example or by a manual line -------------------------------------------------------------------


def made_up_command(rng: Random, slots: list[str]) -> str:
    """A command with one {0}, {1} ... for each slot, in any order."""
    head = (
        made_up(rng) + rng.choice(("", "ctl", "-cli", "adm", ".sh")) if rng.random() < 0.6 else f"{rng.choice(PARTS)}-{rng.choice(TOOLS)}"
    )
    parts = [head] if rng.random() < 0.75 else ["sudo", head]
    if rng.random() < 0.6:
        parts.append(rng.choice((*VERBS, *COMPUTING)))
    order = list(range(len(slots)))
    rng.shuffle(order)
    for index in order:
        if rng.random() < 0.35:
            parts.append(fixed_part(rng))
        parts.append(slot_part(rng, f"{{{index}}}"))
    if rng.random() < 0.3:
        parts.append(fixed_part(rng))
    return " ".join(parts)


def fixed_part(rng: Random) -> str:
    key = rng.choice(COMPUTING)
    return rng.choice(
        (
            f"--{key}",
            f"-{rng.choice('abcdefhiklmnopqrstuvwx')}",
            key,
            f"--{key}={rng.choice(PLAIN)}",
            f"-{rng.choice('abdefpqrst')} {key}",
            f"{key}={rng.choice(PLAIN)}",
            f"/{rng.choice(PLAIN)}/{key}",
            rng.choice(TYPES),
            rng.choice(TOOLS),
        )
    )


def slot_part(rng: Random, slot: str) -> str:
    key = rng.choice(COMPUTING)
    return rng.choice(
        (
            slot,
            slot,
            slot,
            slot,
            f"--{key} {slot}",
            f"--{key}={slot}",
            f"-{rng.choice('abcdefghiklmnopqrstuvwx')} {slot}",
            f"{key}={slot}",
            f"'{slot}'",
            f'"{slot}"',
            f"{key}:{slot}",
            f"{slot}/{key}",
            f"{slot}.{key}",
            f"{slot}:{rng.choice(PLAIN)}",
            f"/{key}/{slot}",
            f"{key}@{slot}",
            f"+{slot}",
            f"{key}_{slot}",
            f"({slot})",
            f"{slot};",
            f"{key} {slot}",
            f"{rng.choice(TYPES)}={slot}",
            f"--{key} {rng.choice(PLAIN)}={slot}",
        )
    )


def made_up_wish(rng: Random, verb: str, slots: list[str]) -> str:
    """A request with one {0}, {1} ... for each slot, each named by its noun most of the time."""
    order = list(range(len(slots)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    words: list[str] = []
    for place, index in enumerate(order):
        if place:
            words.append(rng.choice(JOINS))
        noun = slots[index]
        words.append(
            rng.choice(
                (
                    f"the {noun} {{{index}}}",
                    f"{noun} {{{index}}}",
                    f"a {noun} of {{{index}}}",
                    f"{{{index}}}",
                    f"{{{index}}} as the {noun}",
                    f"its {noun} {{{index}}}",
                    f"{noun} = {{{index}}}",
                    f'the {noun} called "{{{index}}}"',
                )
            )
        )
    wish = rng.choice(WISHES).replace("{v}", verb).replace("{s}", "".join(words))
    return wish[0].upper() + wish[1:]


def values_for(rng: Random, slots: list[str]) -> list[str]:
    return [KINDS[slot](rng) for slot in slots]


def by_example(rng: Random) -> str:
    """The same made-up command several times: from the second time on, everything can be known. Often the first one is told, not asked."""
    slots = rng.sample(list(KINDS), rng.choice((1, 2, 2, 3, 3, 4)))
    command, verb = made_up_command(rng, slots), rng.choice(VERBS)
    wishes = [made_up_wish(rng, verb, slots) for _ in range(rng.choice((1, 1, 2)))]
    turns: Turns = []
    for _ in range(rng.randint(2, 4)):
        values = values_for(rng, slots)
        turns.append((rng.choice(wishes).format(*values), command.format(*values)))
    if rng.random() < 0.6:
        (ask, answer), (second, _), *_ = turns
        told = rng.choice(
            (
                "{0}\n{1}\n{2}",
                "Example: {0}\n{1}\n{2}",
                "{0} -> {1}\n{2}",
                "{2}\nLike this: {0}\n{1}",
                "Question: {0}\nAnswer: {1}\nQuestion: {2}",
            )
        )
        turns = [(told.format(ask, answer, second), turns[1][1]), *turns[2:]]
    return chat(turns)


def by_manual(rng: Random) -> str:
    """The form of the command stands in the question, with names for the values."""
    slots = rng.sample(list(KINDS), rng.choice((1, 2, 2, 3, 3, 4)))
    command, verb = made_up_command(rng, slots), rng.choice(VERBS)
    form = command.format(*(slot.upper().replace(" ", "_") for slot in slots))
    values = values_for(rng, slots)
    wish = made_up_wish(rng, verb, slots).format(*values)
    manual = rng.choice((f"The form is: {form}", f"Usage: {form}", f"Use {form}", f"Manual: {form} can {verb} things."))
    return chat([(rng.choice((f"{manual}\n{wish}", f"{wish}\n{manual}")), command.format(*values))])


# ---- single requests with a form that is always the same -------------------------------------------------------------------------


def one_form(rng: Random) -> str:
    turns: Turns = []
    for _ in range(rng.randint(1, 3)):
        ask = rng.choice(list(ONE))
        a, b = any_value(rng), any_value(rng)
        turns.append((ask.format(a=a, b=b), ONE[ask].format(a=a, b=b)))
    return chat(turns)


def any_value(rng: Random) -> str:
    return KINDS[rng.choice(list(KINDS))](rng)


def repeated(rng: Random) -> str:
    """A line of values, then the same line again: the plainest thing that can be copied."""
    line = " ".join(rng.choice((word, any_value))(rng) for _ in range(rng.randint(3, 14)))
    if rng.random() < 0.25:
        return f"{line}\n{line}\n" + (f"{line}\n" if rng.random() < 0.4 else "") + END
    return chat([(rng.choice(("Repeat this: ", "Copy: ", "Say this again: ", "Write down: ", "")) + line, line)])


def extracted(rng: Random) -> str:
    """A few statements, then questions about their values."""
    slots = rng.sample(list(KINDS), rng.randint(2, 5))
    values = values_for(rng, slots)
    style = rng.choice(("The {0} is {1}.", "{0}: {1}", "{0} = {1}", "We use {1} as the {0}.", "Its {0} is {1}."))
    text = rng.choice((" ", "\n")).join(style.format(slot, value) for slot, value in zip(slots, values, strict=True))
    asked = rng.sample(range(len(slots)), min(len(slots), rng.randint(1, 3)))
    turns = [
        (
            rng.choice(("What is the {0}?", "Which {0}?", "Tell me the {0}.", "{0}?")).format(slots[i]),
            rng.choice(("{1}", "{1}", "The {0} is {1}.")).format(slots[i], values[i]),
        )
        for i in asked
    ]
    turns[0] = (f"{text}\n{turns[0][0]}", turns[0][1])
    return chat(turns)


def edited(rng: Random) -> str:
    """A line in which one value is replaced by another."""
    slots = rng.sample(list(KINDS), rng.randint(1, 3))
    command, values, place = made_up_command(rng, slots), values_for(rng, slots), rng.randrange(len(slots))
    changed = [KINDS[slot](rng) if index == place else values[index] for index, slot in enumerate(slots)]
    ask = rng.choice(
        ("Change {0} to {1} in: {2}", "{2}\nNow with {1} instead of {0}.", "Replace {0} by {1}:\n{2}", "The same with {3} {1}: {2}")
    )
    return chat([(ask.format(values[place], changed[place], command.format(*values), slots[place]), command.format(*changed))])


def table(rng: Random) -> str:
    """Plain text in which names come back: a log, a list of settings, rows of a table."""
    names = [name(rng) for _ in range(rng.randint(2, 4))]
    slot, other = rng.sample(list(KINDS), 2)
    style = rng.choice(("{0} {1} {2}", "{0}: {1}={3} {2}", "[{4}] {0}: {1} {3} {2}", "{0},{3},{4}", "{4} {0} {2} {1}={3}"))
    verb = rng.choice(VERBS)
    rows = [style.format(rng.choice(names), slot, verb, KINDS[slot](rng), KINDS[other](rng)) for _ in range(rng.randint(3, 7))]
    return "\n".join(rows) + "\n" + END


# ---- knowledge and talk ----------------------------------------------------------------------------------------------------------


def fact(rng: Random) -> str:
    chosen = rng.sample(FACTS, rng.randint(1, 4))
    if rng.random() < 0.35:
        return " ".join(f"{subject[0].upper()}{subject[1:]} {claim}." for subject, claim in chosen) + END
    asks = ("What is {0}?", "What do you know about {0}?", "Explain {0}.", "Tell me about {0}.", "Please explain {0} in one sentence.")
    return chat([(rng.choice(asks).format(subject), f"{subject[0].upper()}{subject[1:]} {claim}.") for subject, claim in chosen])


def talk(rng: Random) -> str:
    return chat(rng.sample(TALK, rng.randint(1, 3)))


def choice_of_words(rng: Random) -> str:
    """Lists of terms: which comes first, which is last, which one is a command."""
    pool = rng.choice((TOOLS, TYPES, COMPUTING, PLAIN, PARTS, PROPER))
    items = rng.sample(pool, rng.randint(3, 7))
    place = rng.randrange(len(items))
    ordinal = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")[place]
    asks = (
        (f"Which is the {ordinal} of these: {', '.join(items)}?", items[place]),
        (f"Sort: {', '.join(items)}", ", ".join(sorted(items))),
        (f"What comes after {items[place - 1]} in: {' '.join(items)}?", items[place] if place else "nothing"),
        (f"One on each line: {', '.join(items)}", "\n".join(items)),
        (f"Join with commas: {' '.join(items)}", ",".join(items)),
    )
    return chat([rng.choice(asks)])


SKILLS: dict[str, Callable[[Random], str]] = {
    "repeated": repeated,
    "by_example": by_example,
    "by_manual": by_manual,
    "one_form": one_form,
    "extracted": extracted,
    "edited": edited,
    "table": table,
    "fact": fact,
    "talk": talk,
    "choice_of_words": choice_of_words,
}
