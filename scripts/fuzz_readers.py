"""Look for files that a reader answers with anything but a sentence, guided by what they reach in it.

    pip install atheris && python scripts/fuzz_readers.py yaml --seconds 600

READER is one of yaml (configs), json (machine files, plans, adapters, journals), arrow, parquet, safetensors, archive (what torch.save
writes), template, log. A traceback, a crash, more than 2 GiB or 20 s without an answer is a finding: it is printed, and its bytes are kept
as OUT/READER/crash-... (or timeout-, oom-). Give that file as the second argument to see it again. How rows are read: fuzz_rows.py.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

try:
    import atheris
except ModuleNotFoundError:
    sys.exit("this needs atheris: pip install atheris")

with atheris.instrument_imports(include=["holdfast", "yaml", "zipfile", "pickletools"]):
    from holdfast.base.errors import Stop, reading
    from holdfast.base_model.folder import read_description, stored_tensors
    from holdfast.book import cards_of
    from holdfast.checkup.environment import profile
    from holdfast.checkup.examine import examine
    from holdfast.checkup.recorded_machine import recorded
    from holdfast.config.load import load_config
    from holdfast.data.files.read import read_unparsed
    from holdfast.data.judge.turns import BadRow, Example, Message
    from holdfast.data.templates.chat_template import load_template, pieces
    from holdfast.diagnosis import word_similarity
    from holdfast.diagnosis.diagnose import diagnose
    from holdfast.diagnosis.explain import answer
    from holdfast.diagnosis.logs.text import Evidence
    from holdfast.export.registry import read_registry
    from holdfast.run.adapter_folder import read_start
    from holdfast.run.plan import read_plan
    from holdfast.run.timeline import read_timeline
    from holdfast.supervision.diagnose_run import read_lines_of
    from holdfast.supervision.foreign_checkpoints.archives import prove_archive
    from holdfast.supervision.foreign_checkpoints.tensors import NotWhole, prove_tensors

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet

ROOT = Path(__file__).parents[1]
LONGEST = 1 << 14  # bytes of an input
TURNS = Example((Message("system", "s"), Message("user", " Hi "), Message("assistant", "Ho\n"), Message("user", "x")))
CARDS = cards_of("failures")
PIECES = {card.id: tuple(word_similarity._texts(card)) for card in CARDS.values()}
word_similarity._texts = lambda card: PIECES[card.id]  # two thirds of the time that most logs take; the same for each of them


@dataclass(frozen=True)
class Reader:
    """read: gives the file to what reads it, in a folder of its own. allowed: what it may raise besides Stop. seeds: to begin with."""

    name: str
    read: Callable[[Path], object]
    seeds: Callable[[], Iterable[bytes]]
    allowed: tuple[type[Exception], ...] = ()
    words: tuple[str, ...] = ()


def read_tree(file: Path) -> None:
    """The same JSON as each of the files it may be: all of them have to answer."""
    for read in (_machine, read_plan, read_timeline, read_registry, _adapter, _model):
        try:
            with reading(file.parent):
                read(file)
        except Stop:
            continue


def _machine(file: Path) -> None:
    facts = recorded(file)
    examine(facts)
    profile(facts)


def _adapter(file: Path) -> None:
    folder = file.parent / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(file.read_bytes())
    (folder / "adapter_model.safetensors").write_bytes(small_tensors())
    read_start(folder)


def _model(file: Path) -> None:
    folder = file.parent / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(file.read_bytes())
    read_description(str(folder))


def read_rows(file: Path) -> None:
    for _ in read_unparsed(str(file)):
        pass


def read_tensors(file: Path) -> None:
    stopped: Stop | None = None
    try:
        stored_tensors(file)
    except Stop as error:
        stopped = error
    try:
        prove_tensors(file)
    except NotWhole:
        return
    if stopped:
        raise stopped


def read_template(file: Path) -> None:
    template = load_template(file.parent)
    try:
        pieces(TURNS, template)
    except BadRow:
        return


def read_log(file: Path) -> None:
    lines = read_lines_of(str(file))
    answer(diagnose(Evidence(lines, None, {}), CARDS), CARDS)


def small_tensors() -> bytes:
    one, other = (b'{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}', b'{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}')
    header = b'{"__metadata__":{"format":"pt"},"a":%s,"b":%s}' % (one, other)
    return len(header).to_bytes(8, "little") + header + b"\0" * 12


def columns(write: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    table = pa.table({"instruction": ["a", None, "ccc"], "output": ["d", "e", "f" * 40], "n": [1, 2, 3], "l": [[1], [], None]})
    out = io.BytesIO()
    write(table, out)
    return out.getvalue()


def streamed(table: pa.Table, out: io.BytesIO) -> None:
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)


def archived(how: int = zipfile.ZIP_STORED, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as held:
        held.writestr("archive/data.pkl", pickle.dumps({"state": [1e-4, "x", ()]}, protocol=protocol))
        held.writestr("archive/data/0", b"\1" * 64)
    return out.getvalue()


CONFIGS = (
    b"model: tiny\ndata:\n  files: [rows.jsonl]\n  held_out: 0.1\nadapter: {r: 8, targets: [q_proj]}\ntrain:\n  steps: 10\n  lr: 1e-4\n",
    b"task: tabular\ndata: {files: t.csv}\ntable: {target: y}\nnetwork: {kind: tabm, hidden: '8,8'}\n",
    b"model: &m tiny\nname: *m\ntrain: {objective: dpo, micro_batch_tokens: 0x10}\nfaults:\n- {when: {step: 2}, effect: raise}\n",
    b"base_model: x\nlearning_rate: 2e-4\nlora_r: 8\n? [a, b]\n: {c: !!str 2026-02-30}\n--- \n...\n",
)
TREES = (
    b'{"os": {"kernel": "6.8"}, "python": "3.12.3", "memory_bytes": 64, "torch": {"version": "2.9.1+rocm6.4", "hip": "6.4"}, '
    b'"gpus": [{"vendor": "amd", "arch": "gfx900", "memory_bytes": 1}], "devices": {"/dev/kfd": {"exists": true}}, '
    b'"packages": {"peft": null}}',
    b'{"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "peft_type": "LORA", "base_model_name_or_path": "m", "rank_pattern": {}}',
    b'{"model_type": "qwen2", "architectures": ["Q"], "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 99, "rope_scaling": null}',
    b'{"event":"exported","name":"a","version":1,"run":null,"base":"m","adapter_sha256":"f","data_sha256":null,"kind":"k","path":"p","files":[]}\n'
    b'{"event":"promoted","name":"a","version":1}\n{"event":"rolled_back","name":"a","version":1}\n',
    b'{"from_step": 1, "reason": "begun", "settings": {"lr": 0.001}, "settings_all": {}}\n',
    b'{"fits": true, "peak_bytes": 1, "capacity_bytes": null, "bytes": {"weights": 1}, "params": {"total": 1, "trainable": 1}, '
    b'"reasons": []}',
)
TEMPLATES = (
    b"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    b"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    b"{%- set ns = namespace(a=0) -%}{% for m in messages if not loop.first %}{% set ns.a = ns.a + 1 %}"
    b"{{ bos_token ~ m['content'].split('x')[-1] }}{% endfor %}",
    b"{% macro f(a, b=1) %}{{ a * b }}{% endmacro %}{{ f('x', 3) }}{% block b %}{{ '%s' % 1 }}{% endblock %}"
    b"{{ raise_exception('no') if tools }}",
    b"{{ messages | map(attribute='content') | join(',') | upper | replace('A', 'b') | center(9) | tojson(indent=2) }}{% break %}",
)
LOGS = [hit.encode() for card in CARDS.values() for hit in card.hits if isinstance(hit, str)][::3]
READERS = {
    reader.name: reader
    for reader in (
        Reader("yaml", functools.partial(load_config, need_rows=False), lambda: CONFIGS, words=("!!python/name:", "<<: ", "&a ", "*a ")),
        Reader("json", read_tree, lambda: TREES, words=("1e999", "NaN", "null", "[[[[", "\\\\ud800", "9" * 40)),
        Reader("arrow", read_rows, lambda: (columns(feather.write_feather), columns(streamed)), words=("ARROW1", "\\xff\\xff\\xff\\xff")),
        Reader("parquet", read_rows, lambda: (columns(parquet.write_table),), words=("PAR1",)),
        Reader("safetensors", read_tensors, lambda: (small_tensors(),), words=("dtype", "shape", "data_offsets", "[0,8]", "F32")),
        Reader(
            "archive",
            prove_archive,
            lambda: (archived(), archived(zipfile.ZIP_DEFLATED, 4), pickle.dumps({"a": [1]}, protocol=2)),
            (NotWhole,),
            words=("PK\\x03\\x04", "PK\\x01\\x02", "PK\\x05\\x06", "cos\\x0asystem\\x0a"),
        ),
        Reader("template", read_template, lambda: TEMPLATES, words=("{{", "}}", "{%", "%}", "|", "range(", "loop.", "messages", "**", "~")),
        Reader("log", read_log, lambda: LOGS, words=("Traceback (most", "Error: ", "\\x1b[", "\\x0d", "[rank0]: ", "100%|")),
    )
}
SUFFIXES = {"yaml": "config.yaml", "arrow": "rows.arrow", "parquet": "rows.parquet", "safetensors": "model.safetensors"}
SUFFIXES |= {"template": "chat_template.jinja", "archive": "optimizer.pt"}


def judge(reader: Reader, folder: Path, data: bytes) -> None:
    """Give one input to the reader; anything but an answer, a Stop or what it may raise goes on up."""
    file = folder / SUFFIXES.get(reader.name, f"file.{reader.name}")
    file.write_bytes(data)
    try:
        reader.read(file)
    except Stop as stop:
        assert stop.code in (1, 2) and stop.message and len(stop.message) < 20_000, stop
    except reader.allowed:
        return


def search(reader: Reader, folder: Path, out: Path, seconds: int, longest: int) -> None:
    """Make inputs until the time is over or one is a finding; never returns."""
    corpus, words = out / "corpus", out / "words"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed[:LONGEST])
    words.write_text("".join(f'"{word}"\n' for word in reader.words), encoding="ascii")
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={longest}", "-rss_limit_mb=2048", "-print_final_stats=1"]
    limits.append(f"-dict={words}")
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={out}/", *limits], functools.partial(judge, reader, folder))
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS, metavar="READER")
    parser.add_argument("again", nargs="?", type=Path, metavar="FILE", help="a finding to look at again")
    parser.add_argument("--seconds", type=int, default=600, help="how long to look (default: 600)")
    parser.add_argument("--longest", type=int, default=20, help="seconds for one input; more where much else runs (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz-readers"), help="findings and corpus (default: runs/fuzz-readers)")
    arguments = parser.parse_args()
    reader = READERS[arguments.reader]
    with tempfile.TemporaryDirectory(prefix="fuzz-readers-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        if arguments.again:
            judge(reader, Path(folder), arguments.again.read_bytes())
            print("it is answered")
            return
        child = os.fork()  # the search ends its process without a last word
        if not child:
            search(reader, Path(folder), arguments.out / reader.name, arguments.seconds, arguments.longest)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
