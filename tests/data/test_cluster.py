"""`--ray`: a real cluster of two nodes on this machine gives what one machine gives, byte for byte, whoever is killed meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ROOT, assert_law, holdfast, kill, lines, make_rows, wait_until, write_rows
from holdfast.base.files import Json

RAY = Path(sys.executable).with_name("ray")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ROTATION_MAX_BYTES": "1000000", "OMP_NUM_THREADS": "1"}
QUIET |= {"RAY_gcs_server_port_wait_time_s": "300", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300"}  # on a busy machine, the test waits itself
TRIES, TOO_LATE = 3, "timed out during startup"  # of a node, which gives itself 30 s, whatever it is told
STORE = ["--num-cpus", "1", "--object-store-memory", "80000000"]  # the smallest Ray takes
MARK, PREFIX = "HOLDFAST_TEST_CLUSTER", f"/tmp/hf-ray-{os.getpid()}-"  # not under tmp_path: the paths of its sockets have to be short
pytestmark = pytest.mark.skipif(not RAY.exists(), reason="Ray is not installed")


@pytest.fixture(autouse=True, scope="module")
def no_token() -> Iterator[None]:
    """A token that other work with Ray left in the home folder would be asked of these clusters, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


def _started(command: list[str], env: dict[str, str], log: Path, said: str, started: list[subprocess.Popen[bytes]]) -> list[str]:
    """Start a node and wait until its log says so; what was found there. One that was too slow for itself begins again."""
    for _ in range(TRIES):
        with log.open("wb") as handle:
            node = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT, cwd=log.parent, env=env)
        started.append(node)
        wait_until(lambda node=node: bool(re.search(said, log.read_text())) or node.poll() is not None, patience_s=900)
        if found := re.findall(said, log.read_text()):
            return found
        assert TOO_LATE in log.read_text(), log.read_text()[-3000:]
    pytest.skip(f"this machine is too busy for Ray: {TRIES} times a node {TOO_LATE}, which Ray bounds by 30 s")


@pytest.mark.parametrize(
    ("script", "tries", "raised"),
    [
        (f"echo >> tries; test $(wc -l < tries) = 3 && echo Ray runtime started || echo {TOO_LATE}", 3, None),
        (f"echo {TOO_LATE}", TRIES, pytest.skip.Exception),
        ("echo no such option", 1, AssertionError),
    ],
)
def test_a_node_that_was_too_slow_for_itself_begins_again(
    tmp_path: Path, script: str, tries: int, raised: type[BaseException] | None
) -> None:
    """By a script in place of Ray: one that always is too slow skips the tests, another ending fails them."""
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(raised) if raised else nullcontext():
        _started(["sh", "-c", script], dict(os.environ), tmp_path / "node.log", "Ray runtime started", started)
    assert len(started) == tries
    for node in started:
        node.wait()


