#!/usr/bin/env python3
"""The demo model's grammar (deploy/demo-model/grammar.py): what is drawn from it is parsed, what is damaged is not."""

import pathlib
import random
import sys
import tempfile
import unittest

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy/demo-model"
sys.path.insert(0, str(MODEL))
sys.dont_write_bytecode = True

import generate_data  # noqa: E402
import grammar as grammars  # noqa: E402
from grammar import ALL, ANSWER, HELD_OUT, Grammar  # noqa: E402

TURNS = sorted({rule for rules in generate_data.TURNS.values() for rule in rules})
TEXTS = ["story", "recipe", "code", "sum_line", "fact_line"]


class DemoGrammarTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grammar = Grammar()

    def test_what_is_drawn_is_parsed(self):
        rng = random.Random(1)
        for rule in TURNS + TEXTS + ["short_fact", "plain_system", "short_system"]:
            for i in range(40):
                text, _ = self.grammar.draw(rule, rng, [ALL, HELD_OUT][i % 2], [ALL, HELD_OUT][i % 2])
                good, end = self.grammar.longest(rule, text)
                self.assertTrue(good, f"{rule}: {text!r} goes wrong after {text[:end]!r}")

    def test_every_answer_is_one_of_its_domain(self):
        rng = random.Random(2)
        for rule, answers in (("story_turn", "story"), ("recipe_turn", "recipe"), ("code_turn", "code_answer"),
                              ("sum", "sum_answer"), ("fact", "fact_answer"), ("chat", "chat_answer")):
            for _ in range(60):
                answer = self.grammar.draw(rule, rng)[0].split(ANSWER)[1]
                self.assertTrue(self.grammar.accepts(answers, answer), f"{rule}: {answer!r}")

    def test_a_damaged_text_is_refused(self):
        rng = random.Random(3)
        for rule in TURNS + TEXTS:
            for _ in range(15):
                text, _ = self.grammar.draw(rule, rng)
                at = rng.randrange(len(text))
                for damaged in (text + "x", "x" + text, text[:at] + "\x7f" + text[at + 1:], text + text, ""):
                    self.assertFalse(self.grammar.accepts(rule, damaged), f"{rule}: {damaged!r}")

    def test_an_answer_belongs_to_its_question(self):
        for rule, question, right, wrong in (
                ("fact", "What is the capital of France?", "The capital of France is Paris.", "The capital of Spain is Madrid."),
                ("fact", "What color is snow?", "Snow is white.", "Snow is green."),
                ("sum", "What is 7 + 5?", "7 + 5 = 12.", "7 + 5 = 13."),
                ("code_turn", "Write a Python function that doubles a number.",
                 "```python\ndef double(x):\n    return x * 2\n```", "```python\ndef double(x):\n    return n * 2\n```")):
            self.assertTrue(self.grammar.accepts(rule, question + ANSWER + right))
            self.assertFalse(self.grammar.accepts(rule, question + ANSWER + wrong))

    def test_a_story_keeps_its_hero(self):
        rng = random.Random(4)
        for _ in range(20):
            text, rows = self.grammar.draw("animal_story", rng)
            name = rows["name"]["name"]
            last = text.rindex(name)
            other = "Tom" if name != "Tom" else "Ruby"
            self.assertTrue(self.grammar.accepts("story", text))
            self.assertFalse(self.grammar.accepts("story", text[:last] + other + text[last + len(name):]), text)

    def test_training_text_has_nothing_that_is_held_out(self):
        rng = random.Random(5)
        for _ in range(500):
            for name, row in self.grammar.draw("sum", rng)[1].items():
                if "plus" in name:
                    self.assertFalse(grammars.is_held_out(int(row["x"]), int(row["y"])), row)
                elif "minus" in name:
                    self.assertFalse(grammars.is_held_out(int(row["y"]), int(row["z"])), row)
        for _ in range(200):
            self.assertNotIn("I would like", generate_data.draw(self.grammar, "ask_capital", rng))
            text = generate_data.draw(self.grammar, "hero_and_thing", rng)
            hero, thing = text.split(ANSWER)[0].removesuffix(".").split(" and ")
            rows = {"animal": {"name": hero.split()[-1]}, "thing": {"name": thing.split()[-1]}}
            self.assertFalse(generate_data.is_held_out_story(rows), text)
            text = generate_data.draw(self.grammar, "hero_and_thing", rng, rows=HELD_OUT)
            hero, thing = text.split(ANSWER)[0].removesuffix(".").split(" and ")
            rows = {"animal": {"name": hero.split()[-1]}, "thing": {"name": thing.split()[-1]}}
            self.assertTrue(generate_data.is_held_out_story(rows), text)

    def test_the_same_seed_gives_the_same_text(self):
        written = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                out = pathlib.Path(folder)
                generate_data.write_training(self.grammar, out, "chat", 7, 0.01)
                generate_data.write_held_out(self.grammar, out, 7)
                written.append([path.read_bytes() for path in sorted(out.iterdir())])
        self.assertEqual(written[0], written[1])
        self.assertTrue(all(written[0]))

    def test_an_error_names_file_and_line(self):
        for lines, message in (("a:\n  [b", "bad.txt:2: [ without ]"), ("table t: one two\n  x", "bad.txt:2: 1 cells, 2 columns"),
                               ("a:\n  <b>", "rule a: no rule <b>"), ("a:\n  {t.one}", "rule a: no cell {t.one}"), ("a b", "bad.txt:1")):
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "bad.txt").write_text(lines + "\n")
                with self.assertRaises(ValueError) as raised:
                    Grammar(pathlib.Path(folder))
                self.assertIn(message, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
