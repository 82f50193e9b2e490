"""How fast each part of `data clean` is on one core: reading, surveying, taking the findings and writing.

Surveying is what workers share, so the other two say how many cores are worth having.

    python benchmarks/data_pass.py rows.jsonl
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.rules import Rules
from holdfast.data.survey.clean import _write
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import clean_block, read_survey
from holdfast.data.tokens.codec import load_codec, plain_codec
from holdfast.data.tokens.shard import Block, blocks


def timed(make: Callable[[], Any], megabytes: float) -> tuple[Any, float]:
    """What `make` gives, and megabytes of the file per second of this process."""
    began = time.process_time()
    made = make()
    return made, megabytes / (time.process_time() - began)


def take(file: str, read: list[Block], surveys: list[bytes]) -> None:
    findings = Findings()
    with Path(os.devnull).open("wb") as nowhere:
        for block, data in zip(read, surveys, strict=True):
            survey = read_survey(data)
            _, left = findings.take(file, block, survey)
            _write(survey, left, nowhere)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    codec = plain_codec(load_codec(EMBEDDED["tiny"]))
    print("| rows | MB | read MB/s | survey MB/s | take and write MB/s |\n|---|---|---|---|---|")
    for file in parser.parse_args().files:
        megabytes = Path(file).stat().st_size / 1e6
        read, reading = timed(lambda file=file: list(blocks(file)), megabytes)
        surveys, surveying = timed(lambda read=read: [clean_block(block, Rules(), codec) for block in read], megabytes)
        _, taking = timed(lambda file=file, read=read, surveys=surveys: take(file, read, surveys), megabytes)
        print(f"| {Path(file).name} | {megabytes:.1f} | {reading:.0f} | {surveying:.1f} | {taking:.0f} |")


if __name__ == "__main__":
    main()
