"""Runs lm-eval, unchanged, on two tasks of this folder over HTTP (local-completions) and beside it over HF transformers
on the same weights, and compares them: log likelihoods within --tolerance, the same choices, the same generated texts.

usage, from the root of the tree: python tests/e2e/clients/lm_eval/run.py http://HOST:PORT [--model=DIR] [--tolerance=X]
Needs pip install 'lm_eval[api,hf]' transformers torch; for the tolerance of fp32 a server with --dtype=fp32.
"""
import argparse
import json
import os
import sys
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "none")

import lm_eval  # noqa: E402
import torch  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TASKS = ["switchyard_choices", "switchyard_generate"]


def evaluate(model, args):
    """Returns the table's figures and, for each task and document, what the model answered."""
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=args,
        tasks=TASKS,
        task_manager=TaskManager(include_path=os.path.dirname(os.path.abspath(__file__)), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        batch_size=1,
    )
    answers = {task: {s["doc_id"]: s["resps"] for s in found["samples"][task]} for task in TASKS}
    return found["results"], answers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--model", default="deploy/demo-model")
    parser.add_argument("--tolerance", type=float, default=0.02)
    flags = parser.parse_args()
    torch.set_num_threads(1)  # the models are tiny, and the server beside it computes, too
    name = json.load(urllib.request.urlopen(flags.address + "/v1/models"))["data"][0]["id"]
    ours, our_answers = evaluate(
        "local-completions",
        {"model": name, "base_url": flags.address + "/v1/completions", "tokenizer": flags.model, "num_concurrent": 4},
    )
    theirs, their_answers = evaluate("hf", {"pretrained": flags.model, "dtype": "float32", "device": "cpu"})
    faults, worst, likelihoods, texts = [], 0.0, 0, 0
    for doc, answers in our_answers["switchyard_choices"].items():
        for ours_one, theirs_one in zip(answers, their_answers["switchyard_choices"][doc], strict=True):
            (our_sum, our_greedy), (their_sum, their_greedy) = ours_one[0], theirs_one[0]
            worst = max(worst, abs(our_sum - their_sum))
            likelihoods += 1
            if abs(our_sum - their_sum) > flags.tolerance:
                faults.append(f"choices {doc}: {our_sum} over HTTP, {their_sum} by HF")
            if our_greedy != their_greedy:
                faults.append(f"choices {doc}: greedy is {our_greedy} over HTTP, {their_greedy} by HF")
    for doc, answers in our_answers["switchyard_generate"].items():
        texts += 1
        if answers[0][0] != their_answers["switchyard_generate"][doc][0][0]:
            faults.append(f"generate {doc}: {answers[0][0]!r}, by HF {their_answers['switchyard_generate'][doc][0][0]!r}")
    for title, results in (("over HTTP", ours), ("by HF transformers", theirs)):
        for task in TASKS:
            figures = {key: value for key, value in results[task].items() if isinstance(value, float)}
            print(f"{title:20} {task:22} {figures}")
    print(f"{likelihoods} log likelihoods, the largest difference {worst:.2g}; {texts} generated texts")
    for fault in faults:
        print("FAULT:", fault)
    sys.exit(1 if faults else 0)


main()
