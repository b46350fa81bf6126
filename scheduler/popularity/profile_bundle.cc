#include "scheduler/popularity/profile_bundle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::popularity {
namespace {

constexpr absl::string_view kBundleMagic = "SYBUND01";
// Versions whose maps also read a mean of the rows before, or had a hidden layer.
constexpr absl::string_view kOtherMagics[] = {"SYBUND02", "SYBUND03"};
constexpr int64_t kMaxMapRows = int64_t{1} << 48;
constexpr uint32_t kMaxBundleLayers = 4096, kMaxBundleExperts = 1022, kMaxHidden = 1 << 20, kMaxProfiles = 64;

bool SameKind(const ProfileIdentity& a, const ProfileIdentity& b) {
  return a.phase == b.phase && a.context == b.context && a.channel == b.channel;
}

std::pair<int, int> OrderOf(const ProbeMap& map) { return {map.layer, map.ahead}; }

absl::StatusOr<PathProfile> TakeProfile(ByteReader& reader, const ProfileBundle& bundle, size_t index) {
  const size_t at = reader.position();
  ASSIGN_OR_RETURN(const auto length, reader.TakeInt<uint64_t>("length of a profile"));
  ASSIGN_OR_RETURN(const absl::string_view bytes, reader.Take(length, "a profile"));
  absl::StatusOr<PathProfile> profile = PathProfile::Parse(bytes, ProfileLimits());
  if (!profile.ok()) return reader.Error(at, absl::StrCat("profile ", index, ": ", profile.status().message()));
  const ProfileIdentity& identity = profile->identity();
  if (identity.model != bundle.model || !(identity.shape == bundle.shape))
    return reader.Error(at, absl::StrCat("profile ", index, " is of another model or shape than the bundle"));
  for (const PathProfile& other : bundle.profiles) {
    if (SameKind(other.identity(), identity))
      return reader.Error(at, absl::StrCat("profile ", index, " is the second one of its phase and context"));
  }
  return profile;
}

absl::Status TakeFloats(ByteReader& reader, absl::string_view name, int64_t count, std::vector<float>* values) {
  const size_t begin = reader.position();
  ASSIGN_OR_RETURN(const absl::string_view bytes, reader.Take(static_cast<uint64_t>(count) * sizeof(float), name));
  values->resize(static_cast<size_t>(count));
  for (size_t i = 0; i < values->size(); ++i) {
    (*values)[i] = std::bit_cast<float>(LoadInt<uint32_t>(bytes.data() + i * sizeof(float)));
    if (!std::isfinite((*values)[i])) return reader.Error(begin + i * sizeof(float), "not a finite number");
  }
  return absl::OkStatus();
}

absl::StatusOr<ProbeMap> TakeMap(ByteReader& reader, const ProfileBundle& bundle) {
  const size_t at = reader.position();
  ProbeMap map;
  const auto layers = static_cast<uint32_t>(bundle.shape.num_layers);
  ASSIGN_OR_RETURN(const auto layer, reader.TakeIn<uint32_t>("layer of a map", 0, layers - 1));
  ASSIGN_OR_RETURN(const auto ahead, reader.TakeIn<uint32_t>("layers ahead of a map", 1, 2));
  ASSIGN_OR_RETURN(map.num_rows, reader.TakeIn<int64_t>("rows of a map", 1, kMaxMapRows));
  map.layer = static_cast<int>(layer);
  map.ahead = static_cast<int>(ahead);
  if (layer + ahead >= layers) return reader.Error(at, absl::StrCat("a map of layer ", layer + ahead, " of ", layers));
  if (!bundle.maps.empty() && OrderOf(map) <= OrderOf(bundle.maps.back()))
    return reader.Error(at, "maps do not rise by layer and layers ahead");
  RETURN_IF_ERROR(
      TakeFloats(reader, "values of a map", int64_t{bundle.shape.num_experts} * (bundle.hidden + 1), &map.values));
  return map;
}

// Reads everything but the profiles and maps.
absl::Status TakeHeader(ByteReader& reader, ProfileBundle* bundle) {
  RETURN_IF_ERROR(reader.Take(kBundleMagic.size(), "magic").status());
  ASSIGN_OR_RETURN(bundle->model, reader.TakeString("model", kMaxModelBytes));
  ASSIGN_OR_RETURN(const auto layers, reader.TakeIn<uint32_t>("num_layers", 1, kMaxBundleLayers));
  ASSIGN_OR_RETURN(const auto experts, reader.TakeIn<uint32_t>("num_experts", 1, kMaxBundleExperts));
  ASSIGN_OR_RETURN(const auto top_k, reader.TakeIn<uint32_t>("top_k", 1, experts));
  ASSIGN_OR_RETURN(const auto hidden, reader.TakeIn<uint32_t>("hidden", 0, kMaxHidden));
  bundle->shape = {.num_layers = static_cast<int>(layers),
                   .num_experts = static_cast<int>(experts),
                   .top_k = static_cast<int>(top_k)};
  bundle->hidden = static_cast<int>(hidden);
  return absl::OkStatus();
}

// The map that other would be merged into, or where it would be inserted.
std::vector<ProbeMap>::const_iterator PlaceIn(const std::vector<ProbeMap>& maps, const ProbeMap& other) {
  return std::lower_bound(maps.begin(), maps.end(), other,
                          [](const ProbeMap& a, const ProbeMap& b) { return OrderOf(a) < OrderOf(b); });
}

// Whether all maps' sums could be read again.
absl::Status CheckMapRows(const std::vector<ProbeMap>& maps, const std::vector<ProbeMap>& others) {
  for (const ProbeMap& other : others) {
    const auto own = PlaceIn(maps, other);
    const bool is_same = own != maps.end() && OrderOf(*own) == OrderOf(other);
    const int64_t rows = other.num_rows + (is_same ? own->num_rows : 0);
    if (rows <= kMaxMapRows) continue;
    return absl::InvalidArgumentError(absl::StrCat("profile bundle: the probe map of MoE layer ", other.layer, " for ",
                                                   other.ahead, " ahead would be of ", rows, " rows, at most ",
                                                   kMaxMapRows));
  }
  return absl::OkStatus();
}

void MergeMap(const ProbeMap& other, ProbeMap* map) {
  const double share = static_cast<double>(other.num_rows) / static_cast<double>(map->num_rows + other.num_rows);
  for (size_t i = 0; i < map->values.size(); ++i)
    map->values[i] = static_cast<float>((1 - share) * map->values[i] + share * other.values[i]);
  map->num_rows += other.num_rows;
}

}  // namespace

