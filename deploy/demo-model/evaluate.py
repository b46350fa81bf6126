#!/usr/bin/env python3
"""Measures the demo model as it is served, and prints the tables and samples of README.md.

    python3 evaluate.py --bin ../../build/release/bin [--model .] [--log STEPS.csv... --svg loss.svg]

Starts a server on the model, asks it over HTTP and gives each answer to the grammar's parser:
  grammatical   the answer, all of it, is a text of the domain's grammar
  fits          question and answer together are one: the answer is right, the story has the hero that was asked for
Needs nothing but Python's standard library.  Exit code 1 if fewer than --at_least of the samples are grammatical.
"""

import argparse
import concurrent.futures
import contextlib
import csv
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import generate_data
from grammar import ALL, ANSWER, HELD_OUT, TRAINING, Grammar, is_held_out

PORT = 50981
ANSWERS = {"stories": "story", "recipes": "recipe", "code": "code_answer", "sums": "sum_answer", "facts": "fact_answer",
           "chat": "chat_answer"}
TURNS = {"stories": "story_turn", "recipes": "recipe_turn", "code": "code_turn", "sums": "sum", "facts": "fact", "chat": "chat"}
# They end where a token ends whatever follows: ":" and a line feed are one token, and so are a space and a word.
TEXTS = {"stories": ("story", "Once upon a time"), "recipes": ("recipe", "Pancakes\n\nIngredients"), "code": ("code", "def")}
SAMPLED = {"temperature": 0.8, "top_p": 1}
GREEDY = {"temperature": 0}
POOL = concurrent.futures.ThreadPoolExecutor(16)  # requests at once


@contextlib.contextmanager
def served(bin_dir: pathlib.Path, model: pathlib.Path):
    log = tempfile.TemporaryFile("w+")
    server = subprocess.Popen([bin_dir / "switchyard-server", f"--model={model}", "--local_workers=1", "--threads=1", f"--port={PORT}",
                               f"--http_port={PORT + 4}", "--metrics_port=-1"], stderr=log)
    try:
        ready = f"{bin_dir / 'switchyard'} status --server=127.0.0.1:{PORT} --wait=60"
        if subprocess.run(ready.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            log.seek(0)
            sys.exit(f"the server is not ready:\n{log.read()}")
        yield
    finally:
        server.terminate()
        server.wait()


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT + 4}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def ask(question: str, **options) -> str:
    chat = post("/v1/chat/completions", {"messages": [{"role": "user", "content": question}], "max_tokens": 400, **options})
    return chat["choices"][0]["message"]["content"]


def go_on(prompt: str, **options) -> str:
    return prompt + post("/v1/completions", {"prompt": prompt, "max_tokens": 400, **options})["choices"][0]["text"]


class Count:
    """Of samples: how many are grammatical, and how many of them fit."""

    def __init__(self):
        self.samples = self.grammatical = self.fits = 0

    def add(self, grammatical: int, fits: int, samples: int = 1) -> None:
        self.samples += samples
        self.grammatical += grammatical
        self.fits += fits


def judge(grammar: Grammar, domain: str, rng: random.Random, samples: int, failures: list) -> Count:
    """Questions of a domain; every other answer is greedy, the others are drawn at temperature 0.8."""
    questions = [generate_data.draw(grammar, TURNS[domain], rng).split(ANSWER)[0] for _ in range(samples)]
    count = Count()
    for question, answer in zip(questions, POOL.map(
            lambda i: ask(questions[i], seed=i, **(GREEDY if i % 2 else SAMPLED)), range(samples)), strict=True):
        count.add(grammar.accepts(ANSWERS[domain], answer), grammar.accepts(TURNS[domain], question + ANSWER + answer))
        if not grammar.accepts(TURNS[domain], question + ANSWER + answer):
            failures.append((question, answer))
    return count


def judge_texts(grammar: Grammar, samples: int, failures: list) -> Count:
    """Plain texts that go on from a few words, at temperature 0.8."""
    count = Count()
    for rule, prompt in TEXTS.values():
        for text in POOL.map(lambda i, prompt=prompt: go_on(prompt, seed=i, **SAMPLED), range(samples)):
            pieces = text.rstrip("\n").split("\n\n\n") if rule == "code" else [text]
            good = all(grammar.accepts(rule, piece) for piece in pieces)
            count.add(good, good)
            if not good:
                failures.append((prompt, text))
    return count


