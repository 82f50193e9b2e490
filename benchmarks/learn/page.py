"""The pages of a stream of rounds: what each brought, what the gate said, the killed twin, the law of rows; and of the router."""

from __future__ import annotations

from typing import Any

Found = dict[str, Any]
_COMMAND = "`python benchmarks/learn/stream.py WORK`"
_HEAD = """# Rounds of learning

Written by `benchmarks/learn/stream.py`: a model of three layers that has read every question with answers drawn at random; six domains of
ten facts each; 180 messages of a real Redis stream a round, each fact asked for in three new wordings. The gate has six other wordings of
each fact. Margin 0.1 nats a token, 120 steps, `replay.general` 0.5, otherwise the defaults of
[`holdfast learn`](../../docs/how-to/learn.md). Differences are in nats a token, below 0 is better, with their 95 % intervals. Once all
facts are known a good round has nothing
to bring, and is not promoted.

**What an earlier stream showed (2026-11-28).** Eight rounds of 120 messages and 80 steps, of which the model learned little: of 3 poisoned
rounds **1 promoted**, of 5 good ones 1. A round of wrong answers was refused as "cannot tell", so its rows were carried on until good ones
beside them were evidence enough; since then rows are carried only where what was measured points to better. With that, the round after it
was promoted all the same, in which one domain's labels were flipped: the domain lost 0.010 [0.002, 0.018] and the margin allows 0.1. **A
poison that has little effect yet passes a wide margin**: since 2026-11-29 `gate.contradiction` looks for it ([measured](poison.md)).
And of a stream's message that holds all its fields in one (`data`), neither
domain nor person were known, so no expert was trained there, and `keep.per_person` and `--forget` saw nobody: mended.
"""

_AFTER = f"""{_COMMAND}, after its last round, `experts: {{rows: 30, held: 20}}`, measured on the half of the gate's rows
that did not set the threshold."""

_REAL = """SmolLM2-135M-Instruct as it is, which knows none of the facts: 48 steps of 16 rows, `lr` 1e-3; everything else as above."""


def page(found: dict[str, Found]) -> str:
    """Render benchmarks/results/learn.md of the records of both streams."""
    one = found["undisturbed"]
    answers = one["answers"]
    parts = [
        _HEAD,
        "## Undisturbed\n",
        _summary(answers),
        "",
        _table(answers, one["seconds"]),
        "",
        "## Its domains\n",
        _domains(answers),
        "",
    ]
    if "killed" in found:
        parts += ["## Killed\n", _killed(one, found["killed"]), ""]
    if "real" in found:
        parts += ["## On a real model\n", _REAL, "", _summary(found["real"]["answers"], f"{_COMMAND[:-1]} --real MODEL`"), ""]
        parts += [_table(found["real"]["answers"], found["real"]["seconds"]), "", _domains(found["real"]["answers"]), ""]
    parts += ["## From stream to weights\n", _law(found), ""]
    if one.get("experts"):
        parts += ["## Router beside one adapter beside an oracle\n", _router(one["experts"], _AFTER), ""]
    return "\n".join(parts)


def _summary(answers: list[Found], command: str = _COMMAND) -> str:
    good, bad = ([one for one in answers if bool(one["poison"]) is side] for side in (False, True))
    yes = [one for one in good if one["promoted"]]
    clear = sum(one["domains"]["new"]["loss"]["interval"][1] < 0 for one in yes)
    within = sum(all(of["loss"]["difference"] <= 0.1 for of in _old(one).values()) for one in yes)
    wrong = sum(bool(one["promoted"]) for one in bad)
    return (
        f"{command}: of {len(bad)} poisoned rounds **{wrong} promoted**; of {len(good)} good ones **{len(yes)} promoted**,\n"
        f"{clear} of these with the interval of new rows clear of zero, {within} with each old domain\n"
        "and general answers within the margin. "
        "What was not promoted says why in the table."
    )


def _old(one: Found) -> Found:
    return {name: of for name, of in (one["domains"] or {}).items() if name != "new"} | {"general": one["general"]}


def _told(loss: Found) -> str:
    low, high = loss["interval"] or (float("nan"), float("nan"))
    return f"{loss['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"


def _table(answers: list[Found], seconds: Found) -> str:
    lines = ["| round | what came | kept, rejected, replayed | new rows | worst old one | promoted | why not | s |", "|" + "---|" * 8]
    for one in answers:
        rows, groups = one["rows"], one["domains"] or {}
        new = _told(groups["new"]["loss"]) if groups else "not measured"
        worst = max(_old(one).items(), key=lambda item: item[1]["loss"]["difference"]) if groups else None
        far = f"{worst[0]} {_told(worst[1]['loss'])}" if worst else "not measured"
        why = "" if one["promoted"] else one["why"].replace("|", "/")
        law = f"{rows['kept']}, {rows['rejected']}, {rows['replayed']}"
        cells = [one["round"], one["poison"] or "good rows", law, new, far, "yes" if one["promoted"] else "no", why]
        lines.append("| " + " | ".join(map(str, [*cells, round(seconds.get(str(one["round"]), 0))])) + " |")
    return "\n".join(lines)


