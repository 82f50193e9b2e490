"""Checkpoints of other programs are proven whole without running what is in them; a command is told to go on as its card says."""

from __future__ import annotations

import io
import json
import os
import pickle
import shlex
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from holdfast.book import cards_of
from holdfast.diagnosis.logs.counters import Counter
from holdfast.processes.awake import Awake
from holdfast.processes.hang_timeout import HangTimeout
from holdfast.run.types import Diagnosis, Ending, FailureReport
from holdfast.supervision.command.event_files import EventFile
from holdfast.supervision.foreign_checkpoints.newest import candidates, newest_whole, rows_twice, states_since
from holdfast.supervision.foreign_checkpoints.proof import prove
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole
from holdfast.supervision.policy.ledgers import OF_COMMAND, PastAttempt
from holdfast.supervision.policy.moves import Done, Move
from holdfast.supervision.policy.next_move import Known, next_move
from holdfast.supervision.policy.resuming import changed, checkpoints_of, known_by, refused_arguments, resumed, says_unknown


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch sprung",)


def archive(file: Path, value: object = ("lr", 1e-4), protocol: int = 2) -> None:
    with zipfile.ZipFile(file, "w") as held:
        held.writestr("archive/data.pkl", pickle.dumps(value, protocol=protocol))
        held.writestr("archive/data/0", b"\1" * 4096)


def checkpoint(place: Path, step: int = 10) -> Path:
    folder = place / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    save_file({"a": np.ones((4, 3), np.float32), "b": np.ones(5, np.float16)}, folder / "adapter_model.safetensors")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100}))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        archive(folder / name)
    return folder


def cut(file: Path, to: int) -> None:
    os.truncate(file, to)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def infinite(folder: Path, kind: str) -> None:
    save_file({"a": np.array([1.0, np.inf], kind)}, folder / "adapter_model.safetensors")


