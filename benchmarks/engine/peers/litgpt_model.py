"""Make a LitGPT checkpoint of a model folder's shape, with random weights of its own. Arguments: MODEL OUT."""

import json
import shutil
import sys
from pathlib import Path

import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.prompts import save_prompt_style
from litgpt.utils import save_config

source, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True)
shape = json.loads((source / "config.json").read_text())
config = Config(
    name=source.name,
    block_size=2048,
    vocab_size=shape["vocab_size"],
    padded_vocab_size=shape["vocab_size"],
    n_layer=shape["num_hidden_layers"],
    n_head=shape["num_attention_heads"],
    n_query_groups=shape["num_key_value_heads"],
    n_embd=shape["hidden_size"],
    head_size=shape["hidden_size"] // shape["num_attention_heads"],
    intermediate_size=shape["intermediate_size"],
    norm_eps=shape["rms_norm_eps"],
    rope_base=int(shape["rope_parameters"]["rope_theta"]),
    rotary_percentage=1.0,
    parallel_residual=False,
    bias=False,
    attn_bias=True,
    norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP",
)
torch.manual_seed(0)
torch.save(GPT(config).state_dict(), out / "lit_model.pth")
save_config(config, out)
shutil.copy(source / "tokenizer.json", out)
shutil.copy(source / "generation_config.json", out)
settings = json.loads((source / "tokenizer_config.json").read_text())
(out / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": settings["pad_token"]}))
save_prompt_style("alpaca", out)
