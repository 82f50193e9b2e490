"""`holdfast schema`: the JSON schema of a config file, for editors and for looking keys up."""

from __future__ import annotations

import argparse

import orjson

from holdfast.base.errors import DONE
from holdfast.base.files import Json
from holdfast.config.config import Config

EXAMPLE = "holdfast schema > holdfast.schema.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the schema is JSON anyway")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    schema = Config.model_json_schema()
    if not arguments.json:
        print(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())
    return DONE, schema
