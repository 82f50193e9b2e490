"""120 secrets planted in 20 places of a run: none in a bundle or a report, and what says something stays."""

from __future__ import annotations

import json
import random
import shutil
import string
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import holdfast
from holdfast.cli.main import main
from holdfast.privacy.suspects import suspects

RNG = random.Random(20_000)
MIXED, LOWER, HEX = string.ascii_letters + string.digits, string.ascii_lowercase + string.digits, "0123456789abcdef"
INNOCENT = (
    *("self_attn.q_proj.lora_A.default.weight", "CUBLAS_WORKSPACE_CONFIG", "max_position_embeddings", "token_id_out_of_range"),
    *("hipErrorIllegalAddress", "trainer/model/attention.py", "gradient_norm=0.731", "learning_rate", "PYTORCH_CUDA_ALLOC_CONF"),
    *("tokenizer.json", "checkpoint-000100", "Qwen2ForCausalLM", "bos_token_id: 151643", "pad_token", "key_value_heads=4"),
    *("2026-11-23T13:37:00Z", "gfx1100", "rows.jsonl:17", "api_server_started", "secretary"),
)


def drawn(count: int, of: str = MIXED) -> str:
    """Random characters with one of each sort in `of`."""
    sure = "".join(RNG.choice(sort) for sort in (string.digits, string.ascii_lowercase, string.ascii_uppercase) if set(sort) & set(of))
    sure = sure if of != HEX else "0a"
    return "".join(RNG.choice(of) for _ in range(count - len(sure))) + sure


FORMS: tuple[Callable[[], tuple[str, str]], ...] = (  # the text that is planted, and the secret in it
    lambda: (lambda it: (f"HF_TOKEN={it}", it))("hf_" + drawn(34, string.ascii_letters)),
    lambda: (lambda it: (f"export OPENAI_API_KEY='{it}'", it))("sk-proj-" + drawn(48)),
    lambda: (lambda it: (f"wandb login {it}", it))(drawn(40, HEX)),
    lambda: (lambda it: (f"Authorization: Bearer {it}", it))(drawn(40)),
    lambda: (lambda it: (f"https://user:{it}@host.example/x", it))(drawn(16)),
    lambda: (lambda it: (f"mysql -u root -p{it} db", it))(drawn(14)),
    lambda: (lambda it: (f'"password": "{it}"', it))(drawn(12)),
    lambda: (lambda it: (f"postgres://app:{it}@db:5432/x", it))(drawn(18)),
    lambda: (lambda it: (f"git clone https://{it}@github.com/a/b", it))("ghp_" + drawn(36)),
    lambda: (lambda it: (f"aws_secret_access_key = {it}", it))(drawn(40)),
    lambda: (lambda it: (f"?X-Amz-Signature={it}&x=1", it))(drawn(64, HEX)),
    lambda: (lambda it: (f"https://hooks.slack.com/services/T0AB/B0CD/{it}", it))(drawn(24)),
    lambda: (lambda it: (f"AccountKey={it};EndpointSuffix=core", it))(drawn(86) + "=="),
    lambda: (lambda it: (f"sshpass -p {it} ssh host", it))(drawn(10)),
    lambda: (lambda it: (f"REDIS_PASS={it}", it))(drawn(20)),
    lambda: (lambda it: (f"Set-Cookie: session={it}; Path=/", it))(drawn(32)),
    lambda: (lambda it: (f"api_key: {it}", it))(drawn(32, LOWER)),
    lambda: (lambda it: (f"token=eyJhbGciOiJIUzI1NiJ9.eyJ{it[:20]}.{it[20:]}", it[:20]))(drawn(63)),
    lambda: (lambda it: (f"npm config set //r/:_authToken={it}", it))("npm_" + drawn(36)),
    lambda: (lambda it: (f"--api-key {it}", it))(drawn(24)),
)


def line(text: str) -> str:
    return f"{RNG.choice(['INFO', 'W0611', 'note:', ''])} {text} {RNG.choice(INNOCENT)}\n"


def into_json(file: Path, text: str, key: str) -> None:
    tree = json.loads(file.read_text())
    tree.setdefault(key, []).append(text) if isinstance(tree.get(key, []), list) else tree.update({f"{key}_": text})
    file.write_text(json.dumps(tree))


def into_journal(file: Path, text: str) -> None:
    with file.open("a") as journal:
        journal.write(json.dumps({"event": "note", "time": 1.0, "step": 1, "says": text, "reason": text}) + "\n")


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as end:
        end.write(text)


def append(file: Path, text: str) -> None:
    written(file, line(text))


