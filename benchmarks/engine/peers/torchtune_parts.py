"""What torchtune needs to know about a model it has no recipe for: the shape, the tokenizer, the rows. Named in a recipe's config."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from torchtune.data import Message
from torchtune.datasets import PackedDataset, SFTDataset
from torchtune.models.qwen2 import lora_qwen2


def model(folder, **lora):
    config = json.loads((Path(folder) / "config.json").read_text())
    return lora_qwen2(
        **lora,
        vocab_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        embed_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_seq_len=2048,
        norm_eps=config["rms_norm_eps"],
        rope_base=config["rope_parameters"]["rope_theta"],
        tie_word_embeddings=config["tie_word_embeddings"],
    )


class ChatTokens:
    def __init__(self, folder, max_tokens, pad):
        self.inner = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.max_seq_len, self.pad_id = max_tokens, pad

    def __call__(self, sample, inference=False):
        ids, masked = [], []
        for message in sample.pop("messages"):
            text = f"<|im_start|>user\n{message.text_content}<|im_end|>\n<|im_start|>assistant\n"
            if message.role == "assistant":
                text = f"{message.text_content}<|im_end|>\n"
            numbers = self.inner.encode(text, add_special_tokens=False).ids
            ids += numbers
            masked += [message.role == "user"] * len(numbers)
        return sample | {"tokens": ids[: self.max_seq_len], "mask": masked[: self.max_seq_len]}


def tokenizer(folder, max_tokens, pad):
    return ChatTokens(folder, max_tokens, pad)


def turns(row):
    question = f"{row['instruction']}\n{row['input']}" if row["input"].strip() else row["instruction"]
    return {"messages": [Message(role="user", content=question, masked=True), Message(role="assistant", content=row["output"])]}


def rows(tokenizer, path, packed=False):
    found = SFTDataset(source="json", data_files=path, split="train", message_transform=turns, model_transform=tokenizer)
    return PackedDataset(found, max_seq_len=tokenizer.max_seq_len, padding_idx=tokenizer.pad_id) if packed else found
