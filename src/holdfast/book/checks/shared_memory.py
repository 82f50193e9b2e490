"""There is room in /dev/shm."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding

_SMALL_BYTES, _MODEST_BYTES = 256 << 20, 1 << 30


def look(case: Case) -> Iterator[Finding]:
    size, container = case.machine.shm_bytes, case.machine.container
    if size is None or size >= _MODEST_BYTES:
        return
    fix = "start the container with --shm-size=8g" if container is not False else "sudo mount -o remount,size=8G /dev/shm"
    message = (
        f"/dev/shm has {size / 2**20:.0f} MiB: snapshots go to the run folder instead; loaders and collectives of "
        "other trainers die there with a bus error"
    )
    yield (warn if size < _SMALL_BYTES else info)(message, fix)


CARD = Check(
    title="/dev/shm is small",
    why=(
        "Containers get 64 MiB of shared memory unless told otherwise. Data loaders and NCCL use it, and running "
        "out kills with SIGBUS or a misleading 'No space left on device'."
    ),
    source=["https://github.com/NVIDIA/nccl/issues/342", "https://github.com/deepspeedai/DeepSpeed/issues/4002"],
    hits=[{"shm_bytes": 67108864, "os": {"container": True}}, {"shm_bytes": 0}],
    misses=[{"shm_bytes": 16642998272}, {}],
    look=look,
)
