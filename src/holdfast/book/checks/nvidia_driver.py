"""NVIDIA's driver is new enough for the CUDA that torch was built with."""

from collections.abc import Iterator

from holdfast.base.versions import release, version
from holdfast.book.kinds.check import Case, Check, block
from holdfast.book.knowledge import WHEELS, cuda_archs, cuda_served, has_code, row_of, table, toolkit
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch, driver = case.machine.torch, case.machine.cuda_driver
    cuda = toolkit(torch) if torch and torch.vendor == "nvidia" else None
    row = row_of("drivers", "nvidia", cuda=cuda) if cuda else None
    if torch and row and driver and version(driver) and version(driver) < version(row["driver"]):
        other = _fitting(torch.version, driver, [gpu.arch for gpu in case.cards if gpu.arch])
        fix = f"update the driver to {row['driver']} or newer{other}"
        yield block(f"the NVIDIA driver {driver} is older than the {row['driver']} that CUDA {cuda} of torch {torch.version} needs", fix)


def _fitting(torch: str, driver: str, archs: list[str]) -> str:
    """Return the official build of this release, else of the newest before it, that the driver serves and that has code for the cards."""
    for row in reversed(table("cuda_wheels")["wheels"]):
        for cuda in reversed(row["cuda"]) if release(row["torch"]) <= release(torch) else ():
            made = cuda_archs(row["torch"], cuda)
            if cuda_served(cuda, driver) and (made is None or all(has_code(arch, made) for arch in archs)):
                return f", or install the torch {row['torch']} of {WHEELS}/cu{cuda.replace('.', '')}"
    return ""


CARD = Check(
    title="The NVIDIA driver is too old for this torch",
    why=(
        "A CUDA major version needs a driver of its time. The newest torch of a plain install is CUDA 13, whose "
        "driver many machines do not have yet."
    ),
    source=["https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"],
    hits=[
        {"torch": {"version": "2.13.0", "cuda": "13.0", "hip": None}, "cuda": {"driver": "535.183.01"}},
        {"torch": {"version": "2.9.0+cu128"}, "cuda": {"driver": "470.256.02"}},
    ],
    misses=[
        {"torch": {"version": "2.13.0", "cuda": "13.0", "hip": None}, "cuda": {"driver": "580.65.06"}},
        {"torch": {"version": "2.13.0", "cuda": "13.0", "hip": None}, "cuda": {"driver": None}},
    ],
    look=look,
)
