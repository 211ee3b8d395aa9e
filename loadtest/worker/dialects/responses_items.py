"""The items of a response's output."""

from loadtest.worker.answers import Json
from loadtest.worker.generation import Plan


def message_id(plan: Plan) -> str:
    """The id of the message that it says."""
    return f"msg_{plan.key:016x}"


def call_item_id(plan: Plan) -> str:
    """The id of the function call that it makes."""
    return f"fc_{plan.key:016x}"


def text_part(text: str) -> Json:
    """The one part of a message's content."""
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def message_item(plan: Plan, content: list[Json], *, status: str) -> Json:
    """A message."""
    return {
        "id": message_id(plan),
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def call_item(plan: Plan, *, name: str, arguments: str, status: str) -> Json:
    """A function's call."""
    return {
        "arguments": arguments,
        "call_id": f"call_{plan.key:016x}",
        "name": name,
        "type": "function_call",
        "id": call_item_id(plan),
        "status": status,
    }


def output_item(plan: Plan) -> Json:
    """What the whole answer says."""
    if plan.call is not None and plan.script is not None:
        return call_item(plan, name=plan.call.name, arguments=plan.script.arguments, status="completed")
    text = plan.text(0, plan.output_tokens).decode()
    return message_item(plan, [text_part(text)], status="completed")
