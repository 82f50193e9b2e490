"""Why a step fails, found by experiment: a row, several rows, a setting, or nothing; and the run goes on with what helped."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from conftest import events, fill, holdfast, lines, run_with_timeline_of, settings_with
from holdfast.base.files import write_json
from holdfast.book import cards_of
from holdfast.experiments import search
from holdfast.experiments.hosts import Host, Hosts
from holdfast.experiments.investigate import in_order, investigate
from holdfast.experiments.replay import TrialChange, TrialsSpent
from holdfast.experiments.search import guilty, same_size_sets, smallest_failing
from holdfast.experiments.trials import Lab, concluded
from holdfast.run.folder import RunFolder
from holdfast.run.remedies import refuted
from holdfast.run.types import Diagnosis, Ending, FailureReport, Verdict
from holdfast.supervision.policy.ledgers import PastAttempt, deaths_in_step
from holdfast.supervision.policy.next_move import of_death, of_verdict, wants_experiments
from support.known import known

Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("no_leftovers")

# ---- the search


class Trials:
    """Counts what is asked."""

    def __init__(self, fails: Callable[[Sequence[int]], bool]) -> None:
        self.fails, self.count = fails, 0

    def __call__(self, samples: Sequence[int]) -> bool:
        self.count += 1
        return self.fails(samples)


@given(some.integers(1, 64), some.randoms(use_true_random=False))
def test_one_guilty_row_is_found_in_a_logarithm_of_trials(size: int, chance: random.Random) -> None:
    rows = chance.sample(range(1000), size)
    culprit = chance.choice(rows)
    trials = Trials(lambda samples: culprit in samples)
    assert smallest_failing(rows, trials) == [culprit]
    assert trials.count <= math.ceil(math.log2(size)) + 1


@given(some.integers(2, 40), some.randoms(use_true_random=False))
def test_two_rows_that_only_fail_together_are_found(size: int, chance: random.Random) -> None:
    rows = chance.sample(range(1000), size)
    pair = set(chance.sample(rows, 2))
    fails = Trials(lambda samples: pair <= set(samples))
    smallest = smallest_failing(rows, fails)
    assert set(smallest) == pair
    others = [row for row in rows if row not in pair]
    found, seen = guilty(smallest, others, fails)
    assert set(found) == (pair if others else set()), "nothing tells two rows that are all there is from their number of tokens"
    assert ("together" if others else "no other sample") in seen


@given(some.lists(some.integers(5, 60), min_size=4, max_size=32), some.randoms(use_true_random=False))
def test_rows_are_not_accused_of_a_shape(lengths: list[int], chance: random.Random) -> None:
    """It fails where a micro-batch has one total of tokens: no row is to blame, unless every other company gives that total, too."""
    total = sum(lengths)

    def fails(samples: Sequence[int]) -> bool:
        return sum(lengths[sample] for sample in samples) == total

    rows = list(range(len(lengths)))
    smallest = smallest_failing(rows, fails)
    assert smallest == rows, "only all of them have that many tokens"
    found, seen = guilty(smallest[:1], rows[1:], lambda samples: sum(lengths[sample] for sample in samples) == lengths[0])
    assert found == [] and "not in other company" in seen


@given(some.lists(some.integers(5, 60), min_size=6, max_size=32), some.randoms(use_true_random=False))
def test_rows_are_not_accused_of_being_many(lengths: list[int], chance: random.Random) -> None:
    """It fails from some total of tokens on, which no row reaches alone: another row does as well as any of those that were found."""
    threshold = chance.randint(max(lengths) + 1, max(max(lengths) + 1, sum(lengths) - max(lengths)))

    def fails(samples: Sequence[int]) -> bool:
        return sum(lengths[sample] for sample in samples) >= threshold

    rows = list(range(len(lengths)))
    chance.shuffle(rows)
    smallest = smallest_failing(rows, fails) if fails(rows) else []
    others = sorted((row for row in rows if row not in smallest), key=lambda row: lengths[row])
    found, _ = guilty(smallest, others, fails) if smallest and others else ([], "")
    rest = [row for row in rows if row not in found]
    assert not found or fails(rest) or max(lengths[row] for row in found) > max(lengths[row] for row in rest), (
        "accused of its length at most"
    )


@settings(deadline=None)
@given(some.lists(some.integers(5, 60), min_size=3, max_size=20))
def test_twins_have_about_as_many_tokens(lengths: list[int]) -> None:
    known = dict(enumerate(lengths))
    others = list(known)[1:]
    found = same_size_sets([0], others, known)
    assert 1 <= len(found) <= 2 and all(set(some) <= set(others) for some in found)
    nearest = min(abs(lengths[one] - lengths[0]) for one in others)
    assert min(abs(sum(known[one] for one in some) - lengths[0]) for some in found) <= nearest
    assert guilty([0], others, lambda samples: True, found)[0] == [], "whatever has as many tokens fails"


def test_of_a_large_step_not_every_pair_is_a_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of 10,000 rows of a table are 50 million lists, and the supervisor's end."""
    asked: list[int] = []

    def counted(samples: Any, size: int) -> Any:
        asked.append(len(samples))
        return combinations(samples, size) if len(samples) <= 1000 else iter([tuple(samples[:size])])

    monkeypatch.setattr(search, "combinations", counted)
    known = {at: 5 + at for at in range(10_000)}
    found = same_size_sets([4_000], [at for at in known if at != 4_000], known)
    assert max(asked) <= 512
    assert all(abs(sum(known[one] for one in some) - known[4_000]) <= 10_000 / 511 for some in found)
    longest = same_size_sets([4_000, 9_000], [9_999, 9_998, *range(1, 4_000)], known | {0: 5})
    assert max(sum(known[one] for one in some) for some in longest) >= known[4_000] + known[9_000], "the longest stay among them"


