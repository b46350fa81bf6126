// From tokens to text: stop strings that span tokens and characters, and text that is held back or never shown.
#include "server/engine/choice_output.h"

#include <algorithm>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/base/split_mix.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

class ChoiceOutputTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { text_ = TinyText().release(); }
  static void TearDownTestSuite() { delete text_; }

  // Feeds bytes as tokens; returns the text shown, with | between calls.
  std::string Feed(ChoiceOutput* output, const std::string& bytes) {
    std::string shown;
    for (unsigned char byte : bytes) shown += output->Take(byte, index_++) + "|";
    return shown;
  }
  ChoiceOutput Make(std::vector<std::string> stop) {
    return ChoiceOutput(&request_, &stops_.emplace_back(std::move(stop)), text_->tokenizer());
  }

  static const text::TextProcessor* text_;
  InferenceRequest request_;
  std::list<StopStrings> stops_;
  int32_t index_ = 0;
};
const text::TextProcessor* ChoiceOutputTest::text_ = nullptr;

TEST_F(ChoiceOutputTest, TextFlowsWhenNothingStopsIt) {
  ChoiceOutput output = Make({});
  EXPECT_EQ(Feed(&output, "hi!"), "h|i|!|");
  EXPECT_EQ(output.Flush(), "");
}

TEST_F(ChoiceOutputTest, CharactersShowWhole) {
  ChoiceOutput output = Make({});
  EXPECT_EQ(Feed(&output, "\xe2\x82\xac!"), "||\xe2\x82\xac|!|");
}

TEST_F(ChoiceOutputTest, AStopStringSpansTokensAndIsNotShown) {
  ChoiceOutput output = Make({"END"});
  EXPECT_EQ(Feed(&output, "aEN"), "a|||");
  EXPECT_FALSE(output.stop_string());
  EXPECT_EQ(Feed(&output, "D"), "|");
  EXPECT_EQ(output.stop_string(), "END");
  EXPECT_EQ(output.Flush(), "");
}

TEST_F(ChoiceOutputTest, AFalseBeginningIsShownLater) {
  ChoiceOutput output = Make({"END"});
  EXPECT_EQ(Feed(&output, "aENx"), "a|||ENx|");
  EXPECT_EQ(Feed(&output, "EEND"), "|E|||");
  EXPECT_EQ(output.stop_string(), "END");
}

TEST_F(ChoiceOutputTest, TheEarliestMatchWinsThenTheFirstOfTheList) {
  ChoiceOutput output = Make({"cd", "bcde", "bc"});
  EXPECT_EQ(Feed(&output, "abc"), "a|||");
  EXPECT_EQ(output.stop_string(), "bc") << "it is whole first";
  ChoiceOutput tie = Make({"aa", "a"});
  EXPECT_EQ(Feed(&tie, "a"), "|");
  EXPECT_EQ(tie.stop_string(), "a");
}

TEST_F(ChoiceOutputTest, AStopStringEndsInsideACharacterOnlyAtItsLastByte) {
  ChoiceOutput output = Make({"\xe2\x82\xac"});
  EXPECT_EQ(Feed(&output, "x\xe2\x82"), "x|||");
  EXPECT_FALSE(output.stop_string());
  EXPECT_EQ(Feed(&output, "\xac"), "|");
  EXPECT_TRUE(output.stop_string());
}

TEST_F(ChoiceOutputTest, FlushShowsWhatWasHeld) {
  ChoiceOutput output = Make({"END"});
  EXPECT_EQ(Feed(&output, "xEN"), "x|||");
  EXPECT_EQ(output.Flush(), "EN");
  EXPECT_EQ(output.Flush(), "");
}

TEST_F(ChoiceOutputTest, FlushOfHalfACharacterShowsReplacement) {
  ChoiceOutput output = Make({});
  EXPECT_EQ(Feed(&output, "x\xe2\x82"), "x|||");
  EXPECT_EQ(output.Flush(), "\xef\xbf\xbd");
}

