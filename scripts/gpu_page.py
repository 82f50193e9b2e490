"""Write the tables of docs/reference/gpus.md from what doctor and plan say; tests/project/test_gpus_page.py says when."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from holdfast.checkup.examine import examine, verdict  # noqa: E402
from holdfast.report.plan.paths import paths  # noqa: E402
from support.recorded import CARDS, machine  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "gpus.md"
MARK = re.compile(r"(<!-- (\w+): written by scripts/gpu_page.py -->\n).*?(<!-- end -->)", re.S)
COLUMNS = ("GPU", "torch", "precision", "attention", "memory limit", "LoRA on a 7B shape in bf16", "the doctor")
NVIDIA = {
    "sm_60": "2.9.1+cu126",
    "sm_61": "2.9.1+cu126",
    "sm_70": "2.14.1+cu126",
    "sm_75": "2.13.0+cu130",
    "sm_80": "2.13.0+cu130",
    "sm_86": "2.9.1+cu128",
    "sm_89": "2.14.1+cu130",
    "sm_90": "2.13.0+cu130",
    "sm_100": "2.11.0+cu128",
    "sm_120": "2.14.1+cu130",
}
AMD = {
    "gfx906": "2.9.1+rocm6.3",
    "gfx908": "2.13.0+rocm7.2",
    "gfx90a": "2.13.0+rocm7.2",
    "gfx942": "2.13.0+rocm7.2",
    "gfx950": "2.13.0+rocm7.2",
    "gfx1030": "2.13.0+rocm7.2",
    "gfx1031": "2.13.0+rocm7.2",
    "gfx1100": "2.13.0+rocm7.2",
    "gfx1101": "2.13.0+rocm7.2",
    "gfx1102": "2.13.0+rocm7.2",
    "gfx1200": "2.10.0+rocm7.1",
    "gfx1201": "2.13.0+rocm7.2",
}
INTEGRATED = {"gfx1103": "2.13.0+rocm7.2", "gfx1150": "2.13.0+rocm7.2", "gfx1151": "2.13.0+rocm7.2"}
SHORT = {  # what the paths say, as the table has room for it
    "all samples at once where that is proven, else each sample by itself": "all at once",
    "each sample by itself": "one by one",
    "fused kernels (AOTriton)": "AOTriton",
    "plain products: no fused kernels for this architecture": "plain products",
    "plain products: fused kernels are behind TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1": "plain products (fused ones behind a switch)",
    "none: a full card refuses by itself": "none",
}


def facts_of(arch: str, torch: str) -> dict[str, Any]:
    """A machine with such a card, as the tests record them."""
    facts = machine(torch, arch)
    if arch in INTEGRATED:
        facts["gpus"][0]["integrated"] = True
    return facts


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    return {name: table(cards) for name, cards in (("nvidia", NVIDIA), ("amd", AMD), ("integrated", INTEGRATED))}


def table(cards: dict[str, str]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row(arch, torch))} |" for arch, torch in cards.items()), ""])


def row(arch: str, torch: str) -> tuple[str, ...]:
    facts = facts_of(arch, torch)
    told, findings = paths(facts), examine(facts)
    name, gib = CARDS[arch]
    serious = ", ".join(f"`{finding.id}`" for finding in findings if finding.severity != "info")
    attention = ", ".join(SHORT[part] for part in told["attention"].split("; "))
    limit = SHORT.get(told["memory limit"], told["memory limit"].partition(",")[0])
    fits = next(how for subject, how in told.items() if subject.startswith("7B"))
    judged = f"{verdict(findings)}{f': {serious}' if serious else ''}"
    return f"{arch} ({name}, {gib:g} GiB)", torch, told["precision"], attention, limit, fits, judged


def written(page: str) -> str:
    """The page with its tables as they should be."""
    made = tables()
    return MARK.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
