"""Put on PYTHONPATH by `holdfast run --callback`: gives every transformers Trainer of this process holdfast's callback.

A process that has HOLDFAST_STANDBY in its environment waits here, before its script is opened (callback/standby.py).

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
_ORDER = os.environ.pop("HOLDFAST_STANDBY", "")  # what an import starts must not wait, too


def _run_the_other() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    path = [place for place in sys.path if os.path.abspath(place or os.curdir) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


changes: Any = []  # (module, variables that changed before its import); None: this process has waited
_environment = dict(os.environ)


def _note_changes(module: str) -> None:
    global _environment
    if changes is not None and _environment != (now := dict(os.environ)):
        names = {name for name in {*_environment, *now} if _environment.get(name) != now.get(name)}
        changes.append((module, {name: now.get(name) for name in names}))
        _environment = now


class _Finder(importlib.abc.MetaPathFinder):
    """Finds our own package for those whose Python does not have it, and wraps the loading of transformers.trainer."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        _note_changes(name)
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
    had: list[str] = []  # the checkpoints that were given: each to one training, not to all that save to its folder

    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        try:
            ours = importlib.import_module("holdfast.callback.hf").HoldfastCallback
            for one in (there := [one for one in self.callback_handler.callbacks if isinstance(one, ours)]):
                one.trainer = one.trainer or self
            if not there:
                self.add_callback(ours(self))
        except Exception as error:  # noqa: BLE001
            print(f"holdfast: no callback: {type(error).__name__}: {error}", file=sys.stderr)

    def with_checkpoint(self: Any, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        saves_to, trial = os.path.realpath(self.args.output_dir), arguments[0] if arguments else keywords.get("trial")
        for place in os.environ.get("HOLDFAST_RESUME", "").split("\n"):
            if saves_to == os.path.dirname(place) and place not in had and trial is None:  # noqa: PTH120
                had.append(place)
                if not resume_from_checkpoint and os.path.isdir(place):  # noqa: PTH112
                    resume_from_checkpoint = place
        return train(self, resume_from_checkpoint, *arguments, **keywords)

    trainer.__init__, trainer.train = functools.wraps(begin)(__init__), functools.wraps(train)(with_checkpoint)


try:
    _run_the_other()
    sys.meta_path.insert(0, _Finder())
    if _ORDER:
        changes = None
        importlib.import_module("holdfast.callback.standby").wait(_ORDER)
except BaseException:
    if _ORDER:
        os._exit(1)  # Python would go on to the script
    raise
