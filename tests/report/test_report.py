"""The report: one file that loads nothing, shows every incident, and keeps every text from data and logs inert."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from conftest import SHARED, holdfast, needs_shared, write_rows
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of, look_up
from holdfast.config.config import Config
from holdfast.report import drill_page
from holdfast.report.check_page import check_page
from holdfast.report.run import report_training
from holdfast.report.run.report import render
from holdfast.report.run.report_parts import machine_rows, notices
from holdfast.report.shipped.verdict import lines as verdict_lines
from holdfast.report.summary_lines import next_command
from holdfast.report.svg import WIDTH, Marker, histogram, line_chart
from holdfast.report.table_page import in_words, table_page
from holdfast.report.words import early_end, words_of
from holdfast.run.command import Command, write_command
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry
from holdfast.terminal.run_view import Terminal
from support.old_runs import FIXTURES
from support.report_pages import charts_of_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, assets: object) -> Path:
    """A finished run that was killed once and had rejected rows."""
    folder = tmp_path_factory.mktemp("report")
    rows = [{"instruction": f"q{i}", "output": f"a{i}"} for i in range(30)]
    rows[3] = {"instruction": "<script>alert(1)</script>", "output": ""}
    config = folder / "config.json"
    tree = {
        "model": str(assets.model),  # type: ignore[attr-defined]
        "data": {"files": str(write_rows(folder / "rows.jsonl", rows)), "held_out": 0.1},
        "train": {"steps": 6, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        "faults": [{"name": "k", "when": {"attempt": 1, "step": 4}, "effect": "kill"}],
    }
    config.write_text(json.dumps(tree))
    done = holdfast("train", config, "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_run_with_a_goal_that_patience_has_ended_says_so() -> None:
    early = {"step": 6, "steps": 9, "without_improvement": 2, "min_delta": 0.0}
    missed = {"goals": {"loss": 1.0}, "reached": None, "step": None, "reason": None}
    summary: Json = {"status": "finished", "until": missed, "stopped_early": early}
    assert early_end(summary) == "ended early after step 6 of 9: 2 evaluations without improvement"
    assert early_end(summary | {"stopped_early": None}) == "no goal of train.until was reached"
    reached = missed | {"reached": "loss", "step": 6, "reason": "loss 0.9"}
    assert early_end(summary | {"until": reached}) == "ended at step 6: loss 0.9"


def test_answers_of_held_out_rows_are_not_called_trained_on() -> None:
    counts = {"rows": 90, "kept": 90, "mended": 0, "rejected": 0, "by_reason": {}, "held_out": {"rows": 11}}
    told = dict(report_training._data_rows(counts | {"learned": {"answers": 90, "learned": 90}}))
    assert told["of the kept ones held out"] == "11" and told["answers in all rows that are kept, held-out ones too"] == "90"
    assert not any("trained on" in name for name in told)


class Page(HTMLParser):
    """Collects what could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data", "xlink:href") or name.startswith("on")
        ]


def test_the_page_loads_nothing_and_runs_nothing(run: Path) -> None:
    page = Page()
    page.feed((run / "report.html").read_text())
    assert not {"script", "iframe", "img", "object", "embed", "form"} & set(page.tags)
    assert page.links == ["data:,"]
    assert "url(" not in (run / "report.html").read_text()


def test_the_page_tells_the_run(run: Path) -> None:
    text = (run / "report.html").read_text()
    assert "Finished 6 steps through 1 incident, 0 committed steps computed twice." in text
    assert re.search("attempt 1: killed by SIGKILL; went on from the snapshot of step [23], no committed step computed again", text)
    assert charts_of_run(text) == 6
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "PeftModel.from_pretrained" in text


