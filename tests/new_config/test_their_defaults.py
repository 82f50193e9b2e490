"""What another trainer does where its file says nothing is part of what its user has: carried, and held against their own code."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.config.foreign.convert import convert
from holdfast.config.foreign.defaults import modules_of_peft
from holdfast.config.foreign.keys import Draft
from holdfast.config.foreign.read import read_foreign

TRL = "from trl import SFTTrainer, SFTConfig\n"
TRAINS = "SFTTrainer(model='meta/Llama', args=SFTConfig(output_dir='o', {}), {}).train()\n"
UNSLOTH = "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer, SFTConfig\nfrom transformers import TrainingArguments\n"
AXOLOTL = "base_model: meta/Llama\ndatasets: [{path: rows.jsonl, type: chat_template}]\nsequence_len: 512\nlearning_rate: 1e-4\n"
LLAMA_FACTORY = "model_name_or_path: meta/Llama\nstage: sft\nfinetuning_type: lora\ndataset: mine\ntemplate: llama3\ncutoff_len: 512\n"
TRL_CONFIG = "model_name_or_path: meta/Llama\ndataset_name: trl-lib/Capybara\nlearning_rate: 1e-4\noutput_dir: o\n"


def made_of(tmp_path: Path, name: str, text: str) -> Draft:
    file = tmp_path / name
    file.write_text(text)
    source, known = read_foreign(file)
    draft = convert(source, known=known)
    Config.model_validate(draft.as_tree())
    assert [row.theirs for row in draft.rows] == [key.theirs for key in source.keys]
    return draft


def of_script(tmp_path: Path, arguments: str = "", trainer: str = "train_dataset=None", before: str = "") -> Draft:
    return made_of(tmp_path, "s.py", TRL + before + TRAINS.format(arguments, trainer))


def _adapter(draft: Draft) -> dict[str, Any]:
    return {path.partition(".")[2]: value for path, value in draft.tree.items() if path.startswith("adapter.")}


@pytest.mark.parametrize("given", ["", "r=32", "lora_alpha=64", "task_type='CAUSAL_LM'", "target_modules=['k_proj'], lora_dropout=0.1"])
def test_what_a_lora_config_does_not_say_is_what_peft_takes(given: str, tmp_path: Path) -> None:
    """It was our alpha of 16 and every linear layer; without r, alpha, targets and dropout all weights."""
    from peft import LoraConfig
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as MODULES

    adapter = _adapter(of_script(tmp_path, "", f"peft_config=LoraConfig({given})"))
    theirs = eval(f"LoraConfig({given})", {"LoraConfig": LoraConfig})
    assert adapter == {
        "type": "lora",
        "r": theirs.r,
        "alpha": theirs.lora_alpha,
        "dropout": theirs.lora_dropout,
        "targets": sorted(theirs.target_modules or MODULES["llama"]),
    }


def test_the_modules_of_an_adapter_that_names_none_are_pefts() -> None:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as MODULES

    models = {
        "meta-llama/Llama-3.2-1B": "llama",
        "Qwen/Qwen2.5-7B": "qwen2",
        "Qwen/Qwen3-8B": "qwen3",
        "mistralai/Mistral-7B-v0.3": "mistral",
        "google/gemma-2-2b": "gemma2",
        "openai-community/gpt2": "gpt2",
        "bigcode/starcoderbase": "gpt_bigcode",
        "bigscience/bloom-560m": "bloom",
        "EleutherAI/pythia-1b": "gpt_neox",
        "tiiuae/falcon-7b": "falcon",
        "mosaicml/mpt-7b": "mpt",
        "facebook/opt-125m": "opt",
    }
    assert {model: modules_of_peft(model) for model in models} == {model: MODULES[kind] for model, kind in models.items()}


@pytest.mark.parametrize(
    ("before", "trainer", "adapter"),
    [
        ("c = LoraConfig(r=a.r, lora_alpha=a.x, target_modules=a.t)\n", "peft_config=c", {"type": "lora", "r": 8}),
        ("c = AdaLoraConfig(init_r=6, target_r=4)\n", "peft_config=c", {"type": "adalora", "r": 6, "target_r": 4, "alpha": 8.0}),
        ("c = AdaLoraConfig(r=9)\n", "peft_config=c", {"type": "adalora", "r": 12, "target_r": 8}),
        ("c = IA3Config(target_modules=['k_proj'])\n", "peft_config=c", {"type": "ia3", "targets": ["k_proj"]}),
        ("c = PromptTuningConfig(num_virtual_tokens=9)\n", "peft_config=c", {"type": "prompt", "virtual_tokens": 9}),
        ("c = LoHaConfig(r=4)\n", "peft_config=c", {"type": "lora", "r": 4}),
        ("from mine import c\n", "peft_config=c", {"r": 8}),
        ("m = get_peft_model(m, c)\n", "train_dataset=None", {"r": 8}),
        ("m = PeftModel.from_pretrained(m, 'out/first', is_trainable=True)\n", "train_dataset=None", {"start": "out/first"}),
        ("m = PeftModel.from_pretrained(m, 'out/first').merge_and_unload()\n", "train_dataset=None", {"type": "full"}),
        ("", "peft_config=get_peft_config(model_args)", {"type": "full"}),
        ("", "peft_config=None", {"type": "full"}),
    ],
)
def test_the_adapter_of_a_script_is_the_one_it_makes(before: str, trainer: str, adapter: dict[str, Any], tmp_path: Path) -> None:
    """An adapter whose values are computed was told as none, "all weights are trained"; others as LoRA or as none."""
    draft = of_script(tmp_path, "", trainer, before)
    assert _adapter(draft).items() >= adapter.items()
    assert any("LOHA is not here" in row.why for row in draft.rows) is ("LoHa" in before)


def test_axolotl_trains_all_weights_where_adapter_names_none(tmp_path: Path) -> None:
    left = AXOLOTL + "adapter:\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n"
    assert _adapter(made_of(tmp_path, "a.yml", left)) == {"type": "full"}
    assert _adapter(made_of(tmp_path, "b.yml", left.replace("adapter:", "adapter: lora")))["type"] == "lora"


@pytest.mark.parametrize("order", [1, -1])
def test_of_axolotls_two_keys_for_targets_all_linear_layers_count(order: int, tmp_path: Path) -> None:
    keys = ["lora_target_modules: [q_proj]\n", "lora_target_linear: true\n"][::order]
    assert made_of(tmp_path, "a.yml", AXOLOTL + "adapter: lora\nlora_r: 16\n" + "".join(keys)).tree["adapter.targets"] == "all-linear"


def test_an_adapter_of_trls_command_is_trls(tmp_path: Path) -> None:
    """Of its ModelConfig."""
    told = {"type": "lora", "r": 16, "alpha": 32.0, "dropout": 0.05, "targets": ["q_proj", "v_proj"]}
    assert _adapter(made_of(tmp_path, "t.yaml", TRL_CONFIG + "use_peft: true\n")) == told
    assert _adapter(made_of(tmp_path, "u.yaml", TRL_CONFIG + "use_peft: true\nlora_r: 4\n")) == told | {"r": 4}
    assert _adapter(made_of(tmp_path, "v.yaml", TRL_CONFIG)) == {"type": "full"}


def _unsloth(tmp_path: Path, loaded: str = "'unsloth/x'", arguments: str = "SFTConfig(max_steps=60)", adapter: str = "r=32") -> Draft:
    text = f"m, t = FastLanguageModel.from_pretrained({loaded})\nm = FastLanguageModel.get_peft_model(m, {adapter})\n"
    return made_of(tmp_path, "u.py", f"{UNSLOTH}{text}SFTTrainer(model=m, args={arguments}).train()\n")


def test_unsloths_defaults_are_carried_where_it_has_put_them(tmp_path: Path) -> None:
    tree = _unsloth(tmp_path).tree
    told = {"train.lr": 5e-5, "train.effective_batch": 8, "train.warmup": 0.1, "train.seed": 3407, "train.optimizer": "adamw8bit"}
    assert tree.items() >= told.items() and 0 < tree["train.weight_decay"] <= 0.01
    assert (tree["adapter.r"], tree["adapter.alpha"], tree.get("adapter.targets", "all-linear")) == (32, 16.0, "all-linear")
    assert _unsloth(tmp_path, arguments="SFTConfig(per_device_train_batch_size=2)").tree["train.effective_batch"] == 4
    plain = _unsloth(tmp_path, arguments="TrainingArguments(max_steps=60)").tree
    assert (plain["train.seed"], plain["train.warmup"], "train.optimizer" in plain) == (42, 0.0, False)


@pytest.mark.parametrize(
    ("loaded", "frozen"),
    [
        ("'unsloth/x'", "nf4"),
        ("'unsloth/x', load_in_4bit=False", None),
        ("'unsloth/x', load_in_4bit=FOUR", None),
        ("'unsloth/x', load_in_8bit=True", "int8"),
        ("'unsloth/x', load_in_16bit=True", None),
        ("'unsloth/x', full_finetuning=True", None),
    ],
)
def test_unsloth_loads_in_four_bits_unless_told(loaded: str, frozen: str | None, tmp_path: Path) -> None:
    tree = _unsloth(tmp_path, loaded).tree
    assert (tree.get("train.frozen"), tree.get("train.double_quant")) == (frozen, True if frozen == "nf4" else None)


@pytest.mark.parametrize("given", ["", ", bnb_4bit_quant_type='nf4'", ", bnb_4bit_quant_type='fp4'"])
def test_four_bits_of_transformers_are_those_of_its_config(given: str, tmp_path: Path) -> None:
    from transformers import BitsAndBytesConfig

    theirs = eval(f"C(load_in_4bit=True{given})", {"C": BitsAndBytesConfig})
    before = f"q = BitsAndBytesConfig(load_in_4bit=True{given})\n"
    tree = of_script(tmp_path, "", "peft_config=LoraConfig(r=4)", before).tree
    assert (tree["train.frozen"], tree.get("train.double_quant", False)) == (theirs.bnb_4bit_quant_type, theirs.bnb_4bit_use_double_quant)


@pytest.mark.parametrize(("told", "nested"), [("", True), ("false", False), ("true", True)])
def test_scales_are_quantised_where_theirs_are(told: str, nested: bool, tmp_path: Path) -> None:
    factory = f"double_quantization: {told}\n" if told else ""
    axolotl = f"bnb_config_kwargs: {{bnb_4bit_use_double_quant: {told}}}\n" if told else ""
    one = made_of(tmp_path, "l.yaml", f"{LLAMA_FACTORY}quantization_bit: 4\n{factory}").tree
    two = made_of(tmp_path, "a.yml", f"{AXOLOTL}adapter: qlora\nload_in_4bit: true\nlora_r: 8\n{axolotl}").tree
    assert [tree.get("train.double_quant", False) for tree in (one, two)] == [nested, nested]


@pytest.mark.parametrize(
    ("name", "text", "batch"),
    [
        ("s.py", TRL + TRAINS.format("gradient_accumulation_steps=4", "train_dataset=None"), 32),
        ("s.py", TRL + TRAINS.format("gradient_accumulation_steps=4, per_device_train_batch_size=2", "train_dataset=None"), 8),
        ("s.py", TRL + TRAINS.format("gradient_accumulation_steps=4, per_device_train_batch_size=SIZE", "train_dataset=None"), 8),
        ("a.yml", AXOLOTL + "gradient_accumulation_steps: 4\n", 4),
        ("l.yaml", LLAMA_FACTORY + "gradient_accumulation_steps: 2\n", 16),
        ("t.sh", "accelerate launch --num_processes 4 sft.py --model_name_or_path m --learning_rate 1e-4 --dataset_name a/b\n", 32),
        ("t.sh", "torchrun --nnodes 2 --nproc_per_node 8 sft.py --per_device_train_batch_size 2 --dataset_name a/b\n", 32),
        ("t.sh", "torchrun --nnodes=2 --nproc-per-node=8 sft.py --per_device_train_batch_size 2 --dataset_name a/b\n", 32),
        ("t.sh", "accelerate launch --num_machines 2 --num_processes 16 sft.py --per_device_train_batch_size 2 --dataset_name a/b\n", 32),
        ("t.sh", "deepspeed --num_nodes 2 --num_gpus 4 sft.py --per_device_train_batch_size 2 --dataset_name a/b\n", 16),
        ("t.sh", "accelerate launch --num_processes 4 -m mine.train --per_device_train_batch_size 2 --dataset_name a/b\n", 8),
        (
            "l.sh",
            "NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train --stage sft --finetuning_type lora --per_device_train_batch_size 2\n",
            16,
        ),
    ],
)
def test_the_rows_of_a_step_are_what_theirs_are(name: str, text: str, batch: int, tmp_path: Path) -> None:
    """A factor that is not told has a default there; machines are a factor, too."""
    assert made_of(tmp_path, name, text).tree["train.effective_batch"] == batch


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.py", TRL + TRAINS.format("packing=True, per_device_train_batch_size=2", "train_dataset=None")),
        ("a.yml", AXOLOTL + "sample_packing: true\nmicro_batch_size: 2\n"),
        ("l.yaml", LLAMA_FACTORY + "neat_packing: true\nper_device_train_batch_size: 2\n"),
    ],
)
def test_packed_rows_of_theirs_are_told_to_hold_several_of_ours(name: str, text: str, tmp_path: Path) -> None:
    draft = made_of(tmp_path, name, text)
    assert "each held several rows" in draft.reasons["train.effective_batch"]
    assert any("multiply train.effective_batch" in one for one in draft.todo)
    plain = made_of(tmp_path, name, text.replace("True", "False").replace("true", "false"))
    assert "several rows" not in plain.reasons["train.effective_batch"] and not any("multiply" in one for one in plain.todo)


@pytest.mark.parametrize(("given", "momentum"), [("", 0.0), (", optim_args='momentum=0.9'", 0.9), (", adam_beta1=0.8", 0.0)])
def test_sgd_has_the_momentum_that_theirs_has(given: str, momentum: float, tmp_path: Path) -> None:
    """Transformers' has none unless optim_args names it; ours had 0.9, ten times the way in the end."""
    import torch
    from transformers import Trainer, TrainingArguments

    theirs = eval(f"A(output_dir='o', optim='sgd'{given})", {"A": TrainingArguments})
    kind, values = Trainer.get_optimizer_cls_and_kwargs(theirs)
    assert kind is torch.optim.SGD and kind([torch.zeros(1)], **values).param_groups[0]["momentum"] == momentum
    for arguments in (f"optim='sgd'{given}", f"{given.removeprefix(', ')}{', ' if given else ''}optim='sgd'"):
        tree = of_script(tmp_path, arguments).tree
        assert (tree["train.optimizer"], tree["train.beta1"]) == ("sgd", momentum)


