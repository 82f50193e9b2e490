"""What the trainer of a kind of task imports is installed: Transformers and PEFT, where no config says otherwise."""

from collections.abc import Iterator

from holdfast.base.tasks import kind_of
from holdfast.book.kinds.check import Case, Check, block
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    packages = case.machine.packages
    missing = [name for name in kind_of(case.config).packages if name in packages and packages[name] is None]
    if missing:
        yield block(f"{' and '.join(missing)} not installed", f"pip install {' '.join(missing)}")


CARD = Check(
    title="Transformers or PEFT is missing",
    why="Models are loaded by transformers and adapters made by PEFT. Neither replaces torch when it is installed.",
    source=["https://huggingface.co/docs/peft/install"],
    hits=[{"packages": {"transformers": "5.0.0", "peft": None}}],
    misses=[{"packages": {"transformers": "5.0.0", "peft": "0.21.2"}}, {"packages": {}}],
    look=look,
)
