"""What every verb answers on fixed inputs, as version 0.1.0 did: the keys fully, values where they do not follow from the machine.

`HOLDFAST_GOLDEN=write pytest tests/acceptance/test_golden.py -m 'long or not long'` writes tests/fixtures/golden; look at the difference.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast
from support.old_runs import FIXTURES, ask, settle
from support.recorded import MACHINES

GOLDEN = FIXTURES / "golden"
WRITE = os.environ.get("HOLDFAST_GOLDEN") == "write"
RUNS = ("text", "tabular", "command", "text-unfinished")
CARD = next(row[1] for row in MACHINES if row[0] == "RTX 3090")
# what differs between calls and machines: of these nothing but the key is kept
VOLATILE = {
    "seconds",
    "seconds_in_all",
    "rows_per_s",
    "mb_per_s",
    "tokens_per_s",
    "time",
    "created",
    "started",
    "since",
    "pid",
    "pids",
    "host",
    "peak_bytes",
    "goodput",
    "wall_seconds",
    "tokens_per_second",
    "seconds_to_recover",
    "gradients_sha256",
    "weights_sha256",
    "context",
    "allocator",
    "abandoned_snapshots",
    "disk_free_bytes",
    "scrubbed",
    "unsure",
    "bytes",
    "new_bytes",
}
CASES: dict[str, list[object]] = {
    "status": ["status", "{runs}/text-unfinished"],
    "status-all": ["status", "{runs}"],
    "report": ["report", "{runs}/text", "--out", "{out}/page.html"],
    "diagnose": ["diagnose", "{inputs}/oom.log", "--exit-code", "1"],
    "diagnose-run": ["diagnose", "{runs}/text"],
    "stop": ["stop", "{runs}/text"],
    "bundle": ["bundle", "{runs}/command", "--out", "{out}/bundle.zip"],
    "explain": ["explain", "gpu-oom-allocator"],
    "models": ["models"],
    "compare": ["compare", "{runs}/text", "{runs}/text-unfinished"],
    "doctor": ["doctor", "--machine", "{inputs}/machine.json", "--no-probe"],
    "doctor-compare": ["doctor", "--compare", "{inputs}/machine.json", "{inputs}/machine.json"],
    "doctor-image": ["doctor", "--image", "--machine", "{inputs}/machine.json"],
    "plan": ["plan", "text.yaml", "--machine", "{inputs}/machine.json"],
    "move": ["move", "{runs}/text-unfinished", "--to", "{out}/place"],
    "data-check": ["data", "check", "rows.jsonl", "bad.jsonl"],
    "data-check-table": ["data", "check", "--config", "tabular.yaml"],
    "data-clean": ["data", "clean", "bad.jsonl", "--out", "{out}/clean.jsonl", "--rejects", "{out}/rejects.jsonl"],
    "data-make": ["data", "make", "--rows", "24", "--out", "{out}/made.jsonl"],
    "data-collect": ["data", "collect", "{inputs}/votes", "--out", "{out}/collected.jsonl"],
    "data-show": ["data", "show", "rows.jsonl", "--row", "2"],
    "data-show-pair": ["data", "show", "pairs.jsonl", "--row", "2", "--config", "preferences.yaml"],
    "data-bars": ["data", "bars", "bars.csv", "--out", "{out}/features.csv"],
    "data-split": ["data", "split", "rows.jsonl", "--into", "{out}/a.jsonl=0.5", "--into", "{out}/b.jsonl=rest"],
    "data-sample": ["data", "sample", "rows.jsonl", "--rows", "5", "--out", "{out}/sample.jsonl"],
    "data-diff": ["data", "diff", "rows.jsonl", "bad.jsonl"],
    "train": ["train", "text.yaml", "--run", "{runs}/text"],
    "run": ["run", "--run", "{out}/counted", "--progress", r"at (\d+) of (\d+)", "--", "sh", "-c", "echo at 1 of 2; echo at 2 of 2"],
    "trial": ["trial", "{runs}/text", "--step", "8"],
    "export": ["export", "{runs}/text", "--to", "adapter", "--out", "{out}/adapter"],
    "verify": ["verify", "{runs}/text", "--generate", "2"],
    "drill": ["drill", "tabular.yaml", "--faults", "once.faults", "--run", "{out}/drill"],
    "walk": ["walk", "walk.yaml", "--folds", "2", "--run", "{out}/walk"],
    "refused-key": ["train", "text.yaml", "train.stepz=3", "--run", "{out}/refused"],
    "refused-file": ["diagnose", "{inputs}/none.log"],
    "refused-run": ["status", "{out}/none"],
}
LONG = {"drill", "walk", "verify"}
CHANGE_RUNS = {"move", "stop", "train", "trial"}  # these answer from runs of their own, so that the order of tests has no influence


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and inputs; beside the committed ones a log, a machine, bad rows, votes, bars, a walk."""
    place = tmp_path_factory.mktemp("golden")
    if shlex.quote(str(place)) != str(place):
        pytest.skip(f"the recorded commands are of a path without quotes, and this is {place}")
    inputs = settle(place, *RUNS)
    (inputs / "oom.log").write_text("step 811 loss 1.31\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    (inputs / "machine.json").write_text(json.dumps(CARD))
    good = '{"instruction": "Name a tree", "output": "birch"}'
    bad = ['{"instruction": "Name a bird"', '{"instruction": "Name a fish", "output": ""}']
    (inputs / "bad.jsonl").write_text("\n".join([good, *bad, good]) + "\n")
    (inputs / "votes").mkdir()
    vote = {"prompt": "two and two?", "chosen": "four", "rejected": "five", "response": "four", "voted": "2026-01-01T00:00:00Z"}
    (inputs / "votes" / "preferences.jsonl").write_text(json.dumps(vote) + "\n")
    (inputs / "once.faults").write_text(json.dumps({"faults": [{"name": "killed", "effect": "kill", "when": {"attempt": 1, "step": 4}}]}))
    ask("data", "bars", inputs / "bars.csv", "--vix", inputs / "vix.csv", "--make", 400)
    tabular = json.loads((inputs / "tabular.yaml").read_text())
    rows = (inputs / "table.csv").read_text().splitlines()
    timed = [f"2025-01-01T00:{at:02d}:00Z,{row}" for at, row in enumerate(rows[1:])]
    (inputs / "timed.csv").write_text("\n".join([f"when,{rows[0]}", *timed]) + "\n")
    walk = tabular | {"data": {"files": "timed.csv", "held_out": 0.4}, "table": {"target": "y", "time": "when", "split": "time"}}
    (inputs / "walk.yaml").write_text(json.dumps(walk))
    return place


def fill(word: object, place: Path, out: Path) -> str:
    known = {"{runs}": place / "runs", "{inputs}": place / "inputs", "{out}": out}
    text = str(word)
    for name, value in known.items():
        text = text.replace(name, str(value))
    return text


def plain(value: Any, places: dict[str, str], key: str = "") -> Any:
    """An answer without what differs from one call to the next."""
    if key in VOLATILE and not isinstance(value, dict):
        return "<any>"
    if isinstance(value, dict):
        return {plain(name, places): plain(one, places, name) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one, places, key) for one in value]
    if isinstance(value, str):
        for path, name in places.items():
            value = value.replace(path, name)
        return re.sub(r"\b[0-9.,]+ (s|ms|min|KiB|MiB|GiB|MB|GB)\b", r"N \1", value)
    return value


