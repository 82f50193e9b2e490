"""The record of task `text`: a language model learns from texts and turns."""

from __future__ import annotations

from holdfast.base.tasks import TaskKind

KIND = TaskKind(
    name="text",
    aliases=("sft",),
    about="a language model learns from texts",
    what="a language model",
    plural="language models",
    sections=("model", "adapter"),
    own_sections=None,
    rules=None,
    base_model=True,
    packages=("transformers", "peft"),
    preparation="holdfast.supervision.preparation.tasks.text:PREPARATION",
    traced="holdfast.trainer.tasks.text.of_shapes:of_shapes",
    text_rows=True,
    row_check=None,
    trainer="holdfast.trainer.tasks.text.task:TASK",
    artifacts=("adapter", "model"),
    continues=True,
    chats=True,
    ships=True,
    otherwise="",
    words="holdfast.report.tasks.text:words",
    usage="holdfast.report.tasks.text:usage",
    measured="holdfast.report.tasks.text:measured",
    verbs={},
)
