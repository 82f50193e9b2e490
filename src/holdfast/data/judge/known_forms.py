"""Forms of files that hold conversations or columns and are no rows: what they are called, and how rows are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.base.units import counted


class KnownForm(NamedTuple):
    """A form that programs write: by what a row of it is known, its name, and the way to rows. of_a_list: False where its entries are
    parts of a row, which stand in a list of it."""

    fits: Callable[[Mapping[str, Any]], bool]
    name: str
    way: str
    of_a_list: bool = True


def known_form(value: Mapping[str, Any], in_a_list: bool = False) -> str:
    """Return what a row is that is an entry of a known form, and the way to rows, in words; "" where it is none.

    in_a_list: it stands in a list inside of a row."""
    asked = _FORMS if not value.keys().isdisjoint(_TELLING) else _OF_TURNS if "messages" in value else ()
    forms = (form for form in asked if form.of_a_list >= in_a_list and form.fits(value))
    return next((f"this is {form.name}, which is no row: {form.way}" for form in forms), "")


def form_within(value: Any, path: str = "") -> str:
    """Return what known form the lists inside of a row hold, with the jq filter that takes them out; "" where they hold none."""
    if path.count(".") > _DEEPEST or not isinstance(value, dict):
        return ""
    for name, inside in value.items():
        first = inside[0] if isinstance(inside, list) and inside else None
        if isinstance(first, dict) and (found := known_form(first, in_a_list=True)):
            return f"{name} holds {counted(len(inside), 'conversation')}, jq -c '{path}.{name}[]' takes them out; of each: {found}"
        if isinstance(inside, dict) and (found := form_within(inside, f"{path}.{name}")):
            return found
    return ""


def columns_of(value: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return that these two fields are columns, a value for each row, and the way to rows, in words; "" where they are not."""
    one, two = (value.get(name) for name in names)
    if not isinstance(one, list | dict) or not isinstance(two, list | dict) or type(one) is not type(two) or not len(one) == len(two) > 0:
        return ""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() != two.keys():
        return ""
    taken = f"jq -c '. as $c | .{names[0]} | keys[] as $i | $c | map_values(.[$i])' makes rows of them"
    of_pandas = ", as does to_json(orient='records', lines=True) of pandas" if isinstance(one, dict) else ""
    return f"{names[0]} and {names[1]} are columns of {len(one):,} values each, and a row has one of each: {taken}{of_pandas}"


def who_speaks(turns: Any, field: str) -> str:
    """Return who speaks in the turns of a field without a role that is known, and the way to rows, in words; "" where nothing says who."""
    first = turns[0] if isinstance(turns, list) and turns else None
    if isinstance(first, str):
        alternate = '{messages: [to_entries[] | {role: ["user", "assistant"][.key % 2], content: .value}]}'
        return f"its {len(turns):,} turns are texts alone: where user and assistant take turns, jq -c '.{field} | {alternate}' makes rows"
    name = next((name for name in _SPEAKERS if name in first), "") if isinstance(first, dict) else ""
    if not name:
        return ""
    given = [one[name] for one in turns if isinstance(one, dict) and name in one]
    speakers = dict.fromkeys(str(one.get("name", "") if isinstance(one, dict) else one)[:_SHOWN] for one in given)
    shown = ", ".join([repr(speaker) for speaker in speakers][:_MOST_SPEAKERS])
    return f"its turns have {name} ({shown}) and no role: say whose are the assistant's, and {_ONE_A_TALK}"


_DEEPEST, _SHOWN, _MOST_SPEAKERS = 2, 40, 4
_SPEAKERS = (
    "sender",
    "sender_name",
    "senderName",
    "speaker",
    "author",
    "creator",
    "from",
    "is_human",
    "is_user",
    "isCreatedByUser",
    "user",
    "type",
)  # what messengers and chat programs call it


def _has(*names: str, **kinds: type) -> Callable[[Mapping[str, Any]], bool]:
    """Return a look for rows that have fields of these names, some of them values of a kind."""
    return lambda value: all(name in value for name in names) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def _is_tree(value: Mapping[str, Any]) -> bool:
    nodes = value.get("mapping")
    return isinstance(nodes, dict) and all(isinstance(node, dict) and ("message" in node or "children" in node) for node in nodes.values())


def _is_chat_of_grok(value: Mapping[str, Any]) -> bool:
    turns = value.get("responses")
    return isinstance(turns, list) and bool(turns) and all(isinstance(turn, dict) and "response" in turn for turn in turns)


