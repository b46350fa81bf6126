// Regexes and EBNF grammars, what they take and refuse; masks against a trial of every token; bounds of work and
// memory.
#include "scheduler/grammar/grammar.h"

#include <time.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/grammar/ebnf.h"
#include "scheduler/grammar/regex.h"
#include "tests/server/constraint/walks.h"

namespace switchyard::grammar {
namespace {

using server::Allows;
using server::Takes;
using testing::HasSubstr;

AutomatonTotals& Totals() {
  static AutomatonTotals totals;
  return totals;
}

absl::StatusOr<std::shared_ptr<Automaton>> OfRegex(absl::string_view regex) {
  auto parsed = ParseRegex(regex, RegexMatch::kWhole);
  if (!parsed.ok()) return parsed.status();
  auto grammar = std::make_unique<Grammar>();
  grammar->Define(grammar->AddRule("regex"),
                  [&](StateId from) { return Emit(*parsed, Spelling::kPlain, from, grammar.get()); });
  if (const absl::Status status = grammar->Finish(); !status.ok()) return status;
  return std::make_shared<Automaton>(std::move(grammar), server::WalkVocabulary(), &Totals());
}

absl::StatusOr<std::shared_ptr<Automaton>> OfEbnf(absl::string_view text) {
  auto grammar = ParseEbnf(text);
  if (!grammar.ok()) return grammar.status();
  return std::make_shared<Automaton>(*std::move(grammar), server::WalkVocabulary(), &Totals());
}

TEST(Regex, TakesWhatItMatches) {
  const struct {
    const char* regex;
    std::vector<std::string> yes, no;
  } kCases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aabbc"}, {"a", "c", "abcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"x{3}", {"xxx"}, {"xx", "xxxx"}},
      {"x{2,}", {"xx", "xxxxx"}, {"x"}},
      {"(?:a|(?<n>b))*?c", {"c", "abac"}, {"ab"}},
      {"[a-c0-9_-]+", {"a-9_"}, {"d", ""}},
      {"[^a-z]", {"A", "\xc3\xa9", "\n", "\xf0\x9f\x98\x80"}, {"a", "AB", "\xc3", "\xff"}},
      {"\\d\\D\\w\\W\\s\\S", {"1aa- x"}, {"aaa- x", "1aa-xx"}},
      {"^ab$", {"ab"}, {"a"}},
      {"^(a|b)$", {"a", "b"}, {"ab"}},
      {"(^a$|^b$)", {"a", "b"}, {"ab"}},
      {"\\x41\\u00e9\\u{1F600}\\.\\/", {"A\xc3\xa9\xf0\x9f\x98\x80./"}, {"A"}},
      {"[\xc3\xa0-\xc3\xbf]{2}", {"\xc3\xa9\xc3\xa0"}, {"\xc3\xa9", "ab"}},
      {".", {"a", "\xe4\xb8\xad"}, {"\n", ""}},
      {"a{x}", {"a{x}"}, {"a"}},
      {"a{,}b{}c{1,2,3}d{1", {"a{,}b{}c{1,2,3}d{1"}, {"abcd"}},
      {"a{,2}b{02}", {"bb", "aabb"}, {"aaabb", "ab"}},
      {"(a{0,3}){0,3}b", {"b", "aaaaaaaaab"}, {"aaaaaaaaaab"}},
  };
  for (const auto& c : kCases) {
    const auto automaton = OfRegex(c.regex);
    ASSERT_TRUE(automaton.ok()) << c.regex << " " << automaton.status();
    for (const std::string& text : c.yes) EXPECT_TRUE(Takes(*automaton, text)) << c.regex << " and " << text;
    for (const std::string& text : c.no) EXPECT_FALSE(Takes(*automaton, text)) << c.regex << " and " << text;
  }
}