std::string ProfileBundle::Serialize() const {
  std::string bytes(kBundleMagic);
  AppendString(model, &bytes);
  for (const int field : {shape.num_layers, shape.num_experts, shape.top_k, hidden})
    AppendInt(static_cast<uint32_t>(field), &bytes);
  AppendInt(static_cast<uint32_t>(profiles.size()), &bytes);
  for (const PathProfile& profile : profiles) {
    const std::string one = profile.Serialize();
    AppendInt(static_cast<uint64_t>(one.size()), &bytes);
    bytes += one;
  }
  AppendInt(static_cast<uint32_t>(maps.size()), &bytes);
  for (const ProbeMap& map : maps) {
    AppendInt(static_cast<uint32_t>(map.layer), &bytes);
    AppendInt(static_cast<uint32_t>(map.ahead), &bytes);
    AppendInt(map.num_rows, &bytes);
    for (const float value : map.values) AppendInt(std::bit_cast<uint32_t>(value), &bytes);
  }
  AppendInt(Fnv1a(bytes), &bytes);
  return bytes;
}

absl::StatusOr<ProfileBundle> ProfileBundle::Parse(absl::string_view bytes) {
  ByteReader whole(bytes, "profile bundle");
  const absl::string_view magic = bytes.substr(0, kBundleMagic.size());
  if (std::find(std::begin(kOtherMagics), std::end(kOtherMagics), magic) != std::end(kOtherMagics))
    return whole.Error(
        0, absl::StrCat(magic,
                        ": of another version; make it anew, with `switchyard profile` or a server's --profile_out"));
  if (magic != kBundleMagic) return whole.Error(0, absl::StrCat("does not begin with ", kBundleMagic));
  constexpr size_t kHashBytes = sizeof(uint64_t);
  if (bytes.size() < kBundleMagic.size() + kHashBytes) return whole.Error(bytes.size(), "truncated: no checksum");
  const absl::string_view hashed = bytes.substr(0, bytes.size() - kHashBytes);
  const auto hash = LoadInt<uint64_t>(bytes.data() + hashed.size());
  if (hash != Fnv1a(hashed)) {
    return whole.Error(hashed.size(), absl::StrCat("checksum is ", absl::Hex(hash), ", the bytes before have ",
                                                   absl::Hex(Fnv1a(hashed)), " (cut short or damaged)"));
  }
  ByteReader reader(hashed, "profile bundle");
  ProfileBundle bundle;
  RETURN_IF_ERROR(TakeHeader(reader, &bundle));
  ASSIGN_OR_RETURN(const auto profiles, reader.TakeIn<uint32_t>("number of profiles", 0, kMaxProfiles));
  for (uint32_t i = 0; i < profiles; ++i) {
    ASSIGN_OR_RETURN(PathProfile profile, TakeProfile(reader, bundle, i));
    bundle.profiles.push_back(std::move(profile));
  }
  const uint32_t most = bundle.hidden == 0 ? 0 : 2 * kMaxBundleLayers;
  ASSIGN_OR_RETURN(const auto maps, reader.TakeIn<uint32_t>("number of maps", 0, most));
  for (uint32_t i = 0; i < maps; ++i) {
    ASSIGN_OR_RETURN(ProbeMap map, TakeMap(reader, bundle));
    bundle.maps.push_back(std::move(map));
  }
  if (reader.left() > 0)
    return reader.Error(reader.position(), absl::StrCat(reader.left(), " bytes too many after the last map"));
  return bundle;
}

