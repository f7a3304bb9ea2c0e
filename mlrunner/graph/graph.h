// The model graph: one of the five plans, a plain value.
//
// Ops in SSA form: each value is made by one op, ops lie in an order in which inputs come before their users. What changes over time is a
// *state* (a parameter, a moment, a running mean, a channel of a communicator). A state has versions, and a version is an SSA value too,
// its
// *token*: Read takes a token and gives a tensor, Assign takes a token and a tensor and gives the next token. So the order of effects is
// dataflow, nothing else: a pass may move whatever does not depend on each other, and the update of one parameter at the end of step t is
// all
// that the reading of that parameter in step t+1 has to wait for.
//
// Each op lies in a *region* (forward, backward, the update of one parameter). An executor runs a program of (region, micro-batch, stream).
//
// Owner: whoever builds it. Passes take a graph and give a new one. Thread rule: a value; share it only as const.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/layout.h"
#include "mlrunner/graph/literal.h"
#include "mlrunner/graph/provenance.h"
#include "mlrunner/graph/shape.h"
#include "mlrunner/graph/sharding.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

// A place in one of the graph's tables; the default is "none".
template <class Tag>
struct Index {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t value = kNone;
  bool valid() const { return value != kNone; }
  friend auto operator<=>(const Index&, const Index&) = default;
};
using ValueId = Index<struct ValueTag>;
using OpId = Index<struct OpTag>;
using StateId = Index<struct StateTag>;
using RegionId = Index<struct RegionTag>;

struct OpDef;
class Graph;

struct TensorType {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

struct ValueInfo {
  TensorType type;        // what this rank holds
  Shape logical;          // the whole tensor's shape; equal to type.shape where nothing is cut
  ShardingSpec sharding;  // which part of it this rank holds
  Layout layout;
  OpId producer;
  std::uint32_t output = 0;  // which output of the producer
  StateId state;             // tokens: of which state or channel this is a version
  std::string name;          // for people; may be empty
};

// Attributes of ops. An attribute is data: it is printed, compared and hashed.
enum class Attr : std::uint8_t {
  kName,
  kShape,
  kValue,
  kLiteral,
  kAxes,
  kAxis,
  kKeepDims,
  kPermutation,
  kBegin,
  kEnd,
  kStep,
  kLow,
  kHigh,
  kTransposeA,
  kTransposeB,
  kStrides,
  kPadding,
  kKernel,
  kGroups,
  kDtype,
  kDim,
  kSampleDim,
  kCount,
  kCaptures,
  kBound,
  kStacked,
  kGroup,
  kPeer,
  kReduce,
  kEpsilon,
  kKey,
  kExtra,
  kDilations,
  kRelu
};
std::string_view Name(Attr attr);
using AttrValue = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, Shape, Literal>;
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const Attr, AttrValue>> values) : values_(values) {}
  bool Has(Attr attr) const { return values_.contains(attr); }
  void Set(Attr attr, AttrValue value) { values_.insert_or_assign(attr, std::move(value)); }
  std::int64_t Int(Attr attr, std::int64_t otherwise = 0) const { return Get<std::int64_t>(attr, otherwise); }
  double Double(Attr attr, double otherwise = 0) const { return Get<double>(attr, otherwise); }
  std::string String(Attr attr) const { return Get<std::string>(attr, {}); }
  std::vector<std::int64_t> Ints(Attr attr) const { return Get<std::vector<std::int64_t>>(attr, {}); }
  Shape ShapeOf(Attr attr) const { return Get<Shape>(attr, {}); }
  Dim DimOf(Attr attr) const { return ShapeOf(attr).at(0); }
  const Literal* LiteralOf(Attr attr) const {
    auto found = values_.find(attr);
    return found == values_.end() ? nullptr : std::get_if<Literal>(&found->second);
  }
  const std::map<Attr, AttrValue>& All() const { return values_; }
  // Of the same bits, as they are hashed: 0 and -0 are two numbers, and one NaN is itself.
  friend bool operator==(const Attributes& a, const Attributes& b);

 private:
  template <class T>
  T Get(Attr attr, T otherwise) const {
    auto found = values_.find(attr);
    return found == values_.end() ? otherwise : std::get<T>(found->second);
  }
  std::map<Attr, AttrValue> values_;
};

// Any op may be split in two: the start half takes the inputs and gives a handle, the done half takes the handle and gives the outputs.
enum class Half : std::uint8_t { kWhole, kStart, kDone };

struct Op {
  const OpDef* def = nullptr;  // lives longer than the graph
  std::vector<ValueId> inputs, outputs;
  Attributes attrs;
  std::vector<std::shared_ptr<const Graph>> bodies;  // while, cond, fused chains: functional, what they use comes in as inputs
  Half half = Half::kWhole;
  RegionId region;
  std::uint64_t stable_id = 0;  // the same in every rank, pass and build of the same model; random numbers hang on it
  std::uint32_t clone = 0;      // 0: the original; n: its n-th recomputed copy (the stable id is the original's)
  std::int32_t stream = 0;      // the stream that a scheduling pass gave it, within its region
  Provenance provenance;
};

