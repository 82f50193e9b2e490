"""Look for bytes that break the law of rows, guided by what they reach in reader and checks: rows = kept + mended + rejected.

    pip install atheris && python scripts/fuzz_rows.py --seconds 600

Of every file: no byte is lost, the counts agree with the written lines, every line is JSON, cleaning the clean file again changes nothing,
and `train` judges each row as `data clean` does. Anything else, a traceback or 20 s without an answer is a finding: it is printed, and its
bytes are kept as OUT/crash-... . Give that file as the argument to see it again.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from pathlib import Path

import orjson

os.environ["TOKENIZERS_PARALLELISM"] = "false"

try:
    import atheris
except ModuleNotFoundError:
    sys.exit("this needs atheris: pip install atheris")

with atheris.instrument_imports(include=["holdfast"]):
    from holdfast.base_model.folder import EMBEDDED
    from holdfast.data.files.form import form_of
    from holdfast.data.judge.rules import Rules, checks
    from holdfast.data.survey.clean import clean_files
    from holdfast.data.survey.findings import Findings
    from holdfast.data.survey.survey import clean_block
    from holdfast.data.tokens.codec import load_codec, plain_codec
    from holdfast.data.tokens.shard import Verdicts, blocks, tokenise
    from holdfast.data.workers.workers import Workers

    checks()  # loads the cards

SUFFIXES = ("jsonl", "json", "csv", "tsv", "txt")
RULES = (
    Rules(),
    Rules(max_tokens=8, too_long="reject"),
    Rules(max_tokens=8, too_long="split"),
    Rules(max_tokens=12, redact=True),
    Rules(redact=True),
    Rules(layout="chat"),
    Rules(fields=(("instruction", "q"), ("output", "a"))),
)
REPEATED = frozenset({"duplicate", "near_duplicate", "conflicting_answer"})
_CODEC = load_codec(EMBEDDED["tiny"])
CODECS = (_CODEC, plain_codec(_CODEC))
BROKEN = Path(__file__).parents[2] / "shared" / "data" / "broken"
WRITTEN_OUT = ("lines", "array", "values", "text")  # forms whose rows are pieces of the file
LONGEST = 1024  # bytes of a seed
SEEDS = (
    b'{"instruction": "Name a tree", "input": "", "output": "birch"}\n{"instruction": "Name a tree", "output": "fir"}\n',
    b'[{"prompt": "a", "completion": "b"},\n {"prompt": "a", "completion": "b"}]',
    b'{\n  "question": "a",\n  "answer": "b"\n}\n{\n  "question": "c"\n}',
    b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    b'{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n',
    b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "tool_calls": '
    b'[{"function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "1"}, {"role": "assistant", "content": "b"}]}\n',
    b'{"text": "mail me at someone@example.org, key sk-abcdefghijklmnopqrstuvwxyz0123456789"}\n{"text": NaN, "n": 1e999}\n',
    b'{"text": "sch\xc3\x83\xc2\xb6n"}\r\n{"text": "a\\u0000b\\ud83d"}{"text": "\xff"}\n\n',
    b'instruction,output\r\n"Name, a tree","bi""rch"\nx\n',
    b"text\ttext\na\tb\n",
    b'{"text": "a"}{"text": "b"} {"text": "c"}\n{"text": "\\ud83d", "n": NaN}\n{"text": "a", "text": "b"}\n{"text": "'
    + b"long " * 150
    + b'"}\n',
    b'[{"text": "a"}, oops, {"text": "b"}\n{"text": "c"}',
    b"plain text\n\xff\xfe and not\n",
    '\ufeff{"text": "a"}\n'.encode("utf-16-le"),
    b'{"text": "One. Two! Three? ' + b"Four five six. " * 9 + b'"}\n',
    bytes.fromhex("1f8b08000000000002ffab562a49ad2851b2525028512ae1020000000000"),
)
ROWS = ('{"text":"a"}', '{"prompt":"a","completion":"b"}', '{"from":"human","value":"a"}', '{"role":"assistant","content":"b"}')
WORDS = (
    *(row.replace('"', '\\"') for row in ROWS),
    *("instruction", "input", "output", "prompt", "completion", "question", "answer", "text", "messages", "conversations"),
    *("role", "content", "from", "value", "user", "assistant", "system", "tool", "human", "gpt", "tool_calls", "arguments"),
    *("NaN", "-Infinity", "1e999", "null", "true", "\\\\ud83d", "\\\\u2028", "}{", "},", "[{", '\\"', "<|im_start|>", "<|im_end|>"),
    *("\\xff\\xfe", "\\xef\\xbb\\xbf", "\\x1f\\x8b\\x08", "\\x28\\xb5\\x2f\\xfd", "BZh9"),
    *("\\xe2\\x80\\xa8", "\\xc2\\x85", "\\xed\\xa0\\x80", "\\xc3\\x83\\xc2\\xb6"),
)


def judge(folder: Path, data: bytes) -> None:
    """Hold one input to the law; its first three bytes say how the rest is read. Raises AssertionError, or what should not happen."""
    suffix, rules, codec, drop = choices(data)
    file = folder / f"rows.{suffix}"
    file.write_bytes(data[3:])
    first, clean = cleaned(file, folder, rules, codec, REPEATED if drop else frozenset())
    trained, raw = Verdicts(), b""
    for block in blocks(str(file)):
        trained.add(tokenise(block, rules, codec).verdicts)
        raw += b"".join(row.raw for row in block.rows)
    form = form_of(str(file))
    as_they_stand = form.head.encoding == "" or (form.head.encoding == "latin-1" and form.kind != "text")  # Latin-1 texts are recoded
    if form.kind in WRITTEN_OUT and not form.head.compression and as_they_stand:
        assert squeezed(raw) == squeezed(data[3:]), "bytes of the file are in no row"
    if not drop:
        assert (trained.kept, trained.mended, trained.rejected) == (first.kept, first.mended, first.rejected), (trained, first)
        assert trained.by_reason == first.by_reason, (trained, first)
    again = folder / "again.jsonl"
    again.write_bytes(clean)
    second, same = cleaned(again, folder, rules, codec, frozenset())
    assert same == clean, "cleaning the clean file changes it"
    assert (second.rows, second.rejected) == (first.kept + first.mended, 0), (first, second)
    assert file.read_bytes() == data[3:], "an input was written to"


def squeezed(text: bytes) -> bytes:
    """Without what stands between rows."""
    return text.translate(None, b" \t\r\n\v\f,[]")


def choices(data: bytes):  # type: ignore[no-untyped-def]
    first, second, third = data[:3].ljust(3, b"\0")
    return SUFFIXES[first % len(SUFFIXES)], RULES[second % len(RULES)], CODECS[third & 1], third & 2


@functools.cache
def worker(rules: Rules, plain: bool) -> Workers:
    return Workers(CODECS[plain], rules, 1, clean_block)


def cleaned(file: Path, folder: Path, rules: Rules, codec, drop: frozenset[str]) -> tuple[Verdicts, bytes]:  # type: ignore[no-untyped-def]
    """Clean a file, hold what was written to the counts; both."""
    findings = Findings(drop)
    places = folder / "clean.jsonl", folder / "rejects.jsonl", folder / "mended.jsonl"
    clean_files([str(file)], [], worker(rules, codec.stands_in), findings, *places, key="")
    orjson.dumps(findings.as_json())
    found = findings.verdicts
    assert found.rows == found.kept + found.mended + found.rejected
    clean, rejects, mended = (place.read_bytes() for place in places)
    assert len(clean.splitlines()) == len(clean.split(b"\n")) - 1 == found.kept + found.mended, (found, clean)
    entries = [orjson.loads(line) for line in rejects.splitlines()]
    assert len(entries) == found.rejected, (found, rejects)
    assert all({"file", "line", "reason", "detail"} <= set(entry) and ("raw" in entry) != ("raw_base64" in entry) for entry in entries)
    lines = [entry["line"] for entry in entries]
    assert lines == sorted(lines), lines
    assert len({orjson.loads(line)["line"] for line in mended.splitlines()}) <= found.mended, (found, mended)
    return found, clean


def seed(corpus: Path) -> None:
    """Write what the search begins with: small files of every form, and those that have broken other programs where they are at hand."""
    corpus.mkdir(parents=True, exist_ok=True)
    broken = [path.read_bytes()[:LONGEST] for path in sorted(BROKEN.rglob("*")) if path.is_file()] if BROKEN.is_dir() else []
    for number, text in enumerate((*SEEDS, *broken)):
        for how in (b"\0\0\0", bytes((number % len(SUFFIXES), number % len(RULES), number % 4))):
            (corpus / f"seed-{number:04}-{how.hex()}").write_bytes(how + text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("again", nargs="?", type=Path, metavar="FILE", help="a finding to look at again")
    parser.add_argument("--seconds", type=int, default=600, help="how long to look (default: 600)")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz-rows"), help="what was found and the corpus (default: runs/fuzz-rows)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-rows-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        if arguments.again:
            judge(Path(folder), arguments.again.read_bytes())
            print("the law holds")
            return
        child = os.fork()  # the search ends its process without a last word
        if not child:
            search(Path(folder), arguments.out, arguments.seconds)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def search(folder: Path, out: Path, seconds: int) -> None:
    """Make inputs until the time is over or one breaks the law; never returns."""
    corpus, words = out / "corpus", out / "words"
    seed(corpus)
    words.write_text("".join(f'"{word}"\n' for word in WORDS), encoding="ascii")
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=20", "-len_control=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(corpus), f"-dict={words}", f"-artifact_prefix={out}/", *limits], functools.partial(judge, folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
