#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/interpreter.h"

namespace switchyard::jinja {

Interpreter::~Interpreter() {
  // Pinned scopes may hold each other as parents; dropping their names first leaves chains only.
  for (const auto& scope : pinned_) scope->names.clear();
}

absl::StatusOr<std::string> Interpreter::Render(const ast::Block& block) {
  std::string out;
  out_ = output_ = &out;
  RETURN_IF_ERROR(Exec(block));
  return out;
}

absl::StatusOr<std::shared_ptr<Scope>> Interpreter::NewScope(std::shared_ptr<Scope> parent) {
  RETURN_IF_ERROR(runtime_.Allocate(sizeof(Scope)));
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(parent);
  return scope;
}

Scope* Interpreter::Pin(std::shared_ptr<Scope> scope) {
  Scope* plain = scope.get();
  if (pinned_.empty() || pinned_.back().get() != plain) pinned_.push_back(std::move(scope));
  return plain;
}

absl::Status Interpreter::Write(absl::string_view text) {
  RETURN_IF_ERROR(runtime_.StepsForBytes(text.size()));
  out_->append(text.data(), text.size());
  if (out_->size() <= runtime_.limits().max_output_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the text is longer than the limit of ", runtime_.limits().max_output_bytes, " bytes"));
}

absl::StatusOr<Value> Interpreter::Capture(const ast::Block& block, std::shared_ptr<Scope> scope) {
  const Entered entered(this, std::move(scope));
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const absl::Status status = Exec(block);
  out_ = outer;
  flow_ = Flow::kNext;  // a break inside ends the capture alone
  RETURN_IF_ERROR(status);
  return runtime_.NewString(std::move(text));
}

absl::Status Interpreter::WriteValue(const Value& value) {
  if (value.IsString()) return Write(value.AsString());
  ASSIGN_OR_RETURN(const std::string text, Str(runtime_, value));
  return Write(text);
}

absl::Status Interpreter::Exec(const ast::Block& block) {
  const Runtime::Depth depth(&runtime_);
  if (!depth.ok()) return runtime_.TooDeep();
  for (const ast::Stmt& stmt : block) {
    RETURN_IF_ERROR(runtime_.Steps());
    runtime_.line = stmt.line;
    RETURN_IF_ERROR(std::visit([this](const auto& node) { return ExecNode(node); }, stmt.node));
    if (flow_ != Flow::kNext) break;
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ExecNode(const ast::Output& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.value));
  return WriteValue(value);
}

absl::Status Interpreter::ExecNode(const ast::If& node) {
  for (const auto& [condition, body] : node.branches) {
    ASSIGN_OR_RETURN(const Value value, Eval(*condition));
    if (value.Truth()) return Exec(body);
  }
  return Exec(node.otherwise);
}

absl::Status Interpreter::Assign(const ast::Target& target, const Value& value) {
  if (target.is_tuple) {
    ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime_, value));
    if (items->items.size() != target.items.size()) {
      return Error("cannot unpack ", items->items.size(), " values into ", target.items.size(), " names");
    }
    for (size_t i = 0; i < target.items.size(); ++i) RETURN_IF_ERROR(Assign(target.items[i], items->items[i]));
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    RETURN_IF_ERROR(runtime_.Allocate(target.name.size() + sizeof(Value)));
    scope_->names.insert_or_assign(target.name, value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Value object, EvalNode(ast::Name{target.name}));
  auto* space = dynamic_cast<Namespace*>(object.object());
  if (space == nullptr) return Error("cannot assign an attribute of '", target.name, "': it is no namespace");
  if (target.attribute[0] == '_') {
    return Error("a namespace cannot have the attribute '", target.attribute, "': it begins with an underscore");
  }
  RETURN_IF_ERROR(runtime_.Allocate(target.attribute.size() + sizeof(Value)));
  if (!space->Set(target.attribute, value)) return Error("the attribute's name cannot be hashed");
  return absl::OkStatus();
}

absl::Status Interpreter::ExecNode(const ast::Set& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.value));
  return Assign(node.target, value);
}

absl::Status Interpreter::ExecNode(const ast::CapturingBlock& node) {
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  ASSIGN_OR_RETURN(Value text, Capture(node.body, std::move(scope)));
  if (node.filter != nullptr) {
    ASSIGN_OR_RETURN(text, EvalFilter(std::get<ast::Filter>(node.filter->node), &text));
  }
  return node.target.has_value() ? Assign(*node.target, text) : WriteValue(text);
}

absl::Status Interpreter::ExecNode(const ast::With& node) {
  std::vector<Value> values;  // all in the outer scope
  for (const auto& [target, expr] : node.bindings) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  const Entered entered(this, std::move(scope));
  for (size_t i = 0; i < values.size(); ++i) RETURN_IF_ERROR(Assign(node.bindings[i].first, values[i]));
  return Exec(node.body);
}

absl::Status Interpreter::ExecNode(const ast::Generation& node) {
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  const Entered entered(this, std::move(scope));
  const size_t begin = out_->size();
  RETURN_IF_ERROR(Exec(node.body));
  if (out_ == output_) {
    generated_.push_back({begin, out_->size()});
  } else {
    captured_generation_ = true;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::jinja