def differences(golden: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two answers differ; numbers that are not whole may by a thousandth."""
    if isinstance(golden, dict) and isinstance(now, dict):
        for key in sorted(golden.keys() | now.keys()):
            if key not in golden or key not in now:
                yield f"{at}.{key}: {'new' if key not in golden else 'gone'}"
            else:
                yield from differences(golden[key], now[key], f"{at}.{key}")
    elif isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        for number, pair in enumerate(zip(golden, now, strict=True)):
            yield from differences(*pair, f"{at}[{number}]")
    elif isinstance(golden, float) and isinstance(now, int | float):
        if now != pytest.approx(golden, rel=1e-3, abs=1e-9):
            yield f"{at}: {golden} is {now}"
    elif golden != now:
        yield f"{at}: {golden!r} is {now!r}"


def compare(name: str, now: Any) -> None:
    """Hold `now` against golden/NAME.json, or write it there."""
    file = GOLDEN / f"{name}.json"
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    found = list(differences(json.loads(file.read_text()), now))
    assert not found, f"golden/{name}.json: " + "\n".join(found[:20])


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in CASES])
def test_an_answer_is_what_it_was(name: str, place: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if name in CHANGE_RUNS:
        settle(place := tmp_path_factory.mktemp("golden"), *RUNS)
    words = [fill(word, place, tmp_path) for word in CASES[name]]
    at = words.index("--") if "--" in words else len(words)
    models = place if name == "models" else tmp_path
    own = {"HOLDFAST_MODELS": str(models / "models.jsonl"), "HOLDFAST_CACHE": str(tmp_path / "cache")}
    done = holdfast(*words[:at], "--json", *words[at:], cwd=place / "inputs", env=own)
    answer = json.loads(done.stdout)
    places = {str(tmp_path): "OUT", str(place): "PLACE"}
    compare(name, {"command": CASES[name], "exit": done.returncode, "answer": plain(answer, places)})


def verbs_of(*words: str) -> list[str]:
    return re.findall(r"^    ([a-z]+) ", ask(*words, "--help")[1], re.MULTILINE)


def every_verb() -> list[str]:
    """Verbs, and those of `data`, as `help` lists them."""
    return [verb for verb in verbs_of() if verb != "data"] + [f"data {verb}" for verb in verbs_of("data")]


def test_every_verb_with_json_has_a_golden_answer() -> None:
    """But `serve` and `watch`, which go on, `schema`, whose answer is its text, and those whose answer is this machine's or measured."""
    verbs = every_verb()
    assert {"train", "doctor", "status", "data check"} <= set(verbs)
    with_json = {verb.replace(" ", "-") for verb in verbs if "--json" in ask(*verb.split(), "--help")[1]}
    assert with_json - {"serve", "watch", "schema", "init", "check", "tune", "learn"} <= set(CASES)


def test_the_schema_of_a_config_is_what_it_was() -> None:
    code, text, _ = ask("schema")
    assert code == 0
    compare("schema", json.loads(text))


def test_options_and_exit_codes_of_help_are_what_they_were() -> None:
    found = {}
    for verb in every_verb():
        code, text, _ = ask(*verb.split(), "--help")
        found[verb] = {"exit": code, "options": sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("\noptions:")[2])))}
    compare("help", found)


def test_the_doctor_says_of_recorded_machines_what_it_said(tmp_path: Path) -> None:
    found = {}
    for name, machine, *_ in MACHINES:
        (tmp_path / "machine.json").write_text(json.dumps(machine))
        code, out, _ = ask("doctor", "--machine", tmp_path / "machine.json", "--no-probe", "--json")
        answer = json.loads(out)
        ids = sorted(f"{one['severity']} {one['id']}" for one in answer["findings"])
        env = [f"{key}={value}" for key, value in sorted(answer["env"].items())]
        found[name] = " | ".join([str(code), answer["verdict"], *ids, *env])
    compare("doctor-machines", found)


def test_recorded_logs_have_the_causes_they_had(tmp_path: Path) -> None:
    found = {}
    for name, log in json.loads((FIXTURES / "inputs" / "logs.json").read_text()).items():
        (tmp_path / "log.txt").write_text(log)
        code, out, _ = ask("diagnose", tmp_path / "log.txt", "--json")
        answer = json.loads(out)
        found[name] = f"{code} {answer['cause']} {answer['confidence']:.2f}"
    compare("diagnose-logs", found)
