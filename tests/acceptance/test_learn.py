"""Rounds of `holdfast learn`: killed after every phase and in training, poisoned, with a stream, with rows that are withdrawn."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, kill, lines, make_rows, processes_of, start, wait_until, write_config, write_rows
from holdfast.base_model.folder import read_model
from holdfast.config.load import load_config
from holdfast.learn.rounds import PHASES
from holdfast.supervision.preparation.rows import token_cache_of
from support.redis_server import Server, needs_server, running_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path) as running:
        yield running


DIES = """
import os, signal, sys
from pathlib import Path
from holdfast.learn.learn import Learner
from holdfast.learn.policy import load_policy
def after(phase):
    if phase == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
learner = Learner(load_policy(Path(sys.argv[1])), print, after)
one, _ = learner.next_round()
learner.finish(one)
"""


def policy_in(folder: Path, assets: SimpleNamespace, **keys: Any) -> Path:
    """A policy with the small model over inbox/*.jsonl; its versions stand in models.jsonl beside it."""
    folder.mkdir()
    (folder / "inbox").mkdir()
    write_config(assets, folder / "base.yaml", train={"steps": 12, "lr": 1e-2, "max_tokens": 300}, evaluate={"generate": 0})
    write_rows(folder / "held.jsonl", [row | {"topic": "ab"[at % 2]} for at, row in enumerate(make_rows(60)[40:])])
    tree: dict[str, Any] = {"name": "helper", "config": "base.yaml", "sources": [{"files": "inbox/*.jsonl"}], "round": {"rows": 40}}
    tree |= {"gate": {"rows": "held.jsonl", "domains": "topic", "margin": 0.5}, "folder": "learned"} | keys
    (folder / "policy.yaml").write_text(json.dumps(tree))
    return folder / "policy.yaml"


def learn(policy: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = holdfast("learn", policy, *arguments, "--json", cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
    assert done.returncode == code, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def tokens_cached(policy: Path) -> list[Path]:
    config = load_config(policy.parent / "base.yaml", [], need_rows=False)
    cache = token_cache_of(config, read_model(config.model))
    assert cache is not None
    return [*cache.glob("*")]


def die_after(policy: Path, phase: str) -> None:
    env = {"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}
    done = subprocess.run([sys.executable, "-c", DIES, policy, phase], cwd=policy.parent, env=os.environ | env, check=False)
    assert done.returncode == -9


def promoted(policy: Path) -> list[dict[str, Any]]:
    env = {"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}
    models = json.loads(holdfast("models", "--json", cwd=policy.parent, env=env).stdout)["models"]
    return [model for model in models if model["promoted"]]


@pytest.fixture(scope="module")
def undisturbed(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    policy = policy_in(tmp_path_factory.mktemp("learn") / "undisturbed", assets)
    write_rows(policy.parent / "inbox" / "1.jsonl", make_rows(40))
    told = learn(policy, "--rounds", "1")
    assert told["waiting"] is None, "what the round took waits no more"
    [one] = told["rounds"]
    return {"policy": policy} | one


def test_a_round_trains_proves_itself_and_is_promoted(undisturbed: dict[str, Any]) -> None:
    rows = undisturbed["rows"]
    assert (undisturbed["verdict"], undisturbed["promoted"], undisturbed["version"]) == ("better", True, 1), undisturbed["why"]
    assert rows["in"] == 40 == rows["kept"] + rows["rejected"]
    [version] = promoted(undisturbed["policy"])
    assert version["adapter_sha256"] == undisturbed["adapter_sha256"]
    fates = lines(Path(undisturbed["folder"]) / "fates.jsonl")
    assert len(fates) == 40
    assert "finished" in (Path(undisturbed["folder"]) / "training.log").read_text()
    assert {fate["fate"] for fate in fates} == {"trained", "held_out"}


def test_killed_after_every_phase_and_in_training_it_promotes_the_same_adapter(
    undisturbed: dict[str, Any], assets: SimpleNamespace, tmp_path: Path
) -> None:
    policy = policy_in(tmp_path / "killed", assets)
    write_rows(policy.parent / "inbox" / "1.jsonl", make_rows(40))
    for phase in PHASES[:2]:
        die_after(policy, phase)
    child = start("learn", policy, cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
    steps = policy.parent / "learned" / "rounds" / "0001" / "run" / "steps.jsonl"
    wait_until(lambda: steps.exists() and steps.stat().st_size > 0)
    kill(child.pid)
    child.communicate()
    for phase in PHASES[2:]:
        die_after(policy, phase)
    [one] = learn(policy)["rounds"]
    assert {name: one[name] for name in ("adapter_sha256", "rows", "verdict", "version", "why")} == {
        name: undisturbed[name] for name in ("adapter_sha256", "rows", "verdict", "version", "why")
    }
    assert [entry["event"] for entry in lines(policy.parent / "models.jsonl")].count("promoted") == 1
    assert learn(policy)["rounds"] == [], "a round that was told is not told again, and its rows are not taken again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_learn_alone_saves_the_step_and_leaves_nothing_running(number: int, assets: SimpleNamespace, tmp_path: Path) -> None:
    policy = policy_in(tmp_path / "stopped", assets)
    write_config(assets, policy.parent / "base.yaml", train={"steps": 3000, "max_tokens": 300})
    write_rows(policy.parent / "inbox" / "1.jsonl", make_rows(40))
    child = start("learn", policy, cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
    run = policy.parent / "learned" / "rounds" / "0001" / "run"
    wait_until(lambda: (run / "steps.jsonl").exists() and (run / "steps.jsonl").stat().st_size > 0)
    os.kill(child.pid, number)
    said, _ = child.communicate()
    assert child.returncode == 130, said
    assert "the same command goes on" in said
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert not processes_of(run)


def test_a_flood_of_near_duplicates_trains_nothing_and_is_named(
    undisturbed: dict[str, Any], assets: SimpleNamespace, tmp_path: Path
) -> None:
    policy = policy_in(tmp_path / "flood", assets)
    asked = "How is the service on the large machine in the cold room under the stairs started again after number {} went out at night"
    flood = [{"prompt": asked.format(number), "completion": "It is never started again by anybody who is asked."} for number in range(50)]
    write_rows(policy.parent / "inbox" / "1.jsonl", flood)
    [one] = learn(policy)["rounds"]
    assert (one["promoted"], one["version"]) == (False, None)
    assert "near_duplicate" in one["why"]
    assert one["rows"]["in"] == 50 == one["rows"]["kept"] + one["rows"]["rejected"]
    assert not (Path(one["folder"]) / "run").exists()
    assert promoted(policy) == []


def test_wrong_answers_are_refused_and_leave_the_promoted_version(undisturbed: dict[str, Any]) -> None:
    policy = undisturbed["policy"]
    before = promoted(policy)
    wrong = [row | {"output": "zzzz ???? zzzz"} for row in make_rows(140)[90:]]
    write_rows(policy.parent / "inbox" / "2.jsonl", wrong)
    tree = json.loads(policy.read_text())
    strict = policy.with_name("strict.yaml")
    strict.write_text(json.dumps(tree | {"gate": tree["gate"] | {"margin": 0.02}, "keep": {"drop": ["duplicate"]}}))
    [one] = learn(strict)["rounds"]
    assert (one["promoted"], one["verdict"]) == (False, "worse"), one["why"]
    assert "worse by more than the margin" in one["why"]
    assert promoted(policy) == before


def test_many_rows_of_two_people_are_no_evidence(assets: SimpleNamespace, tmp_path: Path) -> None:
    """The same rows are promoted where nobody is named (`undisturbed`): here two persons', which show nothing of others, wait."""
    policy = policy_in(tmp_path / "two", assets, keep={"per_person": 1.0})
    rows = [row | {"person": "ann" if at % 2 else "ben"} for at, row in enumerate(make_rows(40))]
    write_rows(policy.parent / "inbox" / "1.jsonl", rows)
    told = learn(policy)
    assert (told["rounds"], told["waiting"]["rows"]) == ([], 40)
    assert "2 in all" in told["waiting"]["why"] and "gate.by_person: false" in told["waiting"]["why"]
    assert not (policy.parent / "learned" / "rounds").exists(), "nothing was trained in vain"


def told_of(policy: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Answers of these rows that stand in a file of the rounds."""
    texts = [file.read_text() for file in (policy.parent / "learned").rglob("*.jsonl")]
    return [row["output"] for row in rows if any(f'"{row["output"]}"' in text for text in texts)]


def test_a_persons_rows_are_withdrawn_for_a_price_that_is_told_first(assets: SimpleNamespace, tmp_path: Path) -> None:
    gate = {"rows": "held.jsonl", "domains": "topic", "margin": 0.5, "by_person": False}
    policy = policy_in(tmp_path / "withdrawn", assets, keep={"per_person": 1.0}, gate=gate)
    rows = [row | {"person": "ann" if at < 10 else "ben"} for at, row in enumerate(make_rows(40))]
    write_rows(policy.parent / "inbox" / "1.jsonl", rows)
    [first] = learn(policy)["rounds"]
    assert first["promoted"], first["why"]
    told = learn(policy, "--forget", "ann")
    assert (told["rows"], told["rounds_again"], told["steps"], told["done"]) == (10, [1], 12, False)
    assert promoted(policy)[0]["adapter_sha256"] == first["adapter_sha256"], "nothing is done before it is agreed to"
    assert tokens_cached(policy)
    learn(policy, "--forget", "ann", "--yes")
    assert not tokens_cached(policy), "the cache holds rows as tokens"
    [version] = promoted(policy)
    assert version["adapter_sha256"] != first["adapter_sha256"]
    assert not told_of(policy, rows[:10])
    assert learn(policy, "--forget", "ann")["rows"] == 0
    assert learn(policy)["rounds"] == [], "what was withdrawn does not come again from the file"
    assert (
        holdfast("models", "rollback", "helper", cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}).returncode
        == 1
    ), "nor by a rollback"
    learn(policy, "--forget", "ben", "--yes")
    assert promoted(policy) == [], "no row is left that a version could have learned"
    assert not told_of(policy, rows), "nor where the round was trained again without ann"


def in_domains(first: int, count: int, **rare: int) -> list[dict[str, Any]]:
    """Rows of two domains that are told by how they ask, `count` each from number `first` on, and some of a third."""
    joined = [row | {"topic": "join"} for row in make_rows(first + count)[first:]]
    words = ("red", "green", "blue", "grey")
    told = [(f"What is the colour of thing {at}?", f"Thing {at} is {words[at % 4]}.", "colour") for at in range(first, first + count)]
    told += [(f"Please greet number {at}", f"Hello, {at}.", "greet") for at in range(first, first + rare.get("greet", 0))]
    return joined + [{"prompt": prompt, "completion": answer, "topic": topic} for prompt, answer, topic in told]


def with_experts(folder: Path, assets: SimpleNamespace) -> Path:
    gate = {"rows": "held.jsonl", "domains": "topic", "margin": 5.0, "by_person": False}
    keys = {"round": {"rows": 60}, "gate": gate, "keep": {"drop": ["duplicate", "in_held_out"]}}
    policy = policy_in(folder, assets, **keys, experts={"rows": 20, "held": 12})
    write_rows(policy.parent / "held.jsonl", in_domains(200, 20, greet=6))
    write_rows(policy.parent / "inbox" / "1.jsonl", in_domains(0, 40, greet=8))
    return policy


@pytest.fixture(scope="module")
def experts(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    policy = with_experts(tmp_path_factory.mktemp("experts") / "undisturbed", assets)
    return {"policy": policy} | learn(policy)


def test_a_domain_with_enough_rows_has_an_expert_and_the_router_knows_its_prompts(experts: dict[str, Any]) -> None:
    found = experts["experts"]
    assert [one["name"] for one in found["experts"]] == ["colour", "join"]
    assert "greet" in found["all"] and "rows learned of 20" in found["all"]["greet"]
    measured = found["measured"]
    assert measured["accuracy"]["rows"] == 20 and measured["accuracy"]["right"] >= 18
    assert measured["none"]["rows"] == 18 and measured["none"]["right"] >= 14
    assert measured["wrong_route"]["verdict"] == "worse", "each has learned its own domain alone"
    assert learn(experts["policy"])["experts"] == found, "they are there"


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_a_request_is_answered_by_the_expert_that_the_router_chooses(experts: dict[str, Any], engine: str) -> None:
    if engine == "llama.cpp":
        pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")
    folder = experts["policy"].parent
    child = start("serve", "helper", "--json", "--engine", engine, cwd=folder, env={"HOLDFAST_MODELS": str(folder / "models.jsonl")})
    assert child.stdout
    ready = json.loads(next(line for line in child.stdout if line.startswith("{")))
    assert ready["models"] == ["base", "tuned", "routed", "expert:colour", "expert:join"]

    def asked(model: str, prompt: str, **more: Any) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 2.0, "seed": 7} | more
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ready['token']}"}
        request = urllib.request.Request(ready["url"] + "/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode() if more else json.loads(answer.read())

    texts: dict[str, set[str]] = {}
    for prompt, expert in (
        ("What is the colour of thing 205?", "colour"),
        ("Join cedar and 411", "join"),
        ("Why does it rain so much?", None),
    ):
        found = {model: asked(model, prompt) for model in ready["models"]}
        routed = found.pop("routed")
        assert (routed["model"], routed["expert"]) == ("routed", expert)
        assert not [model for model, answer in found.items() if "expert" in answer]
        says = {model: answer["choices"][0]["message"]["content"] for model, answer in found.items()}
        assert routed["choices"][0]["message"]["content"] == says[f"expert:{expert}" if expert else "tuned"]
        for model, text in says.items():
            texts.setdefault(model, set()).add(f"{prompt} {text}")
    assert len({frozenset(one) for one in texts.values()}) == 4, "each adapter answers as itself"
    assert '"expert":"colour"' in asked("routed", "What is the colour of thing 205?", stream=True)
    child.terminate()
    child.communicate()
    assert child.returncode == 0


def test_killed_while_experts_are_trained_the_same_ones_are_made(experts: dict[str, Any], assets: SimpleNamespace, tmp_path: Path) -> None:
    policy = with_experts(tmp_path / "killed", assets)
    place = policy.parent / "learned" / "rounds" / "0001" / "experts"
    for name in ("colour", "join"):
        child = start("learn", policy, cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
        wait_until(lambda name=name: any(one.stat().st_size for one in place.glob(f"{name}-*/run/steps.jsonl")))
        kill(child.pid)
        child.communicate()
        for run in place.glob(f"{name}-*/run"):
            for pid in processes_of(run).values():
                kill(pid)
    again = learn(policy)["experts"]
    assert again | {"of": None} == experts["experts"] | {"of": None}
    assert not [*place.glob("*/run/checkpoints/*")]


