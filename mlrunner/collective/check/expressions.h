// What an element holds, as an expression over the elements that were there at the start. Equal expressions have equal numbers, so
// comparing two is comparing numbers, whatever they say.
//
// A node stands for a whole row of elements: element k of Value{node, at} is the node's expression with every index shifted by at + k. So
// the proof costs by pieces and not by elements.
//
// The two sides of an operation may be swapped (a + b and b + a have the same bits), their nesting may not.
//
// Owner: one check. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "mlrunner/collective/plan.h"

namespace ropewalk::collective {

struct Value {
  std::int32_t node = 0;
  std::int64_t at = 0;
  bool operator==(const Value&) const = default;
};

// A row of `count` elements that are one expression.
struct Piece {
  std::int64_t count = 0;
  Value value;
};
using Pieces = std::vector<Piece>;

class Expressions {
 public:
  explicit Expressions(const Header& header);

  Value Zero() const { return {0, 0}; }
  Value One() const { return {1, 0}; }
  Value Leaf(std::int32_t rank, std::int32_t buffer, std::int64_t at);
  Value Fold(Value a, Value b);
  Value Scaled(Value value, double scale);
  Value Rounded(Value value);                                    // to the payload's type
  Value Coded(Value value, std::int32_t codec, Value residual);  // what decoding an encoded value gives
  Value Residual(Value value, std::int32_t codec, Value residual);
  Value Unordered(Value a, Value b);                          // folded in an order that the plan does not fix
  Value NativeFold(std::int32_t instance, Value a, Value b);  // folded by a library, in an order of its own, the same on all ranks
  // The bytes of encoded `pieces`.
  Value Blob(std::int32_t codec, Pieces pieces);
  struct BlobView {
    std::int32_t codec = kNone;
    const Pieces* pieces = nullptr;
  };
  BlobView AsBlob(Value value) const;  // pieces null when it is none

  // The expression as coefficient · leaf, all operations taken as the plan's. Coefficients count for operations that are no sums.
  struct Term {
    std::int32_t leaf = 0;
    std::int64_t shift = 0;
    double coefficient = 1;
  };
  const std::vector<Term>& TermsOf(std::int32_t node) const { return nodes_[node].terms; }
  std::int32_t EncodingsOf(std::int32_t node) const { return nodes_[node].encodings; }
  bool IsOrdered(std::int32_t node) const { return nodes_[node].ordered; }
  // Without what was done to the finished fold: rounding and scaling.
  Value Core(Value value) const;
  std::string Print(Value value) const;
  static void Append(Pieces* pieces, std::int64_t count, Value value);  // merges with the last where they continue

 private:
  enum class Kind : std::uint8_t { kZero, kOne, kLeaf, kFold, kScaled, kRounded, kCoded, kResidual, kUnordered, kNative, kBlob };
  struct Node {
    Kind kind = Kind::kZero;
    std::int32_t a = kNone, b = kNone;  // nodes; of a leaf: rank, buffer
    std::int64_t shift = 0;             // of b against a
    double number = 0;                  // scale, codec, instance
    std::vector<Term> terms;
    std::int32_t encodings = 0;
    bool ordered = true;
    Pieces pieces;  // of a blob
  };
  using Key = std::tuple<int, std::int32_t, std::int32_t, std::int64_t, double>;
  Value Keep(Kind kind, Value a, Value b, double number);
  Value Pair(Kind kind, Value a, Value b, double number);
  std::string PrintNode(std::int32_t node, std::int64_t at, int depth) const;

  const Header& header_;
  std::vector<Node> nodes_;
  std::map<Key, std::int32_t> known_;
};

}  // namespace ropewalk::collective
