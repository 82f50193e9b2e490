"""What differs between runs, and what of it the difference most likely comes from. Reads their folders; trains and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from holdfast.base.errors import reading
from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.config.objectives import OBJECTIVES
from holdfast.experiments.run_facts import ENDS, read_run
from holdfast.run.fingerprints import compare_fingerprints, in_words, read_fingerprints
from holdfast.run.folder import RunFolder, flat

_FEWEST = 2  # steps: of fewer the noise is unknown
_SIGMAS, _FASTER = 3.0, 0.1  # standard errors; share of the speed
_PARTED = 1e-3  # share of the loss
_OF_THE_SEED = ("train.seed",)
_OF_THE_LOSS = ("train.objective", "preference.")  # keys that make a held-out loss another quantity
_NOT_OF_TOKENS = ("data.held_out", "data.weights", "data.rows_per_epoch")  # keys of the rows that leave the tokens of each as they are
_OF_NO_LOSS = (  # keys that no training loss follows from
    *("save.", "machine.memory_bytes", "machine.packages.triton", "machine.packages.amdsmi"),
    *("train.memory_limit", "train.memory_reserve", "train.spot_check", "train.parts_in"),
)
_OF_THE_END = ("evaluate.",)  # keys of no loss, but for when a run ends
_OF_ITS_RATE = (  # keys that another learning rate may follow from, by the number of steps
    *("train.lr", "train.schedule", "train.warmup", "train.steps", "train.epochs", "train.until", "train.effective_batch"),
    *("train.optimizer", "data"),
)
_RATE = "the learning rate from step"


def _rows_differ(one: Json, other: Json) -> str:
    """Return in words how the data of two runs differ; empty where each row is the same, whatever the files are called."""
    a, b = one.get("row_keys"), other.get("row_keys")
    if a is None or b is None:
        return "data"
    if np.array_equal(a, b):
        return ""
    common = np.intersect1d(a, b)
    apart = sum(int((~np.isin(keys, common)).sum()) for keys in (a, b))
    if apart == 0 and np.array_equal(np.sort(a), np.sort(b)):
        return "data: the order of its rows"
    only = ", ".join(f"{int((~np.isin(keys, common)).sum()):,} of {len(keys):,}" for keys in (a, b))
    return f"data: rows that the other does not have ({only})" if apart else "data: how often its rows are there"


def compared(names: dict[Path, str]) -> Json:
    """Run `compare` on run folders by their names, or `compare_commands` where all are of watched commands. Raises Stop."""
    if all(RunFolder(path).command_file.exists() for path in names):
        return compare_commands(names)
    runs = []
    for path, name in names.items():
        with reading(path):
            runs.append((name, read_run(RunFolder(path))))
    return compare(runs)


def compare(runs: Sequence[tuple[str, Json]]) -> Json:
    """Return {runs, differences: [{what, values}], likely: [{cause, evidence}], unknown}: values by the runs' names."""
    differences = list(_differences(runs))
    likely = [cause for pair in combinations(runs, 2) for cause in _likely(*pair)]
    return {
        "runs": [name for name, _ in runs],
        "differences": differences,
        "band": seed_band(runs),
        "likely": [one for at, one in enumerate(likely) if one not in likely[:at]],
        "unknown": _untold(runs),
    }


def compare_commands(names: dict[Path, str]) -> Json:
    """Compare watched commands by the fingerprints of their steps: each run with the first one."""
    (first, name), *others = names.items()
    looks = {path: read_fingerprints(RunFolder(path)) for path in names}
    answer: Json = {"runs": list(names.values()), "differences": [], "band": None, "likely": [], "unknown": []}
    for path, other in others:
        found = compare_fingerprints(looks[path], looks[first])
        departs = found["departs"]
        if departs:
            values = {name: departs["there"], other: departs["here"]}
            answer["differences"].append({"what": f"step {departs['step']}: {departs['what']}", "values": values})
            answer["likely"].append({"cause": departs["what"], "evidence": f"{other}: {in_words(found, name)}"})
        else:
            told = in_words(found, name)
            answer["likely" if found["steps"] else "unknown"].append(
                {"cause": "none", "evidence": f"{other}: {told}"} if found["steps"] else f"{other}: {told}"
            )
    return answer


