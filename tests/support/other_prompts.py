"""Small chat templates that write an answer behind another prompt than the one they ask for it with, of each kind that is published."""

from __future__ import annotations

_TURN = "<|im_start|>{{ m.role }}\n"
_LATER = (
    "{% set later = namespace(found=false) %}{% for n in messages[loop.index:] %}"
    "{% if n.role == 'assistant' and not n.tool_calls %}{% set later.found = true %}{% endif %}{% endfor %}"
)
_CALL = "{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}"
OTHER_PROMPTS = {
    # as Mistral's v2, v3, v3-tekken and Pixtral
    "system in the last user turn": "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ s + '\n\n' if s and loop.last else '' }}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}",
    # as gpt-oss
    "thoughts at calls until an answer": "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    + _LATER
    + "{% if (m.content or m.thinking) and not later.found %}<|im_start|>think {{ m.content or m.thinking }}<|im_end|>{% endif %}"
    "<|im_start|>call " + _CALL + "<|im_end|>"
    "{% elif m.role == 'tool' %}<|im_start|>tool {{ m.content | tojson }}<|im_end|>"
    "{% elif m.role == 'assistant' %}<|im_start|>final {{ m.content }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}",
    # as DeepSeek-V3
    "one opening for all calls": "{% set ns = namespace(called=false, tool=false) %}{% for m in messages %}"
    "{% if m.role == 'user' %}<user>{{ m.content }}{% set ns.tool = false %}"
    "{% elif m.role == 'tool' %}<output>{{ m.content }}</output>{% set ns.tool = true %}"
    "{% elif m.tool_calls %}{{ '\n' if ns.called else '<assistant>' + (m.content or '') + '<calls>' }}" + _CALL + "<|im_end|>"
    "{% set ns.called = true %}{% set ns.tool = false %}"
    "{% else %}{{ '</outputs>' if ns.tool else '<assistant>' }}{{ m.content }}<|im_end|>{% set ns.tool = false %}{% endif %}"
    "{% endfor %}{% if ns.tool %}</outputs>{% elif add_generation_prompt %}<assistant><think>\n{% endif %}",
    # as Gemma 4
    "what is said beside a call behind its result": "{% for m in messages %}{% if m.role != 'tool' %}"
    "{% if m.role != 'assistant' or loop.previtem.role == 'user' %}" + _TURN + "{% endif %}"
    "{% if m.tool_calls %}<call>" + _CALL + "</call>"
    "{% if not loop.last %}<result>{{ loop.nextitem.content }}</result>{% endif %}{% endif %}{{ m.content }}"
    "{% if m.tool_calls and loop.last %}<result>"
    "{% elif not (m.tool_calls and loop.length > loop.index + 1) %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|im_start|>assistant\n{% endif %}",
    # a beginning that counts the turns: no prompt is the beginning of a text, and no end of one stands in it
    "counts the turns": "{% for m in messages %}<{{ messages | length }}><{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<{{ messages | length + 1 }}><go>{% endif %}",
}
