"""A pytest plugin that lets TRL's own tests run without a hub: made models and rows under the names that they ask for.

    PYTHONPATH=benchmarks/foreign FOREIGN_STAND_INS=FOLDER python -m pytest -p stand_ins tests/test_sft_trainer.py    # in a checkout of TRL

The models are tiny and random, with one made tokenizer; the rows are those that the checkout's own scripts generate.
Both are made once in FOLDER.
suites.py takes `-p stand_ins` behind its `--`.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

HERE, PLACE = Path(__file__).parent, Path(os.environ["FOREIGN_STAND_INS"]).resolve()
os.environ |= {"HF_HUB_CACHE": str(PLACE / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(PLACE / "datasets")}
OWNER = "trl-internal-testing"
SMALL = {"hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS = {
    "tiny-Qwen2ForCausalLM-2.5": ("qwen2", SMALL),
    "tiny-Qwen2ForSequenceClassification-2.5": ("qwen2", SMALL | {"num_labels": 1}),
    "tiny-Qwen3ForCausalLM": ("qwen3", SMALL),
    "tiny-Qwen3ForSequenceClassification": ("qwen3", SMALL | {"num_labels": 1}),
    "tiny-Qwen3MoeForCausalLM": ("qwen3_moe", SMALL | MOE),
    "tiny-LlamaForCausalLM-3.2": ("llama", SMALL),
    "tiny-LlamaForSequenceClassification-3.2": ("llama", SMALL | {"num_labels": 1}),
    "tiny-MistralForCausalLM-0.2": ("mistral", SMALL),
    "tiny-GPTNeoXForCausalLM": ("gpt_neox", SMALL),
}


def make_models() -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    sys.path.insert(0, str(HERE.parent / "engine"))
    from make_models import TINY, make_model

    if not (PLACE / "made").exists():
        make_model(PLACE / "made", "test", TINY)
    tokenizer = AutoTokenizer.from_pretrained(PLACE / "made")
    for name, (kind, shape) in MODELS.items():
        folder = PLACE / "hub" / f"models--{OWNER}--{name}"
        if (folder / "refs/main").exists():
            continue
        told = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        config = AutoConfig.for_model(kind, **shape, **told, bos_token_id=None)
        torch.manual_seed(0)
        auto = AutoModelForSequenceClassification if "num_labels" in shape else AutoModelForCausalLM
        snapshot = folder / "snapshots" / ("0" * 40)
        auto.from_config(config).to(torch.bfloat16).save_pretrained(snapshot)
        tokenizer.save_pretrained(snapshot)
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text("0" * 40)


def make_rows() -> None:
    """Have the checkout's scripts generate their rows, into folders in place of the hub."""
    import datasets

    def keep(self, name, config_name="default", **more):
        self.save_to_disk(str(PLACE / "rows" / name / config_name))

    pushes, datasets.DatasetDict.push_to_hub = datasets.DatasetDict.push_to_hub, keep
    for script in ("zen", "harmony", "toolcall"):
        file, rows = Path("scripts", f"generate_{script}_dataset.py"), PLACE / "rows" / OWNER / script
        if not file.exists() or rows.exists():
            continue
        spec = importlib.util.spec_from_file_location(f"generate_{script}", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # its dataclass looks itself up
        spec.loader.exec_module(module)
        try:
            module.main(0.1, True, f"{OWNER}/{script}")
        except Exception as error:  # noqa: BLE001  (tests that ask for them fail as they are, and are told)
            print(f"no rows of {script}: {type(error).__name__}: {error}", file=sys.stderr)
            shutil.rmtree(rows, ignore_errors=True)
    datasets.DatasetDict.push_to_hub = pushes
    load = datasets.load_dataset

    def load_dataset(name, config=None, *arguments, split=None, **more):
        rows = PLACE / "rows" / str(name) / (config or more.get("name") or "default")
        if not rows.exists():
            return load(name, config, *arguments, split=split, **more)
        found = datasets.load_from_disk(str(rows))
        return found[split] if split else found

    datasets.load_dataset = load_dataset


make_models()
make_rows()
