"""`python measured.py FOLDER CASE.json`: trace the steps that the file names and print one JSON object a line. Run by faked.run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from faked.step import facts, trace


def main(folder: Path, file: Path) -> None:
    for number, case in enumerate(json.loads(file.read_text())):
        print(json.dumps(facts(trace(case.pop("model"), folder / str(number), **case))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