def print_grammar(grammar: Grammar, samples: int, failures: list) -> float:
    """The table of samples by domain; returns the share of grammatical ones."""
    print("\n| domain | samples | grammatical | fits the question |\n|---|---:|---:|---:|")
    total = Count()
    rows = [(domain, judge(grammar, domain, random.Random(f"judge {domain}"), samples, failures)) for domain in TURNS]
    for name, count in [*rows, ("plain text", judge_texts(grammar, max(1, samples // 3), failures))]:
        print(f"| {name} | {count.samples} | {count.grammatical} | {count.fits} |", flush=True)
        total.add(count.grammatical, count.fits, count.samples)
    print(f"| all | {total.samples} | {total.grammatical} | {total.fits} |")
    return total.grammatical / total.samples


def share(grammar: Grammar, rule: str, questions: list[str]) -> str:
    """Of greedy answers, those that are right."""
    answers = POOL.map(lambda question: ask(question, **GREEDY), questions)
    right = sum(grammar.accepts(rule, question + ANSWER + answer) for question, answer in zip(questions, answers, strict=True))
    return f"{len(questions)} | {right} | {100 * right / len(questions):.0f} %"


def questions_of(grammar: Grammar, rule: str, number: int, **split) -> list[str]:
    rng = random.Random(f"questions {rule} {split}")
    return [generate_data.draw(grammar, rule, rng, **split).split(ANSWER)[0] for _ in range(number)]


def small_sums(held_out: bool) -> list[str]:
    """All additions and subtractions of numbers from 0 to 20 whose pair is, or is not, in training text."""
    pairs = [(a, b) for a in range(21) for b in range(21)]
    plus = [f"What is {a} + {b}?" for a, b in pairs if is_held_out(a, b) == held_out]
    return plus + [f"What is {a} - {b}?" for a, b in pairs if b <= a and is_held_out(b, a - b) == held_out]


def print_held_out(grammar: Grammar, number: int) -> None:
    print("\n| greedy answers | questions | right | |\n|---|---:|---:|---:|")
    trained = random.Random(0).sample(small_sums(False), min(2 * number, 500))
    for name, rule, questions in (
            ("facts, phrases of the training text", "fact", questions_of(grammar, "fact", number)),
            ("facts, phrases that are not in it", "fact", questions_of(grammar, "fact", number, phrases=HELD_OUT)),
            ("sums of 0 to 20, pairs in the training text", "sum", trained),
            ("sums of 0 to 20, pairs that are not in it", "sum", small_sums(True)),
            ("sums up to 99, pairs that are not in it", "sum", questions_of(grammar, "large_sum", number, rows=HELD_OUT)),
            ("stories, pairs of hero and thing that are not in it", "story_turn",
             questions_of(grammar, "hero_and_thing", number // 4, rows=HELD_OUT))):
        print(f"| {name} | {share(grammar, rule, questions)} |", flush=True)


# ---- experts

def expert_rows(bin_dir: pathlib.Path, model: pathlib.Path, texts: list[str]) -> list[list[int]]:
    """[L][E]: how often each expert is chosen while a fresh server reads `texts`."""
    with served(bin_dir, model):
        list(POOL.map(lambda text: post("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0}), texts))
        shown = subprocess.run([bin_dir / "switchyard", "experts", f"--server=127.0.0.1:{PORT + 1}", "--json"], check=True,
                               capture_output=True, text=True).stdout
    return [[int(expert.get("prefill_rows", 0)) for expert in layer["experts"]] for layer in json.loads(shown)["layers"]]


def information(groups: list[list[int]]) -> float:
    """Bits between group and expert, the groups alike in weight."""
    joint = [[rows / sum(group) / len(groups) for rows in group] for group in groups]
    experts = [sum(column) for column in zip(*joint, strict=True)]
    return sum(p * math.log2(p * len(groups) / q) for group in joint for p, q in zip(group, experts, strict=True) if p)


def print_experts(grammar: Grammar, bin_dir: pathlib.Path, model: pathlib.Path) -> None:
    rng = random.Random("experts")
    texts = {}
    for domain, rule in TURNS.items():
        drawn, size = [], 0
        while size < 20_000:
            drawn.append(generate_data.draw(grammar, rule, rng, ALL, ALL).replace(ANSWER, "\n"))
            size += len(drawn[-1])
        texts[domain] = drawn
    # The control's groups have the same texts, dealt out whatever their domain.
    every = [text for drawn in texts.values() for text in drawn]
    rng.shuffle(every)
    dealt = [every[i::len(texts)] for i in range(len(texts))]
    use = [expert_rows(bin_dir, model, drawn) for drawn in texts.values()]
    control = [expert_rows(bin_dir, model, drawn) for drawn in dealt]
    print("\n| layer | busiest / mean | idlest / mean | I(domain; expert), bits | dealt out at random |\n|---|---:|---:|---:|---:|")
    for layer in range(len(use[0])):
        groups = [rows[layer] for rows in use]
        mean = [sum(rows[e] / sum(rows) for rows in groups) / len(groups) * len(groups[0]) for e in range(len(groups[0]))]
        print(f"| {layer} | {max(mean):.2f} | {min(mean):.2f} | {information(groups):.3f} | "
              f"{information([rows[layer] for rows in control]):.3f} |")


# ---- the loss

def read_steps(paths: list[pathlib.Path]) -> list[tuple]:
    """Seconds and trained tokens so far, loss and balance loss (means of 20 steps) of jobs, each of which goes on from
    the one before."""
    means, seconds, before = [], 0.0, 0.0
    for path in paths:
        with open(path, newline="", encoding="utf-8") as log:
            rows = [{key: float(row[key]) for key in ("loss", "balance_loss", "seconds", "tokens")} for row in csv.DictReader(log)]
        for end in range(20, len(rows) + 1, 20):
            part = rows[end - 20:end]
            seconds += sum(row["seconds"] for row in part)
            means.append((seconds, before + part[-1]["tokens"],
                          *(sum(row[key] for row in part) / 20 for key in ("loss", "balance_loss"))))
        before = means[-1][1]
    return means


def print_curve(paths: list[pathlib.Path], svg: pathlib.Path | None) -> None:
    """The loss (nats per trained token) at ten moments, and all of it as a picture."""
    means = read_steps(paths)
    seconds = means[-1][0]
    print("\n| minutes | trained tokens, M | loss | balance loss |\n|---:|---:|---:|---:|")
    for i in range(1, 11):
        passed, tokens, loss, balance = min(means, key=lambda entry: abs(entry[0] - i / 10 * seconds))
        print(f"| {passed / 60:.1f} | {tokens / 1e6:.2f} | {loss:.3f} | {balance:.2f} |")
    if svg:
        last = means[-1][1]
        points = " ".join(f"{40 + 550 * tokens / last:.1f},{10 + 55 * (4 - min(loss, 4)):.1f}"
                          for _, tokens, loss, _ in means[::max(1, len(means) // 120)])
        ticks = "".join(f'<text x="8" y="{14 + 55 * (4 - v)}">{v}</text><line x1="40" x2="590" y1="{10 + 55 * (4 - v)}" '
                        f'y2="{10 + 55 * (4 - v)}" stroke="#ddd"/>' for v in range(5))
        svg.write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 260" font-family="sans-serif" font-size="12">'
                       f'<rect width="600" height="260" fill="#fff"/>{ticks}<polyline points="{points}" fill="none" '
                       'stroke="#06c" stroke-width="1.5"/><text x="200" y="252">trained tokens (0 to '
                       f'{last / 1e6:.1f} M); loss in nats per token</text></svg>\n')


def print_samples() -> None:
    for question in ("What is the capital of France?", "capital of japan", "Tell me a story about a fox.", "Write a recipe for pancakes.",
                     "What is 7 + 5?", "Write a Python function that adds two numbers.", "Who are you?"):
        print(f"\n> {question}\n{ask(question, **GREEDY)}")
    for prompt in ("Once upon a time", "def read_file"):
        print(f"\n--- text\n{go_on(prompt, **GREEDY)}")


def main() -> None:
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=here)
    parser.add_argument("--samples", type=int, default=18, help="of each domain")
    parser.add_argument("--at_least", type=float, default=0.95)
    parser.add_argument("--quick", action="store_true", help="only the samples")
    parser.add_argument("--log", type=pathlib.Path, nargs="+", help="steps.csv of the jobs in order: prints the loss curve")
    parser.add_argument("--svg", type=pathlib.Path, help="also draws it here")
    args = parser.parse_args()
    grammar, failures = Grammar(), []
    with served(args.bin, args.model):
        grammatical = print_grammar(grammar, args.samples, failures)
        if not args.quick:
            print_held_out(grammar, 200)
        print_samples()
    for question, answer in failures:
        print(f"does not fit: {question!r}: {answer!r}", file=sys.stderr)
    if not args.quick:
        print_experts(grammar, args.bin, args.model)
    if args.log:
        print_curve(args.log, args.svg)
    if grammatical < args.at_least:
        sys.exit(f"{100 * grammatical:.1f} % of the samples are grammatical, below {100 * args.at_least:.0f} %")


if __name__ == "__main__":
    main()
