"""What the run trains on."""

from collections.abc import Iterator

from holdfast.base.units import counted
from holdfast.book.kinds.check import Case, Check, info
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or case.machine.torch_error:
        return
    seen = torch.devices if torch.devices is not None else case.visible if torch.vendor else ()
    cards = [gpu for gpu in seen if not gpu.integrated] or seen
    used = (case.config.train.threads if case.config else None) or case.machine.threads
    threads = f", {counted(used, 'thread')}" if used else ""
    others = f", one of {len(cards)}; a run uses one GPU, the others stay idle" if len(cards) > 1 else ""
    yield info(f"torch {torch.version} trains on {cards[0].words() if cards else f'the CPU{threads}'}{others}")


CARD = Check(
    title="The device a run uses",
    why="Torch takes the first GPU it sees, and the CPU when it sees none. This says which.",
    source=["https://pytorch.org/docs/stable/notes/cuda.html"],
    hits=[{"torch": {"version": "2.13.0+cpu"}}],
    misses=[{"torch": None}, {}],
    look=look,
)
