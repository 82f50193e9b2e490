"""A run as a user has it: held-out rows, evaluations on the way, an early best, generation, report, and the adapter in PEFT's hands."""

from __future__ import annotations

from pathlib import Path

from stages.common import Place, events


def run(place: Place) -> None:
    config = place.config("qwen0.5b", place.rows("qwen0.5b", 256), data={"held_out": 0.1})
    config["evaluate"] = {"every": 4, "generate": 2, "max_new_tokens": 8}
    config["train"]["steps"] = 8
    found = place.train("whole", config)
    place.answer("finished", found["status"], str(found.get("reason") or ""))
    place.answer("evaluated", found.get("loss", {}).get("eval_tuned") is not None, str(found.get("evaluations")))
    wrong = events(found, "evaluation_failed")
    place.answer("evaluation-failed", len(wrong), str(wrong)[:300])
    told = [event["what"] for event in events(found, "setting_changed")]
    place.answer("left-paths", len(told), "; ".join(told)[:600])
    place.answer("report", place.holdfast("report", found["folder"]).returncode)
    place.answer("peft", _in_pefts_hands(place, Path(found["folder"])))


def _in_pefts_hands(place: Place, run: Path) -> bool:
    """Whether PEFT loads the adapter, and it changes the model's logits to finite ones."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = AutoModelForCausalLM.from_pretrained(place.model("qwen0.5b"), dtype=torch.bfloat16).to(device).eval()
    ids = torch.arange(5, 25, device=device)[None]
    with torch.no_grad():
        plain = base(input_ids=ids).logits.float().cpu()
        tuned = PeftModel.from_pretrained(base, str(run / "adapter")).eval()(input_ids=ids).logits.float().cpu()
    return bool(torch.isfinite(tuned).all()) and not torch.equal(plain, tuned)
