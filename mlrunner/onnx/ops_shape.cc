// Ops about lengths, which are computed here on polynomials and leave nothing in the graph, and ops that move elements.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {
namespace {

constexpr std::int64_t kPartsMax = 1 << 24;  // that something is cut into

// The same elements in another shape, of whatever they are.
Operand Reshaped(NodeContext& c, std::size_t i, const Shape& shape) {
  const Operand& a = c.At(i);
  if (!c.ok()) return {};
  if (a.type.shape == shape) return a;
  const bool constant = std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return dim.IsConstant(); });
  if (a.known && constant && NumElements(shape).Is(static_cast<std::int64_t>(a.known->Size()))) {
    Known same = *a.known;
    same.dims = Evaluate(shape, {});
    return Operand::Of(std::move(same));
  }
  return Operand::Of(Reshape(c.Val(i), shape));
}

Operands ShapeOf(NodeContext& c) {
  const Shape& shape = c.At(0).type.shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  auto end = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const std::int64_t from = end(c.node.Int("start", 0)), to = std::max(from, end(c.node.Int("end", rank)));
  return {Operand::OfWhole(Dtype::kI64, {shape.begin() + from, shape.begin() + to})};
}
Operands SizeOfAll(NodeContext& c) { return {Operand::Scalar(NumElements(c.At(0).type.shape))}; }

Operands ConstantOp(NodeContext& c) {
  auto known = [](Dtype dtype, Dims dims, const std::vector<std::int64_t>& whole, std::vector<double> real) -> Operands {
    return {Operand::Of(Known{dtype, std::move(dims), {whole.begin(), whole.end()}, std::move(real)})};
  };
  for (const auto& [name, value] : c.node.attributes) {
    if (const auto* literal = std::get_if<Literal>(&value)) {
      Operand operand;
      if (auto elements = FromLiteral(*literal)) operand = Operand::Of(*std::move(elements));
      operand.type = {literal->dtype, Shape(literal->dims.begin(), literal->dims.end())};
      if (!operand.known) operand.literal = std::make_shared<const Literal>(*literal);
      return {operand};
    }
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return known(Dtype::kI64, {}, {*whole}, {});
    if (const auto* real = std::get_if<double>(&value)) return known(Dtype::kF32, {}, {}, {*real});
    if (const auto* many = std::get_if<std::vector<std::int64_t>>(&value))
      return known(Dtype::kI64, {static_cast<std::int64_t>(many->size())}, *many, {});
    if (const auto* reals = std::get_if<std::vector<double>>(&value))
      return known(Dtype::kF32, {static_cast<std::int64_t>(reals->size())}, {}, *reals);
  }
  return c.Refuse("it holds no numbers", "constants are tensors and numbers here, no texts");
}

