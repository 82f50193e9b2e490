"""Diagnosis from evidence: what outweighs what, logs as they really look, and the command that reads them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, holdfast, needs_shared
from holdfast.book import cards_of
from holdfast.cli.commands.diagnose import exit_code
from holdfast.cli.main import main
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.explain import answer
from holdfast.diagnosis.logs.file import read_log
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.diagnosis.remedy_fitting import elsewhere, fitted
from holdfast.run.types import Diagnosis
from support.each import assert_each
from support.harmless import HARMLESS, HEALTHY, PASSED_BY, SURVIVED

BOOK = cards_of("failures")
NEW_OOM = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total capacity of {} GiB of which {} GiB is free. "
    "Of the allocated memory {} GiB is allocated by PyTorch, and 282.37 MiB is reserved by PyTorch but unallocated."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NO_BITSANDBYTES = """\
bitsandbytes library load error: Configured ROCm binary not found at /env/bitsandbytes/libbitsandbytes_rocm63.so
Traceback (most recent call last):
  File "/env/bitsandbytes/cextension.py", line 313, in <module>
    lib = get_native_library()
  File "/env/bitsandbytes/cextension.py", line 282, in get_native_library
    raise RuntimeError(f"Configured {BNB_BACKEND} binary not found at {cuda_binary_path}")
