"""AMD's kernel driver was tested with the ROCm that torch brings along."""

from collections.abc import Iterator

from holdfast.base.versions import release, version
from holdfast.book.kinds.check import Case, Check, warn
from holdfast.book.knowledge import row_of
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch, driver = case.machine.torch, case.machine.amd_driver
    row = row_of("drivers", "amd", driver=driver) if torch and torch.vendor == "amd" else None
    if (
        not torch
        or not row
        or not version(torch.rocm or "")
        or release(torch.rocm or "") in [release(entry) for entry in row["user_space"]]
    ):
        return
    package = f"package {row['package']}, " if "package" in row else ""
    message = (
        f"the amdgpu driver {driver} ({package}ROCm {row['release']}) was tested with ROCm {row['user_space'][0]} to "
        f"{row['user_space'][-1]}, torch brings {torch.rocm}"
    )
    newer = release(torch.rocm or "") > release(row["user_space"][-1])
    fix = (
        "update the amdgpu driver (amdgpu-install, or a newer kernel)" if newer else "use a torch of a newer ROCm, after the other findings"
    )
    yield warn(f"{message}: it may work, AMD has not tried", fix, row["source"], "reported")


CARD = Check(
    title="The AMD driver and torch's ROCm are far apart",
    why=(
        "A wheel brings its own user space; the kernel driver is the machine's. AMD supports them within two "
        "releases of each other, from ROCm 6.4 on up to a year apart."
    ),
    source=[
        "https://rocm.docs.amd.com/projects/install-on-linux/en/docs-6.3.0/reference/user-kernel-space-compat-matrix.html",
        "https://github.com/ROCm/rocm-install-on-linux/blob/0802f804a1f559fc090666f9ffc44e36d684a83a/docs/reference/user-kernel-space-compat-matrix.rst",
    ],
    hits=[
        {"torch": {"version": "2.10.0+rocm7.1"}, "rocm": {"driver": "6.8.5"}},
        {"torch": {"version": "2.11.0+rocm7.2"}, "rocm": {"driver": "6.12.12"}},
        {"torch": {"version": "2.5.1+rocm6.1"}, "rocm": {"driver": "6.14.14"}},
        {"torch": {"version": "2.3.0+rocm5.7"}, "rocm": {"driver": "6.16.13"}},
    ],
    misses=[
        {"torch": {"version": "2.5.1+rocm6.2"}, "rocm": {"driver": "6.8.5"}},
        {"torch": {"version": "2.10.0+rocm7.1"}, "rocm": {"driver": None}},
        {"torch": {"version": "2.10.0+rocm7.1"}, "rocm": {"driver": "6.16.13"}},
        {"torch": {"version": "2.10.0+rocm7.1"}, "rocm": {"driver": "6.12.12"}},
        {"torch": {"version": "2.11.0+rocm7.2"}, "rocm": {"driver": "6.14.14"}},
        {"torch": {"version": "2.14.0+rocm7.2"}, "rocm": {"driver": "6.16.6"}},
        {"torch": {"version": "2.10.0+rocm7.1"}, "rocm": {"driver": "99.1"}},
    ],
    look=look,
)