@pytest.mark.parametrize(("tuned", "worse"), [(1.0, False), (2.0, True), (2.5, True), (math.nan, True)])
def test_an_adapter_that_is_no_better_than_the_base_is_called_that(
    run: Path, tuned: float, worse: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["loss"] |= {"eval_base": 2.0, "eval_tuned": tuned}
    Terminal(to_stderr=False, quiet=False).summary(summary, RunFolder(run))
    told = capsys.readouterr().out
    assert "(tuned)" in told and ("NOT lower than the base's" in told) == worse


def test_a_finished_run_says_what_to_type_next_and_cuts_no_path(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((run / "summary.json").read_text()) | {"status": "finished", "artifact_sha256": "0" * 64}
    assert next_command(summary, RunFolder(run)) == [("next", f"holdfast verify {shlex.quote(str(run))}")]
    assert next_command(summary | {"status": "interrupted"}, RunFolder(run)) == []
    voice = Terminal(to_stderr=False, quiet=False)
    voice.console = Console(file=io.StringIO(), force_terminal=True, width=40, soft_wrap=True, color_system=None)  # type: ignore[assignment]
    voice.summary(summary, RunFolder(run))
    told = voice.console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in told and "".join(f"{run}/report.html".split()) in "".join(told.split())


def test_a_mark_in_a_chart_tells_no_secret(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, symlinks=True)
    summary = json.loads((copy / "summary.json").read_text())
    summary["incidents"][0]["evidence"] = "token: hf_" + "aB3" * 12
    (copy / "summary.json").write_text(json.dumps(summary))
    assert "aB3aB3" not in render(RunFolder(copy))


def test_the_verb_writes_it_again_anywhere(run: Path, tmp_path: Path) -> None:
    done = holdfast("report", run, "--out", tmp_path / "r.html", "--json")
    assert json.loads(done.stdout) == {"report": str(tmp_path / "r.html")}
    assert (tmp_path / "r.html").read_text() == render(RunFolder(run))  # which holds what the machine did since the run's own page
    assert holdfast("report", tmp_path).returncode == 2
    assert "cannot be written" in holdfast("report", run, "--out", "/nowhere/r.html").stderr


@needs_shared
def test_naughty_strings_come_out_inert(run: Path, tmp_path: Path) -> None:
    strings = json.loads((SHARED / "data" / "broken" / "blns" / "blns.json").read_text())
    copy = tmp_path / "run"
    shutil.copytree(run, copy, symlinks=True)
    clean = Page()
    clean.feed(render(RunFolder(run)))
    for start in range(0, len(strings), 8):
        rejects = [{"file": text, "line": 1, "reason": text, "detail": text, "raw": text} for text in strings[start : start + 8]]
        (copy / "rejects.jsonl").write_text("".join(json.dumps(reject) + "\n" for reject in rejects))
        page = Page()
        page.feed(render(RunFolder(copy)))
        assert set(page.tags) == set(clean.tags)
        assert page.links == clean.links


# ---- drawing


def numbers(markup: str, attribute: str) -> list[float]:
    return [float(value) for value in re.findall(rf'{attribute}="(-?[\d.]+)"', markup)]


def test_a_chart_draws_each_value_in_its_place() -> None:
    chart = line_chart([1, 2, 3], [10.0, 30.0, 20.0], "loss", [Marker(2, "1", "killed & resumed")])
    path = re.search(r'class="line" d="([^"]+)"', chart)
    assert path
    heights = [float(y) for _, y in re.findall(r"[ML](\S+) ([\d.]+)", path[1])]
    assert heights[1] < heights[2] < heights[0]
    assert "killed &amp; resumed" in chart


def test_behind_each_picture_are_its_numbers() -> None:
    chart = line_chart(range(1, 1001), [k / 8 for k in range(1, 1001)], "a & b")
    cells = re.findall("<td[^>]*>([^<]*)</td>", chart)
    assert "a &amp; b</th>" in chart and len(cells) == 40 and cells[-2:] == ["1,000", "125"]
    assert re.findall("<td[^>]*>([^<]*)</td>", histogram([0.0, 5.0, 9.0], [3, 1200], "tokens")) == ["0 to 5", "3", "5 to 9", "1,200"]


def test_the_report_counts_what_is_noted_of_rows_that_are_trained_on() -> None:
    data = {"rows": 9, "kept": 9, "mended": 0, "rejected": 0, "by_reason": {}, "notes": {"repetition": 3, "prompt_differs": 1200}}
    firsts = {"repetition": {"file": "/at/home/rows.jsonl", "line": 7}}
    shown = dict(report_training._data_rows(data | {"first_noted": firsts}))
    assert shown["  repetition, trained on as it is, the first rows.jsonl:7"] == "3"
    assert shown["  prompt_differs, trained on as it is"] == "1,200"


def test_pages_of_tables_have_the_look_of_the_others_and_escape_what_they_tell() -> None:
    told = check_page("<i>x", {"items": [{"id": "a", "verdict": "failed", "why": "<b>", "numbers": {}, "next": None}], "start": {}})
    rehearsal = dict.fromkeys(("struck", "survived", "identical", "attempts", "found_cause", "found_remedy", "trials", "seconds"), True)
    drilled = drill_page.page([rehearsal | {"name": "<b>kill", "identical": False}], "one")
    for text, verdict in ((told, "verdict bad"), (drilled, "verdict bad"), (table_page("t", "likely", []), "quiet")):
        assert "<b>" not in text and "<i>" not in text and "Content-Security-Policy" in text and f'<p class="{verdict}">' in text
    assert '<td class=bad data-head="verdict">failed</td>' in told and re.search('<td class=bad data-head="[^"]+">NO</td>', drilled)


def test_a_spike_survives_thinning_and_nan_leaves_a_gap() -> None:
    values = [1.0] * 5000
    values[2500] = 2.0
    heights = [float(y) for y in re.findall(r"[ML]\S+ ([\d.]+)", line_chart(range(5000), values, "loss"))]
    assert len(heights) <= 1100
    assert min(heights) < max(heights) - 50
    gap = line_chart([1, 2, 3, 4, 5], [1.0, 1.0, math.nan, 2.0, 2.0], "loss")
    assert gap.count("M") == 2
    assert "no data" in line_chart([], [], "loss")


def test_a_value_between_two_gaps_is_a_dot_in_its_place() -> None:
    whole = line_chart([1, 2, 3], [2.0, 1.5, 1.0], "loss")
    places = dict(zip((1, 2, 3), re.findall(r"[ML](\S+) [\d.]+", whole), strict=True))
    for losses, seen in (([math.nan, 2.0, math.nan], [2]), ([2.0, math.nan, 1.5], [1, 3]), ([math.nan, math.nan, 1.0], [3])):
        chart = line_chart([1, 2, 3], losses, "loss")
        assert re.findall(r'<circle class="dot" cx="([\d.]+)" cy="[\d.]+"', chart) == [places[step] for step in seen], losses
        assert "nan" not in chart.replace("not finite", "")


def test_a_value_that_is_not_finite_hides_none_of_the_steps_beside_it() -> None:
    values = [1.0] * 5000
    values[2400] = math.nan  # the first of what is drawn as one stretch
    values[2405] = 1.5
    heights = [float(y) for y in re.findall(r"[ML]\S+ ([\d.]+)", line_chart(range(5000), values, "loss"))]
    assert min(heights) < max(heights) - 50


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([23_000.0, 23_600.0, 24_100.0], ["2.3e4", "2.35e4", "2.4e4"]),  # tokens a second of a card
        ([98_000.0, 98_900.0, 99_600.0], ["9.8e4", "9.85e4", "9.9e4", "9.95e4"]),
        ([1000.2, 1001.1, 1001.8], ["1000.5", "1001", "1001.5"]),
        ([0.00011, 0.00015, 0.0002], ["1.5e-4", "2e-4"]),
    ],
)
def test_a_line_of_the_grid_is_labelled_with_its_own_number(values: list[float], ticks: list[str]) -> None:
    labels = re.findall(r'text-anchor="end">([^<]+)</text>', line_chart([1, 2, 3], values, ""))
    found = [label for label in labels if label not in ("1", "2", "3")]
    assert set(ticks) <= set(found) and len(set(found)) == len(found), found
    cells = re.findall('<td class="n">([^<]*)</td>', line_chart([1, 2, 3], [23_456.0, 23_499.0, 23_501.0], ""))
    assert [float(cell) for cell in cells[1::2]] == [23_456.0, 23_499.0, 23_501.0], "what is copied from the table is what was measured"


