"""How a run on texts is told of."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.files import Json
from holdfast.base_model.folder import EMBEDDED, hub_name
from holdfast.config.config import Config
from holdfast.report.words import TaskWords, what_is_trained
from holdfast.run.folder import RunFolder


def words(config: Config) -> TaskWords:
    """Return its words."""
    title = f"{what_is_trained(config.adapter)} on {Path(config.model).name}"
    if config.adapter.start:
        title += f", from the adapter {config.adapter.start}"
    loaded = "what was made is loaded afresh, base against tuned"
    return TaskWords(title, "adapter", loaded, "base", "tuned", config.train.objective_kind.unit, "tokens", "")


def usage(run: RunFolder, config: Config) -> str:
    """Return Python that loads the finished model or adapter."""
    if not run.adapter.exists():
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({str(run.path / 'model')!r})\n"
            f"model = AutoModelForCausalLM.from_pretrained({str(run.path / 'model')!r})"
        )
    name, revision = hub_name(str(EMBEDDED.get(config.model, config.model)))
    source = repr(name) + (f", revision={revision!r}" if revision else "")
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "from peft import PeftModel\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({source})\n"
        f"model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({source}), {str(run.adapter)!r})"
    )


def measured(evaluation: Json) -> list[tuple[str, str]]:
    """Return nothing: the page itself tells of losses and answers."""
    return []