def test_adafactor_of_transformers_is_not_ours(tmp_path: Path) -> None:
    """Its rate is no share of a weight's size: one that is all zeros, as LoRA's B, moved a thousandth of it here."""
    from transformers import Trainer, TrainingArguments

    _, values = Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(output_dir="o", optim="adafactor"))
    assert values["scale_parameter"] is False
    draft = of_script(tmp_path, "optim='adafactor'")
    (row,) = [row for row in draft.rows if row.theirs == "optim"]
    assert (draft.tree["train.optimizer"], row.fate) == ("adamw", "changed") and "takes its rate as it is" in row.why


def _torchtune(optimizer: str) -> str:
    model = "model: {_component_: torchtune.models.llama3.lora_llama3_8b, lora_attn_modules: [q_proj]}\nbatch_size: 2\nepochs: 1\n"
    rows = "checkpointer: {checkpoint_dir: /m}\ndataset: {_component_: torchtune.datasets.alpaca_dataset}\n"
    return f"{model}{rows}optimizer: {optimizer}\n"


def test_an_optimizer_of_torchtune_decays_as_torchs_does(tmp_path: Path) -> None:
    import torch

    theirs = {name: one.default for name, one in inspect.signature(torch.optim.AdamW).parameters.items()}
    tree = made_of(tmp_path, "u.yaml", _torchtune("{_component_: torch.optim.AdamW, fused: true}")).tree
    assert (tree["train.weight_decay"], tree["train.lr"]) == (theirs["weight_decay"], theirs["lr"])
    told = made_of(tmp_path, "v.yaml", _torchtune("{_component_: torch.optim.AdamW, lr: 3e-4, weight_decay: 0}")).tree
    assert (told["train.weight_decay"], told["train.lr"]) == (0.0, 3e-4)
    moved = made_of(tmp_path, "w.yaml", _torchtune("{_component_: torch.optim.SGD, lr: 0.1, momentum: 0.7}")).tree
    assert (moved["train.beta1"], moved.get("train.weight_decay", 0.0)) == (0.7, 0.0)