def test_a_histogram_draws_every_count() -> None:
    bars = histogram([0, 10, 20], [5, 10], "tokens", cap=30)
    assert [round(height / 17.6) for height in numbers(bars, "height")] == [5, 10]
    assert "longest row allowed: 30" in bars


def test_a_running_run_can_be_shown(config_of: Callable[..., Path], run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, symlinks=True)
    (copy / "summary.json").unlink()
    assert "Not finished: 6 steps so far." in render(RunFolder(copy))


def test_a_limit_at_the_right_edge_has_its_label_inside() -> None:
    markup = histogram([0, 10, 20], [3, 4], "tokens", cap=200)
    assert f'x="{WIDTH - 12 - 3}.0" text-anchor="end" y="185">cap' in markup
    assert 'text-anchor="end" y="185">cap' not in histogram([0, 100, 200], [3, 4], "tokens", cap=100)


ENDED = {"steps": 3, "samples_seen": 12, "wall_seconds": None, "tokens_per_second": None, "peak_bytes": 2**30, "attempts": 1}


def _tiles(evaluation: Json, **config: Json) -> dict[str, str]:
    words = words_of(Config.model_validate({"data": {"files": ["f"]}} | config))
    loss = {"first": 0.7, "last": 0.5, "eval_base": 1.1775, "eval_tuned": 0.68486}
    return {label: value for value, label in report_training._tiles(ENDED | {"loss": loss}, [{}], words, evaluation)}


