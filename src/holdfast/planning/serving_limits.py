"""What programs that serve models cannot do with the artifact a config asks for, told before it is trained. Pure.

vLLM: docs.vllm.ai, features/lora, and its PEFTHelper, which refuses DoRA and modules_to_save; llama.cpp:
convert_lora_to_gguf.py, which Ollama uses, too.
"""

from __future__ import annotations

from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.parts import of_experts
from holdfast.base_model.server_keys import HALF, RSLORA, TOWERS, VLLM_RANKS, of_stacks, older_servers
from holdfast.base_model.types import has_text_half
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import trained_by_part

_VLLM_RANK = 16  # of --max-lora-rank, where it is not given
_MERGED = "merged into the model it runs everywhere"  # by `holdfast export --to merged`
_BY_PEFT = "holdfast export does not merge it, PEFT's merge_and_unload does"


def limits(config: Config, model: ModelFacts | None = None) -> list[str]:
    """List the serving programs' limits, a sentence each. model: the base, whose parts some programs leave out; None: not known."""
    adapter, kind = config.adapter, config.adapter.kind
    if config.train.objective_kind.scores:
        return ["vLLM, llama.cpp and Ollama serve no adapter with a scalar head; transformers and PEFT do (docs/how-to/preferences.md)"]
    if kind.own_weights:
        return []
    if not kind.served:
        return [f"vLLM, llama.cpp and Ollama serve no {kind.title} adapter" + (f"; {_MERGED}" if kind.merge else "")]
    found = []
    rank = adapter.file_rank
    if rank > VLLM_RANKS[-1]:
        found.append(f"vLLM serves adapters up to rank {VLLM_RANKS[-1]}; this one will have {rank}")
    elif rank > _VLLM_RANK:
        size = next(size for size in VLLM_RANKS if size >= rank)
        found.append(f"vLLM serves adapters up to rank {_VLLM_RANK}; this one has {rank}: start it with --max-lora-rank {size}")
    if kind.flag == "use_rslora":
        found.append(f"{RSLORA}; `holdfast export --to adapter` writes it so that they need not")
    if adapter.modules_to_save:
        names = ", ".join(adapter.modules_to_save)
        found.append(f"vLLM, llama.cpp and Ollama take no adapter with modules_to_save ({names}); {_MERGED}")
    if adapter.trainable_token_indices:
        found.append(f"vLLM, llama.cpp and Ollama take no adapter with trained embeddings of tokens; {_MERGED}")
    if adapter.target_parameters and not of_experts(adapter.target_parameters):
        found.append(f"llama.cpp and Ollama take no adapter of target_parameters; {_BY_PEFT}")
    learns = {} if model is None else trained_by_part(config, model)
    if "towers" in learns:
        found.append(f"{TOWERS}; {_MERGED}")
    if model is not None and "experts" in learns:
        found.append(f"{of_stacks(model.config)}; {_MERGED}")
    if model is not None and has_text_half(model.config):
        found.append(HALF)
    return [*found, *(older_servers(model.config) if model is not None else ())]
