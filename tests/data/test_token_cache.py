"""The token cache: rows are tokenised once, in parallel, in bounded memory; a killed build goes on; what is damaged is made again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from conftest import ROOT, events, fill, kill, lines, make_rows, wait_until, write_rows
from holdfast.base.errors import Stop
from holdfast.base.wait import what_is_done
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.files.read import read_rows, read_unparsed
from holdfast.data.judge.rules import Rules
from holdfast.data.survey.survey import check_block
from holdfast.data.token_set.token_set import join_parts, load_tokens
from holdfast.data.tokens import shard
from holdfast.data.tokens.cache import TokenCache, cache_key
from holdfast.data.tokens.codec import Codec, load_codec
from holdfast.data.tokens.shard import Block, blocks, shard_bytes, tokenise
from holdfast.data.tokens.shown import show_row
from holdfast.data.tokens.taught import told_of
from holdfast.data.workers import workers
from holdfast.data.workers.build import BuildResult, check_rows, report
from holdfast.data.workers.workers import Copies, Workers
from holdfast.planning.workload import longest_row
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.rows import check_data
from holdfast.terminal.run_view import Terminal
from support.chat_templates import SHAPES, codec_with


def build(
    model: Path, files: list[Path], cache: Path, out: Path, threads: int = 1, max_tokens: int = 96
) -> tuple[BuildResult, TokenCache, str]:
    """Build the token set of `files`; what was found, the cache, and the hash of the token set's file."""
    codec = load_codec(model)
    out.mkdir(exist_ok=True)
    data = Config(model="x", data={"files": [str(file) for file in files]})
    store = TokenCache(cache, out / "spare", cache_key(codec, Rules(max_tokens=max_tokens)))
    with (out / "rejects.jsonl").open("wb") as rejects, Workers(codec, Rules(max_tokens=max_tokens), threads) as hands:
        checked = check_rows(data, store, hands, rejects)
    return checked, store, join_parts(out / "data.safetensors", checked.parts, data.data, codec.pad)


def test_a_special_token_that_a_template_writes_is_part_of_the_key(tmp_path: Path) -> None:
    keys, texts = [], []
    for number, token in enumerate(("<|im_start|>", "<|endoftext|>", "<|im_start|>")):
        codec_with(tmp_path / str(number), "{{ turn_token }}" + SHAPES["plain"])
        settings = tmp_path / str(number) / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"turn_token": token}))
        codec = load_codec(tmp_path / str(number))
        keys.append(cache_key(codec, Rules()))
        block = Block((UnparsedRow(1, b'{"question": "q", "answer": "a"}'),))
        texts.append(codec.tokenizer.decode(tokenise(block, Rules(), codec).ids.tolist(), skip_special_tokens=False))
    assert texts[0] == texts[2] != texts[1]
    assert keys[0] == keys[2] != keys[1]


def test_what_a_tokenizer_is_loaded_from_travels_to_a_cluster(tmp_path: Path) -> None:
    cluster = pytest.importorskip("holdfast.data.workers.cluster", reason="Ray is not installed")
    codec = codec_with(tmp_path / "model", SHAPES["plain"])
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    far = tmp_path / "far"
    far.mkdir()
    for name, data in cluster.Cluster("auto", codec, Rules(), check_block)._setting.files.items():
        (far / name).write_bytes(data)
    assert {file.name for file in far.iterdir()} == {file.name for file in (tmp_path / "model").iterdir()}


