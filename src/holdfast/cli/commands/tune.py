"""`holdfast tune CONFIG`: climb from plain kernels to faster settings by experiment, on this machine, with the run's own model and rows.

A rung is kept where loss and gradients are the reference's within a stated tolerance at the hardest shapes, where it goes on so, and where
it is faster in alternation. What was chosen is kept for `train.ladder: proven`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.tasks import kind_of
from holdfast.book import cards_of
from holdfast.cli.laboratory import laboratory_of
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.experiments.check.bench import Bench
from holdfast.experiments.tune.climb import REFERENCE, Climb, Rung, climb
from holdfast.machine.machine_file import training_devices
from holdfast.planning.ladder import Proof, ProvenRung, fingerprint, keep_proof
from holdfast.report.pages import write_page
from holdfast.report.table_page import TableOf, table_page
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.run.timeline import settings_in
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.supervision.preparation.throwaway import throwaway
from holdfast.supervision.signals import StopSignals
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast tune examples/quickstart.yaml"
WORK = "preparing the run"
_START_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the run's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, as in train")
    parser.add_argument("--json", action="store_true", help="print {rungs, chosen} on standard output, all else on standard error")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the rungs as a page with their speeds")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 climbed (perhaps to no rung at all), 1 the reference itself does not hold, 2 config, 3 a child cannot be ended."""
    config = load_config(arguments.config, [*arguments.overrides, "train.ladder=safe"])
    if not kind_of(config).base_model:
        raise Stop(USAGE, "a network on tables has no ladder: it computes in fp32 with plain products", "holdfast train CONFIG")
    terminal = Terminal(to_stderr=arguments.json, quiet=False)
    sweep(SHARED_MEMORY)
    StopSignals().standing = "nothing was trained, and no proof was kept"
    with throwaway() as place:
        answer = _climbed(arguments, config, place, terminal)
    if arguments.html:
        heads = ("rung", "verdict", "tokens/s", "peak bytes", "gradient within", "why")
        kinds = ("id", "verdict", "tokens_per_second", "peak_bytes", "identical_to_reference_within", "why")
        rows = [tuple(one[kind] for kind in kinds) for one in answer["rungs"]]
        told = f"chosen: {', '.join(answer['chosen']['rungs']) or 'the reference'}" if answer["chosen"] else "the reference does not hold"
        page = table_page(f"holdfast tune {arguments.config.name}", told, [TableOf("Rungs", heads, rows, bar=2)])
        write_page(arguments.html, page, answer)
    return (DONE if answer["chosen"] else BLOCKED), answer


def _climbed(arguments: argparse.Namespace, config: Config, place: Path, terminal: Terminal) -> Json:
    def tell(rung: Rung) -> None:
        speed = f"{rung.tokens_per_second:,.0f} tokens/s" if rung.tokens_per_second else ""
        line = f"{rung.id:20} {rung.verdict:18} {speed:18} {rung.why}"
        (terminal.tell if rung.verdict == "refused" else terminal.say)(line)

    with held(place) as (folder, _):
        config = open_run(folder, config, False, terminal)
        machine = read_json(folder.machine_file) or {}
        base = settings_in(folder.timeline_file).model_dump(mode="json")
        with laboratory_of(folder, config, terminal, _START_S) as lab:
            terminal.say("first the reference, the slowest: plain kernels in fp32. What it takes bounds the rest, and is told then")
            bench = Bench(lab, config, folder.plan(), str(arguments.config), {}, facts={"settings": base})
            way = climb(bench, base, cards_of("rungs").values(), device_of(machine, base), tell)
    return _answer(way, config, machine, folder, terminal)


def device_of(machine: Json, settings: Json) -> str:
    """Return cpu, cuda or amd."""
    if settings.get("device") == "cpu":
        return "cpu"
    vendors = Counter(gpu.get("vendor") for gpu in training_devices(machine))
    return {"amd": "amd", "nvidia": "cuda"}.get(str(vendors.most_common(1)[0][0]), "cuda") if vendors else "cpu"


def _answer(way: Climb, config: Config, machine: Json, folder: RunFolder, terminal: Terminal) -> Json:
    """Return the JSON object; keep what was chosen as a proof."""
    rungs = [rung.as_json() for rung in way.rungs]
    if not way.rungs[0].stable:
        terminal.tell("plain kernels in fp32 do not go through, so nothing is proven; holdfast check CONFIG says what is wrong")
        return {"rungs": rungs, "chosen": None, "proof": None}
    cards = cards_of("rungs")
    changes = {name: {key: way.settings[key] for key in cards[name].settings} for name in way.kept}
    proven = tuple(ProvenRung(id=name, settings=changes[name], env=cards[name].env) for name in way.kept)
    proof = Proof(machine=fingerprint(machine), rungs=proven, reference=REFERENCE, tokens_per_second=way.rate, time=time.time())
    file = keep_proof(config, proof)
    terminal.say(f"chosen: {', '.join(way.kept) or 'the reference'}" + (f"; kept in {file}, for train.ladder=proven" if file else ""))
    chosen = {"rungs": way.kept, "settings": way.settings, "env": way.env, "tokens_per_second": way.rate}
    return {"rungs": rungs, "chosen": chosen, "proof": str(file) if file else None}
