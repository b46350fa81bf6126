// For loops and the `loop` variable inside them.
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/interpreter/interpreter.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

// Yields the items one by one.  Filters as late as Jinja does, since a condition may depend on earlier runs of the
// body.
class LoopObject : public Object {
 public:
  LoopObject(Interpreter* interpreter, const ast::For* loop, Scope* scope, SequencePtr items, int depth0)
      : interpreter_(*interpreter), loop_(*loop), scope_(scope), items_(std::move(items)), depth0_(depth0) {}

  std::string TypeName() const override { return "LoopContext"; }
  bool IsCallable() const override { return loop_.recursive; }

  // The next item becomes the current one; false at the end.
  absl::StatusOr<bool> Advance() {
    ASSIGN_OR_RETURN(const bool more, Peek());
    if (!more) return false;
    previous_ = std::move(current_);
    current_ = std::move(next_);
    next_ = std::nullopt;
    ++index0_;
    return true;
  }
  const Value& current() const { return *current_; }

  absl::StatusOr<Value> Call(Runtime&, Args& args) override {
    if (!loop_.recursive) return Error("the loop must have the 'recursive' marker to be called recursively");
    if (args.positional.size() != 1 || !args.named.empty()) return Error("loop() takes one argument");
    return interpreter_.Recurse(loop_, scope_, args.positional[0], depth0_ + 1);
  }

  absl::StatusOr<std::optional<Value>> GetAttribute(Runtime& runtime, absl::string_view name) override {
    if (name == "index") return Value::Int(index0_ + 1);
    if (name == "index0") return Value::Int(index0_);
    if (name == "first") return Value::Bool(index0_ == 0);
    if (name == "depth") return Value::Int(depth0_ + 1);
    if (name == "depth0") return Value::Int(depth0_);
    if (name == "previtem") return index0_ == 0 ? Value::Undefined("there is no previous item") : *previous_;
    if (name == "last" || name == "nextitem") {
      ASSIGN_OR_RETURN(const bool more, Peek());
      if (name == "last") return Value::Bool(!more);
      return more ? *next_ : Value::Undefined("there is no next item");
    }
    if (name == "length" || name == "revindex" || name == "revindex0") {
      ASSIGN_OR_RETURN(const int64_t length, ItemCount());
      return Value::Int(name == "length" ? length : name == "revindex" ? length - index0_ : length - index0_ - 1);
    }
    if (name == "cycle") return Method(runtime, name, &LoopObject::Cycle);
    if (name == "changed") return Method(runtime, name, &LoopObject::Changed);
    return std::nullopt;
  }

 private:
  absl::StatusOr<std::optional<Value>> Method(Runtime& runtime, absl::string_view name,
                                              absl::StatusOr<Value> (LoopObject::*method)(Runtime&, const Args&)) {
    return NewFunction(runtime, name,
                       [this, method](Runtime& r, const Args& args) { return (this->*method)(r, args); });
  }

  absl::StatusOr<Value> Cycle(Runtime&, const Args& args) {
    if (args.positional.empty()) return Error("no items for cycling given");
    return args.positional[static_cast<size_t>(index0_) % args.positional.size()];
  }

  absl::StatusOr<Value> Changed(Runtime& runtime, const Args& args) {
    ASSIGN_OR_RETURN(Value now, runtime.NewTuple(args.positional));
    bool same = false;
    if (last_changed_.has_value()) {
      ASSIGN_OR_RETURN(same, Equal(runtime, *last_changed_, now));
    }
    last_changed_ = std::move(now);
    return Value::Bool(!same);
  }

  // Whether there is a next item, which next_ then holds.
  absl::StatusOr<bool> Peek() {
    while (!next_.has_value() && place_ < items_->items.size()) {
      const Value& candidate = items_->items[place_++];
      ASSIGN_OR_RETURN(const bool accepted, Accepts(candidate));
      if (accepted) next_ = candidate;
    }
    return next_.has_value();
  }

  absl::StatusOr<bool> Accepts(const Value& item) {
    if (loop_.condition == nullptr || all_accepted_) return true;
    return interpreter_.Accepts(loop_, scope_, item);
  }

  // How many items there are in all; filters the rest at once.
  absl::StatusOr<int64_t> ItemCount() {
    if (loop_.condition == nullptr) return static_cast<int64_t>(items_->items.size());
    if (!length_.has_value()) {
      auto rest = std::make_shared<Sequence>();
      while (place_ < items_->items.size()) {
        const Value& candidate = items_->items[place_++];
        ASSIGN_OR_RETURN(const bool accepted, Accepts(candidate));
        if (accepted) rest->items.push_back(candidate);
      }
      length_ = index0_ + 1 + (next_.has_value() ? 1 : 0) + static_cast<int64_t>(rest->items.size());
      items_ = std::move(rest);
      place_ = 0;
      all_accepted_ = true;
    }
    return *length_;
  }

  Interpreter& interpreter_;
  const ast::For& loop_;
  Scope* const scope_;  // the scope around the loop; set only if the loop is recursive or has a condition
  SequencePtr items_;
  const int depth0_;
  size_t place_ = 0;  // index in items_ of the item after next_
  int64_t index0_ = -1;
  bool all_accepted_ = false;  // items_ is filtered already
  std::optional<int64_t> length_;
  std::optional<Value> previous_, current_, next_, last_changed_;
};

}  // namespace

absl::StatusOr<bool> Interpreter::Accepts(const ast::For& loop, Scope* outer, const Value& item) {
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(Pinned(outer)));
  const Entered entered(this, std::move(scope));
  RETURN_IF_ERROR(Assign(loop.target, item));
  ASSIGN_OR_RETURN(const Value condition, Eval(*loop.condition));
  return condition.Truth();
}

absl::Status Interpreter::RunLoop(const ast::For& loop, const Value& value, int depth0) {
  ASSIGN_OR_RETURN(SequencePtr items, Iterate(runtime_, value));
  Scope* const outer = loop.recursive || loop.condition != nullptr ? Pin(scope_) : nullptr;
  ASSIGN_OR_RETURN(LoopObject * state, runtime_.New<LoopObject>(this, &loop, outer, std::move(items), depth0));
  bool any = false;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, state->Advance());
    if (!more) break;
    any = true;
    RETURN_IF_ERROR(runtime_.Steps());
    ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
    const Entered entered(this, std::move(scope));
    scope_->names["loop"] = Value::Of(state);
    RETURN_IF_ERROR(Assign(loop.target, state->current()));
    RETURN_IF_ERROR(Exec(loop.body));
    if (std::exchange(flow_, Flow::kNext) == Flow::kBreak) break;
  }
  if (any) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::shared_ptr<Scope> scope, NewScope(scope_));
  const Entered entered(this, std::move(scope));
  RETURN_IF_ERROR(Exec(loop.otherwise));
  flow_ = Flow::kNext;  // a break inside does not end the outer loop
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::Recurse(const ast::For& loop, Scope* outer, const Value& items, int depth0) {
  const Runtime::Depth depth(&runtime_);
  if (!depth.ok()) return runtime_.TooDeep();
  const Entered entered(this, Pinned(outer));
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  const absl::Status status = RunLoop(loop, items, depth0);
  out_ = outer_out;
  RETURN_IF_ERROR(status);
  return runtime_.NewString(std::move(text));
}

absl::Status Interpreter::ExecNode(const ast::For& node) {
  ASSIGN_OR_RETURN(const Value items, Eval(*node.iterable));
  return RunLoop(node, items, 0);
}

}  // namespace switchyard::jinja
