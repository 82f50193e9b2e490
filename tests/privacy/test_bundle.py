"""What `holdfast bundle` packs of runs in every state, and that no secret and no name is in it."""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast, start, wait_until
from holdfast.base.errors import Stop
from holdfast.cli.commands import bundle as bundle_verb
from holdfast.privacy.person import person
from holdfast.privacy.scrub import Person, Scrubber, secrets_of
from holdfast.report import bundle_parts
from holdfast.report.bundle_parts import BundlePart, is_bundle_of, read_parts, without_edges
from holdfast.run.folder import RunFolder

TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
PERSON = Person(
    frozenset({"carol", "root", "al"}), frozenset({"gpubox7.lab.example", "gpubox7"}), {"/srv/runs/x": "RUN", "/home/carol": "~"}
)


@pytest.mark.parametrize(
    ("text", "gone", "left"),
    [
        (f"token is {TOKEN} here", TOKEN, "token is [secret] here"),
        ("password: hunter2", "hunter2", "password: [secret]"),
        ('{"api_key":"a\\"b c","steps":3}', "b c", '{"api_key":"[secret]","steps":3}'),
        ("WANDB_API_KEY=0123456789abcdef python", "0123456789abcdef", "WANDB_API_KEY=[secret] python"),
        ("--api-key tiger99 --steps 3", "tiger99", "--api-key [secret] --steps 3"),
        ('["--hub-token", "tiger99", "x"]', "tiger99", '["--hub-token", "[secret]", "x"]'),
        ("--hub_token=tiger99", "tiger99", "--hub_token=[secret]"),
        ("Authorization: Bearer abc.def-123", "abc.def-123", "Authorization: [secret]"),
        ("https://me:pa55@host.example/x", "pa55", "https://[secret]@host.example/x"),
        ("GET /f?X-Amz-Signature=0a1b2c&x=1", "0a1b2c", "GET /f?X-Amz-Signature=[secret]&x=1"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nnext", "MIIE", "[secret]\nnext"),
        ("token: 9f8e7d6c5b4a39281706f5e4", "9f8e7d6c", "token: [secret]"),
        ("from /home/carol/data/rows.jsonl", "carol", "from ~/data/rows.jsonl"),
        ("/srv/runs/x/steps.jsonl", "srv", "RUN/steps.jsonl"),
        ("/mnt/carol_fast/rows", "carol", "/mnt/[user]_fast/rows"),
        ("carol@gpubox7:~$ mail carol@example.org", "carol", "[user]@[host]:~$ mail [email]"),
        ("rank 0 on GPUBOX7.lab.example", "GPUBOX7", "rank 0 on [host]"),
        ("NET/Socket : eth0:192.168.4.17<0>", "192.168", "NET/Socket : eth0:[address]<0>"),
    ],
)
def test_what_must_go_goes(text: str, gone: str, left: str) -> None:
    scrubbed = Scrubber(PERSON).text(text)
    assert gone not in scrubbed
    assert scrubbed == left


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 512",
        "pad_token: <|endoftext|>",
        'eos_token="</s>"',
        '"mean_token_accuracy": 0.9312345',
        "tokens_per_second: 12345.678901234567",
        "TOKENIZERS_PARALLELISM=false",
        "KeyError: 'input_ids'",
        "key_proj.weight: torch.Size([4096, 4096])",
        "HF_TOKEN: null",
        "nvidia-cublas-cu12==12.4.5.8 nvidia-curand-cu12==10.3.5.147",
        "/srv/runs/xy/steps.jsonl",
        "the carolina model, read by root",
        "sk-learn-compatible estimator",
        "target_modules: all-linear, secretary",
    ],
)
def test_what_says_something_stays(text: str) -> None:
    assert Scrubber(PERSON).text(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"host":"vm","step":3}', '{"host":"[host]","step":3}'),
        ("{'hostname': 'a7', 'pid': 1}", "{'hostname': '[host]', 'pid': 1}"),
        (r'"{\"host\": \"other-box\"}"', r'"{\"host\": \"[host]\"}"'),
        ('{"host": "localhost", "host_bytes": 12}', '{"host": "localhost", "host_bytes": 12}'),
    ],
)
def test_a_field_that_holds_a_host_loses_it_however_short_it_is(text: str, left: str) -> None:
    assert Scrubber(Person()).text(text) == left


def test_a_machine_that_a_field_names_goes_from_everything_else() -> None:
    texts = ['{"host": "nodebox"}', "rank 1 of nodebox failed"]
    assert Scrubber(person(texts, {})).text(texts[1]) == "rank 1 of [host] failed"