def test_experts_that_have_learned_withdrawn_rows_are_made_again_without(assets: SimpleNamespace, tmp_path: Path) -> None:
    policy = with_experts(tmp_path / "withdrawn", assets)
    rows = [row | {"person": "ann" if at % 9 == 0 else "ben"} for at, row in enumerate(in_domains(0, 40))]
    tree = json.loads(policy.read_text())
    policy.write_text(json.dumps(tree | {"keep": tree["keep"] | {"per_person": 1.0}}))
    write_rows(policy.parent / "inbox" / "1.jsonl", rows)
    before = learn(policy)["experts"]
    learn(policy, "--forget", "ann", "--yes")
    assert not [*(policy.parent / "learned").rglob("experts.json")]
    after = learn(policy)["experts"]
    assert [one["name"] for one in after["experts"]] == ["colour", "join"]
    assert after["adapter_sha256"] != before["adapter_sha256"]
    theirs = [json.dumps(row.get("output") or row["completion"]) for row in rows if row["person"] == "ann"]
    texts = [file.read_text() for file in (policy.parent / "learned").rglob("*.jsonl")]
    assert not [text for text in texts for answer in theirs if answer in text]


@needs_server
def test_a_stream_is_acknowledged_once_after_the_rounds_end(server: Server, assets: SimpleNamespace, tmp_path: Path) -> None:
    import redis

    client = redis.Redis(port=server.port)
    for row in make_rows(50):
        client.xadd("asked", {"data": json.dumps(row)})
    source = {"redis": server.url, "stream": "asked", "group": "learners"}
    policy = policy_in(tmp_path / "streamed", assets, sources=[source])
    die_after(policy, "collected")
    die_after(policy, "decided")
    assert client.xpending("asked", "learners")["pending"] == 50
    [one] = learn(policy)["rounds"]
    assert one["rows"]["in"] == 50
    assert one["rows"]["rejected"] == 10  # they are among the gate's rows
    assert client.xpending("asked", "learners")["pending"] == 0
    assert learn(policy)["rounds"] == []
    client.xgroup_setid("asked", "learners", "0")  # as after a failover to a server that had not heard of it
    trimmed = client.xadd("asked", {"data": json.dumps(make_rows(60)[55])})
    client.xreadgroup("learners", "learn:helper", {"asked": ">"})
    client.xdel("asked", trimmed)
    assert client.xpending("asked", "learners")["pending"] == 51
    last = learn(policy)
    assert (last["rounds"], last["waiting"]["rows"], last["waiting"]["rejected"]) == ([], 0, 0)
    assert client.xpending("asked", "learners")["pending"] == 0
    assert [entry["place"] for entry in lines(policy.parent / "learned" / "lost.jsonl")] == [f"asked/{trimmed.decode()}"]


