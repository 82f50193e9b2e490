"""Write the table of rooms in docs/architecture.md from the first lines of the packages: `python scripts/rooms_table.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, PAGE = ROOT / "src" / "holdfast", ROOT / "docs" / "architecture.md"
TABLE = re.compile(r"(?<=<!-- rooms: written by scripts/rooms_table.py -->\n\n)\| room .*?(?=\n\n)", re.S)


def rooms() -> dict[str, str]:
    """The first sentence of each room's docstring by its name: a package, or a module that users import."""
    files = {file.parent.name: file for file in SOURCE.glob("*/__init__.py")} | {
        file.name: file for file in SOURCE.glob("*.py") if not file.name.startswith("_")
    }
    docstrings = {name: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for name, file in files.items()}
    return {name: text.partition("\n")[0].rstrip(".") for name, text in docstrings.items()}


def written(page: str) -> str:
    """The page with its table as it should be: rooms in the order they stand in, new ones behind them."""
    found, order = rooms(), re.findall(r"^\| `([\w.]+)` \|", TABLE.search(page)[0], re.M)  # type: ignore[index]
    names = [*(name for name in order if name in found), *sorted(found.keys() - {*order})]
    rows = [f"| `{name}` | {found[name].replace('|', chr(92) + '|')} |" for name in names]
    return TABLE.sub(lambda _: "\n".join(["| room | what it is for |", "|---|---|", *rows]), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
