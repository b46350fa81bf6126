#include "server/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/regex_syntax.h"

namespace switchyard::tokenizer {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
// Limit of backtracking steps of one search (one pcre2_match): a base plus a multiple of the text's length, since a run
// of n spaces rightly costs n steps.
constexpr uint32_t kBaseMatchLimit = 1'000'000;
constexpr uint32_t kMatchLimitPerByte = 16;
constexpr uint32_t kMaxMatchLimit = 1u << 31;
constexpr uint32_t kHeapLimitKib = 64 << 10;  // the interpreter's backtracking memory
constexpr size_t kJitStackBytes = 8 << 20;    // grows on demand up to this
constexpr size_t kJitStackStartBytes = 32 << 10;

template <auto Free>
struct Freer {
  template <class Object>
  void operator()(Object* object) const {
    Free(object);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

absl::Status SearchError(int code, size_t start) {
  const std::string message = absl::StrCat("regex: ", ErrorText(code), " in the search from byte ", start);
  if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_DEPTHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
      code == PCRE2_ERROR_JIT_STACKLIMIT) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

// Returns the thread's JIT stack, made once per thread since it reserves memory.
pcre2_jit_stack* ThreadJitStack(void*) {
  thread_local const JitStack stack(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackBytes, nullptr));
  return stack.get();
}

}  // namespace

absl::StatusOr<Regex> Regex::Compile(absl::string_view oniguruma) {
  if (oniguruma.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex: ", oniguruma.size(), " bytes long, the limit is ", kMaxPatternBytes));
  }
  ASSIGN_OR_RETURN(const std::string pattern, OnigurumaToPcre2(oniguruma));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::shared_ptr<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()),
      pcre2_code_free);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex: ", ErrorText(error), " at offset ", offset, " (as rewritten for PCRE2)"));
  }
  // Without JIT (a hardened kernel may refuse executable memory) PCRE2's interpreter is used, which is slower.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

absl::Status Regex::ForEachMatch(absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) const {
  const MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_jit_stack_assign(context.get(), ThreadJitStack, nullptr);
  const uint64_t limit = kBaseMatchLimit + uint64_t{kMatchLimitPerByte} * text.size();
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<uint64_t>(limit, kMaxMatchLimit)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const MatchData match(pcre2_match_data_create(1, nullptr));
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  size_t start = 0;
  std::optional<size_t> last_end;
  while (start <= text.size()) {
    const int found = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return SearchError(found, start);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
    // \K in a lookaround can give such matches; no real tokenizer has such a pattern.
    if (span[0] > span[1] || span[0] < start) return absl::InvalidArgumentError("regex: a match ends before it begins");
    if (span[0] == span[1] && last_end == span[1]) {
      start += start < text.size() ? Utf8Length(text[start]) : 1;
      continue;
    }
    start = span[1];
    last_end = span[1];
    RETURN_IF_ERROR(visit({span[0], span[1]}));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::tokenizer
