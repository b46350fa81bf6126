#!/usr/bin/env python3
"""Compares the served model with HF transformers, both in fp32: log probabilities of the tokens of texts of the grammar and
of the 20 likeliest beside each, and a greedy continuation.

    python3 compare_served.py --model . --bin ../../build/release/bin
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import generate_data
from grammar import Grammar

ADDRESS = "127.0.0.1:50961"


def ask(cli: pathlib.Path, ids: list[int], **flags) -> dict:
    options = [f"--{name}={value}" for name, value in flags.items()]
    command = [cli, "generate", f"--server={ADDRESS}", "--json", f"--token_ids={','.join(map(str, ids))}", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(cli: pathlib.Path, model, ids: list[int], greedy: int) -> tuple[float, bool]:
    """The largest difference of a log probability, and whether the continuations are the same."""
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        continued = model.generate(torch.tensor([ids[:64]]), do_sample=False, max_new_tokens=greedy,
                                   eos_token_id=None)[0, 64:].tolist()
    worst = 0.0
    served = ask(cli, ids, max_tokens=1, temperature=0, prompt_logprobs=20)["prompt_logprobs"]
    assert len(served) == len(ids) - 1, (len(served), len(ids))
    for place, token in enumerate(served):
        for each in [token, *token["top"]]:
            worst = max(worst, abs(each["logprob"] - expected[place, int(each["token_id"])].item()))
    answer = ask(cli, ids[:64], max_tokens=greedy, temperature=0, ignore_eos="true")
    return worst, answer["token_ids"] == continued


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="build/release/bin")
    parser.add_argument("--tokens", type=int, default=512, help="of each domain")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    grammar, rng = Grammar(), random.Random("compare")
    domains = [domain for domain, (_, share) in generate_data.DOMAINS.items() if share > 0]
    texts = {domain: "\n\n".join(generate_data.plain(grammar, domain, rng) for _ in range(30)) for domain in domains}
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    server = subprocess.Popen([args.bin / "switchyard-server", f"--model={args.model}", "--dtype=fp32", "--local_workers=1",
                               f"--port={ADDRESS.rsplit(':', 1)[1]}", "--metrics_port=0"], stderr=subprocess.DEVNULL)
    try:
        cli = args.bin / "switchyard"
        for _ in range(100):
            if subprocess.run([cli, "status", f"--server={ADDRESS}"], capture_output=True).returncode == 0:
                break
            time.sleep(0.2)
        worst = 0.0
        for domain, text in texts.items():
            ids = tokenizer.encode(text, add_special_tokens=False).ids[:args.tokens]
            difference, same = compare(cli, model, ids, greedy=64)
            worst = max(worst, difference)
            print(f"{domain}: {len(ids)} tokens, log probabilities differ by {difference:.1e} at most; "
                  f"64 greedy tokens {'are the same' if same else 'DIFFER'}")
            if difference > 1e-3 or not same:
                sys.exit(1)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
