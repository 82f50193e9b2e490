"""Put on PYTHONPATH by `holdfast run --callback`: gives every transformers Trainer of this process holdfast's callback.

Imports nothing but the standard library until transformers' Trainer is imported; a sitecustomize that was there before is run
as ever.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (nothing is imported that is not there already)
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120


def _run_the_other() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    path = [place for place in sys.path if os.path.abspath(place or os.curdir) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds our own package for those whose Python does not have it, and wraps the loading of transformers.trainer."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "holdfast":
            place = os.path.join(_PACKAGE, "__init__.py")  # noqa: PTH118
            return importlib.util.spec_from_file_location(name, place, submodule_search_locations=[_PACKAGE])
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        try:
            importlib.import_module("holdfast.callback.first_calls").make_first_calls()
            _wrap(module.Trainer)
        except Exception as error:  # noqa: BLE001  (their training goes on without us)
            print(f"holdfast: no callback: {type(error).__name__}: {error}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def _wrap(trainer: Any) -> None:
    begin, train = trainer.__init__, trainer.train

    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        try:
            ours = importlib.import_module("holdfast.callback.hf").HoldfastCallback
            if not any(isinstance(one, ours) for one in self.callback_handler.callbacks):
                self.add_callback(ours(self))
        except Exception as error:  # noqa: BLE001
            print(f"holdfast: no callback: {type(error).__name__}: {error}", file=sys.stderr)

    def with_checkpoint(self: Any, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        place = os.environ.get("HOLDFAST_RESUME", "")
        mine = os.path.abspath(self.args.output_dir) == os.path.dirname(place)  # noqa: PTH100, PTH120
        if not resume_from_checkpoint and mine and os.path.isdir(place):  # noqa: PTH112
            resume_from_checkpoint = place
        return train(self, resume_from_checkpoint, *arguments, **keywords)

    trainer.__init__, trainer.train = functools.wraps(begin)(__init__), functools.wraps(train)(with_checkpoint)


_run_the_other()
sys.meta_path.insert(0, _Finder())
