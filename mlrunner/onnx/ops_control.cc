// Control flow that is decided when a model is imported, and lists of tensors.
//
// Exporters write a bag of embeddings as a loop over bags: round i takes the rows from offset i to offset i + 1 and sums them. Where the
// bags have one length, the rows of all rounds are one tensor (rounds, length, ...), and what the body does to one round's is done to all
// at once: such a loop leaves no loop in the graph. Other loops are refused.
#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/graph/maths.h"
#include "mlrunner/onnx/control.h"
#include "mlrunner/onnx/ops.h"

namespace ropewalk::mlrunner::onnx {
namespace {

std::vector<std::string> NamesOf(const std::vector<ValueDef>& values) {
  std::vector<std::string> names;
  for (const ValueDef& value : values) names.push_back(value.name);
  return names;
}

Operands If(NodeContext& c) {
  const Known* condition = c.KnownAt(0);
  if (condition == nullptr || condition->Size() != 1 || condition->IsReal() || !condition->whole[0].IsConstant()) {
    return c.NotKnown("the condition of a branch");
  }
  const GraphDef* branch = c.node.Body(condition->whole[0].Is(0) ? "else_branch" : "then_branch");
  if (branch == nullptr) return c.Refuse("a branch is missing", "export the model again");
  return c.s.run_body(*branch, {}, NamesOf(branch->outputs));
}

// --- lists ---

constexpr std::int64_t kPartsMax = 1 << 16;  // of a list

Operand ListOf(std::vector<Operand> elements) {
  Operand list;
  list.sequence = std::make_shared<const std::vector<Operand>>(std::move(elements));
  return list;
}
const std::vector<Operand>* ListAt(NodeContext& c, std::size_t i) {
  const Operand& operand = c.At(i);
  if (c.ok() && !operand.sequence) c.Refuse("it takes a list of tensors", "export the model again");
  return operand.sequence.get();
}
Operands SequenceEmpty(NodeContext&) { return {ListOf({})}; }
Operands SequenceConstruct(NodeContext& c) {
  std::vector<Operand> elements;
  for (std::size_t i = 0; i < c.NumInputs(); ++i) elements.push_back(c.At(i));
  return {ListOf(std::move(elements))};
}
Operands SequenceInsert(NodeContext& c) {
  const std::vector<Operand>* list = ListAt(c, 0);
  if (list == nullptr) return {};
  if (c.s.round && c.Has(2)) return c.Refuse("a round puts what it has made elsewhere than at the end of a list", "put it at the end");
  std::vector<Operand> longer = *list;
  std::int64_t at = static_cast<std::int64_t>(list->size());
  if (c.Has(2)) {
    std::vector<std::int64_t> place = c.NumbersAt(2, "the place in a list");
    if (!c.ok()) return {};
    at = place.at(0) < 0 ? place[0] + at : place[0];
  }
  if (at < 0 || at > static_cast<std::int64_t>(list->size())) return c.Refuse("the list has no such place", "export the model again");
  longer.insert(longer.begin() + at, c.At(1));
  return {ListOf(std::move(longer))};
}
Operands SequenceAt(NodeContext& c) {
  const std::vector<Operand>* list = ListAt(c, 0);
  std::vector<std::int64_t> place = c.NumbersAt(1, "the place in a list");
  if (list == nullptr || !c.ok()) return {};
  if (place.size() != 1) return c.Refuse("it takes one place of the list", "export the model again");
  const auto count = static_cast<std::int64_t>(list->size());
  const std::int64_t at = place[0] < 0 ? place[0] + count : place[0];
  if (at < 0 || at >= count) return c.Refuse(fmt::format("it takes element {} of {}", at, count), "export the model again");
  return {(*list)[static_cast<std::size_t>(at)]};
}
Operands ConcatFromSequence(NodeContext& c) {
  const std::vector<Operand>* list = ListAt(c, 0);
  if (list == nullptr) return {};
  const bool stacked = c.node.Int("new_axis", 0) != 0;
  if (list->size() == 1 && (*list)[0].each_round) {  // as many as a loop has rounds
    Value all = (*list)[0].value;
    if (!all.valid() || c.node.Int("axis", 0) != 0)
      return c.Refuse("what a loop has made is joined along another axis than 0", "join it along 0, and transpose");
    if (stacked) return {Operand::Of(all)};
    Shape flat(all.shape().begin() + 1, all.shape().end());
    if (flat.empty()) return c.Refuse("numbers have no axis to be joined along", "stack them");
    flat[0] = flat[0] * all.shape()[0];
    return {Operand::Of(Reshape(all, flat))};
  }
  std::vector<Value> parts;
  for (Operand element : *list) {
    Value part = c.Make(element);
    if (!part.valid()) return {};
    if (stacked) {
      Shape wider = part.shape();
      wider.insert(wider.begin() + c.Axis(c.node.Int("axis", 0), wider.size() + 1), Dim(1));
      part = Reshape(part, wider);
    }
    parts.push_back(part);
  }
  if (parts.empty()) return c.Refuse("the list is empty", "export the model again");
  const std::int64_t axis = c.Axis(c.node.Int("axis", 0), parts[0].rank());
  return {Operand::Of(Concat(parts, static_cast<int>(axis)))};
}
Operands SplitToSequence(NodeContext& c) {
  const Operand& a = c.At(0);
  const auto axis = static_cast<std::size_t>(c.Axis(c.node.Int("axis", 0), a.type.shape.size()));
  if (!c.ok()) return {};
  const Dim size = a.type.shape[axis];
  std::vector<Dim> lengths;
  const bool ones = !c.Has(1);
  if (c.Has(1) && c.At(1).type.shape.size() == 1) {
    lengths = c.LengthsAt(1, "the lengths of a split");
  } else {
    std::vector<std::int64_t> each = ones ? std::vector<std::int64_t>{1} : c.NumbersAt(1, "the lengths of a split");
    if (!c.ok()) return {};
    auto number = size.Constant();
    if (!number || each.at(0) < 1 || each[0] > kLengthMax || *number / each[0] > kPartsMax)
      return c.Refuse(fmt::format("an axis of {} is cut into a number of parts that a run says", size.ToString(c.symbols())),
                      "give that length as a number (ImportOptions::lengths)");
    for (std::int64_t at = 0; at < *number; at += each[0]) lengths.emplace_back(std::min(each[0], *number - at));
  }
  std::vector<Operand> parts;
  Dim at = 0;
  Value x = c.Val(0);
  for (const Dim& length : lengths) {
    Value part = SliceAxis(x, static_cast<int>(axis), at, at + length);
    if (part.valid() && ones && c.node.Int("keepdims", 1) == 0) {
      Shape left = part.shape();
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(axis));
      part = Reshape(part, left);
    }
    parts.push_back(Operand::Of(part));
    at = at + length;
  }
  return {ListOf(std::move(parts))};
}

// --- loops over bags ---

// How often a loop without a count goes round: as long as its own counter is less than a length.
std::optional<Dim> CountOf(NodeContext& c, const GraphDef& body) {
  std::string name = body.outputs[0].name;
  for (std::size_t i = body.nodes.size(); i-- > 0;) {
    const Node& node = body.nodes[i];
    if (std::find(node.outputs.begin(), node.outputs.end(), name) == node.outputs.end()) continue;
    if (node.op == "Identity" || node.op == "Cast") {
      name = node.inputs.at(0);
    } else if (node.op == "Less" && node.inputs.size() == 2) {
      const Operand* limit = c.s.find(node.inputs[1]);
      if (limit == nullptr || !limit->known || limit->known->Size() != 1 || limit->known->IsReal()) return std::nullopt;
      return limit->known->whole[0];
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

Operands Loop(NodeContext& c) {
  const char* fix = "write it as tensor operations; embedding bags are to have one length (indices as a matrix, a row for each bag)";
  const GraphDef* body = c.node.Body("body");
  const std::size_t carried = c.NumInputs() < 2 ? 0 : c.NumInputs() - 2;
  if (body == nullptr || body->inputs.size() != 2 + carried || body->outputs.size() < 1 + carried)
    return c.Refuse("its body does not fit it", "export the model again");
  if (c.s.round) return c.Refuse("a loop in a loop", fix);
  if (c.Has(1) && (c.KnownAt(1) == nullptr || !c.KnownAt(1)->whole.at(0).Is(1)))
    return c.Refuse("whether it begins depends on what a run brings", fix);
  std::optional<Dim> count;
  if (c.Has(0)) {
    std::vector<Dim> given = c.WholeAt(0, "the rounds of a loop");
    if (!c.ok()) return {};
    count = given.at(0);
  } else {
    count = CountOf(c, *body);
  }
  if (!count) return c.Refuse("how often it goes round depends on what a run brings", fix);
  c.s.round = NodeContext::Session::Round{c.b.NewSymbol(fmt::format("round{}", c.b.graph().symbols.size()), 0), *count};

  // What goes from round to round may be a counter, or a list that each round adds to; nothing else does for all rounds at once.
  Operands inputs{Operand::Scalar(c.s.round->number), Operand::Of(Known{Dtype::kBool, {}, {1}, {}})};
  std::vector<Dim> starts(carried);
  for (std::size_t i = 0; i < carried; ++i) {
    const Operand& begin = c.At(2 + i);
    if (begin.sequence && begin.sequence->empty()) {
      inputs.push_back(begin);
    } else if (begin.known && begin.known->Size() == 1 && !begin.known->IsReal()) {
      starts[i] = begin.known->whole[0];
      Known counter = *begin.known;
      counter.whole[0] = starts[i] + c.s.round->number;
      inputs.push_back(Operand::Of(std::move(counter)));
    } else {
      return c.Refuse("each round needs what the one before has computed", fix);
    }
  }
  std::vector<std::string> wanted = NamesOf(body->outputs);
  wanted.erase(wanted.begin());
  Operands made = c.s.run_body(*body, inputs, wanted);
  const auto round = *c.s.round;
  c.s.round.reset();
  if (!c.ok() || made.size() != wanted.size()) return {};
  Operands results;
  for (std::size_t i = 0; i < made.size(); ++i) {
    Operand& out = made[i];
    if (i < carried && out.sequence && out.sequence->size() == 1 && out.sequence->at(0).each_round) {
      results.push_back(out);
    } else if (i < carried && out.known && out.known->Size() == 1 && out.known->whole.at(0) == starts[i] + round.number + Dim(1)) {
      Known last = *out.known;
      last.whole[0] = starts[i] + round.count;
      results.push_back(Operand::Of(std::move(last)));
    } else if (i >= carried && out.each_round) {
      results.push_back(Operand::Of(out.value));
    } else {
      return c.Refuse("a round gives what is no sum over rows of its own", fix);
    }
  }
  return results;
}

}  // namespace

Operands ForAllRounds(NodeContext& c, Importer importer) {
  static const std::vector<std::string_view> kElementwise = {"Add", "Sub",  "Mul",  "Div",     "Cast", "CastLike", "Identity",
                                                             "Neg", "Relu", "Tanh", "Sigmoid", "Sqrt", "Exp"};
  static const std::vector<std::string_view> kReductions = {"ReduceSum", "ReduceMean", "ReduceMax", "Unsqueeze"};
  auto is_in = [&](const std::vector<std::string_view>& ops) { return std::find(ops.begin(), ops.end(), c.node.op) != ops.end(); };
  const bool reduces = is_in(kReductions), elementwise = is_in(kElementwise);
  const bool gathers = c.node.op == "Gather" && c.node.Int("axis", 0) == 0 && !c.At(0).each_round;
  if (c.node.op == "SequenceInsert" || (c.node.op == "CastLike" && !c.At(0).each_round)) return importer(c);
  if (!reduces && !elementwise && !gathers)
    return c.Refuse("it is not known how to do this for all rounds of a loop at once",
                    "sum the rows of a bag, or take their mean or maximum");
  // The rounds are an axis in front of all others, for the time of the call.
  std::vector<Operand> operands;
  operands.reserve(c.NumInputs());
  std::vector<Operand*> inputs;
  std::size_t rank = 0;
  for (std::size_t i = 0; i < c.NumInputs(); ++i) {
    if (c.Has(i) && c.At(i).each_round) rank = std::max(rank, c.At(i).type.shape.size());
  }
  for (std::size_t i = 0; i < c.NumInputs(); ++i) {
    if (elementwise && c.node.op != "CastLike" && !c.At(i).each_round && c.At(i).type.shape.size() > rank)
      return c.Refuse("what is the same in all rounds has more axes than what is not", "export the model again");
    operands.push_back(c.At(i));
    if (operands.back().each_round) {
      operands.back().type = operands.back().value.type();
      operands.back().each_round = false;
    }
  }
  Node node = c.node;
  if (reduces) {
    std::vector<std::int64_t> axes = c.Numbers("axes", 1);
    if (axes.empty()) return c.Refuse("it goes along all axes", "name the axes");
    axes = c.Axes(axes, c.At(0).type.shape.size() + (c.node.op == "Unsqueeze" ? axes.size() : 0));
    if (!c.ok()) return {};
    for (std::int64_t& axis : axes) ++axis;  // behind that of the rounds
    node.attributes["axes"] = axes;
    operands.resize(1);
  }
  for (Operand& operand : operands) inputs.push_back(&operand);
  NodeContext all(c.s, node, std::move(inputs));
  Operands results = importer(all);
  for (Operand& result : results) {
    if (!result.value.valid()) return {};
    result.each_round = true;
    result.type.shape.erase(result.type.shape.begin());
  }
  return results;
}

void AddControl(Importers* table) {
  table->insert({
      {"ConcatFromSequence", ConcatFromSequence},
      {"If", If},
      {"Loop", Loop},
      {"SequenceAt", SequenceAt},
      {"SequenceConstruct", SequenceConstruct},
      {"SequenceEmpty", SequenceEmpty},
      {"SequenceInsert", SequenceInsert},
      {"SplitToSequence", SplitToSequence},
  });
}

}  // namespace ropewalk::mlrunner::onnx