def shards(folder: Path, there: bool) -> None:
    (folder / "adapter_model.safetensors").unlink()
    save_file({"a": np.ones(2, np.float32)}, folder / "model-00001-of-00002.safetensors")
    if there:
        save_file({"b": np.ones(2, np.float32)}, folder / "model-00002-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


DAMAGE = {
    "whole": (lambda folder: None, None),
    "shards": (lambda folder: shards(folder, True), None),
    "no optimizer, as with save_only_model": (
        lambda folder: [(folder / name).unlink() for name in ("optimizer.pt", "rng_state.pth")],
        None,
    ),
    "weights cut": (lambda folder: cut(folder / "adapter_model.safetensors", 100), "adapter_model.safetensors is torn"),
    "weights empty": (lambda folder: cut(folder / "adapter_model.safetensors", 0), "is torn: 0 bytes"),
    "weights infinite": (lambda folder: infinite(folder, "float32"), "a holds a value that is not finite"),
    "halves infinite": (lambda folder: infinite(folder, "float16"), "a holds a value that is not finite"),
    "weights under a name of their own": (lambda folder: (folder / "adapter_model.safetensors").rename(folder / "w.safetensors"), None),
    "optimizer cut": (lambda folder: cut(folder / "optimizer.pt", 3000), "optimizer.pt is torn"),
    "optimizer flipped": (lambda folder: flip(folder / "optimizer.pt", 2000), "the checksum of archive/data/0 does not match"),
    "optimizer empty": (lambda folder: cut(folder / "optimizer.pt", 0), "optimizer.pt is empty"),
    "no state": (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing"),
    "a NaN and an infinite norm that were logged": (
        lambda folder: (folder / "trainer_state.json").write_text(
            '{"global_step": 10, "log_history": [{"grad_norm": NaN}, {"x": Infinity}]}'
        ),
        None,
    ),
    "state cut": (lambda folder: cut(folder / "trainer_state.json", 9), "trainer_state.json is damaged"),
    "state of another step": (lambda folder: (folder / "trainer_state.json").write_text('{"global_step": 9}'), "is of step 9"),
    "a trap": (lambda folder: archive(folder / "optimizer.pt", Trap()), "would call posix.system"),
    "a trap, newer": (lambda folder: archive(folder / "optimizer.pt", Trap(), 4), "would call posix.system"),
    "a shard missing": (lambda folder: shards(folder, False), "model-00002-of-00002.safetensors is missing"),
    "deepspeed without its part": (lambda folder: (folder / "latest").write_text("global_step10"), "latest names 'global_step10'"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_wrong_with_a_checkpoint_is_seen_without_loading_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = checkpoint(tmp_path)
    damage, says = DAMAGE[name]
    damage(folder)
    if says is None:
        prove(folder, "trainer")
        return
    with pytest.raises(NotWhole, match=says.replace("(", r"\(")):
        prove(folder, "trainer")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("hidden", [".", "trainer_state.json", "optimizer.pt", "adapter_model.safetensors"])
def test_a_checkpoint_that_may_not_be_read_is_not_whole(hidden: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = checkpoint(Path(place))
        (folder / hidden).chmod(0)
        me = os.geteuid()
        if not me:
            os.seteuid(65534)  # root may read anything
        try:
            with pytest.raises(NotWhole, match="cannot be read: Permission denied"):
                prove(folder, "trainer")
        finally:
            os.seteuid(me)
            (folder / hidden).chmod(0o755)


def test_a_file_of_states_that_its_elder_has_must_not_be_missing(tmp_path: Path) -> None:
    elder, younger = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20)
    (younger / "rng_state.pth").unlink()
    found = newest_whole(tmp_path, "trainer", {})
    assert found.path == elder and found.aside[0][1] == "rng_state.pth is missing, which checkpoint-10 has"
    assert (tmp_path / "set-aside-checkpoint-20").is_dir()


def test_weights_that_its_elder_has_must_not_be_missing(tmp_path: Path) -> None:
    elder, younger = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20)
    (younger / "adapter_model.safetensors").unlink()
    found = newest_whole(tmp_path, "trainer", {})
    assert found.path == elder and found.aside[0][1] == "it holds no weights, which checkpoint-10 does"


def test_a_folder_of_any_program_holds_what_its_elder_of_that_name_holds(tmp_path: Path) -> None:
    """A save that was cut off before its first tensors leaves nothing that is torn."""
    elder, newer = checkpoint(tmp_path, 10), checkpoint(tmp_path, 15)
    prove(newer, "files", elder)
    (newer / "rng_state.pth").rename(newer / "rng_state_0.pth")
    with pytest.raises(NotWhole, match=r"rng_state\.pth is missing, which checkpoint-10 has"):
        prove(newer, "files", elder)
    (tmp_path / "best").mkdir()
    (tmp_path / "best/README.md").touch()
    prove(tmp_path / "best", "files", elder)


def saved_by_accelerate(place: Path, name: str, ranks: int = 2) -> Path:
    """What `Accelerator.save_state` leaves: the random states of each process last, and no trainer_state.json."""
    folder = place / name
    folder.mkdir()
    save_file({"a": np.ones((4, 3), np.float32)}, folder / "model.safetensors")
    for file in ("optimizer.bin", "scheduler.bin", *(f"random_states_{rank}.pkl" for rank in range(ranks))):
        archive(folder / file)
    return folder


@pytest.mark.parametrize("names", [("step_9", "step_12"), ("checkpoint-9", "checkpoint-12"), ("checkpoint_9", "checkpoint_12")])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: None, None),
        (lambda folder: (folder / "random_states_1.pkl").unlink(), "random_states_1.pkl is missing"),
        (lambda folder: cut(folder / "random_states_0.pkl", 2000), "random_states_0.pkl is torn"),
        (lambda folder: (folder / "optimizer.bin").unlink(), "optimizer.bin is missing"),
    ],
)
def test_a_state_of_accelerate_is_a_checkpoint_and_is_whole_with_the_files_of_each_process(
    tmp_path: Path, names: tuple[str, str], damage: Any, says: str | None
) -> None:
    elder, newer = (saved_by_accelerate(tmp_path, name) for name in names)
    damage(newer)
    found = newest_whole(tmp_path, "trainer", {})
    assert (found.path, found.step) == ((newer, 12) if says is None else (elder, 9))
    assert [why for _, why in found.aside] == [] if says is None else says in found.aside[0][1]


def test_a_state_of_accelerate_that_was_cut_off_before_its_last_files_is_passed_over(tmp_path: Path) -> None:
    elder, newer = (saved_by_accelerate(tmp_path, name) for name in ("step_9", "step_12"))
    for file in newer.glob("random_states_*"):
        file.unlink()
    assert newest_whole(tmp_path, "trainer", {}).path == elder


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_40", 40), ("epoch=3-step=400.ckpt", 400), ("iter-000800-ckpt.pth", 800), ("model-7.pt", 7),
        ("99999999999999999999.pt", None), ("checkpoint-99999999999999999999", None), ("step=99999999999999999999.ckpt", None),
        ("epoch_3", None), ("epoch=3.ckpt", None), ("model-epoch03-val_loss0.25.ckpt", None), ("last.pt", None),
    ],
)  # fmt: skip
def test_a_number_in_the_name_of_a_checkpoint_is_its_step_where_it_is_none_of_an_epoch(tmp_path: Path, name: str, step: int | None) -> None:
    (tmp_path / name).mkdir() if "." not in name else archive(tmp_path / name)
    assert candidates(tmp_path, "files") == [(step, tmp_path / name)]


