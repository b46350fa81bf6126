"""Runs official clients against a server: suite.py http://HOST:PORT.  Prints a line for each group; exit status 1: a check failed."""

import itertools
import json
import os
import sys
import urllib.request

BASE = sys.argv[1]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks a host on the internet
calls = failed = 0


def check(condition, what):
    global failed
    if not condition:
        failed += 1
        print("FAILED:", what)


def count(n=1):
    global calls
    calls += n


def conforms(*answers, unfinished=False):
    """The packages read leniently: what they made must also be valid by their own types, which are the published schema's.
    `unfinished`: pieces of a completion, whose finish_reason is null before the end (as OpenAI's are; the schema has it not)."""
    for answer in answers:
        try:
            fields = answer.to_dict()
            for choice in fields["choices"] if unfinished else ():
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            type(answer).model_validate(fields, strict=True)
        except ValueError as error:
            check(False, (error, answer))
    return answers[-1] if answers else None


USER = [{"role": "user", "content": "Tell me about the sea."}]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."}, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
CLAUDE_TOOLS = [{"name": "weather", "description": "Weather of a city", "input_schema": CITY}]
SAMPLING = [{}, {"temperature": 0}, {"temperature": 0.7, "seed": 3}, {"top_p": 0.5, "seed": 4}, {"presence_penalty": 1.5, "seed": 5},
            {"frequency_penalty": -1, "seed": 6}, {"logit_bias": {"11": -100}, "temperature": 0}, {"stop": "e", "temperature": 0},
            {"stop": ["x", "the"], "temperature": 0}, {"n": 3, "seed": 7},
            {"extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True, "min_tokens": 2}, "seed": 8}]


def openai_chat(client, model):
    for i, (messages, sampling) in enumerate(itertools.product([USER, TALK], SAMPLING)):
        for logprobs in ({}, {"logprobs": True, "top_logprobs": 2}):
            options = dict(model=model, messages=messages, max_tokens=8 + i % 5, **sampling, **logprobs)
            options.setdefault("seed", 99)
            whole = client.chat.completions.create(**options)
            count()
            conforms(whole)
            check(whole.object == "chat.completion" and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole)
            check(len(whole.choices) == options.get("n", 1), whole)
            chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
            count()
            conforms(*chunks)
            check(all(c.object == "chat.completion.chunk" and c.id == chunks[0].id for c in chunks), chunks)
            check(not chunks[-1].choices and chunks[-1].usage.total_tokens == whole.usage.total_tokens, (options, chunks[-1], whole.usage))
            for choice in whole.choices:
                mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
                check(mine[0].delta.role == "assistant" and all(c.delta.role is None for c in mine[1:]), mine)
                check("".join(c.delta.content or "" for c in mine) == choice.message.content, (options, choice))
                check([c.finish_reason for c in mine] == [None] * (len(mine) - 1) + [choice.finish_reason], mine)
                if logprobs:
                    ids = [t.token for c in mine if c.logprobs for t in c.logprobs.content]
                    check(ids == [t.token for t in choice.logprobs.content], (ids, choice.logprobs))
                    check(all(len(t.top_logprobs) == 2 for t in choice.logprobs.content), choice.logprobs)


def openai_tools(client, model):
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(model=model, messages=USER, tools=TOOLS, tool_choice=choice, max_tokens=6, temperature=0)
        count()
        check(answer.choices[0].finish_reason in ("length", "stop"), answer)
    history = USER + [{"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function",
              "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
    answer = client.chat.completions.create(model=model, messages=history, tools=TOOLS, max_tokens=6)
    count()
    check(answer.choices[0].message.role == "assistant", answer)


def openai_structured(client, model):
    """Output that a schema bounds: the answer and the arguments of forced calls, whole and streamed."""
    strict = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}]
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        options = dict(model=model, messages=USER, tools=strict, tool_choice=choice, max_tokens=60, temperature=0, parallel_tool_calls=False)
        whole = conforms(client.chat.completions.create(**options))
        chunks = list(client.chat.completions.create(stream=True, **options))
        count(2)
        conforms(*chunks)
        calls_made = whole.choices[0].message.tool_calls or []
        check(len(calls_made) == 1 and calls_made[0].function.name == "weather" and calls_made[0].id, whole)
        check(calls_made and json.loads(calls_made[0].function.arguments)["city"] in ("Oslo", "Rome"), whole)
        pieces = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices and c.choices[0].delta.tool_calls]
        check("".join(p.function.arguments or "" for p in pieces) == calls_made[0].function.arguments, (pieces, whole))
        check([p.function.name for p in pieces if p.function.name] == ["weather"], pieces)
    shapes = [CITY, {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
                     "required": ["n", "ok"], "additionalProperties": False}]
    for schema, stream in itertools.product(shapes, (False, True)):
        shape = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        options = dict(model=model, messages=USER, response_format=shape, max_tokens=60, temperature=0, stream=stream)
        answer = client.chat.completions.create(**options)
        count()
        text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices) if stream else answer.choices[0].message.content
        check(set(json.loads(text)) == set(schema["required"]), text)
    import pydantic

    class Answer(pydantic.BaseModel):
        ok: bool

    parsed = client.chat.completions.parse(model=model, messages=USER, response_format=Answer, max_tokens=60, temperature=0)
    shape = {"format": {"type": "json_schema", "name": "answer", "schema": CITY, "strict": True}}
    response = conforms(client.responses.create(model=model, input="Hi", text=shape, max_output_tokens=60, temperature=0))
    count(2)
    check(isinstance(parsed.choices[0].message.parsed.ok, bool), parsed)
    check(json.loads(response.output_text)["city"] in ("Oslo", "Rome"), response)


