"""Import torch, transformers and PEFT with less work: in a process that trains, this is most of the time before its first step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def libraries(of_text: bool = True) -> Iterator[None]:
    """Inside, import what needs them. What they make in being imported stays, and is not looked through for garbage, then or later.

    of_text: transformers is among them.
    """
    gc.disable()
    hidden = "bitsandbytes" not in sys.modules
    if hidden:  # PEFT imports it wherever it is installed, a quarter of the time; a run that wants it imports it (quantising.py)
        sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    if of_text:
        _read_models_once()
    try:
        yield
    finally:
        if hidden:
            del sys.modules["bitsandbytes"]
    gc.freeze()
    gc.enable()


def _read_models_once() -> None:
    """Transformers reads the source of all its models to know their names, keeps what it found, and reads them again under another name."""
    import transformers
    from transformers.utils import import_utils

    read = getattr(import_utils, "create_import_structure_from_path", None)  # not part of its interface
    if read is None:
        return
    folder = Path(transformers.__file__).parent / "models"
    found, again = read(folder), str(folder / "__init__.py")
    import_utils.create_import_structure_from_path = lambda path: found if str(path) == again else read(path)