@pytest.mark.parametrize("name", ["u.tar.gz", "u.tgz", "u.json"])
def test_a_name_of_another_form_is_refused(name: str, wrecked: Path, tmp_path: Path) -> None:
    done = holdfast("bundle", wrecked, "--out", tmp_path / name)
    assert done.returncode == 2 and "a bundle is a zip archive" in done.stderr and "--out u.zip" in done.stderr
    assert not (tmp_path / name).exists()


def test_the_values_of_telling_variables_are_secrets_wherever_they_stand() -> None:
    found = secrets_of({"MY_SECRET_SAUCE": "tabasco77", "MAX_TOKENS": "100000", "TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin"})
    assert found == {"tabasco77"}
    assert Scrubber(Person(secrets=found)).text("it said tabasco77!") == "it said [secret]!"


@pytest.mark.parametrize("broken", ["\n", "\r\n", "  │\n│ ", "\\n", "\\r\\n", "\n1042: ", '",\n    "'])
def test_a_known_secret_that_a_terminal_broke_over_two_lines_goes(broken: str) -> None:
    secret = "correct-horse(77)+battery"
    for at in range(1, len(secret)):
        text = f"key {secret[:at]}{broken}{secret[at:]}, and on"
        assert Scrubber(Person(secrets=frozenset({secret}))).text(text) == "key [secret], and on"
    assert Scrubber(Person(secrets=frozenset({secret}))).text("correct\n\nhorse") == "correct\n\nhorse"


@pytest.mark.parametrize(
    ("secrets", "text", "left"),
    [
        (['{\n  "type": "service_account",\n  "id": "abc"\n}'], 'rows: {\n  "a": 1\n}', None),  # as clouds give theirs
        (['{\n  "type": "service_account",\n  "id": "abc"\n}'], 'it: {\n  "type": "service_account",\n  "id": "abc"\n}.', "it: [secret]."),
        (["a\n\n\n\nb"], "a b ab", None),  # nothing is left of it in one line
        (["aaab1234xyz"], "at aaaab1234xyz", "at a[secret]"),  # begins within what begins like it
        (["abcdefgh", "cdeXXXXX1"], "abcdeXXXXX1 abcdefgh", "ab[secret] [secret]"),
        (["abcdef12", "12zzzzzz"], "an abcdef12zzzzzz", "an [secret]"),
        (["nabcdef12"], r"C:\nabcdef12 nabc\n│ def12", r"C:\[secret] [secret]"),
        (["pass word77"], "│ it is pass │\n│ word77, pass word77 │", "│ it is [secret], [secret] │"),
    ],
)
def test_a_known_secret_goes_whatever_stands_before_and_in_it(secrets: list[str], text: str, left: str | None) -> None:
    assert Scrubber(Person(secrets=frozenset(secrets))).secrets(text) == (left or text)


def test_of_two_known_secrets_that_begin_alike_the_longer_goes_whole_and_a_long_one_in_any_number_of_lines() -> None:
    long = "tabasco77" + "".join(chr(97 + at * at % 26) + str(at % 10) for at in range(10_000))
    scrubber = Scrubber(Person(secrets=frozenset({"tabasco77", "tabasco77-and-more", long})))
    assert scrubber.text("a tabasco77-and-more, tabasco77-and-mor, tabasco77") == "a [secret], [secret]-and-mor, [secret]"
    lines = "\n".join(long[at : at + 80] for at in range(0, len(long), 80))
    assert scrubber.text(f"<{lines}>") == "<[secret]>"
    assert scrubber.taken["secret"] == 4


def files_of(archive: Path) -> dict[str, str]:
    with zipfile.ZipFile(archive) as found:
        assert found.testzip() is None
        return {name.partition("/")[2]: found.read(name).decode() for name in found.namelist()}


def bundle(run: Path, out: Path, **env: str) -> tuple[dict[str, Any], dict[str, str]]:
    done = holdfast("bundle", run, "--out", out, "--json", env=env)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    files = files_of(out)
    assert sorted(files) == sorted(entry["name"] for entry in answer["files"])
    assert all(f"| {entry['name']} |" in files["CONTENTS.md"] for entry in answer["files"] if entry["name"] != "CONTENTS.md")
    return answer, files


