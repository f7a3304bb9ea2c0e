#include "mlrunner/models/dlrm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "mlrunner/graph/maths.h"

namespace ropewalk::mlrunner {
namespace {

// Weights as the paper's code begins them: a variance of 2 / (in + out).
Value Wide(Layers& m, const std::string& name, const Value& x, std::int64_t out) {
  return m.Linear(name, x, out, XavierNormal(x.dim(-1), out));
}

}  // namespace

Model Dlrm(Builder& b, const DlrmShape& s, const Value& dense, const Value& ids) {
  Layers m(b);
  Value x = dense;
  for (std::size_t k = 0; k < s.bottom.size(); ++k) x = Relu(Wide(m, "bottom" + std::to_string(k), x, s.bottom[k]));
  x = Relu(Wide(m, "bottom" + std::to_string(s.bottom.size()), x, s.width));

  const std::int64_t rows = std::accumulate(s.tables.begin(), s.tables.end(), std::int64_t{0});
  const std::int64_t largest = s.tables.empty() ? 1 : *std::max_element(s.tables.begin(), s.tables.end());
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(largest, 1)));
  Parameter tables = m.New("tables", {rows, s.width}, Initializer::Uniform(-bound, bound));
  Value at = StackedRows(ids, s.tables, 1);
  Value vectors = ids.rank() == 2 ? Gather(tables, at) : EmbeddingBag(tables, at);  // (B, tables, width)

  x = PairDots(x, vectors);
  for (std::size_t k = 0; k < s.top.size(); ++k) x = Relu(Wide(m, "top" + std::to_string(k), x, s.top[k]));
  return {Reshape(Wide(m, "out", x, 1), {x.dim(0)}), m.parameters()};
}

}  // namespace ropewalk::mlrunner
