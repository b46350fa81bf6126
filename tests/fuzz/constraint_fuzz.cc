// A user's constraint and, behind a NUL, the way through it.  The first byte modulo 6 is its kind (any object, a JSON
// schema, a regex, lines to choose from, an EBNF grammar, calls of a function with that schema), the second has options
// and the third is the format of calls.  At each place tokens that may come are those that fit byte by byte, however
// they are asked for; one of them can be taken or the text is whole; what is refused changes nothing; whole texts are
// JSON, a choice, or calls for the reader of outputs.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/grammar/matcher.h"
#include "server/constraint/call_grammar.h"
#include "server/constraint/constraint_compiler.h"
#include "server/text/output/output_parser.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/constraint/walks.h"

namespace switchyard::fuzz {
namespace {

using grammar::MaskPtr;
using grammar::Matcher;
using Json = nlohmann::ordered_json;
using Kind = server::ConstraintSpec::Kind;

constexpr int32_t kVocab = 800;       // tokens of the demo model: all bytes, and texts of several
constexpr size_t kMostBytes = 2048;   // of a constraint
constexpr size_t kMostSteps = 100;    // of a way
constexpr uint8_t kNumbers = 8;       // bytes of a way below are numbers of tokens, as are those that do not fit
constexpr int64_t kWork = 1'000'000;  // for masks, and as much to try all tokens: a part of what a server allows
// With so few open calls a constraint of kMostBytes stays below Automaton::kMaxDepth, from where on nothing fits.
constexpr size_t kFewOpenCalls = 100;
enum Option : uint8_t { kThinks = 1, kMayThink = 2, kStrict = 4, kMany = 8, kHeld = 16, kSpecialEnd = 32 };

const tokenizer::Tokenizer& Model() {
  static const auto* const tokenizer =
      new auto(tokenizer::Tokenizer::FromFile("deploy/demo-model/tokenizer.json").value());  // never destroyed
  return **tokenizer;
}

int32_t TokenOf(char byte) {
  static const auto* const tokens = [] {
    auto* const made = new std::array<int32_t, 256>();
    for (int32_t id = 0; id < kVocab; ++id) {
      const std::string bytes = Model().PieceOf(id).bytes;
      if (bytes.size() == 1) (*made)[static_cast<uint8_t>(bytes[0])] = id;
    }
    return made;
  }();
  return (*tokens)[static_cast<uint8_t>(byte)];
}

// The request's tools: f with the schema, if it is an object, and g.
Json ToolsOf(absl::string_view schema) {
  Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function":
      {"name": "g", "parameters": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}}}])");
  Json& parameters = tools[0]["function"]["parameters"];
  if (ReadJson(schema, LenientJson(64), &parameters) || !parameters.is_object()) parameters = Json::object();
  return tools;
}

// As an API of chats makes it (server/http/apis/chat_request.cc).
server::ConstraintSpec CallsOf(const Json& tools, const text::ToolFormat& format, uint8_t options) {
  const auto marked = [](absl::string_view text) { return server::MarkSpecialTokens(Model(), text); };
  server::ConstraintSpec spec = {
      .kind = Kind::kCalls, .markup = server::MarkupOf(format, marked), .end = marked(format.force_end)};
  if ((options & kMany) != 0) spec.between = marked(format.force_between);
  for (const Json& tool : tools) {
    const std::string name = tool["function"]["name"];
    spec.calls.push_back({.name = name,
                          .before = absl::StrCat(name, marked(format.force_behind_name)),
                          .parameters = tool["function"]["parameters"].dump(),
                          .behind = marked(format.force_behind_arguments),
                          .is_strict = (options & kStrict) != 0});
  }
  if ((options & kHeld) == 0 || format.openers.empty() || format.bare_objects) return spec;
  const absl::string_view opener = format.openers[0].marker;
  spec.opener = marked(opener);
  spec.behind_opener = marked(absl::StripPrefix(format.force_before_name, opener));
  for (const text::CallOpener& other : format.openers) spec.not_in_text.emplace_back(other.marker);
  return spec;
}