RuntimeError: Configured ROCm binary not found at /env/bitsandbytes/libbitsandbytes_rocm63.so"""
SAMPLES = (
    '{"text": "CUDA out of memory. Tried to allocate 2.00 GiB"}',
    "Dataset row 3: {'prompt': 'why RuntimeError: CUDA out of memory?', 'completion': 'too many tokens'}",
    '{"messages": [{"role": "user", "content": "I get CUDA out of memory"}, {"role": "assistant", "content": "Use less"}]}',
    "sample 3: ### Question: why do I get torch.OutOfMemoryError: CUDA out of memory? ### Answer: lower the batch size",
    'generated: You see "RuntimeError: CUDA out of memory" when the card is full',
    "<|im_start|>user I get RuntimeError: CUDA out of memory<|im_end|>",
)


def cause_of(log: str, code: int | None = None, **machine: Any) -> str:
    return diagnose(Evidence(tuple(clean_lines(log)), code, machine), BOOK).cause


@pytest.mark.parametrize(
    ("why", "log", "code", "cause"),
    [
        ("a signal says more than a guess in the text", "maybe CUDA out of memory?\nKilled", 137, "host_out_of_memory"),
        ("strace names the signal", "ioctl(3, AMDKFD_IOC_GET_CLOCK_COUNTERS, 0x7f) = 0\n+++ killed by SIGSEGV +++", None, "native_crash"),
        ("zsh tells of a job that died", "loss 2.1\nloss 2.0\n[1]    40217 segmentation fault  python train.py", None, "native_crash"),
        ("zsh tells of a job that was killed", "loss 2.1\n[2]  + 917 killed     python train.py", None, "host_out_of_memory"),
        ("most of the card is another's", NEW_OOM.format("128.00", "0.77", "57.70"), 1, "gpu_memory_unavailable"),
        ("what is free of a full card are fragments", NEW_OOM.format("15.98", "0.62", "14.77"), 1, "gpu_out_of_memory"),
        ("much is free of a card that is not full", NEW_OOM.format("15.98", "6.62", "8.77"), 1, "gpu_memory_unavailable"),
        ("SIGBUS is shared memory, whatever the text", "OSError: [Errno 28] No space left on device: 'x'", -7, "shared_memory_exhausted"),
        (
            "a root beats the crash that follows it",
            f"{OOM}\nterminate called without an active exception\nAborted (core dumped)",
            -6,
            "gpu_out_of_memory",
        ),
        (
            "the first failing rank is the cause, not the ranks that waited",
            f"[rank3]: {OOM}\n[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, Timeout(ms)=600000)",
            1,
            "gpu_out_of_memory",
        ),
        (
            "the first error wins over the one it caused",
            "Exception: Installed CUDA version 11.0 does not match the version torch was compiled with 10.1\n"
            "During handling of the above exception, another exception occurred:\n"
            "TypeError: f() missing 1 required positional argument: 'x'",
            1,
            "native_build_failure",
        ),
        (
            "advice is no evidence",
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1. Try setting expandable_segments:True when CUDA out of memory",
            1,
            "unknown",
        ),
        (
            "advice that is all an error says is evidence",
            "ValueError: Make sure to specify only one of `input_ids` or `inputs_embeds`",
            1,
            "launch_misconfigured",
        ),
        (
            "frames after healthy steps are no health",
            "{'loss': 1.3, 'epoch': 0.1}\n{'loss': 1.2, 'epoch': 0.2}\n"
            '  File "/env/torch/serialization.py", line 379, in save\n    _save(obj, opened_zipfile)',
            None,
            "disk_full",
        ),
        (
            "a loss that doubles at once and stays there is none",
            "\n".join(f"lm_loss: {loss}" for loss in (2.27, 11.1, 10.9)),
            None,
            "divergence",
        ),
        ("a loss that went up and came back is one", "\n".join(f"lm_loss: {loss}" for loss in (2.27, 4.4, 2.2)), None, "healthy"),
        (
            "a warning of something else is not what a program crashed of",
            "WARNING: RuntimeError: CUDA out of memory in the logs of another job\nFatal Python error: Segmentation fault",
            -11,
            "native_crash",
        ),
        ("nor one of NCCL", "NCCL WARN Connection closed by remote peer\nFatal Python error: Aborted", -6, "native_crash"),
        ("an error beside the warning is", f"WARNING: {OOM}\n{OOM}\nFatal Python error: Segmentation fault", -11, "gpu_out_of_memory"),
        (
            "a library that did not load is an option where memory was filled after it",
            f"{NO_BITSANDBYTES}\n{OOM}",
            1,
            "gpu_out_of_memory",
        ),
        (
            "so it is where it was AMD's memory",
            f"flash_attn import failed: flash_attn_2_cuda.so: undefined symbol: _ZN3c1\n{NEW_OOM.format('15.98', '0.62', '14.77')}",
            None,
            "gpu_out_of_memory",
        ),
        (
            "words about memory before it leave it what a program ended by",
            f"WARNING: the last job: {OOM}\n{NO_BITSANDBYTES}",
            1,
            "native_library_mismatch",
        ),
        ("a log written as JSON tells", '{"level": "error", "text": "RuntimeError: CUDA out of memory"}', 1, "gpu_out_of_memory"),
        ("an error that shows its row is one", f"{OOM} in {{'text': 'a b'}}", 1, "gpu_out_of_memory"),
        ("where nothing crashed a warning counts", "WARNING: RuntimeError: CUDA out of memory", 1, "gpu_out_of_memory"),
        ("an exception nobody knows is unknown", "Traceback (most recent call last):\nValueError: the frobnicator is full", 1, "unknown"),
        ("nothing is unknown", "", None, "unknown"),
        ("rubbish is unknown", "\x00\x01\x02\ufffd\ufffd\x7f" * 50, None, "unknown"),
    ],
)
def test_what_outweighs_what(why: str, log: str, code: int | None, cause: str) -> None:
    assert cause_of(log, code) == cause, why


def test_what_a_printed_row_or_a_model_tells_of_happened_to_nobody_here() -> None:
    def check(sample: str) -> None:
        assert cause_of(sample, 1) == "unknown" and cause_of(f"{HEALTHY}\n{sample}", 0) == "healthy"
        assert cause_of(f"{sample}\nTraceback (most recent call last):\nKeyError: 'labels'", 1) == "malformed_data"
        assert cause_of(f"{sample}\n{OOM}", 1) == "gpu_out_of_memory"

    assert_each({sample: sample for sample in SAMPLES}, check)


def test_a_server_s_refusal_is_no_answer_of_a_model() -> None:
    gated = "Access to model google/gemma-2-9b is restricted. You must be authenticated to access it."

    def check(line: str) -> None:
        assert cause_of(line, 1) == "network_unavailable"

    said = (f"Response: 401 Unauthorized. {gated}", f"response: <Response [403]> {gated}", f'Response: {{"error": "{gated}"}}')
    assert_each({line: line for line in (*said, f"Response: HTTP/1.1 401 {gated}", f"Response: status=403 {gated}")}, check)
    for line in (f"Response: {gated}", f"Answer: 401 {gated}", f"Response: 42. {gated}", f"Answer: {OOM}", f"Response: {OOM}"):
        assert cause_of(line, 1) == "unknown", line


def test_unknown_still_shows_where_to_look() -> None:
    found = diagnose(Evidence(tuple(clean_lines("start\nValueError: the frobnicator is full\nbye"))), BOOK)
    assert (found.cause, found.confidence) == ("unknown", 0.0)
    assert (2, "ValueError: the frobnicator is full") in [(clue.line, clue.text) for clue in found.clues]


KIN = "Tensile could not satisfy the hipblaslt matmul heuristic, kernel solution missing"  # words of the book, a line of no card


def test_a_log_that_no_card_knows_is_guessed_from_its_words() -> None:
    found = diagnose(Evidence(tuple(clean_lines(KIN))), {name: card for name, card in BOOK.items() if name != "topic-blas"})
    assert (found.cause, found.cards) == ("blas_library_failure", ())
    assert 0.3 < found.confidence < 0.7
    assert len(found.also) == 2
    assert found.clues[0].text == KIN


def test_a_guess_by_words_brings_no_cards_remedies() -> None:
    cards = cards_of("failures")
    guess = answer(Diagnosis("malformed_data", 0.38), cards)
    assert "No card of the book knows this" in guess["explanation"] and guess["explanation"].endswith("holdfast explain malformed_data")
    assert guess["remedies"] == [] == guess["cards"]
    own = answer(Diagnosis("host_out_of_memory", 0.95), cards)
    assert own["remedies"], "what holdfast saw itself has those of its cause"


def test_a_log_that_says_nothing_of_trouble_is_accused_of_nothing_but_its_kin_are_named() -> None:
    without = {name: card for name, card in BOOK.items() if name != "topic-blas"}
    found = diagnose(Evidence(tuple(clean_lines("Tensile hipblaslt matmul heuristic, kernel solution 7"))), without)
    assert (found.cause, found.confidence, found.also[0][0]) == ("unknown", 0.0, "blas_library_failure")
    assert diagnose(Evidence(tuple(clean_lines("good morning"))), BOOK).also == ()


def test_a_stack_without_a_word_of_trouble_is_guessed() -> None:
    assert (
        cause_of("#1  0x00007f in rocblas_gemm_ex_template() from librocblas.so\n#2  0x00007f in Tensile::hip::SolutionAdapter")
        != "unknown"
    )


def test_the_same_fault_counts_by_the_card_it_is_met_on() -> None:
    fault = "Memory access fault by GPU node-1 (Agent handle: 0x1b) on address 0x7f. Reason: Page not present or supervisor privilege."
    assert cause_of(fault, gpus=[{"arch": "gfx1151"}]) == "driver_or_firmware"
    assert cause_of(fault, gpus=[{"arch": "gfx1100"}]) == "gpu_kernel_fault"


def test_a_log_without_any_trouble_is_not_guessed() -> None:
    assert cause_of("hipblaslt: Tensile matmul heuristic picked solution 17 of the kernel library") == "unknown"


def test_a_traceback_is_read_through_the_box_that_rich_draws() -> None:
    log = """
    │ /env/bitsandbytes/optim/optimizer.py:270 in step               │
    │   268 │   │   │   │   self.prefetch_state(p)                   │
    │ ❱ 270 │   │   │   │   torch.cuda.synchronize()                 │
    """
    assert cause_of(log.replace("    │ ", "│ ")) == "gpu_kernel_fault"


@pytest.mark.parametrize(
    "raw",
    [
        f"\x1b[31m{OOM}\x1b[0m",
        f"[rank3]: {OOM}",
        f"[default7]:{OOM}",
        f"[1,3]<stderr>:{OOM}",
        f"(TrainWorker pid=411, ip=10.0.0.3) {OOM}",
        f"Nov 21 15:58:51 node7 python[411]: {OOM}",
        f"2026-05-13T13:25:57.714781669Z stderr F {OOM}",
        f"trainer-1  | {OOM}",
        f"  3%|#  | 3/99 [00:03<01:00]\r  4%|#  | 4/99 [00:04<01:00]\r{OOM}",
    ],
)
def test_a_line_is_read_through_what_stands_around_it(raw: str) -> None:
    lines = clean_lines(f"first\n{raw}\nlast")
    assert (2, OOM) in [(line.number, line.text) for line in lines]


def test_a_redrawn_progress_bar_counts_once() -> None:
    bar = "\r".join(f" {at}%|#| {at}/100 [00:01<00:09]" for at in range(100))
    assert len(clean_lines(bar)) == 1


def test_the_first_error_of_a_log_far_larger_than_what_is_kept_is_found_with_its_line() -> None:
    noise = "".join(f"{{'loss': 1.{at:06d}, 'epoch': 0.1}} and so on and so forth\n" for at in range(60_000))
    log = f"{noise}Traceback (most recent call last):\n{OOM}\n{noise}".encode()
    lines = read_log(io.BytesIO(log), whole=1 << 16, chunk=1 << 18)
    found = diagnose(Evidence(lines), BOOK)
    assert found.cause == "gpu_out_of_memory"
    assert found.clues[0].line == 60_002
    assert lines[-1].number == 120_002
    assert sum(len(line.text) for line in lines) < len(log) * 0.8, "it was kept whole"


def test_lines_are_read_the_same_whatever_the_chunks() -> None:
    log = "".join(f"line {at}{' Error' if at % 97 == 0 else ''}\n" for at in range(3000)).encode()
    whole = {line.number: line.text for line in read_log(io.BytesIO(log))}
    for chunk in (100, 1000, 7777):
        kept = read_log(io.BytesIO(log), whole=500, chunk=chunk)
        assert all(whole[line.number] == line.text for line in kept)
        numbers = [line.number for line in kept]
        assert numbers == sorted(set(numbers), key=lambda number: number or 0)


@pytest.mark.parametrize("data", [b"", b"\n\n\n", b"\xff\xfe" + OOM.encode("utf-16-le"), bytes(range(256)) * 40, b"x" * 100_000])
def test_no_bytes_are_too_odd_to_be_read(data: bytes) -> None:
    found = diagnose(Evidence(read_log(io.BytesIO(data), whole=4096, chunk=1024)), BOOK)
    assert found.cause == ("gpu_out_of_memory" if OOM.encode("utf-16-le") in data else "unknown")


@pytest.mark.parametrize(
    ("text", "code"),
    [("1", 1), ("137", 137), ("-9", -9), ("SIGKILL", -9), ("SIGKILL (9)", -9), ("139 (SIGSEGV)", 139), ("-7 (SIGBUS)", -7)],
)
def test_an_exit_code_is_taken_as_people_write_it(text: str, code: int) -> None:
    assert exit_code(text) == code


@pytest.mark.parametrize("line", HARMLESS)
def test_what_healthy_programs_print_accuses_nobody(line: str) -> None:
    assert cause_of(line) in ("unknown", "healthy")
    assert cause_of(f"{HEALTHY}\n{line}") in ("unknown", "healthy"), "after healthy steps"
    assert cause_of(f"{line}\n{OOM}") == "gpu_out_of_memory", "it hides a failure"


@pytest.mark.parametrize("line", [*HARMLESS, *SURVIVED])
def test_what_training_went_on_after_accuses_nobody(line: str) -> None:
    assert cause_of(f"{line}\n{HEALTHY}") in ("unknown", "healthy")


def test_what_a_program_printed_and_went_on_after_is_not_why_it_failed() -> None:
    frame = 'Traceback (most recent call last):\n  File "/home/u/metrics.py", line 3, in check\n    raise RuntimeError(told)\n'

    def check(line: str) -> None:
        found = diagnose(Evidence(tuple(clean_lines(f"{line}\n{frame}RuntimeError: the score is below the bar I set")), 1), BOOK)
        assert (found.cause, found.cards) == ("unknown", ())
        assert cause_of(f"{line}\n{frame}{OOM}", 1) == "gpu_out_of_memory"

    assert_each({line: line for line in PASSED_BY}, check)


NVIDIA = ["sm_50", "sm_60", "sm_75", "sm_80", "sm_86", "sm_90"]
CARDS_AND_CODE: dict[str, tuple[list[str], list[str], dict[str, str], bool]] = {
    "code of sm_86 runs on sm_89, as on each RTX 4090": (["sm_89"], NVIDIA, {}, False),
    "assembly of sm_90 does not run on sm_120": (["sm_120"], NVIDIA, {}, True),
    "what can be compiled for later cards is": (["sm_120"], [*NVIDIA, "compute_90"], {}, False),
    "an integrated GPU beside a card that has code": (["gfx1036", "gfx1100"], ["gfx1030", "gfx1100"], {}, False),
    "a sibling under its override": (["gfx1031"], ["gfx1030", "gfx1100"], {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, False),
    "a sibling without it": (["gfx1031"], ["gfx1030", "gfx1100"], {}, True),
}


KFD = {"/dev/kfd": {"exists": False, "readable": False}}
CPU = {"version": "2.9.1+cpu"}
UNREADABLE = {"/dev/kfd": {"exists": True, "readable": False}}
AMD, GEFORCE = {"vendor": "amd", "arch": "gfx1100"}, {"vendor": "nvidia", "arch": "sm_89"}
NODES: dict[str, tuple[dict[str, Any], str]] = {
    "a machine without a GPU": ({"devices": KFD, "gpus": [], "torch": CPU, "packages": {"torch": "2.9.1+cpu"}}, "unknown"),
    "a machine of NVIDIA's": ({"devices": KFD, "gpus": [GEFORCE], "torch": {"version": "2.9.1+cu128", "cuda": "12.8"}}, "unknown"),
    "an AMD GPU beside the one in use": ({"devices": UNREADABLE, "gpus": [GEFORCE, AMD], "torch": {"cuda": "12.8"}}, "unknown"),
    "a container without its GPU's node": ({"devices": KFD, "gpus": [AMD], "torch": {"hip": "6.4"}}, "device_access_denied"),
    "a node of another group": ({"devices": UNREADABLE, "gpus": [AMD], "torch": {"hip": "6.4"}}, "device_access_denied"),
    "a torch for the CPU beside a GPU": ({"gpus": [AMD], "torch": CPU}, "wrong_torch_build"),
}


@pytest.mark.parametrize("name", NODES)
def test_a_machine_is_not_accused_of_what_it_need_not_have(name: str) -> None:
    machine, cause = NODES[name]
    assert cause_of("mine.Low: below the bar", 1, **machine) == cause


@pytest.mark.parametrize("name", CARDS_AND_CODE)
def test_a_card_is_said_to_have_no_code_where_no_code_of_torch_runs_on_it(name: str) -> None:
    archs, listed, env, lacks = CARDS_AND_CODE[name]
    machine = {"gpus": [{"arch": arch} for arch in archs], "torch": {"arch_list": listed}, "env": env}
    assert (cause_of("mine.Low: below the bar", 1, **machine) == "unsupported_gpu_arch") is lacks


def test_a_warning_is_half_as_sure_beside_an_exception_that_no_card_knows() -> None:
    warning = "[W510 14:06:47.879 CUDAGuardImpl.h:119] Warning: CUDA warning: driver shutting down (function destroyEvent)"
    alone = diagnose(Evidence(tuple(clean_lines(warning)), 1), BOOK)
    beside = diagnose(Evidence(tuple(clean_lines(f"{warning}\nRuntimeError: the score is below the bar I set")), 1), BOOK)
    assert alone.cause == beside.cause == "crash_at_exit" and beside.confidence == pytest.approx(alone.confidence / 2, abs=1e-3)


@pytest.mark.parametrize(("arch", "offered"), [("gfx1031", True), ("gfx1103", False), ("gfx906", False), ("gfx90c", False)])
def test_code_of_another_instruction_set_is_offered_to_siblings_alone(arch: str, offered: bool) -> None:
    log = f"rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : {arch}"
    remedies = [remedy.model_dump() for remedy in BOOK["arch-rocblas-tensile"].remedies]
    commands = [remedy["command"] for remedy in fitted(remedies, log, of_holdfast=False)]
    assert ("export HSA_OVERRIDE_GFX_VERSION=10.3.0" in commands) is offered and "holdfast doctor" in commands
    package = [remedy.model_dump() for remedy in BOOK["native-kernel-image"].remedies][:1]
    assert f"torch[device-{arch}]" in fitted(package, log, of_holdfast=False)[0]["command"]


def test_a_guess_goes_by_the_words_around_the_exception() -> None:
    start = "Namespace(dist_backend='nccl', watchdog_timeout=3600, resume='', lora_rank=8, deepspeed=None, fsdp='', local_rank=0)\n" * 8
    told = 'Traceback (most recent call last):\n  File "/home/u/metrics.py", line 3, in check\n    raise Low(told)\nmine.Low: below the bar'
    assert cause_of(f"{start}{told}", 1) == "unknown"


def test_a_warning_counts_where_something_failed() -> None:
    warning = "Some weights of LlamaForCausalLM were not initialized from the model checkpoint at ./base: ['lm_head.weight']"
    assert cause_of(f"{warning} and are newly initialized") == "unknown"
    assert cause_of(f"{warning} and are newly initialized", 1) == "checkpoint_model_mismatch"
    assert cause_of(f"{HEALTHY}\nTraceback (most recent call last):\n{OOM}", 1) == "gpu_out_of_memory"


@needs_shared
@pytest.mark.parametrize("kind", ["healthy", "spike_recovered", "hard_negative"])
def test_a_run_without_failure_is_never_accused(kind: str) -> None:
    for file in sorted((SHARED / "data" / "curves" / kind).glob("*.jsonl")):
        assert cause_of(file.read_text()) in ("healthy", "unknown"), file.name


@needs_shared
def test_most_real_failures_are_named() -> None:
    records = [json.loads(line) for line in (SHARED / "diagnosis" / "failures.jsonl").read_text().splitlines()]
    right = sum(
        cause_of(record["log"], exit_code(str(record["exit"])) if record["exit"] else None) == record["cause"] for record in records
    )
    assert right / len(records) > 0.9


def ask(*arguments: object, stdin: str = "") -> dict[str, Any]:
    done = holdfast("diagnose", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_command_answers_as_agreed(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{OOM}\n")
    answer = ask(log, "--exit-code", "1")
    assert (answer["cause"], answer["clues"][0]) == ("gpu_out_of_memory", {"line": 2, "text": OOM})
    assert 0.5 < answer["confidence"] <= 1
    assert answer["explanation"] and answer["also"] == []
    first = answer["remedies"][0]
    assert set(first) == {"id", "what", "patch", "command", "standing", "source"}
    assert first["patch"] == {"train.micro_batch_tokens": 1024}
    told = holdfast("diagnose", log)
    assert "line 2:" in told.stdout and "train.micro_batch_tokens=1024" in told.stdout


def test_the_machine_speaks_too(tmp_path: Path) -> None:
    log, machine = tmp_path / "train.log", tmp_path / "machine.json"
    log.write_text("something went wrong\n")
    facts = {"machine": {"torch": {"version": "2.5.1+rocm6.2", "arch_list": ["gfx1100"]}, "gpus": [{"arch": "gfx1012"}]}}
    machine.write_text(json.dumps(facts))
    assert ask(log)["cause"] == "unknown"
    assert ask(log, "--machine", machine)["cause"] == "unsupported_gpu_arch"


def test_a_users_own_card_is_heard(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    card = "title: A gremlin\ncause: hardware_fault\nsure: 0.9\nwhy: It bites. It does.\npatterns: [gremlin]\n"
    (tmp_path / "failures" / "gremlin.yaml").write_text(card + "source: [https://example.org/1]\nhits: [a gremlin]\nmisses: [a goblin]\n")
    log = tmp_path / "train.log"
    log.write_text("a gremlin sat on the card\n")
    assert ask(log, "--book", tmp_path)["cards"] == ["gremlin"]
    assert "A gremlin" in holdfast("explain", "gremlin", "--book", tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.log",), "none.log: No such file"),
        (("{folder}",), "not a run folder"),
        (("{log}", "--exit-code", "soon"), "not an exit code"),
        (("{log}", "--machine", "{log}"), "--machine"),
        (("{log}", "--book", "nowhere"), "not a folder"),
    ],
)
def test_what_cannot_be_read_is_told(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("hello\n")
    done = holdfast("diagnose", *(argument.format(folder=tmp_path, log=log) for argument in arguments))
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr


def test_more_unallocated_than_was_asked_for_is_answered_with_growing_segments_and_nothing_twice() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.12 GiB "
        "is free. Of the allocated memory 18.2 GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."
    )
    cards = cards_of("failures")
    for idle, named in ((3.9, True), (1.9, False)):
        answered = answer(diagnose(Evidence(tuple(clean_lines(log.format(idle)))), cards), cards)
        assert answered["cause"] == "gpu_out_of_memory"
        assert any("expandable_segments" in one["command"] for one in answered["remedies"]) is named
        assert len({one["what"].partition(";")[0] for one in answered["remedies"]}) == len(answered["remedies"])


def test_a_run_folder_explains_itself(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: m\ndata: {files: [f]}\n")
    assert ask(tmp_path)["cause"] == "unknown"
    for number, ending in ((1, {"kind": "nonfinite", "code": 64, "facts": {"loss": None}}), (2, {"kind": "error", "code": 1, "facts": {}})):
        attempt = tmp_path / "attempts" / f"{number:03d}"
        attempt.mkdir(parents=True)
        facts = {"attempt": number, "ending": ending, "committed_before": 0, "committed_after": 0, "died": 1.0, "words": "ended"}
        (attempt / "wreck.json").write_text(json.dumps(facts))
        (attempt / "output.log").write_text(f"loading\n{OOM}\n")
    answer = ask(tmp_path)
    assert (answer["cause"], answer["clues"][0]["line"]) == ("gpu_out_of_memory", 2)
    assert [attempt["cause"] for attempt in answer["attempts"]] == ["nonfinite_numerics", "gpu_out_of_memory"]


@pytest.mark.parametrize(
    ("known", "cause", "says"),
    [
        ({}, "unknown", "nothing is known of its loss"),
        ({"loss": {"first": None, "last": None}, "steps": 3}, "unknown", "The run is finished, 3 steps; nothing is known of its loss"),
        (
            {"loss": {"first": 3.0, "last": 2.0}, "doubt": "it ended after 5 of 12 steps"},
            "unknown",
            "The run is finished, but it ended after 5 of 12 steps",
        ),
        ({"loss": {"first": 3.0, "last": 2.9, "eval_base": 3.1, "eval_tuned": 3.1}}, "unknown", "held-out loss is not lower than before"),
        ({"loss": {"first": 3.0, "last": 2.9, "eval_base": 3.1, "eval_tuned": 3.0}}, "healthy", "no failure was seen"),
        ({"loss": {"first": 2.0, "last": 3.0}, "steps": 4}, "unknown", "loss 2 -> 3: higher than it began"),
        ({"loss": {"first": 3.0, "last": 2.0}, "steps": 4}, "healthy", "loss 3 -> 2, and no failure was seen"),
        ({"loss": {"first": 3.0, "last": 2.0}, "steps": 40, "health": []}, "healthy", "nothing was odd about its last steps"),
    ],
)
def test_a_finished_run_is_healthy_by_its_loss_alone(known: dict[str, Any], cause: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: m\ndata: {files: [f]}\n")
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished"} | known))
    answer = ask(tmp_path)
    assert answer["cause"] == cause and says in answer["explanation"]
    assert answer["confidence"] == (0.0 if cause == "unknown" else 0.95)


def test_a_card_is_explained_by_name_by_cause_or_listed() -> None:
    assert "sources: https" in holdfast("explain", "gpu-oom-allocator").stdout
    assert {"(disk-full-enospc; cause: disk_full)", "disk-full-table"} < set(re.split(r"\n| {2,}", holdfast("explain", "disk_full").stdout))
    assert set(holdfast("explain").stdout.split()) >= set(BOOK)
    wrong = holdfast("explain", "gpu-oom-alocator")
    assert (wrong.returncode, "did you mean gpu-oom-allocator?" in wrong.stderr) == (2, True)


TORN = 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    AutoModel.from_pretrained(name)\n'
TORN += "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n"
MISSING = (
    "Traceback (most recent call last):\n  File \"x.py\", line 3, in <module>\n    import {0}\nModuleNotFoundError: No module named '{0}'\n"
)


@pytest.mark.parametrize(
    ("text", "says", "never"),
    [
        (MISSING.format("trl.trainer"), "python -m pip install trl\n", "NAME"),
        (MISSING.format("cv2"), "python -m pip install opencv-python\n", "NAME"),
        (MISSING.format("flash_attn"), "install", "NAME"),
        (TORN, "Download the base model's files again", "holdfast train"),
        (TORN.replace("(name)", "('out/checkpoint-500')"), "Resume from the checkpoint before it", "holdfast train"),
    ],
)
def test_remedies_fit_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str, never: str) -> None:
    (tmp_path / "train.log").write_text(text)
    assert main(["diagnose", str(tmp_path / "train.log"), "--exit-code", "1"]) == 0
    told = capsys.readouterr().out
    assert says in told and never not in told.partition("More:")[0], told


def test_remedies_are_told_in_the_words_of_the_program_whose_log_it_is() -> None:
    remedy = {"id": "fp32", "what": "Compute in fp32", "patch": {"train.precision": "fp32"}, "command": ""}
    assert elsewhere(remedy["patch"]) == ["bf16: false, fp16: false"]
    assert fitted([remedy], "NaN in layer 3", of_holdfast=True) == [remedy]
    assert fitted([remedy], "torch_dtype=torch.float32\nNaN", of_holdfast=False) == [], "it computes in fp32 already"
    assert fitted([remedy], "torch_dtype=torch.float32, bf16=True\nNaN", of_holdfast=False)


def test_every_key_a_card_patches_has_words_for_other_programs() -> None:
    from holdfast.diagnosis.remedy_fitting import _ELSEWHERE

    patched = {key for card in cards_of("failures").values() for remedy in card.remedies for key in remedy.patch}
    assert patched - set(_ELSEWHERE) <= {"train.memory_limit"}, "which no other trainer has"


@pytest.mark.parametrize(
    "bar",
    [
        "Map:   3%|▎         | 40/1200 [00:00<00:10, 100 examples/s]",
        "  5%|▌         | 10/200 [00:10<03:00,  1.05it/s, loss=2.1] ",
        "100%|██████████| 5/5 [00:00<00:00, 322.79it/s]",
        "Epoch 1:   0%|          | 0/125 [00:00<?, ?it/s]",
    ],
)
def test_a_clue_is_the_error_and_not_the_bar_before_it(bar: str) -> None:
    error = "KeyError: 'instruction'"
    found = diagnose(Evidence(tuple(clean_lines(f"{bar}{error}\n")), 1), cards_of("failures"))
    assert error in [clue.text for clue in found.clues]
    assert not any("it/s" in clue.text for clue in found.clues)


@pytest.mark.parametrize(
    ("frame", "says", "never"),
    [
        (
            '  File "/x/site-packages/transformers/trainer.py", line 3, in train\n',
            "per_device_train_batch_size",
            "train.micro_batch_tokens",
        ),
        ('  File "/x/site-packages/holdfast/trainer/step.py", line 3, in step\n', "train.micro_batch_tokens=1024", "per_device_train"),
    ],
)
def test_settings_have_the_names_of_the_program_whose_log_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frame: str, says: str, never: str
) -> None:
    (tmp_path / "train.log").write_text(f"Traceback (most recent call last):\n{frame}{OOM}\n")
    assert main(["diagnose", str(tmp_path / "train.log")]) == 0
    told = capsys.readouterr().out
    assert says in told and never not in told, told


def _what_helps(error: str, *frames: str) -> str:
    text = "Traceback (most recent call last):\n" + "".join(f'  File "{frame}", line 11, in <module>\n' for frame in frames) + error
    card = {"id": "matching-versions", "what": "", "patch": {}, "command": "pip install -U transformers", "standing": "confirmed"}
    return "\n".join(f"{one['what']} {one['command']}" for one in fitted([card], text, of_holdfast=False))


def test_a_renamed_argument_is_told_with_its_new_name_and_place_and_never_with_a_newer_package() -> None:
    renamed = {
        "TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'": "write eval_strategy (train.py:11)",
        "SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'. Did you mean 'max_length'?": "write max_length (",
        "SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'": "pip install 'trl==0.15.*'",
        "Mine.compute_loss() got an unexpected keyword argument 'num_items_in_batch'": "num_items_in_batch=None or **kwargs",
        "TrainingArguments.__init__() got an unexpected keyword argument 'overwrite_output_dir'": "delete overwrite_output_dir",
    }
    for error, wanted in renamed.items():
        told = _what_helps(f"TypeError: {error}", "train.py")
        assert wanted in told and "-U" not in told, told


def test_an_argument_nobody_knows_is_the_scripts_where_the_script_gives_it_and_a_librarys_where_that_does() -> None:
    error = "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'layer_replication'"
    told = _what_helps(error, "train.py")
    assert told.index("rename or delete it in the script") < told.index("print(inspect.signature(peft.LoraConfig))") < told.index("-U")
    told = _what_helps(error, "train.py", "/venv/lib/python3.11/site-packages/peft/config.py")
    assert "-U" in told and "rename" not in told
