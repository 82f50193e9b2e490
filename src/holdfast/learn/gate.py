"""What a round must show: better on rows it has not seen, no old domain and no general answer worse beyond the margin, no rule broken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, read_exact_lines, sha256, write_bytes
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.base.units import counted
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import RawRow, Source, json_line
from holdfast.data.files.read import read_rows
from holdfast.export.registry import name_of
from holdfast.export.samples import general_text
from holdfast.export.subject import read_subject
from holdfast.learn.policy import Policy
from holdfast.learn.sources import named_in
from holdfast.supervision.launch import measuring_environment
from holdfast.verify.compare import Request, verify
from holdfast.verify.expectations import read_prompts
from holdfast.verify.stats import FEWEST

NEW, ALL = "new", "(all)"
_NEW_OF = "new\0"  # before a domain: its new rows
_LONGEST = 128  # tokens of an answer


def held_rows(policy: Policy) -> list[tuple[str, Json]]:
    """Read (domain, row) of the gate's file. Raises Stop(2) where no round could ever pass with it."""
    rows = [row.value for row in read_rows(policy.gate.rows) if isinstance(row, RawRow) and isinstance(row.value, dict)]
    field = policy.gate.domains
    if not rows:
        raise Stop(USAGE, f"{policy.gate.rows} has no row: no round could ever pass the gate", "give gate.rows rows as training takes them")
    without = sum(not row.get(field) for row in rows) if field else 0
    if without:
        text = f"{counted(without, 'row')} of {policy.gate.rows} without the field {field!r}, by which gate.domains tells domains apart"
        raise Stop(USAGE, text, f"fields there: {', '.join(sorted(rows[0]))}")
    named = [(domain_of(row, field), row) for row in rows]
    counts = Counter(name for name, _ in named)
    if few := {name: count for name, count in counts.items() if count < FEWEST}:
        told = ", ".join(f"{name} has {count}" for name, count in few.items())
        hint = f"give each domain at least {FEWEST} rows (30 or more tell small differences), or leave the domain out"
        raise Stop(USAGE, f"no round could ever pass this gate: {told}, and fewer than {FEWEST} rows give no interval", hint)
    return named


def domain_of(row: Json, field: str | None) -> str:
    """Return the name of a row's domain; "" for a row that has none."""
    if not field:
        return ALL
    if not row.get(field):
        return ""
    name = row[field] if isinstance(row[field], str) else json.dumps(row[field])
    return f"{NEW} (domain)" if name == NEW else name


def general_lines(file: str) -> list[str]:
    """Read the lines of a policy's own general rows; a text in JSON may hold what else Unicode parts lines by. Raises Stop(2)."""
    hint = "give replay.general_rows a file of general rows, or leave it out"
    try:
        return [line for line in read_small(Path(file), LARGEST_JSON).decode("utf-8-sig").split("\n") if line.strip()]
    except OSError as error:
        raise at_place(error, file, "cannot be read", hint, code=USAGE) from None
    except UnicodeDecodeError:
        raise Stop(USAGE, f"replay.general_rows {file} is not UTF-8", hint) from None


def own_general(policy: Policy) -> tuple[list[str], frozenset[int] | None]:
    """Return (general lines a round may train on, numbers of those it is measured on): of the set that ships, each has half."""
    if policy.replay.general_rows:
        return general_lines(policy.replay.general_rows), None
    lines = general_text().splitlines()
    if not policy.replay.general:
        return [], None
    return lines[::2], frozenset(range(2, len(lines) + 1, 2))


def people_at_gate(policy: Policy, held: list[tuple[str, Json]]) -> list[str]:
    """Return whose each of the gate's rows is; "" of all where they are not several people's, or each row counts."""
    people = [named_in(row, policy.keep.person) for _, row in held]
    return people if are_several(policy, people) else [""] * len(held)


def are_several(policy: Policy, people: Iterable[str]) -> bool:
    """True if rows of one person count as one: where all are one's, as those of an own helper, they are what it is for."""
    return policy.gate.by_person and len(set(people)) > 1


