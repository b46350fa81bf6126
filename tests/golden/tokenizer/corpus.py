"""Seeded text for the tokenizer goldens: words of many scripts, emoji, control characters, random code points.

Only characters that Unicode 14 assigns are drawn (Python 3.11's table): the server's PCRE2 10.42 knows Unicode 14, the
oracle's tables are newer, and letters that only one side knows would be split differently.  U+180E is drawn too.
"""
import random
import unicodedata

SCRIPTS = {
    "latin": (0x00C0, 0x024F), "greek": (0x0391, 0x03C9), "cyrillic": (0x0410, 0x044F), "hebrew": (0x05D0, 0x05EA),
    "arabic": (0x0621, 0x064A), "devanagari": (0x0904, 0x094D), "thai": (0x0E01, 0x0E4E), "georgian": (0x10D0, 0x10FA),
    "hiragana": (0x3041, 0x3096), "katakana": (0x30A1, 0x30FA), "cjk": (0x4E00, 0x5200), "hangul": (0xAC00, 0xB200),
    "cjk_b": (0x20000, 0x20080), "math": (0x1D400, 0x1D44F),
}
EMOJI = ["😀", "🎉", "👨‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🤷🏿‍♂️", "☃", "✈️", "🧑‍🚀", "🫠"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u180e", "\x0b", "\x0c",
          "\x85", "\u2028", "        ", "\t\t", "\n\n\n\n"]
CONTROLS = [chr(c) for c in [*range(0x00, 0x20), 0x7F, *range(0x80, 0xA0), 0x200D, 0x200E, 0x202E, 0xFEFF, 0xFFFD, 0xFFFE, 0xE000]]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("…—–«»“”‘’。、！？¿¡§¶•€£¥°±×÷№™")
CONTRACTIONS = ["I'm", "don't", "we'll", "THEY'RE", "I'VE", "she'd", "it'S", "'ſ", "o'clock", "'tis", "l'été", "x'll'd"]
COMBINING = [0x0300, 0x0301, 0x0323, 0x0327, 0x0308, 0x05B0, 0x064B, 0x094D, 0x0E34, 0x1D165, 0x20DD, 0x3099]
# Precomposed, decomposed, compatibility and excluded characters: where NFC, NFKC and friends differ.
NORMAL_FORMS = ["é", "e\u0301", "ﬁ", "Å", "\u212b", "ệ", "e\u0323\u0302", "e\u0302\u0323", "각", "\u1100\u1161\u11a8", "\u1100\u1161",
                "가\u11a8", "\u0958", "\u2126", "ẛ\u0323", "①", "Ａ", "ｶﾞ", "\u0344", "\ufb1d", "İ", "ß", "ς", "Σ", "\u2f800", "½", "x²"]


def assigned(cp):
  return unicodedata.category(chr(cp)) not in ("Cn", "Cs")


def script_words(rng, count):
  """`count` words of each script, so that sampling them with a Zipf law teaches merges."""
  words = {}
  for name, (low, high) in SCRIPTS.items():
    letters = [chr(c) for c in range(low, high + 1) if assigned(c)]
    longest = 4 if name in ("cjk", "cjk_b", "hangul") else 9
    words[name] = ["".join(rng.choices(letters, k=rng.randint(1, longest))) for _ in range(count)]
  return words


def zipf(rng, items):
  return items[min(int(len(items) * rng.random() ** 3), len(items) - 1)]


def script_line(rng, words):
  name = rng.choice(list(words))
  joint = "" if name in ("cjk", "thai", "hiragana", "katakana") and rng.random() < 0.7 else " "
  line = joint.join(zipf(rng, words[name]) for _ in range(rng.randint(3, 14)))
  return line + rng.choice([".", "!", "…", "。", "", "?", "\n"])


def random_line(rng):
  out = []
  for _ in range(rng.randint(2, 14)):
    cp = rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x1FFFF, 0x10FFFF])
    cp = rng.randrange(cp)
    if assigned(cp):
      out.append(chr(cp))
  return "".join(out)


def bytes_line(rng):
  return bytes(rng.randrange(256) for _ in range(rng.randint(2, 24))).decode("latin-1")


def mixed_line(rng, words):
  out = []
  for _ in range(rng.randint(2, 8)):
    kind = rng.randrange(10)
    if kind == 0:
      out.append(rng.choice(EMOJI))
    elif kind == 1:
      out.append(rng.choice(SPACES))
    elif kind == 2:
      out.append(rng.choice(CONTROLS))
    elif kind == 3:
      out.append(rng.choice(PUNCT) * rng.randint(1, 4))
    elif kind == 4:
      out.append(rng.choice(CONTRACTIONS))
    elif kind == 5:
      out.append(str(rng.randrange(10 ** rng.randint(1, 9))) + rng.choice(["", "٣", "Ⅷ", "½", "०१"]))
    elif kind == 6:
      out.append(rng.choice("aeéxひक") + "".join(chr(rng.choice(COMBINING)) for _ in range(rng.randint(1, 4))))
    elif kind == 7:
      out.append(rng.choice(NORMAL_FORMS))
    else:
      out.append(zipf(rng, words[rng.choice(list(words))]))
    out.append(rng.choice(["", "", " ", " ", "  ", "\n", rng.choice(SPACES)]))
  return "".join(out)


def added_line(rng, words, added):
  """Added tokens with neighbours: spaces, word characters, punctuation, each other, broken spellings."""
  out = []
  for _ in range(rng.randint(1, 5)):
    token = rng.choice(added)
    spelling = rng.random()
    if spelling < 0.08:
      token = token[:-1]
    elif spelling < 0.14:
      token = token.upper()
    elif spelling < 0.2:
      token = token[0] + token
    left = rng.choice(["", " ", "  ", "\n", "\t ", "a", "é", "_", "9", ".", "\u0301", "\u200d", "ⓐ", "\u3000", "\u180e", "word "])
    right = rng.choice(["", " ", "  ", "\n", " \t", "b", "ж", "_", "7", "!", "\u0301", "\u200c", "🅰", "\u00a0", " word"])
    out.append(left + token + right)
    if rng.random() < 0.5:
      out.append(zipf(rng, words[rng.choice(list(words))]))
  return "".join(out)


def golden_lines(seed, prose, added, count):
  rng = random.Random(seed)
  words = script_words(rng, 300)
  lines = ["", " ", "  ", "\n", "a", "\0", "é", "e\u0301", "▁", "▁▁", " ▁ a", "a ▁", "Ġ", "ĠĠhello", "<0x41>", "<0xFF>", "\ufffd",
           "a" * 300, "^" * 300, "_" * 300, " " * 300, "\n" * 100, " \n" * 80, "ab" * 150, "1" * 100]
  while len(lines) < count:
    pick = rng.random()
    if pick < 0.25:
      start = rng.randrange(len(prose) - 200)
      lines.append(prose[start:start + rng.randint(5, 120)])
    elif pick < 0.42:
      lines.append(script_line(rng, words))
    elif pick < 0.52:
      lines.append(random_line(rng))
    elif pick < 0.62:
      lines.append(bytes_line(rng))
    elif pick < 0.82:
      lines.append(mixed_line(rng, words))
    else:
      lines.append(added_line(rng, words, added))
  return lines


def training_lines(seed, prose, count):
  rng = random.Random(seed)
  words = script_words(rng, 900)
  lines = prose.splitlines(keepends=True)
  for _ in range(count):
    lines.append(script_line(rng, words) if rng.random() < 0.8 else mixed_line(rng, words))
  return lines