@pytest.mark.parametrize(("told", "warmup"), [("lr_scheduler: constant", 0.0), ("lr_scheduler: constant_with_warmup", None), ("", None)])
def test_axolotls_constant_schedule_has_no_warmup_though_no_key_says_so(told: str, warmup: float | None, tmp_path: Path) -> None:
    """Axolotl's own 3 % elsewhere are ours, too."""
    assert made_of(tmp_path, "a.yml", f"{AXOLOTL}{told}\n").tree.get("train.warmup") == warmup


@pytest.mark.parametrize(
    ("arguments", "preference"),
    [
        ("loss_type='simpo'", {"preference.beta": 0.1, "preference.sft_weight": 1.0}),
        ("loss_type='simpo', cpo_alpha=0.0, beta=2.5, simpo_gamma=1.4", {"preference.beta": 2.5, "preference.sft_weight": 0.0}),
        ("output_dir='o'", None),
        ("loss_type='sigmoid'", None),
        ("loss_type='hinge'", None),
    ],
)
def test_of_cpo_its_simpo_alone_is_carried_with_its_weights(arguments: str, preference: dict[str, float] | None, tmp_path: Path) -> None:
    """CPO's own loss was told as SimPO, and SimPO had our beta of 2."""
    text = f"from trl import CPOTrainer, CPOConfig\nCPOTrainer(model='m', args=CPOConfig({arguments})).train()\n"
    draft = made_of(tmp_path, "c.py", text)
    assert bool(draft.refused) is (preference is None)
    assert preference is None or draft.tree.items() >= preference.items()
    factory = LLAMA_FACTORY.replace("stage: sft", "stage: dpo") + "pref_loss: simpo\n"
    tree = made_of(tmp_path, "l.yaml", factory).tree
    assert (tree["preference.beta"], tree.get("preference.sft_weight", 0.0)) == (0.1, 0.0)


