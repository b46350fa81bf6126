"""Small tokenizer.json files that each show one component, with what the oracle says of a few hundred texts.

Pieces are made visible by the model: a BPE without merges whose vocabulary is the 256 byte tokens and whose
end_of_word_suffix falls back to bytes too, so the ids spell each piece and mark its end.
"""
import json
import random
import unicodedata

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import corpus

BYTES = {"<0x%02X>" % b: b for b in range(256)}
VISIBLE = {"type": "BPE", "byte_fallback": True, "end_of_word_suffix": "</w>", "vocab": BYTES, "merges": []}

TEXTS = ["", " ", "a", "Hello, World!", "  two  spaces  ", "\tтест\n", "the-final--countdown", "--x--", "a b", "a  b ", "▁a▁ b▁▁",
         "x123y4५६Ⅷ½z", "don't I'LL we'Ve 'ſ", "ﬁnd Å İstanbul ΑΣ ß", "e\u0301e\u0300a\u0323\u0302", "각\u1100\u1161\u11a8 ｶﾞ", "中文 kanji漢字", "a\u200db\u200cc",
         "\x00\x01\x0b\x7f\x85\xa0", "…«quoted»—dash", "__init__ snake_case", "ⓐ🅰 x²", "👩🏽‍💻 🇩🇪", "\u180e\u3000x\u2028", "a\r\nb\n\nc \n", "ab" * 20, "\ufeffBOM\ufffd",
         "<s>", " <s> a", "a<s>", "<MASK> Mask <mask>", "x <mask>  y", "caféCAFÉ cafe\u0301", "NAÏVE naïve", "word words a word.", "0xFF deadBEEF", "a,b;c", ",,a,,b,"]


def texts(seed, recent=False):
  rng = random.Random(seed)
  words = corpus.script_words(rng, 20)
  out = list(TEXTS)
  for _ in range(60):
    out += [corpus.mixed_line(rng, words), corpus.random_line(rng), corpus.bytes_line(rng)]
  # But for the normal forms, the oracle's tables of marks, punctuation and controls are of Unicode 8, the server's of 15: only characters that
  # both know.  (Python has the table of 3.2.)  TEXTS stay as they are.
  if recent:
    marks = [chr(c) for c in range(0x300, 0x1F000) if unicodedata.combining(chr(c))]
    return out + ["".join(rng.choice(["a", "x", "\u1100", "\U00011935", *marks]) for _ in range(8)) for _ in range(150)]
  old = unicodedata.ucd_3_2_0
  return TEXTS + ["".join(c for c in line if old.category(c) != "Cn" or c in corpus.CONTROLS) for line in out[len(TEXTS):]]


def added(start, *tokens):
  """(content, flags) with the flags of kinds.ADDED."""
  return [{"id": start + i, "content": c, "single_word": "w" in f, "lstrip": "l" in f, "rstrip": "r" in f, "normalized": "n" in f,
           "special": "s" in f} for i, (c, f) in enumerate(tokens)]


def spec(model=None, **parts):
  return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
          "post_processor": None, "decoder": None} | parts | {"model": model or VISIBLE}


def sequence(kind, *parts):
  return {"type": "Sequence", {"n": "normalizers", "p": "pretokenizers", "d": "decoders", "o": "processors"}[kind]: list(parts)}


def split(pattern, behavior, invert=False):
  return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def replace(pattern, content):
  return {"type": "Replace", "pattern": pattern, "content": content}


def metaspace(scheme, does_split=True):
  return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": does_split}


