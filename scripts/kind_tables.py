"""Write the tables of docs/reference/training.md from the records of kinds and the first settings; tests/config/test_kinds.py says when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from holdfast.config.adapter_kinds import KINDS, AdapterKind
from holdfast.config.choices.frozen_formats import FORMATS
from holdfast.config.choices.optimizers import OPTIMIZERS, OptimizerKind
from holdfast.config.objectives import OBJECTIVES
from holdfast.planning.advice import advise, usual_lr

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "training.md"
MARK = re.compile(r"(<!-- (\w+): written by scripts/kind_tables.py -->\n).*?(<!-- end -->)", re.S)
ROWS = {"answers": "answers", "pairs": "pairs", "marks": "marked answers"}
SIZES = {"30 million": 30_000_000, "135 million": 135_000_000, "0.5 billion": 500_000_000} | {
    f"{size} billion": size * 1_000_000_000 for size in (3, 8, 13, 32, 70)
}
ROWS_TRAINED = (200, 1_000, 3_000, 10_000, 100_000)
MOMENTS = {"own": "each weight's own, in fp32", "blocks": "in blocks, by bitsandbytes", "whole": "of a form of its own"}


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    return {
        "kinds": table(("type", "what", "keys it reads", "merged by `holdfast export`", "`train.fsdp`"), map(of_adapter, KINDS.values())),
        "formats": table(("value", "how"), ((f"`{form.name}`", form.about) for form in FORMATS.values())),
        "objectives": table(
            ("objective", "rows", "reference", "loss"),
            ((f"`{kind.name}`", ROWS[kind.rows], yes(kind.reference), kind.about) for kind in OBJECTIVES.values()),
        ),
        "optimizers": table(
            ("optimizer", "bytes a trained weight", "moments", "`offload: optimizer`, `fsdp` of all weights", "`weights: bf16`"),
            map(of_optimizer, OPTIMIZERS.values()),
        ),
        "rates": table(
            ("parameters", "`lora` and its kin, `sft`", "`full`, `layers`, `sft`"),
            ((size, f"{usual_lr(params, 'lora'):g}", f"{usual_lr(params, 'full'):g}") for size, params in SIZES.items()),
        ),
        "starts": table(("rows", "epochs of `sft`", "`effective_batch`", "`adapter.r`", "`adapter.alpha`"), map(of_rows, ROWS_TRAINED)),
    }


def of_rows(rows: int) -> tuple[str, ...]:
    chosen = {one.key: one.value for one in advise(None, rows)}
    return f"{rows:,}", *(f"{chosen[key]}" for key in ("train.epochs", "train.effective_batch", "adapter.r", "adapter.alpha"))


def of_adapter(kind: AdapterKind) -> tuple[str, ...]:
    merged = "a model already" if kind.own_weights else yes(bool(kind.merge))
    return f"`{kind.name}`", kind.about, ", ".join(f"`{key}`" for key in kind.keys), merged, yes(bool(kind.fsdp))


def of_optimizer(kind: OptimizerKind) -> tuple[str, ...]:
    return f"`{kind.name}`", f"{kind.state_bytes:g}", MOMENTS[kind.moments], yes(kind.moments == "own"), yes(kind.moments != "whole")


def yes(it: bool) -> str:
    return "yes" if it else ""


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def written(page: str) -> str:
    """The page with its tables as they should be."""
    made = tables()
    return MARK.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
