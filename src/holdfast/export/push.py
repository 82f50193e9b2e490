"""Put an export on the Hugging Face hub, by huggingface_hub and with its token. Only when asked; a new repository is private."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base.errors import BLOCKED, USAGE, Stop, error_message
from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.folder import name_for_others
from holdfast.run.artifact import ADAPTER_CONFIG

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_FAILURES = (OSError, ValueError, RuntimeError)  # its own errors are kinds of these


def open_hub(repository: str) -> Any:
    """Connect to the hub to take `OWNER/NAME`. Raises Stop before anything is computed: without the package, a token, or an answer."""
    if not _REPOSITORY.fullmatch(repository):
        raise Stop(USAGE, f"--push {repository} is not the name of a repository", "OWNER/NAME, as on the hub")
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError:
        hint = "pip install huggingface_hub"
        raise Stop(USAGE, "--push needs the package huggingface_hub, which is not installed", hint) from None
    if not get_token():
        raise Stop(USAGE, "--push needs a token of the hub, and there is none on this machine", "hf auth login, or set HF_TOKEN")
    hub = HfApi()
    try:
        hub.whoami()
    except _FAILURES as error:
        raise Stop(
            BLOCKED, f"the hub {hub.endpoint} does not take the token: {error_message(error)}", "hf auth login; or leave out --push"
        ) from None
    return hub


def push(hub: Any, repository: str, answer: Json) -> Json:
    """Upload what was exported, all of it in one commit; `repository`, `url` and `commit` of the answer.

    `base` is how an adapter names its base there, where its own file names a folder of this machine.
    Raises Stop(1) where that fails: the export itself stays.
    """
    out = Path(answer["out"])
    try:
        hub.create_repo(repository, private=True, exist_ok=True)
        about: Json = {"repo_id": repository, "commit_message": f"Upload {answer['kind']} export"}
        if out.is_dir():
            with _for_others(out) as (folder, base):
                commit = hub.upload_folder(folder_path=folder, **about)
        else:
            base = {}
            commit = hub.upload_file(path_or_fileobj=out, path_in_repo=out.name, **about)
    except _FAILURES as error:
        text = f"{out} was written and not pushed to {repository}: {error_message(error)}"
        raise Stop(BLOCKED, text, f"hf upload {repository} {shlex.quote(str(out))}", answer) from None
    return {"repository": repository, "url": f"{hub.endpoint}/{repository}", "commit": commit.oid} | base


@contextlib.contextmanager
def _for_others(out: Path) -> Iterator[tuple[Path, Json]]:
    """Yield the folder to upload, and its adapter's base where that is named otherwise there; `out` itself stays as it is."""
    config = read_json(out / ADAPTER_CONFIG) or {}
    given = config.get("base_model_name_or_path")
    if not isinstance(given, str) or (name := name_for_others(given)) == given:
        yield out, {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "export"
        shutil.copytree(out.absolute(), folder, copy_function=os.symlink)
        (folder / ADAPTER_CONFIG).unlink()
        write_json(folder / ADAPTER_CONFIG, config | {"base_model_name_or_path": name}, durable=False)
        yield folder, {"base": name}
