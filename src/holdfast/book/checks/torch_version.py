"""Torch is new enough."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, block
from holdfast.book.knowledge import torch_for
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch and within(torch.version, "<2.4"):
        yield block(f"torch {torch.version} is older than 2.4", torch_for(case.cards))


CARD = Check(
    title="Torch is too old",
    why=(
        "holdfast asks for torch 2.4 and is not tried with older ones. "
        "Transformers 5 takes none of those either: it acts as if torch were missing."
    ),
    source=["https://github.com/huggingface/transformers/blob/main/src/transformers/utils/import_utils.py"],
    hits=[{"torch": {"version": "2.3.1+rocm6.0"}}],
    misses=[{"torch": {"version": "2.4.0"}}, {"torch": {"version": "unknown"}}],
    look=look,
)
