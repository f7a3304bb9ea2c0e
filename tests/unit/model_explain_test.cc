// Pictures of graphs: that an XML reader takes them, and that what they show is the graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "mlrunner/graph/explain.h"
#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/maths.h"
#include "mlrunner/graph/ops.h"
#include "tests/unit/xml_reader.h"

namespace ropewalk::mlrunner {
namespace {

using testing::Element;
using testing::Named;
using testing::XmlReader;

// A graph with names that a reader of XML would stumble over.
Graph Odd() {
  Builder b;
  Dim batch = b.NewSymbol("B", 1, 1024);
  Value h = b.Input("x", Dtype::kF32, {batch, 4});
  std::vector<Value> parameters;
  std::string umlauts;
  for (int i = 0; i < 30; ++i) umlauts += "ä";  // cut at any odd byte, it is half a character
  for (const std::string& name : {std::string("a<b&\"c\">"), std::string("two\nlines\x01"), umlauts, "y" + umlauts}) {
    auto module = b.Module(name);
    Parameter w = b.NewParameter("w", {4, 4}, Initializer::Normal(1));
    parameters.push_back(w);
    h = Tanh(MatMul(h, w));
    b.Assign(w.state, w * .9);
  }
  Value loss = Mean(h);
  b.Output("loss", loss);
  for (const Gradient& g : Grad(loss, parameters)) b.Output("grad", g);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  return *std::move(graph);
}

TEST(Explain, PicturesAreXmlAndShowEachOpAndEdge) {
  Graph graph = Odd();
  auto elements = XmlReader(ExplainSvg(graph)).Read();
  ASSERT_TRUE(elements.ok()) << elements.status().ToString();
  ASSERT_EQ(elements->at(0).name, "svg");
  EXPECT_EQ(elements->at(0).attributes.at("xmlns"), "http://www.w3.org/2000/svg");

  std::vector<Element> boxes = Named(*elements, "rect"), titles = Named(*elements, "title"), edges = Named(*elements, "line");
  ASSERT_EQ(boxes.size(), graph.ops.size());
  ASSERT_EQ(titles.size(), graph.ops.size());
  int width = elements->at(0).Number("width"), height = elements->at(0).Number("height");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_NE(titles[i].text.find(std::string(graph.ops[i].def->name) + "("), std::string::npos) << titles[i].text;
    EXPECT_LE(boxes[i].Number("x") + boxes[i].Number("width"), width);
    EXPECT_LE(boxes[i].Number("y") + boxes[i].Number("height"), height);
    for (std::size_t k = 0; k < i; ++k) {
      EXPECT_TRUE(boxes[i].Number("x") != boxes[k].Number("x") || boxes[i].Number("y") != boxes[k].Number("y")) << i << " lies on " << k;
    }
  }
  auto shown = [&](const std::string& name) {
    return std::any_of(titles.begin(), titles.end(), [&](const Element& title) { return title.text.find(name) != std::string::npos; });
  };
  EXPECT_TRUE(shown("a<b&\"c\">/w"));
  EXPECT_TRUE(shown("two?lines?"));
  EXPECT_TRUE(shown("model_explain_test.cc:"));

  // One line for each input, from the foot of the op that makes it to the head of the one that takes it.
  std::vector<std::vector<int>> expected, drawn;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    for (ValueId in : graph.ops[i].inputs) {
      const Element& from = boxes[graph.value(in).producer.value];
      expected.push_back({from.Number("x") + from.Number("width") / 2, from.Number("y") + from.Number("height"),
                          boxes[i].Number("x") + boxes[i].Number("width") / 2, boxes[i].Number("y")});
      EXPECT_LT(expected.back()[1], expected.back()[3]);  // downwards
    }
  }
  for (const Element& edge : edges) drawn.push_back({edge.Number("x1"), edge.Number("y1"), edge.Number("x2"), edge.Number("y2")});
  std::sort(expected.begin(), expected.end());
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(drawn, expected);
}

TEST(Explain, LargeGraphsAreCutAndSaySo) {
  Graph graph = Odd();
  for (std::size_t ops_max : {std::size_t{0}, std::size_t{1}, std::size_t{5}, graph.ops.size() - 1}) {
    auto elements = XmlReader(ExplainSvg(graph, ops_max)).Read();
    ASSERT_TRUE(elements.ok()) << elements.status().ToString();
    EXPECT_EQ(Named(*elements, "rect").size(), ops_max);
    EXPECT_EQ(elements->back().text, "and " + std::to_string(graph.ops.size() - ops_max) + " more ops");
  }
}

// Control: the reader says no to what is nearly XML.
TEST(Explain, TheReaderIsStrict) {
  for (const char* good : {"<a/>", "<a b=\"c &amp; d\">e &lt; f<g/>\n</a>\n", "<a>ä</a>"}) EXPECT_TRUE(XmlReader(good).Read().ok()) << good;
  for (const char* bad : {"", "<a>", "<a></b>", "<a/><b/>", "<a>b & c</a>", "<a b=\"<\"/>", "<a b=\"c\" b=\"d\"/>", "<a b=c/>",
                          "<a>\x01</a>", "<a>\xc3</a>", "<a>\xa4</a>", "<a b=\"c", "a", "<a></a></a>", "<a>&lt</a>"}) {
    EXPECT_FALSE(XmlReader(bad).Read().ok()) << bad;
  }
}

}  // namespace
}  // namespace ropewalk::mlrunner
