"""What `data check` and `data clean` do with tables: numbers, names and times to learn a column from. No verb of its own."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json, replacing
from holdfast.base.versions import install
from holdfast.cli.row_check import RowCheck
from holdfast.config.config import Config
from holdfast.data.duplicates.write import cannot_write, refuse_outputs
from holdfast.data.files.form import form_of
from holdfast.data.files.paths import expand
from holdfast.data.files.stream import bare_suffix

_FORMS = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc")
_OF_TEXT = ("tokenizer", "max_tokens", "field", "redact", "languages", "held_out", "ray", "second_look", "drop")


def add_table_arguments(check: argparse.ArgumentParser) -> None:
    check.add_argument("--target", metavar="COLUMN", help="for a table: the column to learn, so that leaks of it are found")
    check.add_argument("--time", metavar="COLUMN", help="for a table: the column with the time of a row")
    check.add_argument("--config", type=Path, metavar="FILE", help="for a table: judge it as the run of this config would")


def table_config(arguments: argparse.Namespace, config: Config | None) -> tuple[list[str], Config | None] | None:
    """Return (files, the config they are judged by) where the rows are a table's: because it is said, or seen. Raises Stop(2)."""
    if config:
        return expand(arguments.paths) or [*config.data.files, *config.data.held_out_files], _with_files(config, arguments.paths)
    files = expand(arguments.paths)
    if arguments.target:
        _refuse_without_polars()
        from holdfast.tables.table.look import config_for

        return files, config_for(files, arguments.target, arguments.time)
    if arguments.time:
        raise Stop(USAGE, "--time belongs to --target", "name the column to be learned, too: --target COLUMN")
    if arguments.format != "auto" or arguments.field or importlib.util.find_spec("polars") is None:
        return None
    if not files or any(bare_suffix(name) not in _FORMS for name in files):
        return None
    from holdfast.tables.table.look import seems_a_table  # and with it polars, which takes as long to import as all else here

    return (files, None) if seems_a_table(files) else None


def _with_files(config: Config, paths: list[str]) -> Config:
    if not paths:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"files": expand(paths), "held_out_files": []})})


def check_tables(arguments: argparse.Namespace, claimed: tuple[list[str], Config | None]) -> tuple[int, Json]:
    """Look at every row, write nothing but the page that is asked for."""
    answer = _looked(arguments, *claimed, lambda _: None, None)
    _tell(arguments, answer)
    return BLOCKED if answer["rejected"] or any(one["severity"] == "block" for one in answer["findings"]) else DONE, answer


def clean_tables(arguments: argparse.Namespace, claimed: tuple[list[str], Config | None]) -> tuple[int, Json]:
    """Write the kept rows as a table, and the others with their reasons."""
    _refuse_without_polars()
    from holdfast.tables.table.write import FORMS, table_writer

    if arguments.out.suffix.lower() not in FORMS:
        raise Stop(USAGE, f"{arguments.out}: a table is written as {', '.join(FORMS)}", f"name it {arguments.out.with_suffix('.csv')}")
    refuse_outputs([arguments.out, arguments.rejects], claimed[0], tables=(arguments.out,))
    try:
        with ExitStack() as stack:
            arguments.rejects.parent.mkdir(parents=True, exist_ok=True)
            rejects: BinaryIO = stack.enter_context(replacing(arguments.rejects))
            keep = stack.enter_context(table_writer(arguments.out))
            answer = _looked(arguments, *claimed, lambda row: _write(rejects, row), keep)
    except OSError as error:
        raise cannot_write(error, arguments.out) from None
    answer |= {"out": str(arguments.out), "rejects": str(arguments.rejects)}
    _tell(arguments, answer)
    return DONE, answer


def _looked(
    arguments: argparse.Namespace,
    files: list[str],
    config: Config | None,
    reject: Callable[[Json], None],
    keep: Callable[[Any], None] | None,
) -> Json:
    _refuse_without_polars()
    from holdfast.tables.table.look import look_at

    if given := [f"--{name.replace('_', '-')}" for name in _OF_TEXT if getattr(arguments, name, None)]:
        text = f"{files[0]} is a table of numbers, and {', '.join(given)} is for rows of text"
        raise Stop(USAGE, text, "leave it out; or say which layout of text the rows have: --format LAYOUT")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="holdfast-table-", ignore_cleanup_errors=True) as folder:
        answer = look_at(files, config, Path(folder) / "columns", reject, keep)
    seconds = time.perf_counter() - began
    return answer | {
        "seconds": round(seconds, 3),
        "speed": {"rows_per_s": round(answer["rows"] / seconds, 1)},
        "files": [{"file": file, "form": form_of(file).words, "bytes": Path(file).stat().st_size} for file in files],
    }


def _write(handle: BinaryIO, row: Json) -> None:
    handle.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _refuse_without_polars() -> None:
    if importlib.util.find_spec("polars") is None:
        raise Stop(BLOCKED, "tables need polars", install("tabular"))


def _tell(arguments: argparse.Namespace, answer: Json) -> None:
    if arguments.html:
        from holdfast.report.data.table_page import render
        from holdfast.report.pages import write_page

        write_page(arguments.html, render(answer), answer)
    if not arguments.json:
        from holdfast.report.data.table_lines import show

        show(answer)


CHECK = RowCheck(add_table_arguments, table_config, check_tables, clean_tables)
