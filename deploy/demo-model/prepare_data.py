#!/usr/bin/env python3
"""Builds the demo model's corpus: cleaned, deduplicated, capped by source, with whole files held out; then the
tokenizer (byte-level BPE, trained on the training part only) and the token arrays.

    python3 prepare_data.py --packages /tmp/demo/packages --out /tmp/demo/data --tokenizer_dir .

The machine's apt sources need a deb-src line: four of the packages are source packages.
Writes OUT/heldout.jsonl (domain, name, text), OUT/train_{prose,code,documentation,chat}.jsonl (for a training job),
OUT/train_{prose,code,documentation,chat}.npy (uint16 tokens of the same, for train.py), OUT/corpus.json (what came
from where, in bytes) and TOKENIZER_DIR/tokenizer.json, unless --keep_tokenizer.
"""

import argparse
import hashlib
import json
import pathlib
import random
import re

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from corpus_sources import SOURCES, fetch, read_source

DOMAINS = ["prose", "code", "documentation"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HELDOUT_BYTES = 460_000  # at least, in each domain
# Long files are held out only where the source has nothing shorter: a novel would eat the whole share.
HELDOUT_MAX_FILE = 160_000
# Qwen2's pattern: one digit a token, so that numbers are read figure by figure.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\x0c", "\n").replace("\ufffd", "").replace("\x00", "")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def order_key(name: str) -> str:
    """A fixed pseudo-random order of files that does not depend on the others."""
    return hashlib.sha1(name.encode()).hexdigest()


class LineFilter:
    """Refuses a document most of whose longer lines were seen before (licences, copies, generated variants)."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def admit(self, text: str) -> bool:
        lines = {hash(line.strip()) for line in text.split("\n") if len(line.strip()) >= 30}
        if lines and len(lines & self.seen) > 0.5 * len(lines):
            return False
        self.seen |= lines
        return True


def collect(root: pathlib.Path):
    """Returns {source index: [(name, text)]}, capped, in the fixed order."""
    documents = {}
    for index, source in enumerate(SOURCES):
        found = [(name, clean(text)) for name, text in read_source(source, root)]
        found = [(name, text) for name, text in found if len(text) >= 400]
        found.sort(key=lambda item: order_key(item[0]))
        kept, size = [], 0
        for name, text in found:
            if size < source.cap_bytes:
                kept.append((name, text))
                size += len(text.encode())
        documents[index] = kept
        print(f"{source.domain:14} {source.package:22} {len(kept):5} files {size / 1e6:6.2f} MB", flush=True)
    return documents


def hold_out(documents):
    """Takes whole files out of `documents`, from every source in proportion; returns [(source, name, text)]."""
    heldout = []
    for domain in DOMAINS:
        of_domain = [i for i, s in enumerate(SOURCES) if s.domain == domain]
        total = sum(len(text) for i in of_domain for _, text in documents[i])
        for i in of_domain:
            share = HELDOUT_BYTES * sum(len(text) for _, text in documents[i]) / total
            taken = 0
            for item in list(documents[i]):
                if taken < share and len(documents[i]) > 1 and len(item[1]) <= HELDOUT_MAX_FILE:
                    documents[i].remove(item)
                    heldout.append((i, *item))
                    taken += len(item[1])
        missing = HELDOUT_BYTES - sum(len(t) for i, _, t in heldout if i in of_domain)
        # Sources made of a few long files gave nothing: make up for it with one of them.
        candidates = sorted((item[1], i, item) for i in of_domain for item in documents[i]
                            if len(item[1]) > HELDOUT_MAX_FILE)
        candidates.sort(key=lambda c: len(c[0]))
        if missing > 0 and candidates:
            _, i, item = candidates[0]
            documents[i].remove(item)
            heldout.append((i, *item))
    return heldout


def deduplicate(documents, heldout) -> None:
    """Held-out text goes first, so that copies of it leave the training part."""
    lines = LineFilter()
    heldout[:] = [item for item in heldout if lines.admit(item[2])]
    for index in documents:
        documents[index] = [item for item in documents[index] if lines.admit(item[1])]


def drop_near_copies(documents, heldout) -> None:
    """Held-out files with much of their text in the training part too (other renderings, templates) do not count."""
    def lines(text: str) -> list[str]:
        return [re.sub(r"\W+", " ", line).strip() for line in text.split("\n") if len(line.strip()) >= 30]

    trained = {line for items in documents.values() for _, text in items for line in lines(text)}
    heldout[:] = [item for item in heldout
                  if sum(line in trained for line in lines(item[2])) <= 0.25 * len(lines(item[2]))]


def chat_documents(documents):
    """Questions and answers in ChatML from the dictionaries' entries: the markers have to mean something."""
    chats, rng = [], random.Random(7)
    asks = ["What is {}?", "What does {} mean?", "Define {}.", "Tell me about {}.", "Explain {}."]
    for index, source in enumerate(SOURCES):
        if source.reader != "dictionary" or source.package == "dict-gcide":
            continue
        for _, text in documents[index]:
            for entry in re.split(r"\n(?=\S)", text):
                head, _, body = entry.partition("\n")
                lines = [line.strip() for line in body.split("\n")]
                answer = re.sub(r"\s*\n\s*", " ", "\n".join(lines)).strip()
                answer = re.sub(r"^/[^/]{1,40}/,? ?", "", answer)
                answer = re.sub(r"^(n|v|vt|vi|adj|adv|interj|prep|abbrev|obs)\.(, ?\w+\.)* ", "", answer)
                word = head.split(",")[0].strip().lower() if source.package == "dict-devil" else head.strip()
                if 60 <= len(answer) <= 900 and 2 <= len(word) <= 40:
                    chats.append((rng.choice(asks).format(word), answer.replace("{", "").replace("}", "")))
    return chats


def train_tokenizer(documents, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, min_frequency=4,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  max_token_length=24)
    per_domain: dict[str, int] = {}
    texts = []
    for index, items in documents.items():  # the same weight for every domain
        for _, text in items:
            domain = SOURCES[index].domain
            if per_domain.get(domain, 0) < 12 << 20:
                per_domain[domain] = per_domain.get(domain, 0) + len(text)
                texts.append(text)
    random.Random(1).shuffle(texts)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_jsonl(path: pathlib.Path, lines: list[dict]) -> None:
    with open(path, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """[tokens] uint16: every document followed by <|endoftext|>."""
    end = tokenizer.token_to_id("<|endoftext|>")
    pieces = []
    for start in range(0, len(texts), 256):
        for encoding in tokenizer.encode_batch(texts[start:start + 256]):
            pieces.append(np.array(encoding.ids + [end], dtype=np.uint16))
    return np.concatenate(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=pathlib.Path, required=True, help="where packages are unpacked")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer_dir", type=pathlib.Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=6144)
    parser.add_argument("--keep_tokenizer", action="store_true", help="use the one that is there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    fetch(args.packages)
    documents = collect(args.packages)
    heldout = hold_out(documents)
    deduplicate(documents, heldout)
    drop_near_copies(documents, heldout)
    write_jsonl(args.out / "heldout.jsonl",
                [{"domain": SOURCES[index].domain, "name": name, "text": text} for index, name, text in heldout])

    if args.keep_tokenizer:
        tokenizer = Tokenizer.from_file(str(args.tokenizer_dir / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(documents, args.vocab_size)
        tokenizer.save(str(args.tokenizer_dir / "tokenizer.json"))
    corpus = {"sources": [], "heldout_bytes": {}, "train_tokens": {}}
    for index, source in enumerate(SOURCES):
        corpus["sources"].append({
            "domain": source.domain, "package": source.package, "licence": source.licence,
            "train_files": len(documents[index]), "train_bytes": sum(len(t.encode()) for _, t in documents[index]),
            "heldout_files": [name for i, name, _ in heldout if i == index]})
    for domain in DOMAINS:
        texts = [t for i, items in documents.items() if SOURCES[i].domain == domain for _, t in items]
        random.Random(2).shuffle(texts)
        write_jsonl(args.out / f"train_{domain}.jsonl", [{"text": text} for text in texts])
        tokens = encode(tokenizer, texts)
        np.save(args.out / f"train_{domain}.npy", tokens)
        corpus["train_tokens"][domain] = len(tokens)
        corpus["heldout_bytes"][domain] = sum(len(t.encode()) for i, _, t in heldout if SOURCES[i].domain == domain)
        print(f"{domain}: {len(tokens)} tokens, {sum(len(t.encode()) for t in texts) / len(tokens):.2f} bytes each")
    answers = chat_documents(documents)
    random.Random(3).shuffle(answers)
    write_jsonl(args.out / "train_chat.jsonl", [{"messages": [
        {"role": "user", "content": ask}, {"role": "assistant", "content": answer}]} for ask, answer in answers])
    chats = [f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n" for ask, answer in answers]
    np.save(args.out / "train_chat.npy", encode(tokenizer, chats))
    corpus["chat_documents"] = len(chats)
    (args.out / "corpus.json").write_text(json.dumps(corpus, indent=1) + "\n")
    print("held out", corpus["heldout_bytes"], "chats", len(chats))


if __name__ == "__main__":
    main()
