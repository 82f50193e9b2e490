"""Turns of content blocks as Anthropic's API has them: calls and their results are parts of what is said. Makes turns of them."""

from __future__ import annotations

from typing import Any

_CALL, _RESULT = "tool_use", "tool_result"


def without_blocks(turn: Any) -> list[Any]:
    """Return the turns that a turn with tool_use or tool_result blocks stands for; the turn alone where it has none."""
    parts = turn.get("content") if isinstance(turn, dict) else None
    kinds = {part.get("type") for part in parts if isinstance(part, dict)} if isinstance(parts, list) else set()
    if not kinds & {_CALL, _RESULT}:
        return [turn]
    blocks = [(part.get("type") if isinstance(part, dict) else None, part) for part in parts or ()]
    results = [
        {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _said(part)} for kind, part in blocks if kind == _RESULT
    ]
    calls = [
        {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("input") or {}}}
        for kind, part in blocks
        if kind == _CALL
    ]
    rest = [part for kind, part in blocks if kind not in (_CALL, _RESULT)]
    own = turn | {"content": rest} | ({"tool_calls": calls} if calls else {})
    return [*results, *([own] if rest or calls else [])]


def _said(part: dict[str, Any]) -> Any:
    said = part.get("content")
    return "" if said is None else said
