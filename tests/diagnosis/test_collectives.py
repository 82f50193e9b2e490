"""Dumps of torch's flight recorder: which rank keeps the others waiting; nothing in one is ever run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast
from holdfast.diagnosis.collectives.dumps import read_dump, read_dumps
from holdfast.diagnosis.collectives.guilty import ABSENT, OTHER, SILENT, UNFINISHED, diagnose_dumps, find_guilty
from holdfast.processes.rank_environment import recorder_variables

WORLD = 4


def entry(number: int, state: str, name: str = "nccl:all_reduce") -> dict[str, Any]:
    frames = [{"name": "backward", "filename": "train.py", "line": 40 + number}]
    place = {"process_group": ("0", "default_pg"), "pg_id": 0, "is_p2p": False, "p2p_seq_id": 0}
    return place | {"collective_seq_id": number, "profiling_name": name, "state": state, "frames": frames}


def dump(entries: list[dict[str, Any]], completed: int) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}}
    return {"version": "2.9", "pg_config": groups, "pg_status": {"0": {"last_completed_collective": completed}}, "entries": entries}


def write(folder: Path, dumps: dict[int, dict[str, Any]], kind: Callable[[Any], bytes] = pickle.dumps) -> Path:
    for rank, values in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(kind(values))
    return folder


def as_json(values: Any) -> bytes:
    return json.dumps(values).encode()


WAITS = dump([entry(6, "completed"), entry(7, "scheduled")], 6)
ELSEWHERE = dump([entry(6, "completed")], 6)
WENT_ON = dump([entry(6, "completed"), entry(7, "completed"), entry(8, "scheduled")], 7)


@pytest.mark.parametrize("kind", [pickle.dumps, as_json])
def test_a_rank_that_did_not_enter_is_named_with_where_it_was_last(tmp_path: Path, kind: Callable[[Any], bytes]) -> None:
    found = find_guilty(read_dumps(write(tmp_path, {0: WAITS, 1: WAITS, 2: ELSEWHERE, 3: WAITS}, kind)))
    assert found is not None and (found.ranks, found.sign, found.waiting) == ((2,), ABSENT, (0, 1, 3))
    assert found.entry is not None and (found.entry.number, found.entry.name) == (7, "nccl:all_reduce")
    told = " ".join(diagnose_dumps(read_dumps(tmp_path)).words())
    assert "rank 2 did not enter nccl:all_reduce number 7 of default_pg, ranks 0, 1, 3 did" in told
    assert "train.py:46 in backward" in told, "where it was last"


def test_a_rank_whose_device_does_not_finish_is_named(tmp_path: Path) -> None:
    found = find_guilty(read_dumps(write(tmp_path, {0: WENT_ON, 1: WAITS, 2: WENT_ON, 3: WENT_ON})))
    assert found is not None and (found.ranks, found.sign) == ((1,), UNFINISHED)


def test_a_rank_that_entered_another_collective_under_the_same_number_is_named(tmp_path: Path) -> None:
    """It was told that no collective shows who keeps the others waiting: each had entered its number 7."""
    other = dump([entry(6, "completed"), entry(7, "scheduled", "nccl:broadcast")], 6)
    found = find_guilty(read_dumps(write(tmp_path, {0: WAITS, 1: WAITS, 2: WAITS, 3: other})))
    assert found is not None and (found.ranks, found.sign, found.waiting) == ((3,), OTHER, (0, 1, 2))
    told = " ".join(diagnose_dumps(read_dumps(tmp_path)).words())
    assert "rank 3 entered nccl:broadcast as number 7 of default_pg, where ranks 0, 1, 2 entered nccl:all_reduce" in told
    for rank, name in enumerate(("nccl:send 0->1", "nccl:recv 1<-0", "nccl:coalesced", "nccl:coalesced")):
        write(tmp_path, {rank: dump([entry(7, "scheduled", name)], 6)})
    assert find_guilty(read_dumps(tmp_path)) is None, "each rank's own"


def test_where_as_many_ranks_entered_either_none_is_said_to_keep_the_others_waiting(tmp_path: Path) -> None:
    """Of two ranks the second was accused, and only its stack was shown."""
    other = dump([entry(6, "completed"), entry(7, "scheduled", "nccl:broadcast")], 6)
    found = find_guilty(read_dumps(write(tmp_path, {0: WAITS, 1: WAITS, 2: other, 3: other})))
    assert found is not None and (found.sign, found.even) == (OTHER, True)
    told = " ".join(diagnose_dumps(read_dumps(tmp_path)).words())
    assert "ranks 2, 3 entered nccl:broadcast as number 7 of default_pg, where ranks 0, 1 entered nccl:all_reduce" in told
    assert "rank 0 entered last: nccl:all_reduce" in told and "rank 2 entered last: nccl:broadcast" in told
    said = diagnose_dumps(read_dumps(tmp_path)).explanation
    assert "They wait for each other. Which of them took the wrong branch the dumps do not tell" in said
    write(tmp_path, {2: WAITS})
    odd = diagnose_dumps(read_dumps(tmp_path)).explanation
    assert odd.startswith("Rank 3 entered") and "The other ranks wait for it. The program took another branch there" in odd


def test_a_rank_without_a_dump_is_named_unless_whole_machines_are_missing(tmp_path: Path) -> None:
    found = find_guilty(read_dumps(write(tmp_path, {0: WAITS, 1: WAITS, 3: WAITS})))
    assert found is not None and (found.ranks, found.sign) == ((2,), SILENT)
    for rank in (1, 3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    assert find_guilty(read_dumps(tmp_path)) is None, "of one rank of four nothing is known"


def test_a_dump_left_by_an_earlier_start_is_left_out(tmp_path: Path) -> None:
    """The rank that hung left none; that of the earlier start, in the same folder, was read as its own, and the others were accused."""
    now = {rank: dump([one | {"time_created_ns": 5000 * 10**9} for one in WAITS["entries"]], 6) for rank in (0, 1, 3)}
    old = dump([entry(8, "completed") | {"time_created_ns": 1000 * 10**9}, entry(9, "scheduled") | {"time_created_ns": 1001 * 10**9}], 8)
    write(tmp_path, now | {2: old})
    for rank, written in ((0, 5600), (1, 5601), (2, 1601), (3, 5602)):
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", (written, written))
    found = find_guilty(read_dumps(tmp_path))
    assert found is not None and (found.ranks, found.sign) == ((2,), SILENT)
    os.utime(tmp_path / "nccl_trace_rank_2", (5000, 5000))
    assert set(read_dumps(tmp_path)) == {0, 1, 2, 3}, "written when the oldest entry of the others was made"


def test_nobody_is_named_where_nobody_waits(tmp_path: Path) -> None:
    found = diagnose_dumps(read_dumps(write(tmp_path, dict.fromkeys(range(WORLD), ELSEWHERE))))
    assert found.cause == "unknown" and "dumps of 4 ranks" in " ".join(found.words())


class Touch:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_a_dump_that_names_code_is_not_read_and_nothing_of_it_runs(tmp_path: Path) -> None:
    write(tmp_path, {0: WAITS, 1: WAITS, 2: ELSEWHERE})
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(WAITS | {"more": Touch(tmp_path / "ran")}))
    assert set(read_dumps(tmp_path)) == {0, 1, 2} and not (tmp_path / "ran").exists()


def test_torn_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {0: WAITS})
    whole = (tmp_path / "nccl_trace_rank_0").read_bytes()
    for number, content in enumerate(
        (whole[: len(whole) // 2], b"", b"{", b"[1]", pickle.dumps({"entries": [], "pg_config": 3}), b"\x80\x04N."), 1
    ):
        file = tmp_path / f"nccl_trace_rank_{number}"
        file.write_bytes(content)
        assert read_dump(file) is None, content[:20]
    assert set(read_dumps(tmp_path)) == {0}


def test_a_dump_that_would_end_or_fill_the_reader_is_left_out(tmp_path: Path) -> None:
    """Infinity and a number of 5,000 digits ended it with a traceback; lists in lists, made a text, and many ranks took all memory."""
    lists: list[Any] = ["x"]
    for _ in range(60):
        lists = [lists, lists]
    frame = {"name": lists, "filename": "train.py", "line": 3}
    texts = ("[" + "1," * 1_000_000 + "]", "(" * 9999, "0 1")
    of_ranks = [{"pg_config": {"0": {"name": "0", "desc": "all", "ranks": text}}} for text in texts]
    hostile = [
        dump([entry(7, "scheduled") | {"collective_seq_id": number}], 6) for number in (float("inf"), float("nan"), 10**5000, "7", lists)
    ]
    hostile += [dump([entry(7, "scheduled")], 6) | {"pg_status": {"0": {"last_completed_collective": float("inf")}}}]
    hostile += [dump([entry(7, "scheduled") | more], 6) for more in ({"frames": [frame]}, {"pg_id": lists}, {"time_created_ns": 1e400})]
    hostile += [dump([entry(7, "scheduled", lists)], 6), dump([entry(7, "scheduled") | {"process_group": (lists, "")}], 6)]  # type: ignore[arg-type]
    hostile += [dump([entry(7, "scheduled")], 6) | ranks for ranks in of_ranks]
    write(tmp_path, {0: WAITS} | dict(enumerate(hostile, 1)))
    assert set(read_dumps(tmp_path)) == {0}
    write(tmp_path, {1: dump([entry(7, "scheduled", "nccl:send\nrank 9 did" + "!" * 9999)], 6)})
    (named,) = read_dumps(tmp_path)[1].entries
    assert named.name.startswith("nccl:send rank 9 did!") and len(named.name) <= 300


def test_diagnose_takes_a_folder_of_dumps(tmp_path: Path) -> None:
    write(tmp_path, {0: WAITS, 1: WAITS, 2: ELSEWHERE, 3: WAITS})
    for place in (tmp_path, tmp_path / "nccl_trace_rank_1"):
        done = holdfast("diagnose", place, "--json")
        found = json.loads(done.stdout)
        assert found["cause"] == "collective_timeout" and "rank 2 did not enter" in done.stdout


def test_the_recorder_is_switched_on_unless_somebody_chose() -> None:
    found = recorder_variables(Path("/run/attempts/001"), {})
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1" and found["TORCH_FR_DUMP_TEMP_FILE"] == "/run/attempts/001/nccl_trace_rank_"
    assert recorder_variables(Path("/run"), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}) == {}