REJECT = {"file": "rows.jsonl", "line": 1, "reason": "empty_turn", "detail": "d"}


PLACES: dict[str, Callable[[Path, str], None]] = {
    "log": lambda run, text: append(run / "attempts/001/output.log", text),
    "second log": lambda run, text: append(run / "attempts/001/host.log", text),
    "supervisor's log": lambda run, text: append(run / "supervisor.log", text),
    "standby's log": lambda run, text: append(run / "standby.log", text),
    "proof's log": lambda run, text: append(run / "evaluation.log", text),
    "trial's log": lambda run, text: [(run / "trials/001").mkdir(parents=True, exist_ok=True), append(run / "trials/001/output.log", text)][
        0
    ],
    "events": lambda run, text: into_journal(run / "events.jsonl", text),
    "quarantine": lambda run, text: into_journal(run / "quarantine.jsonl", text),
    "rejects": lambda run, text: written(run / "rejects.jsonl", json.dumps(REJECT | {"raw": text}) + "\n"),
    "config": lambda run, text: written(run / "config.yaml", f"# {text}\n"),
    "machine": lambda run, text: into_json(run / "machine.json", text, "notes"),
    "plan": lambda run, text: into_json(run / "plan.json", text, "notes"),
    "summary": lambda run, text: into_json(run / "summary.json", text, "notes"),
    "rows' report": lambda run, text: into_json(run / "data.json", text, "notes_"),
    "launch": lambda run, text: into_json(run / "attempts/001/launch.json", text, "argv"),
    "ending": lambda run, text: into_json(run / "attempts/001/ending.json", text, "notes"),
    "who": lambda run, text: into_json(run / "attempts/001/rank0.json", text, "argv"),
    "wreck": lambda run, text: into_json(run / "attempts/001/wreck.json", text, "lines"),
    "holder": lambda run, text: into_json(run / "supervisor.lock", text, "words"),
    "adapter": lambda run, text: into_json(run / "adapter/adapter_config.json", text, "notes"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "c"}) + "\n" for n in range(8)))
    (folder / "run.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\ntrain: {steps: 2, effective_batch: 2}\n")
    done = holdfast("train", folder / "run.yaml", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def texts_of(archive: Path) -> str:
    with zipfile.ZipFile(archive) as packed:
        return "\n".join(packed.read(name).decode() for name in packed.namelist())


def test_none_of_120_planted_secrets_is_in_a_bundle_or_a_report(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    assert (len(PLACES), len(FORMS)) == (20, 20)
    planted = []
    for number, plant in enumerate([*PLACES.values()] * 6):
        text, secret = FORMS[(number * 7 + number // 20) % len(FORMS)]()
        plant(run, text)
        planted.append((secret, text))
    for word in INNOCENT:
        append(run / "attempts/001/output.log", f"says {word}")
    before = (run / "attempts/001/output.log").read_text()
    assert len({secret for secret, _ in planted}) == 120
    assert main(["bundle", str(run), "--out", str(tmp_path / "bundle.zip")]) == 0
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    bundle, report = texts_of(tmp_path / "bundle.zip"), (tmp_path / "report.html").read_text()
    stayed = [text for secret, text in planted if secret in bundle or secret in report]
    assert not stayed, f"{len(stayed)} of 120: {stayed}"
    lost = [word for word in INNOCENT if word in before and word not in bundle]
    assert len(lost) <= 5 and not lost, lost
    assert "Traceback" not in capsys.readouterr().err


def test_what_may_be_a_secret_of_an_unknown_form_is_shown_before_it_is_published(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    odd = "zq" + drawn(30)
    append(run / "attempts/001/output.log", f"handshake {odd} done")
    assert main(["bundle", str(run), "--out", str(tmp_path / "bundle.zip"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["word"] for one in answer["unsure"]] == [odd] and answer["unsure"][0]["file"] == "attempts/001/output.log"
    assert main(["bundle", str(run), "--out", str(tmp_path / "bundle.zip")]) == 0
    told = capsys.readouterr().out
    assert "perhaps secrets" in told and odd[:6] in told and odd not in told
    assert odd in texts_of(tmp_path / "bundle.zip"), "it is shown, not taken: nobody knows what it is"


def test_names_paths_and_hashes_are_no_suspects() -> None:
    plain = " ".join(INNOCENT) + "\nsha256: " + drawn(64, HEX) + '\n"id": "' + drawn(32, HEX) + '"\ncommit ' + drawn(40, HEX)
    assert suspects([("log", plain)]) == []
    some = "\n".join(f"x {drawn(32)} y" for _ in range(40))
    assert len(suspects([("log", some)])) == 10
