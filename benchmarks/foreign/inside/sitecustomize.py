"""Put on PYTHONPATH by matrix.py: lets one fault happen in whatever Trainer the process makes, and writes down what it computes.

FOREIGN_CASE names the folder of the case: steps.jsonl (each step computed), fingerprints.jsonl (what each was computed from), end.json
(hash of the trained weights, whether they are finite), struck (there once the fault has happened). FOREIGN_FAULT is KIND:STEP, what
happens before that step, once in a case. FOREIGN_SOURCE is holdfast's source.
"""

import hashlib
import importlib.abc
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

PLACE = os.environ.get("FOREIGN_CASE", "")
KIND, _, AT = os.environ.get("FOREIGN_FAULT", "").partition(":")
STEP_S = 1.0  # so long a step takes at least, as steps do
WHOLE = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, and has it changed as soon as it is loaded."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


def break_in(module):
    from transformers import TrainerCallback

    fingerprints = of_source()
    fingerprints.SHARE = 1e9  # each step is looked at
    prints = fingerprints.Fingerprints(Path(PLACE))

    class Told(TrainerCallback):
        def on_step_begin(self, args, state, control, **more):
            time.sleep(STEP_S)
            if due(state.global_step + 1) and KIND not in ("hang", "nan"):
                strike(Path(args.output_dir))

        def on_step_end(self, args, state, control, model=None, optimizer=None, **more):
            prints.end(state.global_step, model, optimizer)
            note_step(state.global_step)

        def on_train_end(self, args, state, control, model=None, **more):
            note_end(state.global_step, [one for _, one in sorted(model.named_parameters()) if one.requires_grad])

    trainer = module.Trainer
    begin, step, batches = trainer.__init__, trainer.training_step, trainer.get_batch_samples

    def __init__(self, *arguments, **keywords):
        begin(self, *arguments, **keywords)
        self.add_callback(Told())

    def training_step(self, model, inputs, *arguments, **keywords):
        rows = [numbers_of(inputs)]
        prints.begin(self.state.global_step + 1, rows, self.optimizer)
        loss = step(self, model, inputs, *arguments, **keywords)
        if KIND == "nan" and due(self.state.global_step + 1):
            struck()
            for one in model.parameters():
                if one.grad is not None:
                    one.grad.fill_(float("nan"))
        return loss

    def get_batch_samples(self, *arguments, **keywords):
        if KIND == "hang" and due(self.state.global_step + 1):
            struck()
            time.sleep(3600)
        return batches(self, *arguments, **keywords)

    trainer.__init__, trainer.training_step, trainer.get_batch_samples = __init__, training_step, get_batch_samples


def at_steps(module):
    """Have what a Trainer's callback tells told by whatever optimizer steps: FOREIGN_LAST is the number of steps of the whole training."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    register_module_forward_pre_hook(note_inputs)
    module.register_optimizer_step_pre_hook(before_step)
    module.register_optimizer_step_post_hook(after_step)


seen = []  # what the first module of a step was called with: its rows
prints = []


def note_inputs(module, inputs):
    if not seen and module.training:
        seen.extend(one.tolist() for one in inputs if hasattr(one, "tolist"))


class Trained:
    """The tensors of an optimizer, as fingerprints.py asks a model for them."""

    def __init__(self, optimizer):
        self.tensors = [one for group in optimizer.param_groups for one in group["params"]]

    def parameters(self):
        return self.tensors

    def named_parameters(self):
        return [(str(at), one) for at, one in enumerate(self.tensors)]


def note_step(step):
    with open(f"{PLACE}/steps.jsonl", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "step": step, "time": time.time()}) + "\n")


def note_end(step, trained):
    digest = hashlib.sha256()
    for one in trained:
        digest.update(one.detach().float().numpy().tobytes())
    finite = all(bool(one.isfinite().all()) for one in trained)
    Path(PLACE, "end.json").write_text(json.dumps({"step": step, "weights": digest.hexdigest(), "finite": finite}))


def steps_of(optimizer):
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def before_step(optimizer, *more):
    time.sleep(STEP_S)
    if not prints:
        fingerprints = of_source()
        fingerprints.SHARE = 1e9
        prints.append(fingerprints.Fingerprints(Path(PLACE)))
    prints[0].begin(steps_of(optimizer) + 1, None, optimizer)
    if due(steps_of(optimizer) + 1):
        strike(Path(PLACE, "out"))


def after_step(optimizer, *more):
    prints[0]._found["rows"] = of_source().hash_of([json.dumps(seen).encode()])  # known by now, where a closure computes the step too
    seen.clear()
    prints[0].end(steps_of(optimizer), Trained(optimizer), optimizer)
    note_step(steps_of(optimizer))
    if steps_of(optimizer) == int(os.environ["FOREIGN_LAST"]):
        note_end(steps_of(optimizer), [one for group in optimizer.param_groups for one in group["params"]])


def of_source():
    """The module that makes fingerprints, by its file: this environment need not have holdfast."""
    spec = importlib.util.spec_from_file_location("fingerprints", Path(os.environ["FOREIGN_SOURCE"], "holdfast/callback/fingerprints.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers_of(inputs):
    """The tokens of a batch, or the rows it is made of."""
    if isinstance(inputs, dict):
        return {name: value.tolist() for name, value in sorted(inputs.items()) if hasattr(value, "tolist") and name.endswith("ids")}
    return [str(row) for row in inputs]


def due(step):
    return bool(KIND) and step == int(AT) and not Path(PLACE, "struck").exists()


def struck():
    Path(PLACE, "struck").touch()


def strike(out):
    """What is done to this process, or to what it has saved."""
    struck()
    if KIND in ("tear-weights", "tear-optimizer", "tear-state"):
        if os.environ.get("FOREIGN_LAST"):
            tear_largest(out)
            os.kill(os.getpid(), signal.SIGKILL)
        newest = max(out.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
        names = {"tear-weights": WEIGHTS, "tear-optimizer": ("optimizer.pt",), "tear-state": ("trainer_state.json",)}[KIND]
        file = next(newest / name for name in names if (newest / name).exists())
        os.truncate(file, file.stat().st_size // 2)
    if KIND == "disk":  # the output is on a small disk of its own; what fills it is another's, and goes away when somebody looks
        with open(out / "somebody-elses", "wb") as file:
            file.write(bytes(max(0, shutil.disk_usage(out).free - 12288)))
    elif KIND == "memory":
        used, hoard = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(), []
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
        while True:  # a leak, until there is no more
            hoard.append(bytearray(32 << 20))
    elif KIND == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif KIND == "worker":
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def tear_largest(out):
    """Cut the largest file of the newest checkpoint, whatever names it has."""
    files = [file for file in out.rglob("*") if file.is_file() and not file.is_symlink() and file.suffix in WHOLE]
    newest = max(files, key=lambda one: one.stat().st_mtime)
    beside = [file for file in files if file.parent == newest.parent and file.stat().st_mtime > newest.stat().st_mtime - 1]
    largest = max(beside, key=lambda one: one.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


if PLACE:
    sys.meta_path.insert(
        0, Finder("torch.optim.optimizer", at_steps) if os.environ.get("FOREIGN_LAST") else Finder("transformers.trainer", break_in)
    )