def _domains(answers: list[Found]) -> str:
    yes = [one for one in answers if one["promoted"]]
    if not yes:
        return "No round was promoted."
    lines = [
        "Loss on the gate's rows, nats a token, before the first promotion and after the last:\n",
        "| domain | before | after | best ever |",
    ]
    lines.append("|---|---|---|---|")
    for name in _old(yes[0]):
        losses = [_old(yes[0])[name]["loss"]["base"], *(_old(one)[name]["loss"]["tuned"] for one in yes)]
        lines.append(f"| {name} | {losses[0]:.3f} | {losses[-1]:.3f} | {min(losses):.3f} |")
    return "\n".join(lines)


def _killed(one: Found, twin: Found) -> str:
    count = len(twin["told"])
    same = sum(mine == theirs for mine, theirs in zip(one["told"], twin["told"], strict=False))
    kills = [what for each in twin["kills"].values() for what in each]
    ends = [what for what in kills if what not in ("at random", "Redis")]
    return (
        f"`python benchmarks/learn/stream.py WORK --killed`: a twin of {count} rounds, SIGKILL {len(ends)} times at the end of a phase\n"
        f"({', '.join(dict.fromkeys(ends))}) and {kills.count('at random')} times at random, with a part\n"
        "of the training's processes; the Redis server was "
        f"killed {kills.count('Redis')} times and came back seconds later.\n"
        f"**{same} of {count} rounds with the same fates, the same verdict and the same hash of the adapter.**"
    )


def _law(found: dict[str, Found]) -> str:
    lines = ["| stream | sent | taken | twice | trained, held out, rejected | not where their fate says | pending |", "|" + "---|" * 7]
    for name, one in found.items():
        law = one["law"]
        fates = ", ".join(str(law["fates"].get(fate, 0)) for fate in ("trained", "held_out", "rejected"))
        cells = [name, law["sent"], law["taken"], law["twice"], fates, law["astray"], one["pending"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _router(experts: Found, command: str) -> str:
    measured = experts["measured"]
    if measured is None:
        return f"Not measured: {'; '.join(f'{name}: {why}' for name, why in experts['all'].items())}."
    right, none = measured["accuracy"], measured["none"]
    lines = [f"{command}\n"]
    lines.append(
        f"Right choices: {right['right']} of {right['rows']}; left to the adapter for all, of prompts that are no expert's:\n"
        f"{none['right']} of {none['rows']}.\n"
    )
    lines += ["| compared | rows | difference | verdict |", "|---|---|---|---|"]
    for name, words in (
        ("routed", "experts through the router, beside one adapter"),
        ("oracle", "experts by the known domain, beside one adapter"),
        ("routed_beside_oracle", "the router, beside the oracle"),
        ("wrong_route", "another expert in place of the right one"),
        ("general", "general answers through the router, beside one adapter"),
    ):
        if of := measured[name]:
            lines.append(f"| {words} | {of['rows']} | {_told(of['loss'])} | {of['verdict'].replace('_', ' ')} |")
    return "\n".join(lines)


_ROUTER_HEAD = """# The router of experts

Written by `benchmarks/learn/router.py` (2026-11-29). Bases are models of three layers made there, `experts: {rows: 30, held: 20}`.
An expert goes on from the adapter for all on its domain's rows, so that **it has been trained for longer: a gain over one adapter may come
from that, too**. The oracle knows each row's domain. Measured on the half of the gate's rows that did not set the threshold; differences in
nats a token, below 0 is better, with their 95 % intervals. Nothing was measured of answers, nor on a real model.
"""
_ROUTED = {
    "made": "`python benchmarks/learn/router.py WORK made`: six domains of ten made facts, whose prompts name their domain.",
    "categories": "`python benchmarks/learn/router.py WORK categories --rows FILE` (24 categories): questions of tldr pages; "
    "no page is both learned and measured.",
}


def router_page(found: dict[str, Found]) -> str:
    """Render benchmarks/results/router.md of what was measured on made domains and on categories."""
    parts = [_ROUTER_HEAD]
    for name, words in _ROUTED.items():
        parts.append(f"## {name.capitalize()}\n")
        if name not in found:
            parts.append("Not measured yet.\n")
            continue
        experts = found[name]["experts"]
        yes = [str(one["round"]) for one in found[name]["all"] if one["promoted"]]
        told = f"Of {len(found[name]['all'])} rounds the gate let through: {', '.join(yes) or 'none'}."
        if experts is None:
            parts.append(f"{words}\n{told} No version is in place, so no expert was made.\n")
            continue
        parts.append(_router(experts, f"{words}\n{told}"))
        parts += [""] if experts["all"] else []
        for domain, why in experts["all"].items():
            parts.append(f"* {domain}: left to the adapter for all, {why}")
        of = (experts["measured"] or {"by_domain": {}})["by_domain"]
        parts += ["", "| domain | right choices | through the router, beside one adapter | verdict |", "|---|---|---|---|"]
        for domain, one in of.items():
            routed = one["routed"]
            parts.append(
                f"| {domain} | {one['right']} of {one['rows']} | {_told(routed['loss'])} | {routed['verdict'].replace('_', ' ')} |"
            )
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