TEST_F(ChoiceOutputTest, StopStringsCountFromMinTokensOn) {
  request_.sampling.min_tokens = 4;
  ChoiceOutput output = Make({"b"});
  EXPECT_EQ(Feed(&output, "abab"), "a|b|a||");
  EXPECT_EQ(output.stop_string(), "b");
}

TEST_F(ChoiceOutputTest, StopTokensDoNotShow) {
  request_.sampling.stop_ids = {'q', kEnd};
  ChoiceOutput output = Make({});
  EXPECT_EQ(Feed(&output, "aq"), "a||");
  EXPECT_EQ(output.stop_token(), 'q');
  EXPECT_FALSE(output.stop_string());
}

TEST_F(ChoiceOutputTest, SpecialTokensShowOnlyIfAsked) {
  ChoiceOutput hidden = Make({});
  EXPECT_EQ(hidden.Take(kEnd, 0), "");
  request_.skip_special_tokens = false;
  ChoiceOutput shown = Make({});
  EXPECT_EQ(shown.Take(kEnd, 0) + shown.Flush(), "<|end|>");
}

TEST_F(ChoiceOutputTest, WithoutATokenizerThereIsNoText) {
  request_.sampling.stop_ids = {7};
  const StopStrings none(request_.stop);
  ChoiceOutput output(&request_, &none, nullptr);
  EXPECT_EQ(output.Take(5, 0), "");
  EXPECT_EQ(output.Take(7, 1), "");
  EXPECT_EQ(output.stop_token(), 7);
  EXPECT_EQ(output.Flush(), "");
}

// What is to be held, and the end of the first occurrence, as a plain search finds them.
TEST(StopStrings, FindsWhatAPlainSearchFinds) {
  uint64_t random = 5;
  const auto next = [&random](uint64_t below) { return SplitMix(random += kSplitMixStep) % below; };
  for (int round = 0; round < 300; ++round) {
    const auto letters = [&](uint64_t most) {
      std::string text;
      for (uint64_t i = 1 + next(most); i > 0; --i) text += static_cast<char>('a' + next(2));
      return text;
    };
    const StopStrings stops(std::vector<std::string>{letters(6)});
    const std::string& stop = stops.stop(0);
    std::string text;
    size_t matched = 0;
    while (text.size() < 40) {
      const std::string piece = letters(5);
      text += piece;
      const size_t end = stops.Find(0, piece, &matched);
      const size_t at = text.find(stop);
      if (at != std::string::npos) {
        EXPECT_EQ(text.size() - piece.size() + end, at + stop.size()) << stop << " in " << text;
        break;
      }
      EXPECT_EQ(end, std::string::npos) << stop << " in " << text;
      size_t held = std::min(text.size(), stop.size() - 1);
      while (text.substr(text.size() - held) != stop.substr(0, held)) --held;
      EXPECT_EQ(matched, held) << stop << " in " << text;
    }
  }
}

// Each token was compared with all prefixes of all stop strings: here 16 MB of comparisons a token.
TEST_F(ChoiceOutputTest, StopStringsThatAlmostMatchAreHeldAndShown) {
  std::vector<std::string> stops;
  for (size_t i = 0; i < 64; ++i) stops.push_back(std::string(511, 'a') + "b" + std::string(512 - i, 'a'));
  ChoiceOutput output = Make(std::move(stops));
  const auto feed = [&](const std::string& bytes) {
    std::string shown;
    for (const char byte : bytes) shown += output.Take(static_cast<unsigned char>(byte), index_++);
    return shown;
  };
  EXPECT_EQ(feed(std::string(20'000, 'a')), std::string(20'000 - 511, 'a')) << "what may begin a stop is held";
  EXPECT_EQ(feed("bc"), std::string(511, 'a') + "bc");
  EXPECT_EQ(feed(std::string(600, 'a') + "b" + std::string(448, 'a')), std::string(600 - 511, 'a'));
  EXPECT_FALSE(output.stop_string());
  EXPECT_EQ(feed("a"), "");
  EXPECT_EQ(output.stop_string(), std::string(511, 'a') + "b" + std::string(449, 'a')) << "the shortest is whole first";
}

}  // namespace
}  // namespace switchyard::server