def _differences(runs: Sequence[tuple[str, Json]]) -> Iterable[Json]:
    for part in ("config", "settings", "data", "machine"):
        trees = {name: flat(facts[part]) for name, facts in runs}
        for key in dict.fromkeys(key for tree in trees.values() for key in tree):
            values = {name: tree.get(key) for name, tree in trees.items()}
            if _differ(values.values()):
                yield {"what": key if part == "config" else f"{part}.{key}", "values": values}
    if _differ(facts["model"] for _, facts in runs):
        yield {"what": "model.files", "values": {name: _files(facts["model"]) for name, facts in runs}}
    for what in ("was", "left_out"):
        values = {name: facts.get(what) or None for name, facts in runs}
        if _differ(values.values()):
            yield {"what": {"was": "libraries before", "left_out": "quarantined.rows"}[what], "values": values}
    for what in ("steps", "loss", "tokens_per_second", "peak_bytes", "incidents", "quarantined", "status", "artifact_sha256"):
        values = {name: facts[what] for name, facts in runs}
        if _differ(values.values()):
            yield {"what": what, "values": values}


def _differ(values: Iterable[Any]) -> bool:
    first, *others = list(values)
    return any(other != first for other in others)


def _files(files: Json | None) -> list[str] | None:
    return None if files is None else [f"{name} {digest[:12]}" for name, digest in sorted(files.items())]


def seed_band(runs: Sequence[tuple[str, Json]]) -> Json | None:
    """Measure the spread of end losses between runs that differ by their seed alone; None where no two do."""
    alike = [(one, other) for one, other in _of_the_seed(runs) if _went_as_far(one[1], other[1])]
    if not alike:
        return None
    gaps = [abs(level(one[1])[0] - level(other[1])[0]) for one, other in alike]
    return {"pairs": len(alike), "loss": round(max(gaps), 6)}


def _of_the_seed(runs: Sequence[tuple[str, Json]]) -> list[tuple[tuple[str, Json], tuple[str, Json]]]:
    """Return the pairs of runs that differ by their seed alone."""
    return [(one, other) for one, other in combinations(runs, 2) if set(changed(one[1], other[1])) == set(_OF_THE_SEED)]


def _went_as_far(one: Json, other: Json) -> bool:
    """Return whether two runs have an end loss each, and no stop, clock or row left out stands between those beside the seed."""
    to_the_end = all(facts["status"] == "finished" for facts in (one, other)) and one["config"].get("train.until.hours") is None
    as_far = bool(one["losses"] and other["losses"]) and (to_the_end or one["steps"] == other["steps"])
    return as_far and not one["quarantined"] and not other["quarantined"]


def changed(one: Json, other: Json) -> list[str]:
    """List what a person or a machine changed between two runs: keys of config, settings not derived from them, data, model, machine.

    So is a learning rate that was another one where nothing says why: one was extended, or its rate changed on the way.
    """
    found = [key for key in {**one["config"], **other["config"]} if one["config"].get(key) != other["config"].get(key)]
    if one["model"] is not None and one["model"] == other["model"]:
        found = [key for key in found if key != "model"]  # the same files in another place
    told = any((key.startswith("data.") and not key.startswith(_NOT_OF_TOKENS)) or key == "train.max_tokens" for key in found)
    if one["data"]["sha256"] != other["data"]["sha256"] and not told and (rows := _rows_differ(one, other)):
        found.append(rows)
    if one["model"] != other["model"] and "model" not in found:
        found.append("model")
    rate = "" if any(key.startswith(_OF_ITS_RATE) for key in found) else _rates_differ(one, other)
    if all(key.startswith((*_OF_NO_LOSS, *_OF_THE_END)) for key in found):  # no setting follows from these
        found += [key for key in _apart_in("settings", one, other) if not rate or key != "settings.lr_factor"]
    found += [rate] if rate else []
    was = [f"machine.packages.{key}" for key in {**one.get("was", {}), **other.get("was", {})}] if _was(one) != _was(other) else []
    return found + _apart_in("machine", one, other) + was


def _was(facts: Json) -> Json:
    return dict(facts.get("was") or {})


def _rates_differ(one: Json, other: Json) -> str:
    """Say from which step on the learning rates of two runs differ; empty where they do not."""
    a, b = one.get("rates") or {}, other.get("rates") or {}
    first = min((step for step in a.keys() & b.keys() if not math.isclose(a[step], b[step], rel_tol=1e-9)), default=None)
    return "" if first is None else f"{_RATE} {first} on"


def _apart_in(part: str, one: Json, other: Json) -> list[str]:
    before, after = flat(one[part]), flat(other[part])
    return [f"{part}.{key}" for key in {**before, **after} if before.get(key) != after.get(key)]


