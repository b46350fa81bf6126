#!/usr/bin/env python3
"""Makes snippets.json and families.json: templates with the text (or the error) that transformers renders from them.

    python3 tests/golden/chat_template/make.py      # needs transformers and jinja2 >= 3.1.6

snippets.txt has one template a line ("␤" is a newline in it); templates/*.jinja are whole chat templates, rendered over
conversations.py.  The clock is fixed.
"""

import datetime
import json
import pathlib

from transformers.utils import chat_template_utils

import conversations

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 3, 7, 9, 5, 3, 42)

VARIABLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_generation_prompt": True,
    "data": {"a": 1, "nested": {"x": "1", "y": [2]}, "list": [1, 2, 3], "text": "it's \"quoted\" <b>&", "f": 1.0, "n": None},
    "shadow": {"items": 1, "keys": 2},
    "tree": [{"name": "a", "children": [{"name": "b", "children": []}, {"name": "c", "children": [{"name": "d"}]}]},
             {"name": "e"}],
    "users": [
        {"name": "Ann", "age": 31, "city": "Rome", "active": True, "address": {"street": "Elm"}},
        {"name": "bob", "age": 25, "city": "paris", "active": False, "address": {"street": "Oak"}},
        {"name": "Cy", "age": 40, "city": "Rome", "active": True, "address": {"street": "Elm"}},
        {"name": "dee", "age": 40, "city": "Paris", "active": False, "address": {"street": "Fir"}},
    ],
    "messages": [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": " Hi! "},
        {"role": "assistant", "content": "Hello, café 😀"},
        {"role": "user", "content": "Bye"},
    ],
    "tools": [{"type": "function", "function": {
        "name": "get_weather", "description": "Weather's \"now\"",
        "parameters": {"type": "object", "required": ["city"],
                       "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}}}}}],
    "cafe": {"naïve": "“quotes”", "emoji": "😀"},
}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(source, variables):
    try:
        template = chat_template_utils._cached_compile_jinja_template(source)
        return {"text": template.render(**variables)}
    except Exception as e:  # what the template does wrong is part of the golden file
        return {"error": f"{type(e).__name__}: {e}"}


def snippets():
    lines = (HERE / "snippets.txt").read_text(encoding="utf-8").split("\n")[1:]
    cases = []
    for line in dict.fromkeys(line for line in lines if line):
        source = line.replace("␤", "\n")
        cases.append({"template": source, **render(source, VARIABLES)})
    return {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "variables": VARIABLES, "cases": cases}


def families():
    cases = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for name, request in conversations.REQUESTS.items():
            kwargs = {"bos_token": "<s>", "eos_token": "</s>", **request.get("template_args", {})}
            # As apply_chat_template of transformers 5 does before it calls the same function.
            messages = [{k: v for k, v in message.items() if v is not None} for message in request["messages"]]
            try:
                rendered, _ = chat_template_utils.render_jinja_template(
                    conversations=[messages], tools=request.get("tools"), chat_template=source,
                    add_generation_prompt=request.get("add_generation_prompt", False), **kwargs)
                outcome = {"text": rendered[0]}
            except Exception as e:
                outcome = {"error": f"{type(e).__name__}: {e}"}
            cases.append({"template": path.name, "request": name, **outcome})
    return {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "requests": conversations.REQUESTS,
            "cases": cases}


def main():
    chat_template_utils.datetime = FixedClock
    for name, content in (("snippets.json", snippets()), ("families.json", families())):
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (HERE / name).write_text(text + "\n", encoding="utf-8")
        failed = sum("error" in case for case in content["cases"])
        print(f"{name}: {len(content['cases'])} cases, {failed} of them errors")


if __name__ == "__main__":
    main()
