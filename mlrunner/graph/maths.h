// The functions of the maths on values of a graph: h = Relu(MatMul(x, w) + b).
//
// Shapes are in the comments; `...` are equal leading dimensions. Elementwise functions broadcast as numpy does. A number on one side takes
// the element type of the other, which must hold it: `ids * .5` of integers is refused. Flags (bool) are compared, selected and cast, not
// added up; of two flags Maximum is "or" and Minimum is "and".
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "mlrunner/graph/builder.h"

namespace ropewalk::mlrunner {

// --- elementwise ---
Value operator+(Arg a, Arg b);
Value operator-(Arg a, Arg b);
Value operator*(Arg a, Arg b);
Value operator/(Arg a, Arg b);
Value operator-(Arg a);
Value Maximum(Arg a, Arg b);
Value Minimum(Arg a, Arg b);
Value Pow(Arg a, Arg b);
Value Exp(Arg a);
Value Log(Arg a);
Value Sqrt(Arg a);
Value Rsqrt(Arg a);
Value Tanh(Arg a);
Value Sigmoid(Arg a);
Value Erf(Arg a);
Value Sin(Arg a);
Value Cos(Arg a);
Value Abs(Arg a);
Value Sign(Arg a);
Value Relu(Arg a);
enum class GeluForm : std::uint8_t { kTanh, kErf };  // as GPT-2 has it; x times the normal distribution's probability below x, as BERT
Value Gelu(Arg a, GeluForm form = GeluForm::kTanh);
Value Square(Arg a);
Value Less(Arg a, Arg b);     // bool
Value Greater(Arg a, Arg b);  // bool
Value Equal(Arg a, Arg b);    // bool
Value IsFinite(Arg a);        // bool
Value Select(Arg condition, Arg a, Arg b);
Value Cast(Arg a, Dtype dtype);
Value StopGradient(Arg a);
Value Identity(Builder& b, const Value& a, Location where = {__builtin_FILE(), __builtin_LINE()});  // the same value, as one of `b`

// --- shapes ---
Value Reshape(Arg a, Shape shape);
Value Transpose(Arg a, std::vector<std::int64_t> permutation = {});  // empty: the last two dimensions change places
Value BroadcastTo(Arg a, Shape shape);
Value SliceAxis(Arg a, int axis, Dim begin, Dim end);
Value PadAxis(Arg a, int axis, Dim low, Dim high);  // with zeros
Value Concat(const std::vector<Value>& parts, int axis, Location where = {__builtin_FILE(), __builtin_LINE()});
Value At(Arg stack, Arg index);                // (n, ...), i64 scalar -> (...)
Value SetAt(Arg stack, Arg index, Arg value);  // the stack with that row replaced

// --- made from nothing ---
Value Fill(Builder& b, double value, Dtype dtype, Shape shape, Location where = {__builtin_FILE(), __builtin_LINE()});
Value Constant(Builder& b, Literal literal, Location where = {__builtin_FILE(), __builtin_LINE()});
Value Iota(Builder& b, Dtype dtype, Dim count, Location where = {__builtin_FILE(), __builtin_LINE()});  // 0, 1, 2, ...
// The number that a dimension has in this run.
Value DimSize(Builder& b, Dim dim, Dtype dtype, Location where = {__builtin_FILE(), __builtin_LINE()});
// Uniform in [0, 1). `sample_dim`: the dimension that counts samples; numbers depend on the sample's global index and the element's place
// in its logical tensor, not on how samples and elements are spread over ranks. -1: none.
// `key`: an integer scalar that tells draws apart, where one op is run several times in a step (the round of a while).
Value RandomUniform(Builder& b, Dtype dtype, Shape shape, int sample_dim = 0, const Value& key = {},
                    Location where = {__builtin_FILE(), __builtin_LINE()});
// Each element is 0 with the probability `rate`, which is in [0, 1), and divided by 1 - rate otherwise.
Value Dropout(Arg a, double rate, int sample_dim = 0);

// --- reductions; axes may be negative; empty: all ---
Value ReduceSum(Arg a, std::vector<std::int64_t> axes = {}, bool keep_dims = false);
Value ReduceMax(Arg a, std::vector<std::int64_t> axes = {}, bool keep_dims = false);
Value Mean(Arg a, std::vector<std::int64_t> axes = {}, bool keep_dims = false);  // of floating-point tensors
Value ArgMax(Arg a, int axis = -1);                                              // i64; the first of equals
Value SumTo(Arg a, Shape shape);                                                 // the sum over what broadcasting from `shape` would repeat

// --- products ---
// (..., M, K) x (..., K, N) -> (..., M, N); the leading dimensions broadcast. The flags read an operand transposed.
Value MatMul(Arg a, Arg b, bool transpose_a = false, bool transpose_b = false);
struct Conv2DOptions {
  std::vector<std::int64_t> stride = {1, 1};
  std::vector<std::int64_t> padding = {0, 0};  // on both sides; PadAxis for sides that differ
  std::vector<std::int64_t> dilation = {1, 1};
  std::int64_t groups = 1;  // kernels of group i see its channels only; as many as channels: depthwise
  Value bias = {};          // (K); not valid: none
};
Value Conv2D(Arg x, Arg w, Conv2DOptions options = {});  // (N, C, H, W) x (K, C / groups, R, S) -> (N, K, P, Q)
struct Pool2DOptions {
  std::vector<std::int64_t> kernel = {2, 2}, stride = {2, 2};
  std::vector<std::int64_t> padding = {0, 0};  // less than the kernel; never the largest, and 0 in a mean (which counts it)
};
Value MaxPool2D(Arg x, Pool2DOptions options);  // (N, C, H, W) -> (N, C, P, Q)
Value AvgPool2D(Arg x, Pool2DOptions options);
Value MaxPool2D(Arg x, std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0);
Value AvgPool2D(Arg x, std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0);
Value GlobalAvgPool2D(Arg x);  // (N, C, H, W) -> (N, C)

// --- rows ---
Value Gather(Arg table, Arg indices);                   // (V, ...), i (n...) -> (n..., ...); its gradient is IndexedRows
Value ScatterAdd(Arg indices, Arg rows, Dim num_rows);  // (n), (n, ...) -> (num_rows, ...)
Value OneHot(Arg indices, Dim depth, Dtype dtype);      // (n...) -> (n..., depth)
// Row to[i] of the result is a sum that has row from[i] of x in it: the neighbours of a graph's nodes, for (from, to) its edges.
Value SumRows(Arg x, Arg from, Arg to, Dim num_rows);  // (V, ...), (n), (n) -> (num_rows, ...)
Value AddRows(Arg table, Arg indices, Arg rows);       // (V, ...), (n), (n, ...) -> the table with the rows added to those
// Bags of rows of a table, added up or averaged; the gradient of the table is IndexedRows. An empty bag gives zeros.
enum class Bag : std::uint8_t { kSum, kMean };
Value EmbeddingBag(Arg table, Arg indices, Bag form = Bag::kSum);                // (V, D), i (..., K): bags of K -> (..., D)
Value EmbeddingBags(Arg table, Arg indices, Arg offsets, Bag form = Bag::kSum);  // i (n), i (B): where each begins -> (B, D)
// Of F tables that lie one after the other in one, with so many rows each: the rows of ids (..., F, ...), whose axis `axis` has F. An id
// that its table does not have is refused.
Value StackedRows(Arg ids, std::vector<std::int64_t> rows, int axis = -1);
// The `count` largest of each row of the last dimension, the largest first and of equals the first one, and where they stand.
struct TopKResult {
  Value values, places;  // (..., count); i64
};
TopKResult TopK(Arg a, int count);
// Seats at experts with so many each: the i-th of `experts` (n) that goes to expert e gets e * capacity + i; what is over its capacity,
// num_experts * capacity.
Value ExpertSlots(Arg experts, std::int64_t num_experts, Dim capacity);
// x (B, D), rows (B, F, D) -> (B, D + (F + 1) F / 2): x and the products of each pair of the F + 1 vectors of a sample
Value PairDots(Arg x, Arg rows);

// --- fused; each has a primitive form ---
Value Softmax(Arg a);  // over the last dimension
Value LogSoftmax(Arg a);
Value CrossEntropy(Arg logits, Arg labels);                         // (..., C), i (...) -> (...): -log softmax(logits)[label]
Value BinaryCrossEntropy(Arg logits, Arg targets);                  // of two classes; targets in [0, 1]: the second's probability
Value LayerNorm(Arg x, Arg gain, Arg bias, double epsilon = 1e-5);  // over the last dimension

// --- sequences ---
// A layer of an LSTM over T steps, T a number: z = x[t] + bias + h w'; (i, f, g, o) = (sigmoid, sigmoid, tanh, sigmoid) of its four parts;
// c = f c + i g; h = o tanh(c). The order of gates is PyTorch's.
struct LstmStates {
  Value hidden;  // (T, B, H): after each step
  Value cell;    // (B, H): after the last
};
// x (T, B, 4 H): what the inputs give to the gates; bias (4 H); w (4 H, H); h and c (B, H): before the first step
LstmStates Lstm(Arg x, Arg bias, Arg w, Arg h, Arg c);

// --- batch norm (Ioffe and Szegedy 2015), of the channels of x (N, C, ...) ---
// What the elements of a channel have together. Rows (of dimension 0) may be there only to fill a batch up: those for which `counted` (N)
// is 0 are left out; where it is not valid, all count. Without any that count, mean and variance are 0.
struct Moments {
  Value mean, variance;  // (C); the variance of the elements themselves, divided by how many there are
  Value count;           // (): elements of a channel that count
  Value counted;         // as it was given
};
Moments MomentsOf(Arg x, const Value& counted = {});
// Of the elements of all ranks along a mesh axis, by one sum in `channel`. `near` (C), the same on all ranks, is about where the means lie:
// the nearer, the more digits of the variance are left.
Moments MomentsOfRanks(const Moments& mine, const Value& near, StateId channel, std::string ranks);
struct BatchNormOptions {
  double epsilon = 1e-5;
  bool relu = false;  // followed by a ReLU, in the same pass over memory
  // The moments are those of all ranks of a mesh axis: gradients are summed over them, in this channel. Not valid: of this rank.
  StateId channel = {};
  std::string ranks = {};
};
// (x - mean) / sqrt(variance + epsilon) * gain + bias, where `m` are the moments of x's batch: the gradient knows that they move with x.
Value BatchNorm(Arg x, Arg gain, Arg bias, const Moments& m, BatchNormOptions options = {});
// The same of any mean and variance (C).
Value BatchNormInference(Arg x, Arg gain, Arg bias, Arg mean, Arg variance, double epsilon = 1e-5, bool relu = false);

// --- control flow; bodies are functional, values from around them are captured ---
using Vars = std::vector<Value>;
// At most `bound` rounds (gradients keep that many versions of the variables). Gives the variables and, last, the number of rounds (i64).
// Written in a body, While and Cond belong to that body, so theirs may use its variables. The forms with a builder belong to that one.
Vars While(Vars init, std::int64_t bound, const std::function<Value(Builder&, const Vars&)>& condition,
           const std::function<Vars(Builder&, const Vars&)>& body, Location where = {__builtin_FILE(), __builtin_LINE()});
Vars While(Builder& b, Vars init, std::int64_t bound, const std::function<Value(Builder&, const Vars&)>& condition,
           const std::function<Vars(Builder&, const Vars&)>& body, Location where = {__builtin_FILE(), __builtin_LINE()});
Vars Cond(Value condition, const std::function<Vars(Builder&)>& then, const std::function<Vars(Builder&)>& otherwise,
          Location where = {__builtin_FILE(), __builtin_LINE()});
Vars Cond(Builder& b, Value condition, const std::function<Vars(Builder&)>& then, const std::function<Vars(Builder&)>& otherwise,
          Location where = {__builtin_FILE(), __builtin_LINE()});

// --- ranks; `channel` orders them, `group` names the mesh axis ---
Value AllReduce(Arg a, StateId channel, std::string group);                // the sum
Value AllGather(Arg a, StateId channel, std::string group, int axis);      // parts side by side
Value ReduceScatter(Arg a, StateId channel, std::string group, int axis);  // the sum, cut
void Send(Arg a, StateId channel, std::int64_t peer, std::string key);
Value Recv(Builder& b, TensorType type, StateId channel, std::int64_t peer, std::string key,
           Location where = {__builtin_FILE(), __builtin_LINE()});

}  // namespace ropewalk::mlrunner