def measure(
    policy: Policy, run: Path, against: Path | None, new: Path, people: dict[int, str], work: Path, say: Callable[[str], None]
) -> Json:
    """Measure the round's run against the promoted one, or the base, by verify: new rows, each domain, general answers.

    people: whose each row is that the rounds have kept, by its key.
    """
    held = held_rows(policy)
    fresh = [*read_exact_lines(new)]
    several = are_several(policy, people.values())
    whose = [people.get(row_key(row), "") if several else "" for row in fresh] + people_at_gate(policy, held)
    rows = work / "gate.jsonl"
    write_bytes(rows, b"".join(map(json_line, [*fresh, *(row for _, row in held)])))
    names = [(NEW, _NEW_OF + domain_of(row, policy.gate.domains)) for row in fresh] + [(name,) for name, _ in held]

    def groups_of(source: Source) -> Sequence[str]:
        return names[source.line - 1]

    def person_of(source: Source) -> str:
        return whose[source.line - 1]

    subject = read_subject(run)
    other = read_subject(against) if against else None
    prompts = read_prompts(Path(policy.gate.prompts)) if policy.gate.prompts else []
    lines = own_general(policy)[1]
    environment = measuring_environment(subject.run)
    answer = verify(
        Request(subject, other, rows, prompts, 0, _LONGEST, environment, say, None, groups_of, lines, person_of if any(whose) else None)
    )
    general = answer["forgotten"]
    if several and NEW in answer["groups"]:
        answer["groups"][NEW]["by_person"] = True
    domains = {name: one for name, one in answer["groups"].items() if not name.startswith(_NEW_OF)}
    return {
        "groups": domains,
        "new_domains": {name: one for name in domains if (one := answer["groups"].get(_NEW_OF + name))},
        "general": {name: general[name] for name in ("rows", "loss", "verdict", "why", "rows_needed")},
        "expectations": answer["expectations"],
        "gate_sha256": sha256(Path(policy.gate.rows)),
        "unmeasured": _unmeasured(policy, work / "rows.jsonl", {name for name, _ in held}),
        "hashes": answer["hashes"],
        "against": name_of(other.hashes()) if other else None,
    }


def _unmeasured(policy: Policy, rows: Path, measured: set[str]) -> Json:
    """Count the new rows a round learned of each domain of which the gate has no row."""
    field = policy.gate.domains
    names = Counter(domain_of(row, field) for row in read_exact_lines(rows) if row.get(field)) if field else Counter[str]()
    return {name: count for name, count in names.items() if name not in measured}


def drifted(found: Json, before: list[Json], most: float) -> dict[str, float]:
    """Return the loss above the best ever in place, of each domain, or general answers, where it is more than `most`. Pure.

    before: what was measured of each version in place before, newest first; of other rows at the gate nothing follows.
    """
    far = {}
    for name, one in _old(found).items():
        past = [_old(each).get(name) for each in before if each.get("gate_sha256") == found["gate_sha256"]]
        losses = [each["loss"][kind] for each in past if each for kind in ("base", "tuned")]
        if losses and one["loss"]["tuned"] - min(losses) > most:
            far[name] = one["loss"]["tuned"] - min(losses)
    return far


def contradicted(found: Json) -> Json:
    """Return what is known of each domain whose rows at the gate became worse beyond doubt while its new rows became better. Pure.

    Rows that teach more of the same make both better; wrong answers, or other labels, only themselves. losses: before, in nats a token.
    """
    pairs = ((name, one, found["groups"][name]) for name, one in found["new_domains"].items())
    return {
        name: {"new": new["loss"]["difference"], "gate": old["loss"]["difference"], "losses": [new["loss"]["base"], old["loss"]["base"]]}
        for name, new, old in pairs
        if old["verdict"] == "worse" and new["loss"]["difference"] < 0
    }


def _old(found: Json) -> Json:
    """Return all but the new rows, by name."""
    return {name: one for name, one in found["groups"].items() if name != NEW} | {"general answers": found["general"]}


