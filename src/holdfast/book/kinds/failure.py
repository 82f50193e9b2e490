"""A failure card: what one mechanism prints when it ends a run, and what follows from that. Weighing cards is diagnosis/'s job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from holdfast.book.kinds.catalog import Card

CAUSES = (
    *("gpu_out_of_memory", "gpu_memory_unavailable", "host_out_of_memory", "shared_memory_exhausted", "disk_full"),
    *("nonfinite_numerics", "nonfinite_kernel", "no_learning_signal", "divergence", "precision_mismatch", "autograd_graph"),
    *("malformed_data", "tokenizer_or_template", "token_id_out_of_range", "checkpoint_model_mismatch", "checkpoint_unreadable"),
    *("export_failure", "collective_timeout", "communication_failure", "launch_misconfigured", "package_conflict", "wrong_torch_build"),
    *("native_library_mismatch", "native_build_failure", "unsupported_gpu_arch", "wrong_gfx_override", "device_access_denied"),
    *("driver_or_firmware", "wrong_device_selected", "network_unavailable", "blas_library_failure", "gpu_kernel_fault", "native_crash"),
    *("kernel_cache_unusable", "allocator_option_bug", "hardware_fault", "hang", "crash_at_exit", "healthy"),
)
_SHOWN = 150  # letters of an example
Cause = Literal[CAUSES]  # type: ignore[valid-type]


def _compile(pattern: object) -> object:
    """Parse a regular expression in which `^` and `$` stand for the ends of a line. Raises ValueError."""
    try:
        return re.compile(pattern, re.M) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compile)]


class Failure(Card):
    """One mechanism. It fires when a line holds one of `patterns`, every one of `needs` is found somewhere, and none of `unless`.

    `sure`: how often the cause is this one when the card fires alone. An `echo` is a consequence, or a silence: it counts for
    little beside a root. Lines are those of the log, cleaned, and the sentences of diagnosis/logs/readings.py
    (`reading: killed by SIGKILL`).
    """

    cause: Cause
    role: Literal["root", "echo"] = "root"
    sure: float = Field(gt=0, lt=1)
    patterns: Annotated[list[Pattern], Field(min_length=1)]
    needs: list[Pattern] = Field(default_factory=list)
    unless: list[Pattern] = Field(default_factory=list)

    def matches(self, evidence: str) -> bool:
        """Return whether these lines hold the mechanism."""
        return self.place(evidence) is not None

    def place(self, lines: str) -> int | None:
        """Return the offset of the first match in the lines; None when the card does not fire."""
        places = [match.start() for pattern in self.patterns if (match := pattern.search(lines))]
        if not places or not all(need.search(lines) for need in self.needs) or any(never.search(lines) for never in self.unless):
            return None
        return min(places)

    def chapter(self) -> str:
        """Return the cause: failures are grouped by it."""
        return str(self.cause)

    def examples(self) -> list[str]:
        """Return two short lines of the card's own proof as a person meets them."""
        lines = [
            " ".join(hit.split())
            for hit in self.hits
            if isinstance(hit, str) and not hit.startswith("reading:") and "\n" not in hit.strip()
        ]
        return [line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…" for line in lines[:2]]

    def details(self) -> Iterator[str]:
        """Yield cause and patterns, as Markdown."""
        yield f"Cause: `{self.cause}`" + (" (an echo: counts when no root is found)" if self.role == "echo" else "")
        for name, patterns in (("One of", self.patterns), ("Needs", self.needs), ("Unless", self.unless)):
            if patterns:
                yield from (f"\n{name}:\n\n```text", *(pattern.pattern for pattern in patterns), "```")
