"""What answers, and its replacement by another version while it does: who was asked before answers to the end, and only then is closed."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from holdfast.base.files import Json
from holdfast.data.tokens.codec import Codec
from holdfast.serve.endpoint import RequestRefused
from holdfast.serve.engines import MODELS, AnswerRequest, Engine
from holdfast.serve.experts import ROUTED, RoutedExperts, expert_model
from holdfast.serve.preferences import Blind

_AT_ONCE = 2  # answers that are asked of an engine together; the others wait


def served_models(experts: RoutedExperts | None) -> list[str]:
    """Return the names that a request may give a model with these experts."""
    return [*MODELS, *([ROUTED, *map(expert_model, experts.names)] if experts else ())]


@dataclass
class ServedModel:
    """name: of the run, or NAME VERSION of what is in place; engine: closed once it is `over` and its last answer is out.

    context: tokens of prompt and answer, longer: how to have more than that, "" where the model takes no more.
    experts: among which `routed` chooses; stamp: of those that were there when it was loaded.
    """

    codec: Codec
    name: str
    context: int
    engine: Engine
    asked: int = 0
    over: bool = False
    turns: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(_AT_ONCE))
    experts: RoutedExperts | None = None
    stamp: int = 0
    longer: str = ""

    @property
    def models(self) -> list[str]:
        """What a request may name."""
        return served_models(self.experts)

    def routed(self, wanted: AnswerRequest) -> tuple[AnswerRequest, Json]:
        """Return the request to the adapter that answers it, and what the answer says of that: `expert`, null for the adapter for all."""
        if self.experts is None or wanted.model != ROUTED:
            return wanted, {}
        name = self.experts.choose(wanted.ids)
        return replace(wanted, model=expert_model(name) if name is not None else "tuned"), {"expert": name}


@dataclass
class GatewayState:
    """blind: the comparisons by eye, None without --ab; page: the HTML of it; refused: why the tuned model may not answer, or ""."""

    token: str
    blind: Blind | None = None
    page: str = ""
    refused: str = ""
    served: ServedModel = field(init=False)  # once it is loaded, before anything is served
    requests: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(MODELS, 0)))
    tokens: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(MODELS, 0)))
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def held(self) -> Iterator[ServedModel]:
        """Yield what answers now; it is not closed before the block is left."""
        with self.lock:
            served = self.served
            served.asked += 1
        try:
            yield served
        finally:
            with self.lock:
                served.asked -= 1
            self._close(served)

    def replace(self, new: ServedModel) -> None:
        """Have requests from now on answered by another one."""
        with self.lock:
            old, self.served, self.refused = self.served, new, ""
            old.over = True
        self._close(old)

    def refuse(self, model: str) -> None:
        """Raise RequestRefused where a model may not answer now."""
        if self.refused and model != "base":
            raise RequestRefused(503, self.refused)

    def _close(self, served: ServedModel) -> None:
        with self.lock:
            if not served.over or served.asked:
                return
            served.over = False  # closed once
        served.engine.close()
