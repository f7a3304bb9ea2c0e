#include "mlrunner/train/first_values.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "mlrunner/tensors/safetensors.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/slices.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

bool Begins(const StateInfo& state) { return state.kind == StateKind::kParameter || state.kind == StateKind::kStatistic; }

// Shapes of parameters are numbers.
Dims DimsOf(const StateInfo& state) { return Evaluate(state.logical, Bindings{}); }

// What does not fit, in the order of the names; of many the first ones.
struct Misfits {
  std::vector<std::string> missing, superfluous, of_other_shape;
  bool Any() const { return !missing.empty() || !superfluous.empty() || !of_other_shape.empty(); }

  std::string ToString() const {
    std::vector<std::string> parts;
    const std::pair<const char*, const std::vector<std::string>*> all[] = {
        {"it has no ", &missing}, {"nothing here is called ", &superfluous}, {"", &of_other_shape}};
    for (const auto& [what, names] : all) {
      constexpr std::size_t kShownMax = 8;
      if (names->empty()) continue;
      const std::span<const std::string> shown(names->data(), std::min(names->size(), kShownMax));
      const std::size_t more = names->size() - shown.size();
      parts.push_back(fmt::format("{}{}{}", what, fmt::join(shown, ", "), more == 0 ? "" : fmt::format(" and {} more", more)));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }
};

Status Misfit(const std::string& what, const std::string& why, const std::string& fix) {
  return Status(Code::kUserError, "TRAIN11", what, why, fix);
}

Status FromCheckpoint(storage::FileSystem& files, const std::string& path, const Graph& graph, FirstValues* values) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(files, path));
  for (const StateInfo& state : graph.states) {
    if (!Begins(state)) continue;
    const Dims dims = DimsOf(state);
    ASSIGN_OR_RETURN((*values)[state.name], reader->Take(state.name, state.type.dtype, dims, WholeOf(dims)));
  }
  return {};
}

}  // namespace

Status ReadFirstValues(storage::FileSystem& files, const std::string& path, const Graph& graph, FirstValues* values) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(files, path));
  const SafetensorsHeader& header = file.header();
  if (const auto form = header.metadata.find("format"); form != header.metadata.end() && form->second.starts_with("ropewalk-checkpoint"))
    return FromCheckpoint(files, path, graph, values);
  Misfits misfits;
  std::map<std::string, const StateInfo*> states;
  for (const StateInfo& state : graph.states)
    if (Begins(state)) states[state.name] = &state;
  for (const auto& [name, state] : states) {
    const auto found = header.tensors.find(name);
    if (found == header.tensors.end()) {
      misfits.missing.push_back(name);
    } else if (const Dims dims = DimsOf(*state); found->second.dims != dims) {
      misfits.of_other_shape.push_back(fmt::format("{} is {} there and {} here", name, ToString(found->second.dims), ToString(dims)));
    }
  }
  for (const auto& [name, place] : header.tensors)
    if (!states.contains(name)) misfits.superfluous.push_back(name);
  if (misfits.Any()) {
    return Misfit(fmt::format("{} does not hold the first values of this model", storage::QuotedPath(path)), misfits.ToString(),
                  "let model.first_values name a file of a model of the same sizes, with the names that the model here has");
  }
  for (const auto& [name, state] : states) {
    ASSIGN_OR_RETURN(Tensor tensor, file.Read(name));
    if (!IsFloat(tensor.dtype) || !IsFloat(state->type.dtype)) {
      if (tensor.dtype != state->type.dtype)
        return Misfit(fmt::format("tensor {} of {} is of type {}", name, storage::QuotedPath(path), Name(tensor.dtype)),
                      fmt::format("{} is wanted, and only floating-point numbers are converted", Name(state->type.dtype)),
                      "convert it before");
    }
    (*values)[name] = ConvertTo(tensor, state->type.dtype);
  }
  return {};
}

Status SetFirstValues(const FirstValues& values, const Graph& graph, std::int32_t rank, StateStore* states) {
  std::size_t taken = 0;
  for (const StateInfo& state : graph.states) {
    const auto found = values.find(state.name);
    if (found == values.end()) continue;
    ++taken;
    const Tensor& whole = found->second;
    const Dims dims = DimsOf(state);
    if (whole.dims != dims)
      return Misfit("the first values of " + state.name, fmt::format("they are {}, and it is {}", ToString(whole.dims), ToString(dims)),
                    "bring those of this model");
    Tensor tensor = ConvertTo(whole, state.type.dtype);
    if (const Slice mine = SliceOf(dims, state.sharding, graph.mesh, rank); !(mine == WholeOf(dims))) {
      Tensor slice{tensor.dtype, LengthsOf(mine), {}};
      slice.bytes.resize(static_cast<std::size_t>(NumElements(mine)) * SizeOf(tensor.dtype));
      CopySlice(mine, SizeOf(tensor.dtype), WholeOf(dims), tensor.bytes.data(), mine, slice.bytes.data());
      tensor = std::move(slice);
    }
    states->Set(state.name, std::move(tensor));
  }
  if (taken == values.size()) return {};
  for (const auto& [name, tensor] : values) {
    const auto is_it = [&](const StateInfo& state) { return state.name == name; };
    if (std::none_of(graph.states.begin(), graph.states.end(), is_it))
      return Misfit("the first values of " + name, "the model has no state of that name", "bring those of this model");
  }
  return {};
}

std::uint64_t Hash(const FirstValues& values) {
  std::uint64_t hash = 0;
  for (const auto& [name, tensor] : values) {
    const auto* bytes = reinterpret_cast<const char*>(tensor.bytes.data());
    hash = HashCombine(HashCombine(hash, Checksum64(name)), Checksum64(std::string_view(bytes, tensor.bytes.size())));
  }
  return hash;
}

}  // namespace ropewalk::mlrunner
