"""A process that trains imports its libraries with less work and gets the same of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.trainer.common.libraries import module_if_there, without_bitsandbytes

_CHILD = """
import contextlib, gc, json, sys
reads = []
sys.addaudithook(lambda event, given: reads.append(given[0]) if event == "open" and str(given[0]).endswith("modeling_bert.py") else None)
from holdfast.trainer.common.libraries import libraries
with libraries() if sys.argv[1] == "ours" else contextlib.nullcontext():
    import holdfast.trainer.loop.loop
    import transformers
from transformers.models.bert import BertModel
names = {"models": dir(transformers.models), "auto": dir(transformers.models.auto), "bert": dir(transformers.models.bert)}
print(json.dumps([gc.isenabled(), gc.get_freeze_count(), len(reads), BertModel.__name__, names]))
"""


def _imported(how: str) -> Any:
    child = subprocess.run([sys.executable, "-c", _CHILD, how], capture_output=True, text=True, check=True)
    return json.loads(child.stdout)


def test_a_child_has_its_docstrings_where_python_leaves_them_out() -> None:
    """PYTHONOPTIMIZE=2 made a run give up after three attempts: transformers fails without its docstrings."""
    command = [sys.executable, "-m", "holdfast.trainer", "account"]
    env = os.environ | {"PYTHONOPTIMIZE": "2"}
    child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    assert (child.returncode, child.stdout) == (0, ""), child.stderr


def test_the_libraries_are_the_same_and_their_models_are_read_once() -> None:
    (enabled, frozen, reads, *found), (_, not_frozen, plain_reads, *plain) = _imported("ours"), _imported("plainly")
    assert found == plain
    assert enabled and frozen > 100_000 > not_frozen
    assert (reads, plain_reads) == (2, 3), "for its names and as code"


def test_a_transformers_that_names_its_models_another_way_is_imported_as_it_is() -> None:
    child = (
        "import gc\n"
        "from transformers.utils import import_utils\n"
        "del import_utils.create_import_structure_from_path\n"
        "from holdfast.trainer.common.libraries import libraries\n"
        "with libraries():\n"
        "    inside = gc.isenabled()\n"
        "print(inside, gc.isenabled(), hasattr(import_utils, 'create_import_structure_from_path'))\n"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False)
    assert done.stdout == "False True False\n", done.stderr


def test_bitsandbytes_is_hidden_unless_it_is_imported_and_what_is_remembered_of_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("bitsandbytes")
    from peft.import_utils import is_bnb_available

    is_bnb_available.cache_clear()
    with without_bitsandbytes():
        assert is_bnb_available() and sys.modules["bitsandbytes"] is theirs, "a run that wants it has imported it"
    is_bnb_available.cache_clear()
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    with without_bitsandbytes():
        assert not is_bnb_available()
    assert "bitsandbytes" not in sys.modules and is_bnb_available()


def test_a_module_is_none_where_a_version_lacks_it_or_what_it_imports_and_not_where_a_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PEFT 0.17 has no `peft.utils.transformers_weight_conversion`; that of 0.21 imports what transformers 4.57 has not."""
    for name, text in {"__init__": "", "there": "", "newer": "import json.mapping", "alone": "import not_installed_anywhere"}.items():
        (tmp_path / "library_of_a_version").mkdir(exist_ok=True)
        (tmp_path / "library_of_a_version" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = {name: module_if_there(f"library_of_a_version.{name}") is not None for name in ("there", "newer", "absent")}
    assert found == {"there": True, "newer": False, "absent": False}
    for name in ("library_of_a_version.alone", "not_installed_anywhere"):
        with pytest.raises(ModuleNotFoundError):
            module_if_there(name)


@pytest.mark.parametrize(("code", "ended"), [([3], 3), ([], 0)])
def test_a_process_that_is_left_at_once_has_done_what_others_asked_for_at_its_end(code: list[int], ended: int) -> None:
    """Its exit code is its own; one that ends otherwise, with none, ends as Python ends it."""
    lines = ["import atexit", "from holdfast.trainer.__main__ import leave_at_once", f"atexit.register(leave_at_once, {code})"]
    program = "\n".join([*lines, "atexit.register(print, 'asked for')", "print('done')"])
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout) == (ended, "done\nasked for\n")