def level(facts: Json) -> tuple[float, float]:
    """Return (mean loss of the last steps, its standard error)."""
    last = facts["losses"][-ENDS:]
    if not last:
        return math.nan, math.inf
    return mean(last), (stdev(last) / math.sqrt(len(last)) if len(last) > 1 else math.inf)


def _likely(one: tuple[str, Json], other: tuple[str, Json]) -> Iterable[Json]:
    """Yield the likeliest causes of the differences between two runs."""
    (first, a), (second, b) = one, other
    what = changed(a, b)
    pair = f"{first} and {second}"
    if a["artifact_sha256"] and a["artifact_sha256"] == b["artifact_sha256"]:
        yield {"cause": "none", "evidence": f"{pair} end with the same bits ({a['artifact_sha256'][:16]})"}
        return
    apart = _apart(a, b)
    out = _left_out(a, b)
    if min(len(a["losses"]), len(b["losses"])) < _FEWEST:
        few = min(len(a["losses"]), len(b["losses"]))
        yield {"cause": "cannot be told", "evidence": f"{pair}: one has {counted(few, 'step')}, whose noise is unknown; {_told(what)}"}
    elif apart:
        yield {"cause": _named(what, a, b), "evidence": f"{pair}: {apart}{_where_they_part(a, b)}; {_told(what)}{out}"}
    elif what or out:
        yield {
            "cause": "noise",
            "evidence": f"{pair}: the end losses differ by less than their noise, whatever differs ({_told(what)}){out}",
        }
    else:
        yield _nothing_differs(pair, a, b)
    speeds = a["tokens_per_second"], b["tokens_per_second"]
    if all(speeds) and abs(speeds[0] - speeds[1]) > _FASTER * max(speeds):
        of_speed = [key for key in what if _of_speed(key)] or _apart_in("settings", a, b)
        of_speed = [key for key in of_speed if not _near(key, a, b)]
        cause = _one(of_speed) if of_speed else "other work on the machine, or cannot be told"
        told = (
            f"{_told(of_speed)}; other work on the machine is not ruled out"
            if of_speed
            else "nothing that is known to bear on speed differs"
        )
        yield {"cause": cause, "evidence": f"{pair}: {speeds[0]:,.0f} and {speeds[1]:,.0f} tokens/s; {told}"}


def _left_out(a: Json, b: Json) -> str:
    """Say that other rows were left out in one run than in the other; empty where they are the same."""
    if a["quarantined"] != b["quarantined"]:
        return f"; {a['quarantined']} and {b['quarantined']} rows were left out"
    return (
        ""
        if a.get("left_out") == b.get("left_out")
        else f"; other rows were left out ({', '.join(a['left_out'])}; {', '.join(b['left_out'])})"
    )


def _nothing_differs(pair: str, a: Json, b: Json) -> Json:
    """Say that nothing known differs between two runs, and how far their losses are the same."""
    one, other = (dict(zip(facts["loss_steps"], facts["losses"], strict=True)) for facts in (a, b))
    both = one.keys() & other.keys()
    if not both:
        return {"cause": "cannot be told", "evidence": f"{pair}: no step's loss is there of both; nothing known differs"}
    if all(one[step] == other[step] for step in both):
        return {
            "cause": "none",
            "evidence": f"{pair}: the same loss at each of the {len(both):,} steps that both have; nothing known differs",
        }
    return {"cause": "noise", "evidence": f"{pair}: the end losses differ by less than their noise; nothing known differs"}


def _where_they_part(a: Json, b: Json) -> str:
    """Say at which step the losses of two runs are clearly apart first; rows that one of them has lost may hide an earlier one."""
    one, other = (dict(zip(facts["loss_steps"], facts["losses"], strict=True)) for facts in (a, b))
    both = [step for step in one if step in other]
    parted = next((at for at, step in enumerate(both) if abs(one[step] - other[step]) > _PARTED * abs(one[step])), None)
    if parted is None:
        return ""
    before = " or before" if both[parted] - 1 != ([0, *both])[parted] else ""
    return f"; first more than {_PARTED:.1%} apart at step {both[parted]}{before}"


