"""What the run trains on."""

from collections.abc import Iterator, Sequence

from holdfast.base.units import counted
from holdfast.book.kinds.check import Case, Check, info
from holdfast.machine.facts import Gpu
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or case.machine.torch_error:
        return
    seen = torch.devices if torch.devices is not None else case.visible if torch.vendor else ()
    cards = [gpu for gpu in seen if not gpu.integrated] or seen
    used = (case.config.train.threads if case.config else None) or case.machine.threads
    threads = f", {counted(used, 'thread')}" if used else ""
    yield info(f"torch {torch.version} trains on {cards[0].words() if cards else f'the CPU{threads}'}{_others(case, cards)}")


def _others(case: Case, cards: Sequence[Gpu]) -> str:
    """Say what becomes of the other cards, as planning/ranks.py chooses them; empty where there are none."""
    if len(cards) < 2:
        return ""
    train = case.config.train if case.config else None
    if train is None or train.ranks == 1:
        return f", one of {len(cards)}; a run uses one GPU, the others stay idle"
    alike = sum((gpu.arch, gpu.memory_bytes) == (cards[0].arch, cards[0].memory_bytes) for gpu in cards)
    used = alike if train.ranks == "auto" else min(train.ranks, alike)
    used = used if train.reduction_parts == "off" else 1 << used.bit_length() - 1
    return f", {used} of {len(cards)} (train.ranks: {train.ranks})" + ("; the others stay idle" if used < len(cards) else "")


CARD = Check(
    title="The device a run uses",
    why="Torch takes the first GPU it sees, and the CPU when it sees none. This says which.",
    source=["https://pytorch.org/docs/stable/notes/cuda.html"],
    hits=[{"torch": {"version": "2.13.0+cpu"}}],
    misses=[{"torch": None}, {}],
    look=look,
)