# ---- a full disk


class HostsOnDisk(Hosts):
    """Trials whose processes are played here: they write as the real ones do, and fail where they cannot."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        path.mkdir()
        super().__init__(RunFolder(path), 5, {}, 1.0, tell, lambda: False)

    @property
    def lab(self) -> Lab:
        return Lab(self.run, self.step, settings_with(), self.replay, 60)

    def _asked(self, folder: Path, change: TrialChange, deadline_s: float) -> str:
        try:
            write_json(folder / "running.json", {})
            write_json(folder / "outcome.json", {"ending": "finished", "finite": True, "loss": 1.0, "grad_norm": 1.0})
        except OSError:
            return "error, exit code 1"
        return "finished"


def no_trial_of_a_real_run(run: RunFolder, step: int, change: TrialChange) -> Path:
    folder = run.path / f"trials/{step:03d}"
    folder.mkdir(parents=True)
    write_json(folder / "request.json", {"step": step})
    return folder


@pytest.mark.parametrize("at_once", [True, False], ids=["before the trial", "within the trial"])
def test_a_trial_that_a_full_disk_ends_is_no_evidence_and_is_asked_again_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    said: list[str] = []
    fillers: list[Path] = []

    def tell(text: str) -> None:
        said.append(text)
        if "trials wait until there is room" in text:
            fillers.pop().unlink()

    def new_trial(run: RunFolder, step: int, change: TrialChange) -> Path:
        folder = no_trial_of_a_real_run(run, step + len(said), change)
        if len(said) == 0 and not at_once:
            fillers.append(fill(small_disk))
        return folder

    monkeypatch.setattr("holdfast.experiments.hosts.new_trial", new_trial)
    lab = HostsOnDisk(small_disk / "run", tell).lab
    if at_once:
        fillers.append(fill(small_disk))
    assert not lab.fails(TrialChange((3,)))
    assert lab.trials == 1, "a trial that could not be written does not count"
    assert "is full: trials wait until there is room" in said[0] and "room again" in said[1] and "goes through" in said[2]
    assert [file.parent.name for file in lab.run.path.glob("trials/*/*")].count("005") == 0, "nothing is left of the other"


def test_a_disk_that_stays_full_ends_no_trial_as_evidence(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.base.disk.MOST_S", 0.0)
    monkeypatch.setattr("holdfast.experiments.hosts.new_trial", no_trial_of_a_real_run)
    said: list[str] = []
    lab = HostsOnDisk(small_disk / "run", said.append).lab
    filler = fill(small_disk)
    with pytest.raises(OSError, match="no room for trials"):
        lab.fails(TrialChange((3,)))
    assert not lab.known
    lab.stop = lambda: True
    with pytest.raises(TrialsSpent):
        lab.fails(TrialChange((4,)))
    filler.unlink()


def test_a_trial_that_fails_on_a_disk_with_room_is_evidence(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = HostsOnDisk(small_disk / "run", lambda _: None)
    failed = {"ending": "killed by SIGABRT", "finite": None, "begun": True, "loss": None, "folder": "001"}
    monkeypatch.setattr(hosts, "_asked", lambda *_: "killed by SIGABRT")
    monkeypatch.setattr("holdfast.experiments.hosts.new_trial", no_trial_of_a_real_run)
    monkeypatch.setattr("holdfast.experiments.hosts.conclude", lambda *_: failed)
    assert hosts.lab.fails(TrialChange((3,)))


# ---- the decision

KINDS = some.sampled_from(["rows", "setting", "transient", "uncertain"])


def past(progressed: bool, kind: str = "error", remedied: bool = False, step: int | None = 5) -> PastAttempt:
    return PastAttempt(step, "native_crash", kind, None, progressed, remedied, from_outside=kind == "killed")


def failure_report_of(kind: str = "error", code: int | None = 1, step: int | None = 5) -> FailureReport:
    facts: dict[str, Any] = {"phase": "step", "samples": (1, 2), "lines": (), "committed_before": 4, "committed_after": 4, "died": 0.0}
    return FailureReport(attempt=1, ending=Ending(kind, code), step=step, memory_available_bytes=None, disk_free_bytes=None, **facts)  # type: ignore[arg-type]


def test_experiments_begin_at_the_second_death_in_a_step_and_not_at_the_first() -> None:
    assert not wants_experiments(failure_report_of(), [past(True)])
    assert wants_experiments(failure_report_of(), [past(True), past(False)])
    killed = past(False, "killed")
    assert not wants_experiments(failure_report_of("killed", -9), [past(True), killed]), "somebody may have killed it"
    assert wants_experiments(failure_report_of("killed", -9), [past(True), killed, killed])
    assert wants_experiments(failure_report_of(), [past(False), past(False)]), "it never got beyond its first step"
    assert not wants_experiments(failure_report_of(step=None), [past(True), past(False, step=None)])
    assert not wants_experiments(failure_report_of(), [past(True, step=4), past(False)]), "another step"
    assert wants_experiments(failure_report_of(), [past(True), past(True)]), "the second one committed the row of the step before only"
    assert wants_experiments(failure_report_of(), [past(True), past(False, step=None), past(False)]), "a start that failed between them"


@pytest.mark.parametrize(("most", "exact"), [(3, False), (4, True), (30, False), (30, True)])
def test_a_step_that_fails_each_time_in_another_way_is_told_as_that_and_nothing_is_accused(most: int, exact: bool, tmp_path: Path) -> None:
    endings = ["killed by SIGSEGV", "no progress for 60 s", "RuntimeError: an error of its own"]
    asked: list[str] = []

    def replay(change: TrialChange) -> dict[str, Any]:
        asked.append(endings[len(asked) % 3])
        samples = list(change.samples)
        told = {"samples": samples, "lengths": [9] * len(samples), "sources": [f"rows:{at}" for at in samples]}
        return told | {"ending": asked[-1], "finite": False, "begun": True, "loss": None, "process": len(asked)}

    lab = Lab(RunFolder(tmp_path), 7, settings_with(deterministic=exact), replay, most)
    found = investigate(lab, [3, 5, 8, 9], 2, [])
    assert (found.kind, found.rows) == ("uncertain", ()) and len(asked) <= most
    times = 1 if exact else 3
    said = f"as it is, the step failed in {times} of {times} trials; its trials failed in 3 ways: {'; '.join(endings)}"
    assert found.evidence.endswith(said), found.evidence


def test_a_remedy_starts_the_count_anew() -> None:
    history = [past(True), past(False, remedied=True), past(False)]
    assert deaths_in_step(history) == 1
    assert of_death(known(failure_report_of(), history * 1, "native_crash")).goes_on
    alike = [past(True), past(False), past(False), past(False)]
    assert not of_death(known(failure_report_of(), alike, "native_crash")).goes_on


@given(
    some.lists(
        some.tuples(some.booleans(), some.booleans(), some.sampled_from(["rows", "setting", "transient", "uncertain"])), max_size=300
    )
)
def test_a_run_without_progress_always_ends(history: list[tuple[bool, bool, str]]) -> None:
    """Whatever the lab says, and however often: twenty attempts without a new step end a run."""
    pasts: list[PastAttempt] = []
    barren = 0
    for progressed, other, kind in history:
        barren = 0 if progressed else barren + 1
        pasts.append(PastAttempt(5, "native_crash" if other else "unknown", "error", None, progressed))
        diagnosis, failure_report = Diagnosis(pasts[-1].cause, 0.5), failure_report_of()
        decision = of_death(known(failure_report, pasts, diagnosis))
        if not decision.goes_on or wants_experiments(failure_report, pasts):
            decision = of_verdict(
                known(failure_report), Verdict(kind, 3, 1.0, "seen", remedy="quarantine" if kind == "rows" else "x"), decision
            )
        remedied = decision.remedy not in ("resume", "none")
        pasts[-1] = PastAttempt(5, pasts[-1].cause, "error", None, progressed, remedied)
        assert barren <= 20 + sum(one.remedied for one in pasts)
        if not decision.goes_on:
            return
        if barren > 0 and not any(one.remedied for one in pasts):
            assert barren < 20


def test_a_step_that_fails_now_and_then_is_given_more_starts() -> None:
    seen = PastAttempt(5, "native_crash", "error", None, False, by_chance=True)
    alike = [past(True), seen, *[past(False)] * 2]
    assert of_death(known(failure_report_of(), alike, "native_crash")).goes_on
    assert not wants_experiments(failure_report_of(), alike), "the odds are known"
    alike += [past(False)] * 5
    assert not of_death(known(failure_report_of(), alike, "native_crash")).goes_on


REMEDIES = list(cards_of("remedies").values())
CAUSES = ["native_crash", "hang", "gpu_kernel_fault"]


@settings(max_examples=500, deadline=None)
@given(some.lists(some.tuples(some.integers(1, 30), some.sampled_from(CAUSES), some.booleans()), max_size=40))
def test_a_refuted_remedy_is_never_tried_again(deaths: list[tuple[int, str, bool]]) -> None:
    """Deaths come at any step and of any cause; sometimes the first remedy in order is seen to help there."""
    journal: list[dict[str, Any]] = []
    step = 1
    for further, cause, helps in deaths:
        step += further
        wrong = refuted(journal)
        tried = in_order(REMEDIES, cause, {}, set(wrong), allow_cpu=False)
        assert not {card.id for card in tried} & wrong.keys()
        if helps and tried:
            journal.append({"event": "remedy_applied", "remedy": tried[0].id, "step": step, "cause": cause})
        journal.append({"event": "attempt_ended", "step": step + 1, "diagnosis": {"cause": cause}, "decision": {}})
        if helps and tried:
            assert tried[0].id in refuted(journal), "it came back at once"


@pytest.mark.parametrize("gpus", [[], [{"vendor": "nvidia"}]])
@pytest.mark.parametrize("allowed", [False, True])
def test_the_cpu_is_the_last_resort_of_a_machine_with_a_gpu_where_the_user_allows_it(gpus: list[Any], allowed: bool) -> None:
    offered = [card.id for card in in_order(REMEDIES, "gpu_kernel_fault", {"gpus": gpus}, set(), allow_cpu=allowed)]
    assert ("cpu" in offered) == bool(gpus and allowed)
    assert "cpu" not in offered[:-1], "all others come before it"
    amd = {card.id for card in REMEDIES if card.device == "amd"}
    assert {card.id for card in REMEDIES} - set(offered) <= {"cpu"} | (amd if gpus else set())


@pytest.mark.parametrize(
    ("vendors", "offered"), [(["nvidia"], False), (["amd"], True), ([None], True), (["nvidia", "amd"], True), ([], True)]
)
def test_remedies_of_another_vendor_are_not_tried(vendors: list[str | None], offered: bool) -> None:
    """Each costs the start of a process. Where the vendor is not known, or there is no GPU, they come last."""
    tried = in_order(REMEDIES, "unknown", {"gpus": [{"vendor": one} for one in vendors]}, set(), allow_cpu=False)
    assert bool([card for card in tried if card.device == "amd"]) == offered


# ---- a trial that cannot be ended


class Unkillable:
    """Stands in for a child that waits inside the kernel for ever: SIGKILL does not reach it."""

    pid, stdin = 4711, None

    def kill(self) -> None: ...

    def poll(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "this waits without an end"
        raise subprocess.TimeoutExpired("trainer", timeout)


def test_a_trial_that_cannot_be_ended_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    host: Any = object.__new__(Host)
    host.child = Unkillable()
    hosts = Hosts(RunFolder(tmp_path), 5, {}, 60.0, print, lambda: False)
    hosts.living = {"": host}
    lab = Lab(hosts.run, 5, settings_with(), hosts.replay, 60)
    lab.trials = 7
    verdict = concluded(lab, hosts, lambda: Verdict("setting", 7, 1.0, "seen"))
    assert (verdict.kind, verdict.trials) == ("stuck", 7)
    before = of_death(known(failure_report_of(), [past(True), past(False)], "native_crash"))
    decision = of_verdict(known(failure_report_of()), verdict, before)
    assert not decision.goes_on
    assert decision.reason == "a trial's process (process 4711) is stuck in the kernel: it is still there 30 s after SIGKILL"


# ---- real runs

STEPS = 14


@pytest.fixture
def poisoned(config_of: Write, assets: SimpleNamespace, tmp_path: Path) -> Callable[..., tuple[Path, Path, int, int]]:
    """(config, faults, the poisoned row, its line) for one row that spoils every micro-batch it is in, from step 6 on."""

    def make(effect: str, **more: Any) -> tuple[Path, Path, int, int]:
        config = config_of(train={"steps": STEPS}, run={"hang_s": 15.0, **more})
        probe = holdfast("train", config, "train.steps=7", "--run", tmp_path / "probe")
        assert probe.returncode == 0, probe.stderr
        row = lines(tmp_path / "probe/steps.jsonl")[5]["samples"][3]
        faults = tmp_path / "f.yaml"
        faults.write_text(json.dumps([{"name": "poison", "when": {"sample": f"rows.jsonl:{row + 1}"}, "effect": effect}]))
        return config, faults, row, row + 1

    return make


LONG = pytest.mark.long


@pytest.mark.parametrize("effect", ["abort", "nan_loss", *(pytest.param(name, marks=LONG) for name in ("hang", "oom", "raise"))])
def test_a_poisoned_row_is_found_and_nothing_else_is_lost(
    poisoned: Callable[..., tuple[Path, Path, int, int]], tmp_path: Path, effect: str
) -> None:
    config, faults, row, line = poisoned(effect)
    run = tmp_path / "run"
    done = holdfast("train", config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [entry["line"] for entry in summary["quarantined"]] == [line], summary["quarantined"]
    assert len(list(run.glob("trials/*/trial.json"))) <= 20
    assert [step["step"] for step in lines(run / "steps.jsonl")] == list(range(1, STEPS + 1))
    at = events(run, "remedy_applied")[0]["step"]
    assert not events(run, "remedy_refuted"), "the death that led to the remedy does not speak against it"
    assert all(row not in step["samples"] for step in lines(run / "steps.jsonl")[at - 1 :])
    entry = lines(run / "quarantine.jsonl")[0]
    assert entry["file"].endswith("rows.jsonl") and "fails alone and in other company" in entry["evidence"]
    incident = summary["incidents"][-1]
    assert incident["remedy"] == "quarantine" and f":{line}" in incident["evidence"]
    other = run_with_timeline_of(run, config, tmp_path / "never")
    assert other["artifact_sha256"] == summary["artifact_sha256"]


@pytest.mark.parametrize(
    ("when", "remedy", "setting"),
    [
        pytest.param({"step": 5, "setting": {"attention": "sdpa"}}, "eager-attention", {"attention": "eager"}, marks=LONG),
        ({"step": 5, "env": {"HSA_ENABLE_SDMA": None}}, "sdma-off", {"env": {"HSA_ENABLE_SDMA": "0"}}),
        pytest.param({"step": 5, "tokens": [150, 10_000]}, "smaller-micro-batch", None, marks=LONG),
    ],
    ids=["setting", "environment", "shape"],
)
def test_the_change_that_helps_is_found_and_kept(config_of: Write, tmp_path: Path, when: Any, remedy: str, setting: Any) -> None:
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    message = "CUDA out of memory is what this message claims"  # it misleads: memory has nothing to do with it
    faults.write_text(json.dumps([{"name": "hidden", "when": when, "effect": "abort", "message": message}]))
    config = config_of(train={"steps": 8, "micro_batch_tokens": 200})
    done = holdfast("train", config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    applied = events(run, "remedy_applied")
    assert [event["remedy"] for event in applied] == [remedy], applied
    assert not events(run, "remedy_refuted")
    assert json.loads(done.stdout)["quarantined"] == [], "no row is accused"
    learned = lines(run / "timeline.jsonl")[-1]
    assert learned["from_step"] in (4, 5), "step 4 counts only when its snapshot does, and step 5 is under way by then"
    assert setting is None or learned["settings"] == setting


@LONG
def test_a_conjunction_nobody_was_told_of_is_broken(config_of: Write, tmp_path: Path) -> None:
    """Fused attention and bf16 and 400 to 430 tokens together: whatever breaks one of the three cures it, and no row is accused."""
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    when = {"tokens": [400, 430], "setting": {"attention": "sdpa", "dtype": "bf16"}}
    message = "HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul"
    faults.write_text(json.dumps([{"name": "gemm", "when": when, "effect": "abort", "message": message}]))
    train = {"steps": 5, "precision": "bf16", "effective_batch": 24, "micro_batch_tokens": 430}
    done = holdfast("train", config_of(train=train), "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    applied = events(run, "remedy_applied")
    assert applied and {event["remedy"] for event in applied} <= {"smaller-micro-batch", "eager-attention", "fp32", "no-packing"}
    assert json.loads(done.stdout)["quarantined"] == []


@LONG
@pytest.mark.parametrize("effect", ["kill", "abort"])
def test_a_silent_death_is_traced_to_its_setting(config_of: Write, tmp_path: Path, effect: str) -> None:
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    when = {"step": 4, "setting": {"attention": "sdpa"}}
    faults.write_text(json.dumps([{"name": "hidden", "when": when, "effect": effect, "message": " "}]))
    done = holdfast("train", config_of(train={"steps": 6}), "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    assert [event["remedy"] for event in events(run, "remedy_applied")] == ["eager-attention"]
    assert json.loads(done.stdout)["quarantined"] == []


@LONG
@pytest.mark.parametrize(
    ("accused", "more"),
    [((3,), {"effect": "abort", "late": 1}), ((2, 5), {"effect": "raise"})],
    ids=["a micro-batch late", "two rows together"],
)
def test_rows_are_found_where_the_error_is_not_theirs_alone(
    config_of: Write, tmp_path: Path, accused: tuple[int, ...], more: dict[str, Any]
) -> None:
    """The error comes in the micro-batch after the guilty row's, or only where two rows meet in one."""
    faults, run, probe = tmp_path / "f.yaml", tmp_path / "run", tmp_path / "probe"
    budget = 90 if "late" in more else 1000
    config = config_of(train={"steps": 6, "micro_batch_tokens": budget})
    assert holdfast("train", config, "train.steps=4", "--run", probe).returncode == 0
    samples = lines(probe / "steps.jsonl")[3]["samples"]
    rows = [samples[at] for at in accused]
    named = [f"rows.jsonl:{row + 1}" for row in rows]
    faults.write_text(json.dumps([{"name": "f", "when": {"step": 4, "sample": named}, **more}]))
    done = holdfast("train", config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(entry["line"] for entry in json.loads(done.stdout)["quarantined"]) == sorted(row + 1 for row in rows)
    assert [step["step"] for step in lines(run / "steps.jsonl")] == list(range(1, 7))


@LONG
def test_what_fails_every_seventh_time_accuses_nobody(config_of: Write, tmp_path: Path) -> None:
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    faults.write_text(json.dumps([{"name": "seventh", "when": {"every": 7}, "effect": "raise"}]))
    config = config_of(train={"steps": 6, "micro_batch_tokens": 110})
    done = holdfast("train", config, "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["attempts"] > 1 and summary["quarantined"] == [] and not events(run, "remedy_applied")


@pytest.mark.long  # tests/supervision/test_loop.py holds the decision
def test_what_does_not_come_back_changes_nothing(config_of: Write, tmp_path: Path) -> None:
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    faults.write_text(json.dumps([{"when": {"attempt": number, "step": 5}, "effect": "abort"} for number in (1, 2)]))
    done = holdfast("train", config_of(train={"steps": 8}), "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    assert not events(run, "remedy_applied") and len(lines(run / "timeline.jsonl")) == 1
    assert "went through in 3 of 3 trials" in json.loads(done.stdout)["incidents"][-1]["evidence"]


def test_a_hang_is_ended_with_its_stacks_in_the_log(config_of: Write, tmp_path: Path) -> None:
    faults, run = tmp_path / "f.yaml", tmp_path / "run"
    faults.write_text(json.dumps([{"when": {"attempt": 1, "step": 5}, "effect": "hang"}]))
    done = holdfast("train", config_of(train={"steps": 8}, run={"hang_s": 10.0}), "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    log = (run / "attempts/001/output.log").read_text()
    assert "most recent call first" in log and "in happen" in log
    assert json.loads(done.stdout)["incidents"][0]["cause"] == "hang"
    assert "no sign of life" in events(run, "attempt_ended")[0]["diagnosis"]["clues"][0]
