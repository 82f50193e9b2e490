"""What scripts may rely on, held as data: commands and options, exit codes, JSON fields, the files of a run.

It may grow. A verb that is not there yet stands in NOT_YET: the test fails when it appears before its options and
fields stand here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import holdfast, lines, make_rows, write_rows
from holdfast.base import errors
from holdfast.book.kinds import failure
from holdfast.cli.main import build_parser, main

SHARED_DATA_OPTIONS = {"PATH", "--tokenizer", "--max-tokens", "--json", "--html"}
OPTIONS = {
    "doctor": {"CONFIG", "--machine", "--no-probe", "--json", "--save-env"},
    "diagnose": {"LOG|RUN|-", "--exit-code", "--machine", "--json"},
    "data check": SHARED_DATA_OPTIONS,
    "data clean": SHARED_DATA_OPTIONS | {"--out", "--rejects"},
    "data make": {"--rows", "--out", "--recipe", "--json"},
    "data collect": {"SOURCE", "--out", "--json"},
    "data show": {"FILE", "--row", "--model", "--json"},
    "data bars": {"FILE", "--vix", "--out", "--json"},
    "init": {"--from", "--model", "--data", "--card", "--goal", "--out", "--json"},
    "train": {"CONFIG", "key=value", "--run", "--extend", "--faults", "--json"},
    "run": {"--name", "--run", "--progress", "--checkpoints", "--retries", "--hang-s", "--try", "--callback", "--json", "-- COMMAND ..."},
    "drill": {"CONFIG", "--faults", "--json"},
    "plan": {"CONFIG", "--memory", "--card", "--machine", "--why", "--table", "--json"},
    "check": {"CONFIG", "key=value", "--only", "--json", "--html"},
    "compare": {"RUN", "--json", "--html"},
    "tune": {"CONFIG", "--json"},
    "learn": {"POLICY", "--rounds", "--json"},
    "trial": {"RUN", "--step", "--samples", "--set", "--env", "--json"},
    "status": {"RUN", "--json"},
    "watch": {"RUN", "--port", "--lan", "--terminal", "--test-notify", "--json"},
    "report": {"RUN", "--out"},
    "export": {"RUN|ADAPTER", "--to", "--out", "--quantise", "--llama-cpp", "--json"},
    "serve": {"RUN|ADAPTER", "--port", "--ab", "--engine", "--json"},
    "models": {"list|promote NAME VERSION|rollback NAME", "--json"},
    "verify": {"RUN|ADAPTER", "--rows", "--prompts", "--against", "--suite", "--json", "--html"},
}
BEYOND = {"completion", "walk", "move", "attach", "stop", "bundle", "explain", "chat", "schema", "data split", "data sample", "data diff"}
NOT_YET: set[str] = set()
EXIT_CODES = {"DONE": 0, "BLOCKED": 1, "USAGE": 2, "GAVE_UP": 3, "OUR_BUG": 70, "INTERRUPTED": 130}

CAUSES = {
    *("gpu_out_of_memory", "gpu_memory_unavailable", "host_out_of_memory", "shared_memory_exhausted", "disk_full"),
    *("nonfinite_numerics", "nonfinite_kernel", "no_learning_signal", "divergence", "precision_mismatch"),
    *("autograd_graph", "malformed_data", "tokenizer_or_template", "token_id_out_of_range"),
    *("checkpoint_model_mismatch", "checkpoint_unreadable", "export_failure", "collective_timeout"),
    *("communication_failure", "launch_misconfigured", "package_conflict", "wrong_torch_build"),
    *("native_library_mismatch", "native_build_failure", "unsupported_gpu_arch", "wrong_gfx_override"),
    *("device_access_denied", "driver_or_firmware", "wrong_device_selected", "network_unavailable"),
    *("blas_library_failure", "gpu_kernel_fault", "native_crash", "kernel_cache_unusable"),
    *("allocator_option_bug", "hardware_fault", "hang", "crash_at_exit", "healthy"),
}
NUMBER, NOTHING = (int, float), type(None)


def of(**keys: Any) -> dict[str, Any]:
    """The shape of an object with at least these keys.

    A shape is a type or several, a set of values, [shape of each] (of at least one), or {key: shape}.
    """
    return keys


SUSPECT = of(cause={*CAUSES, "unknown"}, confidence=NUMBER)
FINDING = of(id=str, severity={"block", "warn", "info"}, message=str, fix=str, source=str)
DOCTOR = of(machine=dict, findings=[FINDING], env=dict, verdict={"ready", "risky", "blocked"})
STANDINGS = {"confirmed", "reported", "folk", "refuted"}
REMEDY = of(id=str, what=str, patch=dict, command=str, standing=STANDINGS, source=str)
CLUE = of(line=int, text=str)
DIAGNOSE = SUSPECT | of(also=[SUSPECT], clues=[CLUE], explanation=str, remedies=[REMEDY])
TOKENS = of(total=int, min=int, p50=int, p90=int, p99=int, max=int)
COUNTS = of(rows=int, kept=int, mended=int, rejected=int, by_reason=dict)
DATA = COUNTS | of(tokens=TOKENS, duplicates=int, near_duplicates=int, seconds=NUMBER)
REJECT = of(file=str, line=int, reason=str, detail=str, raw=str)
DRAWN = of(rows=int, by_category=dict)
BARS = of(rows=int, features=[str], sessions=int, gaps=int)
EVIDENCE = of(step=int, cause={*CAUSES, "unknown"}, samples=list, remedy=(str, NOTHING), evidence=str)
INCIDENT = EVIDENCE | of(lost_steps=int, seconds_to_recover=(*NUMBER, NOTHING))
LOSS = of(first=NUMBER, last=NUMBER, eval_base=NUMBER, eval_tuned=NUMBER)
COMMAND = of(status={"finished"}, command=[str], launcher=(str, NOTHING), attempts=int, incidents=list, checkpoints_set_aside=list) | of(
    steps_computed_twice=(int, NOTHING), goodput=(*NUMBER, NOTHING), steps=(int, NOTHING), artifact_sha256=(str, NOTHING)
)
LEFT_OUT = of(file=str, line=int, reason=str)
SUMMARY = (
    of(status={"finished", "gave_up", "interrupted"}, steps=int, samples_seen=int, loss=LOSS, attempts=int)
    | of(incidents=[INCIDENT], quarantined=[LEFT_OUT], goodput=NUMBER, tokens_per_second=NUMBER, peak_bytes=int)
    | of(artifact_sha256=str, adapter_sha256=str)
)
COMPUTED = of(step=int, samples=[int], loss=NUMBER, grad_norm=NUMBER, seconds=NUMBER)
STEP = COMPUTED | of(lr=NUMBER, tokens=int, peak_bytes=int)
TRIAL = COMPUTED | of(ending=str, finite=bool, gradients_sha256=str, weights_sha256=str, changed=dict)
STATES = {"running", "finished", "gave_up", "interrupted", "dead"}
RUN = of(run=str, state=STATES, step=int, steps=int, attempts=int, last_incident=(str, dict, NOTHING), pids=dict)
CHECKED = of(engine=str, nmse=NUMBER, kl_per_token=NUMBER, top1_agreement=NUMBER, greedy_equal=bool, token_ids_equal=bool)
EXPORT = of(files=[of(path=str, bytes=int, sha256=str)], checked=CHECKED | of(stops=bool, budget=dict, prompts=int))
DIFFERENCE = of(base=NUMBER, tuned=NUMBER, difference=NUMBER, interval=[NUMBER])
AB = of(wins=int, losses=int, ties=int, p_value=NUMBER, interval=(list, NOTHING))
VERIFY = of(loads=bool, infers=bool, rows=int, loss=DIFFERENCE, ab=AB, forgotten=dict, rows_needed=(int, NOTHING)) | of(
    verdict={"better", "worse", "same", "cannot_tell"}
)
MODEL = of(name=str, version=int, run=(str, NOTHING), base=str, adapter_sha256=str, data_sha256=(str, NOTHING))
MODELS = of(models=[MODEL | of(verdict=(str, NOTHING), promoted=bool, exports=list)])
RUN_FILES = (
    *("config.yaml", "machine.json", "plan.json", "events.jsonl", "steps.jsonl", "summary.json", "report.html"),
    *(f"attempts/001/{name}" for name in ("launch.json", "output.log", "wreck.json")),
    *(f"adapter/{name}" for name in ("adapter_model.safetensors", "adapter_config.json")),
    *("quarantine.jsonl", "trials/001"),
)
CHECKPOINT_FILES = ("adapter_model.safetensors", "adapter_config.json", "state.safetensors", "manifest.json")
EFFECTS = {
    *("kill", "segfault", "abort", "raise", "oom", "host_oom", "hang", "slow", "nan_loss", "nan_grad", "zero_loss"),
    *("spike", "corrupt_checkpoint", "torn_checkpoint", "disk_full", "bad_sector"),
}
CONDITIONS = {"tokens", "setting", "step", "sample", "attempt", "env", "every", "probability", "rank", "phase"}
FAULT = {"name", "when", "effect", "message", "seconds", "factor", "path"}
MACHINE = {
    "os": {"kernel": "6.8.0-45-generic", "distro": "Ubuntu 24.04", "wsl": False, "container": False},
    "python": "3.12.3",
    "memory_bytes": 33285996544,
    "swap_bytes": 66571993088,
    "shm_bytes": 67108864,
    "disk_free_bytes": 53687091200,
    "torch": {"version": "2.5.1+rocm6.2", "hip": "6.2.41133", "cuda": None, "arch_list": ["gfx900", "gfx1100"]},
    "rocm": {"version": "6.2.0", "driver": "6.8.5", "firmware": {"mes": "0x83"}},
    "cuda": {"driver": None},
    "gpus": [{"vendor": "amd", "arch": "gfx1100", "memory_bytes": 21458059264, "integrated": False}],
    "devices": {
        "/dev/kfd": {"exists": True, "readable": False},
        "/dev/dri/renderD128": {"exists": True, "readable": True},
    },
    "packages": {"transformers": "5.23.0", "peft": "0.21.2", "bitsandbytes": None, "torchao": "0.15.0"},
    "env": {"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"},
}
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB\n"
    "OSError: [Errno 28] No space left on device\n"
)


def wrong(answer: Any, shape: Any, place: str = "") -> Iterator[str]:
    """Each place where an answer is not of its shape."""
    if isinstance(shape, dict):
        if not isinstance(answer, dict):
            yield f"{place}: {answer!r} is no object"
            return
        for key, inner in shape.items():
            yield from wrong(answer[key], inner, f"{place}.{key}") if key in answer else [f"{place}.{key}: missing"]
    elif isinstance(shape, list):
        if not isinstance(answer, list) or not answer:
            yield f"{place}: {answer!r} is no list with something in it"
            return
        for number, one in enumerate(answer):
            yield from wrong(one, shape[0], f"{place}[{number}]")
    elif isinstance(shape, set):
        if answer not in shape:
            yield f"{place}: {answer!r} is none of {sorted(shape)}"
    elif not isinstance(answer, shape):
        yield f"{place}: {answer!r} is no {shape}"


def told(shape: Any, capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """The one JSON object a command prints; it is of that shape."""
    assert main([*map(str, arguments), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not [*wrong(answer, shape)]
    return answer


@pytest.fixture(scope="module")
def run(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished run in its default folder that had to leave a row out; `.summary`: what --json printed."""
    folder = tmp_path_factory.mktemp("contracts")
    config = {
        "model": str(assets.model),
        "data": {"files": [str(write_rows(folder / "rows.jsonl", make_rows(40)))], "held_out": 0.1},
        "adapter": {"r": 4},
        "train": {"epochs": 1, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "threads": 1},
        "faults": [{"when": {"sample": "rows.jsonl:7"}, "effect": "oom"}],
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(config))
    done = holdfast("train", "small.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(path=folder / "runs" / "small", summary=json.loads(done.stdout))


def verbs(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    if fill := getattr(parser, "fill", None):
        fill()
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for word, child in action.choices.items():
            yield from verbs(child, f"{above} {word}".strip())
    if not inner:
        yield above, parser


FOUND = dict(verbs(build_parser()))


def test_every_verb_of_the_contract_is_there_or_known_to_come() -> None:
    assert not set(FOUND) & NOT_YET, "give it its options and its fields here"
    assert set(FOUND) == set(OPTIONS) | BEYOND


@pytest.mark.parametrize("verb", OPTIONS)
def test_a_verb_takes_what_the_contract_says(verb: str) -> None:
    actions = FOUND[verb]._actions
    takes = {name for action in actions for name in action.option_strings or [str(action.metavar)]}
    assert takes >= OPTIONS[verb]


@pytest.mark.parametrize("verb", FOUND)
def test_the_help_of_every_verb_shows_a_worked_example(verb: str) -> None:
    assert f"holdfast {verb}" in FOUND[verb].format_help().partition("\nexample:\n")[2]


def test_exit_codes_keep_their_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {name: getattr(errors, name) for name in EXIT_CODES} == EXIT_CODES
    assert main(["trian"]) == 2
    assert main(["diagnose", str(tmp_path / "none.log")]) == 2


def test_a_machine_file_is_read_as_doctor_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(MACHINE))
    answer = told(DOCTOR, capsys, "doctor", "--machine", file, code=1)
    assert answer["verdict"] == "blocked", "the driver's device is not readable"
    file.write_text(json.dumps(answer["machine"]))
    assert told(DOCTOR, capsys, "doctor", "--machine", file, code=1) == answer
    assert not [*different(MACHINE, answer["machine"])]


def different(given: Any, printed: Any, place: str = "") -> Iterator[str]:
    """Each value of a machine file that is printed otherwise; what is null there may be left out."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield from different(value, (printed or {}).get(key), f"{place}.{key}")
    elif isinstance(given, list) and given and isinstance(given[0], dict):
        for number, value in enumerate(given):
            yield from different(value, printed[number], f"{place}[{number}]")
    elif given != printed:
        yield f"{place}: {given!r} is printed as {printed!r}"


def test_doctor_tells_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(DOCTOR, capsys, "doctor", "--no-probe")
    assert set(answer["machine"]) >= set(MACHINE)


def test_causes_keep_their_names() -> None:
    assert set(failure.CAUSES) >= CAUSES


def test_diagnose_tells_cause_clues_and_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    answer = told(DIAGNOSE, capsys, "diagnose", tmp_path / "log", "--exit-code", 1)
    assert 0 <= answer["confidence"] <= 1


def test_rows_are_checked_and_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_rows(tmp_path / "rows.jsonl", make_rows(5))
    file.write_text(file.read_text() + "not a row\n\n")
    told(DATA, capsys, "data", "check", file, code=1)
    out, rejects = tmp_path / "clean.jsonl", tmp_path / "rejects.jsonl"
    answer = told(DATA, capsys, "data", "clean", file, "--out", out, "--rejects", rejects)
    assert answer["rows"] == 6 == answer["kept"] + answer["mended"] + answer["rejected"]
    assert len(lines(out)) == answer["kept"] + answer["mended"] and answer["rejected"] == 1
    assert not [*wrong(lines(rejects), [REJECT])]


def test_rows_are_made_and_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(DRAWN, capsys, "data", "make", "--rows", 5, "--out", tmp_path / "made.jsonl")
    told(DRAWN, capsys, "data", "collect", tmp_path / "made.jsonl", "--out", tmp_path / "collected.jsonl")
    bars, vix = tmp_path / "bars.csv", tmp_path / "vix.csv"
    assert main(["data", "bars", str(bars), "--vix", str(vix), "--make", "100"]) == 0
    capsys.readouterr()
    told(BARS, capsys, "data", "bars", bars, "--vix", vix, "--out", tmp_path / "features.csv")


def test_a_run_leaves_what_the_contract_says(run: SimpleNamespace) -> None:
    assert not [*wrong(run.summary, SUMMARY)]
    assert run.summary["artifact_sha256"] == run.summary["adapter_sha256"]
    assert json.loads((run.path / "summary.json").read_text()) == run.summary
    assert not [name for name in RUN_FILES if not (run.path / name).exists()]
    newest = run.path / f"checkpoints/step-{run.summary['steps']:08}"
    assert not [name for name in CHECKPOINT_FILES if not (newest / name).exists()]
    assert not [*wrong(lines(run.path / "steps.jsonl"), [STEP])]
    assert not [*wrong(lines(run.path / "quarantine.jsonl"), [LEFT_OUT | of(evidence=str)])]
    assert all("event" in event for event in lines(run.path / "events.jsonl"))


def test_a_command_of_somebody_elses_leaves_what_the_contract_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--run", str(tmp_path / "run"), "--json", "--", "true"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert not [*wrong(answer, COMMAND)]
    assert answer["command"] == ["true"] and json.loads((tmp_path / "run/summary.json").read_text()) == answer


def test_a_run_is_shown_and_replayed(run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told({"runs": [RUN]}, capsys, "status", run.path)["runs"][0]["state"] == "finished"
    kept = {file: file.read_bytes() for file in run.path.glob("*.json*")}
    told(TRIAL, capsys, "trial", run.path, "--step", 2)
    assert {file: file.read_bytes() for file in kept} == kept, "a trial changes nothing in the run"
    assert main(["report", str(run.path), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 0


def test_a_run_is_verified(
    run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    answer = told(VERIFY, capsys, "verify", run.path, "--generate", 2, "--longest", 4, "--html", tmp_path / "page.html")
    assert answer["loads"] and answer["rows"] == 4 and (tmp_path / "page.html").stat().st_size > 0


def test_a_run_is_exported(
    run: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    told(EXPORT, capsys, "export", run.path, "--to", "merged", "--out", tmp_path / "merged")
    told(MODELS, capsys, "models")
    assert told(MODELS, capsys, "models", "promote", run.path.name, 1, "--force", "a test")["models"][0]["promoted"]


@pytest.mark.parametrize(("noun", "keys"), [("Fault", FAULT), ("When", CONDITIONS)])
def test_faults_are_written_as_the_contract_says(noun: str, keys: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--json"]) == 0
    nouns: dict[str, Any] = json.loads(capsys.readouterr().out)["$defs"]
    assert set(nouns[noun]["properties"]) >= keys
    assert set(nouns["Fault"]["properties"]["effect"]["enum"]) >= EFFECTS