def _is_event_of_claude_code(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("message"), dict) and "sessionId" in value and "type" in value


def _is_event(value: Mapping[str, Any]) -> bool:
    payload = value.get("payload")
    return isinstance(value.get("type"), str) and isinstance(payload, dict) and "timestamp" in value


def _is_chat_of_telegram(value: Mapping[str, Any]) -> bool:
    turns = value.get("messages")
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, dict) and "role" not in first and bool(first.keys() & {"from_id", "actor_id"})


def _is_message(value: Mapping[str, Any]) -> bool:
    said = value.get("text", value.get("Content", value.get("mes")))
    return isinstance(said, str | list) and any(value.keys() >= names for names in _OF_MESSENGERS)


def _is_exchange(value: Mapping[str, Any]) -> bool:
    request: Mapping[str, Any] = next((value[name] for name in _REQUESTS if isinstance(value.get(name), dict)), {})
    return not request.keys().isdisjoint(_ASKED) and any(value.get(name) for name in ("response", "response_body"))


def _is_turn(value: Mapping[str, Any]) -> bool:
    return value.keys() <= _OF_A_TURN and isinstance(value.get("role"), str)


_OF_A_TURN = {"role", "content", "name", "tool_calls", "tool_call_id", "id", "timestamp", "weight"}
_OF_MESSENGERS = ({"from_id"}, {"ts", "user"}, {"is_user"}, {"AuthorID"})  # of a message: Telegram, Slack, SillyTavern, Discord
_ONE_A_TALK = 'write each conversation as one line {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
_FORMS = (
    KnownForm(
        _is_tree,
        "a ChatGPT export or one like it (a tree of messages)",
        f"follow parent from current_node, or from its last leaf, and {_ONE_A_TALK}",
    ),
    KnownForm(_has("chat_messages"), "a Claude export", f"sender is the role (human: user), and {_ONE_A_TALK}"),
    KnownForm(_is_chat_of_grok, "a Grok export", f"sender in each response is the role (human: user), and {_ONE_A_TALK}"),
    KnownForm(_is_chat_of_telegram, "a chat of Telegram's result.json", f"say which from_id is the assistant, and {_ONE_A_TALK}"),
    KnownForm(
        _is_event_of_claude_code,
        "an event of a Claude Code session",
        f"take the message of its user and assistant events in order, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _is_event, "an event of an agent's session (as Codex writes them)", f"take the payloads with a role in order, and {_ONE_A_TALK}"
    ),
    KnownForm(
        _has("message_id", "parent_id", "role", "text"),
        "a message of a tree, as OpenAssistant has them",
        f"follow parent_id from each assistant's message to its root, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _has("message_tree_id", "prompt"),
        "a tree of messages, as OpenAssistant has them",
        f"follow replies from prompt to the best one, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _is_message, "one message of a messenger", f"gather those of one conversation, say who is the assistant, and {_ONE_A_TALK}", False
    ),
    KnownForm(
        _is_exchange,
        "a request and its response, as servers log them",
        "`holdfast data collect FILE --out rows.jsonl` makes rows of them, with their answers and tools",
    ),
    KnownForm(_is_turn, "one turn of a conversation", f"gather the turns, and {_ONE_A_TALK}", False),
    KnownForm(
        _has("custom_id", body=dict),
        "a request of OpenAI's batches, without its answer",
        f"join the output file on custom_id, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _has("custom_id", response=dict),
        "an answer of OpenAI's batches, without its question",
        f"join the input file on custom_id, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _has("data_source", reward_model=dict),
        "a row of verl for reinforcement learning, without an answer",
        "jq -c '{prompt, completion: .reward_model.ground_truth}' makes rows of which the reference is learned",
    ),
    KnownForm(
        _has(columns=list, data=list),
        "a table as pandas writes it with orient='split'",
        "jq -c '.columns as $c | .data[] | [$c, .] | transpose | map({(.[0]): .[1]}) | add' makes rows of it",
    ),
)
_REQUESTS, _ASKED = ("request", "request_body"), ("messages", "prompt", "input")
_OF_TURNS = tuple(form for form in _FORMS if form.fits is _is_chat_of_telegram)  # that ordinary rows might be, too
_TELLING = {"mapping", "chat_messages", "responses", "message", "payload", "message_id", "message_tree_id", "role", "custom_id", *_REQUESTS}
_TELLING = _TELLING.union({"reward_model", "columns"}, *_OF_MESSENGERS)  # one of which each other form has