Operands ReshapeOp(NodeContext& c) {
  std::vector<Dim> target = c.WholeAt(1, "the lengths of a reshape");
  const Shape from = c.At(0).type.shape;
  if (!c.ok()) return {};
  const bool zero_is_length = c.node.Int("allowzero", 0) != 0;
  Dim others = 1;
  std::optional<std::size_t> open;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i].Is(0) && !zero_is_length) {
      if (i >= from.size())
        return c.Refuse(fmt::format("length {} is to be kept, and {} has none", i, c.Show(from)), "export the model again");
      target[i] = from[i];
    }
    const std::int64_t number = target[i].Constant().value_or(0);
    if (number < -1 || number > kLengthMax)
      return c.Refuse(fmt::format("length {} is {}", i, number), "export the model again, with inputs of the shapes that it is for");
    if (number == -1) {
      if (open) return c.Refuse("two lengths are to be found out", "export the model again, with one -1 at most");
      open = i;
    } else {
      others = others * target[i];
    }
  }
  if (open) {
    auto rest = NumElements(from).DividedBy(others);
    if (!rest) {
      return c.Refuse(fmt::format("{} elements do not divide by {}", NumElements(from).ToString(c.symbols()), others.ToString(c.symbols())),
                      "give the lengths that these depend on as numbers (ImportOptions::lengths)");
    }
    target[*open] = *rest;
  }
  return {Reshaped(c, 0, target)};
}
Operands Flatten(NodeContext& c) {
  const Shape shape = c.At(0).type.shape;
  std::int64_t axis = c.node.Int("axis", 1);
  if (axis < 0) axis += static_cast<std::int64_t>(shape.size());
  if (axis < 0 || axis > static_cast<std::int64_t>(shape.size()))
    return c.Refuse(fmt::format("axis {} is none of {}", axis, c.Show(shape)), "export the model again");
  return {Reshaped(c, 0, {NumElements(Shape(shape.begin(), shape.begin() + axis)), NumElements(Shape(shape.begin() + axis, shape.end()))})};
}
Operands Squeeze(NodeContext& c) {
  const Shape shape = c.At(0).type.shape;
  std::vector<std::int64_t> axes = c.Axes(c.Numbers("axes", 1), shape.size());
  if (!c.ok()) return {};
  const bool all = !c.node.Has("axes") && !c.Has(1);
  Shape left;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool named = std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(i)) != axes.end();
    if (named && !shape[i].Is(1))
      return c.Refuse(fmt::format("axis {} of {} is to go, and is not 1 long", i, c.Show(shape)),
                      "export the model again, with inputs of the shapes that it is for");
    if (!named && !(all && shape[i].Is(1))) left.push_back(shape[i]);
  }
  return {Reshaped(c, 0, left)};
}
Operands Unsqueeze(NodeContext& c) {
  const Shape shape = c.At(0).type.shape;
  std::vector<std::int64_t> axes = c.Numbers("axes", 1);
  axes = c.Axes(axes, shape.size() + axes.size());
  if (!c.ok()) return {};
  Shape wider = shape;
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) return c.Refuse("it names an axis twice", "export the model again");
  for (std::int64_t axis : axes) wider.insert(wider.begin() + axis, Dim(1));
  return {Reshaped(c, 0, wider)};
}
Operands TransposeOp(NodeContext& c) {
  const Operand& a = c.At(0);
  std::vector<std::int64_t> order = c.node.Ints("perm");
  const std::size_t rank = a.type.shape.size();
  if (order.empty()) {
    for (std::size_t i = rank; i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
  }
  if (order.size() != rank)
    return c.Refuse(fmt::format("{} axes are named of {}", order.size(), c.Show(a.type.shape)), "export the model again");
  order = c.Axes(order, rank);
  if (!c.ok()) return {};
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return c.Refuse("it names an axis twice", "export the model again");
  if (a.known) {
    Dims dims;
    for (std::int64_t axis : order) dims.push_back(a.known->dims[static_cast<std::size_t>(axis)]);
    return {Operand::Of(Picked(*a.known, dims, [&](const Dims& at) {
      Dims from(at.size());
      for (std::size_t i = 0; i < at.size(); ++i) from[static_cast<std::size_t>(order[i])] = at[i];
      return PlaceOf(from, a.known->dims);
    }))};
  }
  std::vector<std::int64_t> same(rank);
  std::iota(same.begin(), same.end(), 0);
  return order == same ? Operands{a} : Operands{Operand::Of(Transpose(c.Val(0), order))};
}

Operands ConcatOp(NodeContext& c) {
  if (c.NumInputs() == 1) return {c.At(0)};
  const std::size_t rank = c.At(0).type.shape.size();
  const auto axis = static_cast<std::size_t>(c.Axis(c.node.Int("axis", 0), rank));
  if (!c.ok()) return {};
  for (std::size_t i = 0; i < c.NumInputs() && c.ok(); ++i) {
    if (c.At(i).type.dtype != c.At(0).type.dtype) return c.Refuse("it joins elements of different types", "Cast them to one");
  }
  if (!c.ok()) return {};
  if (c.AllKnown() && rank == 1) {
    Known all{c.At(0).type.dtype, {0}, {}, {}};
    for (std::size_t i = 0; i < c.NumInputs(); ++i) {
      const Known& part = *c.KnownAt(i);
      all.whole.insert(all.whole.end(), part.whole.begin(), part.whole.end());
      all.real.insert(all.real.end(), part.real.begin(), part.real.end());
    }
    all.dims[0] = static_cast<std::int64_t>(all.Size());
    if (all.Size() <= kKnownMax) return {Operand::Of(std::move(all))};
  }
  // A row of numbers, and the one that comes next: beginnings of bags, and the end of the last.
  if (c.NumInputs() == 2 && c.At(0).progression && c.IsWhole(1) && c.KnownAt(1)->dims == Dims{1}) {
    Progression p = *c.At(0).progression;
    if (c.KnownAt(1)->whole[0] == p.start + p.step * p.count) {
      p.count = p.count + 1;
      Operand longer;
      longer.type = {c.At(0).type.dtype, {p.count}};
      longer.progression = std::make_shared<const Progression>(p);
      return {longer};
    }
  }
  std::vector<Value> parts;
  for (std::size_t i = 0; i < c.NumInputs(); ++i) {
    if (!c.At(i).type.shape.empty() && c.At(i).type.shape[std::min(axis, c.At(i).type.shape.size() - 1)].Is(0)) continue;
    parts.push_back(c.Val(i));
  }
  if (!c.ok() || parts.empty()) return {c.At(0)};
  return {Operand::Of(parts.size() == 1 ? parts[0] : Concat(parts, static_cast<int>(axis)))};
}

Operands ExpandOp(NodeContext& c) {
  std::vector<Dim> target = c.LengthsAt(1, "the lengths of an expand");
  const Operand& a = c.At(0);
  if (!c.ok()) return {};
  auto shape = Broadcast(a.type.shape, target);
  if (!shape)
    return c.Refuse(fmt::format("{} does not broadcast to {}", c.Show(a.type.shape), c.Show(target)),
                    "export the model again, with inputs of the shapes that it is for");
  if (*shape == a.type.shape) return {a};
  if (a.known && a.known->Size() == 1) {
    auto count = NumElements(*shape).Constant();
    const bool constant = std::all_of(shape->begin(), shape->end(), [](const Dim& dim) { return dim.IsConstant(); });
    if (constant && count && *count <= kKnownMax)
      return {Operand::Of(Picked(*a.known, Evaluate(*shape, {}), [](const Dims&) { return 0; }))};
    const bool number = a.known->IsReal() || a.known->whole[0].IsConstant();
    if (number) {
      const double value = a.known->IsReal() ? a.known->real[0] : static_cast<double>(*a.known->whole[0].Constant());
      return {Operand::Of(Fill(c.b, value, a.type.dtype, *shape))};
    }
  }
  return {Operand::Of(BroadcastTo(c.Val(0), *shape))};
}
Operands ConstantOfShape(NodeContext& c) {
  const Shape shape = c.LengthsAt(0, "the lengths of a constant");
  if (!c.ok()) return {};
  Known value{Dtype::kF32, {}, {}, {0.}};
  if (c.node.Has("value")) {
    const Literal literal = c.node.Get("value", Literal());  // without bytes where the attribute is no tensor
    auto given = literal.bytes == nullptr ? std::nullopt : FromLiteral(literal);
    if (!given || given->Size() != 1) return c.Refuse("its value is not one number", "export the model again");
    value = *std::move(given);
    value.dims = {};
  }
  const bool constant = std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return dim.IsConstant(); });
  if (constant && *NumElements(shape).Constant() <= kKnownMax)
    return {Operand::Of(Picked(value, Evaluate(shape, {}), [](const Dims&) { return 0; }))};
  return {Operand::Of(Fill(c.b, value.IsReal() ? value.real[0] : static_cast<double>(*value.whole[0].Constant()), value.dtype, shape))};
}

