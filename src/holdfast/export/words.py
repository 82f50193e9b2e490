"""What the figures of a comparison say in words that follow their counts, for the card, the terminal and the page. Pure."""

from __future__ import annotations

from holdfast.base.files import Json

_YES = {True: "yes", False: "no"}


def of_engine(checked: Json) -> str:
    """Say what loaded the export, its type where it has one, and whose converter wrote a GGUF."""
    parts = [checked["engine"], checked.get("type"), f"converted by {checked['converter']}" if "converter" in checked else None]
    return ", ".join(part for part in parts if part)


def of_learned(checked: Json) -> str | None:
    """Say whether what was learned is in the export; None where nothing is known of it."""
    learned = checked.get("learned")
    if learned is None:
        return None
    without = f"NMSE {learned['nmse']:.1e} without it"
    if learned["kept"] is None:
        return f"too small to be seen ({without}): the base alone would pass, too"
    if not learned["seen"]:
        beside = f"the rounding of {checked.get('type') or checked['engine']} (NMSE {checked['nmse']:.1e})"
        return f"too small to be seen beside {beside}: {without}; the base alone may pass, too"
    return f"{learned['kept']:.1%} of it is in the export; {without}"


def of_base(checked: Json) -> str | None:
    """Say that training held the base in fewer bits than what is compared, or measured, here; None where it did not."""
    held = checked.get("base_held")
    if not held:
        return None
    return f"as its files have it, in {held['measured']}; training held its matrices in {held['trained']}, on which losses are others"


def of_greedy(checked: Json) -> str:
    """Say how many greedy answers are equal, and how the others part."""
    prompts, greedy = checked["prompts"], checked.get("greedy")
    if not prompts:
        return "not compared"
    if greedy is None:  # of a comparison written down before the counts were
        return f"{_YES[checked['greedy_equal']]}, of {prompts} prompts"
    parts = [f"{greedy['equal']} of {prompts} equal"]
    if greedy["near_tie"]:
        parts.append(f"{greedy['near_tie']} part at a near-tie (margin at most {greedy['margin']:.2g})")
    if greedy["apart"]:
        parts.append(f"{greedy['apart']} differ")
    return ", ".join(parts)


def of_token_ids(checked: Json) -> str:
    """Say whether conversations became the tokens of training, and of how many that is known."""
    compared = checked.get("token_ids_compared")
    if compared == 0:
        return checked.get("token_ids_words") or "not compared"
    return _YES[checked["token_ids_equal"]] + (f", of {compared} conversations and texts" if compared else "")


def of_stops(checked: Json) -> str:
    """Say whether it stops at what ended the answers of training."""
    return checked.get("stops_words") or _YES[checked["stops"]]


def of_own_settings(ends: tuple[int, ...]) -> str:
    """Return how an adapter stops whose base has other ends: by the settings beside it, which the lines of its card load."""
    theirs = f"at {', '.join(map(str, ends))}" if ends else "nowhere"
    told = f"yes, with the adapter's generation_config.json, as the lines of its card load it; by the base's own it stops {theirs} only"
    return f"{told}: a server has to be given that file, or its eos_token_id as stop_token_ids"


def unseen(checked: Json) -> bool:
    """Return whether the base alone would, or may, pass the comparison."""
    learned = checked.get("learned")
    return learned is not None and not learned["seen"]