// How a state begins. Random starts are a function of (seed, state's name, element of the logical tensor), so they do not depend on the
// ranks.
struct Initializer {
  enum class Kind : std::uint8_t { kConstant, kNormal, kUniform, kTruncatedNormal, kOrthogonal } kind = Kind::kConstant;
  double a = 0;  // constant; standard deviation; low; gain
  double b = 0;  // high; where the normal distribution is cut, in deviations on both sides
  static Initializer Zeros() { return {}; }
  static Initializer Ones() { return {Kind::kConstant, 1, 0}; }
  static Initializer Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Initializer Normal(double deviation) { return {Kind::kNormal, deviation, 0}; }
  static Initializer Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  // What lies beyond `cut` deviations is drawn again; so the deviation of what is drawn is smaller: .88 of it, where 2 is the cut.
  static Initializer TruncatedNormal(double deviation, double cut = 2) { return {Kind::kTruncatedNormal, deviation, cut}; }
  // Of a matrix (the first dimension by all others): its rows, or columns where it has fewer, are orthogonal and as long as the gain (Saxe
  // et al. 2014). Each rank makes the whole matrix, in time of its elements times its shorter side, and takes its slice.
  static Initializer Orthogonal(double gain = 1) { return {Kind::kOrthogonal, gain, 0}; }
  friend bool operator==(const Initializer&, const Initializer&) = default;
};

enum class StateKind : std::uint8_t { kParameter, kOptimizer, kAccumulator, kStatistic, kScalar, kChannel };
std::string_view Name(StateKind kind);

struct StateInfo {
  std::string name;
  StateKind kind = StateKind::kParameter;
  TensorType type;  // what this rank holds; a channel has the dtype kToken
  Shape logical;    // checkpoints are addressed by slices of this
  ShardingSpec sharding;
  Initializer init;
  StateId of;           // optimizer states: the parameter that they belong to
  ValueId first, last;  // tokens: the version at the start of a step and the one at its end
};

enum class RegionKind : std::uint8_t { kForward, kBackward, kUpdate };
std::string_view Name(RegionKind kind);
struct RegionInfo {
  RegionKind kind = RegionKind::kForward;
  std::int32_t stage = 0;  // pipeline stage
  StateId parameter;       // update regions
};

struct NamedValue {
  std::string name;
  ValueId value;
};

// Values or states that lie next to each other in one piece of (registered) memory: a gradient bucket.
struct AliasGroup {
  std::string name;
  std::vector<ValueId> values;
  std::vector<StateId> states;
  bool registered = false;  // the memory is to be registered with the transports
};

class Graph {
 public:
  std::vector<Op> ops;  // inputs before users
  std::vector<ValueInfo> values;
  std::vector<StateInfo> states;
  std::vector<RegionInfo> regions;
  std::vector<SymbolInfo> symbols;
  std::vector<AliasGroup> alias_groups;
  Mesh mesh;
  std::vector<ValueId> inputs;      // of Input ops, in the order of their making
  std::vector<NamedValue> outputs;  // what a run gives back
  std::vector<NamedValue> taps;     // kept by every pass and shown to who asks for them: K-FAC's factors, histograms

  const Op& op(OpId id) const { return ops.at(id.value); }
  Op& op(OpId id) { return ops.at(id.value); }
  const ValueInfo& value(ValueId id) const { return values.at(id.value); }
  ValueInfo& value(ValueId id) { return values.at(id.value); }
  const StateInfo& state(StateId id) const { return states.at(id.value); }
  StateInfo& state(StateId id) { return states.at(id.value); }
  const RegionInfo& region(RegionId id) const { return regions.at(id.value); }

  // The op is put at the end; `types` are its outputs. `token_states` names the states of token outputs, in their order.
  OpId Add(Op op, std::vector<TensorType> types);
  // The region of that kind, made where there is none.
  RegionId RegionOf(RegionKind kind, std::int32_t stage = 0, StateId parameter = {});
  // The pipeline stage of the op that makes the value.
  std::int32_t StageOf(ValueId id) const { return region(op(value(id).producer).region).stage; }
  // Ops that use each value, in order; an op that uses it twice is listed once.
  std::vector<std::vector<OpId>> Users() const;
  // "MatMul (B, 512) f32"
  std::string Describe(ValueId id) const;
  // Values that must exist at the end: outputs, taps, last versions of states.
  std::vector<ValueId> Roots() const;
};

// Proves that `graph` is legal: SSA, types as the definitions infer them, each version of a state written once, bodies with fitting types.
// Tags GRAPH10 to GRAPH19.
Status Check(const Graph& graph);

// A hash of what the graph computes: ops, attributes, types, edges, states. Not of names for people, layouts, regions, streams, or places
// in
// source files; the gang compares it for the logical plan, before ranks get programs of their own.
std::uint64_t Fingerprint(const Graph& graph);

}  // namespace ropewalk::mlrunner
