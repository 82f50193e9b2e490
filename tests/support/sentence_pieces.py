"""Small tokenizers that put something before a text, as those of Llama 2 and Mistral do, and model folders with one and a chat template."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_CORPUS = ["How many parts are there? Nineteen parts, and three more in the yard.", "[INST] Be brief [/INST]", "<|user|>\n <|assistant|>\n"]
_SPACE = "\u2581"
_SPECIALS = ("<unk>", "<s>", "</s>")
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + eos_token }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% else %}{% set loop_messages = messages %}{% set system = '' %}{% endif %}"
    "{% for m in loop_messages %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.index0 == 0 else '') + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
TEMPLATES = {"zephyr": ZEPHYR, "llama 2": LLAMA_2, "marked": MARKED, "none": None}
KINDS = ("prepend", "first", "always", "byte level", "word pieces", "unigram")


@functools.cache
def _made(kind: str) -> str:
    words = [word for text in _CORPUS for word in text.split(" ")]
    if kind in ("prepend", "first", "always"):
        specials = [*_SPECIALS, *(f"<0x{number:02X}>" for number in range(256))]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if kind == "prepend":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=kind, split=False)
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=specials, show_progress=False)
    elif kind == "byte level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*_SPECIALS], initial_alphabet=alphabet, show_progress=False)
    elif kind == "word pieces":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=[*_SPECIALS], show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(left=False, right=True), normalizers.NFKC()])
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=[*_SPECIALS], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([*_CORPUS, *words], trainer)
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] in _SPECIALS]
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    begin = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=begin)
    return str(tokenizer.to_str())


def make_tokenizer(folder: Path, kind: str, template: str | None, model_type: str = "mistral") -> Path:
    """A folder with a tokenizer of this kind (see KINDS) and, where one is given, this chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_made(kind))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False}
    names["tokenizer_class"] = "LlamaTokenizer" if kind in ("prepend", "first", "always") else "TokenizersBackend"
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    words = Tokenizer.from_str(_made(kind)).get_vocab_size(with_added_tokens=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": words}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
