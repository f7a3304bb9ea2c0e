#include "mlrunner/collective/check/expressions.h"

#include <algorithm>
#include <utility>

namespace ropewalk::collective {

Expressions::Expressions(const Header& header) : header_(header) {
  nodes_.resize(2);
  nodes_[1].kind = Kind::kOne;
  nodes_[1].terms = {{.leaf = 1}};
}

Value Expressions::Leaf(std::int32_t rank, std::int32_t buffer, std::int64_t at) {
  auto [found, is_new] =
      known_.try_emplace(Key(static_cast<int>(Kind::kLeaf), rank, buffer, 0, 0), static_cast<std::int32_t>(nodes_.size()));
  if (is_new) {
    Node node{.kind = Kind::kLeaf, .a = rank, .b = buffer};
    node.terms = {{.leaf = found->second}};
    nodes_.push_back(std::move(node));
  }
  return {found->second, at};
}

// Node 0 and 1 are the same whatever the index.
Value Expressions::Keep(Kind kind, Value a, Value b, double number) {
  std::int64_t shift = b.node > 1 && a.node > 1 ? b.at - a.at : 0;
  std::int64_t at = a.node > 1 ? a.at : b.at;
  auto [found, is_new] =
      known_.try_emplace(Key(static_cast<int>(kind), a.node, b.node, shift, number), static_cast<std::int32_t>(nodes_.size()));
  if (!is_new) return {found->second, at};

  Node node{.kind = kind, .a = a.node, .b = b.node, .shift = shift, .number = number};
  const Node& left = nodes_[a.node];
  node.terms = left.terms;
  node.encodings = left.encodings;
  node.ordered = left.ordered;
  const bool linear = header_.op == ReduceOp::kSum;
  if (kind == Kind::kFold || kind == Kind::kUnordered || kind == Kind::kNative) {
    const Node& right = nodes_[b.node];
    for (Term term : right.terms) {
      if (term.leaf > 1) term.shift += shift;
      auto same = std::find_if(node.terms.begin(), node.terms.end(),
                               [&](const Term& other) { return other.leaf == term.leaf && other.shift == term.shift; });
      if (same != node.terms.end())
        same->coefficient += term.coefficient;
      else
        node.terms.push_back(term);
    }
    std::sort(node.terms.begin(), node.terms.end(),
              [](const Term& x, const Term& y) { return std::tie(x.leaf, x.shift) < std::tie(y.leaf, y.shift); });
    node.encodings = std::max(node.encodings, right.encodings);
    node.ordered = node.ordered && right.ordered && kind != Kind::kUnordered;
  } else if (kind == Kind::kScaled && linear) {
    for (Term& term : node.terms) term.coefficient *= number;
  } else if (kind == Kind::kCoded) {
    if (!header_.request.codecs[static_cast<std::size_t>(number)].additive) ++node.encodings;
  } else if (kind != Kind::kRounded) {
    node.terms = {{.leaf = found->second}};  // opaque
  }
  nodes_.push_back(std::move(node));
  return {found->second, at};
}

Value Expressions::Pair(Kind kind, Value a, Value b, double number) {
  if (std::tie(b.node, b.at) < std::tie(a.node, a.at)) std::swap(a, b);
  return Keep(kind, a, b, number);
}

Value Expressions::Fold(Value a, Value b) { return Pair(Kind::kFold, a, b, 0); }
Value Expressions::Unordered(Value a, Value b) { return Pair(Kind::kUnordered, a, b, 0); }
Value Expressions::NativeFold(std::int32_t instance, Value a, Value b) { return Pair(Kind::kNative, a, b, instance); }
Value Expressions::Scaled(Value value, double scale) {
  return value.node == 0 || scale == 1 ? value : Keep(Kind::kScaled, value, Zero(), scale);
}

Value Expressions::Rounded(Value value) {
  Kind kind = nodes_[value.node].kind;
  bool exact = kind == Kind::kLeaf || kind == Kind::kRounded || kind == Kind::kZero || kind == Kind::kOne;
  return exact ? value : Keep(Kind::kRounded, value, Zero(), 0);
}

Value Expressions::Coded(Value value, std::int32_t codec, Value residual) { return Keep(Kind::kCoded, value, residual, codec); }
Value Expressions::Residual(Value value, std::int32_t codec, Value residual) { return Keep(Kind::kResidual, value, residual, codec); }

Value Expressions::Blob(std::int32_t codec, Pieces pieces) {
  auto id = static_cast<std::int32_t>(nodes_.size());
  Node node{.kind = Kind::kBlob, .number = static_cast<double>(codec)};
  node.terms = {{.leaf = id}};
  node.pieces = std::move(pieces);
  nodes_.push_back(std::move(node));
  return {id, 0};
}

Expressions::BlobView Expressions::AsBlob(Value value) const {
  const Node& node = nodes_[value.node];
  if (node.kind != Kind::kBlob) return {};
  return {static_cast<std::int32_t>(node.number), &node.pieces};
}

Value Expressions::Core(Value value) const {
  for (;;) {
    const Node& node = nodes_[value.node];
    if (node.kind != Kind::kRounded && node.kind != Kind::kScaled) return value;
    value.node = node.a;
  }
}

std::string Expressions::PrintNode(std::int32_t id, std::int64_t at, int depth) const {
  const Node& node = nodes_[id];
  if (depth == 0) return "…";
  auto side = [&](std::int32_t other, std::int64_t shift) { return PrintNode(other, at + shift, depth - 1); };
  std::int64_t shift = node.a > 1 ? node.shift : 0;
  switch (node.kind) {
    case Kind::kZero:
      return "0";
    case Kind::kOne:
      return "1";
    case Kind::kLeaf:
      return header_.buffers[node.b].name + std::to_string(node.a) + "[" + std::to_string(at) + "]";
    case Kind::kFold:
      return "(" + side(node.a, 0) + " + " + side(node.b, shift) + ")";
    case Kind::kUnordered:
      return "{" + side(node.a, 0) + " + " + side(node.b, shift) + "}";
    case Kind::kNative:
      return "native(" + side(node.a, 0) + ", " + side(node.b, shift) + ")";
    case Kind::kScaled:
      return std::to_string(node.number) + "·" + side(node.a, 0);
    case Kind::kRounded:
      return "round" + side(node.a, 0);
    case Kind::kCoded:
      return "coded(" + side(node.a, 0) + ")";
    case Kind::kResidual:
      return "residual(" + side(node.a, 0) + ")";
    case Kind::kBlob:
      return "bytes of an encoded chunk";
  }
  return "?";
}

std::string Expressions::Print(Value value) const { return PrintNode(value.node, value.at, 12); }

void Expressions::Append(Pieces* pieces, std::int64_t count, Value value) {
  if (count <= 0) return;
  if (!pieces->empty()) {
    Piece& last = pieces->back();
    if (last.value.node == value.node && (value.node <= 1 || last.value.at + last.count == value.at)) {
      last.count += count;
      return;
    }
  }
  pieces->push_back({count, value});
}

}  // namespace ropewalk::collective
