#include "workers/comm/core/op_key.h"

#include "absl/strings/str_cat.h"
#include "workers/comm/core/call_tag.h"

namespace switchyard::comm {

const char* CommClassName(CommClass comm_class) {
  static constexpr const char* kNames[kNumCommClasses] = {"all_to_all", "all_reduce", "control", "layer_sum"};
  const int i = static_cast<int>(comm_class);
  return i < kNumCommClasses ? kNames[i] : "(unknown)";
}

const char* CommOpName(CommOp op) {
  static constexpr const char* kNames[kNumCommOps] = {
      "all_to_all_v", "all_gather", "all_reduce_sum",   "(unknown)", "broadcast",        "barrier",
      "send",         "hello",      "all_to_all_sized", "fence",     "all_gather_sized", "send_view"};
  const int i = static_cast<int>(op);
  return i < kNumCommOps ? kNames[i] : "(unknown)";
}

std::string OpKey::ToString() const {
  std::string text = absl::StrCat(CommOpName(op), " #", sequence, " of class ", CommClassName(comm_class));
  if (bytes != kAnyBytes) absl::StrAppend(&text, " (", bytes, " bytes)");
  if (root >= 0) absl::StrAppend(&text, " from rank ", root);
  if (tag != 0) absl::StrAppend(&text, " ", CallPurpose(tag));
  return text;
}

}  // namespace switchyard::comm
