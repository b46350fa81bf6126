"""Makes the tokenizer goldens with HuggingFace `tokenizers` as the oracle:  python3 tests/golden/tokenizer/make.py

Trains three kinds of vocabularies on the Python standard library's sources and on seeded multi-script text, writes one
archive per kind (its tokenizer.json, or a JSON merge patch of another kind's, and what the oracle says of each line), the
archive of the lines, and components.tar.xz: small files that each exercise one component.
"""
import io
import json
import pathlib
import sys
import tarfile

import tokenizers

import components
import corpus
import kinds

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20240607
NUM_LINES = 10500


def python_sources(limit):
  root = pathlib.Path(json.__file__).parent.parent
  text = []
  size = 0
  for path in sorted(root.rglob("*.py")):
    if "site-packages" in path.parts or "dist-packages" in path.parts or "test" in path.parts or "idlelib" in path.parts:
      continue
    text.append(path.read_text(encoding="utf-8", errors="ignore"))
    size += len(text[-1])
    if size > limit:
      break
  return "".join(text)


def write_archive(name, files):
  with tarfile.open(HERE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
    for path, text in files.items():
      entry = tarfile.TarInfo(f"{name}/{path}")
      data = text.encode("utf-8")
      entry.size = len(data)
      archive.addfile(entry, io.BytesIO(data))


def expectation(tok, line):
  """i: ids without the post-processor's tokens; s: with them; p: specials as plain text; d, k: decoded with and without
  special tokens, when that is not the line itself; c: decoded `s` without special tokens, when it is not k."""
  plain = tok.encode(line, add_special_tokens=False).ids
  full = tok.encode(line, add_special_tokens=True).ids
  tok.encode_special_tokens = True
  no_specials = tok.encode(line, add_special_tokens=False).ids
  tok.encode_special_tokens = False
  record = {"i": plain}
  if full != plain:
    record["s"] = full
  if no_specials != plain:
    record["p"] = no_specials
  kept = tok.decode(plain, skip_special_tokens=False)
  skipped = tok.decode(plain, skip_special_tokens=True)
  if kept != line:
    record["d"] = kept
  if skipped != kept:
    record["k"] = skipped
  if tok.decode(full, skip_special_tokens=True) != skipped:
    record["c"] = tok.decode(full, skip_special_tokens=True)
  return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def write_kind(name, spec, lines, files):
  tok = tokenizers.Tokenizer.from_str(json.dumps(spec))
  records = [expectation(tok, line) for line in lines]
  ids = [json.loads(r)["i"] for r in records]
  print(f"{name}: vocab {tok.get_vocab_size()}, {sum(map(len, ids))} ids, {len(set(i for l in ids for i in l))} distinct", flush=True)
  write_archive(name, files | {"expected.jsonl": "\n".join(records) + "\n"})


def main():
  sys.setrecursionlimit(10000)
  write_archive("components", components.archive_files())
  prose = python_sources(8_000_000)
  added = [content for content, _ in kinds.ADDED] + ["\n\n\n", "▁▁▁", "<table>", "</td>", "<unused17>", "<s>", "</s>", "<unk>"]
  lines = corpus.golden_lines(SEED, prose, added, NUM_LINES) + ["a switchyard here", "switchyard", "unmergeable unmergeable"]
  write_archive("lines", {"lines.jsonl": "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)})
  base = kinds.base_kinds(corpus.training_lines(SEED + 1, prose, 60000))
  for name, spec in base.items():
    write_kind(name, spec, lines, {"tokenizer.json": json.dumps(spec, ensure_ascii=False, separators=(",", ":"))})
  for name, (base_name, patch) in kinds.variant_kinds(base).items():
    write_kind(name, kinds.merge_patch(base[base_name], patch), lines,
               {"base.txt": base_name, "patch.json": json.dumps(patch, ensure_ascii=False, separators=(",", ":"))})


if __name__ == "__main__":
  main()
