#include "mlrunner/graph/explain.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "base/escape_xml.h"
#include "mlrunner/graph/op_def.h"

namespace ropewalk::mlrunner {
namespace {

std::string RegionName(const Graph& graph, const RegionInfo& region) {
  std::string name(Name(region.kind));
  if (region.parameter.valid() && region.kind == RegionKind::kForward) return "once, before " + name;
  if (region.parameter.valid()) return name + " of " + graph.state(region.parameter).name;
  return region.stage == 0 ? name : fmt::format("{}, stage {}", name, region.stage);
}

std::string Show(const Graph& graph, const AttrValue& value) {
  if (const auto* v = std::get_if<std::int64_t>(&value)) return std::to_string(*v);
  if (const auto* v = std::get_if<double>(&value)) return fmt::format("{:g}", *v);
  if (const auto* v = std::get_if<std::string>(&value)) return *v;
  if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) return ToString(*v);
  if (const auto* v = std::get_if<Shape>(&value)) return ToString(*v, graph.symbols);
  return fmt::format("{} bytes", std::get<Literal>(value).bytes->size());
}

std::string Type(const Graph& graph, ValueId id) {
  const ValueInfo& value = graph.value(id);
  if (value.type.dtype == Dtype::kToken) return value.state.valid() ? "version of " + graph.state(value.state).name : "version";
  std::string text = fmt::format("{} {}", ToString(value.type.shape, graph.symbols), Name(value.type.dtype));
  if (!value.layout.IsRowMajor()) text += " layout " + value.layout.ToString();
  if (!value.sharding.IsReplicated()) text += " " + value.sharding.ToString(graph.mesh);
  return text;
}

std::string Line(const Graph& graph, const Op& op) {
  std::string text;
  for (ValueId out : op.outputs) text += fmt::format("{}%{} {}", text.empty() ? "" : ", ", out.value, Type(graph, out));
  text += fmt::format("{}{}{}(", text.empty() ? "" : " = ", op.def->name,
                      op.half == Half::kStart  ? ".start"
                      : op.half == Half::kDone ? ".done"
                                               : "");
  for (std::size_t i = 0; i < op.inputs.size(); ++i) text += fmt::format("{}%{}", i == 0 ? "" : ", ", op.inputs[i].value);
  text += ")";
  for (const auto& [attr, value] : op.attrs.All()) {
    if (attr != Attr::kDtype && attr != Attr::kShape) text += fmt::format(" {}={}", Name(attr), Show(graph, value));
  }
  if (op.clone > 0) text += fmt::format(" clone={}", op.clone);
  if (!op.provenance.module.empty()) text += "  # " + op.provenance.module;
  if (op.provenance.where.line > 0) {
    const char* slash = std::strrchr(op.provenance.where.file, '/');
    text += fmt::format("  # {}:{}", slash == nullptr ? op.provenance.where.file : slash + 1, op.provenance.where.line);
  }
  return text;
}

// The beginning of a text, which does not end within a character of UTF-8.
std::string Beginning(const std::string& text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  while (bytes_max > 0 && (static_cast<unsigned char>(text[bytes_max]) & 0xc0) == 0x80) --bytes_max;
  return text.substr(0, bytes_max);
}

}  // namespace

std::string ExplainText(const Graph& graph) {
  std::string text;
  for (const StateInfo& state : graph.states) {
    text += fmt::format("state {}: {}, {} {}\n", state.name, Name(state.kind), ToString(state.type.shape, graph.symbols),
                        Name(state.type.dtype));
  }
  for (std::uint32_t r = 0; r < graph.regions.size(); ++r) {
    std::string lines;
    for (const Op& op : graph.ops) {
      if (op.region.value != r) continue;
      lines += "  " + Line(graph, op) + "\n";
      for (const auto& body : op.bodies) {
        for (const Op& inner : body->ops) lines += "    | " + Line(*body, inner) + "\n";
      }
    }
    if (!lines.empty()) text += RegionName(graph, graph.regions[r]) + ":\n" + lines;
  }
  for (const NamedValue& output : graph.outputs) text += fmt::format("output {} = %{}\n", output.name, output.value.value);
  for (const NamedValue& tap : graph.taps) text += fmt::format("tap {} = %{}\n", tap.name, tap.value.value);
  return text;
}

std::string ExplainSvg(const Graph& graph, std::size_t ops_max) {
  constexpr int kWidth = 170, kHeight = 34, kGapX = 14, kGapY = 26;
  constexpr const char* kColours[] = {"#dbeafe", "#fde2e2", "#dcfce7"};  // forward, backward, update
  std::size_t count = std::min(ops_max, graph.ops.size());
  std::vector<int> depth(count), column(count);
  std::map<int, int> next_column;
  int columns = 1, rows = 1;
  for (std::size_t i = 0; i < count; ++i) {
    for (ValueId in : graph.ops[i].inputs) depth[i] = std::max(depth[i], depth[graph.value(in).producer.value] + 1);
    column[i] = next_column[depth[i]]++;
    columns = std::max(columns, column[i] + 1);
    rows = std::max(rows, depth[i] + 1);
  }
  int width = columns * (kWidth + kGapX) + kGapX, height = rows * (kHeight + kGapY) + kGapY + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
      "font-size=\"10\">\n",
      width, height);
  auto x = [&](std::size_t i) { return kGapX + column[i] * (kWidth + kGapX); };
  auto y = [&](std::size_t i) { return kGapY + depth[i] * (kHeight + kGapY); };
  for (std::size_t i = 0; i < count; ++i) {
    for (ValueId in : graph.ops[i].inputs) {
      std::size_t from = graph.value(in).producer.value;
      svg += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#999\"{}/>\n", x(from) + kWidth / 2, y(from) + kHeight,
                         x(i) + kWidth / 2, y(i), graph.value(in).type.dtype == Dtype::kToken ? " stroke-dasharray=\"3 3\"" : "");
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Op& op = graph.ops[i];
    std::string type = op.outputs.empty() ? "" : Type(graph, op.outputs[0]);
    svg += fmt::format("<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" stroke=\"#555\"{}/>",
                       EscapeXml(Line(graph, op)), x(i), y(i), kWidth, kHeight, kColours[static_cast<int>(graph.region(op.region).kind)],
                       op.clone > 0 ? " stroke-dasharray=\"4 2\"" : "");
    svg += fmt::format("<text x=\"{}\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" fill=\"#555\">{}</text></g>\n", x(i) + 6, y(i) + 14,
                       EscapeXml(op.def->name), x(i) + 6, y(i) + 27, EscapeXml(Beginning(type, 34)));
  }
  if (count < graph.ops.size()) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\">and {} more ops</text>\n", kGapX, height - 8, graph.ops.size() - count);
  }
  return svg + "</svg>\n";
}

}  // namespace ropewalk::mlrunner