server::ConstraintSpec SpecOf(Kind kind, const std::string& text, const text::ToolFormat& format, uint8_t options) {
  server::ConstraintSpec spec = {.kind = kind, .text = text};
  if (kind == Kind::kCalls) spec = CallsOf(ToolsOf(text), format, options);
  if (kind == Kind::kChoice) spec.choices = absl::StrSplit(std::exchange(spec.text, ""), '\n');
  if ((options & kThinks) == 0) return spec;
  spec.reasoning.may_be = (options & kMayThink) != 0;
  if (spec.reasoning.may_be) spec.reasoning.open = "<think>";
  spec.reasoning.close = (options & kSpecialEnd) != 0 ? server::MarkSpecialTokens(Model(), "<|im_end|>") : "</think>";
  return spec;
}

void CheckCalls(const Json& tools, const text::ToolFormat& format, const std::string& written) {
  text::OutputParser parser({.tools = &format}, {.tools = text::ToolTypes(tools)});
  std::vector<text::OutputEvent> events;
  parser.Push(absl::StrCat(format.force_before_name, Utf8(written)), &events);
  parser.Finish(&events);
  int num_calls = 0;
  for (const text::OutputEvent& event : events) {
    if (event.kind != text::OutputEvent::Kind::kToolEnd) continue;
    SY_CHECK(event.complete);
    ++num_calls;
  }
  SY_CHECK(num_calls > 0);
}

// What is whole, without what a model thinks first or writes around its calls.
void CheckWhole(const server::ConstraintSpec& spec, const Json& tools, const text::ToolFormat& format,
                const std::string& written) {
  if (!spec.reasoning.close.empty() || !spec.opener.empty()) return;
  if (spec.kind == Kind::kJsonObject) SY_CHECK(Json::parse(written, nullptr, false).is_object());
  if (spec.kind == Kind::kJsonSchema) SY_CHECK(Json::accept(written));
  if (spec.kind == Kind::kChoice)
    SY_CHECK(std::find(spec.choices.begin(), spec.choices.end(), written) != spec.choices.end());
  if (spec.kind == Kind::kCalls && !format.channels) CheckCalls(tools, format, written);
}

// (What takes too long ends a way, and is no mistake.)
void CheckSame(const grammar::TokenMask& mask, const absl::StatusOr<MaskPtr>& again) {
  if (!again.ok()) return SY_CHECK(absl::IsResourceExhausted(again.status()));
  SY_CHECK(*again != nullptr && **again == mask);
}

// Whether the bytes may follow; nullopt: there is no work left to say.
std::optional<bool> Fits(grammar::Automaton* automaton, int32_t set, absl::string_view bytes, int64_t* work) {
  for (const char byte : bytes) {
    const auto next = automaton->Next(set, static_cast<uint8_t>(byte), work);
    if (!next.ok()) return std::nullopt;
    set = *next;
  }
  return !bytes.empty() && set != grammar::Automaton::kDead;
}

// One way through a constraint, by tokens and, beside it, byte by byte.
class Way {
 public:
  explicit Way(std::shared_ptr<grammar::Automaton> automaton)
      : trie_(automaton->trie()), matcher_(automaton), by_bytes_(std::move(automaton)) {}

  const std::string& written() const { return written_; }
  bool accepts() const { return matcher_.accepts(); }

  // Null: finding it takes too long.
  MaskPtr Mask() {
    const auto any = matcher_.AnyFits();
    const auto mask = matcher_.NextMaskWithin(&mask_work_);
    for (const absl::Status& status : {any.status(), mask.status()})
      SY_CHECK(status.ok() || absl::IsResourceExhausted(status));
    if (!any.ok() || !mask.ok() || *mask == nullptr) return nullptr;
    SY_CHECK_EQ(*any, !(*mask)->empty());
    SY_CHECK(matcher_.may_go_on() || (*mask)->empty());
    CheckSame(**mask, matcher_.NextMask());
    CheckSame(**mask, Matcher(matcher_).NextMask());
    grammar::MaskTask task = matcher_.TaskOfMask();
    if (task.twin == nullptr) return nullptr;
    task.work = std::min(task.work, kWork);
    CheckSame(**mask, task.Run());
    size_t open_calls = 0;
    for (const auto& way : task.place.ways) open_calls = std::max(open_calls, way.waiting.size());
    if (open_calls < kFewOpenCalls) SY_CHECK(!(*mask)->empty() || accepts());
    const int32_t here = task.twin->Restore(task.place);
    for (int32_t token = 0; token < kVocab && try_work_ > 0; ++token) {
      const auto fits = Fits(task.twin, here, trie_.BytesOf(token), &try_work_);
      if (fits.has_value()) SY_CHECK_EQ(*fits, server::Allows(**mask, token));
    }
    return *mask;
  }

