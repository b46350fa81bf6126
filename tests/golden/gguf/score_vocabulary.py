"""Makes score_vocabulary.json for tests/server/text/tokenizer/gguf_vocabulary_test.cc: a BPE model that SentencePiece trains
on lines of ../tokenizer/lines.tar.xz, as Llama 2's was made, its vocabulary as GGUF files have it, and the ids that
SentencePiece itself gives to every 20th line.

pip install sentencepiece==0.2.3
tar xf tests/golden/tokenizer/lines.tar.xz -C /tmp; python3 tests/golden/gguf/score_vocabulary.py /tmp/lines/lines.jsonl
"""
import io
import json
import pathlib
import sys

import sentencepiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def type_of(model, i):
    if model.is_unknown(i):
        return UNKNOWN
    if model.is_control(i):
        return CONTROL
    if model.is_byte(i):
        return BYTE
    return UNUSED if model.is_unused(i) else NORMAL


def main():
    lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\n", " ") for line in lines if len(line) < 4000 and max(line, default="") < "\u0250"]),
        model_writer=made,
        model_type="bpe", vocab_size=3000, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, character_coverage=1.0, allow_whitespace_only_pieces=True,
        num_threads=1, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    size = range(model.vocab_size())
    golden = {"tokens": [model.id_to_piece(i) for i in size], "scores": [model.get_score(i) for i in size],
              "token_type": [type_of(model, i) for i in size], "bos": model.bos_id(), "eos": model.eos_id()}
    ids = {i: model.encode(lines[i]) for i in range(0, len(lines), 20) if len(lines[i]) < 400}
    golden["ids"] = ids
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (pathlib.Path(__file__).parent / "score_vocabulary.json").write_text(text + "\n", encoding="utf-8")
    print(len(golden["tokens"]), "tokens,", len(ids), "lines,", len(text), "characters")


main()