Operands Range(NodeContext& c) {
  const Known *start = c.KnownAt(0), *limit = c.KnownAt(1), *step = c.KnownAt(2);
  if (start == nullptr || limit == nullptr || step == nullptr || start->Size() != 1 || limit->Size() != 1 || step->Size() != 1)
    return c.NotKnown("the ends and the step of a range");
  if (limit->IsReal() != start->IsReal() || step->IsReal() != start->IsReal())
    return c.Refuse("its ends and its step are of different types", "Cast them to one");
  if (start->IsReal()) {
    Known row{start->dtype, {0}, {}, {}};
    const double count = std::ceil((limit->real[0] - start->real[0]) / step->real[0]);
    if (!(count <= static_cast<double>(kKnownMax)))
      return c.Refuse(fmt::format("{} numbers that are not whole", count), "use a range of whole numbers, and Cast it");
    for (int i = 0; i < count; ++i) row.real.push_back(start->real[0] + i * step->real[0]);
    row.dims[0] = static_cast<std::int64_t>(row.real.size());
    return {Operand::Of(std::move(row))};
  }
  const Dim &from = start->whole[0], &to = limit->whole[0], &by = step->whole[0];
  const Dim length = to - from;
  std::optional<Dim> count;
  auto moderate = [](const Dim& dim) { return dim.IsConstant() && IsModerate(*dim.Constant()); };
  if (moderate(length) && moderate(by) && !by.Is(0)) {
    const std::int64_t l = *length.Constant(), s = *by.Constant();
    count = std::max<std::int64_t>(0, s > 0 ? (l + s - 1) / s : (-l - s - 1) / -s);
    if (from.IsConstant() && *count->Constant() <= kKnownMax) {
      std::vector<Dim> elements;
      for (std::int64_t i = 0; i < *count->Constant(); ++i) elements.push_back(from + by * Dim(i));
      return {Operand::OfWhole(start->dtype, std::move(elements))};
    }
  } else {
    count = length.DividedBy(by);  // whose sign is that of a length: symbols are no less than 0
  }
  if (!count || !count->LowerBound(c.symbols()) || *count->LowerBound(c.symbols()) < 0) {
    return c.Refuse(fmt::format("how many steps of {} there are from {} to {} is no polynomial", by.ToString(c.symbols()),
                                from.ToString(c.symbols()), to.ToString(c.symbols())),
                    "give the lengths that these depend on as numbers (ImportOptions::lengths)");
  }
  Operand row;
  row.type = {start->dtype, {*count}};
  row.progression = std::make_shared<const Progression>(Progression{from, by, *count});
  return {row};
}

