#!/usr/bin/env python3
"""Makes harmony.json: outputs in gpt-oss's format, and the messages that the openai-harmony library finds in them.

    python3 tests/golden/output/make.py      # needs openai-harmony (0.0.8) and its vocabulary, which it loads
"""
import json
import os
import random

from openai_harmony import HarmonyEncodingName, Role, StreamableParser, load_harmony_encoding

TEXTS = ["2 + 2 = 4.", "", " \n", "a <b> <| c |> <|end <|channel", "日本語 🙂 é", "Line\n\n- item\n```json\n{}\n```", "to=functions.now"]
ARGUMENTS = ["{}", '{"a": 1}', '{"s": "x \\"y\\" }{ \\u00e9\\n 日本", "t": [1, -2.5e3, {"u": null}]}', '{\n  "a": true\n}']
CALL_HEADERS = ["<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.add<|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.add<|message|>",
                "<|channel|>commentary to=functions.get_weather json<|message|>",
                " to=functions.now<|channel|>commentary <|constrain|>json<|message|>",
                " to=functions.now<|channel|>commentary json<|message|>",
                "<|channel|>analysis to=functions.add <|constrain|>json<|message|>"]
TEXT_HEADERS = ["<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
                "<|channel|>analysis to=python code<|message|>"]


def message(rng):
    if rng.random() < 0.4:
        return rng.choice(CALL_HEADERS) + rng.choice(ARGUMENTS), "<|call|>"
    return rng.choice(TEXT_HEADERS) + rng.choice(TEXTS), "<|end|>"


def outputs():
    for header in CALL_HEADERS:
        for arguments in ARGUMENTS:
            yield header + arguments + "<|call|>"
    for header in TEXT_HEADERS:
        for text in TEXTS:
            yield header + text + "<|return|>"
    rng = random.Random(1)
    for _ in range(60):
        messages = [message(rng) for _ in range(rng.randint(2, 5))]
        yield "<|start|>assistant".join(head + end for head, end in messages)


def main():
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    cases = []
    for text in outputs():
        parser = StreamableParser(encoding, role=Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        parser.process_eos()
        cases.append({"text": text,
                      "messages": [{"channel": found.channel, "recipient": found.recipient,
                                    "content": "".join(part.text for part in found.content)} for found in parser.messages]})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harmony.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