@pytest.mark.parametrize("form", ["trainer", "files"])
def test_an_absurd_checkpoint_beside_real_ones_is_none_of_them(tmp_path: Path, form: str) -> None:
    real = checkpoint(tmp_path)
    for number in ("9" * 20, "9" * 200):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}/trainer_state.json").write_text(f'{{"global_step": {number}, "max_steps": {number}}}')
    (tmp_path / f"checkpoint-{'8' * 20}").touch()
    (tmp_path / "checkpoint-77").touch()
    found = newest_whole(tmp_path, form, {})
    assert (found.path, found.step, found.aside) == (real, 10, ())
    assert [step for step, _ in states_since(tmp_path, 0.0)] == [10]
    (real / "trainer_state.json").write_text(f'{{"global_step": 10, "max_steps": {"9" * 20}}}')
    assert states_since(tmp_path, 0.0) == [(10, None)]


def test_names_of_an_earlier_time_are_kept_when_another_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "set-aside-checkpoint-10").mkdir()
    cut(checkpoint(tmp_path) / "optimizer.pt", 5)
    assert newest_whole(tmp_path, "trainer", {}).aside[0][0].name == "set-aside-checkpoint-10.2"


@pytest.mark.parametrize(
    ("command", "card", "place", "goes_on"),
    [
        ("python t.py --output_dir o", "transformers-trainer", "o", "python t.py --output_dir o RESUME CK"),
        ("python t.py --output_dir=o --bf16", "transformers-trainer", "o", "python t.py --output_dir=o --bf16 RESUME CK"),
        ("python t.py --output_dir o RESUME=x -v", "transformers-trainer", "o", "python t.py --output_dir o RESUME=CK -v"),
        ("python t.py RESUME True --output_dir o", "transformers-trainer", "o", "python t.py RESUME CK --output_dir o"),
        ("torchrun --nproc-per-node 2 t.py --output_dir o", "torchrun", "o", "torchrun --nproc-per-node 2 t.py --output_dir o RESUME CK"),
        ("accelerate launch t.py --output_dir o", "accelerate", "o", "accelerate launch t.py --output_dir o RESUME CK"),
        ("axolotl train c.yml", "axolotl", "from-yaml", "axolotl train c.yml --resume-from-checkpoint=CK"),
        ("llamafactory-cli train c.yaml", "llama-factory", "from-yaml", "llamafactory-cli train c.yaml resume_from_checkpoint=CK"),
        ("trl sft --config c.yaml", "trl", "from-yaml", "trl sft --config c.yaml RESUME CK"),
        ("python u.py --resume last.pt", "resuming-script", None, "python u.py --resume CK"),
        ("tune run r --config c.yaml output_dir=o", "torchtune", "o", "tune run r --config c.yaml output_dir=o"),
        ("make train", None, None, "make train"),
        ("python t.py --output-dir o", "transformers-trainer", "o", "python t.py --output-dir o --resume-from-checkpoint CK"),
        ("uv run axolotl train c.yml", "axolotl", "from-yaml", "uv run axolotl train c.yml --resume-from-checkpoint=CK"),
        ("env A=1 trl sft --output_dir o", "trl", "o", "env A=1 trl sft --output_dir o RESUME CK"),
        ("sh -c 'python t.py --output_dir o'", "transformers-trainer", "o", "sh -c 'python t.py --output_dir o RESUME CK'"),
        (
            'bash -lc \'. e/activate; cd a && A=1 torchrun t.py --output_dir "o u" -n "$N" 2>&1 | tee l\'',
            "torchrun",
            "a/o u",
            'bash -lc \'. e/activate; cd a && A=1 torchrun t.py --output_dir "o u" -n "$N" RESUME CK 2>&1 | tee l\'',
        ),
        ("sh -c 'trl sft RESUME=x --output_dir /o >l'", "trl", "/o", "sh -c 'trl sft RESUME=CK --output_dir /o >l'"),
        ("sh -c 'python t.py --output_dir $O'", "transformers-trainer", None, "sh -c 'python t.py --output_dir $O RESUME CK'"),
        ("sh -c 'cd $A; trl sft --output_dir o'", "trl", None, "sh -c 'cd $A; trl sft --output_dir o RESUME CK'"),
        ("sh -c 'trl dpo --output_dir a; trl sft --output_dir b'", None, None, "sh -c 'trl dpo --output_dir a; trl sft --output_dir b'"),
        ("sh -c 'trl sft \"$@\"' sh --output_dir o", "trl", "o", "sh -c 'trl sft \"$@\"' sh --output_dir o RESUME CK"),
    ],
)
def test_a_command_is_known_and_told_to_go_on_in_its_own_words(command: str, card: str | None, place: str | None, goes_on: str) -> None:
    words = shlex.split(command.replace("RESUME", "--resume_from_checkpoint"))
    found = known_by(words, cards_of("launchers"))
    assert (found.id if found else None) == card
    assert checkpoints_of(words, found, {"output_dir": "from-yaml"}) == place
    assert shlex.join(resumed(words, found, "CK")) == goes_on.replace("RESUME", "--resume_from_checkpoint")


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("t.py: error: unrecognized arguments: --resume_from_checkpoint out/checkpoint-2", True),
        ("Error: No such option: --resume-from-checkpoint (Possible options: --resume)", True),
        ("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--resume_from_checkpoint', 'out']", True),
        ("FATAL Flags parsing error: Unknown command line flag 'resume_from_checkpoint'. Did you mean: resume ?", True),
        ("t.py: error: unrecognized arguments: --learning_rte 3", False),
        ("t.py: error: unrecognized arguments: --no_resume_from_checkpoint", False),
        ("loading weights, --resume_from_checkpoint out/checkpoint-2", False),
    ],
)
def test_a_program_that_does_not_know_an_option_says_so_in_its_parsers_words(line: str, unknown: bool) -> None:
    assert says_unknown(["usage: t.py [-h]", line], "--resume_from_checkpoint") is unknown


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("t.py: error: unrecognized arguments: --lrr 3", True),
        ("t.py: error: the following arguments are required: --model", True),
        ("t.py: error: argument --lr: invalid float value: 'fast'", True),
        ("t.py: error: argument -n/--steps: expected one argument", True),
        ("t.py: error: the port is in use", False),
        ("ValueError: unrecognized arguments: --lrr", False),
        ("", False),
    ],
)
def test_a_command_line_is_refused_in_argparses_last_line(line: str, refused: bool) -> None:
    assert bool(refused_arguments(["usage: t.py [-h]", line, ""])) is refused
    assert not refused_arguments([line, "and then it went on"])


