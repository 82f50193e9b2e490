"""What the hub's refusals mean, as a fact and the next command: one table for models and data sets. Asks the hub nothing."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from holdfast.base.errors import BLOCKED, USAGE, Stop, error_message
from holdfast.base.files import is_full

Kind = Literal["model", "data set"]
_TOKEN = "hf auth login, or set HF_TOKEN"


def refusal(error: Exception, name: str, kind: Kind, here: str) -> Stop:
    """Return the Stop for an error of huggingface_hub. name: as asked, with @REVISION; here: what a local one would be, "a folder"."""
    chain = [*_chain(error)]
    kinds = {cls.__name__ for one in chain for cls in type(one).__mro__}
    repository, _, revision = name.partition("@")
    if kinds & {"HFValidationError"}:
        return no_name(name, kind, here)
    if "GatedRepoError" in kinds:
        page = f"{_constant('ENDPOINT')}/{'datasets/' if kind == 'data set' else ''}{repository}"
        return Stop(BLOCKED, f"{repository} is gated: {_asked()}", f"accept its conditions at {page}, then {_TOKEN}")
    if "RevisionNotFoundError" in kinds:
        return Stop(USAGE, f"{repository} has no revision {revision or 'main'}", "name a branch, a tag or a commit of it")
    if "DisabledRepoError" in kinds:
        return Stop(BLOCKED, f"the hub has disabled {repository}", f"give another {kind}")
    if "RepositoryNotFoundError" in kinds:
        text = f"{repository} is not {here}, and no {kind} on the hub that can be seen: {_asked()}"
        return Stop(USAGE, text, f"correct the name; for a private one: {_TOKEN}")
    if "OfflineModeIsEnabled" in kinds:
        away = f"it is not in the cache ({_constant('HF_HUB_CACHE')}), and HF_HUB_OFFLINE forbids to ask"
        text = f"{name} is not {here}, and the hub does not give it: {away}"
        download = f"hf download {'--repo-type dataset ' if kind == 'data set' else ''}{repository}"
        return Stop(BLOCKED, text, f"once with the network: {download}; or unset HF_HUB_OFFLINE")
    return _told_by_status(error, name, kind, here)


def no_name(name: str, kind: Kind, here: str) -> Stop:
    """Return what to say of a name that the hub cannot have: a page's address, a path, or a slip."""
    if page := re.match(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?:datasets/)?([\w.-]+/[\w.-]+)", name):
        return Stop(USAGE, f"{name} is a page of the hub, and no name there", f"write {page[1]}")
    if "://" in name:
        return Stop(USAGE, f"{name} is an address; a {kind} is {here} or a name on the hub", "fetch it into a folder first, and name that")
    if "\\" in name:
        return Stop(USAGE, f"{name} is a path of Windows, and {here} here is named with /", "in WSL the drive C: is /mnt/c")
    if "$" in name:
        return Stop(USAGE, f"{name} is taken as it stands: no variable is filled in", "write the path out, or begin it with ~/")
    path = Path(name).expanduser()
    if os.path.isfile(path):  # noqa: PTH113  (of a name that is too long, Path says an error)
        return Stop(USAGE, f"{name} is a file, and no {kind}", f"a {kind} is {here}, or OWNER/NAME on the hub")
    beside = [one.name for one in path.parent.iterdir() if kind != "model" or one.is_dir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, 1)
    near = f"; did you mean {path.parent / close[0]}?" if close else ""
    if name[:1] in "~/." or name.count("/") > 1:
        return Stop(USAGE, f"{name} is not there{near}", f"the current folder is {Path.cwd()}")
    return Stop(USAGE, f"{name} is not {here}, and no name on the hub{near}", f"a {kind} there is named OWNER/NAME")


def _told_by_status(error: Exception, name: str, kind: Kind, here: str) -> Stop:
    chain = [*_chain(error)]
    status = next((code for one in chain if (code := getattr(getattr(one, "response", None), "status_code", None))), None)
    hub = _constant("ENDPOINT")
    if status == 401:
        return Stop(BLOCKED, f"the hub {hub} does not take the token that {name} was asked for with", _TOKEN)
    if status == 403:
        return Stop(BLOCKED, f"the hub {hub} forbids {name}: {_asked()}", "ask its owner for access, or give another token in HF_TOKEN")
    if status == 429 or (status or 0) >= 500:
        return Stop(BLOCKED, f"the hub {hub} does not give {name} now (status {status})", "try again later, or give a local copy")
    full = next((one for one in chain if isinstance(one, OSError) and is_full(one)), None)
    if full is not None:
        return Stop(BLOCKED, f"the disk is full while {name} is fetched into {_constant('HF_HUB_CACHE')}", "HF_HOME names another place")
    reason = error_message(chain[-1]) if isinstance(chain[-1], Exception) else str(chain[-1])
    if isinstance(chain[-1], socket.gaierror):
        reason = "no address is found for its name (no network, or no DNS)"
    away = f"{name} is not {here}, and it is not in the cache ({_constant('HF_HUB_CACHE')})"
    text = f"{away}; the hub {hub} {'cannot be reached' if unreachable(error) else 'does not give it'}: {reason}"
    return Stop(BLOCKED, text, f"give a local copy of the {kind}; or look at the network, at HF_ENDPOINT and proxies")


def unreachable(error: Exception) -> bool:
    """True if the hub was not reached, or answered that it is not well: the cached copy may do."""
    names = {cls.__name__ for one in _chain(error) for cls in type(one).__mro__}
    status = next((code for one in _chain(error) if (code := getattr(getattr(one, "response", None), "status_code", None))), 0)
    return bool(names & {"OfflineModeIsEnabled", "ConnectError", "ConnectionError", "TimeoutException", "Timeout"}) or status >= 500


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _asked() -> str:
    token = importlib.import_module("huggingface_hub").get_token()
    return "it was asked with this machine's token" if token else "it was asked without a token"


def _constant(name: str) -> str:
    return str(getattr(importlib.import_module("huggingface_hub.constants"), name))
