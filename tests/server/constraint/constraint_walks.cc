// For each line of the input, a JSON schema: a line {"error": …} or {"walks": [text, …]} of as many walks as the
// argument says. tests/golden/constraint/make.py has a validator look at them.
#include <cstdlib>
#include <iostream>
#include <string>

#include "nlohmann/json.hpp"
#include "server/constraint/json_schema.h"
#include "tests/server/constraint/walks.h"

int main(int argc, char** argv) {
  using namespace switchyard;
  const int num_walks = argc > 1 ? std::atoi(argv[1]) : 4;
  grammar::AutomatonTotals totals;
  const auto vocabulary = server::WalkVocabulary();
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json input = nlohmann::json::parse(line);
    nlohmann::json out;
    auto grammar = server::GrammarOfSchema(input["schema"].get<std::string>());
    if (!grammar.ok()) {
      out["error"] = std::string(grammar.status().message());
    } else {
      const auto automaton = std::make_shared<grammar::Automaton>(*std::move(grammar), vocabulary, &totals);
      for (int i = 0; i < num_walks; ++i) {
        const auto text = server::Walk(automaton, static_cast<uint64_t>(i));
        out["walks"].push_back(text.ok() ? *text : absl::StrCat("FAILED ", text.status().ToString()));
      }
      for (const auto& text : input["valid"]) out["takes"].push_back(server::Takes(automaton, text.get<std::string>()));
      for (const auto& text : input["invalid"])
        out["refuses"].push_back(!server::Takes(automaton, text.get<std::string>()));
    }
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
}