@pytest.fixture
def wrecked(tmp_path: Path) -> Path:
    """A run that died, with secrets in its config, its environment and its log, and things that are not to be packed."""
    run = tmp_path / "runs" / "secretive"
    log = ["step 1", f"login with {TOKEN}", "db_password=hunter2 at /home/dave/work/train.py", "said tabasco77"]
    log += ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    ending = {"kind": "error", "code": 1, "seconds": 3.0, "facts": {}}
    failure_report = {"attempt": 1, "ending": ending, "words": "ended with exit code 1", "lines": log, "samples": [1], "step": 2}
    files: dict[str, Any] = {
        "run.json": {"id": "ab" * 16},
        "supervisor.lock": {"host": "gpubox7.lab", "folder": "/home/dave/work", "command": "holdfast train my.yaml"},
        "attempts/001/wreck.json": failure_report,
        "attempts/001/launch.json": {
            "argv": ["python"],
            "env": {"WANDB_API_KEY": "0123456789abcdef"},
            "trainer_lock": "/old/place/trainer.lock",
        },
        "rejects.jsonl": {"raw": "a private row"},
        "evaluation.json": {"samples": "a private answer"},
    }
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(content) + "\n")
    (run / "config.yaml").write_text(f"model: m\ndata:\n  files: [/home/dave/rows.jsonl]\nhub_token: {TOKEN}\nmail: dave@example.org\n")
    (run / "attempts/001/output.log").write_text("\n".join(log) + "\n")
    (run / "steps.jsonl").write_text("".join(json.dumps({"step": k, "loss": 1.0}) + "\n" for k in range(1, 2000)))
    (run / "data.safetensors").write_bytes(bytes(1000))
    return run


def test_secrets_names_and_rows_are_not_in_it(wrecked: Path, tmp_path: Path) -> None:
    answer, files = bundle(wrecked, tmp_path / "out.zip", MY_SECRET_SAUCE="tabasco77")
    everything = "\n".join(files.values()) + (tmp_path / "out.zip").read_bytes().decode("latin-1")
    for secret in (TOKEN, "hunter2", "tabasco77", "0123456789abcdef", "dave", "gpubox7", "/old/place", "a private", str(wrecked)):
        assert secret not in everything, secret
    assert answer["scrubbed"]["secret"] >= 5
    assert answer["scrubbed"]["user"] + answer["scrubbed"]["path"] >= 3


