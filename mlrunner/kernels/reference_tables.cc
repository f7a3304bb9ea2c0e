// References of ops on rows of tables.
#include <cmath>

#include <fmt/format.h>

#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/tables.h"

namespace ropewalk::mlrunner {
namespace {

std::vector<std::int64_t> Whole(const RefTensor& tensor) { return {tensor.data.begin(), tensor.data.end()}; }
std::int64_t WidthOf(const RefTensor& table) {
  return table.dims[0] == 0 ? 0 : static_cast<std::int64_t>(table.data.size()) / table.dims[0];
}

Status SumRows(RefCall& c) {
  const std::vector<std::int64_t> from = Whole(*c.in[1]), to = Whole(*c.in[2]);
  RETURN_IF_ERROR(CheckRows(from, std::ssize(from), c.in[0]->dims[0]));
  RETURN_IF_ERROR(CheckRows(to, std::ssize(to), c.out[0].dims[0]));
  const std::int64_t width = WidthOf(*c.in[0]);
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::int64_t k = 0; k < width; ++k) c.out[0].data[to[i] * width + k] += c.in[0]->data[from[i] * width + k];
  }
  return {};
}
Status BagsOf(RefCall& c) {
  const std::vector<std::int64_t> offsets = Whole(*c.in[0]);
  std::vector<std::int64_t> bags(c.out[0].data.size());
  RETURN_IF_ERROR(FindBags(offsets.data(), std::ssize(offsets), bags.data(), std::ssize(bags)));
  c.out[0].data.assign(bags.begin(), bags.end());
  return {};
}
Status StackedRows(RefCall& c) {
  const StackedTables tables(c.op, c.in[0]->dims);
  for (std::size_t i = 0; i < c.in[0]->data.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::size_t table = tables.TableOf(at);
    const double id = c.in[0]->data[i];
    if (!(id >= 0 && id < static_cast<double>(tables.sizes[table]))) {
      return NoSuchRow(fmt::format("of table {}, index", table), tables.SampleOf(at), static_cast<std::int64_t>(id), tables.sizes[table]);
    }
    c.out[0].data[i] = id + static_cast<double>(tables.first[table]);
  }
  return {};
}
Status AddRows(RefCall& c) {
  const std::vector<std::int64_t> at = Whole(*c.in[1]);
  RETURN_IF_ERROR(CheckRows(at, std::ssize(at), c.in[0]->dims[0]));
  const std::int64_t width = WidthOf(*c.in[0]);
  // Into a sum of its own first, as the primitive form does.
  std::vector<double> sums(c.in[0]->data.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    for (std::int64_t k = 0; k < width; ++k) sums[at[i] * width + k] += c.in[2]->data[static_cast<std::int64_t>(i) * width + k];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) c.out[0].data[i] = c.in[0]->data[i] + sums[i];
  return {};
}
Status AdagradRows(RefCall& c) {
  const std::vector<std::int64_t> at = Whole(*c.in[2]);
  RETURN_IF_ERROR(CheckRows(at, std::ssize(at), c.in[0]->dims[0]));
  const std::int64_t width = WidthOf(*c.in[0]);
  const double epsilon = c.op.attrs.Double(Attr::kEpsilon), rate = c.in[4]->data[0];
  std::vector<double> g(c.in[0]->data.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    for (std::int64_t k = 0; k < width; ++k) g[at[i] * width + k] += c.in[3]->data[static_cast<std::int64_t>(i) * width + k];
  }
  for (std::size_t i = 0; i < g.size(); ++i) {
    c.out[1].data[i] = c.in[1]->data[i] + g[i] * g[i];
    c.out[0].data[i] = c.in[0]->data[i] - (g[i] == 0 ? 0 : rate * g[i] / (std::sqrt(c.out[1].data[i]) + epsilon));
  }
  return {};
}

// Vector i of sample b: x, then the rows.
const double* VectorOf(const RefCall& c, std::int64_t b, std::int64_t i) {
  const std::int64_t count = c.in[1]->dims[1], width = c.in[0]->dims[1];
  return i == 0 ? &c.in[0]->data[b * width] : &c.in[1]->data[(b * count + i - 1) * width];
}
Status PairDots(RefCall& c) {
  const std::int64_t batch = c.in[0]->dims[0], width = c.in[0]->dims[1], vectors = c.in[1]->dims[1] + 1;
  auto out = c.out[0].data.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    out = std::copy_n(VectorOf(c, b, 0), width, out);
    for (std::int64_t i = 1; i < vectors; ++i) {
      for (std::int64_t j = 0; j < i; ++j, ++out) {
        for (std::int64_t k = 0; k < width; ++k) *out += VectorOf(c, b, i)[k] * VectorOf(c, b, j)[k];
      }
    }
  }
  return {};
}
Status PairDotsGrad(RefCall& c) {
  const std::int64_t batch = c.in[0]->dims[0], width = c.in[0]->dims[1], vectors = c.in[1]->dims[1] + 1;
  auto g = c.in[2]->data.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    auto grad = [&](std::int64_t i) { return i == 0 ? &c.out[0].data[b * width] : &c.out[1].data[(b * (vectors - 1) + i - 1) * width]; };
    for (std::int64_t k = 0; k < width; ++k, ++g) grad(0)[k] += *g;
    for (std::int64_t i = 1; i < vectors; ++i) {
      for (std::int64_t j = 0; j < i; ++j, ++g) {
        for (std::int64_t k = 0; k < width; ++k) {
          grad(i)[k] += *g * VectorOf(c, b, j)[k];
          grad(j)[k] += *g * VectorOf(c, b, i)[k];
        }
      }
    }
  }
  return {};
}

}  // namespace

void AddTableReferences(RefTable& table) {
  table[&kSumRows] = SumRows;
  table[&kBagsOf] = BagsOf;
  table[&kStackedRows] = StackedRows;
  table[&kAddRows] = AddRows;
  table[&kAdagradRows] = AdagradRows;
  table[&kPairDots] = PairDots;
  table[&kPairDotsGrad] = PairDotsGrad;
}

}  // namespace ropewalk::mlrunner