// One end of a slice within [0, size]; nothing where it depends on numbers that only a run brings.
std::optional<Dim> Clamped(const Dim& at, const Dim& size, const std::vector<SymbolInfo>& symbols) {
  if (auto number = at.Constant()) {
    if (*number >= std::numeric_limits<std::int32_t>::max()) return size;    // to the end, as exporters write it
    if (*number <= std::numeric_limits<std::int32_t>::min()) return Dim(0);  // from the end
  }
  Dim from = at;
  auto low = at.LowerBound(symbols), back = (Dim(0) - at).LowerBound(symbols);
  if (back && *back > 0) {
    from = size + at;
    low = from.LowerBound(symbols);
    auto below = (Dim(0) - from).LowerBound(symbols);
    if (below && *below >= 0) return Dim(0);
  }
  if (!low || *low < 0) return std::nullopt;
  auto room = (size - from).LowerBound(symbols), over = (from - size).LowerBound(symbols);
  if (room && *room >= 0) return from;
  if (over && *over >= 0) return size;
  return std::nullopt;
}

bool DependsOn(const Dim& dim, const std::optional<NodeContext::Session::Round>& round) {
  if (!round) return false;
  const std::vector<Symbol> all = dim.Symbols(), its = round->number.Symbols();
  return std::find(all.begin(), all.end(), its.at(0)) != all.end();
}
// In the body of a loop: [from, to) of an axis, where both move with the round. Of a row of numbers one element; of a tensor, a stretch of
// rows of its own for each round, which together are all rows.
Operand OfRound(NodeContext& c, const Operand& a, std::size_t axis, const Dim& from, const Dim& to) {
  const auto& round = *c.s.round;
  const Dim length = to - from, size = a.type.shape[axis];
  if (a.progression && length.Is(1)) {
    auto room = (size - to + round.number - round.count + Dim(1)).LowerBound(c.symbols());  // in the last round
    if (DependsOn(from - round.number, c.s.round) || !room || *room < 0) {
      c.Refuse("a loop takes numbers that may not be there", "write the loop as tensor operations");
      return {};
    }
    return Operand::OfWhole(a.type.dtype, {a.progression->start + a.progression->step * from});
  }
  if (axis != 0 || from != length * round.number || size != length * round.count) {
    c.Refuse(fmt::format("a loop takes rows {} to {} of {} in its rounds, which are not stretches of one length that go through all rows",
                         from.ToString(c.symbols()), to.ToString(c.symbols()), size.ToString(c.symbols())),
             "bags of different lengths are not supported: give indices as a matrix, a row for each bag");
    return {};
  }
  Operand copy = a;
  Value x = c.Make(copy);
  if (!x.valid()) return {};
  Shape one = a.type.shape, all = one;
  one[0] = length;
  all[0] = length;
  all.insert(all.begin(), round.count);
  Operand made = Operand::Of(Reshape(x, all));
  made.type.shape = one;
  made.each_round = true;
  return made;
}