def decide(found: Json, margin: float, certain: bool) -> tuple[bool, str, str]:
    """Decide by the measurements: (promoted, verdict, why). Pure.

    New rows must be better, their interval clear of zero. A domain, or general answers, may lose no more than the margin: by the estimate,
    and with `certain` by the whole interval.
    """
    new = found["groups"].get(NEW)
    old = _old(found)
    lost = (found.get("expectations") or {}).get("only_base", 0)
    beyond = {name: one for name, one in old.items() if _beyond(one["loss"], margin, certain)}
    verdict = new["verdict"] if new else "cannot_tell"
    unmeasured = found.get("unmeasured") or {}
    reasons = []
    if verdict != "better":
        what = f"{_told(new)}: {new['why']}{_of_few_people(new)}" if new else "none was held out"
        reasons.append(f"new rows are not shown to be better ({verdict.replace('_', ' ')}; {what})")
    if beyond:
        told = "; ".join(f"{name} {_told(one)}" for name, one in beyond.items())
        reasons.append(f"{'not shown to be within' if certain else 'worse by more than'} the margin of {margin:g}: {told}")
    if far := found.get("drifted"):
        told = "; ".join(f"{name} {nats:+.4f} nats a token" for name, nats in far.items())
        reasons.append(f"worse than it ever was in place, by more than gate.drift: {told}")
    if against := found.get("contradicted"):
        told = "; ".join(_contradiction(name, one) for name, one in against.items())
        hint = "where the new answers are right, correct gate.rows, or set gate.contradiction to false"
        reasons.append(f"new answers contradict what is known: {told} ({hint})")
    if lost:
        reasons.append(f"{counted(lost, 'prompt')} that held the rules before, and not now")
    if reasons:
        sure = lost or against or any(one["loss"]["interval"] and one["loss"]["interval"][0] > 0 for one in beyond.values())
        unsure = "cannot_tell" if verdict == "better" else verdict
        return False, "worse" if sure else unsure, "; ".join(reasons)
    domains = counted(len(old) - 1, "domain")
    blind = "; ".join(f"{name} was not measured, it has {counted(n, 'new row')} and none at the gate" for name, n in unmeasured.items())
    why = f"new rows are better, loss {_told(new)}; {domains} and general answers are within the margin of {margin:g}"
    return True, "better", why + (f"; {blind}" if blind else "")


def may_carry(found: Json, margin: float, certain: bool) -> bool:
    """True if a refused round's rows may be tried again with the next: it was refused only because too few rows tell nothing.

    What was measured must point to better all the same: wrong answers tell nothing either, and good rows would carry them past the gate.
    """
    old = _old(found).values()
    new = found["groups"].get(NEW)
    spoiled = (
        found.get("drifted")
        or found.get("contradicted")
        or any(_beyond(one["loss"], margin, certain) for one in old)
        or (found.get("expectations") or {}).get("only_base", 0)
    )
    return not spoiled and (new is None or (new["verdict"] == "cannot_tell" and new["loss"]["difference"] < 0))


def _beyond(loss: Json, margin: float, certain: bool) -> bool:
    if certain:
        return loss["interval"] is None or bool(loss["interval"][1] > margin)
    return not loss["difference"] <= margin


def _told(one: Json) -> str:
    """Format a difference in nats a token, with its interval."""
    loss = one["loss"]
    interval = f" [{loss['interval'][0]:+.4f}, {loss['interval'][1]:+.4f}]" if loss["interval"] else " (no interval)"
    needed = f", {one['rows_needed']:,} would tell" if one.get("rows_needed") else ""
    people = f", those of one person as one ({loss['clusters']} in all)" if one.get("by_person") else ""
    return f"{loss['difference']:+.4f}{interval} nats a token on {counted(one['rows'], 'row')}{people}{needed}"


def _contradiction(name: str, one: Json) -> str:
    new, old = one["losses"]
    change = f"{name}, new rows {one['new']:+.4f} and the gate's {one['gate']:+.4f} nats a token"
    return f"{change}; before, the loss was {new:.2f} on new ones and {old:.2f} on the gate's"


def _of_few_people(one: Json) -> str:
    few = one.get("by_person") and one["loss"]["clusters"] < FEWEST
    return "; gate.by_person: false counts each row, and shows nothing of other people" if few else ""
