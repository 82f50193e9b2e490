"""Tell a person of a run's turns, from a process of its own: a receiver that is slow or dead never touches the training.

    python -m holdfast.report.notify.follow RUN

It follows events.jsonl, remembers in notified.json what it told, and ends when the run has its summary or its parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.files import Json, Tail, read_json, write_json
from holdfast.base.safe_open import read_small
from holdfast.base.units import counted
from holdfast.config.notify import Notify
from holdfast.machine import clock
from holdfast.report.notices import notice
from holdfast.report.notify.send import NO_ANSWER, Word, send, word_of
from holdfast.report.words import change_of_loss, unhealthy
from holdfast.run.folder import RunFolder

POLL_S = 0.5
_HOUR_S = 3600.0
_PAUSE_S = 30.0  # after a word that nobody got; twice as long after each further one, an hour at most
_NEED_A_PERSON = ("device_gone", "checkpoint_failed", "rolled_back", "memory_low")
_UNSUPERVISED = "its holdfast process is gone, killed from outside: nobody watches over the run; the same command, given again, goes on"
_ENDS = {"finished": "finished", "gave_up": "gave_up", "interrupted": "interrupted"}


class Teller:
    """Sends what is worth it, and no more than so many words an hour; one is kept for the end, beside the only one too."""

    def __init__(self, run: RunFolder, notify: Notify, deliver: Callable[[Word], list[Json]], now: Callable[[], float]) -> None:
        self._run, self._notify, self._deliver, self._now = run, notify, deliver, now
        self._memory = run.path / "notified.json"
        known = read_json(self._memory) or {}
        self._until: float = known.get("until", now())
        self._then: list[str] = known.get("then", [])
        self._sent: list[float] = known.get("sent", [])
        self._left_out: int = known.get("left_out", 0)
        self._died: Json | None = known.get("died")
        self._held: tuple[str, str] | None = None  # what nobody got, and is told again
        self._pause_s, self._again_at = 0.0, float("-inf")
        self.begin_again()

    def begin_again(self) -> None:
        """Take what comes for a journal that is read from its beginning: what was told up to now is told no more."""
        self._told = self._until, self._then

    def see(self, event: Json) -> None:
        """Tell of an event that was not told of. Those of two processes may come a little out of the order of their times."""
        at, kind = event.get("time"), event["event"]
        if not isinstance(at, int | float) or at < self._told[0] or (at == self._told[0] and kind in self._told[1]):
            return
        if at >= self._until:
            self._then = [*self._then, kind] if at == self._until else [kind]  # several may have come in one millisecond
            self._until = at
        if kind == "attempt_ended" and "decision" in event:
            self._died = event
        elif kind == "restored" and self._died is not None:
            died, self._died = self._died, None
            cause = died.get("diagnosis", {}).get("cause")
            named = f" ({cause})" if cause and cause != "unknown" else ""
            self.tell("recovered", f"{died['decision']['reason']}; it goes on from step {event['step']:,}{named}")
        elif kind == "sign" and event.get("sign") != "first":
            self.tell("needs_person", str(event.get("says")))
        elif kind in _NEED_A_PERSON:
            told = notice(event)
            self.tell("needs_person", f"{told[0]} ({told[1]})" if told else "the GPU of the run is gone; it waits for it")
        self._remember()

    def end(self, summary: Json) -> None:
        """Tell how the run ended."""
        status = str(summary.get("status"))
        loss = summary.get("loss") or {}
        steps = summary.get("steps")
        texts = [f"{status.replace('_', ' ')} after {counted(steps, 'step')}" if steps is not None else status.replace("_", " ")]
        if status == "finished" and (change := change_of_loss(loss)):
            texts.append(f"held-out loss {change}")
        texts += [f"not healthy: {ill}" for ill in (unhealthy(summary) if status == "finished" else [])]
        texts += [f"in doubt: {summary['doubt']}"] if summary.get("doubt") else []
        texts += [str(summary["reason"])] if summary.get("reason") else []
        if status in _ENDS:
            self.tell(_ENDS[status], "; ".join(texts), last=True)
        self._remember()

    def abandoned(self) -> None:
        """Tell that nobody supervises the run."""
        self.tell("needs_person", _UNSUPERVISED, last=True)
        self._remember()

    def tell_again(self) -> None:
        """Send again the newest message that no receiver took, once the pause after that failure is over."""
        if self._held and self._now() >= self._again_at:
            (event, text), self._held = self._held, None
            self.tell(event, text)
            self._remember()

    def tell(self, event: str, text: str, last: bool = False) -> None:
        if event not in self._notify.events:
            return
        if not last and self._now() < self._again_at:
            self._left_out += self._held is not None
            self._held = event, text
            return
        if last and self._held:
            self._left_out, self._held = self._left_out + 1, None
        self._sent = [at for at in self._sent if self._now() - at < _HOUR_S]
        if len(self._sent) >= max(2, self._notify.per_hour) - (0 if last else 1):
            self._left_out += 1
            return
        more = f" [{self._left_out} more were not sent: run.notify.per_hour, notify.log]" if self._left_out else ""
        found = self._deliver(word_of(event, self._run.path.name, text + more))
        if found and not any(one["sent"] or one["why"] == NO_ANSWER for one in found):  # nobody was told: it takes no other's place
            self._left_out += self._held is not None
            self._held, self._pause_s = (event, text), min(max(_PAUSE_S, 2 * self._pause_s), _HOUR_S)
            self._again_at = self._now() + self._pause_s
        else:
            self._left_out, self._held, self._pause_s = 0, None, 0.0
            self._sent.append(self._now())
        for one in found:
            if not one["sent"]:
                print(f"{time.strftime('%F %T')} {event}: {one['receiver']}: {one['why']}", flush=True)

    def _remember(self) -> None:
        facts = {"until": self._until, "then": self._then, "sent": self._sent, "left_out": self._left_out, "died": self._died}
        write_json(self._memory, facts, durable=False)


def follow(run: RunFolder, notify: Notify, alive: Callable[[], bool]) -> None:
    """Tell of each event once, until the run is over."""
    late: set[str] = set()

    def deliver(word: Word) -> list[Json]:
        found = send(notify, word, late)
        late.update(one["receiver"] for one in found if one["why"] == NO_ANSWER)
        return found

    teller = Teller(run, notify, deliver, clock.now)  # as events have it: the calendar may have been set since the run began
    journal = Tail(run.events_file, key="event")
    while True:
        over = run.summary_file.exists() or not alive()
        events, from_its_beginning = journal.new()
        if from_its_beginning:
            teller.begin_again()
        for event in events:
            teller.see(event)
        if over:
            break
        teller.tell_again()
        time.sleep(POLL_S)
    if summary := read_json(run.summary_file):
        teller.end(summary)
    else:  # who ends in another way ends this process first
        teller.abandoned()


def main(argv: list[str]) -> int:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what is being sent is ended with it
    run = RunFolder(Path(argv[0]))
    follow(run, Notify.model_validate_json(read_small(run.notify_file)), lambda: os.getppid() == parent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
