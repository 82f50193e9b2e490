"""Source that a traceback quotes accuses nobody: lines of the libraries themselves that speak of failures, above errors of a user's own."""

from __future__ import annotations

import functools
import importlib.util
import random
import re
from pathlib import Path

import pytest

from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose, lines_as_seen
from holdfast.diagnosis.logs.frames import tracebacks
from holdfast.diagnosis.logs.text import Evidence, clean_lines

BOOK = cards_of("failures")
FILES = (
    *("torch/utils/data/dataloader.py", "torch/utils/data/_utils/fetch.py", "torch/utils/data/_utils/collate.py"),
    *("torch/utils/data/_utils/worker.py", "torch/utils/data/sampler.py", "torch/serialization.py", "torch/_tensor.py"),
    *("torch/cuda/__init__.py", "torch/cuda/memory.py", "torch/nn/parallel/distributed.py", "torch/amp/grad_scaler.py"),
    *("torch/distributed/distributed_c10d.py", "torch/distributed/elastic/multiprocessing/api.py", "torch/autograd/__init__.py"),
    *("torch/nn/modules/module.py", "torch/optim/optimizer.py", "torch/nn/functional.py", "torch/utils/cpp_extension.py"),
    *("transformers/trainer.py", "transformers/modeling_utils.py", "transformers/tokenization_utils_base.py"),
    *("transformers/configuration_utils.py", "transformers/utils/hub.py", "transformers/integrations/bitsandbytes.py"),
    *("peft/peft_model.py", "peft/tuners/lora/model.py", "huggingface_hub/file_download.py", "safetensors/torch.py"),
)
TELLING = re.compile(
    r"error|exception|memory|stopiteration|\bnan\b|\binf\b|timeout|timed out|kill|abort|fault|corrupt|missing|unexpected|mismatch|empty"
    r"|not found|no such|unsupported|invalid|disk|space|shm|nccl|cuda|hip|driver|deadlock|hang|signal|token|label|grad",
    re.I,
)
OWN = (  # what a user's own program raises, of which no card can know the reason
    "ValueError: speaker 7 has no recording",
    "KeyError: 'speaker'",
    "corpus.MissingRecording: speaker 7",
    "AssertionError",
)
SHAPES = {
    "python": '  File "{file}", line {line}, in {name}\n    {code}\n    ^^^^^^^^^^^^',
    "rank": '[rank3]:   File "{file}", line {line}, in {name}\n[rank3]:     {code}',
    "flat": 'File "{file}", line {line}, in {name}\n{code}',
    "rich": "│ {file}:{line} in {name} │\n│ ❱ {line} │   {code} │",
}
FRAMES = 6


@functools.cache
def quotable() -> list[tuple[str, int, str, str]]:
    """(file, line, function, code) of lines that speak of failures."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    site = Path(spec.origin).parent.parent
    found = []
    for name in FILES:
        function = "main"
        if not (site / name).exists():
            continue
        for number, line in enumerate((site / name).read_text(encoding="utf-8").split("\n"), 1):
            if defined := re.match(r"\s*def (\w+)", line):
                function = defined[1]
            if len(line) < 200 and TELLING.search(line):
                found.append((f"/env/site-packages/{name}", number, function, line.strip()))
    return found


def traceback(frames: list[tuple[str, int, str, str]], shape: str, own: str, code: bool = True) -> str:
    quoted = (SHAPES[shape].format(file=f, line=n, name=name, code=text if code else "x") for f, n, name, text in frames)
    mine = SHAPES[shape].format(file="/home/me/corpus.py", line=12, name="read_speaker", code="raise found")
    end = "[rank3]: " if shape == "rank" else ""
    return "\n".join((f"{end}Traceback (most recent call last):", *quoted, mine, f"{end}{own}"))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_card_fires_on_source_that_a_traceback_quotes(shape: str) -> None:
    """The same cards fire whatever the code in the frames says; what the frames' places speak for is another matter."""
    assert len(quotable()) > 2000
    chance = random.Random(shape)
    for _ in range(30):
        frames, own = chance.sample(quotable(), FRAMES), chance.choice(OWN)
        read, blank = (lines_as_seen(Evidence(tuple(clean_lines(traceback(frames, shape, own, code))), 1))[1] for code in (True, False))
        assert {card.id for card in BOOK.values() if card.matches(read)} == {card.id for card in BOOK.values() if card.matches(blank)}, (
            traceback(frames, shape, own)
        )


LOADER = "/env/site-packages/torch/utils/data/dataloader.py"
NEXT = (LOADER, 788, "_next_data", "data = self._dataset_fetcher.fetch(index)  # may raise StopIteration")


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_of_ones_own_under_a_loader_is_not_named_but_shown(shape: str, own: str) -> None:
    fetch = "/env/site-packages/torch/utils/data/_utils/fetch.py"
    frames = [
        (LOADER, 732, "__next__", "data = self._next_data()"),
        (
            "/env/site-packages/torch/utils/data/dataloader.py",
            788,
            "_next_data",
            "data = self._dataset_fetcher.fetch(index)  # may raise StopIteration",
        ),
        (fetch, 52, "fetch", "data = [self.dataset[idx] for idx in possibly_batched_index]"),
    ]
    found = diagnose(Evidence(tuple(clean_lines(traceback(frames, shape, own))), 1), BOOK)
    assert found.cards == () and found.confidence <= 0.5, found
    assert own in found.clues[0].text


def test_rows_of_different_lengths_are_told_as_that() -> None:
    frames = [
        (
            "/env/site-packages/torch/utils/data/dataloader.py",
            788,
            "_next_data",
            "data = self._dataset_fetcher.fetch(index)  # may raise StopIteration",
        ),
        ("/env/site-packages/torch/utils/data/_utils/collate.py", 207, "collate_tensor_fn", "return torch.stack(batch, 0, out=out)"),
    ]
    own = "RuntimeError: stack expects each tensor to be equal size, but got [5] at entry 0 and [7] at entry 1"
    found = diagnose(Evidence(tuple(clean_lines(traceback(frames, "python", own))), 1), BOOK)
    assert own in found.clues[0].text
    assert "data-empty" not in found.cards


def test_what_exceptions_say_is_told_from_what_their_frames_quote() -> None:
    log = clean_lines(
        'Traceback (most recent call last):\n  File "/a.py", line 3, in f\n    raise ValueError("CUDA out of memory")\n'
        "ValueError: no\n\nDuring handling of the above exception, another exception occurred:\n\n"
        '  File "/a.py", line 9, in g\n    g()\n    ^^^\n  File "/b.py", line 2, in h\nmy.Odd: thing\n'
        "/c.py:12: UserWarning: slow\n  warnings.warn('CUDA out of memory')\nstep 1\n"
        '  File "/a.py", line 3, in f\n    cut("here")'
    )
    found = tracebacks(log)
    assert [log[at].text for at in found.own] == ["ValueError: no", "my.Odd: thing"]
    assert [log[at].text.strip() for at in sorted(found.quoted)] == [
        'raise ValueError("CUDA out of memory")',
        'File "/a.py", line 9, in g',
        "g()",
        "^^^",
        "warnings.warn('CUDA out of memory')",
    ]
