"""Put the faults of a run where its trainer and writer look for them. The supervisor itself never reads them."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from holdfast.base.files import write_bytes
from holdfast.config.faults import Fault
from holdfast.run.folder import RunFolder


def write_faults(run: RunFolder, faults: Sequence[Fault]) -> str | None:
    """Write the faults and return their file; None where there are none, and an old file is removed."""
    file = run.path / "faults.yaml"
    if not faults:
        file.unlink(missing_ok=True)
        return None
    entries = [fault.model_dump(mode="json", exclude_unset=True) for fault in faults]
    write_bytes(file, yaml.safe_dump({"faults": entries}, sort_keys=False).encode())
    return str(file)
