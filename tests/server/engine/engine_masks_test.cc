// Constrained requests in the engine whose masks are made on other threads.
#include <bit>
#include <string>
#include <vector>

#include "scheduler/grammar/ebnf.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

class EngineMasksTest : public EngineTest {
 protected:
  EngineMasksTest() { config.batching.mask_work_at_once = 0; }
  std::unique_ptr<InferenceRequest> Constrained(const std::string& id, int32_t max_tokens, const char* ebnf) {
    auto grammar = grammar::ParseEbnf(ebnf);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    std::vector<std::string> tokens(kFar);
    for (size_t byte = 0; byte < 256; ++byte) tokens[byte] = std::string(1, static_cast<char>(byte));
    auto request = Request(id, max_tokens);
    request->constraint = std::make_shared<grammar::Automaton>(
        *std::move(grammar), std::make_shared<const grammar::TokenTrie>(std::move(tokens)), &totals_);
    request->end_ids = {kEnd};
    return request;
  }

  grammar::AutomatonTotals totals_;
};

TEST_F(EngineMasksTest, EveryStepGetsItsMasks) {
  StartReady();
  Reader first, second, free;
  Submit(first, Constrained("first", 30, "root ::= [a-z]*"));
  Submit(second, Constrained("second", 30, "root ::= [a-m]*"));
  Submit(free, "free", 30);
  EXPECT_TRUE(first.End().ok());
  EXPECT_TRUE(free.End().ok());
  EXPECT_EQ(first.text(), "abcdefghijklmnopqrstuvwxyzabcd");
  EXPECT_EQ(free.text(), first.text());
  EXPECT_FALSE(second.End().ok()) << "the scripted worker heeds no mask: n does not fit";
  EXPECT_EQ(second.text().substr(0, 13), "abcdefghijklm");
  bool letters_and_end = false;
  for (const batching::RankMasks& masks : worker->masks()) {
    for (const batching::ItemMask& item : masks.items) {
      int count = 0;
      for (const char byte : item.mask.bits) count += std::popcount(static_cast<uint8_t>(byte));
      letters_and_end = letters_and_end || (count == 26 + 1 && (item.mask.bits[kEnd / 8] >> (kEnd % 8)) & 1);
    }
  }
  EXPECT_TRUE(letters_and_end);
}

TEST_F(EngineMasksTest, AnOutputEndsWhereNothingMayFollow) {
  StartReady();
  Reader reader;
  Submit(reader, Constrained("r", 30, "root ::= \"abc\""));
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(reader.last().reason, batching::FinishReason::kStop);
}

}  // namespace
}  // namespace switchyard::server
