"""Have lm-eval ask two models the tasks of a suite, and write down what it found of each question. Judges nothing.

The request (JSON) names `suite` (tasks or groups of lm-eval), `path` (a folder of tasks of one's own, or null), `limit` (questions a
task, or null for all), `chat` (whether questions go through the chat template), `template` (that one, null for the base's own),
`threads`, `out` (a folder) and `parts`: name, model folder, adapter or null. What is found goes to `out/NAME.suite.json`; what the user can
mend to `out/error.json`.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from holdfast.base.errors import BLOCKED, USAGE, error_message
from holdfast.base.files import Json, read_json, write_json
from holdfast.trainer.common.device import release, take_threads
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.model.place import ModelPlace, at_first_that_fits, in_one_form, note, places
from holdfast.trainer.model.plain import load_plain

_BATCH = 8
_OF_OTHERS = (OSError, ValueError, LookupError, RuntimeError, AttributeError, TypeError, ImportError, AssertionError)  # tasks, their data


def suite(path: Path) -> int:
    """Do what the request at `path` asks for: the tasks are read first, then both models are asked."""
    request: Json = read_json(path) or {}
    out = Path(request["out"])
    take_threads(request["threads"])
    logging.basicConfig(level=logging.WARNING)
    try:
        manager, tasks = _tasks(request)
    except KeyError as error:
        hint = "lm-eval ls tasks prints those it knows; --suite-path DIR adds your own"
        return _failed(out, "lm-eval", f"no such task: {error.args[0]}", hint, USAGE)
    except _OF_OTHERS as error:
        return _failed(out, "lm-eval", f"the tasks cannot be read: {error_message(error)}", _hint_of(error), BLOCKED)
    left = places(request["held"])
    for part in in_one_form(request["parts"], left):
        asked = partial(_run_tasks, part, request, manager, tasks)
        try:
            found = at_first_that_fits(left, asked, partial(note, out, part["name"]))
        except _OF_OTHERS as error:
            what = f"memory ran out: {error_message(error)}" if is_out_of_memory(error) else error_message(error)
            return _failed(out, part["name"], what, _hint_of(error), BLOCKED)
        write_json(out / f"{part['name']}.suite.json", found)
        release()
    return 0


def _tasks(request: Json) -> tuple[Any, list[str]]:
    """Return lm-eval's manager, and the single tasks that the names stand for. Their data is read, or fetched, here."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=request["path"])
    return manager, sorted(manager.load(request["suite"])["tasks"])


def _run_tasks(part: Json, request: Json, manager: Any, tasks: list[str], place: ModelPlace) -> Json:
    """Run the tasks; return lm-eval's figures by task and metric, and those of each question."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    model = load_plain(part["model"], part["adapter"], *place)
    tokenizer: Any = AutoTokenizer.from_pretrained(part["model"], local_files_only=True, trust_remote_code=False)
    if request.get("template"):
        tokenizer.chat_template = request["template"]
    answer: Any = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=_BATCH),
        tasks=request["suite"],
        task_manager=manager,
        limit=request["limit"],
        apply_chat_template=request["chat"],
        bootstrap_iters=0,
    )
    found = {name: _of_task(answer, name) for name in tasks}
    return {"package": lm_eval.__version__, "tasks": found}


def _of_task(answer: Any, name: str) -> Json:
    """Return {samples}: of each question its number, hash and every figure that is one number, by `metric,filter` as in lm-eval."""
    samples: dict[int, Json] = {}
    for sample in answer["samples"][name]:
        entry = samples.setdefault(int(sample["doc_id"]), {"hash": sample["doc_hash"], "values": {}})
        for metric in sample["metrics"]:
            value = sample[metric]
            if isinstance(value, int | float):  # numpy's are too
                entry["values"][f"{metric},{sample['filter']}"] = float(value)
    results = {key: float(value) for key, value in answer["results"][name].items() if "," in key and isinstance(value, int | float)}
    return {
        "version": answer["versions"].get(name),
        "higher_is_better": answer["higher_is_better"].get(name) or {},
        "results": results,
        "samples": {str(number): entry for number, entry in samples.items()},
    }


def _hint_of(error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "HTTPError"}:
        return "its data is fetched from the hub: be online once, or give tasks on local files with --suite-path DIR"
    return ""


def _failed(out: Path, part: str, message: str, hint: str, code: int) -> int:
    write_json(out / "error.json", {"part": part, "message": message, "hint": hint, "code": code})
    return code
