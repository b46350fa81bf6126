#!/usr/bin/env python3
"""Writes the demo model's training text: JSONL files for training jobs, drawn from the grammar.

    python3 generate_data.py --out DIR [--seed=1] [--scale=1]

train_DOMAIN.jsonl: conversations ("messages") and plain texts ("text") of a domain; heldout.jsonl: texts of rows and
phrases that training text never has.  The same seed and scale give the same bytes.
"""

import argparse
import json
import pathlib
import random

from grammar import ALL, ANSWER, HELD_OUT, QUESTION, TRAINING, Grammar

DOMAINS = {  # megabytes at scale 1; share of plain texts
    "stories": (6.0, 0.4),
    "recipes": (2.5, 0.35),
    "code": (2.5, 0.4),
    "sums": (4.5, 0.5),
    "facts": (4.0, 0.3),
    "chat": (2.5, 0.0),
}
TURNS = {"stories": ["story_turn"] * 4 + ["story_talk"], "recipes": ["recipe_turn"], "code": ["code_turn"], "sums": ["sum"],
         "facts": ["fact"] * 4 + ["follow_up"], "chat": ["chat"]}
SHORT = ["chat", "facts", "sums", "chat", "facts", "sums", "code"]  # of a conversation about anything


def is_held_out_story(rows: dict) -> bool:
    """One pair of a hero and a thing of ten is in no training text."""
    if "animal" not in rows or "thing" not in rows:
        return False
    key = rows["animal"]["name"] + rows["thing"]["name"]
    return sum(ord(letter) * (i + 3) for i, letter in enumerate(key)) % 10 == 3


def draw(grammar: Grammar, rule: str, rng: random.Random, phrases: str = TRAINING, rows: str = TRAINING) -> str:
    """As Grammar.draw, with the pairs of stories held out, too."""
    while True:
        text, drawn = grammar.draw(rule, rng, phrases, rows)
        if "animal" not in drawn or "thing" not in drawn or rows == ALL or is_held_out_story(drawn) == (rows == HELD_OUT):
            return text


def careless(question: str, rng: random.Random) -> str:
    """A question as people type it: some without capitals, some without the last mark."""
    if rng.random() < 0.15:
        question = question.lower()
    if rng.random() < 0.15:
        question = question.rstrip("?.!")
    return question


def messages(exchanges: list[str], rng: random.Random, system: str = "") -> list[dict]:
    turns = [{"role": "system", "content": system}] if system else []
    for exchange in exchanges:
        for part in exchange.split(QUESTION):
            question, answer = part.split(ANSWER)
            turns += [{"role": "user", "content": careless(question, rng)}, {"role": "assistant", "content": answer}]
    return turns


def conversation(grammar: Grammar, domain: str, rng: random.Random) -> list[dict]:
    """One to four exchanges of a domain; in the domain "chat", also of others."""
    system = draw(grammar, "plain_system", rng) if rng.random() < 0.25 else ""
    if domain in ("facts", "chat") and rng.random() < 0.12:
        return messages([draw(grammar, "short_fact", rng) for _ in range(rng.randint(1, 3))], rng,
                        draw(grammar, "short_system", rng))
    most = 1 if domain in ("stories", "recipes") else 4
    count = rng.choice([1, 1, 2, rng.randint(1, most)]) if most > 1 else 1
    if domain != "chat":
        return messages([draw(grammar, rng.choice(TURNS[domain]), rng) for _ in range(count)], rng, system)
    topics = [rng.choice(SHORT) if rng.random() < 0.6 else "chat" for _ in range(count)]
    exchanges = [draw(grammar, rng.choice(TURNS[topic]), rng) for topic in topics]
    if rng.random() < 0.15:
        exchanges.append(draw(grammar, rng.choice(["story_turn", "recipe_turn"]), rng))
    if rng.random() < 0.3:
        exchanges.insert(0, draw(grammar, "greeting", rng))
    return messages(exchanges, rng, system)


def plain(grammar: Grammar, domain: str, rng: random.Random, phrases: str = TRAINING, rows: str = TRAINING) -> str:
    """A story, a recipe, functions, or lines of sums or facts."""
    if domain in ("stories", "recipes"):
        return draw(grammar, {"stories": "story", "recipes": "recipe"}[domain], rng, phrases, rows)
    rule, most, between = {"code": ("code", 6, "\n\n\n"), "sums": ("sum_line", 40, "\n"), "facts": ("fact_line", 16, "\n")}[domain]
    lines = [draw(grammar, rule, rng, phrases, rows).replace(ANSWER, "\n") for _ in range(rng.randint(1, most))]
    return between.join(lines) + "\n"


def write_training(grammar: Grammar, out: pathlib.Path, domain: str, seed: int, scale: float) -> None:
    megabytes, share = DOMAINS[domain]
    rng = random.Random(f"{domain} {seed}")
    size = 0
    with open(out / f"train_{domain}.jsonl", "w", encoding="utf-8") as file:
        while size < megabytes * 1e6 * scale:
            if size < share * megabytes * 1e6 * scale:
                document = {"text": plain(grammar, domain, rng)}
                size += len(document["text"])
            else:
                document = {"messages": conversation(grammar, domain, rng)}
                size += sum(len(message["content"]) for message in document["messages"])
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def write_held_out(grammar: Grammar, out: pathlib.Path, seed: int) -> None:
    rng = random.Random(f"held out {seed}")
    with open(out / "heldout.jsonl", "w", encoding="utf-8") as file:
        for domain in DOMAINS:
            for _ in range(40):
                rule = rng.choice(TURNS[domain])
                document = {"domain": domain, "messages": messages([draw(grammar, rule, rng, HELD_OUT, HELD_OUT)], rng)}
                file.write(json.dumps(document, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1, help="of all sizes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    grammar = Grammar()
    for domain in DOMAINS:
        write_training(grammar, args.out, domain, args.seed, args.scale)
    write_held_out(grammar, args.out, args.seed)


if __name__ == "__main__":
    main()
