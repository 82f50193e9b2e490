"""Look at what lies beside a run before a cause is said: its model's folder and what its loss began with. Reads only."""

from __future__ import annotations

import math
from pathlib import Path

from holdfast.base.errors import WRONG_VALUES
from holdfast.base.files import Json, read_json
from holdfast.base_model.folder import EMBEDDED
from holdfast.base_model.forms import read_config
from holdfast.config.yaml_tree import value_of
from holdfast.run.folder import RunFolder
from holdfast.run.types import Diagnosis

_CHANCE = 0.9  # of the loss of guessing among all tokens alike, from which on a model knows nothing
_UNFIT = ("tokenizer_or_template", "no_learning_signal")


def at_hand(run: RunFolder, found: Diagnosis, summary: Json) -> Json:
    """Return the diagnosis's keys that the run's own model corrects; empty where there is nothing to correct."""
    if found.cause not in _UNFIT or found.cards:
        return {}
    model = _model(run)
    if model is None:
        return {}
    first = (summary.get("loss") or {}).get("first")
    vocabulary = (read_config(model / "config.json") or {}).get("vocab_size")
    says = found.words()[0] if found.clues else ""
    if isinstance(first, float) and isinstance(vocabulary, int) and vocabulary > 1 and first >= _CHANCE * math.log(vocabulary):
        chance = math.log(vocabulary)
        fact = f"the loss began at {first:.2f}, and guessing among the {vocabulary:,} tokens of the model alike gives {chance:.2f}"
        why = f"{fact[0].upper()}{fact[1:]}: its weights know nothing yet, because they were never trained, or belong to another tokenizer."
        what = "See that the model's folder holds trained weights and their own tokenizer: it has to write sense before it is tuned"
        return {
            "cause": "checkpoint_model_mismatch",
            "confidence": 0.6,
            "explanation": why,
            "clues": [{"line": None, "text": one} for one in (says, fact) if one],
            "remedies": [_remedy("weights-of-model", what, f"holdfast chat {run.path}")],
        }
    has = _template_of(model)
    template = f"the model's folder has a chat template ({has})" if has else "the model's folder has no chat template"
    seen = f"What was looked at: {template}. What a row is read as, token by token, shows which of them are learned."
    why = f"{says[:1].upper()}{says[1:]}. {seen}"
    remedies = [
        _remedy(
            "show-a-row", "See a row as the model gets it, and which tokens are learned", f"holdfast data show ROWS --row 1 --model {model}"
        )
    ]
    if not has:
        remedies.append(
            _remedy("instruct-model", "Take the template of the instruction-tuned sibling", f"cp INSTRUCT/chat_template.jinja {model}/")
        )
    return {"confidence": 0.5, "explanation": why, "remedies": remedies}


def _remedy(name: str, what: str, command: str) -> Json:
    return {"id": name, "what": what, "patch": {}, "command": command, "standing": "confirmed", "source": "the run's own folder"}


def _model(run: RunFolder) -> Path | None:
    """Return the folder of a run's model; None where it is not here."""
    try:
        name = value_of((run.path / "config.yaml").read_text(encoding="utf-8"))["model"]
    except (OSError, *WRONG_VALUES):
        return None
    folder = EMBEDDED.get(name) or Path(str(name))
    return folder if folder.is_dir() else None


def _template_of(folder: Path) -> str:
    """Return the file that holds a model's chat template; empty where it has none."""
    if (folder / "chat_template.jinja").exists():
        return "chat_template.jinja"
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (read_json(folder / name) or {}).get("chat_template"):
            return name
    return ""