@contextmanager
def nodes(*environments: dict[str, str]) -> Iterator[str]:
    """The address of a cluster with a node of one CPU for each of these additions to the environment; nothing of it stays."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with socket.create_server(("127.0.0.1", 0)) as free:
        client_port = free.getsockname()[1]
    head = ["--head", "--port", "0", "--ray-client-server-port", client_port, "--include-dashboard", "false", "--temp-dir", folder]
    started: list[subprocess.Popen[bytes]] = []
    address = ""
    try:
        for number, environment in enumerate(environments):
            command = [*map(str, [RAY, "start", "--block", *STORE, *(["--address", address] if address else head)])]
            env = os.environ | QUIET | environment | {MARK: str(folder)}
            said = "Ray runtime started" if address else r"--address='([^']+)'"  # which comes some lines behind it
            found = _started(command, env, folder / f"node{number}.log", said, started)
            address = address or found[0]
        yield address
    finally:
        for process in reversed(started):  # the head last: the others would wait for it
            process.terminate()
            process.wait()
        try:
            wait_until(lambda: not marked(folder), patience_s=300)
        finally:
            for pid in marked(folder):
                kill(pid)
            shutil.rmtree(folder)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def marked(folder: object) -> list[int]:
    """Living processes of clusters of ours whose folder begins like this."""
    return [pid for pid, entry in processes() if f"{MARK}={folder}".encode() in read(entry / "environ")]


def processes() -> list[tuple[int, Path]]:
    return [(int(entry.name), entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def workers_at(task: str) -> dict[int, int]:
    """Pids of our clusters' workers that are at this task, each with its node's."""
    called = f"ray::{task}\0".encode()
    named = {pid for pid, entry in processes() if read(entry / "cmdline").startswith(called)}
    found = {pid: read(Path(f"/proc/{pid}/stat")) for pid in (named.intersection(marked(PREFIX)) if named else ())}
    return {pid: int(stat.rpartition(b")")[2].split()[1]) for pid, stat in found.items() if stat}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with nodes({}, {}) as address:
        yield address


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """`.files`: one of some fifty blocks, a compressed one and a table, with rows of every kind; `.held_out`."""
    folder = tmp_path_factory.mktemp("rows")
    many = [row | {"instruction": f"{row['instruction']} {n % 48_000}"} for n, row in enumerate(make_rows(50_000))]
    for n in range(0, len(many), 97):
        many[n]["output"] = ["", "a\x07b", "schÃ¶n", "one\u2028two"][n % 4]
    big = write_rows(folder / "a.jsonl", many)
    with big.open("ab") as handle:
        handle.write(b'{"instruction": "cut \xff off"\n{"instruction": "x", "output": NaN}\n')
    packed = folder / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(big.read_bytes()[:300_000]))
    table = folder / "c.csv"
    table.write_text("instruction,output\nName a tree,birch\nName a bird,\n")
    return SimpleNamespace(files=[big, packed, table], held_out=write_rows(folder / "held.jsonl", many[5:9]))


def options(rows: SimpleNamespace, folder: Path) -> list[object]:
    dropped = ["--drop", "duplicate", "--drop", "near-duplicate", "--held-out", rows.held_out, "--max-tokens", 40]
    return ["data", "clean", *rows.files, "--out", folder / "c.jsonl", "--rejects", folder / "r.jsonl", *dropped, "--json"]


def written(folder: Path, output: str) -> tuple[Json, dict[str, bytes]]:
    """What a cleaning said, without times and names, and its three files."""
    answer = json.loads(output)
    assert_law(answer, (folder / "c.jsonl").read_bytes(), lines(folder / "r.jsonl"))
    for name in ("seconds", "speed", "out", "rejects", "originals_of_mended", "blocks_reused"):
        del answer[name]
    return answer, {name: (folder / name).read_bytes() for name in ("c.jsonl", "r.jsonl", "c.jsonl.mended.jsonl")}


@pytest.fixture(scope="module")
def alone(rows: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Json, dict[str, bytes]]:
    """What one machine makes of the rows."""
    folder = tmp_path_factory.mktemp("alone")
    done = holdfast(*options(rows, folder), "--workers", 1)
    found = written(folder, done.stdout)
    assert min(map(len, found[1].values())) > 1000, "there is something to compare in each file"
    return found


def test_two_nodes_give_what_one_machine_gives(
    cluster: str, rows: SimpleNamespace, alone: tuple[Json, dict[str, bytes]], tmp_path: Path
) -> None:
    child = start(*options(rows, tmp_path), "--ray", cluster)
    at_work: set[int] = set()
    while child.poll() is None:
        at_work |= set(workers_at("work_on_block").values())
    assert len(at_work) == 2, "both nodes had work"
    output, said = child.communicate()
    assert (written(tmp_path, output), said) == (alone, "")


@pytest.mark.parametrize("task", ["work_on_block", "read_blocks"])
def test_a_worker_killed_at_its_work_changes_nothing(
    cluster: str, rows: SimpleNamespace, alone: tuple[Json, dict[str, bytes]], tmp_path: Path, task: str
) -> None:
    child = start(*options(rows, tmp_path), "--ray", cluster)
    wait_until(lambda: stop_at(task))
    assert child.poll() is None
    (pid,) = (pid for pid, _ in workers_at(task).items() if state(pid) == b"T")
    kill(pid)
    output, said = child.communicate()
    assert written(tmp_path, output) == alone
    assert "A worker died or was killed while executing a task" in said
    assert "\x1b" not in said


def test_a_lost_node_changes_nothing(rows: SimpleNamespace, alone: tuple[Json, dict[str, bytes]], tmp_path: Path) -> None:
    lost: set[int] = set()

    def other_node() -> set[int]:
        """Where blocks are worked on, but not read."""
        reading = set(workers_at("read_blocks").values())
        lost.update(set(workers_at("work_on_block").values()) - reading if reading else ())
        return lost

    with nodes({}, {}) as address:
        child = start(*options(rows, tmp_path), "--ray", address)
        wait_until(lambda: bool(other_node()))
        assert [kill(pid) for pid in lost] == [True]
        output, said = child.communicate()
    assert child.returncode == 0, said
    assert written(tmp_path, output) == alone


def stop_at(task: str) -> bool:
    """Halt a worker in the middle of this task."""
    for pid in workers_at(task):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: state(pid) == b"T")
        if pid in workers_at(task):  # still: a worker is renamed only when it is done
            return True
        os.kill(pid, signal.SIGCONT)
    return False


def state(pid: int) -> bytes:
    return read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[0]


def test_a_cleaning_that_was_killed_goes_on(
    cluster: str, rows: SimpleNamespace, alone: tuple[Json, dict[str, bytes]], tmp_path: Path
) -> None:
    child = start(*options(rows, tmp_path), "--ray", cluster)
    work = tmp_path / ".c.jsonl.unfinished"
    wait_until(lambda: work.is_dir() and len(list(work.iterdir())) > 5)
    kill(child.pid)
    child.communicate()
    assert not (tmp_path / "c.jsonl").exists()
    again = holdfast(*options(rows, tmp_path), "--ray", cluster)
    assert json.loads(again.stdout)["blocks_reused"] >= 5, "the sixth may have been half written"
    assert written(tmp_path, again.stdout) == alone
    assert not work.exists()


def test_ctrl_c_ends_it_and_its_work(cluster: str, rows: SimpleNamespace, tmp_path: Path) -> None:
    child = start(*options(rows, tmp_path), "--ray", cluster)
    work = tmp_path / ".c.jsonl.unfinished"
    wait_until(lambda: work.is_dir() and len(list(work.iterdir())) > 5)
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):  # so that it cannot be done before it is interrupted
        child.send_signal(number)
    _, said = child.communicate()
    assert (child.returncode, said) == (130, "holdfast: interrupted\n")
    assert not list(tmp_path.glob("*.jsonl"))
    wait_until(lambda: not workers_at("work_on_block") and not workers_at("read_blocks"))


def test_check_finds_the_same(cluster: str, assets: SimpleNamespace) -> None:
    found = [holdfast("data", "check", assets.rows, "--tokenizer", assets.model, "--json", *more) for more in ((), ("--ray", cluster))]
    answers = [json.loads(done.stdout) for done in found]
    for answer in answers:
        del answer["seconds"], answer["speed"]
    assert answers[0] == answers[1]
    assert [done.stderr for done in found] == ["", ""]


def test_a_file_that_grows_meanwhile_is_told_as_one_machine_tells_it(cluster: str, rows: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "growing.jsonl"
    shutil.copy(rows.files[0], file)
    child = start("data", "clean", file, "--out", tmp_path / "c.jsonl", "--rejects", tmp_path / "r.jsonl", "--ray", cluster)
    wait_until(lambda: bool(workers_at("work_on_block")))
    with file.open("ab") as handle:
        handle.write(b'{"instruction": "late", "output": "row"}\n')
    _, said = child.communicate()
    assert child.returncode == 1
    assert "growing.jsonl changed while it was read" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("holds", "says"),
    [
        ({"holdfast/__init__.py": ""}, "a node of the Ray cluster has no holdfast, or another one"),
        ({"ftfy-0.1.dist-info/METADATA": "Name: ftfy\nVersion: 0.1\n"}, "has another holdfast, tokenizers or ftfy"),
    ],
)
def test_a_node_that_would_work_otherwise_is_refused(assets: SimpleNamespace, tmp_path: Path, holds: dict[str, str], says: str) -> None:
    for name, text in holds.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with nodes({"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}) as address:
        done = holdfast("data", "check", assets.rows, "--ray", address)
    assert done.returncode == 1
    assert says in done.stderr
    assert "install the same holdfast with Ray" in done.stderr


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--ray", "127.0.0.1:1"], 1, "no Ray cluster can be joined at 127.0.0.1:1: [Errno 111] Connection refused"),
        (["--ray", "127.0.0.1:port"], 2, "this is no address of a cluster"),
        (["--ray", "nowhere.invalid:6379"], 1, "no Ray cluster can be joined at nowhere.invalid:6379"),
        (["--ray", "ray://127.0.0.1:10001"], 2, "this is no address of a cluster"),
        (["--ray", "local"], 2, "this is no address of a cluster"),
        (["--ray", "auto", "--workers", "2"], 2, "--workers counts processes of this machine"),
    ],
)
def test_what_cannot_be_joined_is_told(assets: SimpleNamespace, more: list[str], code: int, says: str) -> None:
    done = holdfast("data", "check", assets.rows, *more)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_without_ray_it_says_what_to_install(assets: SimpleNamespace) -> None:
    program = "import sys; sys.modules['ray'] = None; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "data", "check", str(assets.rows), "--ray", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install '.[ray]'" in done.stderr