Operands SliceOp(NodeContext& c) {
  std::vector<Dim> starts = c.WholeAt(1, "the ends of a slice"), ends = c.WholeAt(2, "the ends of a slice");
  std::vector<std::int64_t> axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.Has(3)) axes = c.NumbersAt(3, "the axes of a slice");
  if (c.Has(4)) steps = c.NumbersAt(4, "the steps of a slice");
  Operand a = c.At(0);
  axes = c.Axes(axes, a.type.shape.size());
  if (!c.ok()) return {};
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    return c.Refuse("starts, ends, axes and steps are not as many", "export the model again");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const Dim size = a.type.shape[axis];
    auto depends = [&] {
      return c.Refuse(fmt::format("whether {} and {} lie in an axis of {} depends on what a run brings", starts[i].ToString(c.symbols()),
                                  ends[i].ToString(c.symbols()), size.ToString(c.symbols())),
                      "give the symbol bounds (ImportOptions::lengths: a symbol with a least and a largest number), or a number");
    };
    if (steps[i] == 1 && DependsOn(starts[i], c.s.round)) {
      a = OfRound(c, a, axis, starts[i], ends[i]);
      if (!c.ok()) return {};
      continue;
    }
    if (steps[i] == 1) {
      auto from = Clamped(starts[i], size, c.symbols()), to = Clamped(ends[i], size, c.symbols());
      if (!from || !to) return depends();
      auto empty = (*from - *to).LowerBound(c.symbols());
      if (empty && *empty >= 0) to = from;
      if (from->Is(0) && *to == size) continue;
      if (a.known && from->IsConstant() && to->IsConstant()) {
        Dims dims = a.known->dims;
        dims[axis] = *to->Constant() - *from->Constant();
        a = Operand::Of(Picked(*a.known, dims, [&](Dims at) {
          at[axis] += *from->Constant();
          return PlaceOf(at, a.known->dims);
        }));
      } else if (a.progression) {
        Progression p = *a.progression;
        p = {p.start + p.step * *from, p.step, *to - *from};
        a = {};
        a.type = {c.At(0).type.dtype, {p.count}};
        a.progression = std::make_shared<const Progression>(p);
      } else {
        a = Operand::Of(SliceAxis(c.Make(a), static_cast<int>(axis), *from, *to));
      }
      continue;
    }
    auto length = size.Constant(), first = starts[i].Constant(), last = ends[i].Constant();
    if (!length || !first || !last || steps[i] == 0 || *length > kPartsMax || steps[i] > kPartsMax || steps[i] < -kPartsMax)
      return depends();
    std::vector<std::int64_t> picked;
    auto place = [&](std::int64_t at, std::int64_t low, std::int64_t high) { return std::clamp(at < 0 ? at + *length : at, low, high); };
    const bool up = steps[i] > 0;
    std::int64_t at = place(std::max(*first, -*length - 1), up ? 0 : -1, up ? *length : *length - 1);
    const std::int64_t end = *last < -*length ? (up ? 0 : -1) : place(*last, up ? 0 : -1, *length);
    for (; up ? at < end : at > end; at += steps[i]) picked.push_back(at);
    if (a.known) {
      Dims dims = a.known->dims;
      dims[axis] = static_cast<std::int64_t>(picked.size());
      a = Operand::Of(Picked(*a.known, dims, [&](Dims from) {
        from[axis] = picked[static_cast<std::size_t>(from[axis])];
        return PlaceOf(from, a.known->dims);
      }));
      continue;
    }
    // Rows by their numbers, with the axis in front and then back in its place.
    Value x = c.Make(a);
    if (!x.valid()) return {};
    std::vector<std::int64_t> order(x.rank()), back(x.rank());
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin() + axes[i]);
    order.insert(order.begin(), axes[i]);
    for (std::size_t d = 0; d < order.size(); ++d) back[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
    Value rows = Gather(Permuted(x, order), Constant(c.b, Literal::Of(Dtype::kI64, {static_cast<std::int64_t>(picked.size())}, picked)));
    a = Operand::Of(Permuted(rows, back));
  }
  return {a};
}