TEST(Regex, RefusesByName) {
  const struct {
    const char* regex;
    const char* why;
  } kCases[] = {
      {"(?=a)", "look-around"}, {"(a)\\1", "back references"}, {"a\\b", "\\b is not"},
      {"a^b", "^ elsewhere"},   {"a$b", "$ elsewhere"},        {"(a", "without )"},
      {"a)", "unmatched )"},    {"[a", "without ]"},           {"*a", "something to repeat"},
      {"a++", "possessive"},    {"a{3,2}", "repetition"},      {"a{99999}", "repetition"},
      {"\\p{L}", "\\p is not"}, {"[z-a]", "out of order"},     {"\\ud800", "surrogate"},
      {"\xff", "not UTF-8"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(std::string(ParseRegex(c.regex, RegexMatch::kWhole).status().message()), HasSubstr(c.why)) << c.regex;
  }
}

TEST(Ebnf, TakesItsTexts) {
  const auto automaton = OfEbnf(R"ebnf(
root  ::= "yes" | list   # or a list
list  ::= item ("," item)*
item  ::= [a-z]+ | "\"" [^"\n]{0,3} "\"" | "(" list
  ")" | '\x41\u00e9'
)ebnf");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  for (const char* text : {"yes", "a,b", "\"\",\"a,c\"", "(a,(b)),c", "A\xc3\xa9"})
    EXPECT_TRUE(Takes(*automaton, text)) << text;
  for (const char* text : {"", "a,", "(a", "\"abcd\"", "A"}) EXPECT_FALSE(Takes(*automaton, text)) << text;
}

