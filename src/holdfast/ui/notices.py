"""Events a user should hear of, in words. Shared by the terminal, which says them as they come, and the report."""

from __future__ import annotations

from holdfast.core.files import Json

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
    "snapshot_interval": "snapshots are taken further apart, or closer",
    "memory_fragmented": "the card's memory is in pieces: its allocator holds more than was ever in use together",
    "memory_low": "memory runs short, and micro-batches cannot be smaller",
    "setting_changed": "a setting of the model was changed",
    "length_bias": "one of the two answers is mostly the longer one (longer: share of the pairs whose better answer is): length is learned",
    "tokenizers_disagree": "transformers' tokenizer cuts text differently from the model's tokenizer.json, which was used",
    "evaluation_failed": "the evaluation failed",
    "tracking_failed": "passing the steps on to a tracker failed; the run itself is whole",
    "best_checkpoint_lost": "the best checkpoint does not verify; the adapter is made of the next best",
    "extended": "the run was extended",
    "config_changed": "settings of the run were changed",
    "rows_limited": "train.max_tokens is more than the model has positions; rows are cut there",
    "data_rebuilt": "the tokenised rows were made again",
    "token_cache_refused": "the token cache could not be used; the rows were tokenised into the run folder",
    "token_shards_rebuilt": "damaged shards of the token cache were made again",
}


def notice(event: Json) -> tuple[str, str] | None:
    """(what happened, its facts) of an event worth telling, else None."""
    words = _WORDS.get(event["event"])
    if words is None:
        return None
    return words, ", ".join(f"{key}: {value}" for key, value in event.items() if key not in ("event", "time", "attempt"))


def turn(event: Json) -> str | None:
    """What the supervisor says itself when it happens, in words for whoever looks on from elsewhere; None for all else."""
    kind = event["event"]
    if kind == "attempt_ended" and "decision" in event:
        return f"attempt {event['attempt']}: {event['decision']['reason']}"
    if kind == "attempt_ended":
        return f"attempt {event['attempt']}: {event['ending']}"
    if kind == "attempt_adopted":
        return f"attempt {event['attempt']} was adopted by another supervisor"
    return None
