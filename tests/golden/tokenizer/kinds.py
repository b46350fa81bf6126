"""The tokenizer.json of each kind: three trained vocabularies, everything else as the families' files spell it."""
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCAB_SIZE = 33000

# (content, flags): l = lstrip, r = rstrip, w = single_word, n = normalized, s = special
ADDED = [("<|endoftext|>", "s"), ("<|im_start|>", "s"), ("<|im_end|>", "s"), ("<mask>", "ls"), ("<right>", "rs"), ("<both>", "lr"),
         ("<think>", ""), ("</think>", ""), ("word", "w"), ("naïve", "wn"), ("Été", "n"), ("re\u0301sume", "n"), ("<a b>", "n"),
         ("<|im_start|>user", ""), ("[PAD]", "sn"), ("two words", "lrn"), ("\u212bngstrom", "n"), ("ZZ", "lrw")]


def added_token(token_id, content, flags):
  return {"id": token_id, "content": content, "single_word": "w" in flags, "lstrip": "l" in flags, "rstrip": "r" in flags,
          "normalized": "n" in flags, "special": "s" in flags}


def byte_level_pre(pattern):
  return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_byte_level(lines, pre_tokenizer, normalizer=None):
  tok = Tokenizer(models.BPE())
  tok.pre_tokenizer = pre_tokenizer
  if normalizer:
    tok.normalizer = normalizer
  tok.decoder = decoders.ByteLevel()
  tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB_SIZE, show_progress=False, max_token_length=40,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  return json.loads(tok.to_str())


def train_byte_fallback(lines):
  tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
  tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
  pieces = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
  # The alphabet is capped so that rare characters take the byte fallback.
  tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB_SIZE, show_progress=False, max_token_length=24,
                                                     limit_alphabet=1500, special_tokens=pieces))
  spec = json.loads(tok.to_str())
  spec["added_tokens"] = [added_token(i, pieces[i], "s") for i in range(3)]
  return spec


def add_tokens(spec, extra):
  next_id = max([*spec["model"]["vocab"].values(), *(t["id"] for t in spec["added_tokens"])]) + 1
  for content, flags in extra:
    known = spec["model"]["vocab"].get(content)
    spec["added_tokens"].append(added_token(next_id if known is None else known, content, flags))
    next_id += known is None


def ids_of(spec, *contents):
  by_content = {t["content"]: t["id"] for t in spec["added_tokens"]}
  return [by_content[c] for c in contents]


def template(spec, before, after=()):
  special = {c: {"id": c, "ids": ids_of(spec, c), "tokens": [c]} for c in (*before, *after)}
  piece = lambda c, t: {"SpecialToken": {"id": c, "type_id": t}}
  single = [piece(c, 0) for c in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(c, 0) for c in after]
  pair = single + [piece(c, 1) for c in before] + [{"Sequence": {"id": "B", "type_id": 1}}]
  return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def sentencepiece_decoder(strip):
  chain = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
  return {"type": "Sequence", "decoders": chain + ([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else [])}


def byte_level_post():
  return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def base_kinds(lines):
  """name -> whole tokenizer.json; the variants of `variant_kinds` are JSON merge patches of these."""
  gpt2 = train_byte_level(lines, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
  gpt2["post_processor"] = byte_level_post()
  gpt2["model"]["merges"] = [" ".join(m) for m in gpt2["model"]["merges"]]  # the older spelling

  llama3 = train_byte_level(lines, byte_level_pre(LLAMA3))
  llama3["model"]["ignore_merges"] = True
  # A vocabulary word that no merge reaches: only ignore_merges finds it.
  for word in ("Ġswitchyard", "switchyard", "Ġunmergeable"):
    llama3["model"]["vocab"].setdefault(word, max(llama3["model"]["vocab"].values()) + 1)

  qwen = train_byte_level(lines, byte_level_pre(QWEN), normalizers.NFC())
  qwen["post_processor"] = byte_level_post()

  llama2 = train_byte_fallback(lines)
  llama2["pre_tokenizer"] = None
  llama2["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                              {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
  llama2["decoder"] = sentencepiece_decoder(strip=True)
  kinds = {"gpt2": gpt2, "llama3": llama3, "qwen": qwen, "llama2": llama2}
  for spec in kinds.values():
    add_tokens(spec, ADDED)
  llama3["post_processor"] = {"type": "Sequence", "processors": [byte_level_post(), template(llama3, ["<|endoftext|>"])]}
  llama2["post_processor"] = template(llama2, ["<s>"], ["</s>"])
  return kinds


def gemma_added():
  many = [("\n" * n, "") for n in range(2, 32)] + [("▁" * n, "") for n in range(2, 32)] + [("\t" * n, "") for n in range(1, 32)]
  many += [(f"<{slash}{tag}>", "") for tag in "table tr td h1 h2 ul li p br code strong em sub sup".split() for slash in ("", "/")]
  return many + [(f"<unused{n}>", "") for n in range(3000)]


def variant_kinds(kinds):
  """name -> (base kind, merge patch)."""
  removed = {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Removed", "invert": True},
      {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
  mixtral = {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}}
  gemma_spec = json.loads(json.dumps(kinds["llama2"]))
  add_tokens(gemma_spec, gemma_added())
  gemma = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁", "normalizers": None},
           "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
           "decoder": sentencepiece_decoder(strip=False), "added_tokens": gemma_spec["added_tokens"],
           "post_processor": template(gemma_spec, ["<s>"])}
  return {"o200k_removed": ("llama3", {"pre_tokenizer": removed, "model": {"ignore_merges": False}}),
          "mixtral": ("llama2", mixtral), "gemma": ("llama2", gemma)}


def merge_patch(target, patch):
  if not isinstance(patch, dict):
    return patch
  result = dict(target) if isinstance(target, dict) else {}
  for key, value in patch.items():
    if value is None:
      result.pop(key, None)
    else:
      result[key] = merge_patch(result.get(key), value)
  return result