@pytest.mark.parametrize("loss", ["sigmoid", "orpo", "simpo", "hinge", "ipo"])
@pytest.mark.parametrize("first", [True, False])
def test_llama_factorys_stage_dpo_trains_what_its_loss_says(first: bool, loss: str, tmp_path: Path) -> None:
    """`stage: dpo` is the stage of orpo and simpo, too; they were trained as DPO."""
    text = LLAMA_FACTORY.replace("stage: sft\n", "")
    keys = [f"pref_loss: {loss}\npref_beta: 0.3\n", "stage: dpo\n"]
    draft = made_of(tmp_path, "l.yaml", text + "".join(reversed(keys) if first else keys))
    assert draft.tree["train.objective"] == (loss if loss in ("orpo", "simpo") else "dpo")
    assert draft.tree["preference.beta"] == 0.3 and "not_carried" not in {row.fate for row in draft.rows if "pref" in row.theirs}


@pytest.mark.parametrize(
    ("name", "text", "best"),
    [
        ("t.yaml", TRL_CONFIG + "eval_strategy: steps\neval_steps: 10\n", False),
        ("t.yaml", TRL_CONFIG + "eval_strategy: steps\neval_steps: 10\nload_best_model_at_end: true\n", True),
        ("l.yaml", LLAMA_FACTORY + "eval_steps: 10\nval_size: 0.1\n", False),
        ("a.yml", AXOLOTL + "eval_steps: 10\nsave_steps: 20\nval_set_size: 0.1\n", True),
        ("a.yml", AXOLOTL + "eval_steps: 10\nsave_steps: 25\nval_set_size: 0.1\n", False),
        ("a.yml", AXOLOTL + "eval_steps: 10\nsave_steps: 20\nval_set_size: 0.1\nload_best_model_at_end: false\n", False),
        ("t.yaml", TRL_CONFIG, None),
    ],
)
def test_the_result_is_the_last_state_where_theirs_is(name: str, text: str, best: bool | None, tmp_path: Path) -> None:
    assert made_of(tmp_path, name, text).tree.get("evaluate.keep_best") is best


