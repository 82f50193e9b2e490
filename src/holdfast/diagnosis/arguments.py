"""Say what to write where a call has an argument that the installed package no longer takes, or does not take yet. Pure."""

from __future__ import annotations

import re

from holdfast.base.files import Json
from holdfast.book.knowledge import table

_UNEXPECTED = re.compile(r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '?(\w+)")
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OF_LIBRARIES = re.compile(r"site-packages|dist-packages|[\\/]lib[\\/]python3|<frozen|<string>")


def remedies_for_argument(text: str) -> list[Json]:
    """Return what helps against the last argument of a log's text that a call did not take, the likeliest first; empty where unknown.

    Where a library made the call, nothing here helps: its own version is to change.
    """
    found = list(_UNEXPECTED.finditer(text))
    if not found:
        return []
    match = found[-1]
    owner, method, name = match[1] or match[2], match[2], match[3]
    frames = FRAME.findall(text[: match.start()])
    own = [(file, line) for file, line in frames if not _OF_LIBRARIES.search(file)]
    place = f" ({own[-1][0]}:{own[-1][1]})" if own else ""
    known = table("arguments")
    for row in known["methods"]:
        if row["name"] == name and re.fullmatch(row["of"], method):
            what = (
                f"{row['package']} calls {method} with {name} since {row['since']}: give the script's own {method} {name}=None or **kwargs"
            )
            return [_remedy(what), _older(f"{row['package']}<{row['since']}")]
    for row in known["gone"]:
        if row["name"] == name and re.fullmatch(row["of"], owner):
            fact = f"{name} is gone from {row['package']}: {row['had']} had it, {row['gone']} has not"
            way = f"write {row['now']}" if row["now"] else f"delete {name}"
            return [_remedy(f"{fact}. In the script, {way}{place}"), _older(f"{row['package']}=={row['had']}.*")]
    if not frames or frames[-1] not in own:
        return []
    package = next((package for package, of in known["packages"].items() if re.fullmatch(of, owner)), "")
    shown = f'python -c "import inspect, {package}; print(inspect.signature({package}.{owner}))"' if package else ""
    what = f"{owner} as installed has no {name}: rename or delete it in the script where the script is the older of the two{place}"
    return [_remedy(what, shown)]


def _older(wanted: str) -> Json:
    what = "Or, in an environment of its own, install what the script was written for"
    return _remedy(what, f"pip install '{wanted}'") | {"id": "older-version"}


def _remedy(what: str, command: str = "") -> Json:
    return {
        "id": "change-the-call",
        "what": what,
        "patch": {},
        "command": command,
        "standing": "confirmed",
        "source": table("arguments")["source"],
    }
