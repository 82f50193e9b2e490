"""Task `tabular`: the whole way from a table to a network that is loaded afresh; the same bits after any death; bad tables told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import events, holdfast, lines, write_table
from holdfast.base.errors import Stop
from holdfast.base.files import Json, sha256
from holdfast.base.intervals import interval_of_groups
from holdfast.checkup.examine import examine
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.config.table import Table, columns_of
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.prepare import with_length
from holdfast.supervision.preparation.tasks import tabular
from holdfast.tables.table.build import build_table
from holdfast.tables.table.form import CategoryColumn, Form, TargetColumn
from holdfast.tables.table.split import part_rows
from holdfast.tables.table.table_set import HELD_OUT, TRAINING, TableSet, load_table
from holdfast.terminal.run_view import Terminal
from holdfast.trainer.model.layers.dropout import StepContext
from holdfast.trainer.tasks.tabular.artifact import load
from holdfast.trainer.tasks.tabular.evaluation import compare_with_naive, gain_of
from holdfast.trainer.tasks.tabular.losses import RowLoss, combined
from holdfast.trainer.tasks.tabular.metrics import middle_of, one_after_another
from holdfast.trainer.tasks.tabular.network import new_network
from holdfast.trainer.tasks.tabular.task import Tabular
from support.rounding import assert_equal_but_for_rounding, but_for_rounding

Tree = dict[str, Any]
pytestmark = pytest.mark.usefixtures("no_leftovers")


def write_config(folder: Path, files: Path | list[Path], **sections: Tree) -> Path:
    names = [str(file) for file in (files if isinstance(files, list) else [files])]
    tree: Tree = {
        "task": "tabular",
        "data": {"files": names, "held_out": 0.2},
        "table": {"target": "y"},
        "network": {"kind": "residual", "hidden": "16,16", "exports": []},
        "train": {"steps": 40, "effective_batch": 8, "lr": 3e-3, "threads": 1},
        "save": {"every": 7},
    }
    for section, values in sections.items():
        tree[section] = tree.get(section, {}) | values
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def built(folder: Path, config: Path) -> tuple[TableSet, list[Json], Any]:
    """(the table, its rejects, what was told of it)."""
    rejects: list[Json] = []
    facts = build_table(load_config(config), folder / "tmp", folder / "data.safetensors", rejects.append)
    return load_table(folder / "data.safetensors"), rejects, facts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run nobody disturbed."""
    folder = tmp_path_factory.mktemp("tabular")
    config = write_config(folder, write_table(folder / "table.csv", 200), evaluate={"every": 10}, network={"exports": ["program"]})
    done = holdfast("train", config, "--run", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(config=config, run=folder / "run", summary=json.loads(done.stdout), said=done.stderr)


def test_a_table_is_learned_and_the_network_is_kept_with_its_scaling(trained: SimpleNamespace) -> None:
    summary, artifact = trained.summary, trained.run / "artifact"
    assert summary["status"] == "finished" and summary["verdict"] == "better"
    assert summary["loss"]["eval_tuned"] < 0.5 * summary["loss"]["eval_base"]
    assert summary["adapter_sha256"] is None and not (trained.run / "adapter").exists()
    assert hashlib.sha256((artifact / "model.safetensors").read_bytes()).hexdigest() == summary["artifact_sha256"]
    about = json.loads((artifact / "metadata.json").read_text())
    assert [one["name"] for one in about["form"]["numbers"]] == ["x0", "x1", "x2"]
    assert about["form"]["categories"][0]["values"] and about["form"]["numbers"][0]["indicator"]
    assert about["held_out"]["metrics"]["r2"] > 0.5 and about["versions"]["torch"] == torch.__version__
    assert "missing numbers become the mean" in trained.said
    report = (trained.run / "report.html").read_text().split("Machine, versions, settings")[0]
    assert "better than naive" in report and "adapter" not in report and "LoRA" not in report


def test_the_exported_program_gives_what_the_network_gives(trained: SimpleNamespace) -> None:
    table, artifact = load_table(trained.run / "data.safetensors"), trained.run / "artifact"
    exports = json.loads((artifact / "metadata.json").read_text())["held_out"]["exports"]
    assert exports["program"]["largest_difference"] < 1e-4
    rows = table.rows_of(HELD_OUT)[:5]
    raw = [line.split(",") for line in Path(table.files[0]).read_text().splitlines()]
    numbers = torch.tensor([[float(cell or "nan") for cell in raw[table.line[row] - 1][:3]] for row in rows], dtype=torch.float64)
    program = torch.export.load(artifact / "model.pt2").module()
    with torch.no_grad():
        found = program(numbers, torch.from_numpy(table.codes[rows].astype(np.int64)))
    network, form, loss = load(artifact, load_config(trained.config), torch.device("cpu"))
    with torch.no_grad():
        inputs, codes = torch.from_numpy(table.inputs[rows]), torch.from_numpy(table.codes[rows].astype(np.int64))
        wanted = combined(network(inputs, codes), loss.name) * form.target.scale + form.target.mean
    assert loss.name == "mse" and found.shape == (5, 1)
    assert_equal_but_for_rounding(found, wanted, 1000)  # numbers that layers sum up


FAULTS = [
    {"name": "start", "when": {"attempt": 1, "phase": "start"}, "effect": "kill"},
    {"name": "forward", "when": {"attempt": 2, "phase": "forward", "step": 5}, "effect": "kill"},
    {"name": "optimizer", "when": {"attempt": 3, "phase": "optimizer", "step": 11}, "effect": "kill"},
    {"name": "snapshot", "when": {"attempt": 4, "phase": "snapshot", "step": 13}, "effect": "kill"},
    {"name": "commit", "when": {"attempt": 5, "phase": "commit", "step": 22}, "effect": "kill"},
    {"name": "segfault", "when": {"attempt": 6, "phase": "backward", "step": 30}, "effect": "segfault"},
    {"name": "nan", "when": {"attempt": 7, "phase": "backward", "step": 34}, "effect": "nan_grad"},
]


def test_killed_at_every_point_a_run_ends_with_the_same_bits(trained: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump({"faults": FAULTS}))
    done = holdfast("train", trained.config, "--run", tmp_path / "run", "--faults", tmp_path / "faults.yaml", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["attempts"] == len(FAULTS) + 1 and len(summary["incidents"]) == len(FAULTS)
    assert summary["artifact_sha256"] == trained.summary["artifact_sha256"]
    numbers = ("step", "loss", "grad_norm", "samples")
    rows = [[row[name] for name in numbers] for row in lines(tmp_path / "run" / "steps.jsonl")]
    assert rows == [[row[name] for name in numbers] for row in lines(trained.run / "steps.jsonl")]


def test_a_poisoned_row_is_found_by_file_and_line(trained: SimpleNamespace, tmp_path: Path) -> None:
    table = load_table(trained.run / "data.safetensors")
    row = table.source(lines(trained.run / "steps.jsonl")[8]["samples"][3])
    fault = {"name": "poison", "when": {"sample": row}, "effect": "raise", "message": "RuntimeError: this row breaks the kernel"}
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump({"faults": [fault]}))
    done = holdfast("train", trained.config, "--run", tmp_path / "run", "--faults", tmp_path / "faults.yaml", "--json")
    assert done.returncode == 0, done.stderr
    quarantined = json.loads(done.stdout)["quarantined"]
    assert [f"{one['file']}:{one['line']}" for one in quarantined] == [row]


def test_out_of_memory_makes_micro_batches_smaller_and_a_hang_is_ended(trained: SimpleNamespace, tmp_path: Path) -> None:
    faults = [
        {"name": "oom", "when": {"tokens": [5, 1000], "step": 3}, "effect": "oom"},
        {"name": "hang", "when": {"step": 20, "attempt": 1}, "effect": "hang"},
    ]
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump({"faults": faults}))
    options = ["--faults", tmp_path / "faults.yaml", "--json", "run.hang_s=10"]
    done = holdfast("train", trained.config, "--run", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    assert any("micro_batch_tokens 8 -> 4" in event["what"] for event in events(tmp_path / "run", "setting_changed"))
    assert [incident["cause"] for incident in json.loads(done.stdout)["incidents"]] == ["hang"]


def test_a_replayed_step_gives_the_same_numbers(trained: SimpleNamespace, call_verb: Callable[..., Json]) -> None:
    row = lines(trained.run / "steps.jsonl")[38]
    found = call_verb("trial", trained.run, "--step", 39)
    assert found["loss"] == row["loss"] and found["grad_norm"] == row["grad_norm"] and found["samples"] == row["samples"]


@pytest.fixture
def call_verb(capsys: pytest.CaptureFixture[str]) -> Callable[..., Json]:
    def run(*arguments: object) -> Json:
        assert main([*map(str, arguments), "--json"]) == 0
        found: Json = json.loads(capsys.readouterr().out)
        return found

    return run


KINDS: dict[str, Tree] = {
    "residual": {"network": {"kind": "residual", "hidden": [32, 32, 16]}},
    "feedforward": {"network": {"kind": "feedforward", "hidden": [32, 16]}},
    "tabm": {"network": {"kind": "tabm", "members": 4}},
    "huber": {"table": {"loss": "huber"}},
    "quantile": {"table": {"loss": "quantile"}},
    "classes": {"table": {"target": "kind", "class_weights": "balanced"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_change_a_step_by_rounding_alone(kind: str, tmp_path: Path) -> None:
    """The losses of all rows, dropout included, are those of the rows one by one; so are the gradients."""
    config = load_config(write_config(tmp_path, write_table(tmp_path / "table.csv", 60), **KINDS[kind]))
    build_table(config, tmp_path / "tmp", tmp_path / "data.safetensors", lambda _: None)
    task = Tabular(config, load_table(tmp_path / "data.safetensors"), torch.device("cpu"))
    samples = task.data.table.rows[:24].tolist()
    found = []
    for budget in (24, 5, 1):
        task.model.zero_grad()
        losses = [task.loss_sum(batch, 3)[0] for batch in task.batches(samples, budget)]
        torch.stack(losses).sum().backward()
        found.append(
            (float(sum(losses).detach()), torch.cat([value.grad.flatten() for value in task.artifact.values() if value.grad is not None]))
        )
    for total, gradient in found[1:]:
        assert total == but_for_rounding(found[0][0], 24 * 1000)  # rows times the numbers that layers sum up
        assert_equal_but_for_rounding(gradient, found[0][1], 24 * 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_metrics_say_is_what_the_step_learns(kind: str, tmp_path: Path) -> None:
    """The held-out loss in numpy equals torch's loss of a single network (members of an ensemble are put together first)."""
    from holdfast.trainer.tasks.tabular.metrics import row_losses

    config = load_config(
        write_config(
            tmp_path,
            write_table(tmp_path / "table.csv", 60),
            **KINDS[kind] | {"table": KINDS[kind].get("table", {}) | {"class_weights": "none"}},
        )
    )
    build_table(config, tmp_path / "tmp", tmp_path / "data.safetensors", lambda _: None)
    table = load_table(tmp_path / "data.safetensors")
    loss = RowLoss(columns_of(config), table.form.target, torch.device("cpu"))
    network = new_network(config, table.form, loss.outputs, StepContext(0)).eval()
    with torch.no_grad():
        outputs = combined(network(torch.from_numpy(table.inputs.copy()), torch.from_numpy(table.codes.astype(np.int64))), loss.name)
    wanted = loss(outputs, torch.from_numpy(table.target.copy())).double().numpy()
    given = (outputs.exp() if loss.name == "cross-entropy" else outputs).double().numpy()
    ours = row_losses(loss.name, given, table.target.astype(float), columns_of(config))
    assert_equal_but_for_rounding(torch.from_numpy(ours), torch.from_numpy(wanted), 1000)


def test_scaling_is_of_the_training_part_alone(tmp_path: Path) -> None:
    """Whatever stands in held-out rows, the inputs and the scaling of training rows keep their bits."""
    table = write_table(tmp_path / "table.csv", 100)
    config = write_config(tmp_path, table)
    before, _, _ = built(tmp_path, config)
    held = {int(before.line[row]) for row in before.rows_of(HELD_OUT)}
    text = [line if at + 1 not in held else "99,-99,1e6,c,1e5" for at, line in enumerate(table.read_text().splitlines())]
    table.write_text("\n".join(text) + "\n")
    first = (before.form.numbers, before.form.target, before.inputs[before.rows_of(TRAINING)].tobytes())
    after, _, _ = built(tmp_path, config)
    assert first == (after.form.numbers, after.form.target, after.inputs[after.rows_of(TRAINING)].tobytes())


def series(file: Path, rows: int, extra: Callable[[int, list[float]], str] = lambda *_: "") -> Path:
    """A series in the order of time with a price; `extra` gives a column more."""
    draw = np.random.default_rng(1)
    price = (100 * np.exp(np.cumsum(draw.normal(0, 1e-3, rows)))).tolist()
    with file.open("w") as out:
        out.write("time,x,close,extra\n")
        for at in range(rows):
            out.write(
                f"2025-01-{1 + at // 1440:02}T{at // 60 % 24:02}:{at % 60:02}:00Z,{draw.normal():.5f},{price[at]!r},{extra(at, price)}\n"
            )
    return file


def test_a_split_by_time_leaves_a_gap_and_looks_at_nothing_behind_it(tmp_path: Path) -> None:
    horizon = {"target": "close", "time": "time", "horizon": 5, "embargo": 3, "ignore": ["extra"]}
    table, rejects, facts = built(tmp_path, write_config(tmp_path, series(tmp_path / "s.csv", 300), table=horizon))
    training, held_out = table.rows_of(TRAINING), table.rows_of(HELD_OUT)
    assert [row["reason"] for row in rejects] == ["no_future"] * 5
    assert facts.read == 300 == len(training) + len(held_out) + len(rejects) + facts.form.purged
    assert held_out.min() - training.max() == 1 + 5 + 3 and facts.form.parted_by == "time"
    closes = [float(line.split(",")[2]) for line in (tmp_path / "s.csv").read_text().splitlines()[1:]]
    scaled = (np.log(closes[35] / closes[30]) - table.form.target.mean) / table.form.target.scale
    assert table.target[30] == pytest.approx(scaled, rel=1e-5)


def test_a_price_that_stands_still_is_no_move_and_no_trade(tmp_path: Path) -> None:
    closes = 100.0 + np.repeat(np.cumsum(np.random.default_rng(3).integers(-1, 2, 100)), 3)  # in whole ticks, each of which lasts
    file = tmp_path / "s.csv"
    file.write_text("t,x,c\n" + "".join(f"2026-01-01T{at // 60:02}:{at % 60:02}:00Z,{at % 7},{one}\n" for at, one in enumerate(closes)))
    path = write_config(tmp_path, file, table={"target": "c", "time": "t", "horizon": 2, "ignore": ["c"], "cost": 0.001})
    table, _, _ = built(tmp_path, path)
    rows = table.rows_of(HELD_OUT)
    found = compare_with_naive(load_config(path), table, table.form, rows, np.ones((len(rows), 1)), "mse")["trades"]["rules"]
    at = rows[::2]
    moved, before = np.log(closes[at + 2] / closes[at]), np.log(closes[at] / closes[at - 2])
    assert (moved == 0).sum() > 5 and (before == 0).sum() > 5 and table.form.target.mean != 0
    assert found["last_move"]["trades"] == (before != 0).sum()
    assert found["last_move"]["total"] == pytest.approx((np.sign(before) * moved - 0.001 * (before != 0)).sum(), rel=1e-5)
    assert found["model"]["hits"] == (moved > 0).mean()


@pytest.mark.parametrize("beside", [{}, {"ignore": ["close"]}, {"features": ["x"]}, {"kind": "classification", "features": ["x"]}])
def test_whether_a_price_rises_is_told_of_its_numbers_whether_it_is_a_feature_or_not(tmp_path: Path, beside: Tree) -> None:
    horizon = {"target": "close", "time": "time", "horizon": 5, "loss": "cross-entropy", "split": "time"}
    table, rejects, _ = built(tmp_path, write_config(tmp_path, series(tmp_path / "s.csv", 300), table=horizon | beside))
    closes = np.array([float(line.split(",")[2]) for line in (tmp_path / "s.csv").read_text().splitlines()[1:]])
    assert table.form.target.classes == ("falls", "rises") and [row["reason"] for row in rejects] == ["no_future"] * 5
    assert table.target[:295].tolist() == (closes[5:] > closes[:-5]).tolist()


def test_the_gap_of_the_one_series_that_goes_on_is_not_filled_by_a_denser_one_that_ended() -> None:
    dense, sparse = np.arange(600), np.arange(0, 1000, 10)
    time, file = np.concatenate([dense, sparse]), np.repeat(np.array([0, 1], np.int32), [600, 100])
    usable = np.ones(700, np.bool_)
    usable[594:600] = usable[694:] = False
    tree = {"task": "tabular", "data": {"files": ["a", "b"], "held_out": 0.05}, "table": {"target": "c", "time": "t", "horizon": 6}}
    part, _, _ = part_rows(Config.model_validate(tree), usable, file, time, np.zeros(700, np.int32))
    first = time[part == HELD_OUT].min()
    ahead = time[np.flatnonzero((part == TRAINING) & (file == 1)) + 6]
    assert first == 600 and ahead.max() < first, "what is learned was known before the held-out part begins"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_training_row_of_any_series_looks_into_the_held_out_part(tmp_path: Path, count: int) -> None:
    """A file is a series and a horizon counts its rows, so that the gap is one of each: of files side by side, and of one that ended."""
    files = [series(tmp_path / f"s{at}.csv", 100) for at in range(count)]
    files.append(series(tmp_path / "ended.csv", 30))
    table, _, facts = built(
        tmp_path, write_config(tmp_path, files, table={"target": "close", "time": "time", "horizon": 7, "ignore": ["extra"]})
    )
    first = table.time[table.rows_of(HELD_OUT)].min()
    training = table.rows_of(TRAINING)
    assert (table.file[training + 7] == table.file[training]).all()
    assert table.time[training + 7].max() < first, "what is learned was known before the held-out part begins"
    ended = training[table.file[training] == count]
    assert len(ended) == 30 - 7 and facts.form.purged == 7 * count
    assert one_after_another(table.file[table.rows_of(HELD_OUT)], 7).size == sum(
        -(-int((table.file[table.rows_of(HELD_OUT)] == at).sum()) // 7) for at in range(count)
    )


@pytest.mark.parametrize(
    ("weights", "refused"), [({"a": 2.0}, False), ({"A": 2.0}, True), ({"a": 1.0, "c": 3.0}, True), ("balanced", False)]
)
def test_a_weight_of_a_class_that_there_is_none_of_is_refused(tmp_path: Path, weights: Any, refused: bool) -> None:
    file = tmp_path / "t.csv"
    file.write_text("x,y\n" + "".join(f"{n * 7 % 13},{'ab'[n % 2]}\n" for n in range(40)))
    config = write_config(tmp_path, file, table={"class_weights": weights})
    if not refused:
        assert built(tmp_path, config)[0].form.target.classes == ("a", "b")
        return
    with pytest.raises(Stop, match=r"table\.class_weights: no training row is of the class [Ac]; those of y: a, b"):
        built(tmp_path, config)


@pytest.mark.parametrize(
    ("quantiles", "at"), [([0.1, 0.5, 0.9], [1]), ([0.5, 0.1, 0.9], [0]), ([0.1, 0.9], [0, 1]), ([0.7, 0.8, 0.9], [0]), ([0.3], [0])]
)
def test_the_forecast_of_quantiles_is_the_one_nearest_to_the_median(quantiles: list[float], at: list[int]) -> None:
    predicted = np.random.default_rng(0).normal(size=(5, len(quantiles)))
    assert middle_of(predicted, quantiles).tolist() == predicted[:, at].mean(axis=1).tolist()
    loss = RowLoss(Table(target="y", loss="quantile", quantiles=quantiles), TargetColumn(name="y", kind="regression"), torch.device("cpu"))
    near, target = np.abs(predicted[:, at].mean(axis=1) - 0.4) < 0.4, torch.full((5,), 0.4, dtype=torch.float64)
    assert int(loss.right(torch.tensor(predicted), target)) == int(near.sum())


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, []),
        ({"split": "row"}, ["parted by row, held-out rows lie within the horizons of training rows"]),
        ({"group": "extra"}, ["of 60 rows 59 learn the change to a row of another group"]),
        ({"group": "extra", "split": "group"}, ["of 60 rows 59 learn the change", "parted by group, held-out rows lie within"]),
        ({"split": "row", "horizon": None}, []),
        ({"purge": 0}, ["the horizon is 1 rows, table.purge leaves out 0 of them: what the last 1 training rows"]),
        ({"purge": 1}, []),
    ],
)
def test_a_horizon_that_reaches_over_other_rows_is_told(tmp_path: Path, columns: Tree, says: list[str]) -> None:
    file = series(tmp_path / "s.csv", 60, lambda at, _: f"g{at % 2}")
    table = {"target": "close", "time": "time", "horizon": 1} | ({} if "group" in columns else {"ignore": ["extra"]}) | columns
    _, _, facts = built(tmp_path, write_config(tmp_path, file, table=table))
    told = [one.message for one in facts.findings if one.id == "horizon-over-others"]
    assert len(told) == len(says) and all(text.startswith(start) for text, start in zip(told, says, strict=True))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), horizon=st.sampled_from([None, 1, 7]))
def test_altering_everything_after_a_time_changes_no_input_up_to_it(
    seed: int, horizon: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands behind the training part, its inputs, targets and scaling keep their bits."""
    folder = tmp_path_factory.mktemp("after")
    table = {"target": "close", "time": "time", "ignore": ["extra"], "missing": "mean"} | ({"horizon": horizon} if horizon else {})
    config = write_config(folder, series(folder / "s.csv", 200), table=table, data={"held_out": 0.3})
    before, _, _ = built(folder, config)
    training = before.rows_of(TRAINING)
    known = int(training.max()) + (horizon or 0) + 2  # lines that the training part may look at, the header among them
    draw, text = np.random.default_rng(seed), (folder / "s.csv").read_text().splitlines()
    for at in range(known, len(text)):
        wild = (draw.normal() * 10.0 ** draw.integers(-3, 6), 10 ** draw.uniform(-2, 5))
        text[at] = f"{text[at].split(',')[0]},{wild[0]},{wild[1]},"
    (folder / "s.csv").write_text("\n".join(text) + "\n")
    after, _, _ = built(folder, config)
    assert after.form == before.form and after.rows_of(TRAINING).tolist() == training.tolist()
    for one, other in ((before.inputs, after.inputs), (before.target, after.target)):
        assert one[training].tobytes() == other[training].tobytes()


@pytest.mark.long
def test_ranks_end_with_the_bits_of_one(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, write_table(tmp_path / "table.csv", 200), train={"steps": 12, "reduction_parts": 8}, run={"standby": False}
    )
    found = []
    for ranks in (1, 2, 4, 8):
        done = holdfast("train", config, "--run", tmp_path / f"run{ranks}", f"train.ranks={ranks}", "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["artifact_sha256"])
    assert len(set(found)) == 1, found


def test_a_run_on_tables_needs_no_package_of_language_models(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, write_table(tmp_path / "table.csv", 60)))
    machine = {"packages": {"transformers": None, "peft": None, "torch": "2.13.0"}}
    assert "packages-missing" not in {finding.id for finding in examine(machine, config, None)}
    assert "packages-missing" in {finding.id for finding in examine(machine, None, None)}


def test_folds_walk_forward(tmp_path: Path) -> None:
    ends = []
    for fold in (1, 2, 3):
        columns = {"target": "close", "time": "time", "folds": 3, "fold": fold, "purge": 2, "ignore": ["extra"]}
        config = write_config(tmp_path, series(tmp_path / "s.csv", 300), table=columns, data={"held_out": 0.5})
        table, _, _ = built(tmp_path, config)
        training, held_out = table.rows_of(TRAINING), table.rows_of(HELD_OUT)
        assert training.max() + 3 == held_out.min()
        ends.append((int(held_out.min()), int(held_out.max())))
    assert ends == [(150, 199), (200, 249), (250, 299)]


def test_groups_stay_together_and_a_share_of_the_rows_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("who,x,y\n" + "".join(f"p{n % 17},{n * 7 % 13},{n * 5 % 11}\n" for n in range(400)))
    config = write_config(tmp_path, file, table={"group": "who", "data_fraction": 0.5})
    table, _, facts = built(tmp_path, config)
    who = [f"p{(line - 2) % 17}" for line in table.line]
    sides = [{who[row] for row in table.rows_of(part)} for part in (TRAINING, HELD_OUT)]
    assert not sides[0] & sides[1] and sides[1]
    assert facts.parts["train"] == pytest.approx(facts.parts["unused"], abs=1)
    assert table.group is not None and [f"p{group}" for group in table.group] == who, "its interval is over groups"
    gained = np.arange(400.0)
    assert gain_of(gained, table.group, 0) == interval_of_groups(gained, table.group) != gain_of(gained, None, 0)


def test_a_run_that_is_older_than_the_groups_in_its_file_gets_its_own_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.csv"
    file.write_text("who,x,y\n" + "".join(f"p{n % 17},{n * 7 % 13},{n * 5 % 11}\n" for n in range(400)))
    config = load_config(write_config(tmp_path, file, table={"group": "who"}))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    old = build_table(config, tmp_path / "work", run.data_file, lambda _: None, grouped=False).digest
    assert load_table(run.data_file).group is None
    monkeypatch.setattr(RunFolder, "plan", lambda _: SimpleNamespace(data_sha256=old))
    assert tabular._check_again(run, config, Terminal(to_stderr=False, quiet=True)) == old == sha256(run.data_file)


LAW = "x,kind,y\n1,a,1\n2,b,2\nthree,a,3\ninf,b,4\n5,a,\n6,b,six\n,a,7\n8,b,8\n\n9,a,9\n10,b,1\n11,a,2\n12,b,5\n13,a,3\n14,b,4\n"


def test_every_row_is_kept_or_rejected_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(LAW)
    table, rejects, facts = built(tmp_path, write_config(tmp_path, tmp_path / "t.csv", data={"held_out": 0}))
    reasons = {4: "text_in_number", 5: "infinite_number", 6: "target_missing", 7: "target_not_a_number"}
    assert {row["line"]: row["reason"] for row in rejects} == reasons
    assert facts.read == 14 == len(table) + len(rejects)
    assert json.loads(rejects[0]["raw"])["x"] == "three"


def found_in(folder: Path, text: str, **table: Any) -> set[str]:
    (folder / "t.csv").write_text(text)
    return {finding.id for finding in built(folder, write_config(folder, folder / "t.csv", table=table))[2].findings}


def test_what_is_odd_about_a_table_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n * 37 % 101},{n * 37 % 101},7,{n * 3.0 + 2},{'c' if n == 3 else 'ab'[n % 2]}\n" for n in range(60))
    found = found_in(tmp_path, f"a,b,copy,flat,line,y\n{rows}", target="y")
    assert {"same-columns", "constant-column", "few-rows-of-a-class"} <= found
    found = found_in(tmp_path, f"a,b,copy,flat,y,kind\n{rows}", target="y")
    assert "nearly-the-target" in found
    times = [f"2025-03-01T{n // 60:02}:{n % 60:02}:00Z" for n in range(40)]
    times[5], times[20], times[30:] = times[4], times[10], times[:5] + [f"2025-03-02T00:00:0{n}Z" for n in range(5)]
    found = found_in(tmp_path, "t,x,y\n" + "".join(f"{t},{n % 7},{n % 5}\n" for n, t in enumerate(times)), target="y", time="t")
    assert {"unordered-times", "repeated-times", "missing-times"} <= found


@pytest.mark.parametrize(
    ("value", "odd"), [("{},5", True), ("${}", True), ("{}%", True), ("1,{:03}", True), ("kind-{}", False), ("v{}.0", False)]
)
def test_numbers_that_are_written_otherwise_are_told_as_names(value: str, odd: bool, tmp_path: Path) -> None:
    text = "x;z;y\n" + "".join(f"{value.format(n % 9)};{n % 5};{n % 7}\n" for n in range(60))
    assert ("odd-numbers" in found_in(tmp_path, text, target="y")) == odd
    assert "odd-numbers" not in found_in(tmp_path, text, target="y", categories=["x"])


def test_weights_of_classes_count_in_what_is_said_of_the_network(tmp_path: Path) -> None:
    """A classifier that sees a rare class, learned with balanced weights, is better than naive by the loss that it learned."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    rare = rng.random(2000) < 1 / (1 + np.exp(4 - 2.5 * x))
    file = tmp_path / "t.csv"
    file.write_text("x,y\n" + "".join(f"{value:.4f},{'ab'[int(one)]}\n" for value, one in zip(x, rare, strict=True)))
    learned: Tree = {"train": {"steps": 60, "effective_batch": 128, "lr": 1e-2}, "evaluate": {"every": 60}}
    config = write_config(tmp_path, file, table={"class_weights": "balanced"}, **learned)
    done = holdfast("train", config, "--run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert found["verdict"] == "better" and found["metrics"]["auc"] > 0.8
    assert found["class_weights"]["b"] > 2 > 1 > found["class_weights"]["a"]
    assert found["eval_base"] == pytest.approx(np.log(2), rel=0.2)  # of balanced classes the best constant forecast is one half
    assert found["eval_tuned"] == pytest.approx(events(tmp_path / "run", "evaluated")[-1]["loss"], rel=1e-4)
    assert "weighted by class (table.class_weights)" in found["says"]


def test_a_name_that_no_training_row_has_says_nothing() -> None:
    config = Config.model_validate({"task": "tabular", "data": {"files": ["t.csv"]}, "table": {"target": "y"}})
    names = tuple(CategoryColumn(name=name, values=("a", "b", "c")) for name in ("first", "second"))
    form = Form(numbers=(), categories=names, target=TargetColumn(name="y", kind="regression"), parted_by="row")
    network = new_network(config, form, 1, StepContext(0))
    assert all(not table.weight[0].any() and table.weight[1:].all() for table in network.embeddings.tables)


LEAKS: dict[str, Callable[[int, list[float]], str]] = {
    "the return itself": lambda at, price: repr(float(np.log(price[at + 5] / price[at]))) if at + 5 < len(price) else "",
    "the next price": lambda at, price: repr(price[at + 1]) if at + 1 < len(price) else "",
    "the price at the horizon": lambda at, price: repr(price[at + 5]) if at + 5 < len(price) else "",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_feature_that_knows_the_future_is_refused(leak: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    columns = {"target": "close", "time": "time", "horizon": 5}
    config = write_config(tmp_path, series(tmp_path / "s.csv", 300, LEAKS[leak]), table=columns)
    assert main(["train", str(config), "--run", str(tmp_path / "run")]) == 1
    assert "the feature extra is the target" in capfd.readouterr().err


def test_a_constant_series_is_no_leak(tmp_path: Path) -> None:
    columns = {"target": "close", "time": "time", "horizon": 5}
    config = write_config(tmp_path, series(tmp_path / "s.csv", 300, lambda at, price: repr(price[at])), table=columns)
    assert "leaking-column" not in {finding.id for finding in built(tmp_path, config)[2].findings}


MANY = "c1" + ",c" * 999_999
BAD: dict[str, tuple[dict[str, str], Tree, str]] = {
    "no such target": ({"t.csv": "x,price\n1,2\n"}, {"table": {"target": "prise"}}, "did you mean price?"),
    "a million columns": ({"t.csv": f"{MANY}\n"}, {"table": {"target": "c1"}}, "has 1,000,000 columns"),
    "columns differ": ({"t.csv": "x,y\n1,2\n", "u.csv": "x,z\n1,2\n"}, {}, "lacks y and has besides z"),
    "one value to learn": ({"t.csv": "x,y\n" + "1,5\n2,5\n3,5\n" * 5}, {}, "is 5 in every training row"),
    "nothing varies": ({"t.csv": "x,y\n" + "1,5\n1,6\n1,7\n" * 5}, {}, "no column is left to learn from"),
    "an id as a name": (
        {"t.csv": "x,y\n" + "".join(f"id-{n},{n}\n" for n in range(99))},
        {"table": {"max_categories": 20}},
        "different texts",
    ),
    "mixed zones": (
        {"t.csv": "t,x,y\n" + "".join(f"2025-01-{n:02}T00:00:00{'Z' if n % 2 else ''},{n},{n * n}\n" for n in range(1, 30))},
        {"table": {"time": "t"}},
        "have none",
    ),
    "a target with commas": (
        {"t.csv": "x;y\n" + "".join(f"{n % 7},5;{100 + n % 9},25\n" for n in range(60))},
        {},
        "the target y holds numbers that are written otherwise, such as '100,25'",
    ),
    "days before months": (
        {"t.csv": "t,x,y\n" + "".join(f"{n:02}/03/2025 09:30,{n},{n * n}\n" for n in range(1, 30))},
        {"table": {"time": "t"}},
        "the column t has times such as 13/03/2025 09:30: read as month/day/year",
    ),
    "no rows": ({"t.csv": "x,y\n"}, {}, "holds no row"),
    "empty": ({"t.csv": ""}, {}, "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_in_a_sentence(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files, sections, told = BAD[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    config = write_config(tmp_path, [tmp_path / file for file in files], **sections)
    assert main(["train", str(config), "--run", str(tmp_path / "run")]) == 1
    said = capfd.readouterr().err
    assert told in said and "Traceback" not in said and len(said) < 1000
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


WRONG: dict[str, tuple[Tree, str]] = {
    "no table": ({"task": "tabular", "data": {"files": "t.csv"}}, "table: missing"),
    "a model": ({"task": "tabular", "model": "tiny", "data": {"files": "t.csv"}, "table": {"target": "y"}}, "model: for language models"),
    "a network for text": ({"model": "tiny", "data": {"files": "t.csv"}, "network": {"hidden": [8]}}, "network: for networks on tables"),
    "widths": ({"task": "tabular", "data": {"files": "t.csv"}, "table": {"target": "y"}, "network": {"hidden": "a,b"}}, "whole numbers"),
    "time without column": ({"task": "tabular", "data": {"files": "t.csv"}, "table": {"target": "y", "split": "time"}}, "needs the name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_config_of_the_wrong_kind_is_told(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree, told = WRONG[name]
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", str(tmp_path / "c.yaml"), "--run", str(tmp_path / "run")]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.parametrize(
    ("train", "epochs"),
    [({}, 10), ({"until": {"loss": 0.1}}, 10), ({"until": {"hours": 1}}, None), ({"until": {"tokens": 9, "loss": 0.1}}, None)],
)
def test_hours_and_tokens_are_the_length_of_a_run_that_names_none(train: Tree, epochs: int | None) -> None:
    """They were only a limit for ten epochs. A run that began with those keeps them."""
    tree = {"task": "tabular", "data": {"files": ["t.csv"]}, "table": {"target": "y"}, "train": train}
    config = Config.model_validate(tree)
    assert config.train.epochs == epochs
    began = Config.model_validate(tree | {"train": train | {"epochs": 10}})
    assert with_length(config, began) == began
    assert with_length(config, Config.model_validate(tree | {"train": {"epochs": 10, "until": {"hours": 2}}})) == config


def numbers_table(file: Path, rows: list[list[float]]) -> Path:
    file.write_text("x,z,y\n" + "".join(",".join(f"{value:g}" for value in row) + "\n" for row in rows))
    return file


def random_rows(count: int, seed: int = 0) -> list[list[float]]:
    return [[float(f"{value:.6g}") for value in row] for row in np.random.default_rng(seed).normal(size=(count, 3))]


@pytest.mark.parametrize(("split", "left"), [("row", None), ("file", 30), ("all", 0)])
def test_held_out_rows_that_stand_in_training_are_told_and_not_counted(split: str, left: int | None, tmp_path: Path) -> None:
    rows = random_rows(200)
    file = numbers_table(tmp_path / "t.csv", rows * 2 if split == "row" else rows)
    more: Tree = {}
    if split != "row":
        other = numbers_table(tmp_path / "held.csv", rows[:20] + (random_rows(30, 1) if split == "file" else []))
        more = {"held_out": 0, "held_out_files": [str(other)]}
    table, _, told = built(tmp_path, write_config(tmp_path, file, data=more))
    learned = {tuple(row) for row in np.column_stack([table.inputs, table.target])[table.rows_of(TRAINING)].tolist()}
    held = [tuple(row) for row in np.column_stack([table.inputs, table.target])[table.rows_of(HELD_OUT)].tolist()]
    assert not learned & set(held) and told.parts["held_out"] == len(held) and left in (None, len(held))
    text = next(one.message for one in told.findings if one.id == "held-out-repeated")
    assert "held-out rows stand in training, the same in every column: they are not counted" in text
    assert ("none is left to judge by" in text) == (not held)


def test_rows_that_are_equal_by_chance_count(tmp_path: Path) -> None:
    """Of two columns of a few values every row stands in training, and what is measured on them is no memory."""
    choose = np.random.default_rng(0)
    file = numbers_table(tmp_path / "t.csv", choose.integers(0, 3, (200, 3)).tolist())
    _, _, told = built(tmp_path, write_config(tmp_path, file))
    text = next(one.message for one in told.findings if one.id == "held-out-repeated")
    assert told.parts["held_out"] == 40 and "they count, because 9 combinations of values" in text


def test_rows_of_a_table_without_repeats_all_count(tmp_path: Path) -> None:
    _, _, told = built(tmp_path, write_config(tmp_path, numbers_table(tmp_path / "t.csv", random_rows(200))))
    assert told.parts["held_out"] == 40 and not [one for one in told.findings if one.id == "held-out-repeated"]
