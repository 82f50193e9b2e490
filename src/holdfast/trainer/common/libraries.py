"""Import torch, transformers and PEFT with less work: in a process that trains, this is most of the time before its first step."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_REMEMBERED = (  # what the libraries remember of whether it is installed
    ("peft.import_utils", "is_bnb_available"),
    ("peft.import_utils", "is_bnb_4bit_available"),
    ("transformers.utils.import_utils", "is_bitsandbytes_available"),
)


@contextmanager
def libraries(of_text: bool = True) -> Iterator[None]:
    """Provide a context to import the large libraries in: garbage collection is off, and what they create is never looked through by it.

    of_text: transformers is among them.
    """
    gc.disable()
    if of_text:
        _read_models_once()
    with without_bitsandbytes():
        yield
    gc.freeze()
    gc.enable()


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Hide bitsandbytes from imports within the context, unless it is imported already, as by a run that quantises.

    PEFT imports it wherever it is installed, and with it torch's compiler: longer than the rest of a small model's start.
    """
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        for library, question in _REMEMBERED:
            getattr(getattr(sys.modules.get(library), question, None), "cache_clear", lambda: None)()


def module_if_there(name: str) -> Any | None:
    """Return a module of a large library by its whole name.

    None where the installed version has no such module, or another library lacks one that it imports: new PEFT's want transformers 5.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and "." in missing.name:
            return None
        raise


def _read_models_once() -> None:
    """Make transformers reuse the list of its models' source files, which it otherwise reads twice, under two names."""
    import transformers
    from transformers.utils import import_utils

    read = getattr(import_utils, "create_import_structure_from_path", None)  # not part of its interface
    if read is None:
        return
    folder = Path(transformers.__file__).parent / "models"
    found, again = read(folder), str(folder / "__init__.py")
    import_utils.create_import_structure_from_path = lambda path: found if str(path) == again else read(path)
