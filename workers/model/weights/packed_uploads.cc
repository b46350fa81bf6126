#include "workers/model/weights/packed_uploads.h"

#include <utility>

#include "scheduler/base/status_macros.h"

namespace switchyard::model {

PackedUploads::~PackedUploads() = default;

absl::Status PackedUploads::FindTwin(const ops::Weight& weight, Twin** twin) {
  absl::MutexLock lock(&mu_);
  std::unique_ptr<Twin>& found = twins_[&weight];
  if (found == nullptr) {
    ops::WeightDesc desc = weight.desc();
    desc.bias = false;  // goes to the device by itself
    ASSIGN_OR_RETURN(ops::Weight host, ops::Weight::Allocate(desc, Device::Cpu()));
    found = std::make_unique<Twin>(Twin{std::move(host), weight.n()});
  }
  *twin = found.get();
  return absl::OkStatus();
}

absl::Status PackedUploads::Pack(ops::Weight* weight, int64_t rows,
                                 absl::FunctionRef<absl::Status(ops::Weight* host)> pack) {
  if (writer_ == nullptr || weight->format() == ops::WeightFormat::kPlain) return pack(weight);
  Twin* twin = nullptr;
  RETURN_IF_ERROR(FindTwin(*weight, &twin));
  RETURN_IF_ERROR(pack(&twin->host));
  std::unique_ptr<Twin> whole;
  {
    absl::MutexLock lock(&mu_);
    SY_CHECK_LE(rows, twin->left);
    twin->left -= rows;
    if (twin->left > 0) return absl::OkStatus();
    whole = std::move(twins_.extract(weight).mapped());
  }
  return ops::CopyPanels(whole->host, weight, writer_);
}

}  // namespace switchyard::model
