#include "mlrunner/graph/sharding.h"

#include <algorithm>

namespace ropewalk::mlrunner {

std::int32_t Mesh::NumRanks() const {
  std::int32_t ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  return ranks;
}

std::vector<std::int32_t> Mesh::Coordinates(std::int32_t rank) const {
  std::vector<std::int32_t> coordinates(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    coordinates[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return coordinates;
}

bool ShardingSpec::IsReplicated() const {
  return partial.empty() && std::all_of(dims.begin(), dims.end(), [](std::int8_t axis) { return axis == kReplicated; });
}

std::string ShardingSpec::ToString(const Mesh& mesh) const {
  // A specification that is refused may name an axis that there is not.
  auto name = [&](std::int8_t axis) {
    bool known = axis >= 0 && static_cast<std::size_t>(axis) < mesh.axes.size();
    return known ? mesh.axes[axis].name : "axis " + std::to_string(axis);
  };
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += dims[i] == kReplicated ? "_" : name(dims[i]);
  }
  text += "]";
  for (std::int8_t axis : partial) text += " +" + name(axis);
  return text;
}

Slice SliceOf(const Dims& logical, const ShardingSpec& spec, const Mesh& mesh, std::int32_t rank) {
  std::vector<std::int32_t> at = mesh.Coordinates(rank);
  Slice slice{Dims(logical.size(), 0), logical};
  for (std::size_t d = 0; d < spec.dims.size(); ++d) {
    if (spec.dims[d] == ShardingSpec::kReplicated) continue;
    std::int64_t piece = (logical[d] + mesh.axes.at(spec.dims[d]).size - 1) / mesh.axes[spec.dims[d]].size;
    slice.begin[d] = std::min<std::int64_t>(logical[d], piece * at[spec.dims[d]]);
    slice.end[d] = std::min<std::int64_t>(logical[d], slice.begin[d] + piece);
  }
  return slice;
}

}  // namespace ropewalk::mlrunner