Operands SplitOp(NodeContext& c) {
  const Operand& a = c.At(0);
  const auto axis = static_cast<std::size_t>(c.Axis(c.node.Int("axis", 0), a.type.shape.size()));
  if (!c.ok()) return {};
  const Dim size = a.type.shape[axis];
  std::vector<Dim> lengths;
  if (c.Has(1)) {
    lengths = c.LengthsAt(1, "the lengths of a split");
  } else if (c.node.Has("split")) {
    for (std::int64_t length : c.node.Ints("split")) {
      if (length < 0) return c.Refuse(fmt::format("a part of {}", length), "export the model again");
      lengths.emplace_back(length);
    }
  } else {
    const std::int64_t count = c.node.Int("num_outputs", static_cast<std::int64_t>(c.node.outputs.size()));
    if (count < 1 || count > static_cast<std::int64_t>(c.node.outputs.size()))
      return c.Refuse(fmt::format("it is split into {} parts", count), "export the model again");
    if (auto part = size.DividedBy(Dim(count))) {
      lengths.assign(static_cast<std::size_t>(count), *part);
    } else if (auto number = size.Constant()) {  // the last is smaller
      const std::int64_t each = (*number + count - 1) / count;
      for (std::int64_t at = 0; at < *number; at += each) lengths.emplace_back(std::min(each, *number - at));
    } else {
      return c.Refuse(fmt::format("{} does not divide by {}", size.ToString(c.symbols()), count),
                      "give that length as a number (ImportOptions::lengths)");
    }
  }
  if (!c.ok()) return {};
  Dim sum = 0;
  for (const Dim& length : lengths) sum = sum + length;
  if (sum != size)
    return c.Refuse(fmt::format("its parts have {} together, and the axis {}", sum.ToString(c.symbols()), size.ToString(c.symbols())),
                    "export the model again");
  Operands parts;
  Dim at = 0;
  Value x = c.Val(0);
  for (const Dim& length : lengths) {
    parts.push_back(Operand::Of(SliceAxis(x, static_cast<int>(axis), at, at + length)));
    at = at + length;
  }
  return parts;
}