TEST(Ebnf, RefusesByLine) {
  const struct {
    const char* text;
    const char* why;
  } kCases[] = {
      {"root ::= a", "line 1: rule \"a\" is not defined"},
      {"root ::= zz\n  yy\n  xx ww", "line 1: rule \"zz\" is not defined"},
      {"root ::= a b\na ::=\n c\nb ::= \"x\" d", "line 3: rule \"c\" is not defined"},
      {"root ::= root \"a\" | \"b\"", "left recursion"},
      {"root ::= a\na ::= b \"x\"\nb ::= \"\" a | \"y\"", "left recursion"},
      {"root ::= \"a\" root", "nothing matches"},
      {"x ::= \"a\"", "\"root\" is not defined"},
      {"root ::= \"a", "closing mark"},
      {"root ::= (\"a\"", "a ( without )"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"hello", "must begin with"},
      {"root ::= \"a\"{3,1}", "wanted"},
      {"root ::= [a", "without ]"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(std::string(OfEbnf(c.text).status().message()), HasSubstr(c.why)) << c.text;
  }
}

// A mask has just the tokens that Accept takes.
TEST(Mask, IsWhatATrialOfEveryTokenSays) {
  for (const char* regex : {"\\{\"a\": (10|true)*\\}", "[^\"]*\"", "\"a+\"(: )?\\{?\\}?", "(\xe4\xb8\xad|\xc3\xa9)+"}) {
    const auto automaton = OfRegex(regex);
    ASSERT_TRUE(automaton.ok()) << automaton.status();
    uint64_t random = 7;
    Matcher matcher(*automaton);
    for (int step = 0; step < 12; ++step) {
      const auto mask = matcher.NextMask();
      ASSERT_TRUE(mask.ok()) << mask.status();
      std::vector<int32_t> fits;
      for (int32_t t = 0; t < (*automaton)->trie().vocab_size(); ++t) {
        Matcher trial = matcher;
        const bool takes = trial.Accept(t).ok();
        EXPECT_EQ(Allows(**mask, t), takes) << regex << " step " << step << " token " << t;
        if (takes) fits.push_back(t);
      }
      if (fits.empty()) break;
      ASSERT_TRUE(matcher.Accept(fits[server::NextRandom(&random) % fits.size()]).ok());
    }
  }
}

// Tokens of one to eight characters, some cut inside of the last, as vocabularies have them.
std::shared_ptr<const TokenTrie> ManyTokens() {
  static constexpr const char* kChars[] = {
      "a",   "b", "c", " ", "0", "\"", "\\", "\n", "\xc3\xa9", "\xe4\xb8\xad", "\xed\x9f\xbf", "\xf0\x9f\x98\x80",
      "\xff"};
  std::vector<std::string> tokens;
  uint64_t random = 3;
  for (int i = 0; i < 6000; ++i) {
    std::string token;
    const size_t length = 1 + server::NextRandom(&random) % 8, choices = i % 3 == 0 ? std::size(kChars) : 5;
    while (token.size() < length) token += kChars[server::NextRandom(&random) % choices];
    if (i % 7 == 0 && token.size() > 1) token.pop_back();
    if (i % 11 == 0) token.insert(0, 1, '\xad');
    tokens.push_back(std::move(token));
  }
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

// What is taken as a whole, behind a prefix, is what a trial of each token says: in strings, unbounded, near the end of
// a bounded one, and where few characters lead on.
TEST(Mask, TakesManyTokensAsAWhole) {
  const auto vocabulary = ManyTokens();
  for (const char* regex : {"[^\"\\\\]*\"", "[^\"]{0,40}\"", "[^\"]{3,9}", "[a-c ]{0,12}x?", "(ab|[^a])*",
                            "([a-z]|\xc3\xa9){0,30}", "[\\u0000-\\u07ff]*", "[^\\u4e2d]{0,20}"}) {
    auto parsed = ParseRegex(regex, RegexMatch::kWhole);
    ASSERT_TRUE(parsed.ok()) << regex << parsed.status();
    auto grammar = std::make_unique<Grammar>();
    grammar->Define(grammar->AddRule("regex"),
                    [&](StateId from) { return Emit(*parsed, Spelling::kPlain, from, grammar.get()); });
    ASSERT_TRUE(grammar->Finish().ok());
    const auto automaton = std::make_shared<Automaton>(std::move(grammar), vocabulary, &Totals());
    uint64_t random = 11;
    Matcher matcher(automaton);
    for (int step = 0; step < 6; ++step) {
      int64_t allowance = 1;
      if (step == 0) EXPECT_EQ(*matcher.NextMaskWithin(&allowance), nullptr) << "too much for one unit of work";
      MaskTask task = matcher.TaskOfMask();
      const absl::StatusOr<MaskPtr> elsewhere = task.Run();
      const auto mask = matcher.NextMask();
      ASSERT_TRUE(mask.ok() && elsewhere.ok()) << mask.status() << elsewhere.status();
      EXPECT_EQ(**elsewhere, **mask);
      std::vector<int32_t> fits;
      for (int32_t t = 0; t < vocabulary->vocab_size(); ++t) {
        Matcher trial = matcher;
        const bool takes = trial.Accept(t).ok();
        ASSERT_EQ(Allows(**mask, t), takes) << regex << " step " << step << " token " << vocabulary->BytesOf(t);
        if (takes) fits.push_back(t);
      }
      EXPECT_EQ(*Matcher(matcher).AnyFits(), !fits.empty());
      if (fits.empty()) break;
      ASSERT_TRUE(matcher.Accept(fits[server::NextRandom(&random) % fits.size()]).ok());
    }
  }
}

TEST(Trie, KeepsEqualTokensAndLeavesOutEmptyOnes) {
  const TokenTrie trie(std::vector<std::string>(300, "ab"));
  int tokens = 0;
  for (const TokenTrie::Node& node : trie.nodes()) tokens += node.num_tokens;
  EXPECT_EQ(tokens, 300);
  EXPECT_TRUE(TokenTrie({"", ""}).nodes().empty());
  EXPECT_EQ(trie.BytesOf(-1), "");
  EXPECT_EQ(trie.BytesOf(300), "");
}

TEST(Bounds, AMatcherFindsItsPlaceAgainWhenAllIsForgotten) {
  const auto automaton = OfRegex("(a|b){1,15000}c");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  Matcher first(*automaton);
  ASSERT_TRUE(first.Accept('a').ok());
  const TokenMask before = **first.NextMask();
  const uint64_t generation = (*automaton)->generation();
  Totals().bytes += Automaton::kMaxTotalBytes;  // as if others held it all: then a small one may stay, a large one not
  Matcher second(*automaton);
  for (int i = 0; i < 15000; ++i) {
    ASSERT_TRUE(second.Accept('b').ok());
    ASSERT_TRUE(second.NextMask().ok());
  }
  EXPECT_TRUE(second.Accept('c').ok());
  EXPECT_TRUE(second.accepts());
  EXPECT_GT((*automaton)->generation(), generation);
  EXPECT_EQ(**first.NextMask(), before);
  EXPECT_TRUE(first.Accept('c').ok());
  Totals().bytes -= Automaton::kMaxTotalBytes;
}

// Seconds of the processor that this thread has used, which do not grow while it waits for a core.
double CpuSeconds() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// What held a thread of another engine for half a minute: it ends at once (milliseconds each), with an error or with an
// answer.
TEST(Bounds, HostileRegexesEnd) {
  for (const char* regex :
       {"((a{0,100}){0,100}){0,100}", "((a*)*)*b", "(a|a|a|a){0,5000}", "(((((a?){9}){9}){9}){9}){9}",
        "(.{0,1000}){0,1000}x", "([a-z]{1,300}[a-z]{1,300}){1,300}"}) {
    const double before = CpuSeconds();
    const auto automaton = OfRegex(regex);
    if (automaton.ok()) {
      Matcher matcher(*automaton);
      for (int i = 0; i < 50; ++i) {
        if (!matcher.NextMask().ok() || !matcher.Accept('a').ok()) break;
      }
    }
    EXPECT_LT(CpuSeconds() - before, 10) << regex;
  }
  EXPECT_LT(Totals().bytes.load(), int64_t{100} << 20);
}

// EBNF of rules that each call the next before an x, or go on with `second`, where $ is the next one's number: so many
// calls lead to the last one.
std::string Doubled(int rules, const char* second, const char* last) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < rules; ++i)
    absl::StrAppend(&text, "r", i, " ::= r", i + 1, " \"x\" | ",
                    absl::StrReplaceAll(second, {{"$", absl::StrCat(i + 1)}}), "\n");
  return absl::StrCat(text, "r", rules, " ::= ", last, "\n");
}