CHILD = r"""
import re, resource, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/data"]
from holdfast.data.workers import workers
from holdfast.data.workers.build import report
from holdfast.data.token_set.token_set import load_tokens
from test_token_cache import build
if __name__ == "__main__":
    workers._BLOCKS_HERE = 1
    model, rows, cache, out, threads, max_tokens = sys.argv[1:]
    checked, _, _ = build(Path(model), [Path(rows)], Path(cache), Path(out), int(threads), int(max_tokens))
    report(checked, load_tokens(Path(out) / "data.safetensors"))
    own = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # ru_maxrss counts the parent's, too
    print(own // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def child(model: Path, rows: Path, cache: Path, out: Path, threads: int = 1, max_tokens: int = 96) -> subprocess.Popen[str]:
    script = out.with_suffix(".py")
    script.write_text(CHILD.format(tests=str(ROOT / "tests")))
    command = [sys.executable, str(script), str(model), str(rows), str(cache), str(out), str(threads), str(max_tokens)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def shards_in(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.safetensors"))


def children_of(pid: int) -> list[int]:
    return [int(number) for task in Path(f"/proc/{pid}/task").iterdir() for number in (task / "children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """5,000 rows, that is five blocks; two of them cannot be trained on."""
    many = [row | {"instruction": f"{row['instruction']} {number}"} for number, row in enumerate(make_rows(5000))]
    many[30]["output"] = many[3000]["output"] = ""
    return write_rows(tmp_path / "rows.jsonl", many)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_build_goes_on_and_gives_the_same_bytes(assets: SimpleNamespace, tmp_path: Path, threads: int) -> None:
    many = [row | {"instruction": f"{row['instruction']} {number}"} for number, row in enumerate(make_rows(20_000))]
    file, cache = write_rows(tmp_path / "rows.jsonl", many), tmp_path / "cache"
    builder = child(assets.model, file, cache, tmp_path / "killed", threads)
    wait_until(lambda: len(shards_in(cache)) >= 5)
    helpers = children_of(builder.pid)
    builder.kill()
    assert builder.communicate() == ("", None)
    assert builder.returncode == -signal.SIGKILL
    assert bool(helpers) == (threads > 1)
    wait_until(lambda: not any(alive(pid) for pid in helpers))
    made = len(shards_in(cache))
    assert 5 <= made < 20
    checked, store, after = build(assets.model, [file], cache, tmp_path / "after")
    assert (checked.reused, len(checked.parts), store.damaged) == (made, 20, [])
    assert after == build(assets.model, [file], tmp_path / "other-cache", tmp_path / "undisturbed")[2]


def test_processes_give_the_same_bytes_as_one(assets: SimpleNamespace, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build(assets.model, [rows], tmp_path / "a", tmp_path / "alone")[2]
    monkeypatch.setattr(workers, "_BLOCKS_HERE", 0)
    assert build(assets.model, [rows], tmp_path / "b", tmp_path / "together", threads=2)[2] == alone
    assert [path.read_bytes() for path in shards_in(tmp_path / "a")] == [path.read_bytes() for path in shards_in(tmp_path / "b")]


@pytest.mark.parametrize("kind", [Workers, Copies])
def test_a_killed_worker_is_told(
    assets: SimpleNamespace, rows: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Workers | Copies]
) -> None:
    monkeypatch.setattr(workers, "_BLOCKS_HERE", 0)
    with kind(load_codec(assets.model), Rules(max_tokens=96), 2, check_block) as hands:
        begun = [hands.begin(block) for block in blocks(str(rows))]
        for process in multiprocessing.active_children():
            kill(process.pid)
        with pytest.raises(Stop, match="a process that tokenises rows was killed"):
            [work.result() for work in begun]


def test_no_block_is_worked_on_twice(assets: SimpleNamespace, rows: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def make(block: Block, _rules: Rules, _codec: Codec) -> bytes:
        with made.open("a") as file:
            file.write(f"{block.name}\n")
        return block.name.encode()

    several = [*blocks(str(rows))]
    assert len(several) == 5
    with Copies(load_codec(assets.model), Rules(max_tokens=96), 2, make) as hands:
        results = [hands.begin(block).result() for block in several[:2]]  # as for held-out rows, before the others
        results += [work.result() for work in [hands.begin(block) for block in several[2:]]]
    assert results == [block.name.encode() for block in several]
    assert sorted(made.read_text().split()) == sorted(block.name for block in several)


def test_rows_are_tokenised_once_whatever_their_file_is_called(assets: SimpleNamespace, rows: Path, tmp_path: Path) -> None:
    first, _, _ = build(assets.model, [rows], tmp_path / "cache", tmp_path / "a")
    moved, grown = tmp_path / "moved.jsonl", tmp_path / "grown.jsonl"
    moved.write_bytes(rows.read_bytes())
    grown.write_bytes(rows.read_bytes() + rows.read_bytes().splitlines(keepends=True)[0])
    again, _, _ = build(assets.model, [moved], tmp_path / "cache", tmp_path / "b")
    longer, _, _ = build(assets.model, [grown], tmp_path / "cache", tmp_path / "c")
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(rows.read_bytes().replace(b"amber", b"birch", 1))
    other, _, _ = build(assets.model, [changed], tmp_path / "cache", tmp_path / "d")
    assert (first.reused, again.reused, longer.reused, other.reused) == (0, 5, 4, 4)
    reports = [report(found, load_tokens(tmp_path / name / "data.safetensors")) for found, name in ((first, "a"), (again, "b"))]
    assert [found.pop("first_rejected") for found in reports] == [
        {"empty_answer": {"file": str(file), "line": 31}} for file in (rows, moved)
    ]
    assert reports[0] | {"seconds": 0} == reports[1] | {"seconds": 0}
    rejects = [[reject | {"file": Path(reject["file"]).name} for reject in lines(tmp_path / name / "rejects.jsonl")] for name in "ab"]
    assert [(reject["file"], reject["line"], reject["reason"]) for reject in rejects[1]] == [
        ("moved.jsonl", 31, "empty_answer"),
        ("moved.jsonl", 3001, "empty_answer"),
    ]
    assert [json.loads(reject["raw"]) for reject in rejects[0]] == [json.loads(reject["raw"]) for reject in rejects[1]]
    assert load_tokens(tmp_path / "b" / "data.safetensors").source(4000).line == 4003


def test_another_tokenizer_template_layout_or_length_is_another_key(assets: SimpleNamespace, tmp_path: Path) -> None:
    import shutil

    keys = {cache_key(load_codec(assets.model), Rules(layout, size)) for layout in ("auto", "chat") for size in (96, 97)}
    shutil.copytree(assets.model, tmp_path / "m")
    same = cache_key(load_codec(tmp_path / "m"), Rules(max_tokens=96))
    (tmp_path / "m" / "tokenizer.json").write_text((assets.model / "tokenizer.json").read_text() + "\n")
    tokenizer = cache_key(load_codec(tmp_path / "m"), Rules(max_tokens=96))
    (tmp_path / "m" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    template = cache_key(load_codec(tmp_path / "m"), Rules(max_tokens=96))
    assert same in keys
    assert len({*keys, tokenizer, template}) == 6


# ---- damage


def torn(file: Path) -> str:
    file.write_bytes(file.read_bytes()[:-100])
    return "its header describes"


def flipped(file: Path) -> str:
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    return "its checksum does not match"


def emptied(file: Path) -> str:
    file.write_bytes(b"")
    return "0 bytes cannot hold its header"


def another_files(file: Path) -> str:
    file.write_bytes(b"no safetensors file at all, but long enough for a header")
    return "cannot hold its header"


def counts_changed(file: Path) -> str:
    data = file.read_bytes()
    assert data.count(b'\\"kept\\":1024') == 1
    file.write_bytes(data.replace(b'\\"kept\\":1024', b'\\"kept\\":1023'))
    return "its checksum does not match"


def of_another_version(file: Path) -> str:
    data = file.read_bytes()
    assert data.count(b'\\"version\\":4,') == 1
    file.write_bytes(data.replace(b'\\"version\\":4,', b'\\"version\\":0,'))
    return "it is of version 0, this is version 4"


@pytest.mark.parametrize("damage", [torn, flipped, emptied, another_files, counts_changed, of_another_version])
def test_a_shard_that_does_not_verify_is_made_again(assets: SimpleNamespace, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    file = write_rows(tmp_path / "rows.jsonl", make_rows(2048))
    before = build(assets.model, [file], tmp_path / "cache", tmp_path / "a")[2]
    victim = shards_in(tmp_path / "cache")[0]
    whole = victim.read_bytes()
    says = damage(victim)
    checked, store, after = build(assets.model, [file], tmp_path / "cache", tmp_path / "b")
    assert (checked.reused, len(store.damaged)) == (1, 1)
    assert says in store.damaged[0] and str(victim) in store.damaged[0]
    assert victim.read_bytes() == whole
    tokens = [load_tokens(tmp_path / name / "data.safetensors") for name in "ab"]
    assert after == before and len(tokens[0]) == len(tokens[1]) == 2048


def prepared(assets: SimpleNamespace, config: Path, run: Path) -> dict[str, Any]:
    """The data part of preparing a run; the facts for the plan."""
    run.mkdir(exist_ok=True)
    return check_data(RunFolder(run), load_config(config), read_model(str(assets.model)), Terminal(to_stderr=False, quiet=False))[1]


def test_damage_is_an_event_and_a_line(
    assets: SimpleNamespace,
    config_of: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    facts = prepared(assets, config_of(), tmp_path / "a")
    assert hashlib.sha256((tmp_path / "a" / "data.safetensors").read_bytes()).hexdigest() == facts["data_sha256"]
    assert prepared(assets, config_of(), tmp_path / "b") == facts
    assert "; from the token cache: 1 of 1 blocks" in capsys.readouterr().out
    torn(shards_in(tmp_path / "cache" / "tokens")[0])
    assert prepared(assets, config_of(), tmp_path / "c") == facts
    assert "! damaged shards of the token cache made again: 1; the first: " in capsys.readouterr().out
    assert events(tmp_path / "c", "token_shards_rebuilt")[0]["shards"] == 1


def no_folder(place: Path) -> tuple[Path, str]:
    (place / "file").write_text("in the way")
    return place / "file", "Not a directory"


def full_disk(place: Path) -> tuple[Path, str]:
    fill(place)
    return place / "cache", "No space left on device"


def read_only_disk(place: Path) -> tuple[Path, str]:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    return place / "cache", "Read-only file system"


@pytest.mark.parametrize("spoil", [no_folder, full_disk, read_only_disk])
def test_a_cache_that_cannot_be_written_is_told_and_done_without(
    assets: SimpleNamespace,
    config_of: Callable[..., Path],
    tmp_path: Path,
    small_disk: Path,
    spoil: Callable[[Path], tuple[Path, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "good"))
    facts = prepared(assets, config_of(), tmp_path / "a")
    place, reason = spoil(small_disk)
    monkeypatch.setenv("HOLDFAST_CACHE", str(place))
    assert prepared(assets, config_of(), tmp_path / "b") == facts
    assert [line for line in capsys.readouterr().out.splitlines() if "no token cache: " in line and reason in line]
    assert reason in events(tmp_path / "b", "token_cache_refused")[0]["reason"]
    assert not events(tmp_path / "b", "token_shards_rebuilt")
    assert not (tmp_path / "b" / "token-shards").exists()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", make_rows(10))
    reading = read_rows(str(file))
    next(reading)
    with file.open("a") as handle:
        handle.write('{"instruction": "late"')
    with pytest.raises(Stop, match=r"changed while it was read \(\d+ bytes before, \d+ now\)"):
        list(reading)


# ---- memory and form


def test_memory_does_not_grow_with_the_rows(assets: SimpleNamespace, tmp_path: Path) -> None:
    """Six times the rows (15,000 more of 512 tokens, 31 MB of token set) may cost half of that in buffers that fill up."""
    peaks = []
    for count in (3_000, 18_000):
        long = [{"instruction": f"Say {number}", "output": "amber birch " * 200 + str(number)} for number in range(count)]
        file = write_rows(tmp_path / f"{count}.jsonl", long)
        builder = child(assets.model, file, tmp_path / "cache", tmp_path / str(count), threads=2, max_tokens=512)
        peaks.append([int(peak) for peak in builder.communicate()[0].split()])
        assert builder.returncode == 0
    sizes = [(tmp_path / str(count) / "data.safetensors").stat().st_size for count in (3_000, 18_000)]
    assert sizes[1] - sizes[0] > 28 << 20, "the test must build enough to see growth"
    assert all(large < small + 16 for small, large in zip(*peaks, strict=True)), peaks


def test_an_array_is_read_in_windows(tmp_path: Path) -> None:
    """Elements, lines and the memory they take, of a file much longer than the window."""
    file = tmp_path / "rows.json"
    long = [{"text": f"{number} " + "ü€" * (number * 37 % 400)} for number in range(20_000)]
    file.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in long) + "\n]", encoding="utf-8")
    assert file.stat().st_size > 15 << 20
    tracemalloc.start()
    count = 0
    for number, row in enumerate(read_unparsed(str(file))):
        assert (row.line, row.damage) == (number + 2, None)
        assert json.loads(row.raw) == long[number]
        count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 6 << 20


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_where_a_window_ends_makes_no_difference(tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = (
        b'\xef\xbb\xbf[ {"a": "]\\"["},\n 12.5e+3, -0, [1, [2]] ,"x" \n]\n',
        b'[{"a": 1} oops {"b": 2}]',
        b'[{"a": 1},',
        b'[{"a": "\xff"}, 1, "\xc3\xa4"]',
    )
    file = tmp_path / "rows.json"
    for content in contents:
        file.write_bytes(content)
        expected = list(read_rows(str(file)))
        with monkeypatch.context() as small:
            small.setattr("holdfast.data.files.json_stream.WINDOW", max(window, 5 if content.startswith(b"\xef") else 1))
            assert list(read_rows(str(file))) == expected


def test_the_token_set_is_mapped_and_its_file_is_what_safetensors_writes(assets: SimpleNamespace, rows: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save

    build(assets.model, [rows, assets.rows], tmp_path / "cache", tmp_path / "a")
    path = tmp_path / "a" / "data.safetensors"
    tokens = load_tokens(path)
    names = ("ids", "learned", "starts", "file", "line", *(["group"] if tokens.group is not None else []))
    arrays = {name: getattr(tokens, name) for name in names}
    assert f"{path}\n" in Path("/proc/self/maps").read_text()
    assert not any(array.flags.owndata or array.flags.writeable for array in arrays.values())
    facts = json.dumps(
        {"files": tokens.files, "held_out_files": 0, "pad": tokens.pad, "grouped_by": tokens.grouped_by},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    assert path.read_bytes() == save({name: np.array(array) for name, array in arrays.items()}, metadata={"holdfast": facts})
    theirs = load_file(path)
    assert all(np.array_equal(theirs[name], arrays[name]) for name in names)
    block = next(iter(blocks(str(rows))))
    first = tokenise(block, Rules(max_tokens=96), load_codec(assets.model))
    assert np.array_equal(tokens.ids[: len(first.ids)], first.ids)
    assert shard.read_shard(shard_bytes(first)).verdicts == first.verdicts


def test_a_damaged_token_set_is_refused(assets: SimpleNamespace, tmp_path: Path) -> None:
    build(assets.model, [assets.rows], tmp_path / "cache", tmp_path / "a")
    torn(tmp_path / "a" / "data.safetensors")
    with pytest.raises(ValueError, match=r"data\.safetensors is damaged: it has [\d,]+ bytes"):
        load_tokens(tmp_path / "a" / "data.safetensors")


def test_reading_rows_notes_how_many_were_read(assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    find = TokenCache.find

    def noting(self: TokenCache, name: str) -> Any:
        noted.append(what_is_done())
        return find(self, name)

    monkeypatch.setattr(TokenCache, "find", noting)
    file = write_rows(tmp_path / "rows.jsonl", make_rows(6 * 1024))
    build(assets.model, [file], tmp_path / "cache", tmp_path / "a")
    begun = f"reading and checking the rows of {file}"
    assert noted[0] == begun and set(noted[1:]) <= {begun, *(f"{begun}, {count * 1024:,} so far" for count in range(1, 7))}
    assert noted[-1] != begun and not what_is_done()


def test_answers_that_count_less_than_whole_are_so_in_the_token_set(assets: SimpleNamespace, tmp_path: Path) -> None:
    def rows(one: Any, two: Any) -> list[dict[str, Any]]:
        turns = [{"role": role, "content": text} for role, text in (("user", "q1"), ("assistant", "amber one"), ("user", "q2"))]
        marked = [turns[0], turns[1] | one, turns[2], {"role": "assistant", "content": "amber two"} | two]
        return [{"messages": marked}, {"prompt": "Join", "completion": "plain"}]

    def made(name: str, one: Any, two: Any) -> Path:
        file = write_rows(tmp_path / f"{name}.jsonl", rows(one, two))
        build(assets.model, [file], tmp_path / "cache", tmp_path / name)
        return tmp_path / name / "data.safetensors"

    plain, shares = load_tokens(made("plain", {}, {})), load_tokens(made("shares", {"weight": 0.25}, {"weight": 0.5}))
    assert plain.share is None and shares.share is not None
    assert np.array_equal(plain.ids, shares.ids) and np.array_equal(plain.learned, shares.learned)
    learned = shares.share[shares.learned == 1].tolist()
    assert sorted({*learned}) == [0.25, 0.5, 1.0] and learned == sorted(learned)  # the first answer, the second, the plain row
    masked, nought = load_tokens(made("masked", {"masked": True}, {})), load_tokens(made("nought", {"weight": 0}, {"weight": 1}))
    assert masked.share is None and nought.share is None and np.array_equal(masked.learned, nought.learned)
    assert 0 < masked.learned.sum() < plain.learned.sum()
    shown = show_row(UnparsedRow(1, json.dumps(rows({"weight": 0.25}, {})[0]).encode()), Rules(), load_codec(assets.model))
    assert {token.get("weight", 1.0) for token in shown.tokens if token["learned"]} == {0.25, 1.0}
    assert not any("weight" in token for token in shown.tokens if not token["learned"])
    block = next(blocks(str(tmp_path / "shares.jsonl")))
    found = tokenise(block, Rules(), load_codec(assets.model)).verdicts
    assert found.taught.as_json()["shares"] == 2
    assert "2 of 3 answers count less than whole, as their rows say" in told_of(found.taught.as_json())


@pytest.mark.parametrize("worse", [False, True])
def test_answers_held_against_others_count_whole(assets: SimpleNamespace, worse: bool) -> None:
    asked = {"role": "user", "content": "q"}
    better, other = ({"role": "assistant", "content": text} | mark for text, mark in (("yes", {"weight": 0.5}), ("no", {})))
    pair = {"prompt": [asked], "chosen": [other if worse else better], "rejected": [better if worse else other]}
    rules = Rules(wanted="pairs", learns="last")
    found = tokenise(Block((UnparsedRow(1, json.dumps(pair).encode()),)), rules, load_codec(assets.model)).verdicts
    assert dict(found.by_reason) == {"bad_weight": 1}


@pytest.mark.parametrize(("adapter", "positions", "limit"), [({}, 64, 64), ({"type": "prompt"}, 64, 44), ({"type": "prompt"}, None, 512)])
def test_a_row_leaves_room_for_the_learned_tokens_before_it(adapter: dict[str, Any], positions: int | None, limit: int) -> None:
    """With a table of positions, as GPT-2 has one, a row of all of them ended the training with an index out of range."""
    tree = {"model": "m", "data": {"files": "x"}, "adapter": adapter, "train": {"max_tokens": 512}}
    assert longest_row(Config.model_validate(tree), cast("ModelFacts", SimpleNamespace(positions=positions))) == limit
