// From tokens to text: stop strings that span tokens and characters, and text that is held back or never shown.
#include "server/engine/choice_output.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
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
    request_.stop = std::move(stop);
    return ChoiceOutput(&request_, text_->tokenizer());
  }

  static const text::TextProcessor* text_;
  InferenceRequest request_;
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
  ChoiceOutput output(&request_, nullptr);
  EXPECT_EQ(output.Take(5, 0), "");
  EXPECT_EQ(output.Take(7, 1), "");
  EXPECT_EQ(output.stop_token(), 7);
  EXPECT_EQ(output.Flush(), "");
}

TEST(StopPrefixLength, IsTheLongestSuffixThatMayBecomeAStop) {
  EXPECT_EQ(StopPrefixLength("", {"abc"}), 0u);
  EXPECT_EQ(StopPrefixLength("xab", {"abc"}), 2u);
  EXPECT_EQ(StopPrefixLength("xab", {"b", "bq", "abab"}), 2u);
  EXPECT_EQ(StopPrefixLength("aaaa", {"aaa"}), 2u) << "proper: the whole stop would have been found";
  EXPECT_EQ(StopPrefixLength("xyz", {"q"}), 0u);
}

}  // namespace
}  // namespace switchyard::server
