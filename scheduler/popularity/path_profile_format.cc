// PathProfile to and from bytes.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/popularity/path_profile.h"

namespace switchyard::popularity {
namespace {

constexpr absl::string_view kProfileMagic = "SYPROF01";
constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();

void AppendRow(const CountTable& table, int32_t row, std::string* bytes) {
  AppendInt(table.key(row).high, bytes);
  AppendInt(table.key(row).low, bytes);
  const absl::Span<const uint16_t> counts = table.counts(row);
  AppendInt(static_cast<uint16_t>(counts.size() - static_cast<size_t>(std::count(counts.begin(), counts.end(), 0))),
            bytes);
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;
    AppendInt(static_cast<uint16_t>(e), bytes);
    AppendInt(counts[e], bytes);
  }
}

absl::StatusOr<ProfileIdentity> TakeIdentity(ByteReader& reader) {
  ProfileIdentity identity;
  ASSIGN_OR_RETURN(identity.model, reader.TakeString("model", kMaxModelBytes));
  ASSIGN_OR_RETURN(identity.channel, reader.TakeString("channel", kMaxModelBytes));
  // CheckProfile checks what is read here.
  ASSIGN_OR_RETURN(const auto layers, reader.TakeIn<uint32_t>("num_layers", 0, kMost));
  ASSIGN_OR_RETURN(const auto experts, reader.TakeIn<uint32_t>("num_experts", 0, kMost));
  ASSIGN_OR_RETURN(const auto top_k, reader.TakeIn<uint32_t>("top_k", 0, kMost));
  identity.shape = {.num_layers = static_cast<int>(layers),
                    .num_experts = static_cast<int>(experts),
                    .top_k = static_cast<int>(top_k)};
  ASSIGN_OR_RETURN(const auto phase, reader.TakeIn<uint32_t>("phase", 0, 1));
  ASSIGN_OR_RETURN(const auto context, reader.TakeIn<uint32_t>("context", 0, 2));
  ASSIGN_OR_RETURN(const auto length, reader.TakeIn<uint32_t>("path_length", 0, kMost));
  ASSIGN_OR_RETURN(const auto choices, reader.TakeIn<uint32_t>("num_choices", 0, kMost));
  identity.phase = static_cast<Phase>(phase);
  identity.context = static_cast<ContextKind>(context);
  identity.path_length = static_cast<int>(length);
  identity.num_choices = static_cast<int>(choices);
  return identity;
}

// Adds the row to the table; the key that it read is left in *key, which held the key before it.
absl::Status TakeRow(ByteReader& reader, bool is_first, ContextKey* key, std::vector<uint16_t>& counts,
                     CountTable& table) {
  const size_t at = reader.position();
  ContextKey next;
  ASSIGN_OR_RETURN(next.high, reader.TakeInt<uint64_t>("key"));
  ASSIGN_OR_RETURN(next.low, reader.TakeInt<uint64_t>("key"));
  if (!is_first && next <= *key) return reader.Error(at, "keys do not rise");
  *key = next;
  const auto num_experts = static_cast<uint16_t>(counts.size());
  ASSIGN_OR_RETURN(const auto present, reader.TakeIn<uint16_t>("number of experts with a count", 1, num_experts));
  std::fill(counts.begin(), counts.end(), 0);
  uint16_t least = 0;
  for (int i = 0; i < present; ++i) {
    ASSIGN_OR_RETURN(const auto expert, reader.TakeIn<uint16_t>("expert", least, num_experts - 1));
    ASSIGN_OR_RETURN(counts[expert], reader.TakeIn<uint16_t>("count", 1, std::numeric_limits<uint16_t>::max()));
    least = static_cast<uint16_t>(expert + 1);
  }
  table.AddRow(*key, counts);
  return absl::OkStatus();
}

}  // namespace

