"""The plain instruction form written as a chat template, for who loads what was trained in it."""

from __future__ import annotations

from holdfast.data.tokens.codec import Codec

_FORM = """{%- for message in messages -%}
{%- if not loop.first and loop.previtem['role'] == 'assistant' -%}{{ '\\n\\n' }}{%- endif -%}
{%- if message['role'] == 'assistant' -%}
{{ '### Response:\\n' }}
{%- if message['reasoning_content'] -%}{{ '<think>\\n' + message['reasoning_content'] | trim + '\\n</think>\\n\\n' }}{%- endif -%}
{{ message['content'] }}
{%- for call in message['tool_calls'] or [] -%}{{ call['function'] | tojson + '\\n' }}{%- endfor -%}
{{ eos_token }}
{%- else -%}
{%- if message['role'] == 'system' -%}{{ '### System:\\n' }}
{%- elif message['role'] == 'user' -%}{{ '### Instruction:\\n' }}
{%- elif message['role'] == 'tool' -%}{{ '### Result:\\n' }}
{%- else -%}{{ '### ' + message['role'] + ':' }}{%- endif -%}
{{ message['content'] + '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if messages and messages[-1]['role'] == 'assistant' -%}{{ '\\n\\n' }}{%- endif -%}{{ '### Response:\\n' }}
{%- endif -%}
"""


def written_template(codec: Codec) -> str:
    """Return the template that renders conversations as trained: the model's or the given one, else the plain form with its beginning."""
    if codec.template.source is not None:
        return codec.template.source
    begin = "".join(codec.tokenizer.id_to_token(number) or "" for number in codec.bos)
    form = _FORM if codec.template.eos else _FORM.replace("{{ eos_token }}\n", "")
    return ("{{- '%s' -}}\n" % begin.replace("\\", "\\\\").replace("'", "\\'") if begin else "") + form  # noqa: UP031