def test_what_was_held_out_is_told_in_one_unit_on_so_many_rows() -> None:
    table = {"task": "tabular", "table": {"target": "price"}}
    found = {"loss": "mse", "eval_base": 1.1775, "eval_tuned": 0.68486, "rows": 59, "baselines": {"median_of_training": 1.1775}}
    found |= {"metrics": {"mse": 7081708211.8, "rmse": 84152.9, "r2": 0.41}}
    shown = look_up(kind_of(Config.model_validate({"data": {"files": ["f"]}} | table)).measured)(found)
    assert shown[:2] == [
        ("mse of the network, target in standard deviations", "0.68486"),
        ("mse of the naive forecast median of training, target in standard deviations", "1.1775"),
    ]
    assert ("mse of the network, in the target's own unit squared", "7.08171e+09") in shown
    assert "held-out mse, naive and network on 59 rows, target in standard deviations" in _tiles(found, **table)
    assert "held-out loss, base and tuned on 59 rows" in _tiles({"rows": 59}, model="tiny")


def test_the_held_out_losses_begin_with_the_bases_where_it_was_asked_the_same_rows(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.evaluations_file.write_text("".join(json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in ((2, 2.5), (4, 2.25))))
    tree: Json = {"model": "tiny", "data": {"files": ["f"]}}
    whole, some = (Config.model_validate(tree | {"evaluate": {"every": 2} | more}) for more in ({}, {"rows": 4}))
    measured: Json = {"rows": 9, "eval_base": 3.125, "eval_tuned": 2.25}
    chart = report_training._held_out_chart(report_training._judged(run, whole, measured), words_of(whole))
    assert "before the first step: held-out loss 3.1250 (base)" in chart and "step 4: held-out loss 2.2500" in chart
    others = (some, measured), (whole, measured | {"eval_base": None}), (whole, measured | {"pair_accuracy": 1.0}), (whole, {})
    assert all([row["step"] for row in report_training._judged(run, config, found)] == [2, 4] for config, found in others)
    assert report_training._judged(run, some, measured | {"rows": 4})[0]["loss"] == 3.125


@pytest.mark.parametrize(
    ("objective", "unit", "label"),
    [
        ("dpo", "per pair", "of 2 held-out pairs in the wanted order"),
        ("kto", "per answer", "of 2 held-out answers on the wanted side of the base model"),
    ],
)
def test_preferences_are_told_as_such(objective: str, unit: str, label: str) -> None:
    config: Json = {"model": "tiny", "train": {"objective": objective}}
    found = {"rows": 2, "pair_accuracy": 1.0, "margin": 0.3228, "exact_match": {"asked": 2, "base": 0, "tuned": 0}}
    assert words_of(Config.model_validate({"data": {"files": ["f"]}} | config)).unit == unit
    tiles = _tiles(found, **config)
    assert tiles[label] == "100.0%" and "0.323" in tiles.values()
    assert "not one to be met" in report_training._proof(found)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"asked": 4, "base": 1, "tuned": 2}, "4 held-out prompts; exact matches: 25.0% of the base model's answers, 50.0% of the tuned"),
        ({"asked": 4, "base": 1, "tuned": 2, "too_long": 0, "limit": 64}, "4 held-out prompts; exact matches: 25.0% of the base"),
        (
            {"asked": 4, "base": 1, "tuned": 2, "too_long": 3, "limit": 64},
            "tuned one's, not comparable: 3 rows whose own answer is longer",
        ),
        (
            {"asked": 0, "base": 0, "tuned": 0, "too_long": 1, "limit": 64},
            "1 held-out prompt; exact matches: not comparable: 1 row",
        ),
    ],
)
def test_answers_that_cannot_match_are_told_and_are_no_misses(counts: Json, told: str) -> None:
    assert told in report_training._proof({"exact_match": counts})
    long = "not comparable" in told
    assert ("is longer than the 64 tokens that evaluate.max_new_tokens allows" in report_training._proof({"exact_match": counts})) is long
    measured = json.loads((FIXTURES / "golden" / "verify.json").read_text())["answer"]
    exact: Json = {"base": 0, "tuned": 0, "only_base": 0, "only_tuned": 0, "p_value": 1.0} | counts
    [shown] = [line for name, line in verdict_lines(measured | {"exact_match": exact}) if name == "exact match"]
    assert ("that --longest allows" in shown) is long and ("->" in shown) is bool(counts["asked"])