def test_the_base_model_is_named_without_the_place_it_lies_at(wrecked: Path, tmp_path: Path) -> None:
    place = "/mnt/big/models/my-base"
    (wrecked / "adapter").mkdir()
    (wrecked / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": place}))
    (wrecked / "config.yaml").write_text(f"model: {place}\n")
    files = bundle(wrecked, tmp_path / "out.zip")[1]
    assert json.loads(files["adapter/adapter_config.json"]) == {"base_model_name_or_path": "my-base"}
    assert "model: my-base\n" in files["config.yaml"] and not [name for name, text in files.items() if "/mnt/big" in text]


def test_half_a_secret_beside_a_cut_is_none_that_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a long file is cut, a key may begin in what is left out: what is left of it has no sign of what it is."""
    monkeypatch.setattr(bundle_parts, "LONGEST", 8192)
    monkeypatch.setattr(bundle_parts, "_EDGE", 3000)
    key, run = [f"{number:04}" + "Ab3/" * 15 for number in range(40)], tmp_path / "run"
    secret = "\n".join(["-----BEGIN PRIVATE KEY-----", *key, "-----END PRIVATE KEY-----\n"])
    run.mkdir()
    for behind in (4096 - 1000, 4096, 4096 + 2000, 4096 + 3000):
        (run / "config.yaml").write_text("steps: 1\n" * 2000 + secret + "steps: 1\n" * (behind // 9))
        [part] = read_parts(run, lambda _: ("", ""))
        text = without_edges(Scrubber(PERSON).text(part.text))
        assert "[...]" in text and "left out" in part.note and len(text) < 8300
        assert not [line for line in key if line in text], behind


def test_it_holds_what_one_needs_and_says_what_is_cut(wrecked: Path, tmp_path: Path) -> None:
    answer, files = bundle(wrecked, tmp_path / "out.zip")
    assert json.loads(files["diagnosis.json"])["cause"] == "gpu_out_of_memory"
    assert "CUDA out of memory" in files["attempts/001/output.log"]
    assert json.loads(files["machine-now.json"])["os"]
    assert "holdfast==" in files["versions.txt"]
    assert "data.safetensors" in files["files.txt"] and "data.safetensors" not in files
    rows = files["steps.jsonl"].splitlines()
    assert json.loads(rows[-1])["step"] == 1999 and len(rows) < 400
    note = next(entry["note"] for entry in answer["files"] if entry["name"] == "steps.jsonl")
    assert "left out" in note


def test_the_same_run_gives_the_same_names_in_the_same_order(wrecked: Path, tmp_path: Path) -> None:
    first, second = (list(bundle(wrecked, tmp_path / name)[1]) for name in ("a.zip", "b.zip"))
    assert first == second


def test_a_broken_folder_is_packed_as_far_as_it_can_be_read(wrecked: Path, tmp_path: Path) -> None:
    for name in ("run.json", "attempts/001/wreck.json", "attempts/001/launch.json", "supervisor.lock"):
        (wrecked / name).write_bytes(b"\0\xff{torn")
    (wrecked / "config.yaml").write_text("a: [")
    (wrecked / "machine.json").mkdir()
    (wrecked / "plan.json").symlink_to("/etc/passwd")
    (wrecked / "summary.json").write_text("[]")
    os.mkfifo(wrecked / "supervisor.log")
    _, files = bundle(wrecked, tmp_path / "out.zip")
    assert "torn" in files["run.json"]
    assert {"machine.json", "plan.json", "supervisor.log"}.isdisjoint(files)
    assert "root:" not in "\n".join(files.values())
    assert "CUDA out of memory" in files["attempts/001/output.log"]


def test_a_folder_that_has_but_a_config_is_packed(tmp_path: Path) -> None:
    run = tmp_path / "half"
    run.mkdir()
    (run / "config.yaml").write_text("model: m\n")
    _, files = bundle(run, tmp_path / "out.zip")
    assert files["config.yaml"] == "model: m\n"


def test_a_long_log_is_cut_to_what_matters(wrecked: Path, tmp_path: Path) -> None:
    lines = [f"step {k}: loss 1.0" for k in range(200_000)]
    lines[120_000] = "RuntimeError: the middle broke"
    (wrecked / "attempts/001/output.log").write_text("\n".join(lines))
    answer, files = bundle(wrecked, tmp_path / "out.zip")
    kept = files["attempts/001/output.log"].splitlines()
    assert len(kept) < 1500
    assert "120001: RuntimeError: the middle broke" in kept
    assert any("lines" in entry["note"] for entry in answer["files"] if entry["name"] == "attempts/001/output.log")


@pytest.mark.parametrize("place", ["empty", "not-there"])
def test_what_is_no_run_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    done = holdfast("bundle", tmp_path / place, cwd=tmp_path)
    assert done.returncode == 2
    assert "not a run folder" in done.stderr and "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_told(wrecked: Path, tmp_path: Path) -> None:
    done = holdfast("bundle", wrecked, "--out", tmp_path / "no" / "such" / "x.zip")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and "--out" in done.stderr


def test_a_running_run_is_packed_and_goes_on(config_of: Any, tmp_path: Path) -> None:
    config = config_of("living", train={"steps": 400}, faults=[{"name": "slow", "when": {"every": 1}, "effect": "slow", "seconds": 0.05}])
    child = start("train", config, "--run", tmp_path / "living")
    try:
        wait_until(lambda: RunFolder(tmp_path / "living").committed() >= 2)
        _, files = bundle(tmp_path / "living", tmp_path / "out.zip")
        assert json.loads(files["status.json"])["state"] == "running"
        assert child.poll() is None
    finally:
        child.terminate()
        child.communicate()


def _archive(file: Path, folder: str, own: str | None) -> Path:
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(f"{folder}/CONTENTS.md", "")
        if own is not None:
            made.writestr(f"{folder}/run.json", own)
    return file


@pytest.mark.parametrize(
    ("there", "own", "ours"),
    [
        (("x-bundle", "one"), "one", True),
        (("x-bundle", None), None, True),
        (("x-bundle", "another"), "one", False),
        (("x-bundle", ""), "one", True),
        (("x-bundle", None), "one", False),
        (("x-bundle", "one"), None, False),
        (("y-bundle", "one"), "one", False),
        (None, "one", False),
    ],
)
def test_only_an_earlier_bundle_of_the_same_run_is_written_over(
    there: tuple[str, str | None] | None, own: str | None, ours: bool, tmp_path: Path
) -> None:
    file = tmp_path / "x.zip"
    file.write_text("my thesis") if there is None else _archive(file, *there)
    parts = [BundlePart("run.json", "", own)] if own is not None else []
    assert is_bundle_of(file, "x-bundle", parts) is ours


def test_a_file_of_somebody_else_stays(wrecked: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    asked = argparse.Namespace(run_folder=wrecked, out=out, json=True)
    assert bundle_verb.run(asked)[0] == bundle_verb.run(asked)[0] == 0, "an earlier one is written anew"
    out.write_text("my thesis")
    with pytest.raises(Stop, match="exists, and is no earlier bundle of this run") as refused:
        bundle_verb.run(asked)
    assert refused.value.code == 1 and out.read_text() == "my thesis"
