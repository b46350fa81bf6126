// What masks of tokens cost at a vocabulary of 128000: the first of a place, and those behind it, token by token.
//
//   constraint_masks_bench [ROUNDS]
//
// The vocabulary is made of syllables by a seed, with the shares that large vocabularies have: words with and without a
// space before them, capitals, code with quotes and brackets, numbers, runs of spaces, a third of it beyond ASCII, some
// tokens cut inside of a character.  A figure is CPU time: the median over rounds, each with an automaton of its own.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/grammar/automaton.h"
#include "scheduler/grammar/ebnf.h"

namespace switchyard {
namespace {

constexpr int32_t kVocabulary = 128'000;
constexpr char kChar[] =
    "char ::= [^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] "
    "[0-9a-fA-F])\n";

uint64_t Draw(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::string Word(uint64_t* random, int syllables) {
  std::string word;
  for (int i = 0; i < syllables; ++i) {
    word += "bcdfghklmnprstvw"[Draw(random) % 16];
    word += "aeiouy"[Draw(random) % 6];
    if (Draw(random) % 2 == 0) word += "nrstlmd"[Draw(random) % 7];
  }
  return word;
}

std::string Utf8(uint32_t c) {
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
  return {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
          static_cast<char>(0x80 | (c & 63))};
}

std::string Foreign(uint64_t* random) {
  const bool cyrillic = Draw(random) % 2 == 0;
  std::string word = Draw(random) % 3 == 0 ? " " : "";
  const uint64_t length = cyrillic ? 2 + Draw(random) % 6 : 1 + Draw(random) % 4;
  for (uint64_t i = 0; i < length; ++i)
    word += Utf8(static_cast<uint32_t>(cyrillic ? 0x430 + Draw(random) % 32 : 0x4e00 + Draw(random) % 3000));
  if (Draw(random) % 25 == 0) word.pop_back();
  return word;
}

std::string Code(uint64_t* random) {
  static constexpr const char* kPieces[] = {"\"", "\"]", "\",", "\":", "{\"", "\\n", "\\\"", "(",  ")",
                                            ");", "//",  "->",  "==",  "_",   ".",   "/",    "\n", "\t"};
  std::string code;
  if (Draw(random) % 2 == 0) code += Word(random, 1 + static_cast<int>(Draw(random) % 3));
  code += kPieces[Draw(random) % std::size(kPieces)];
  if (Draw(random) % 2 == 0) code += Word(random, 1);
  return code;
}

std::shared_ptr<const grammar::TokenTrie> Vocabulary() {
  std::vector<std::string> tokens;
  uint64_t random = 1;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (int i = 2; i <= 128; ++i) tokens.emplace_back(static_cast<size_t>(i), ' ');
  for (int i = 0; i < 1000; ++i) tokens.push_back(std::to_string(i));
  while (tokens.size() < kVocabulary) {
    const uint64_t kind = Draw(&random) % 100;
    std::string token = kind < 33   ? Foreign(&random)
                        : kind < 43 ? Code(&random)
                                    : Word(&random, 1 + static_cast<int>(Draw(&random) % 4));
    if (kind >= 43 && kind < 75) token.insert(0, " ");
    if (kind >= 90) token[0] = static_cast<char>(token[0] - 'a' + 'A');
    tokens.push_back(std::move(token));
  }
  return std::make_shared<const grammar::TokenTrie>(std::move(tokens));
}

double CpuMs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The mask where `before` ends, then those behind each character of `after`.
void Measure(const char* name, const std::string& ebnf, const std::string& before, const std::string& after,
             const std::shared_ptr<const grammar::TokenTrie>& vocabulary, int rounds) {
  std::vector<double> first, next, warm;
  for (int round = 0; round < rounds; ++round) {
    grammar::AutomatonTotals totals;
    auto grammar = grammar::ParseEbnf(ebnf);
    if (!grammar.ok()) {
      std::cerr << grammar.status() << "\n";
      std::exit(1);
    }
    grammar::Automaton automaton(*std::move(grammar), vocabulary, &totals);
    int64_t work = int64_t{1} << 40;
    int32_t set = *automaton.Start(&work);
    for (const char c : before) set = *automaton.Next(set, static_cast<uint8_t>(c), &work);
    const auto time = [&] {
      const double begin = CpuMs();
      if (!automaton.MaskOf(set, &work).ok()) std::exit(1);
      return CpuMs() - begin;
    };
    first.push_back(time());
    warm.push_back(time());
    for (const char c : after) {
      set = *automaton.Next(set, static_cast<uint8_t>(c), &work);
      next.push_back(time());
    }
  }
  std::cout << name << ": first " << Median(first) << " ms, each behind it " << Median(next) << " ms, kept "
            << Median(warm) << " ms\n";
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using switchyard::Measure;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const auto vocabulary = switchyard::Vocabulary();
  const std::string chars = switchyard::kChar;
  Measure("string of at most 1000", "root ::= \"\\\"\" char{0,1000} \"\\\"\"\n" + chars, "\"", "some words of",
          vocabulary, rounds);
  Measure("string of at most 20", "root ::= \"\\\"\" char{0,20} \"\\\"\"\n" + chars, "\"", "some words of", vocabulary,
          rounds);
  Measure("any string", "root ::= \"\\\"\" char* \"\\\"\"\n" + chars, "\"", "some", vocabulary, rounds);
  Measure("names of an object", "root ::= \"{\\\"\" (\"name\" | \"number\" | \"street\") \"\\\": \" [0-9]{1,9} \"}\"",
          "{\"", "name", vocabulary, rounds);
}