def test_a_remedy_is_an_argument_of_the_commands_own() -> None:
    cards, remedies = cards_of("launchers"), cards_of("remedies")
    words = shlex.split("python t.py --output_dir o --per_device_train_batch_size 1")
    assert changed(words, cards["transformers-trainer"], remedies["smaller-micro-batch"])[1] == "--gradient_accumulation_steps 2 (was 1)"  # type: ignore[index]
    assert changed(words, cards["torchtune"], remedies["smaller-micro-batch"]) is None


BAR = "{0}/5 [00:01<00:02,  3.20it/s]"


@pytest.mark.parametrize(
    ("text", "step", "total"),
    [
        ("  3%|▎   | 3/100 [00:01<00:20, 4.50it/s]\r  4%|▍  | 4/100 [00:01<00:20, 4.50it/s]\r", 4, 100),
        ("Map: 100%|███| 900/900 [00:01<00:00, 800 examples/s]\n", None, None),
        ("Tokenizing train dataset: 100%|█| 400/400 [00:01<00:00, 800 examples/s]\n", None, None),
        ("Truncating train dataset (num_proc=2): 100%|█| 400/400 [00:01<00:00, 1.20k examples/s]\n", None, None),
        ("Loading train data: 100%|█| 50/50 [00:01<00:00, 80.00it/s]\n", None, None),
        ("  9%|9  | 36/400 [00:01<00:00, 800 examples/s]\r", None, None),
        (" 50%|█  | 200/400 [00:01<00:00, 1.05s/rows]\r", None, None),
        ("Fetching 12 files: 100%|█| 12/12 [00:01<00:00, 3.1it/s]\n", None, None),
        ("train.parquet: 100%|█| 400/400 [00:01<00:00, 800B/s]\n", None, None),
        ("Tokenizing train dataset: 100%|█| 400/400 [00:01<00:00, 8 examples/s]\n 40%|█| 2/5 [00:01<00:00, 2.5s/it]\r", 2, 5),
        ("Training: 40%|█| 2/5 [00:01<00:00, 2.50step/s]\r", 2, 5),
        ("7/12 [00:01<00:01]\n", 7, 12),
        ("Epoch: 25%|█| 1/4 [00:01<?, ?it/s]\r", 1, 4),
        (" 40%|██ | 4/10 [00:01<00:02, 3it/s]\r 50%|██ | 1/2 [00:00<00:00, 9it/s]\r", 4, 10),
        ("step 1/9 loss 2\nstep 2/9 loss 1\nstep 3/9 loss 1\n", 3, 9),
        ("Step 1: read the manual\n", None, None),
        ("step 1/9 loss 2.5\n", 1, 9),
        ("Step 1, train_loss: 2.5\n", 1, None),
        ("step 1: train loss 4.2, val loss 4.3\n", None, None),
        ("eval step 1/2 loss 2\n", None, None),
        ("{'loss': 2.1, 'epoch': 0.5}\n", None, None),
        ("iter: 10\niter: 20\niter: 30\n", 30, None),
        ("step 1/9\nstep 2/9\nstep 3/9\nstep 4/9\n", 4, 9),
        ("step 2/9\nstep 3/9\nstep 4/9\neval step 1/2\n", 4, 9),
        ("".join(f"{BAR.format(n)}\r" for n in (0, 2, 5)) * 3, 15, 15),
        ("".join(f"Epoch {e}/3: {BAR.format(n)}\r" for e in (1, 2) for n in (0, 5)), 10, 15),
        ("".join(f"Epoch {e}/3: {BAR.format(n)}\r" for e in (2, 3) for n in (0, 5)), 15, 15),
        ("".join(f"Epoch {e}\n" + "".join(f"step {n}/5\n" for n in range(1, 6)) for e in range(3)), 15, 15),
        ("".join(f"epoch {e} step {n}\n" for e in range(3) for n in range(5)), 14, None),
        ("".join(f"Epochs: {e}/3 [00:0{e}<00:03, 1.0s/it]\nstep 1/40\r" for e in range(3)), 2, 3),
        (f"{BAR.format(4)}\r{BAR.format(1)}\r{BAR.format(5)}\r", 5, 5),
        ("".join(f"step {n}/9 loss 2\n" for n in range(1, 10)) + "".join(f"step {n}/5 loss 2\n" for n in range(1, 4)), 12, 14),
        ("".join(f"step {n}/9 loss 2\n[job 7] step {4000 + n}/9000 loss 1\n" for n in range(1, 10)), 9, 9),
        ("[job 7] step 4000/9000 loss 1\n", None, None),
        ("| step 100 | 2.1 |\n| step 200 | 1.9 |\n| step 300 | 1.7 |\n", None, None),
        ("".join(f"{BAR.format(n)}\r" for n in (2, 5)) + "\n" + "".join(f"step {n} loss 2\n" for n in range(1, 9)), 8, None),
        ("".join(f"step {n} loss 2\n" for n in range(1, 9)) + "".join(f"{BAR.format(n)}\r" for n in (2, 5)), 8, None),
        ("".join(f"[Nov 27] step {n}/9 loss 2\n" for n in (1, 2, 3)) + "[Dec 01] step 4/9 loss 2\n", 4, 9),
    ],
)
def test_steps_are_read_from_what_a_program_prints(text: str, step: int | None, total: int | None) -> None:
    for size in (1, 7, len(text)):
        counter = Counter()
        for at in range(0, len(text), size):
            counter.feed(text[at : at + size])
        assert (counter.step, counter.total) == (step, total)


