"""Writes `templates/goldens.json`: what Transformers renders with the chat templates in `templates/`.

Run it with Transformers and Jinja2 installed: `python crates/max-pipelines/tests/goldens/templates.py`. The templates
are written in the manner of published ones; README.md says what each is like.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import jinja2
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

from records import HERE, write_json

FOLDER = HERE / "templates"
NOW = datetime(2031, 2, 28, 17, 5, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | more


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


ONE = [user("How wide is the river?")]
PREFACED = [system("  You know rivers.\n"), *ONE]
LONG = [
    *PREFACED,
    assistant(' Forty metres, "more or less". '),
    user("And the bridge?\nIs it old? <b>Ünïcode</b> 橋 🐈"),
]
TWICE = [*ONE, user("Are you there?")]
PARTS = [user([{"type": "image"}, {"type": "text", "text": " What is this? "}]), assistant("A bridge.")]
THOUGHTS = [
    user("What is 2 + 3?"),
    assistant("<think>\nTwo and three.\n</think>\n\nFive."),
    user("And twice that?"),
]
REASONED = [*THOUGHTS, assistant("Ten.", reasoning="\nTwice five.\n")]
RESULT = [*THOUGHTS, assistant("<think>\nI look.\n</think>\n\nWait."), user("<result>10</result>")]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a day, in °C & words",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 0}},
            "required": ["place"],
        },
    },
}
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "required": []}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": 2, "exact": 1.0}}}
CALLED = [
    *PREFACED,
    {"role": "developer", "content": "Use the functions."},
    assistant("", tool_calls=[CALL, {"type": "function", "function": {"name": "clock", "arguments": "{}"}}]),
    {"role": "tool", "content": '{"sky": "blue"}'},
    {"role": "tool", "content": 12},
    assistant("It is noon and the sky is blue."),
    user("Thanks!"),
]

CASES: dict[str, list[dict[str, Any]]] = {
    "headers": [
        {"messages": ONE, "add_generation_prompt": True},
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": LONG, "add_generation_prompt": False, "variables": {"today": "1 April"}},
    ],
    "chatml": [
        {"messages": ONE, "add_generation_prompt": True},
        {"messages": LONG, "add_generation_prompt": False},
        {"messages": [], "add_generation_prompt": True},
    ],
    "turns": [
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": PARTS, "add_generation_prompt": False},
        {"messages": [system([{"type": "text", "text": "Be kind."}]), *ONE], "add_generation_prompt": True},
        {"messages": TWICE, "add_generation_prompt": True},
        {"messages": [user(7)], "add_generation_prompt": True},
    ],
    "inst": [
        {"messages": ONE, "add_generation_prompt": True},
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": TWICE, "add_generation_prompt": True},
        {"messages": [*ONE, {"role": "tool", "content": "?"}], "add_generation_prompt": True},
    ],
    "bars": [
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": ONE, "add_generation_prompt": False},
        {"messages": [system(""), {"role": "other", "content": "ignored"}, *ONE], "add_generation_prompt": True},
    ],
    "tools": [
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": CALLED, "add_generation_prompt": True, "tools": [WEATHER, CLOCK]},
        {"messages": CALLED, "add_generation_prompt": False, "variables": {"limit": 2}},
    ],
    "thinking": [
        {"messages": THOUGHTS, "add_generation_prompt": True},
        {"messages": THOUGHTS, "add_generation_prompt": True, "variables": {"enable_thinking": False}},
        {"messages": REASONED, "add_generation_prompt": False},
        {"messages": RESULT, "add_generation_prompt": True},
    ],
    "filters": [
        {"messages": LONG, "add_generation_prompt": True},
        {"messages": [*TWICE, assistant("Yes.", name="Ada")], "add_generation_prompt": False},
    ],
    "literals": [{"messages": [], "add_generation_prompt": False}],
}


def render(template: str, case: dict[str, Any]) -> dict[str, str]:
    """The text, or the message of the exception that the template raises."""
    try:
        rendered, _ = render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            chat_template=template,
            add_generation_prompt=case["add_generation_prompt"],
            **TOKENS,
            **case.get("variables", {}),
        )
    except jinja2.TemplateError as error:
        return {"error": str(error)}
    return {"text": rendered[0]}


def main() -> None:
    chat_template_utils.datetime = Clock
    cases = []
    for name, inputs in CASES.items():
        template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        cases += [{"template": name} | case | render(template, case) for case in inputs]
    write_json(FOLDER / "goldens.json", {"now": NOW.isoformat()} | TOKENS | {"cases": cases})
    for case in cases:
        print("==", case["template"], case.get("error", ""), case.get("text", ""), sep="\n")


if __name__ == "__main__":
    main()
