"""What fits cards of common sizes, for models that need no config of a run. By the closed form alone."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.planning.memory.fit import choose
from holdfast.planning.planning import planner, with_card

SIZES_GIB = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141)
_R, _ROW = 32, 2048


def plan_table(models: list[str]) -> Json:
    """Return {models: [{model, params, r, row, dtype, by_memory: [{memory_bytes, fits, peak_bytes, ...}]}]}, in bf16. Raises Stop."""
    return {"models": [_of(model) for model in models]}


def _of(model: str) -> Json:
    tree = {"model": model, "data": {"files": "rows"}, "adapter": {"r": _R, "alpha": 2 * _R}}
    config = Config.model_validate(tree | {"train": {"max_tokens": _ROW, "precision": "bf16"}})
    rows, params = [], None
    with planner(config, with_card({}, _card(SIZES_GIB[-1]))) as work:
        wanted = work.wanted()
        need = work.sweep(wanted)
        for size in SIZES_GIB:
            room = work.room(need, size << 30)
            choice = choose(work.sweep, work.sweep, room, wanted, rows_fixed=False, again_fixed=False)
            params = choice.demand.params
            rows.append(
                {
                    "memory_bytes": size << 30,
                    "fits": room.fits(choice.demand),
                    "peak_bytes": room.peak(choice.demand),
                    "micro_batch_tokens": choice.shape.tokens,
                    "checkpointed_layers": choice.shape.again,
                }
            )
    return {
        "model": model,
        "params": params.model_dump() if params else None,
        "r": _R,
        "row": wanted.row,
        "dtype": "bf16",
        "by_memory": rows,
    }


def _card(size_gib: int) -> Json:
    return {"vendor": "nvidia", "arch": "sm_90", "name": "a card", "memory_bytes": size_gib << 30, "integrated": False}