def _apart(a: Json, b: Json) -> str:
    """Say by how much the end losses differ; empty where noise could explain it."""
    if min(len(a["losses"]), len(b["losses"])) < _FEWEST:
        return ""
    (x, dx), (y, dy) = level(a), level(b)
    noise, of = math.hypot(dx, dy), "of a run's own steps"
    pairs = [one - other for one, other in zip(a["losses"][-ENDS:], b["losses"][-ENDS:], strict=False)]
    if a["steps"] == b["steps"] and a.get("order") and a["order"] == b.get("order") and not _rows_differ(a, b):
        noise, of = stdev(pairs) / math.sqrt(len(pairs)), "of the same steps, one by one"
    if abs(x - y) <= max(_SIGMAS * noise, 1e-4 * abs(x)):
        return ""
    return f"end loss {x:.4f} and {y:.4f}, {abs(x - y):.4f} apart (noise {of}: {noise:.4f})"


def _named(what: list[str], a: Json, b: Json) -> str:
    if a["steps"] != b["steps"] and any(one["status"] != "finished" for one in (a, b)):
        return "one of them did not run to its end"
    none = _OF_NO_LOSS if a["steps"] != b["steps"] else (*_OF_NO_LOSS, *_OF_THE_END)
    bears = [key for key in what if not key.startswith(none)]
    if a["steps"] != b["steps"] and all(key.startswith(_RATE) for key in bears):
        return "how long they were trained"
    if not bears and (_left_out(a, b) or a["incidents"] != b["incidents"]):
        return "incidents"
    return _one([key for key in bears if not key.startswith("machine.")] or bears)


def _one(keys: list[str]) -> str:
    """Name the only key that differs; several cannot be told apart."""
    if not keys:
        return "cannot be told"
    return keys[0] if len(keys) == 1 else f"cannot be told between {', '.join(keys[:6])}" + (" and more" if len(keys) > 6 else "")


def _told(keys: list[str]) -> str:
    if not keys:
        return "nothing known differs"
    return f"what differs: {', '.join(keys[:6])}" + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")


_SPEED_KEYS = ("threads", "precision", "attention", "packing", "micro_batch", "checkpointed", "liger", "ladder", "adapter.")
OF_NO_SPEED = ("lr", "schedule", "warmup", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "seed", "steps", "epochs", "until")


def _of_speed(key: str) -> bool:
    known = key.startswith(("machine.", "settings.", "model", "train.")) or any(word in key for word in _SPEED_KEYS)
    return known and key.removeprefix("train.").split(".")[0] not in OF_NO_SPEED


def _near(key: str, one: Json, other: Json) -> bool:
    """Return whether a setting is a number in both runs and differs by less than the speeds do: it explains nothing of that size."""
    part, _, name = key.partition(".")
    values = [flat(facts["settings"]).get(name) for facts in (one, other)] if part == "settings" else []
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= _FASTER * max(map(abs, numbers))


def _untold(runs: Sequence[tuple[str, Json]]) -> list[str]:
    """List what cannot be told from these folders."""
    found = []
    if seed_band(runs) is None:
        lacks = "and went as far as each other" if _of_the_seed(runs) else "alone"
        found.append(f"how far a seed alone moves the loss: no two of these runs differ by train.seed {lacks}")
    if any(facts["loss"]["eval_tuned"] is None for _, facts in runs):
        found.append("held-out losses of all of them")
    return found + [told for pair in combinations(runs, 2) if (told := _held_out_apart(*pair))]


def _held_out_apart(one: tuple[str, Json], other: tuple[str, Json]) -> str:
    """Say why the held-out losses of two runs cannot be held against each other; empty where they can, or one has none."""
    (first, a), (second, b) = one, other
    if any(facts["loss"]["eval_tuned"] is None for facts in (a, b)):
        return ""
    differing = [key for key in changed(a, b) if key.startswith(_OF_THE_LOSS) or (key == "adapter.start" and _is_reference(a))]
    pair = f"which of {first} and {second} has the better held-out loss"
    if differing:
        return f"{pair}: it is another kind of loss ({', '.join(differing)})"
    held = a.get("held_keys"), b.get("held_keys")
    if held[0] is None or held[1] is None:
        apart = [key for key in changed(a, b) if key.startswith("data") or key in (*_OF_THE_SEED, "train.max_tokens", "model")]
        return f"{pair}: whether it is of the same rows is not known ({', '.join(apart)})" if apart else ""
    alike = int(np.isin(held[0], held[1]).sum())
    if np.array_equal(np.sort(held[0]), np.sort(held[1])):
        return ""
    return f"{pair}: it is of other rows or tokens ({alike:,} of {len(held[0]):,} and {len(held[1]):,} are the same)"


def _is_reference(facts: Json) -> bool:
    """Return whether a run's loss is held against the adapter it began from."""
    return OBJECTIVES[facts["config"].get("train.objective", "sft")].reference