@pytest.mark.parametrize(
    ("stages", "step", "total", "has_stages"),
    [
        ([("[warmup]", 1, 6, 6), ("[main]", 1, 5, 10)], 11, 16, True),
        ([("[sft]", 1, 6, 6), ("[dpo]", 1, 5, 6)], 11, 12, True),
        ([("[sft]", 1, 6, 6), ("eval", 1, 4, 4)], 6, 6, False),
        ([("[main]", 3, 10, 10)], 10, 10, False),
    ],
)
def test_a_stage_of_another_name_goes_on_behind_the_last_step(
    stages: list[tuple[str, int, int, int]], step: int, total: int, has_stages: bool
) -> None:
    """What went on rightly in its second stage, from a checkpoint of all steps, was told to have gone on from before it."""
    counter = Counter()
    counter.feed("".join(f"{name} step {n}/{last} loss 2\n" for name, first, end, last in stages for n in range(first, end + 1)))
    assert (counter.step, counter.total, counter.has_stages) == (step, total, has_stages)


def test_two_ranks_that_print_the_same_steps_are_no_stages() -> None:
    counter = Counter()
    counter.feed("".join(f"[rank{name}] step {n}/6 loss 2\n" for n in range(1, 7) for name in "ab"))
    assert (counter.step, counter.total, counter.has_stages) == (6, 6, False)


def test_where_a_training_goes_on_another_longer_count_without_losses_is_not_its_own() -> None:
    """A teacher's server prints its own steps: the second start was told to have ended after 916 of 1,000."""
    counter = Counter()
    counter.feed("".join(f"teacher: step {900 + n}/1000, 88 tokens/s\nstep {n}/16 loss 2\n" for n in range(9, 17)))
    assert (counter.first, counter.step, counter.total) == (9, 16, 16)