KILLS = 200  # at most: until it is done


def at_work(policy: Path) -> subprocess.Popen[bytes]:
    env = os.environ | {"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")}
    command = [sys.executable, "-m", "holdfast", "learn", policy]
    return subprocess.Popen(command, cwd=policy.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def told(policy: Path) -> list[tuple[Counter[str], bool, str | None]]:
    """Of each round: how many messages had which fate, whether it was promoted, and what."""
    found = []
    for one in sorted((policy.parent / "learned" / "rounds").glob("[0-9]*")):
        decided = json.loads((one / "5-decided.json").read_text())
        found.append((Counter(fate["fate"] for fate in lines(one / "fates.jsonl")), decided["promoted"], decided.get("adapter_sha256")))
    return found


@pytest.mark.long
@needs_server
def test_killed_at_random_it_promotes_the_same_and_uses_each_message_once(server: Server, assets: SimpleNamespace, tmp_path: Path) -> None:
    import redis

    client, policies = redis.Redis(port=server.port), {}
    for name in ("undisturbed", "killed"):
        source = {"redis": server.url, "stream": name, "group": "learners"}
        policies[name] = policy_in(tmp_path / name, assets, sources=[source], round={"rows": 30, "most": 30})
        for row in make_rows(40) + make_rows(120)[60:90]:
            client.xadd(name, {"data": json.dumps(row)})
    assert at_work(policies["undisturbed"]).wait() == 0
    draw, policy = random.Random(45), policies["killed"]
    for _ in range(KILLS):
        child = at_work(policy)
        time.sleep(draw.uniform(0.1, 8))
        if child.poll() is not None:
            break
        kill(child.pid)
        child.wait()
        runs = (policy.parent / "learned" / "rounds").glob("[0-9]*/run")
        left = [pid for run in runs for pid in processes_of(run).values()]
        for pid in draw.sample(left, draw.randint(0, len(left))):  # of its training, some
            kill(pid)
    assert at_work(policy).wait() == 0
    assert told(policy) == told(policies["undisturbed"])
    assert [client.xpending(name, "learners")["pending"] for name in policies] == [10, 10], "they wait for a third round"
    places = [one["place"] for file in (policy.parent / "learned").glob("rounds/*/arrived.jsonl") for one in lines(file)]
    assert len(places) == len(set(places)) == 60
    events = [entry["event"] for entry in lines(policy.parent / "models.jsonl")]
    assert events.count("promoted") == sum(promoted for _, promoted, _ in told(policy))
