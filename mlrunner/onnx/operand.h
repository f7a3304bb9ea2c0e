// What a name of an ONNX file stands for while it is imported: a value of the graph, or something known already.
//
// Thread rule: values.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "mlrunner/graph/builder.h"
#include "mlrunner/graph/literal.h"

namespace ropewalk::mlrunner::onnx {

// A small tensor whose elements are known: numbers, or polynomials of symbols. Whole numbers and flags lie in `whole`, others in `real`.
struct Known {
  Dtype dtype = Dtype::kI64;
  Dims dims;
  std::vector<Dim> whole;
  std::vector<double> real;
  bool IsReal() const { return IsFloat(dtype); }
  std::size_t Size() const { return IsReal() ? real.size() : whole.size(); }
};
// A row of numbers: start, start + step, ..., of a count that may be a symbol.
struct Progression {
  Dim start, step, count;
};
struct Operand {
  TensorType type;
  Value value;  // not valid: made when an op asks for it
  std::shared_ptr<const Known> known;
  std::shared_ptr<const Progression> progression;
  std::shared_ptr<const Literal> literal;                // a constant of the file
  std::shared_ptr<const std::vector<Operand>> sequence;  // a list of tensors, which is none itself
  // In the body of a loop: of another value in each round, and `value` has those of all rounds along a dimension 0 of its own, which is not
  // in `type`. In a list: the elements that all rounds have put there.
  bool each_round = false;

  static Operand Of(const Value& value);
  static Operand Of(Known known);
  static Operand OfWhole(Dtype dtype, std::vector<Dim> elements);  // a vector
  static Operand Scalar(Dim element);                              // of i64
};

inline constexpr std::int64_t kLengthMax = std::int64_t{1} << 40;  // of an axis: more is a mistake, or malice
inline constexpr std::int64_t kKnownMax = 4096;                    // elements: lengths and tables of lengths are few

// Nothing where the elements are not known, or are too many.
std::optional<Known> FromLiteral(const Literal& literal);
Literal ToLiteral(const Known& known);  // without symbols

// Whether a double has room for the number.
inline bool IsModerate(std::int64_t number) { return number > -(std::int64_t{1} << 53) && number < std::int64_t{1} << 53; }
// The sign of a - b, for whatever numbers the symbols' bounds allow; nothing where it depends on them.
std::optional<int> SignOfDifference(const Dim& a, const Dim& b, const std::vector<SymbolInfo>& symbols);

// The elements of `a` in an order: out[i] = a[index(i)], with the dims given.
Known Picked(const Known& a, Dims dims, const std::function<std::int64_t(const Dims& at)>& index);
// The place of an element, row-major.
std::int64_t PlaceOf(const Dims& at, const Dims& dims);

}  // namespace ropewalk::mlrunner::onnx