def test_keys_that_a_call_is_given_by_a_dictionary_are_carried_or_told(tmp_path: Path) -> None:
    text = "more = dict(learning_rate=3e-4, max_steps=7)\n"
    draft = of_script(tmp_path, "**more, **other", before=text)
    assert (draft.tree["train.lr"], draft.tree["train.steps"]) == (3e-4, 7)
    (row,) = [row for row in draft.rows if row.theirs == "**other"]
    assert row.fate == "not_carried" and "computed when it runs" in row.why


def test_arguments_that_a_script_sets_after_they_are_made_count(tmp_path: Path) -> None:
    text = f"{TRL}args = SFTConfig(output_dir='o', learning_rate=1e-4, max_steps=9)\nargs.learning_rate = 3e-4\nmodel.max_steps = 3\n"
    draft = made_of(tmp_path, "s.py", text + "SFTTrainer(model='m', args=args).train()\n")
    assert (draft.tree["train.lr"], draft.tree["train.steps"]) == (3e-4, 9)


TUNE = "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora batch_size=4 epochs=2\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (TUNE, "tune cp llama3_1/8B_lora"),
        ("llamafactory-cli train gone.yaml learning_rate=1e-5\n", "put gone.yaml beside it"),
        ("axolotl train gone.yml --learning-rate=1e-5\n", "put gone.yml beside it"),
    ],
)
def test_a_config_that_a_command_reads_has_to_be_there(command: str, said: str, tmp_path: Path) -> None:
    """Its keys were left out without a word, where the command had others."""
    (tmp_path / "go.sh").write_text(command)
    with pytest.raises(Stop) as stopped:
        read_foreign(tmp_path / "go.sh")
    assert "which is not here" in stopped.value.message and said in (stopped.value.hint or "")