// A set that is too large was found first, with all the work that there is, and what was made for it stayed.
TEST(Bounds, ASetThatIsTooLargeEndsAtItsLimitAndLeavesNothing) {
  const auto regex = OfRegex("((((a?){100}){100}){100}){100}");
  const auto letters = OfEbnf(Doubled(24, "r$ \"y\"", "\"z\""));
  const auto empty = OfEbnf(Doubled(24, "r$ \"\" r$ \"\" | \"\"", "\"\""));
  std::string same;
  for (int i = 0; i < 5000; ++i) same += "a|";
  const auto wide = OfRegex(absl::StrCat("(", same, "){0,40000}"));
  for (const auto* automaton : {&regex, &letters, &empty, &wide}) {
    ASSERT_TRUE(automaton->ok()) << automaton->status();
    int64_t work = Matcher::kFirstWork;
    EXPECT_THAT(std::string((**automaton)->Start(&work).status().message()), HasSubstr("too ambiguous: more than "));
    EXPECT_GT(work, Matcher::kFirstWork - 2'000'000);
    const int64_t held = Totals().bytes.load();
    EXPECT_FALSE(Matcher(**automaton).AnyFits().ok());
    EXPECT_LT(Totals().bytes.load(), held);
    const int64_t least = Totals().bytes.load();
    EXPECT_FALSE(Matcher(**automaton).NextMask().ok());
    EXPECT_FALSE(Matcher(**automaton).TaskOfMask().Run().ok());
    EXPECT_EQ(Totals().bytes.load(), least);
  }
  EXPECT_TRUE(Takes(*OfEbnf(Doubled(11, "r$ \"y\"", "\"z\"")), "zxyxyxyxyxyx"));
}

