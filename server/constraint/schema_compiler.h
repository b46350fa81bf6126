// What turns schemas into rules; used by json_schema.cc and call_grammar.cc alone.  Thread-compatible.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/constraint/json_rules.h"
#include "server/constraint/schema_merge.h"

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

 private:
  static constexpr int32_t kMaxRules = 20'000;
  static constexpr int64_t kMaxCopiedBytes = 8 << 20;
  static constexpr int kMaxJoins = 200;  // of one schema
  static constexpr size_t kMaxBranches = 256;

  struct Waiting {
    grammar::RuleId rule;
    SchemaJson schema;
    std::string path;
  };

  // Defines all that waits, and finishes.
  absl::StatusOr<std::unique_ptr<const grammar::Grammar>> DefineAll();
  grammar::RuleId RuleOf(SchemaJson schema, std::string path);
  absl::StatusOr<grammar::RuleId> RuleOfReference(const SchemaJson& reference);
  absl::StatusOr<const SchemaJson*> Resolve(const SchemaJson& reference) const;
  absl::Status Define(const Waiting& waiting);
  absl::StatusOr<SchemaJson> Joined(SchemaJson schema) const;
  absl::Status DefineChoice(const Waiting& waiting, SchemaJson schema, const char* keyword);
  absl::Status DefineValues(const Waiting& waiting, const SchemaJson& schema);
  absl::Status DefineTypes(const Waiting& waiting, const SchemaJson& schema);
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
  int64_t copied_bytes_ = 0;                                      // of all schemas that waited, as JSON
  absl::flat_hash_map<std::string, grammar::RuleId> references_;  // by pointer
};

}  // namespace switchyard::server