def test_what_a_command_says_beside_its_config_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(_torchtune("{_component_: torch.optim.AdamW, lr: 3e-4}"))
    tree = made_of(tmp_path, "go.sh", TUNE.replace("llama3_1/8B_lora", "mine.yaml")).tree
    assert (tree["train.epochs"], tree["train.effective_batch"], tree["train.lr"]) == (2, 8, 3e-4)


def test_files_that_a_command_names_otherwise_are_no_configs(tmp_path: Path) -> None:
    text = "cd here && python sft.py --train_file a.json b.json --learning_rate 3e-4 --adam_betas 0.9 0.95 --max_steps -1 > log.json 2>&1\n"
    draft = made_of(tmp_path, "go.sh", text)
    assert draft.tree["data.files"] == ["a.json", "b.json"]
    assert (draft.tree["train.lr"], draft.tree["train.beta2"], draft.tree["train.epochs"]) == (3e-4, 0.95, 3.0)


@pytest.mark.parametrize("order", [1, -1])
def test_of_data_sets_of_several_types_no_ones_layout_is_asked_of_all(order: int, tmp_path: Path) -> None:
    """Prompts of a chat were learned beside a completion, or its rows rejected as no Alpaca's."""
    sets = ["{path: a.jsonl, type: alpaca}", "{path: b.jsonl, type: completion}", "{path: c.jsonl, type: chat_template}"][::order]
    tree = made_of(tmp_path, "a.yml", AXOLOTL.replace("[{path: rows.jsonl, type: chat_template}]", f"[{', '.join(sets)}]")).tree
    assert {"data.format", "data.train_on"}.isdisjoint(tree)
    alone = made_of(tmp_path, "b.yml", AXOLOTL.replace("type: chat_template", "type: completion")).tree
    assert (alone["data.format"], alone["data.train_on"]) == ("text", "all")


