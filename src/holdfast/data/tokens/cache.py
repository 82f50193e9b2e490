"""The token cache: shards under the hash of their contents, in the user's cache folder or, where that cannot be used, with the run.

An interrupted build goes on because what it had made is found. A shard is written whole or not at all; one that is damaged all the
same, or of another version, is made again. The folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from holdfast.base.files import write_bytes
from holdfast.data.judge.rules import Rules, rules_version
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.shard import Shard, read_shard


class TokenCache:
    """Shards of one key. `refused`: why the cache folder is not used; `damaged`: what was wrong with each shard made again."""

    def __init__(self, folder: Path | None, spare: Path, key: str) -> None:
        self._places = [place / key for place in (folder, spare) if place is not None]
        self._spare = spare
        self.refused = "" if folder else "there is no home folder"
        self.damaged: list[str] = []

    def find(self, name: str) -> tuple[Path, Shard] | None:
        """Find a shard that verifies, and its path; None without."""
        for place in self._places:
            path = place / f"{name}.safetensors"
            try:
                return path, read_shard(path.read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                self.damaged.append(f"{path}: {error}")
        return None

    def keep(self, name: str, data: bytes) -> Path:
        """Write a shard; return its path. Raises OSError when the run folder takes no more either."""
        path = self._places[0] / f"{name}.safetensors"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data, durable=False)  # the checksum tells what a power cut has torn
        except OSError as error:
            if len(self._places) == 1:
                raise
            self.refused = f"{path.parent} cannot be written ({error.strerror})"
            del self._places[0]
            return self.keep(name, data)
        return path

    def clear_spare(self) -> None:
        """Remove what was kept with the run, once its tokens are in one file."""
        shutil.rmtree(self._spare, ignore_errors=True)


def cache_key(codec: Codec, rules: Rules) -> str:
    """Hash all that rows are tokenised with: tokenizer and its package, chat template and special tokens, rules and data checks."""
    template = codec.template
    settings: list[Any] = [tokenizers.__version__, version("ftfy"), template.source, template.bos, template.eos, codec.bos, codec.specials]
    settings.append(sorted(template.names))  # the texts of further special tokens, which a template may write
    settings.append(str(codec.tokenizer.pre_tokenizer))  # not the file's, where transformers has rules of its own
    if rules.languages:
        settings.append(version("py3langid"))
    digest = hashlib.sha256(orjson.dumps([*settings, asdict(rules), rules_version()]))
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        file = codec.folder / name
        digest.update(file.read_bytes() if file.is_file() else b"-")
    return digest.hexdigest()[:32]
