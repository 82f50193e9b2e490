"""Events a user should hear of, in words. Shared by the terminal, which says them as they come, and the report."""

from __future__ import annotations

import functools
from collections.abc import Callable

from holdfast.base.files import Json
from holdfast.base.units import figure, setting

_WORDS = {
    "checkpoint_passed_over": "a damaged checkpoint was skipped",
    "checkpoint_failed": "a checkpoint could not be saved; training continues",
    "checkpoint_skipped": "a checkpoint was left out",
    "snapshot_place_refused": "the snapshot went to another place",
    "remedy_applied": "the run continues with what was seen to help",
    "remedy_helped": "what was changed has helped",
    "remedy_refuted": "what was changed has not helped, and is not tried again in this run",
    "rolled_back": "committed steps were taken back",
    "disk_full_over": "the disk has room again: the steps held in memory are journalled, checkpoints resume",
    "snapshot_file_made_again": "the snapshot file was deleted; recreated",
    "snapshot_interval": "the interval of snapshots was changed",
    "memory_fragmented": "the card's memory is in pieces: its allocator holds more than was ever in use together",
    "memory_low": "memory runs short, and micro-batches cannot be smaller",
    "setting_changed": "settings were changed",
    "computes_differently": "this machine computes differently from call to call",
    "libraries_changed": "libraries, holdfast or the CPU are others than the run had so far: bits may differ from there on",
    "length_bias": "the better answers and the worse ones differ in length",
    "tokenizers_disagree": "transformers cannot load the model's tokenizer, or vocab.json has other numbers; its tokenizer.json was used",
    "evaluation_failed": "the evaluation failed",
    "evaluation_killed": "the evaluation was killed, and started once more",
    "notify_failed": "telling a person failed; the run itself is whole",
    "tracking_failed": "passing the steps on to a tracker failed; the run itself is whole",
    "best_checkpoint_lost": "the best checkpoint does not verify; the adapter is made of the next best",
    "extended": "the run was extended",
    "length_fitted": "the length of the run, and with it the schedule, was fitted to train.until",
    "goal_reached": "a goal of train.until is reached: the run ends",
    "ladder": "the settings are those that were proven on this machine",
    "config_changed": "settings of the run were changed",
    "rows_limited": "train.max_tokens is more than the model has positions; rows are cut there",
    "torn_line_cut": "a journal ended in the middle of a line (a death in mid-write, a power cut); the rest of that line was cut off",
    "journal_damaged": "a line of a journal cannot be read; it was left out",
    "rows_lost": "the newest checkpoint is ahead of the journal of steps (a power cut); it was used, the rows between are unknown",
    "data_rebuilt": "the tokenised rows were made again",
    "token_cache_refused": "the token cache could not be used; the rows were tokenised into the run folder",
    "token_shards_rebuilt": "damaged shards of the token cache were made again",
}


TOLD = ("tracking_failed", "notify_failed")  # which the supervisor has told where it happened, in more words


def notice(event: Json) -> tuple[str, str] | None:
    """Return (what happened, its facts) of an event worth telling, else None."""
    words = _WORDS.get(event["event"])
    if words is None:
        return None
    try:
        if event["event"] in _SENTENCES:
            return words, _SENTENCES[event["event"]](event)
    except (KeyError, TypeError, ValueError):
        pass  # of another version, or damaged: its facts are told as they are
    return words, ", ".join(f"{key}: {_fact(value)}" for key, value in event.items() if key not in ("event", "time", "attempt"))


_fact = functools.partial(setting, unset="unknown", number=figure)


def _length_bias(event: Json) -> str:
    return (
        f"in {event['longer']:.0%} of {event['pairs']:,} pairs the better answer is the longer one, at the median it is"
        f" {event['times']:g} times as long as the other; the model may learn length instead of what the answers say"
    )


def _rolled_back(event: Json) -> str:
    back = f"from step {event['step']:,} to step {event['to']:,}"
    named = all(key in event["reason"] for key in event["settings"])
    settings = "" if named else f", with {_fact(event['settings'])} from there on"
    return f"{back}{settings}: {event['reason']}"


def _setting_changed(event: Json) -> str:
    return "; ".join(str(event[key]) for key in ("what", "reason") if event.get(key))


def _snapshot_interval(event: Json) -> str:
    steps = event["steps"]
    often = "after every step" if steps == 1 else f"after one step in {steps:,} (a death then costs up to {steps:,} steps, computed again)"
    return f"from step {event['step']:,} on {often}: {event['reason']}"


def _computes_differently(event: Json) -> str:
    again = f"found something else: {event['again']}" if event["again"] else "found nothing"
    return f"the proof before the first step said: {event['first']}; repeated at once, it {again}. The second result is taken"


_SENTENCES: dict[str, Callable[[Json], str]] = {
    "computes_differently": _computes_differently,
    "length_bias": _length_bias,
    "rolled_back": _rolled_back,
    "setting_changed": _setting_changed,
    "snapshot_interval": _snapshot_interval,
}


def turn(event: Json) -> str | None:
    """Return what the supervisor says when the event happens, in words for readers elsewhere; None for all other events."""
    kind = event["event"]
    if kind == "attempt_ended" and "decision" in event:
        return f"attempt {event['attempt']}: {event['decision']['reason']}"
    if kind == "attempt_ended":
        return f"attempt {event['attempt']}: {event['ending']}"
    if kind == "attempt_adopted":
        return f"attempt {event['attempt']} was adopted by another supervisor"
    return None