absl::Status CheckSameModel(const ProfileBundle& expected, const ProfileBundle& actual) {
  const auto check = [](absl::string_view field, const auto& wanted, const auto& is) {
    if (wanted == is) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("profile bundle: ", field, " is ", is, ", this model's bundle has ", wanted));
  };
  RETURN_IF_ERROR(check("model", expected.model, actual.model));
  RETURN_IF_ERROR(check("num_layers", expected.shape.num_layers, actual.shape.num_layers));
  RETURN_IF_ERROR(check("num_experts", expected.shape.num_experts, actual.shape.num_experts));
  RETURN_IF_ERROR(check("top_k", expected.shape.top_k, actual.shape.top_k));
  if (expected.hidden == 0 || actual.hidden == 0) return absl::OkStatus();
  return check("hidden", expected.hidden, actual.hidden);
}

absl::Status ProfileBundle::Merge(const ProfileBundle& other) {
  RETURN_IF_ERROR(CheckSameModel(*this, other));
  size_t num_kinds = profiles.size();
  const auto like = [this](const PathProfile& profile) {
    return std::find_if(profiles.begin(), profiles.end(),
                        [&](const PathProfile& own) { return SameKind(own.identity(), profile.identity()); });
  };
  for (const PathProfile& profile : other.profiles) {
    const auto own = like(profile);
    if (own == profiles.end()) {
      ++num_kinds;
    } else {
      RETURN_IF_ERROR(own->CheckMerge(profile));
    }
  }
  if (num_kinds > kMaxProfiles) {
    return absl::InvalidArgumentError(
        absl::StrCat("profile bundle: there would be ", num_kinds, " profiles, at most ", kMaxProfiles));
  }
  RETURN_IF_ERROR(CheckMapRows(maps, other.maps));
  for (const PathProfile& profile : other.profiles) {
    const auto own = like(profile);
    if (own == profiles.end()) {
      profiles.push_back(profile);
    } else {
      RETURN_IF_ERROR(own->Merge(profile));
    }
  }
  hidden = std::max(hidden, other.hidden);
  for (const ProbeMap& map : other.maps) {
    const auto own = maps.begin() + (PlaceIn(maps, map) - maps.cbegin());
    if (own != maps.end() && OrderOf(*own) == OrderOf(map)) {
      MergeMap(map, &*own);
    } else {
      maps.insert(own, map);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::popularity