REGEXES = [r"\s+$", r"\p{N}{1,3}+", r"a{2}?b", r"\h+", r"\w+|[^\w\s]+", r"^\s*\w", r"(?m:.)b", r"[\w']+", r"\u0041|\u00e9", r"x{,2}y?", r"(?i:ſ|é)",
           r"(ab){1,2}+", r"[^\S\n]+", r"\bа|\d+?", r"[\s\p{P}]", r"(?<=a)b", r"[]a]+", r"[一-龥ࠀ-一가-퟿]+", r"[!-/:-~！-／：-～‘-‟　-。]+",
           r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+", r"[[:alpha:]]+", r"b*", r"(?:a|b)++c?", r".{3}"]


def normalizer_specs():
  simple = {n: {"type": n} for n in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel", "Nmt")}
  for left in (False, True):
    for right in (False, True):
      simple[f"Strip_{left}_{right}"] = {"type": "Strip", "strip_left": left, "strip_right": right}
  simple["Prepend"] = {"type": "Prepend", "prepend": "▁"}
  simple["ReplaceString"] = replace({"String": " "}, "▁")
  simple["ReplaceRegex"] = replace({"Regex": r"\s+|[.,]{1,2}"}, " · ")
  simple["ReplaceNothing"] = replace({"Regex": r"^\W+"}, "")
  for clean, accents, lower in ((True, None, True), (True, None, False), (False, True, False), (True, False, True)):
    simple[f"Bert_{clean}_{accents}_{lower}"] = {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": clean,
                                                "strip_accents": accents, "lowercase": lower}
  simple["Sequence"] = sequence("n", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"})
  tokens = added(256, ("<s>", "s"), ("<mask>", "lsn"), ("café", "n"), ("Naïve", "nw"), ("word", "wr"))
  for name, part in simple.items():
    yield f"normalizer_{name}", spec(normalizer=part)
    yield f"normalizer_{name}_added", spec(normalizer=part, added_tokens=tokens, decoder={"type": "ByteFallback"})


def pre_tokenizer_specs():
  parts = {"ByteLevel": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "ByteLevelNoRegex": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
           "Whitespace": {"type": "Whitespace"}, "WhitespaceSplit": {"type": "WhitespaceSplit"}, "BertPreTokenizer": {"type": "BertPreTokenizer"},
           "Digits": {"type": "Digits", "individual_digits": False}, "DigitsEach": {"type": "Digits", "individual_digits": True},
           "CharDelimiterSplit": {"type": "CharDelimiterSplit", "delimiter": ","}, "FixedLength": {"type": "FixedLength", "length": 3}}
  for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
    parts[f"Punctuation{behavior}"] = {"type": "Punctuation", "behavior": behavior}
    for invert in (False, True):
      parts[f"SplitString{behavior}{invert}"] = split({"String": "-"}, behavior, invert)
      parts[f"SplitRegex{behavior}{invert}"] = split({"Regex": r"\s+|[ab]"}, behavior, invert)
      parts[f"SplitEmpty{behavior}{invert}"] = split({"Regex": r"b*"}, behavior, invert)
  for i, regex in enumerate(REGEXES):
    parts[f"Regex{i}"] = split({"Regex": regex}, "Isolated")
  for scheme in ("first", "never", "always"):
    for does_split in (False, True):
      parts[f"Metaspace_{scheme}_{does_split}"] = metaspace(scheme, does_split)
  parts["Sequence"] = sequence("p", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, metaspace("first"))
  parts["DeepSeek"] = sequence("p", split({"Regex": r"\p{N}{1,3}"}, "Isolated"), split({"Regex": r"[一-龥぀-ゟ゠-ヿ]+"}, "Isolated"), split(
      {"Regex": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"},
      "Isolated"), {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
  for name, part in parts.items():
    yield f"pre_tokenizer_{name}", spec(pre_tokenizer=part)
  tokens = added(256, ("<s>", "s"), ("<mask>", "lrs"))
  for name, normalizer in (("plain", None), ("strip", {"type": "Strip", "strip_left": True, "strip_right": False}), ("accents", {"type": "StripAccents"})):
    yield f"pre_tokenizer_Metaspace_first_added_{name}", spec(normalizer=normalizer, pre_tokenizer=metaspace("first"), added_tokens=tokens)


def decoder_specs():
  replaced = replace({"String": "▁"}, " ")
  fallback = {"type": "ByteFallback"}
  strip = lambda start, stop, c=" ": {"type": "Strip", "content": c, "start": start, "stop": stop}
  parts = {"None": None, "ByteLevel": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "ByteFallback": fallback,
           "Fuse": {"type": "Fuse"}, "Metaspace": metaspace("always"), "MetaspaceNever": metaspace("never"), "MetaspaceFirst": metaspace("first"),
           "WordPiece": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPieceNoCleanup": {"type": "WordPiece", "prefix": "##", "cleanup": False},
           "BPEDecoder": {"type": "BPEDecoder", "suffix": "</w>"}, "Strip": strip(1, 0), "Strip2": strip(2, 0, "▁"),
           "Llama": sequence("d", replaced, fallback, {"type": "Fuse"}, strip(1, 0)),
           "LlamaEnd": sequence("d", replaced, fallback, {"type": "Fuse"}, strip(1, 1)), "ReplaceFused": sequence("d", {"type": "Fuse"}, replace({"String": "aab"}, "<>")),
           "ReplaceRegex": replace({"Regex": "[ab]+"}, "."), "ReplaceRegexFused": sequence("d", {"type": "Fuse"}, replace({"Regex": "a+b"}, ".")),
           "BytesThenReplace": sequence("d", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, replace({"String": " "}, "_")),
           "MetaspaceFused": sequence("d", {"type": "Fuse"}, metaspace("always"))}
  words = ["a", "b", "aa", "ab", "aab", "▁", "▁a", "▁▁", "a▁b", " ", "  ", "##a", "##b", "a</w>", "</w>", ".", " ,", " 's", "do", " not", "Ġa", "Ċ", "Ã", "©", "ð", "Ł",
           "ĺ", "Ģ", "é", "中", "👩", "<0x41>", "<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>", "<0xAD>", "<0xFF>", "<0x4>", "<0xzz>", "<unk>"]
  model = {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"}
  tokens = added(len(words), ("<s>", "s"), ("Ġadded é", ""), ("▁x", "s"))
  for name, part in parts.items():
    yield f"decoder_{name}", spec(model, decoder=part, added_tokens=tokens)


def post_processor_specs():
  tokens = added(256, ("<s>", "s"), ("</s>", "s"), ("<x>", "s"))
  special = {c: {"id": c, "ids": i, "tokens": [c] * len(i)} for c, i in (("<s>", [256]), ("</s>", [257]), ("two", [258, 256]))}
  piece = lambda c: {"SpecialToken": {"id": c, "type_id": 0}}
  text = {"Sequence": {"id": "A", "type_id": 0}}
  other = {"Sequence": {"id": "B", "type_id": 1}}
  template = lambda *single: {"type": "TemplateProcessing", "single": list(single), "pair": [text, other], "special_tokens": special}
  byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
  both = {"sep": ["</s>", 257], "cls": ["<s>", 256]}
  parts = {"Bos": template(piece("<s>"), text), "Both": template(piece("<s>"), text, piece("</s>")), "Two": template(text, piece("two")),
           "Roberta": {"type": "RobertaProcessing", **both, "trim_offsets": True, "add_prefix_space": True}, "Bert": {"type": "BertProcessing", **both},
           "ByteLevel": byte_level, "Sequence": sequence("o", byte_level, template(piece("<s>"), text, piece("two")))}
  for name, part in parts.items():
    yield f"post_processor_{name}", spec(post_processor=part, added_tokens=tokens)


def model_specs():
  lines = texts(5) * 3
  def trained(trainer, pre, **options):
    tok = Tokenizer(models.BPE(unk_token="[UNK]", **options))
    tok.pre_tokenizer = pre
    tok.train_from_iterator(lines, trainer)
    return json.loads(tok.to_str())
  whitespace = pre_tokenizers.Whitespace()
  trainer = lambda **options: trainers.BpeTrainer(vocab_size=420, limit_alphabet=120, special_tokens=["[UNK]"], show_progress=False, **options)
  yield "model_bpe_prefix", trained(trainer(continuing_subword_prefix="##"), whitespace, continuing_subword_prefix="##")
  yield "model_bpe_suffix", trained(trainer(end_of_word_suffix="</w>"), whitespace, end_of_word_suffix="</w>")
  yield "model_bpe_unk", trained(trainer(), whitespace)
  yield "model_bpe_fuse_unk", trained(trainer(), whitespace, fuse_unk=True)
  some_bytes = {b: i for i, b in enumerate(list(BYTES)[:200] + ["a", "b", "ab", "<unk>"])}
  for fuse in (False, True):
    yield f"model_bpe_some_bytes_{fuse}", spec({"type": "BPE", "byte_fallback": True, "fuse_unk": fuse, "unk_token": "<unk>", "vocab": some_bytes, "merges": ["a b"]})
  yield "model_bpe_no_unk", spec({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3}, "merges": [["a", "b"], ["ab", "ab"]]})
  overlap = {c: i for i, c in enumerate(["a", "b", "aa", "aaa", "aaaa", "ab", "ba", "aab", "bab", "abab"])}
  yield "model_bpe_overlap", spec({"type": "BPE", "vocab": overlap, "merges": ["a a", "aa a", "a aa", "aa aa", "a b", "b a", "aa b", "b ab", "ab ab", "a bab"]})
  words = {w: i for i, w in enumerate(["[UNK]", "a", "b", "##b", "##a", "word", "##s", "Hello", "World", "the", "final", "-", "##é"])}
  yield "model_wordpiece", spec({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 10, "vocab": words},
                               pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
  yield "model_wordlevel", spec({"type": "WordLevel", "unk_token": "[UNK]", "vocab": words}, pre_tokenizer={"type": "Whitespace"})


def record(name, value, rng):
  tok = Tokenizer.from_str(json.dumps(value))
  encode, decode = [], []
  for text in texts(7, recent=name.startswith("normalizer_NF")) if not name.startswith("decoder") else []:
    plain, full = (tok.encode(text, add_special_tokens=special).ids for special in (False, True))
    encode.append([text, plain] + ([full] if full != plain else []))
  highest = max(tok.get_vocab().values())
  for _ in range(200 if name.startswith("decoder") else 20):
    ids = [rng.randint(0, highest + 1) for _ in range(rng.randint(0, 12))]
    try:
      kept, skipped = (tok.decode(ids, skip_special_tokens=skip) for skip in (False, True))
    except BaseException:  # the oracle's Strip panics when it cuts a text's beginning and end that overlap
      continue
    decode.append([ids, kept] + ([skipped] if skipped != kept else []))
  return {"name": name, "json": value, "encode": encode, "decode": decode}


def archive_files():
  rng = random.Random(11)
  records = []
  for specs in (normalizer_specs(), pre_tokenizer_specs(), decoder_specs(), post_processor_specs(), model_specs()):
    records += [record(name, value, rng) for name, value in specs]
  return {"cases.jsonl": "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)}
