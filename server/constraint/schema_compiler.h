// What turns schemas into rules; used by json_schema.cc and call_grammar.cc alone.  Thread-compatible.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "scheduler/grammar/expression.h"
#include "server/constraint/constraint_spec.h"
#include "server/constraint/json_rules.h"
#include "server/constraint/name_patterns.h"
#include "server/constraint/schema_merge.h"
#include "server/text/output/calls/tool_types.h"

namespace switchyard::server {

// Within the limits of json_schema.h.  InvalidArgument: "is no schema", and why.
absl::StatusOr<SchemaJson> ParseSchema(absl::string_view text);

// Schemas wait in a list, not on the stack, so that none is too deep.
class SchemaCompiler {
 public:
  explicit SchemaCompiler(const SchemaJson* root) : root_(root), rules_(&grammar_) {}

  absl::StatusOr<std::unique_ptr<const grammar::Grammar>> Compile();
  // The root is an array of schemas, `paths` names each for errors; `define_root` makes the grammar's root of their
  // rules, from a state to the one that it returns.
  using DefineRoot = absl::FunctionRef<grammar::StateId(
      const std::vector<grammar::RuleId>& parts, grammar::StateId from, JsonRules* rules, grammar::Grammar* out)>;
  absl::StatusOr<std::unique_ptr<const grammar::Grammar>> CompileParts(const std::vector<std::string>& paths,
                                                                       DefineRoot define_root);
  // Likewise, of arguments that are written in `markup`, which is borrowed: each rule has the parameters of an object.
  // Narrower than json_schema.h says: there is no choice at the root, no pattern of names, no other parameters where
  // the schema has some, and < is in no text but one that is free.
  // `given`: the schemas before their references were moved, by which readers know the types of parameters.
  absl::StatusOr<std::unique_ptr<const grammar::Grammar>> CompileParameters(const std::vector<std::string>& paths,
                                                                            const std::vector<SchemaJson>& given,
                                                                            const ArgumentMarkup& markup,
                                                                            DefineRoot define_root);

 private:
  static constexpr int32_t kMaxRules = 20'000;
  static constexpr int64_t kMaxCopiedBytes = 8 << 20;
  static constexpr int64_t kMaxMergedBytes = 16 << 20;
  static constexpr int kMaxJoins = 200;  // of one schema
  static constexpr size_t kMaxBranches = 256;
  static constexpr int64_t kMaxComparisons = 20'000'000;  // of branches of all oneOf

  static constexpr int kJson = -1;

  struct Waiting {
    grammar::RuleId rule;
    SchemaJson schema;
    std::string path;
    int value_of = kJson;  // a parameter in markup, of value_types_, whose end is then a part of the rule
  };

  // Defines all that waits, and finishes.
  absl::StatusOr<std::unique_ptr<const grammar::Grammar>> DefineAll();
  grammar::RuleId RuleOf(SchemaJson schema, std::string path, int value_of = kJson);
  absl::StatusOr<grammar::RuleId> RuleOfReference(const SchemaJson& reference, int value_of);
  absl::StatusOr<const SchemaJson*> Resolve(const SchemaJson& reference) const;
  absl::Status Define(const Waiting& waiting);
  absl::StatusOr<SchemaJson> Joined(SchemaJson schema);
  // MergeSchemas, counted before it is done.
  absl::StatusOr<SchemaJson> Merged(const SchemaJson& a, const SchemaJson& b);
  // InvalidArgument: `schema`, which is joined, has a keyword that cannot be held to.
  static absl::Status CheckKeywords(const SchemaJson& schema);
  absl::Status DefineChoice(const Waiting& waiting, SchemaJson schema, const char* keyword);
  absl::Status DefineValues(const Waiting& waiting, const SchemaJson& schema);
  absl::Status DefineTypes(const Waiting& waiting, const SchemaJson& schema);
  absl::Status EmitType(const std::string& type, const Waiting& waiting, const SchemaJson& schema,
                        grammar::StateId from, grammar::StateId to);
  // A value as JSON; within markup without <.
  std::string LiteralOf(const SchemaJson& value) const;
  // What `pattern` or `format` say of a text, within its limits of length; nullopt: neither is there.
  absl::StatusOr<std::optional<grammar::Expression>> InsideOf(const SchemaJson& schema, int32_t min, int32_t max) const;

  // schema_markup.cc
  absl::Status DefineParameters(grammar::RuleId rule, SchemaJson schema, const text::ToolTypes& types,
                                const std::string& path);
  absl::StatusOr<SchemaJson> ParametersOf(SchemaJson schema, const std::string& path);
  grammar::StateId EmitAnyParameters(grammar::StateId from);
  grammar::StateId EmitKey(absl::string_view name, grammar::StateId from);
  // A text as it is, and the value's end.
  absl::Status EmitText(const SchemaJson& schema, int value_of, grammar::StateId from, grammar::StateId to);
  // Any text, but for its first `min` characters, and the value's end.
  void EmitFreeValue(const grammar::CharClass& not_first, int32_t min, grammar::StateId from, grammar::StateId to);
  void EmitValueEnd(grammar::StateId from, grammar::StateId to);
  // How a value of an enum is written; nullopt: what is written so would be read as something else.
  std::optional<std::string> WrittenAs(const SchemaJson& value, int value_of) const;
  // Characters with which a text would be read as something else, and which texts that are not free lack.
  grammar::CharClass NotFirst(int value_of) const;
  grammar::CharClass NotInside() const;
  absl::Status EmitString(const SchemaJson& schema, grammar::StateId from, grammar::StateId to);
  absl::Status EmitNumber(const SchemaJson& schema, bool whole, grammar::StateId from, grammar::StateId to);
  absl::Status EmitArray(const SchemaJson& schema, const std::string& path, grammar::StateId from, grammar::StateId to);
  absl::Status EmitObject(const SchemaJson& schema, const std::string& path, grammar::StateId from,
                          grammar::StateId to);
  struct Members;
  absl::StatusOr<Members> MembersOf(const SchemaJson& schema, const std::string& path);
  absl::Status EmitMembers(const Members& members, grammar::StateId from, grammar::StateId to);
  grammar::RuleId TextKey(const std::string& name);
  absl::StatusOr<grammar::RuleId> OtherKey(const SchemaJson& schema, const std::vector<std::string>& names,
                                           const std::string& path);

  const SchemaJson* const root_;
  grammar::Grammar grammar_;
  JsonRules rules_;
  std::deque<Waiting> waiting_;
  int64_t copied_bytes_ = 0;                                                      // of all schemas that waited, as JSON
  int64_t merged_bytes_ = 0;                                                      // likewise of what merging made
  absl::flat_hash_map<std::pair<std::string, int>, grammar::RuleId> references_;  // by pointer and Waiting::value_of
  int64_t comparisons_left_ = kMaxComparisons;
  int64_t name_steps_left_ = NamePatterns::kMaxSteps;
  const ArgumentMarkup* markup_ = nullptr;     // null: all is JSON
  std::vector<text::ValueTypes> value_types_;  // of parameters, as their reader (server/text/output) sees them
};

}  // namespace switchyard::server
