"""Where a traceback ends, with and without its message."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.logs.frames import cut_traceback, raised_in
from holdfast.diagnosis.logs.text import clean_lines

PYTHON = 'Traceback (most recent call last):\n  File "/env/torch/_tensor.py", line 492, in backward\n    torch.autograd.backward('


@pytest.mark.parametrize(
    ("why", "log", "said"),
    [
        ("a traceback of Python", PYTHON, "env/torch/_tensor.py, backward: torch.autograd.backward("),
        ("markers are no code", f"{PYTHON}\n    ^^^^^^^^^^^^^^^", "env/torch/_tensor.py, backward: torch.autograd.backward("),
        ("a rank before each line", "\n".join(f"[rank1]: {line}" for line in PYTHON.split("\n")), "env/torch/_tensor.py, backward: torch"),
        (
            "a notebook, with the line it points at",
            "/env/a/fast.py in __init__(self, *args)\n     85         if x:\n---> 87             load(file)\n     88         else:",
            "env/a/fast.py, __init__: load(file)",
        ),
        (
            "rich",
            "│ /env/a/b/c.py:162 in forward    │\n│ ❱ 162 │   return F.embedding(      │",
            "a/b/c.py, forward: │   return F.embedding(",
        ),
        (
            "a call that is only passed on",
            '  File "/a/gpt.py", line 3, in f\n    x = self.wte(ids)\n  File "/e/torch/nn/modules/module.py", line 9, in _call\n    g()',
            "/a/gpt.py, f: x = self.wte(ids)",
        ),
        ("only frames, without code", '  File "/a.py", line 3, in f\n', "/a.py, f: "),
        ("the start of the line cut off", '/env/a/b.py", line 3, in forward\n    return g(x)', "env/a/b.py, forward: return g(x)"),
        (
            "only the line that is pointed at",
            "│ ❱ 162 │   return F.embedding(      │\n│   163 │      input,",
            "?, ?: │   return F.embedding(",
        ),
        ("pointed at, and the message", "---> 87     load(file)\nKeyError: 'x'", None),
        ("the message is there", f"{PYTHON}\nRuntimeError: no", None),
        ("the message of another rank is there", f"{PYTHON}\n[rank1]: torch.OutOfMemoryError: no", None),
        ("the program went on", PYTHON + "\nstep" * 9, None),
        ("no traceback", "step 1\nloss 3", None),
        ("nothing", "", None),
    ],
)
def test_the_end_of_a_cut_traceback_is_told(why: str, log: str, said: str | None) -> None:
    found = cut_traceback(clean_lines(log))
    assert (found is None) == (said is None), why
    assert said is None or (found is not None and found.text.startswith(f"reading: the traceback is cut in {said}")), why


RAISED = f"{PYTHON}\nRuntimeError: no"


@pytest.mark.parametrize(
    ("why", "log", "said"),
    [
        ("a traceback of Python", RAISED, "env/torch/_tensor.py, backward, as RuntimeError"),
        ("a class with its module", f"{PYTHON}\ntorch.a.SomeError: no", "env/torch/_tensor.py, backward, as torch.a.SomeError"),
        ("a rank before each line", "\n".join(f"[rank1]: {line}" for line in RAISED.split("\n")), "env/torch/_tensor.py, backward, as Ru"),
        ("markers are no code", '  File "/a/b.py", line 3, in f\n    ^^^^^\nKeyError: 1', "/a/b.py, f, as KeyError"),
        ("the first of two", f'{RAISED}\nTraceback:\n  File "/z.py", line 1, in g\nKeyError: 1', "env/torch/_tensor.py, backward"),
        ("only frames", PYTHON, None),
        ("a warning is no error", '  File "/a/b.py", line 3, in f\nUserWarning: slow', None),
        ("an exception far below", PYTHON + "\nstep" * 9 + "\nKeyError: 1", None),
        ("no frame", "KeyError: 1", None),
        ("nothing", "", None),
    ],
)
def test_the_place_an_error_was_raised_in_is_told(why: str, log: str, said: str | None) -> None:
    found = raised_in(clean_lines(log))
    assert (found is None) == (said is None), why
    assert said is None or (found is not None and found.text.startswith(f"reading: raised in {said}")), why