def test_the_bar_of_each_evaluation_begins_no_stage_of_the_training() -> None:
    """A Trainer that evaluated twice was of an unknown number of steps, and where its second start began was not known."""
    counter = Counter()
    for step in range(9, 17):
        counter.feed(f"\r{step * 6:3}%|##  | {step}/16 [00:01<00:02, 1.81it/s]")
        if step % 4 == 0:
            for row in range(4):
                counter.feed(f"\r{row * 33:3}%|##  | {row}/3 [00:00<00:01, {'?' if not row else 9.1}it/s]\x1b[A")
    counter.end()
    assert (counter.first, counter.step, counter.total, counter.has_stages) == (9, 16, 16, False)


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("Epoch 1/3\n", (1, 3)),
        ("Epoch [2/3], loss 0.5\n", (2, 3)),
        ("Epoch 0/3\nepoch: 1 of 3\n", (2, 3)),
        ("Epoch 0/3\nEpoch 2/3\n", (3, 3)),
        ("Epoch 0/2\nEpoch 2/2\n", (2, 2)),
        ("Epoch 3/3\nbest epoch: 1/3\n", (3, 3)),
        ("Epoch 9/9\nEpoch 1/2\nEpoch 2/2\n", (2, 2)),
        ("Epochs:  67%|███| 2/3 [00:01<00:01, 1.0s/it]\n", (2, 3)),
        ("Epochs: 100%|███| 3/3 [00:01<00:00, 1.0s/it]\n", (3, 3)),
        ("epoch 0: train loss 2.1\nepoch 1: train loss 1.9\n", (2, None)),
        ("{'loss': 2.1, 'epoch': 0.5}\nepoch 1.5/3\n", None),
    ],
)
def test_the_epochs_that_were_begun_and_announced_are_seen(text: str, begun: tuple[int, int | None] | None) -> None:
    counter = Counter()
    counter.feed(text)
    assert counter.epochs.begun == begun


@pytest.mark.parametrize(
    ("step", "epoch", "epochs", "says"),
    [
        (8, 1.25, sys.maxsize, "checkpoint-8 lies in pass 2 over a data set without a length"),
        (4, 0.3333333333333333, sys.maxsize, ""),
        (12, 2.1666666666666665, sys.maxsize, ""),
        (8, 1.6, 3, ""),
        (8, None, None, ""),
    ],
    ids=["a later pass", "the first pass", "the last step", "a data set with a length", "nothing is told"],
)
def test_a_checkpoint_in_a_later_pass_over_a_stream_is_told(
    step: int, epoch: float | None, epochs: int | None, says: str, tmp_path: Path
) -> None:
    """As transformers 5.23 writes it for a stream of 5 batches of 12 steps: behind step 8 it begins pass 2 anew."""
    state = {"global_step": step, "max_steps": 12, "epoch": epoch, "num_train_epochs": epochs}
    (tmp_path / f"out/checkpoint-{step}").mkdir(parents=True)
    (tmp_path / f"out/checkpoint-{step}/trainer_state.json").write_text(json.dumps(state))
    told = rows_twice(tmp_path / f"out/checkpoint-{step}")
    assert told.startswith(says) and bool(told) == bool(says)


@pytest.mark.parametrize(("begun", "first"), [(0, 1), (1, 5), (2, 9)])
def test_bars_named_by_their_epoch_below_one_that_counts_epochs_are_of_no_epoch_more(begun: int, first: int) -> None:
    """A training of 12 steps was told as one of 16."""
    counter, bar = Counter(), "{}:  50%|###   | {}/{} [00:01<00:01, {}]\r"
    counter.feed(bar.format("Epochs", begun, 3, "?it/s"))
    for epoch in range(begun, 3):
        counter.feed("".join(bar.format(f"Epoch {epoch + 1}", n, 4, "5it/s" if n else "?it/s") for n in range(5)))
        counter.feed(bar.format("Validation", 0, 9, "?it/s") + bar.format("Epochs", epoch + 1, 3, "2s/it"))
    assert (counter.step, counter.first, counter.total) == (12, first, 12)


def test_a_count_from_0_is_at_its_end_one_before_its_total() -> None:
    counter = Counter()
    counter.feed("".join(f"Epoch {e}/2\n" + "".join(f"step {n}/5\n" for n in range(5)) for e in (1, 2)))
    assert (counter.step, counter.total) == (9, 10)
    counter.end()
    assert (counter.step, counter.total) == (10, 10)


