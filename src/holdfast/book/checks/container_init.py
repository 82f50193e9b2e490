"""A container with an AMD card has a first process that takes the dead away."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info
from holdfast.run.types import Finding

# Programs that reap what is handed to them; shells do while they wait.
_REAPERS = frozenset({"docker-init", "tini", "tini-static", "catatonit", "dumb-init", "conmon", "init", "systemd"})
_REAPERS |= {"s6-svscan", "runit", "supervisord", "bash", "sh", "dash", "zsh", "podman-init", "pause"}


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if not machine.container or not machine.init or machine.init in _REAPERS or not machine.of("amd"):
        return
    message = (
        f"the container's first process is {machine.init}, which may leave dead processes lying: the driver keeps the card's memory "
        "of one that nobody took away"
    )
    yield info(message, "start the container with: docker run --init ... (podman run --init ...)", standing="reported")


CARD = Check(
    title="Dead processes of a container keep the card's memory",
    why=(
        "A process that died stays in the kernel's table until its parent asks for it, and orphans fall to the container's first process. "
        "Where that is no init, AMD's driver was seen to hold the memory of such a process on the card."
    ),
    source=["https://github.com/ROCm/mori/pull/473", "https://github.com/AMD-AGI/Hyperloom/pull/1572"],
    hits=[
        {"os": {"container": True, "init": "python3"}, "gpus": [{"arch": "gfx942"}]},
        {"os": {"container": True, "init": "sleep"}, "gpus": [{"arch": "gfx1100"}]},
    ],
    misses=[
        {"os": {"container": True, "init": "docker-init"}, "gpus": [{"arch": "gfx942"}]},
        {"os": {"container": False, "init": "python3"}, "gpus": [{"arch": "gfx942"}]},
        {"os": {"container": True, "init": "python3"}, "gpus": [{"arch": "sm_90"}]},
        {"os": {"container": True}, "gpus": [{"arch": "gfx942"}]},
    ],
    look=look,
)