def openai_completions(client, model):
    for sampling in SAMPLING:
        for prompt in ("In the beginning", ["One", "Two"], [72, 101, 108], [[72, 101], [108, 108]]):
            options = dict(model=model, prompt=prompt, max_tokens=6, **sampling)
            options.setdefault("seed", 5)
            whole = client.completions.create(logprobs=1, **options)
            count()
            conforms(whole)
            prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
            check(len(whole.choices) == prompts * options.get("n", 1), whole)
            chunks = list(client.completions.create(stream=True, **options))
            count()
            conforms(*chunks, unfinished=True)
            for choice in whole.choices:
                text = "".join(c.choices[0].text for c in chunks if c.choices and c.choices[0].index == choice.index)
                check(text == choice.text, (options, text, choice.text))
    scored = client.completions.create(model=model, prompt="In the beginning", max_tokens=0, echo=True, logprobs=1)
    count()
    check(scored.choices[0].logprobs.token_logprobs[0] is None and scored.choices[0].text == "In the beginning", scored)


def openai_responses(client, model):
    for stream in (False, True):
        for body in ({"input": "Hello"}, {"input": TALK[1:3] + [{"role": "user", "content": [{"type": "input_text", "text": "Go on"}]}]},
                     {"input": "Hi", "instructions": "Be brief", "temperature": 0, "max_output_tokens": 5},
                     {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]}):
            body = {"max_output_tokens": 9, "temperature": 0, **body}
            answer = client.responses.create(model=model, stream=stream, **body)
            count()
            if stream:
                events = list(answer)
                conforms(*events)
                check(events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete"), events)
                check([e.sequence_number for e in events] == list(range(len(events))), events)
                deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
                check(deltas == events[-1].response.output_text, (deltas, events[-1].response.output_text))
            else:
                conforms(answer)
                check(answer.status in ("completed", "incomplete") and answer.usage.output_tokens > 0, answer)


def openai_errors(client, model, openai):
    cases = [(openai.NotFoundError, dict(model="nope", messages=USER)), (openai.BadRequestError, dict(model=model, messages=[])),
             (openai.BadRequestError, dict(model=model, messages=USER, temperature=1000)), (openai.BadRequestError, dict(model=model, messages=USER, n=0)),
             (openai.BadRequestError, dict(model=model, messages=USER, max_tokens=10**6)),
             (openai.BadRequestError, dict(model=model, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]))]
    for kind, body in cases:
        count()
        try:
            client.chat.completions.create(**body)
            check(False, body)
        except openai.APIStatusError as error:
            check(type(error) is kind and error.body["message"], (body, error))


def anthropic_messages(client, model):
    for stream in (False, True):
        for extra in ({}, {"system": "Be brief"}, {"extra_body": {"temperature": 0.5, "top_p": 0.9, "top_k": 20}}, {"stop_sequences": ["e"]},
                      {"tools": [{"name": "weather", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}}):
            options = dict(model=model, max_tokens=12, messages=USER, **extra)
            count()
            if not stream:
                answer = conforms(client.messages.create(**options))
                check(answer.type == "message" and answer.stop_reason in ("max_tokens", "end_turn", "stop_sequence"), answer)
                check(answer.usage.output_tokens > 0 and answer.usage.input_tokens > 0, answer)
                continue
            with client.messages.stream(**options) as events:
                text = "".join(events.text_stream)
                final = events.get_final_message()
            check(text == "".join(b.text for b in final.content if b.type == "text"), final)
            events = list(client.messages.create(stream=True, **options))
            count()
            conforms(*events)
            kinds = [e.type for e in events]
            check(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds)
    for stream in (False, True):  # a tool that must be called
        options = dict(model=model, max_tokens=60, messages=USER, tools=CLAUDE_TOOLS, tool_choice={"type": "tool", "name": "weather"})
        count()
        if stream:
            with client.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = conforms(client.messages.create(**options))
        used = [b for b in answer.content if b.type == "tool_use"]
        check(len(used) == 1 and used[0].name == "weather" and answer.stop_reason == "tool_use", answer)
        check(used and used[0].input in ({"city": "Oslo"}, {"city": "Rome"}), answer)
    counted = client.messages.count_tokens(model=model, messages=USER)
    count()
    check(counted.input_tokens > 3, counted)


def others(model):
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(base_url=BASE + "/v1", api_key="none", model=model, max_tokens=8, temperature=0)
    whole = chat.invoke("Hello").content
    pieces = "".join(piece.content for piece in chat.stream("Hello"))
    count(2)
    check(whole == pieces and whole, (whole, pieces))
    import litellm
    for stream in (False, True):
        answer = litellm.completion(model="openai/" + model, api_base=BASE + "/v1", api_key="none", messages=USER, max_tokens=8, temperature=0, stream=stream)
        count()
        text = "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        check(text, answer)


def main():
    import anthropic
    import openai
    client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    check(client.models.retrieve(model).id == model, model)
    count(2)
    claude = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
    groups = [("openai chat", lambda: openai_chat(client, model)), ("openai tools", lambda: openai_tools(client, model)),
              ("openai structured", lambda: openai_structured(client, model)),
              ("openai completions", lambda: openai_completions(client, model)), ("openai responses", lambda: openai_responses(client, model)),
              ("openai errors", lambda: openai_errors(client, model, openai)), ("anthropic messages", lambda: anthropic_messages(claude, model)),
              ("langchain, litellm", lambda: others(model))]
    for name, run in groups:
        before, bad = calls, failed
        run()
        print(f"{name}: {calls - before} calls, {failed - bad} checks failed", flush=True)
    with urllib.request.urlopen(BASE + "/load") as load:
        check(json.load(load)["running_requests"] == 0, "requests still run")
    print(f"{calls} calls, {failed} checks failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
