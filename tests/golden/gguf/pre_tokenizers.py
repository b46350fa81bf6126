"""Makes pre_tokenizers.json for tests/server/text/tokenizer/gguf_vocabulary_test.cc: a byte-level BPE whose merges cross what
any pre-tokenizer splits, and the ids that HuggingFace's tokenizers gives to lines with the normalizer and the
pre-tokenizer of the published tokenizer.json of each kind of model.

pip install tokenizers==0.23.3
tar xf tests/golden/tokenizer/lines.tar.xz -C /tmp; python3 tests/golden/gguf/pre_tokenizers.py /tmp/lines/lines.jsonl
"""
import json
import pathlib
import re
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tokenizer"))
from kinds import LLAMA3, O200K, QWEN  # noqa: E402

NO_CONTRACTIONS = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
TEKKEN = NO_CONTRACTIONS.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]")
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
LETTERS = ("[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F"
           "\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-"
           "\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B"
           "\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-"
           "\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183"
           "\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF"
           "\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
           "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+")
CJK = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
DIGITS = pre_tokenizers.Digits(individual_digits=True)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

# A kind: its stages, whether text is normalized to NFC, whether a piece that is a token is that token.
KINDS = {
    "gpt-2": ([GPT2], False, False),
    "olmo": ([GPT2], True, False),
    "llama-bpe": ([LLAMA3], False, True),
    "dbrx": ([LLAMA3], False, False),
    "qwen2": ([QWEN], True, False),
    "qwen35": ([QWEN35], True, False),
    "gpt-4o": ([O200K], False, False),
    "tekken": ([TEKKEN], False, True),
    "kimi-k2": ([KIMI], False, False),
    "bailingmoe": ([BAILING], True, False),
    "seed-coder": ([SEED], False, False),
    "refact": ([DIGITS, GPT2], False, False),
    "deepseek-v3": (DEEPSEEK3, False, False),
    "deepseek-llm": (["[\r\n]", r"\s?" + LETTERS, "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", r"\s+$", CJK, DIGITS], False, False),
    "deepseek-coder": (["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGITS], False, False),
}

EXTRA = ["It's I'LL we'Ve they'RE don'T o'clock 'sup", "1 12 123 1234 12345 1.234,56 ٣٤٥٦ １２３４ ⅷ½²", "a1b22c333 x86_64 3D", "  two  spaces   three    ",
         "tab\t\ttabs \t mixed\t", "line\nline\r\nline\n\n\n  indented\r\r", "trailing \n  ", "我们在2024年去了北京。你好，世界！", "漢字かなカタカナ交じり文、テスト", "한국어 문장과 English 섞기",
         "CamelCaseWord HTTPServer iPhone McDonald ÉCOLE Straße ǅ", "e\u0301te\u0301 n\u0303 \u0301start", "//comment /* x */ #!/usr/bin/env python", "a/b/c/\n/d?x=1&y=2#z",
         "price: $1,000.00 (approx. €900) — 50%…", "🙂🙃👩‍👩‍👧‍👦 emoji🚀s", "Привет, мир! Ελληνικά γράμματα", "مرحبا بالعالم ١٢٣", "हिन्दी में पाठ", "ไทยไม่มีช่องว่าง", "_under_score__ --flag=-1 +2 ***",
         "\u3000全角　空白\u00a0nbsp\u2003em", "中a文b字1 中文's", "ᏣᎳᎩ ﬁ ﬀ Ⴀ ꮳ", "don’t “quotes” ‘single’", "x=\"a\\tb\"; y='c';", "\u212a \u2126 \u212b \u1fbe ΑΒΓ'S x'S 7's", "\t\n", " ", "\n", "   \n   x",
         "one\n\n\n\ntwo\n\n", "\n\n\n\n", "\n\n", "three \n\n four"]


def tokenizer(stages, nfc, ignore_merges, vocab, merges):
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    stages = [pre_tokenizers.Split(Regex(each), "isolated") if isinstance(each, str) else each for each in stages]
    if stages[-1] is not GPT2:
        stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence(stages)
    tok.decoder = decoders.ByteLevel()
    return tok


def main():
    lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    # No merge stops at a word, a digit or a space.
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"[\s\S]{1,12}"), "isolated"),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    sample = [line for line in lines if len(line) < 1000][::2] + EXTRA * 20
    base.train_from_iterator(sample, trainers.BpeTrainer(vocab_size=2600, show_progress=False, max_token_length=16,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(base.to_str())["model"]
    merges = [tuple(each) for each in model["merges"]]
    vocab = model["vocab"]
    # Tokens that no merge reaches: only ignore_merges finds them.
    for word in ("ĠBritish", "ology", "istan", "Ġneural"):
        vocab.setdefault(word, len(vocab))
    chosen = [line for line in lines[::17] if 0 < len(line) < 120][:420] + EXTRA + ["A British biology of Pakistan, neural", "ology"]
    golden = {"tokens": sorted(vocab, key=vocab.get), "merges": [" ".join(each) for each in merges], "lines": chosen, "ids": {}}
    for name, (stages, nfc, ignore_merges) in KINDS.items():
        tok = tokenizer(stages, nfc, ignore_merges, vocab, merges)
        golden["ids"][name] = [tok.encode(line, add_special_tokens=False).ids for line in chosen]
    names = list(KINDS)
    for i, a in enumerate(names):  # each kind is another one, but for bailingmoe, which writes qwen2's in another way
        for b in names[:i]:
            different = sum(x != y for x, y in zip(golden["ids"][a], golden["ids"][b]))
            assert different > 0 or (a, b) == ("bailingmoe", "qwen2"), (a, b)
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (pathlib.Path(__file__).parent / "pre_tokenizers.json").write_text(re.sub(r"\],\"", "],\n\"", text) + "\n", encoding="utf-8")
    print(len(vocab), "tokens,", len(chosen), "lines,", len(text), "characters")


main()
