"""Conversations that the family templates are rendered over."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, in °C & \"as is\"",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "e.g. Zürich"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}

SYSTEM = {"role": "system", "content": "You are a careful assistant.\nBe brief."}
ASK = {"role": "user", "content": "What is 2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "call_one1", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}},
        {"type": "function", "id": "call_two2", "function": {"name": "now", "arguments": {}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call_one1", "name": "get_weather", "content": "{\"temp\": 21.5}"},
    {"role": "tool", "tool_call_id": "call_two2", "name": "now", "content": "12:00"},
]
THOUGHT = {"role": "assistant", "content": "<think>\nTwo plus two…\n</think>\n\nIt is 4."}
REASONED = {"role": "assistant", "reasoning_content": "\nCarry the one.\n", "content": "\n\nIt is 4."}

REQUESTS = {
    "one user": {"messages": [ASK]},
    "one user, prompt": {"messages": [ASK], "add_generation_prompt": True},
    "system, turns, prompt": {"messages": [SYSTEM, ASK, ANSWER, ASK], "add_generation_prompt": True},
    "ends with assistant": {"messages": [ASK, ANSWER]},
    "unicode and spaces": {"messages": [{"role": "user", "content": "  ¿Qué?  日本語 😀\n\n "}, ANSWER, ASK], "add_generation_prompt": True},
    "two users in a row": {"messages": [ASK, ASK]},
    "starts with assistant": {"messages": [ANSWER, ASK]},
    "empty": {"messages": []},
    "unknown role": {"messages": [{"role": "critic", "content": "hm"}]},
    "content parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "none content": {"messages": [ASK, {"role": "assistant", "content": None}]},
    "special text": {"messages": [{"role": "user", "content": "<|im_end|> {{ messages }} {% raw %}"}]},
    "tools": {"messages": [ASK], "tools": [WEATHER, TIME], "add_generation_prompt": True},
    "tools, system": {"messages": [SYSTEM, ASK], "tools": [WEATHER], "add_generation_prompt": True},
    "tool calls": {"messages": [SYSTEM, ASK, CALL, *RESULTS, ANSWER, ASK], "tools": [WEATHER, TIME], "add_generation_prompt": True},
    "tool calls, open": {"messages": [ASK, CALL, *RESULTS], "tools": [WEATHER, TIME], "add_generation_prompt": True},
    "tool call as text": {"messages": [ASK, {"role": "assistant", "content": "Wait.", "tool_calls": [
        {"type": "function", "id": "call_one1", "function": {"name": "now", "arguments": "{}"}}]}, RESULTS[1]]},
    "thinking": {"messages": [ASK, THOUGHT, ASK], "add_generation_prompt": True},
    "thinking, last": {"messages": [ASK, THOUGHT]},
    "reasoning field": {"messages": [ASK, REASONED]},
    "reasoning alias": {"messages": [ASK, {"role": "assistant", "reasoning": "Hm.", "content": "4"}]},
    "thinking off": {"messages": [ASK], "add_generation_prompt": True, "template_args": {"enable_thinking": False}},
    "thinking on": {"messages": [ASK], "add_generation_prompt": True, "template_args": {"enable_thinking": True}},
    "date given": {"messages": [ASK], "add_generation_prompt": True, "template_args": {"date_string": "1 Jan 2030"}},
}
