#include "workers/model/weights/packed_uploads.h"

#include <utility>

#include "scheduler/base/status_macros.h"

namespace switchyard::model {

PackedUploads::~PackedUploads() = default;

absl::Status PackedUploads::FindHostCopy(const ops::Weight& weight, HostCopy** copy) {
  absl::MutexLock lock(&mu_);
  std::unique_ptr<HostCopy>& found = copies_[&weight];
  if (found == nullptr) {
    ops::WeightDesc desc = weight.desc();
    desc.bias = false;  // goes to the device by itself
    ASSIGN_OR_RETURN(ops::Weight host, ops::Weight::Allocate(desc, Device::Cpu()));
    found = std::make_unique<HostCopy>(HostCopy{std::move(host), weight.n()});
  }
  *copy = found.get();
  return absl::OkStatus();
}

absl::Status PackedUploads::Pack(ops::Weight* weight, int64_t rows,
                                 absl::FunctionRef<absl::Status(ops::Weight* host)> pack) {
  if (writer_ == nullptr || weight->format() == ops::WeightFormat::kPlain) return pack(weight);
  HostCopy* copy = nullptr;
  RETURN_IF_ERROR(FindHostCopy(*weight, &copy));
  RETURN_IF_ERROR(pack(&copy->host));
  std::unique_ptr<HostCopy> whole;
  {
    absl::MutexLock lock(&mu_);
    SY_CHECK_LE(rows, copy->left);
    copy->left -= rows;
    if (copy->left > 0) return absl::OkStatus();
    whole = std::move(copies_.extract(weight).mapped());
  }
  return ops::CopyPanels(whole->host, weight, writer_);
}

}  // namespace switchyard::model
