"""The record of task `tabular`: a network learns a column of a table."""

from __future__ import annotations

from holdfast.base.tasks import TaskKind

KIND = TaskKind(
    name="tabular",
    aliases=(),
    about="a network learns a column",
    what="a network on tables",
    plural="networks on tables",
    sections=("table", "network"),
    own_sections="holdfast.config.table:SECTIONS",
    rules="holdfast.config.table:rules",
    base_model=False,
    packages=("polars",),
    preparation="holdfast.supervision.preparation.tasks.tabular:PREPARATION",
    traced=None,
    text_rows=False,
    row_check="holdfast.cli.commands.data.tables:CHECK",
    trainer="holdfast.trainer.tasks.tabular.task:TASK",
    artifacts=("network",),
    continues=False,
    chats=False,
    ships=False,
    otherwise="its exports, model.pt2 and model.onnx, were compared in the run",
    words="holdfast.report.tasks.tabular:words",
    usage="holdfast.report.tasks.tabular:usage",
    measured="holdfast.report.tasks.tabular:measured",
    verbs={"walk": "holdfast.cli.commands.walk", "data bars": "holdfast.cli.commands.data.bars"},
)