std::string PathProfile::Serialize() const {
  std::string bytes(kProfileMagic);
  AppendString(identity_.model, &bytes);
  AppendString(identity_.channel, &bytes);
  const RoutingShape& shape = identity_.shape;
  for (const int field : {shape.num_layers, shape.num_experts, shape.top_k, static_cast<int>(identity_.phase),
                          static_cast<int>(identity_.context), identity_.path_length, identity_.num_choices})
    AppendInt(static_cast<uint32_t>(field), &bytes);
  for (size_t l = 0; l < tables_.size(); ++l) {
    AppendInt(tokens_[l], &bytes);
    for (const int64_t count : marginal_[l]) AppendInt(count, &bytes);
    AppendInt(static_cast<uint32_t>(tables_[l].num_rows()), &bytes);
    for (const int32_t row : tables_[l].RowsByKey()) AppendRow(tables_[l], row, &bytes);
  }
  AppendInt(Fnv1a(bytes), &bytes);
  return bytes;
}

absl::StatusOr<PathProfile> PathProfile::Parse(absl::string_view bytes, ProfileLimits limits) {
  ByteReader reader(bytes, "path profile");
  ASSIGN_OR_RETURN(const absl::string_view magic, reader.Take(kProfileMagic.size(), "magic"));
  if (magic != kProfileMagic) return reader.Error(0, absl::StrCat("does not begin with ", kProfileMagic));
  constexpr size_t kHashBytes = sizeof(uint64_t);
  if (reader.left() < kHashBytes) return reader.Error(reader.position(), "truncated: no checksum");
  const absl::string_view hashed = bytes.substr(0, bytes.size() - kHashBytes);
  ByteReader end(bytes.substr(hashed.size()), "path profile");
  ASSIGN_OR_RETURN(const auto hash, end.TakeInt<uint64_t>("checksum"));
  if (hash != Fnv1a(hashed))
    return reader.Error(hashed.size(), absl::StrCat("checksum is ", absl::Hex(hash), ", the bytes before have ",
                                                    absl::Hex(Fnv1a(hashed)), " (cut short or damaged)"));
  ByteReader body(hashed, "path profile");
  RETURN_IF_ERROR(body.Take(kProfileMagic.size(), "magic").status());
  ASSIGN_OR_RETURN(ProfileIdentity identity, TakeIdentity(body));
  RETURN_IF_ERROR(CheckProfile(identity, limits));
  // Each layer has these bytes at least, so nothing is allocated that the bytes do not back.
  const uint64_t least = static_cast<uint64_t>(identity.shape.num_layers) *
                         (sizeof(int64_t) * (1 + static_cast<uint64_t>(identity.shape.num_experts)) + sizeof(uint32_t));
  if (least > body.left())
    return body.Error(body.position(),
                      absl::StrCat("truncated: the layers want ", least, " bytes, ", body.left(), " are left"));
  PathProfile profile(std::move(identity), limits);
  for (size_t l = 0; l < profile.tables_.size(); ++l) {
    ASSIGN_OR_RETURN(profile.tokens_[l], body.TakeIn<int64_t>("tokens", 0, kMaxMarginal));
    for (int64_t& count : profile.marginal_[l]) {
      ASSIGN_OR_RETURN(count, body.TakeIn<int64_t>("marginal count", 0, kMaxMarginal));
    }
    ASSIGN_OR_RETURN(const auto rows, body.TakeInt<uint32_t>("number of rows"));
    // A row of few counts takes far more memory than bytes, so rows beyond the limit go on the way.  Keys differ, so
    // the rows with the largest totals are the same as those of all at once.
    CountTable table(profile.identity_.shape.num_experts, profile.max_rows());
    std::vector<uint16_t> counts(profile.marginal_[l].size());
    ContextKey key;
    for (uint32_t row = 0; row < rows; ++row) {
      RETURN_IF_ERROR(TakeRow(body, row == 0, &key, counts, table));
      if (table.num_rows() >= 2 * table.max_rows()) table.EvictToLimit();
    }
    table.EvictToLimit();
    profile.tables_[l] = table;  // a copy: it has no memory to spare
  }
  if (body.left() > 0)
    return body.Error(body.position(), absl::StrCat(body.left(), " bytes too many after the last layer"));
  return profile;
}

}  // namespace switchyard::popularity
