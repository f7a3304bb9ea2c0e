// The float64 reference: each op in plain loops over doubles, and an interpreter that runs a graph op by op with them. The yardstick of
// every
// fast kernel and of every pass; also what constant folding computes with. Slow on purpose: nothing here is clever.
//
// Thread rule: functions without shared state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/graph.h"

namespace ropewalk::mlrunner {

// Any tensor as doubles, row-major. Integers up to 2^53 are exact.
struct RefTensor {
  Dims dims;
  std::vector<double> data;
  static RefTensor Scalar(double value) { return {{}, {value}}; }
};

// What random numbers and samples hang on, beside the op.
struct RunContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t sample_offset = 0;  // global index of this run's first sample
  std::int32_t rank = 0;           // whose slice of sharded values this is
};

struct RefCall {
  const Graph& graph;
  const Op& op;
  const Bindings& bindings;
  const RunContext& run;
  std::vector<const RefTensor*> in;
  std::vector<RefTensor> out;  // dims are set, data has their size
};
using RefKernel = std::function<Status(RefCall&)>;

// Kernels by definition. Strategies add those of their own ops to a copy.
using RefTable = std::map<const OpDef*, RefKernel>;
const RefTable& ReferenceKernels();
// Parts of it that lie in files of their own.
void AddSequenceReferences(RefTable& table);
void AddTableReferences(RefTable& table);
void AddRoutingReferences(RefTable& table);

// Rounds to what an element of `dtype` can hold.
double RoundTo(Dtype dtype, double value);

struct RefOptions {
  const RefTable* table = &ReferenceKernels();
  bool round = true;  // each value to its element type; false: doubles throughout, whatever the types say
};
struct RefResult {
  std::vector<RefTensor> outputs;         // in the order of graph.outputs
  std::map<std::string, RefTensor> taps;  // by name
};
// Runs all ops once. `inputs` in the order of graph.inputs. `states` by name: those that are missing are initialised, all are left at their
// last versions. Bindings must hold every symbol.
Result<RefResult> Evaluate(const Graph& graph, const Bindings& bindings, const std::vector<RefTensor>& inputs,
                           std::map<std::string, RefTensor>& states, const RunContext& run = {}, const RefOptions& options = {});

// The first value of a state: of this rank's slice, as a function of (seed, name, place in the logical tensor).
RefTensor Initial(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run);
// The same, piece by piece in row-major order: the doubles of a large parameter would take twice its own memory.
void DrawInitial(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run,
                 const std::function<void(std::span<const double>)>& take);

}  // namespace ropewalk::mlrunner