  // False: it takes too long.
  bool Take(int32_t token, const grammar::TokenMask& mask) {
    Matcher copy = matcher_;
    const absl::Status status = matcher_.Accept(token);
    if (absl::IsResourceExhausted(status)) return false;
    SY_CHECK_EQ(status.ok(), server::Allows(mask, token));
    if (!status.ok()) {
      for (const absl::Status& refusal : {status, matcher_.Accept(token), copy.Accept(token)})
        SY_CHECK(absl::IsInvalidArgument(refusal));
      CheckSame(mask, matcher_.NextMask());
      return true;
    }
    // (Asked at once: the call of another matcher may make the automaton forget this one's place.)
    const bool accepts = matcher_.accepts(), may_go_on = matcher_.may_go_on();
    if (!Follow(token, &copy)) return false;
    SY_CHECK(copy.accepts() == accepts && copy.may_go_on() == may_go_on);
    const absl::string_view bytes = trie_.BytesOf(token);
    absl::StrAppend(&written_, bytes);
    if (bytes[0] == server::kSpecialMark) {
      by_bytes_ = copy;
      return true;
    }
    for (const char byte : bytes) {
      if (!Follow(TokenOf(byte), &by_bytes_)) return false;
    }
    SY_CHECK(by_bytes_.accepts() == accepts && by_bytes_.may_go_on() == may_go_on);
    return true;
  }

 private:
  static bool Follow(int32_t token, Matcher* matcher) {
    const absl::Status status = matcher->Accept(token);
    SY_CHECK(status.ok() || absl::IsResourceExhausted(status));
    return status.ok();
  }

  const grammar::TokenTrie& trie_;
  Matcher matcher_, by_bytes_;
  int64_t mask_work_ = kWork, try_work_ = kWork;
  std::string written_;
};

}  // namespace

void Fuzz(absl::string_view input) {
  if (input.size() < 3) return;
  const auto byte = [input](size_t i) { return static_cast<uint8_t>(input[i]); };
  const auto formats = text::ToolFormats();
  const text::ToolFormat& format = formats[byte(2) % formats.size()];
  const auto [text, rest] = CutAtNul(input.substr(3));
  const std::string constraint = Utf8(text.substr(0, kMostBytes)), wanted = Utf8(rest.substr(0, kMostSteps));
  const server::ConstraintSpec spec = SpecOf(static_cast<Kind>(byte(0) % 6), constraint, format, byte(1));
  server::ConstraintCompiler compiler(&Model());
  const auto made = compiler.Compile(spec, kVocab), again = compiler.Compile(spec, kVocab);
  SY_CHECK(made.status().code() == again.status().code());
  if (!made.ok()) return SY_CHECK(absl::IsInvalidArgument(made.status()));
  SY_CHECK(*made == *again);
  Way way(*made);
  for (size_t i = 0;; ++i) {
    const MaskPtr mask = way.Mask();
    if (mask == nullptr) return;
    if (way.accepts()) CheckWhole(spec, ToolsOf(constraint), format, way.written());
    if (mask->empty() || i == std::min(wanted.size(), kMostSteps)) return;
    const auto number = static_cast<uint8_t>(wanted[i]);
    int32_t token = TokenOf(wanted[i]);
    const bool fits = server::Allows(*mask, token);
    if (!fits && !way.Take(token, *mask)) return;
    if (!fits || number < kNumbers) {
      std::vector<int32_t> allowed;
      for (token = 0; token < kVocab; ++token) {
        if (server::Allows(*mask, token)) allowed.push_back(token);
      }
      token = allowed[number % allowed.size()];
    }
    if (!way.Take(token, *mask)) return;
  }
}

}  // namespace switchyard::fuzz
