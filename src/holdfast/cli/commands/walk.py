"""`holdfast walk CONFIG`: train on the past, test on what follows, fold by fold, and say whether that beats naive forecasts.

The last `data.held_out` of a table's rows is cut into folds in the order of time. Each is held out by a run of its own, which trains on all
rows before it but for the gap. Rerun the same command to resume a walk that was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.inert import say
from holdfast.config.load import load_config
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.training.run_to_end import run_to_end
from holdfast.tables.walk_forward import together
from holdfast.terminal.run_view import Terminal

EXAMPLE = "holdfast walk examples/futures.yaml --folds 3 --run runs/walk"
_TOLD = ("rows", "eval_base", "eval_tuned", "best_naive", "gain", "verdict", "says", "trades", "metrics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the YAML file of a run with task: tabular and table.time")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, for example train.epochs=2")
    parser.add_argument("--folds", type=int, default=4, metavar="N", help="how many stretches are held out in turn (default: 4)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="folder of the folds' runs (default: runs/NAME-walk)")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, everything else on standard error")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Train every fold, then judge them together. Exit codes as of `train`; 0 also where nothing is predicted."""
    if arguments.folds < 2:
        raise Stop(USAGE, f"--folds {arguments.folds}: a walk has two folds or more", "leave it out for 4")
    stop, terminal = StopSignals(), Terminal(to_stderr=arguments.json, quiet=False)
    place = (arguments.run or Path("runs") / f"{arguments.config.stem}-walk").resolve()
    found = []
    for fold in range(1, arguments.folds + 1):
        code, facts = _fold(arguments, place / f"fold-{fold:02}", fold, stop, terminal)
        if code != DONE:
            return code, facts
        found.append({"fold": fold, **facts})
    refuse_other_rows([RunFolder(Path(one["run"])) for one in found])
    answer: Json = {"folds": found, **together(found), "run": str(place)}
    write_json(place / "walk.json", answer)
    if not arguments.json:
        _tell(answer, place)
    return DONE, answer


def _fold(arguments: argparse.Namespace, path: Path, fold: int, stop: StopSignals, terminal: Terminal) -> tuple[int, Json]:
    """Train a fold: (exit code, what its evaluation found), or its summary where it did not finish."""
    config = load_config(arguments.config, [*arguments.overrides, f"table.folds={arguments.folds}", f"table.fold={fold}"])
    sweep(SHARED_MEMORY)
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal.say(f"fold {fold} of {arguments.folds}")
    with held(path) as (folder, _):
        stop.outlive_terminal(terminal)
        config = open_run(folder, config, False, terminal)
        summary = read_json(folder.summary_file) or {}
        if summary.get("status") != "finished":
            code, summary = run_to_end(folder, config, None, terminal, stop)
            if code != DONE:
                return code, summary
    return DONE, _evaluation(folder)


def refuse_other_rows(folds: list[RunFolder]) -> None:
    """Raise Stop(1) where the files had other rows when a later fold began: stretches of two tables are no walk over one."""
    rows = [(read_json(run.data_report_file) or {}).get("rows") for run in folds]
    if len(set(rows)) > 1:
        told = ", ".join(f"{run.path.name} {count:,}" for run, count in zip(folds, rows, strict=True) if count is not None)
        raise Stop(BLOCKED, f"the files of data.files have changed between the folds, which read rows: {told}", "walk again: --run DIR")


def _evaluation(run: RunFolder) -> Json:
    facts = read_json(run.evaluation_file) or {}
    if "gain" not in facts:
        raise Stop(1, f"{run.path} has no evaluation", f"its log: {shown(run.path / 'evaluation.log')}; remove that folder and walk again")
    return {"run": str(run.path)} | {name: facts[name] for name in _TOLD if name in facts}


def _tell(answer: Json, place: Path) -> None:
    say(f"{'fold':>6} {'rows':>9} {'naive':>11} {'network':>11}  verdict")
    for fold in answer["folds"]:
        losses = f"{fold['eval_base']:>11.5g} {fold['eval_tuned']:>11.5g}"
        say(f"{fold['fold']:>6} {fold['rows']:>9,} {losses}  {fold['verdict'].replace('_', ' ')}")
    for name, rule in answer.get("trades", {"rules": {}})["rules"].items():
        net = rule["net_return"]
        reach = f" ({net['interval'][0]:.2e} to {net['interval'][1]:.2e})" if net["interval"] else ""
        say(f"net return of {rule['trades']:>7,} trades, {name.replace('_', ' '):<12} {net['mean']:.2e} each{reach}")
    say(answer["says"])
    say(f"each fold's report: {shown(place)}/fold-*/report.html")