def test_columns_are_called_as_dataset_info_says(tmp_path: Path) -> None:
    """A row of `text` and `summary` was learned as the plain text it also is."""
    entry = {"file_name": "rows.json", "columns": {"prompt": "text", "response": "summary", "system": "system"}, "num_samples": 50}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": entry, "other": {"columns": {"prompt": "x"}}}))
    draft = made_of(tmp_path, "l.yaml", LLAMA_FACTORY)
    assert (draft.tree["data.fields.instruction"], draft.tree["data.fields.output"]) == ("text", "summary")
    assert "data.fields.system" not in draft.tree
    plain = made_of(tmp_path, "p.yaml", LLAMA_FACTORY.replace("stage: sft", "stage: pt")).tree
    assert plain["data.train_on"] == "all" and "data.fields.instruction" not in plain and plain.get("data.fields.text", "text") == "text"
    assert next(row for row in draft.rows if row.theirs == "dataset_info[0].num_samples").fate == "not_carried"


def test_a_set_of_the_hub_that_dataset_info_names_is_saved_from_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": {"hf_hub_url": "owner/rows", "formatting": "sharegpt"}}))
    draft = made_of(tmp_path, "l.yaml", LLAMA_FACTORY)
    assert draft.tree["data.files"] == ["data/owner-rows.jsonl"]
    assert any("load_dataset('owner/rows', split='train')" in one for one in draft.todo), draft.todo


def test_a_trainer_of_a_scripts_own_is_given_what_the_one_it_is_derived_from_takes(tmp_path: Path) -> None:
    script = (
        "from transformers import Trainer, TrainingArguments\nrows = load_dataset('csv', data_files={'train': 'a.csv', 'test': 'b.csv'})\n"
        "class Mine(Trainer):\n    pass\nclass Arguments(TrainingArguments):\n    pass\n"
        "m = AutoModelForCausalLM.from_pretrained('meta/Llama')\n"
        "Mine(m, Arguments('o', learning_rate=3e-4), train_dataset=rows['train'], eval_dataset=rows['test'],"
        " callbacks=[Stops(2)]).train()\n"
    )
    draft = made_of(tmp_path, "s.py", script)
    assert (draft.tree["data.files"], draft.tree["data.held_out_files"], draft.tree["train.lr"]) == (["a.csv"], ["b.csv"], 3e-4)
    assert not any("train_dataset is not read" in one for one in draft.todo)
    assert next(row for row in draft.rows if row.theirs == "callbacks").fate == "not_carried"


def test_a_config_with_a_base_model_of_another_program_is_not_taken_for_axolotls(tmp_path: Path) -> None:
    """AutoTrain's was turned into all weights, trained on one row a step: none of its keys was read, but this one."""
    file = tmp_path / "a.yml"
    file.write_text(
        "task: llm-sft\nbase_model: meta/Llama\nproject_name: p\ndata: {path: d, train_split: train}\nparams: {lr: 1e-5, peft: true}\n"
    )
    with pytest.raises(Stop, match="its keys are of no trainer that is known: task, base_model, project_name"):
        read_foreign(file)
    assert (
        made_of(tmp_path, "b.yml", "base_model: meta/Llama\ndatasets: [{path: rows.jsonl, type: alpaca}]\n").tree["model"] == "meta/Llama"
    )


@pytest.mark.parametrize(("given", "asked"), [("max_length=None", True), ("", False), ("max_length=64", False)])
def test_rows_that_are_not_cut_there_are_told(given: str, asked: bool, tmp_path: Path) -> None:
    """An empty max_length is no default of TRL's: it cuts nothing."""
    draft = of_script(tmp_path, given)
    assert any("train.max_tokens" in one for one in draft.todo) is asked
    assert ("TRL's default" in draft.reasons["train.max_tokens"]) is (given == "")
    tune = _torchtune("{_component_: torch.optim.AdamW, lr: 3e-4}")
    for text, whole in ((tune, True), (tune + "tokenizer: {max_seq_len: null}\n", True), (tune + "tokenizer: {max_seq_len: 99}\n", False)):
        assert any("train.max_tokens" in one for one in made_of(tmp_path, "u.yaml", text).todo) is whole


