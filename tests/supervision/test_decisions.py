"""Pure decisions: ledgers that always end, causes that are not guessed, a plan that adds up, a summary that counts."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.files import Json
from holdfast.base.versions import version
from holdfast.base_model.folder import ModelFacts
from holdfast.book import cards_of
from holdfast.checkup.examine import examine
from holdfast.config.config import Config
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.diagnosis.divergence import FROM_THE_START
from holdfast.planning.plan import make_plan, settings_of
from holdfast.report.summarise import Journals, incidents, of_steps, summarise, wall_seconds
from holdfast.run.plan import Params
from holdfast.run.snapshots.memory_file import file_bytes
from holdfast.run.types import Diagnosis, Ending, FailureReport
from holdfast.supervision.policy.ledgers import OF_TRAINER, PastAttempt
from holdfast.supervision.policy.moves import GiveUp, RollBack
from holdfast.supervision.policy.next_move import of_death, wants_experiments
from support.known import known
from support.plans import MODEL, a_plan


def failure_report(kind: str = "killed", code: int | None = -9, lines: tuple[str, ...] = (), **changes: Any) -> FailureReport:
    facts: dict[str, Any] = {"attempt": 1, "ending": Ending(kind, code), "step": 3, "phase": "step", "samples": (1, 2), "lines": lines}  # type: ignore[arg-type]
    facts |= {"committed_before": 2, "committed_after": 2, "died": 0.0, "memory_available_bytes": 8 << 30, "disk_free_bytes": 8 << 30}
    return FailureReport(**(facts | changes))


def outcome_of(pasts: list[PastAttempt]) -> bool:
    """Whether the run goes on after this history."""
    ended = failure_report(pasts[-1].kind, -9 if pasts[-1].from_outside else -11 if pasts[-1].kind == "killed" else 1)
    return of_death(known(ended, pasts, Diagnosis(pasts[-1].cause, 0.5))).goes_on


def test_a_hundred_deaths_with_progress_do_not_stop_a_run() -> None:
    assert outcome_of([PastAttempt(5, "unknown", "killed", None, True)] * 100)


def test_the_same_error_without_progress_ends_after_its_limit() -> None:
    past = PastAttempt(5, "unknown", "error", None, False)
    assert outcome_of([past] * (OF_TRAINER.same - 1))
    assert not outcome_of([past] * OF_TRAINER.same)


@pytest.mark.parametrize(
    ("step", "before", "after", "told"),
    [
        (3, 2, 2, "at step 3"),
        (None, 0, 39, "after step 39"),
        (None, 39, 39, "before its first step"),
        (None, 0, 0, "before its first step"),
    ],
)
def test_where_an_attempt_ended_is_told_by_what_is_left_of_it(step: int | None, before: int, after: int, told: str) -> None:
    """After a power cut the pulse is gone and the committed steps are there."""
    ended = failure_report("vanished", None, step=step, committed_before=before, committed_after=after)
    move = of_death(known(ended, [PastAttempt(after, "unknown", "vanished", None, after > before, from_outside=True)], "unknown"))
    assert move.goes_on and told in move.reason


def test_kills_from_outside_are_met_with_more_patience() -> None:
    past = PastAttempt(5, "unknown", "killed", None, False, from_outside=True)
    assert outcome_of([past] * (OF_TRAINER.from_outside - 1))
    assert not outcome_of([past] * OF_TRAINER.from_outside)


@pytest.mark.parametrize(
    ("kind", "code", "outside"),
    [
        *(("killed", -getattr(signal, name), True) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")),
        *(("killed", -getattr(signal, name), False) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU")),
        ("vanished", None, True),
        ("never_started", None, True),
        ("hang", -9, False),  # it was us who killed it
        ("error", 137, True),  # as a shell tells of a SIGKILL
        ("error", 139, False),
        ("error", 1, False),
        ("error", 0, False),
    ],
)
def test_only_what_others_did_is_from_outside(kind: str, code: int | None, outside: bool) -> None:
    ending = Ending(kind, code)  # type: ignore[arg-type]
    assert ending.from_outside == outside
    died = PastAttempt(5, "unknown", kind, None, False, from_outside=ending.from_outside)
    goes_on = of_death(known(failure_report(kind, code), [died] * OF_TRAINER.same, "unknown")).goes_on
    assert goes_on == outside, "the program's own deaths are tried three times, others eight times"
    if kind != "never_started":
        assert [wants_experiments(failure_report(kind, code), [died] * deaths) for deaths in (1, 2, 3)] == [False, not outside, True]


@given(st.lists(st.booleans(), min_size=3, max_size=OF_TRAINER.barren))
def test_deaths_reach_the_lab_in_whatever_order_they_come(from_outside: list[bool]) -> None:
    """At the third death in a step at the latest, and after each look at every second one."""
    history: list[PastAttempt] = []
    looks = []
    for at, outside in enumerate(from_outside, 1):
        ended = failure_report("killed", -9 if outside else -6)
        history.append(PastAttempt(3, "unknown", "killed", None, False, from_outside=outside))
        if wants_experiments(ended, history):
            history[-1] = replace(history[-1], investigated=True)
            looks.append(at)
    assert looks[0] in (2, 3)
    assert all(later - one == 2 for one, later in pairwise(looks)) and len(from_outside) - looks[-1] < 2


def test_words_about_a_full_disk_end_no_run_whose_disk_takes_bytes() -> None:
    said = failure_report("killed", -6, ("OSError: [Errno 28] No space left on device: '/scratch/x'",), disk_free_bytes=77 * 10**9)
    diagnosis = diagnose_failure(said, cards_of("failures"))
    assert "77.0 GB free" in " ".join(diagnosis.words()) and diagnosis.confidence < 0.7
    past = PastAttempt(3, diagnosis.cause, "killed", None, False)
    assert of_death(known(said, [past], diagnosis)).goes_on
    assert wants_experiments(said, [past] * 2)
    measured = replace(said, disk_free_bytes=0)
    assert not of_death(known(measured, [past], diagnose_failure(measured, {}))).goes_on


def test_words_about_an_unreadable_checkpoint_end_no_run_either() -> None:
    said = failure_report("error", 1, ("safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",))
    found = Diagnosis("checkpoint_unreadable", 0.9)
    assert of_death(known(said, [PastAttempt(3, found.cause, "error", None, False)], found)).goes_on
    told = failure_report("no_state", 65)
    again = of_death(known(told, [PastAttempt(3, found.cause, "no_state", None, False)], found))
    assert isinstance(again, RollBack) and again.to == 0, "the beginning is near"
    told = failure_report("no_state", 65, committed_after=FROM_THE_START + 1)
    assert not of_death(known(told, [PastAttempt(3, found.cause, "no_state", None, False)], found)).goes_on


def test_what_the_trainer_refuses_is_not_tried_again() -> None:
    ended = failure_report("refused", 68)
    ended = replace(ended, ending=Ending("refused", 68, None, {"cause": "no_learning_signal", "reason": "nothing to learn"}))
    diagnosis = diagnose_failure(ended, {})
    assert diagnosis.cause == "no_learning_signal"
    decision = of_death(known(ended, [PastAttempt(5, diagnosis.cause, "refused", None, True)], diagnosis))
    assert decision == GiveUp("nothing to learn")


def test_alternating_causes_without_progress_end_too() -> None:
    pasts = [PastAttempt(5, "a" if at % 2 else "b", "killed", None, False) for at in range(OF_TRAINER.barren)]
    assert outcome_of(pasts[:-1])
    assert not outcome_of(pasts)


@given(
    st.lists(
        st.builds(
            PastAttempt, st.just(5), st.sampled_from("abc"), st.sampled_from(["killed", "error", "nonfinite"]), st.just(()), st.just(False)
        ),
        min_size=OF_TRAINER.barren,
    )
)
def test_no_history_without_progress_goes_on_for_ever(pasts: list[PastAttempt]) -> None:
    assert not all(outcome_of(pasts[:length]) for length in range(1, len(pasts) + 1))


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (failure_report(), "unknown"),
        (failure_report(memory_available_bytes=100 << 20), "host_out_of_memory"),
        (failure_report(code=-signal.SIGSEGV), "native_crash"),
        (failure_report(code=-signal.SIGBUS), "shared_memory_exhausted"),
        (failure_report("nonfinite", 64), "nonfinite_numerics"),
        (failure_report("error", 1, ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate",)), "gpu_out_of_memory"),
        (failure_report("error", 1, ("For debugging consider passing CUDA_LAUNCH_BLOCKING=1 when out of memory",)), "unknown"),
        (failure_report("error", 1, ("OSError: [Errno 28] No space left on device",)), "disk_full"),
        (failure_report("error", 1, ("ValueError: something else",)), "unknown"),
        (failure_report(disk_free_bytes=0), "disk_full"),
        (failure_report("vanished", None), "unknown"),
    ],
)
def test_a_cause_comes_from_the_ending_before_the_text(ended: FailureReport, cause: str) -> None:
    assert diagnose_failure(ended, cards_of("failures")).cause == cause


CONFIG = Config.model_validate({"model": "m", "data": {"files": "f"}})


def test_a_plan_adds_up() -> None:
    plan = make_plan(CONFIG, MODEL, {"memory_bytes": 32 << 30}, {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000})
    assert plan.peak_bytes == plan.bytes.total()
    assert plan.bytes.snapshot == file_bytes(4 * 8 * 320, 8 * 8 * 320), "they lie in main memory, as all else"
    gpu = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 80 << 30}], "memory_bytes": 32 << 30}
    assert make_plan(CONFIG, MODEL, gpu, {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}).bytes.snapshot == 0
    assert plan.params == Params(total=64000 + 4096 + 8192 + 64, trainable=8 * (128 + 192))
    assert plan.fits is True
    assert 100 <= plan.micro_batch_tokens <= 3200


def test_a_card_is_planned_for_the_attention_a_run_will_have_there() -> None:
    asked = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"precision": "bf16"})})
    lengths = {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}
    card: Json = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 80 << 30}]}

    def activations(torch: str, model: ModelFacts = MODEL, fused: bool = True) -> int:
        facts = card | {"torch": {"version": torch, "backend": "cuda"}}
        size: int = make_plan(asked, model, facts, lengths, fused).bytes.activations
        return size

    capped = replace(MODEL, config=MODEL.config | {"attn_logit_softcapping": 50.0})
    at_once, apart, plainly = activations("2.13.0+cu130"), activations("2.4.1+cu121"), activations("2.13.0+cu130", fused=False)
    assert at_once < apart < plainly < activations("2.13.0+cu130", capped)


def test_a_smaller_machine_gets_smaller_micro_batches_down_to_one_row() -> None:
    lengths = {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}
    sizes = [make_plan(CONFIG, MODEL, {"memory_bytes": size << 20}, lengths).micro_batch_tokens for size in (4096, 780, 760, 64)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 100
    assert make_plan(CONFIG, MODEL, {"memory_bytes": 64 << 20}, lengths).fits is False
    assert make_plan(CONFIG, MODEL, {}, lengths).fits is None, "unknown memory is unknown"


def test_a_micro_batch_is_no_larger_than_the_largest_step() -> None:
    lengths = {"max": 100, "mean": 50.0, "rows": 1000}
    small, large = (make_plan(CONFIG, MODEL, {}, lengths | {"step": step}) for step in (700, 1900))
    assert (small.micro_batch_tokens, large.micro_batch_tokens) == (700, 1900)
    assert small.peak_bytes < large.peak_bytes
    assert make_plan(CONFIG, MODEL, {}, lengths | {"step": 10**6}).micro_batch_tokens == 2048


def test_layers_are_computed_again_only_as_memory_asks() -> None:
    lengths = {"max": 4000, "mean": 50.0, "rows": 1000, "step": 9000}
    plans = [make_plan(CONFIG, MODEL, {"memory_bytes": size << 20}, lengths) for size in (4096, 820, 810, 790, 64)]
    layers = [plan.checkpointed_layers for plan in plans]
    assert layers == sorted(layers) and layers[0] == 0 and layers[-1] == 2 and max(layers[1:4]) > 0
    told = [f"{plan.checkpointed_layers} layers are computed again" in " ".join(plan.reasons) for plan in plans]
    assert told == [count > 0 for count in layers]
    asked = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"checkpointed_layers": 1})})
    assert make_plan(asked, MODEL, {"memory_bytes": 4096 << 20}, lengths).checkpointed_layers == 1


def test_weights_stored_in_sixteen_bits_are_planned_at_that_width() -> None:
    lengths = {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}
    wide, narrow = (make_plan(CONFIG, replace(MODEL, stored=stored), {}, lengths).bytes.weights for stored in ("F32", "BF16"))
    assert wide == 2 * narrow


@pytest.mark.parametrize(
    ("machine", "limit", "expected"),
    [
        ({"memory_bytes": 1000, "gpus": []}, None, 950),
        ({"memory_bytes": 1000, "gpus": [{"integrated": True}]}, None, 950),
        ({"memory_bytes": 1000, "gpus": [{"integrated": False}]}, None, None),
        ({"memory_bytes": 1000, "gpus": [{"arch": "gfx1201", "memory_bytes": 200}]}, None, 180),  # its driver hangs the machine
        ({"memory_bytes": 1000, "gpus": [{"arch": "gfx1100", "memory_bytes": 200}]}, None, None),
        ({"memory_bytes": 1000}, "100MiB", 100 << 20),
        ({}, None, None),
    ],
)
def test_memory_is_capped_where_running_out_of_it_freezes_a_machine(
    machine: dict[str, Any], limit: str | None, expected: int | None
) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"memory_limit": limit}})
    assert settings_of(config, a_plan(), machine, 2, 1, 1).memory_limit_bytes == expected


@pytest.mark.parametrize(("gpus", "chosen", "expected"), [([], None, True), ([{}], None, False), ([{}], True, True), ([], False, False)])
def test_determinism_is_the_default_on_the_cpu_only(gpus: list[Any], chosen: bool | None, expected: bool) -> None:
    config = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"deterministic": chosen})})
    assert settings_of(config, a_plan(), {"gpus": gpus}, 2, 1, 1).deterministic is expected


@pytest.mark.parametrize(
    ("facts", "identifier"),
    [
        ({"torch": None, "torch_error": "No module named 'torch'"}, "torch-import"),
        ({"torch": {"version": "2.3.1+rocm6.0"}}, "torch-version"),
        ({"torch": {"version": "2.5.1+rocm6.2"}, "packages": {"transformers": "5.23.0"}}, "transformers-torch"),
        ({"torch": {"version": "2.6.0"}, "packages": {"transformers": "4.50.1"}}, "transformers-version"),
        ({"torch": {"version": "2.6.0"}, "packages": {"transformers": "5.0.0", "peft": None}}, "packages-missing"),
        ({"torch": {"version": "2.6.0"}, "disk_free_bytes": 1 << 19}, "disk-space"),
    ],
)
def test_what_cannot_work_blocks_with_the_command_that_mends_it(facts: dict[str, Any], identifier: str) -> None:
    findings = {finding.id: finding for finding in examine(facts, CONFIG)}
    assert findings[identifier].severity == "block"
    assert findings[identifier].fix


def test_a_healthy_machine_has_nothing_to_block() -> None:
    facts = {"torch": {"version": "2.13.0+cpu"}, "packages": {"transformers": "5.23.0", "peft": "0.21.2"}, "disk_free_bytes": 9 << 30}
    assert {finding.severity for finding in examine(facts, CONFIG)} == {"info"}


def test_versions_compare_as_numbers() -> None:
    assert version("2.13.0+cpu") == (2, 13, 0) > version("2.6.0a0+git") == (2, 6, 0)
    assert version("unknown") == ()


def lost_by(*ends: tuple[int, int, int | None, str], restored: dict[int, int]) -> list[int]:
    """The steps lost by each end (committed before, committed after, step in flight, remedy), where attempts restored these steps."""
    decided = {"diagnosis": {"cause": "unknown", "clues": []}}
    reports = [
        failure_report(attempt=number, committed_before=before, committed_after=after, step=step).as_json()
        | decided
        | {"decision": {"remedy": remedy}}
        for number, (before, after, step, remedy) in enumerate(ends, 1)
    ]
    events: list[Json] = [
        {"event": "restored", "attempt": number, "step": step, "state": f"the checkpoint of step {step}"}
        for number, step in restored.items()
    ]
    return [one["lost_steps"] for one in incidents([], events, reports)]


def test_each_step_that_is_computed_again_is_counted_once() -> None:
    """By hand: 1 to 50, then 41 to 45, then from 45 on. Each start that came to nothing counted them all: 26 for 11."""
    died, came_to_nothing, died_behind = (0, 50, 51, "resume"), (50, 50, None, "resume"), (50, 50, 46, "resume")
    assert lost_by(died, came_to_nothing, died_behind, restored={1: 0, 3: 40, 4: 44}) == [10, 0, 1]
    assert lost_by(died, died_behind, (50, 53, 54, "resume"), restored={1: 0, 2: 40, 3: 45, 4: 53}) == [10, 0, 0]
    assert lost_by((0, 5, 6, "resume"), (5, 5, 5, "rollback"), restored={1: 0, 3: 3}) == [0, 2], "the rollback took them, not the kill"
    assert lost_by((0, 180, 181, "rollback"), restored={1: 0, 2: 100}) == [80]


def test_wall_time_leaves_out_hours_nobody_was_in_charge() -> None:
    launches = {1: {"started": 0.0, "session": "a"}, 2: {"started": 12.0, "session": "a"}, 3: {"started": 1000.0, "session": "b"}}
    endings: dict[int, dict[str, Any]] = {1: {"ended": 10.0}, 2: {"ended": 20.0}, 3: {"ended": 1005.0}}
    assert wall_seconds(launches, endings) == 25.0


def test_wall_time_leaves_out_the_pause_after_an_end_that_nobody_saw() -> None:
    """Supervisor and trainer were killed together; somebody came back five minutes later."""
    launches = {1: {"started": 0.0, "session": "a"}, 2: {"started": 300.0, "session": "b"}}
    assert wall_seconds(launches, {1: {}, 2: {"ended": 310.0}}, {1: 8.0, 2: 309.0}) == 18.0
    assert wall_seconds(launches, {1: {}, 2: {"ended": 310.0}}) == 10.0
    called_off = {1: {"ended": 299.0, "called_off": True}, 2: {"ended": 310.0}}
    assert wall_seconds(launches, called_off) == 10.0, "nor of one that never began, as was found then"
    supervised = {1: launches[1], 2: launches[2] | {"session": "a"}}
    assert wall_seconds(supervised, {1: {}, 2: {"ended": 310.0}}, {1: 8.0}) == 310.0, "it was watched all the while"


def test_a_summary_counts_what_the_journals_say() -> None:
    steps = [
        {
            "step": k,
            "loss": 3.0 / k,
            "seconds": 2.0,
            "tokens": 100,
            "samples": [1, 2],
            "peak_bytes": k,
            "attempt": 1 if k < 3 else 2,
            "time": 10.0 * k,
        }
        for k in (1, 2, 3)
    ]
    ended = failure_report(committed_before=0, died=20.7654).as_json() | {
        "diagnosis": {"cause": "unknown", "confidence": 0.0, "clues": ["killed by SIGKILL"]},
        "decision": {"remedy": "resume", "reason": "", "go_on": True},
    }
    restored: list[dict[str, Any]] = [{"event": "restored", "attempt": 2, "step": 1, "state": "the checkpoint of step 1"}]
    restored += [{"event": "run_created", "seconds": 3.0}, {"event": "final_evaluation_ended", "seconds": 2.0}]
    told = Journals(
        steps,
        restored,
        failure_reports=[ended],
        launches={1: {"started": 0.0, "session": "a"}, 2: {"started": 22.0, "session": "a"}},
        endings={1: {"ended": 21.0}, 2: {"ended": 40.0}},
    )
    known_beside = of_steps(
        told,
        health=[],
        evaluation={},
        evaluations=[{"step": 2, "loss": 1.5, "seconds": 0.5}, {"step": 3, "loss": None, "seconds": 0.25}],
        stopped_early=None,
        quarantined=[{"file": "rows.jsonl", "line": 3, "reason": "killed", "evidence": "seen", "step": 2}],
        artifact_step=2,
        artifact_sha256="x",
    )
    summary = summarise("finished", None, told, known_beside)
    assert (summary["steps"], summary["samples_seen"], summary["attempts"]) == (3, 6, 2)
    assert summary["loss"] == {"first": 3.0, "last": 1.0, "eval_base": None, "eval_tuned": None}
    assert summary["evaluations"] == {"count": 2, "last_loss": None, "best_step": 2, "best_loss": 1.5, "seconds": 0.75}
    assert summary["goodput"] == pytest.approx(6 / 45, abs=1e-4)
    assert summary["wall_seconds"] == 45.0, "with preparation and evaluation"
    assert summary["tokens_per_second"] == 50.0
    assert summary["quarantined"][0]["line"] == 3
    incident = summary["incidents"][0]
    assert (incident["lost_steps"], incident["seconds_to_recover"]) == (1, 9.235)
    assert incident["evidence"] == "attempt 1: killed by SIGKILL; went on from the checkpoint of step 1, 1 committed step computed again"