// Equal texts each had an edge, which no limit counts.
TEST(Bounds, EqualTextsOfAChoiceAreOne) {
  Grammar grammar;
  grammar.Define(grammar.AddRule("choice"),
                 [&](StateId from) { return grammar.OneOfTexts(from, std::vector<std::string>(1000, "ab")); });
  ASSERT_TRUE(grammar.Finish().ok());
  size_t edges = 0;
  for (StateId s = 0; s < grammar.num_states(); ++s) edges += grammar.state(s).empties.size();
  EXPECT_LT(edges, 10u);
}

// Reading 16 times as much takes some 16 times as long; 256 times where each part looks at all of the text, or at all
// that was read.
void ExpectToReadOnce(size_t bytes, absl::FunctionRef<std::string(size_t bytes)> make,
                      absl::FunctionRef<void(const std::string& text)> read) {
  const auto seconds = [&](const std::string& text) {
    const double before = CpuSeconds();
    read(text);
    return CpuSeconds() - before;
  };
  const double small = seconds(make(bytes)), large = seconds(make(16 * bytes));
  EXPECT_LT(large, 100 * small) << make(20);
}

// At each letter the rest of the text was searched for a }.
TEST(Bounds, ALongRegexIsReadOnce) {
  const auto read = [](const std::string& regex) { EXPECT_TRUE(ParseRegex(regex, RegexMatch::kWhole).ok()); };
  for (const char* part : {"a", "{", "{1"}) {
    const auto repeated = [&](size_t bytes) {
      std::string regex;
      while (regex.size() < bytes) regex += part;
      return regex;
    };
    ExpectToReadOnce(32 << 10, repeated, read);
  }
  // Each letter was put before all that were there.
  const auto falling = [](size_t bytes) {
    std::string regex = "[";
    for (uint32_t letter = kLastChar; regex.size() < bytes; letter -= 2) {
      uint8_t utf8[4];
      const int length = EncodeUtf8(letter, utf8);
      for (int i = 0; i < length; ++i) regex += static_cast<char>(utf8[i]);
    }
    return regex + "]";
  };
  ExpectToReadOnce(64 << 10, falling, read);
}

// At each new name the lines before it were counted.
TEST(Bounds, ALongGrammarIsReadOnce) {
  const auto names = [](size_t bytes) {
    std::string text = "root ::= ";
    for (int i = 0; text.size() < bytes; ++i) absl::StrAppend(&text, "a", i, "\n");
    return text;
  };
  ExpectToReadOnce(16 << 10, names, [](const std::string& text) {
    EXPECT_THAT(std::string(ParseEbnf(text).status().message()), HasSubstr("line 1: rule \"a0\" is not defined"));
  });
}

TEST(Bounds, AGrammarThatIsTooLargeIsRefused) {
  EXPECT_THAT(std::string(OfRegex("(abcdefghij{9000}){9000}(k{50000}l{50000}){2}").status().message()),
              HasSubstr("needs more than 100000 states"));
  EXPECT_THAT(std::string(OfEbnf(absl::StrCat("root ::= ", std::string(500, '('), "\"a\"")).status().message()),
              HasSubstr("nested more than"));
}

TEST(Bounds, DepthEndsWithoutADeadEnd) {
  const auto automaton = OfEbnf("root ::= \"[\" root? \"]\"");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  Matcher matcher(*automaton);
  int depth = 0;
  while (depth < 2000 && matcher.Accept('[').ok()) ++depth;
  EXPECT_LT(depth, Automaton::kMaxDepth + 2);
  EXPECT_GT(depth, 100);
  ASSERT_TRUE(Allows(**matcher.NextMask(), ']'));
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(matcher.Accept(']').ok());
  EXPECT_TRUE(matcher.accepts());
  EXPECT_FALSE(matcher.may_go_on());
}

}  // namespace
}  // namespace switchyard::grammar