@pytest.mark.parametrize(
    ("keys", "learned"),
    [
        ("assistant_only_loss=False, completion_only_loss=True", "assistant"),
        ("completion_only_loss=True, assistant_only_loss=False", "assistant"),
        ("assistant_only_loss=False", "all"),
        ("", "all"),
    ],
)
def test_answers_alone_are_learned_where_one_of_two_keys_says_so(keys: str, learned: str, tmp_path: Path) -> None:
    assert of_script(tmp_path, keys).tree["data.train_on"] == learned


@pytest.mark.parametrize(
    ("given", "asked"), [("", True), ("dataset_text_field='text'", False), ("completion_only_loss=True", False), ("packing=True", True)]
)
def test_whether_prompts_are_learned_is_asked_where_trls_rows_tell_it(given: str, asked: bool, tmp_path: Path) -> None:
    """Of rows of prompt and completion TRL learns the completion alone, of others all."""
    assert any("data.train_on" in one for one in of_script(tmp_path, given).todo) is asked


def test_axolotls_reward_model_is_the_objective_reward(tmp_path: Path) -> None:
    """It was trained as answers."""
    tree = made_of(tmp_path, "a.yml", AXOLOTL + "adapter: lora\nlora_r: 8\nreward_model: true\n").tree
    assert tree["train.objective"] == "reward"
    assert made_of(tmp_path, "b.yml", AXOLOTL + "reward_model: false\n").tree.get("train.objective", "sft") == "sft"


def test_a_file_that_does_not_say_what_is_trained_is_asked_about(tmp_path: Path) -> None:
    assert any("train.objective" in one for one in made_of(tmp_path, "t.yaml", TRL_CONFIG + "beta: 0.1\n").todo)
    (tmp_path / "dpo.yaml").write_text(TRL_CONFIG + "beta: 0.1\n")
    told = made_of(tmp_path, "go.sh", "trl dpo --config dpo.yaml\n")
    assert (told.tree["train.objective"], told.tree["preference.beta"]) == ("dpo", 0.1)
    assert not any("train.objective" in one for one in told.todo)


def test_layers_at_the_beginning_are_not_those_at_the_end(tmp_path: Path) -> None:
    text = LLAMA_FACTORY.replace("finetuning_type: lora", "finetuning_type: freeze")
    assert made_of(tmp_path, "l.yaml", text + "freeze_trainable_layers: 3\n").tree["adapter.layers"] == 3
    tree = made_of(tmp_path, "m.yaml", text + "freeze_trainable_layers: -3\n").tree
    trained = [name for name in (f"model.layers.{at}.mlp.up_proj.weight" for at in range(24)) if re.fullmatch(tree["adapter.layers"], name)]
    assert (tree["adapter.type"], len(trained)) == ("layers", 3) and trained[-1].startswith("model.layers.2.")


@pytest.mark.parametrize(
    ("judges", "told"), [("steps", "load_dataset('trl-lib/Capybara', split='test')"), ("'no'", "not looked at there either")]
)
def test_the_split_that_trl_judges_by_is_told_with_what_saves_it(judges: str, told: str, tmp_path: Path) -> None:
    text = f"{TRL_CONFIG}dataset_test_split: test\neval_strategy: {judges}\neval_steps: 10\n"
    row = next(row for row in made_of(tmp_path, "trl.yaml", text).rows if row.theirs == "dataset_test_split")
    assert row.ours == "data.held_out_files" and told in row.why


def test_a_config_of_litgpt_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="a config of LitGPT") as refused:
        made_of(tmp_path, "lora.yaml", "checkpoint_dir: checkpoints/m\nlora_r: 8\ntrain: {global_batch_size: 8, max_seq_length: 512}\n")
    assert "train.effective_batch is its global_batch_size" in str(refused.value.hint)
