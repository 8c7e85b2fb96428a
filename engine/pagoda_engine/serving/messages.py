"""Chat messages and tools, from JSON to what a chat template is given. Pure.

Rule: two requests with the same digests get the same rendering, or a digest's coverage would be a lie. Digests make the
string form and the parts form of a content equal and do not see the order of keys, so neither must the template:
contents become strings, fields that are null vanish, keys come in one order.
"""

import json
from collections.abc import Mapping
from typing import Any

from pagoda_engine.serving.fields import Fields, is_too_deep
from pagoda_protocol.digests import DigestError, content_text

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000
MAX_TOOLS = 128

# Fields that say nothing to a template: OpenAI's clients send them back with an earlier answer.
_IGNORED = ("refusal", "annotations", "audio", "function_call")
# The order in which models have seen the keys of tools and calls; other keys follow by name.
_KEY_ORDER = {
    name: rank
    for rank, name in enumerate(
        ("role", "type", "id", "function", "name", "description", "parameters", "arguments", "properties", "required")
    )
}


def parse_messages(fields: Fields) -> list[dict[str, Any]]:
    """Take `messages` from a request.

    Raises:
        InvalidRequestError: naming the message and field that is wrong.
    """
    messages = fields.sequence("messages")
    if not messages:
        fields.refuse("messages", "required: a list with at least one message")
    if len(messages) > MAX_MESSAGES:
        fields.refuse("messages", f"expected at most {MAX_MESSAGES} messages, got {len(messages)}")
    return [_message(fields, f"messages[{index}]", message) for index, message in enumerate(messages)]


def parse_tools(fields: Fields) -> list[dict[str, Any]] | None:
    """Take `tools` from a request; an empty list is the same as none.

    Raises:
        InvalidRequestError: naming the tool that is wrong.
    """
    tools = fields.sequence("tools")
    if not tools:
        return None
    if len(tools) > MAX_TOOLS:
        fields.refuse("tools", f"expected at most {MAX_TOOLS} tools, got {len(tools)}")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            fields.refuse(f"tools[{index}]", 'expected {"type": "function", "function": {"name": …}}')
    return [ordered(tool) for tool in tools]


def ordered(value: Any) -> Any:
    """Return `value` with the keys of every object in one fixed order, whatever order they came in."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (_KEY_ORDER.get(key, len(_KEY_ORDER)), key))
        return {key: ordered(value[key]) for key in keys}
    return [ordered(item) for item in value] if isinstance(value, list) else value


def _message(outer: Fields, path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        outer.refuse(path, "expected an object with role and content")
    fields = Fields(value, path)
    role = fields.text("role")
    if role not in ROLES:
        fields.refuse("role", f"expected one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": role, "content": _content(fields)}
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    if role == "assistant":
        reasoning = fields.text("reasoning_content")
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        calls = fields.sequence("tool_calls")
        if calls:
            message["tool_calls"] = [_call(fields, index, call) for index, call in enumerate(calls)]
    if role == "tool":
        identity = fields.text("tool_call_id")
        if identity is not None:
            message["tool_call_id"] = identity
    fields.finish(ignored=_IGNORED if role == "assistant" else ())
    if message["content"] is None and "tool_calls" not in message:
        fields.refuse("content", "required: a string or a list of text parts")
    return message


def _content(fields: Fields) -> str | None:
    content = fields.take("content")
    if isinstance(content, list):
        if not content:
            fields.refuse("content", "expected at least one part")
        for index, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text":
                fields.refuse(f"content[{index}]", f"parts of type {part['type']!r} are not supported; send text")
    try:
        return content_text(content)
    except DigestError as error:
        place, _, reason = str(error).partition(": ")
        return fields.refuse(place, reason)


def _call(fields: Fields, index: int, call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        fields.refuse(f"tool_calls[{index}]", 'expected {"type": "function", "function": {"name": …, "arguments": …}}')
    arguments = function.get("arguments")
    try:
        # Clients send JSON in a string; templates were written for the object.
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        parsed = arguments
    if is_too_deep(parsed):
        parsed = arguments
    result: Mapping[str, Any] = ordered({**call, "function": {**function, "arguments": parsed}})
    return result