def test_the_page_of_somebody_elses_command_loads_nothing_and_tells_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 12
    folder = RunFolder(tmp_path)
    write_command(folder, Command(("python", "t.py", "--hub_token", token, "<script>alert(1)</script>"), str(tmp_path)))
    rows = [{"time": 100.0 + at, "attempt": 1 + (at > 3), "step": at, "total": 8, "source": "callback", "loss": 3.0} for at in range(8)]
    folder.progress_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    incident = {
        "step": 4,
        "cause": "hang",
        "samples": [3],
        "evidence": f"<b>{token}",
        "seconds_to_recover": 2.0,
        "attempt": 1,
        "ending": "?",
    }
    known = {"status": "finished", "steps": 8, "total_steps": 8, "progress_from": "callback", "loss": {"first": 3.0, "last": 3.0}}
    known |= {"wall_seconds": 9.0, "goodput": 0.5, "attempts": 2, "steps_computed_twice": 0, "steps_dropped": None, "doubt": None}
    folder.summary_file.write_text(json.dumps(known | {"incidents": [incident], "checkpoints_set_aside": [], "reason": ""}))
    text = render(folder)
    page = Page()
    page.feed(text)
    assert token not in text and "script" not in page.tags and page.links == ["data:,"]
    assert "Ended well: 8 steps through 1 incident, 0 steps computed twice." in text and "rows 3 of its data set" in text
    assert page.tags.count("svg") == 2, "steps over time, and the loss"


def test_of_a_machine_file_that_lacks_facts_nothing_is_made_up(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.machine_file.write_text('{"os": {"kernel": "6.8"}, "cpu": {"threads": 8}, "memory_bytes": 1073741824}')
    told = dict(machine_rows(run))
    assert told["system"] == "kernel 6.8" and told["processor"] == "8 threads" and told["torch"] == told["Python"] == "unknown"
    run.machine_file.write_text('{"os": {"distro": "Debian 13"}, "torch": null}')
    assert dict(machine_rows(run)) == {"system": "Debian 13", "GPUs": "none"} | dict.fromkeys(
        ("processor", "memory", "Python", "torch"), "unknown"
    )


def test_of_many_events_the_newest_are_told_and_how_many_came_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 61):
        run.event("checkpoint_failed", step=step)
    assert [one["text"] for one in notices(run)][:2] == ["in events.jsonl of the run", "step: 11"]
    assert notices(run)[0]["title"] == "10 before these" and notices(run)[-1]["text"] == "step: 60" and len(notices(run)) == 51
    run.events_file.write_text("".join(run.events_file.read_text().splitlines(keepends=True)[:50]))
    assert notices(run)[0] == {"title": "A checkpoint could not be saved; training continues", "text": "step: 1"}


def test_a_run_that_held_out_no_row_says_that_nothing_is_judged(tmp_path: Path, assets: SimpleNamespace) -> None:
    """On the way, at the end, in its report; 10% of one row is none."""
    for name, rows, held_out in (("one", 1, 0.1), ("none", 4, 0.0), ("some", 4, 0.1)):
        file = write_rows(tmp_path / f"{name}.jsonl", [{"instruction": f"q{i}", "output": f"a{i}"} for i in range(rows)])
        tree = {"model": str(assets.model), "data": {"files": str(file), "held_out": held_out}, "train": {"steps": 1, "threads": 1}}
        config = tmp_path / f"{name}.yaml"
        config.write_text(json.dumps(tree))
        done = holdfast("train", config, "--run", tmp_path / name)
        told = (done.stdout + done.stderr, (tmp_path / name / "report.html").read_text())
        assert done.returncode == 0 and "0 held-out" not in told[0]
        assert [text.lower().count("no row was held out: nothing says whether") > 0 for text in told] == [name != "some"] * 2
        assert ("no row is held out: nothing will say" in told[0]) is (name != "some")


def test_settings_are_told_without_words_of_python() -> None:
    entry = Entry(3, {"fused": False, "env": {"A": "1", "B": None}, "quarantine": [3, 4], "part_threads": None, "lr_factor": 0.5})
    told = report_training._timeline_entry(entry)["settings"]
    assert told == "fused=no, env=A=1 B=not set, quarantine=3 4, part_threads=not set, lr_factor=0.5"
    assert in_words({"liger": True}) == "liger: yes"
