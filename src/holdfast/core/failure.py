"""A failure card: what one mechanism prints when it ends a run, and what follows from that. Weighing cards is mind/diagnose.py's job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from holdfast.core.catalog import Card

CAUSES = (
    *("gpu_out_of_memory", "gpu_memory_unavailable", "host_out_of_memory", "shared_memory_exhausted", "disk_full"),
    *("nonfinite_numerics", "nonfinite_kernel", "no_learning_signal", "divergence", "precision_mismatch", "autograd_graph"),
    *("malformed_data", "tokenizer_or_template", "token_id_out_of_range", "checkpoint_model_mismatch", "checkpoint_unreadable"),
    *("export_failure", "collective_timeout", "communication_failure", "launch_misconfigured", "package_conflict", "wrong_torch_build"),
    *("native_library_mismatch", "native_build_failure", "unsupported_gpu_arch", "wrong_gfx_override", "device_access_denied"),
    *("driver_or_firmware", "wrong_device_selected", "network_unavailable", "blas_library_failure", "gpu_kernel_fault", "native_crash"),
    *("kernel_cache_unusable", "allocator_option_bug", "hardware_fault", "hang", "crash_at_exit", "healthy"),
)
Cause = Literal[CAUSES]  # type: ignore[valid-type]
Pattern = re.Pattern[str]


class Failure(Card):
    """One mechanism. It fires when a line holds one of `patterns`, every one of `needs` is found somewhere, and none of `unless`.

    `sure`: how often the cause is this one when the card fires alone. An `echo` is a consequence: it counts for little beside a root.
    """

    cause: Cause
    role: Literal["root", "echo"] = "root"
    sure: float = Field(gt=0, lt=1)
    patterns: Annotated[list[Pattern], Field(min_length=1)]
    needs: list[Pattern] = Field(default_factory=list)
    unless: list[Pattern] = Field(default_factory=list)

    def matches(self, evidence: str) -> bool:
        """Whether the lines of a log hold this mechanism."""
        lines = evidence.splitlines()
        return _any(self.patterns, lines) and all(_any([need], lines) for need in self.needs) and not _any(self.unless, lines)

    def details(self) -> Iterator[str]:
        yield f"Cause: `{self.cause}`" + (" (an echo: another line usually holds the root)" if self.role == "echo" else "")
        for pattern in self.patterns:
            yield f"- looks for `{pattern.pattern}`"


def _any(patterns: Sequence[Pattern], lines: Sequence[str]) -> bool:
    return any(pattern.search(line) for pattern in patterns for line in lines)
