"""NVIDIA's driver is new enough for the CUDA that torch was built with."""

from collections.abc import Iterator

from holdfast.book.knowledge import WHEELS, cuda_served, row_of, table
from holdfast.core.check import Case, Check, block
from holdfast.core.types import Finding
from holdfast.core.versions import release, version


def look(case: Case) -> Iterator[Finding]:
    torch, driver = case.machine.torch, case.machine.cuda_driver
    cuda = torch.cuda or _of_name(torch.version) if torch else None
    row = row_of("drivers", "nvidia", cuda=cuda) if torch and torch.vendor == "nvidia" else None
    if torch and row and driver and version(driver) and version(driver) < version(row["driver"]):
        fix = f"update the driver to {row['driver']} or newer, or install {_fitting(torch.version, driver)}"
        yield block(f"the NVIDIA driver {driver} is older than the {row['driver']} that CUDA {cuda} of torch {torch.version} needs", fix)


def _fitting(torch: str, driver: str) -> str:
    """The official build of this release for the newest CUDA the driver serves, else of an older release."""
    made: list[str] = next((row["cuda"] for row in table("cuda_wheels")["wheels"] if release(row["torch"]) == release(torch)), [])
    usable = [cuda for cuda in made if cuda_served(cuda, driver)]
    if usable:
        return f"the torch {'.'.join(map(str, release(torch)))} of {WHEELS}/cu{usable[-1].replace('.', '')}"
    return f"torch 2.7 or older of {WHEELS}/cu118"


def _of_name(torch: str) -> str | None:
    """2.9.0+cu128 was built with 12.8."""
    local = torch.partition("+cu")[2]
    return f"{local[:-1]}.{local[-1]}" if local.isdecimal() and len(local) >= 3 else None


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