Operands Tile(NodeContext& c) {
  std::vector<Dim> repeats = c.LengthsAt(1, "the counts of a tile");
  Value x = c.Val(0);
  if (!x.valid()) return {};
  if (repeats.size() != x.rank()) return c.Refuse("it has not a count for each axis", "export the model again");
  for (std::size_t axis = 0; axis < repeats.size(); ++axis) {
    if (repeats[axis].Is(1)) continue;
    Shape one = x.shape(), many = x.shape(), flat = x.shape();
    one.insert(one.begin() + static_cast<std::ptrdiff_t>(axis), Dim(1));
    many.insert(many.begin() + static_cast<std::ptrdiff_t>(axis), repeats[axis]);
    flat[axis] = flat[axis] * repeats[axis];
    x = Reshape(BroadcastTo(Reshape(x, one), many), flat);
    if (!x.valid()) return {};
  }
  return {Operand::Of(x)};
}

Operands Pad(NodeContext& c) {
  if (c.node.String("mode", "constant") != "constant") return c.Refuse("it pads with what lies at the edge", "pad with a constant");
  std::vector<Dim> pads = c.WholeAt(1, "the lengths of a padding");
  const double number = c.Has(2) ? c.RealAt(2, "the number that is padded with") : 0;
  Value x = c.Val(0);
  if (!x.valid()) return {};
  std::vector<std::int64_t> axes(x.rank());
  std::iota(axes.begin(), axes.end(), 0);
  if (c.Has(3)) axes = c.Axes(c.NumbersAt(3, "the axes of a padding"), x.rank());
  if (pads.size() != 2 * axes.size()) return c.Refuse("it has not two lengths for each axis", "export the model again");
  for (std::size_t i = 0; i < axes.size() && c.ok(); ++i) {
    const int axis = static_cast<int>(axes[i]);
    Dim low = pads[i], high = pads[axes.size() + i];
    // Less than nothing is cut off.
    const Dim cut_low = low.Constant().value_or(0) < 0 ? Dim(0) - low : Dim(0),
              cut_high = high.Constant().value_or(0) < 0 ? Dim(0) - high : Dim(0);
    if (!cut_low.Is(0) || !cut_high.Is(0)) x = SliceAxis(x, axis, cut_low, x.dim(axis) - cut_high);
    x = PadWith(x, axis, cut_low.Is(0) ? low : Dim(0), cut_high.Is(0) ? high : Dim(0), number);
  }
  return {Operand::Of(x)};
}

// x where the column lies on the side of the diagonal that is kept, else 0.
Operands Trilu(NodeContext& c) {
  const std::vector<std::int64_t> diagonal = c.Has(1) ? c.NumbersAt(1, "the diagonal") : std::vector<std::int64_t>{0};
  Value x = c.Val(0);
  if (!x.valid() || !c.ok()) return {};
  if (diagonal.size() != 1) return c.Refuse("it has more than one diagonal", "export the model again");
  if (x.rank() < 2) return c.Refuse("it takes matrices", "export the model again");
  Value row = Reshape(Iota(c.b, Dtype::kI64, x.dim(-2)), {x.dim(-2), 1}), column = Iota(c.b, Dtype::kI64, x.dim(-1));
  Value edge = row + static_cast<double>(diagonal[0]);
  Value dropped = c.node.Int("upper", 1) != 0 ? Less(column, edge) : Greater(column, edge);
  return {Operand::Of(Select(dropped, c.b.Number(0, x.dtype()), x))};
}

}  // namespace

void AddShapes(Importers* table) {
  table->insert({
      {"Concat", ConcatOp},
      {"Constant", ConstantOp},
      {"ConstantOfShape", ConstantOfShape},
      {"Expand", ExpandOp},
      {"Flatten", Flatten},
      {"Pad", Pad},
      {"Range", Range},
      {"Reshape", ReshapeOp},
      {"Shape", ShapeOf},
      {"Size", SizeOfAll},
      {"Slice", SliceOp},
      {"Split", SplitOp},
      {"Squeeze", Squeeze},
      {"Tile", Tile},
      {"Transpose", TransposeOp},
      {"Trilu", Trilu},
      {"Unsqueeze", Unsqueeze},
  });
}

}  // namespace ropewalk::mlrunner::onnx
