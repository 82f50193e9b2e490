"""The nouns that processes and decisions are made of. All frozen: a change makes a new one."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, field
from typing import Literal

from holdfast.base.files import Json
from holdfast.base.signal_names import killed_by
from holdfast.config.settings import PartialSettings, Settings
from holdfast.run.outcomes import OUTCOMES, EndingKind

FULL_DISK_BYTES = 1 << 16  # with less left no attempt can begin
LOGITS_AT_ONCE = 1 << 25  # elements of [labels, vocabulary] that exist together: 128 MiB in fp32
WIDENED_ROWS = 1 << 14  # of a narrow output layer, at once
STRETCH = 1 << 22  # trained weights that are updated at once where not all are: 16 MiB in fp32
OWN_DROPOUT = "the model's own code draws it"  # words of the event that says which dropout is left out
# A signal that a program does not die of by its own doing, as it does of SIGSEGV or SIGABRT.
_OTHERS_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR}


@dataclass(frozen=True)
class Finding:
    """Something the doctor or a check saw. `fix` is the command or edit that mends it, `standing` how sure we are."""

    id: str
    severity: Literal["block", "warn", "info"]
    message: str
    fix: str = ""
    source: str = ""
    standing: Literal["confirmed", "reported", "folk", "refuted"] = "confirmed"


@dataclass(frozen=True)
class Launch:
    """How a run's trainers are started: argv, changes to the environment (None: unset), and the settings those stand for.

    ranks: how many; devices: of those that are started here, by their numbers; another launcher may start others elsewhere.
    """

    argv: tuple[str, ...]
    env: dict[str, str | None]
    settings: Settings
    ranks: int = 1
    devices: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `code`: exit code, negative for a signal, None when nobody was there to see it."""

    kind: EndingKind
    code: int | None = None
    seconds: float | None = None
    facts: Json = field(default_factory=dict)

    @property
    def from_outside(self) -> bool:
        """Whether somebody else ended the process, or nobody saw how it ended. Killing a trainer that hangs is our own doing: `hang`."""
        if self.by_signal is not None:
            return self.cpu_limit_s is None and self.by_signal in _OTHERS_SIGNALS
        return self.kind in ("vanished", "never_started", "peer_lost")

    @property
    def by_signal(self) -> int | None:
        """The signal that ended the process, or one that its shell waited for (128 + signal); None where none did."""
        if self.kind == "killed" and self.code is not None:
            return -self.code
        return self.code - 128 if self.kind == "error" and self.code is not None and self.code - 128 in _OTHERS_SIGNALS else None

    @property
    def cpu_limit_s(self) -> int | None:
        """The CPU seconds that a process may use, where having used them up ended this one."""
        return self.facts.get("cpu_limit_s")

    def words(self) -> str:
        """Describe the ending in words."""
        limit = f" at the limit of {self.cpu_limit_s:,} s of CPU time for each process (ulimit -t)" if self.cpu_limit_s else ""
        return (f"rank {self.facts['rank']} {self._words()}" if "codes" in self.facts else self._words()) + limit

    def _words(self) -> str:
        if self.kind == "killed" and self.code is not None:
            return killed_by(self.code)
        if self.kind == "error":
            name = f" ({signal.Signals(self.by_signal).name}, in a shell's words)" if self.by_signal is not None else ""
            return f"ended with exit code {self.code}{name}" + (", before the end of the run" if self.code == 0 else "")
        return OUTCOMES[self.kind if self.kind in OUTCOMES else "vanished"].words


@dataclass(frozen=True)
class FailureReport:
    """What is known of an attempt that ended early. None means unknown, never 0.

    oom_kills: processes of the control group that the kernel ended for memory meanwhile; kernel_messages: what else it said.
    """

    attempt: int
    ending: Ending
    step: int | None
    phase: str | None
    samples: tuple[int, ...]
    lines: tuple[str, ...]
    committed_before: int
    committed_after: int
    died: float
    memory_available_bytes: int | None
    disk_free_bytes: int | None
    pid: int | None = None  # of the trainer, as it saw itself
    memory_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    oom_kills: int | None = None
    kernel_messages: tuple[str, ...] | None = None
    gpu_memory: Json | None = None  # after the end, as machine/gpu_memory.py tells it
    machine: Json | None = None  # kernel, torch and devices, in short

    @property
    def disk_is_full(self) -> bool:
        """As measured; words in an output prove nothing."""
        return self.disk_free_bytes is not None and self.disk_free_bytes < FULL_DISK_BYTES

    def as_json(self) -> Json:
        return asdict(self) | {"words": self.ending.words()}


@dataclass(frozen=True)
class Clue:
    """A line that speaks for a cause. `line`: its number in the log, None for what was known otherwise (an exit code, a fact)."""

    line: int | None
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """The likeliest cause, the clues that speak for it, and what else it could be. `cards`: the ids that spoke for the cause."""

    cause: str
    confidence: float
    clues: tuple[Clue, ...] = ()
    also: tuple[tuple[str, float], ...] = ()
    cards: tuple[str, ...] = ()
    explanation: str = ""  # in place of what cards say

    @classmethod
    def plain(cls, cause: str, confidence: float, *clues: str) -> Diagnosis:
        """Make a diagnosis from what is known beside the log."""
        return cls(cause, confidence, tuple(Clue(None, clue) for clue in clues))

    def words(self) -> tuple[str, ...]:
        """Return the clues without their places."""
        return tuple(clue.text for clue in self.clues)


@dataclass(frozen=True)
class Verdict:
    """What the lab found out about a step that fails, and what was seen to help.

    kind: transient (it goes through now), rows (named in `rows` and `sources`), setting (`settings` and `env` were seen to help, and it
    failed again without them), state (the state before it is damaged), weights (those of the base model are), stuck
    (a trial cannot be ended), uncertain. odds: failures and trials of the step as it was. cause: what the trials say
    it is, where the diagnosis could not know. to: the older state from which the step goes through. processes:
    started for the trials.
    """

    kind: str
    trials: int
    seconds: float
    evidence: str
    remedy: str = "none"
    rows: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    settings: PartialSettings = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    odds: tuple[int, int] | None = None
    cause: str | None = None
    to: int | None = None
    processes: int = 0
