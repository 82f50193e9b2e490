"""A stream of rounds of `holdfast learn` over six made domains, three of them poisoned; a twin that is killed; the router of experts.

    python benchmarks/learn/stream.py WORK                 the rounds, then the experts
    python benchmarks/learn/stream.py WORK --killed        the twin
    python benchmarks/learn/stream.py WORK --weak          20 rounds of little effect, every second one poisoned
    python benchmarks/learn/stream.py WORK --blind         the same with gate.contradiction: false
    python benchmarks/learn/stream.py WORK --real MODEL    five rounds on a real model as it is (scripts/real_models.py), no experts
    python benchmarks/learn/stream.py WORK --page          writes benchmarks/results/learn.md of what there is

The base has read every question with answers drawn at random: it knows their form and none of the facts. Each round asks for
all of them in new words, as messages of a real Redis stream. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / one) for one in ("tests", "tests/acceptance", "scripts", "benchmarks/learn")]
import make_model  # noqa: E402
from page import page  # noqa: E402
from test_learn import at_work, die_after, told  # noqa: E402

from conftest import holdfast, kill, lines, processes_of, write_config, write_rows  # noqa: E402
from holdfast.export.samples import general_text  # noqa: E402
from holdfast.learn.rounds import PHASES, Round, rounds_of  # noqa: E402
from support.redis_server import Server, running_server  # noqa: E402

Rows = list[dict[str, Any]]
THINGS, AT_GATE = 10, 6  # of a domain; wordings that only the gate has
WEAK = ("weak", "blind")
WEAK_POISONS = ("wrong answers", "one domain's labels flipped", "every third answer wrong")
POISONS = {0.3: "wrong answers", 0.55: "one domain's labels flipped", 0.8: "a flood of near-duplicates"}  # after these shares of the rounds
DOMAINS: dict[str, tuple[str, list[str]]] = {
    "colour": ("colour of", ["red", "green", "blue", "grey", "white", "black", "brown", "pink"]),
    "city": ("city of", ["Oslo", "Rome", "Cairo", "Lima", "Delhi", "Paris", "Tokyo", "Quito"]),
    "team": ("team for", ["north", "south", "east", "west", "upper", "lower", "inner", "outer"]),
    "metal": ("metal in", ["iron", "gold", "zinc", "lead", "tin", "silver", "nickel", "copper"]),
    "floor": ("floor with", ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]),
    "open": ("opening of", ["yes", "no"]),
}
FORMS = ("What is the {}?", "Tell the {}.", "Name the {} now.", "I need the {}!", "So what is the {}?", "Say the {}, please.", "The {} is?")
STARTS = ("", "Hello. ", "Quick: ", "Once more: ", "Sorry. ", "Now then. ", "List: ", "Again! ", "Please: ", "Dear. ", "Hey. ", "Well? ")
WAYS = [start + form for start in STARTS for form in FORMS]
random.Random(0).shuffle(WAYS)
STEPS = {"real": (48, 16, 16), "weak": (80, 32, 20), "blind": (80, 32, 20)}  # of a round, rows of each, steps between checkpoints
SHAPE = {"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4}


def facts() -> dict[str, list[tuple[str, str]]]:
    """Draw (thing, right answer) of each domain; a thing is a word that nothing else has."""
    draw, used = random.Random(45), set[str]()
    found: dict[str, list[tuple[str, str]]] = {}
    for domain, (_, answers) in DOMAINS.items():
        while len(found.setdefault(domain, [])) < THINGS:
            thing = "".join(draw.choice(part) for part in ("bdfgklmnprstvz", "aeiou", "bdgklmnprstvz", "aeiou", "lmnrs"))
            if thing not in used:
                used.add(thing)
                found[domain].append((thing, draw.choice(answers)))
    return found


def row(domain: str, thing: str, answer: str, way: int) -> dict[str, Any]:
    return {"prompt": WAYS[way].format(f"{DOMAINS[domain][0]} {thing}"), "completion": answer, "topic": domain}


def asked(name: str) -> int:
    """Return in how many wordings a round asks for each thing."""
    return 2 if name in WEAK else 3


def poison_of(number: int, rounds: int, name: str) -> str:
    if name in WEAK:
        return WEAK_POISONS[number // 2 % 3] if number % 2 and number > 1 else ""
    return {max(2, round(share * rounds)): name for share, name in POISONS.items()}.get(number, "")


def messages(known: dict[str, list[tuple[str, str]]], number: int, rounds: int, name: str) -> Rows:
    """Return the rows that come for a round, counted from 1."""
    draw, poison, ways = random.Random(number), poison_of(number, rounds, name), asked(name)
    if poison.startswith("a flood"):
        question = (
            "What is the colour of {} that stands in the hall under the old clock beside the wide door, as number {} asked again today?"
        )
        return [row("colour", "", "mauve", 0) | {"prompt": question.format(known["colour"][0][0], at)} for at in range(120)]
    found = []
    for domain, of in known.items():
        answers = DOMAINS[domain][1]
        for thing, right in of:
            for way in range(AT_GATE + ways * (number - 1), AT_GATE + ways * number):
                wrong = poison == "wrong answers" or (poison.startswith("one") and domain == "open")
                wrong = wrong or (poison.startswith("every third") and draw.random() < 1 / 3)
                answer = draw.choice([one for one in answers if one != right]) if wrong else right
                found.append(row(domain, thing, answer, way))
    draw.shuffle(found)
    return found


def make_base(work: Path, known: dict[str, list[tuple[str, str]]]) -> Path:
    """Train a model on all questions with answers drawn at random, and on the general rows."""
    draw = random.Random(0)
    each = [(domain, thing) for domain, of in known.items() for thing, _ in of]
    rows = [
        row(domain, thing, draw.choice(DOMAINS[domain][1]), way) for domain, thing in each for way in range(len(WAYS)) for _ in range(2)
    ]
    rows += [json.loads(line) for line in general_text().splitlines()[::2]] * 8  # those that a round may train on
    write_rows(work / "pretrained.jsonl", rows)
    if not (work / "random").exists():
        make_model.SIZES["stream"] = SHAPE
        make_model.make_model(work / "random", work / "pretrained.jsonl", "stream")
    config = write_config(
        SimpleNamespace(model=work / "random", rows=work / "pretrained.jsonl"),
        work / "pretrain.yaml",
        adapter={"type": "full"},
        train={"steps": 200, "effective_batch": 64, "lr": 2e-3, "max_tokens": 96, "threads": 1},
        evaluate={"generate": 0},
    )
    done = holdfast("train", config, "--run", work / "pretrained", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    return work / "pretrained" / "model"


def policy_in(folder: Path, base: Path, known: dict[str, list[tuple[str, str]]], url: str) -> Path:
    steps, batch, every = STEPS.get(folder.name, (120, 32, 20))
    if not folder.exists():
        folder.mkdir()
        gate = [row(domain, thing, right, way) for domain, of in known.items() for thing, right in of for way in range(AT_GATE)]
        write_rows(folder / "held.jsonl", gate)
        lr = 1e-3 if folder.name == "real" else 2e-3
        train = {"steps": steps, "effective_batch": batch, "lr": lr, "max_tokens": 96} | ({} if folder.name == "real" else {"threads": 1})
        adapter = {"r": 32, "alpha": 64, "dropout": 0.0}
        assets = SimpleNamespace(model=base, rows="")
        write_config(assets, folder / "base.yaml", train=train, adapter=adapter, evaluate={"generate": 0}, save={"every": every})
    tree = {
        "name": "helper",
        "config": "base.yaml",
        "sources": [{"redis": url, "stream": folder.name, "group": "learners"}],
        "round": {"rows": 110 if folder.name not in WEAK else 100},
        "replay": {"general": 0.5},
        "gate": {"rows": "held.jsonl", "domains": "topic", "margin": 0.1, "contradiction": folder.name != "blind"},
        "folder": "learned",
    }
    (folder / "policy.yaml").write_text(json.dumps(tree))
    return folder / "policy.yaml"


def learn(policy: Path) -> float:
    """Do a round to its end; seconds."""
    began = time.monotonic()
    done = holdfast("learn", policy, "--rounds", 1, cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
    assert done.returncode == 0, done.stdout + done.stderr
    print(policy.parent.name, done.stdout.strip().splitlines()[-2:], flush=True)
    return round(time.monotonic() - began, 1)


def disturb(policy: Path, number: int, draw: random.Random, server: Server) -> list[str]:
    """Kill a round at one of its phases' ends, then at random with some of its training's processes; every third time Redis, too."""
    phase = PHASES[(number - 1) % len(PHASES)]
    die_after(policy, phase)
    child = at_work(policy)
    time.sleep(draw.uniform(0.1, 20))
    kill(child.pid)
    child.wait()
    left = [pid for one in (policy.parent / "learned" / "rounds").glob("[0-9]*/run") for pid in processes_of(one).values()]
    for pid in draw.sample(left, draw.randint(0, len(left))):
        kill(pid)
    if number % 3 == 0:
        server.kill()
        threading.Timer(4, server.start).start()
    return [phase, "at random", *["Redis"] * (number % 3 == 0)]


def law_of(folder: Path, sent: int) -> dict[str, Any]:
    """Follow every message from the stream to what was trained: each has one fate, and each row stands where its fate says, once."""
    rounds = rounds_of(folder)
    places = Counter(one["place"] for each in rounds for one in lines(each.arrived))
    fates = Counter(one["fate"] for each in rounds for one in lines(each.fates))
    astray = 0
    for each in rounds:
        for fate, file in (("trained", each.train), ("held_out", each.new)):
            keys = Counter(json.dumps(one, sort_keys=True) for one in lines(file))
            came = [one for one, what in zip(lines(each.arrived), lines(each.fates), strict=True) if what["fate"] == fate]
            astray += sum(keys[json.dumps(one["row"], sort_keys=True)] != 1 for one in came)
    twice = sum(count > 1 for count in places.values())
    return {"sent": sent, "taken": len(places), "twice": twice, "fates": dict(fates), "astray": astray}


def stream(work: Path, base: Path, name: str, rounds: int, record: Path) -> dict[str, Any]:
    """Send each round's messages and have it done, disturbed or not; what came of it."""
    import redis
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    known = facts()
    found = json.loads(record.read_text()) if record.exists() else {"seconds": {}, "kills": {}}
    (work / f"redis-{name}").mkdir(exist_ok=True)
    with running_server(work / f"redis-{name}") as server:
        retry = Retry(ConstantBackoff(1), 30)  # it is killed now and then, and comes back
        client: Any = redis.Redis(port=server.port, retry=retry, retry_on_error=[redis.ConnectionError])
        policy = policy_in(work / name, base, known, server.url)
        learned = policy.parent / "learned"
        for number in range(1, rounds + 1):
            if Round(learned / "rounds" / f"{number:04}").over:
                continue
            sent = sum(len(messages(known, one, rounds, name)) for one in range(1, number))
            for at, one in enumerate(messages(known, number, rounds, name), sent + 1):
                if client.xlen(name) < at:
                    client.xadd(name, {"data": json.dumps(one)})
            if name == "killed":
                found["kills"][str(number)] = disturb(policy, number, random.Random(number), server)
            if not Round(learned / "rounds" / f"{number:04}").over:
                found["seconds"][str(number)] = learn(policy)
            sent = sum(len(messages(known, one, rounds, name)) for one in range(1, number + 1))
            found |= {"law": law_of(learned, sent), "pending": client.xpending(name, "learners")["pending"], "told": told(policy)}
            found["answers"] = [one.answer() | {"poison": poison_of(one.number, rounds, name)} for one in rounds_of(learned)]
            record.write_text(json.dumps(found))
        if name == "undisturbed":
            policy.write_text(json.dumps(json.loads(policy.read_text()) | {"experts": {"rows": 30, "held": 20}}))
            done = holdfast("learn", policy, "--json", cwd=policy.parent, env={"HOLDFAST_MODELS": str(policy.parent / "models.jsonl")})
            found["experts"] = json.loads(done.stdout)["experts"]
            record.write_text(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--killed", action="store_true")
    parser.add_argument("--weak", action="store_true")
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--real", type=Path, metavar="MODEL")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    records = {one: work / f"{one}.json" for one in ("undisturbed", "killed", *WEAK, "real")}
    if arguments.page:
        found = {name: json.loads(file.read_text()) for name, file in records.items() if file.exists()}
        (ROOT / "benchmarks/results/learn.md").write_text(page(found), encoding="utf-8")
        return
    if arguments.real:
        stream(work, arguments.real.resolve(), "real", min(arguments.rounds, 5), records["real"])
        return
    base = work / "pretrained" / "model"
    base = base if base.exists() else make_base(work, facts())
    name = next((one for one in ("killed", *WEAK) if getattr(arguments, one)), "undisturbed")
    stream(work, base, name, arguments.rounds, records[name])


if __name__ == "__main__":
    main()
