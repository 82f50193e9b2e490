"""What a run imports is installed: what its kind of task needs (Transformers and PEFT, where no config says otherwise) and its config."""

from collections.abc import Iterator

from holdfast.base.tasks import kind_of
from holdfast.base.versions import install
from holdfast.book.kinds.check import Case, Check, block
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    packages = case.machine.packages
    missing = [name for name in kind_of(case.config).packages if name in packages and packages[name] is None]
    if missing:
        yield block(f"{' and '.join(missing)} not installed", f"pip install {' '.join(missing)}")
    asking = case.config.train.wants_bitsandbytes if case.config else []
    if asking and packages.get("bitsandbytes", "unknown") is None:
        verb = "needs" if len(asking) == 1 else "need"
        yield block(f"{' and '.join(asking)} {verb} bitsandbytes, which is not installed", install("quantised"))


CARD = Check(
    title="Transformers or PEFT is missing",
    why="Models are loaded by transformers and adapters made by PEFT. Neither replaces torch when it is installed.",
    source=["https://huggingface.co/docs/peft/install"],
    hits=[{"packages": {"transformers": "5.0.0", "peft": None}}],
    misses=[{"packages": {"transformers": "5.0.0", "peft": "0.21.2"}}, {"packages": {}}],
    look=look,
)