def test_a_bar_of_another_length_than_the_better_source_tells_counts_something_else() -> None:
    counter = Counter()
    counter.feed("100%|█| 400/400 [00:01<00:00, 80it/s]\n 20%|█| 2/5 [00:01<00:00, 2it/s]\r 40%|█| 3/5 [00:01<00:00, 2it/s]\r")
    assert (counter.step, counter.total) == (400, 400), "nothing tells them apart yet"
    counter.of(5)
    assert (counter.step, counter.first, counter.total) == (3, 2, 5)
    counter.feed("100%|█| 900/900 [00:01<00:00, 80it/s]\r 100%|█| 5/5 [00:01<00:00, 2it/s]\r")
    assert (counter.step, counter.first, counter.total) == (5, 2, 5)


def test_where_an_attempt_began_is_its_first_step_and_not_its_lowest() -> None:
    counter = Counter()
    counter.feed("".join(f"step {n} loss 2\n" for n in (13, 14, 15, 1, 2)))
    assert (counter.first, counter.begun_anew, counter.has_stages) == (13, True, True)
    counter = Counter()
    counter.feed("".join(f"step {n} loss 2\n" for n in (12, 1, 2, 3)))  # it said where it was to go on
    assert (counter.first, counter.has_stages) == (1, True), "or the last step of a stage: nobody knows"
    counter = Counter()
    counter.feed("".join(f"step {n} loss 2\n" for n in (1, 2, 3, 4)))
    assert not counter.has_stages


@pytest.mark.parametrize(
    ("text", "step", "total"),
    [
        ("".join(f"\rTraining: |          | {n}/? [00:09<00:00,  1.02it/s]" for n in (6, 7, 8)), 8, None),
        ("".join(f"\rEpoch 3: 12%|#  | {n}/16 [00:09<00:00,  1.02it/s]" for n in (1, 2)), 2, 16),
        ("\rTraining: |   | 16/? [00:09<00:00, 1.02it/s]\rEpoch 1: 6%|#  | 1/16 [00:09<00:00, 1.02it/s]", 1, 16),
    ],
    ids=["the rest of an epoch", "a later epoch", "both"],
)
def test_bars_of_an_epoch_that_lightning_goes_on_with_are_steps_and_no_proof_of_a_beginning(
    text: str, step: int, total: int | None
) -> None:
    counter = Counter()
    counter.feed(text + "\n")
    assert (counter.step, counter.total, counter.has_stages) == (step, total, True)
    counter = Counter()
    counter.feed("Validation: |   | 3/? [00:09<00:00, 1.02it/s]\n\rEpoch 0: 12%|#  | 2/16 [00:09<00:00,  1.02it/s]\n")
    assert (counter.step, counter.total, counter.has_stages) == (2, 16, False)


def test_a_longer_count_that_was_not_believed_is_named() -> None:
    counter = Counter()
    counter.feed("".join(f"step {n}/9 loss 2\n[job 7] step {4000 + n}/9000 loss 1\n" for n in range(1, 10)))
    assert counter.rival == "'[job 7]' up to 9,000"
    counter = Counter()
    counter.feed("\r 50%|# | 1/2 [00:00<00:00, 99.10it/s]\r100%|##| 2/2 [00:00<00:00, 99.10it/s]\n[job 7] Iteration 2 of 9\n")
    assert not counter.rival, "one number of another's is none"
    counter.feed("Iteration 2 of 5\n")
    assert (counter.step, counter.total, counter.rival) == (2, 2, "up to 5"), "a bar without a name may be an evaluation's"
    counter = Counter()
    counter.feed("\rTraining:  50%|# | 1/2 [00:00<00:00, 99.10it/s]\nIteration 2 of 5\n")
    assert not counter.rival, "the bar has a name, and one number is none"


def test_a_bar_without_a_name_counts_no_steps_behind_a_longer_count_with_losses() -> None:
    bar = "\r 50%|# | 1/3 [00:00<00:00, 99.10it/s]\r 99%|##| 3/3 [00:00<00:00, 99.10it/s]\n"
    for said, step in (("step 5/6 loss 0.6\n", None), ("[job 7] step 5/6 loss 0.6\n", 3), ("step 2/3 loss 0.6\n", 3), ("step 5/6\n", 3)):
        counter = Counter()
        counter.feed(said + bar)
        assert counter.step == step, said


def event(step: int) -> bytes:
    data = b"\x09" + b"\0" * 8 + (b"\x10" + bytes([step & 0x7F | 0x80, step >> 7]) if step else b"") + b"\x1a\0"
    return len(data).to_bytes(8, "little") + b"\0" * 4 + data + b"\0" * 4


def test_steps_are_read_from_event_files_as_they_grow(tmp_path: Path) -> None:
    file, reader = tmp_path / "events.out.tfevents.1.host", EventFile(tmp_path, 0)
    assert reader.look() is None
    file.write_bytes(event(0) + event(200)[:9])
    assert reader.look() is None
    file.write_bytes(event(0) + event(200) + event(300))
    assert reader.look() == 300


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


STEPS = [(10.0 + second, "step") for second in range(20)]


@pytest.mark.parametrize(
    ("moments", "options", "at", "hangs"),
    [
        ([], {"floor_s": 5.0}, 800, False),
        ([], {"floor_s": 5.0}, 901, True),
        ([], {"floor_s": 5.0, "first_s": 0.0}, 6, True),
        ([(second * 5.0, "work") for second in range(100)], {"floor_s": 6.0, "first_s": 0.0}, 500, False),
        (STEPS, {"floor_s": 5.0}, 45, False),
        (STEPS, {"floor_s": 5.0}, 50, True),
        (STEPS, {"floor_s": 60.0}, 60, False),
        ([*STEPS, (45, "print")], {"floor_s": 5.0}, 60, False),
        ([*STEPS, *[(29 + second * 5.0, "work") for second in range(1, 25)]], {"floor_s": 5.0}, 125, False),
        ([*STEPS, *[(29 + second * 5.0, "work") for second in range(1, 25)]], {"floor_s": 5.0}, 131, True),
        (STEPS, {"floor_s": 5.0, "longer": 2.0}, 60, False),
    ],
    ids=[
        *("a start", "a long start", "the user's word", "computing", "a pause", "a hang", "the floor", "an evaluation that prints"),
        *("one that computes", "computing too long", "after a hang"),
    ],
)
def test_silence_is_a_hang_by_the_pace_that_was_shown(
    moments: list[tuple[float, str]], options: dict[str, Any], at: float, hangs: bool
) -> None:
    clock = Clock()
    timeout = HangTimeout(longest_times=3, clock=clock, **options)
    for clock.seconds, what in moments:
        timeout.look(what == "step", what == "print", what == "work")
    clock.seconds = at
    assert (timeout.overdue() is not None) == hangs


def test_what_the_machine_slept_is_no_silence() -> None:
    clock = Clock()
    timeout = HangTimeout(5.0, longest_times=3, clock=Awake(2.0, clock).now)
    for clock.seconds in range(20):
        timeout.look()
    clock.seconds = 5000.0
    assert timeout.overdue() is None


def pasts(*words: str) -> list[PastAttempt]:
    """came: it came further; kill: somebody else ended it; a cause otherwise."""
    return [PastAttempt(None, one.partition("+")[0], one, "", one.endswith("+came"), from_outside=one.startswith("kill")) for one in words]


@pytest.mark.parametrize(
    ("history", "known", "kind", "says"),
    [
        (["oom"], {}, "again", "oom"),
        (["oom", "oom"], {}, "give_up", "2 attempts in a row ended so without progress"),
        (["oom", "nan"], {}, "again", "nan"),
        (["oom", "oom+came", "oom"], {}, "again", "oom"),
        (["kill"] * 7, {}, "again", "kill"),
        (["kill"] * 8, {}, "give_up", "8 attempts"),
        (["oom", "nan"] * 10, {}, "give_up", "for changing reasons"),
        (["kill+came"] * 100, {}, "again", "kill"),
        (["oom"], {"rules": replace(OF_COMMAND, retries=0)}, "give_up", "--retries 0"),
        (["oom"], {"stop": True}, "stopped", ""),
        (["oom"], {"final": "the disk of /d is full"}, "give_up", "the disk of /d is full"),
        (["oom"], {"final": "it could not be started"}, "give_up", "could not be started"),
        (["oom", "oom"], {"remedy_left": True}, "again", "trying what is known to help"),
        (["kill", "kill"], {"remedy_left": True}, "again", "kill"),
        (["end"], {"over": True}, "done", ""),
        (["end"], {"told": "ended in the middle"}, "again", "ended in the middle"),
    ],
)
def test_what_is_done_after_an_end_follows_from_what_is_known(history: list[str], known: dict[str, Any], kind: str, says: str) -> None:
    failure_report = FailureReport(1, Ending("error", 1), None, None, (), (), 0, 0, 0.0, None, None)
    stop, known = known.get("stop", False), {name: value for name, value in known.items() if name != "stop"}
    move = next_move(
        Known(failure_report, Diagnosis("x", 0.5), pasts(*history), **{"rules": OF_COMMAND, "told": history[-1]} | known), None, stop
    )
    if isinstance(move, Move):
        assert kind == ("again" if move.goes_on else "give_up") and says in move.reason
    else:
        assert kind == ("done" if isinstance(move, Done) else "stopped")


def test_a_reader_of_pickles_executes_nothing() -> None:
    from holdfast.supervision.foreign_checkpoints.archives import pickled_names

    held = io.BytesIO()
    pickle.Pickler(held, 4).dump([{"a": 1}, Trap()])
    assert "posix system" in pickled_names("x", held.getvalue())
