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

namespace ropewalk::mlrunner {
namespace {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
  int Number(const std::string& attribute) const { return std::stoi(attributes.at(attribute)); }
};

// Reads XML as strictly as its rules are, as far as pictures need them.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  Result<std::vector<Element>> Read() {
    while (at_ < text_.size()) {
      if (text_[at_] != '<') {
        ASSIGN_OR_RETURN(std::string words, Text('<'));
        if (!open_.empty()) {
          elements_[open_.back()].text += words;
        } else if (words.find_first_not_of(" \n") != std::string::npos) {
          return Error("text outside of the root");
        }
      } else if (Skip("</")) {
        std::string name = Name();
        if (open_.empty() || elements_[open_.back()].name != name || !Skip(">")) return Error("it closes what is not open");
        open_.pop_back();
      } else {
        RETURN_IF_ERROR(Open());
      }
    }
    if (!open_.empty() || roots_ != 1) return Error("it is not one element, closed at the end");
    return elements_;
  }

 private:
  Status Error(std::string why) const {
    return Status(Code::kDataLoss, "XML01", "at byte " + std::to_string(at_), std::move(why), "escape names, close elements");
  }
  bool Skip(std::string_view part) {
    if (text_.substr(at_, part.size()) != part) return false;
    at_ += part.size();
    return true;
  }
  std::string Name() {
    std::size_t from = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-')) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }
  Status Open() {
    Skip("<");
    Element element{Name(), {}, {}};
    if (element.name.empty()) return Error("an element without a name");
    roots_ += open_.empty();
    for (;;) {
      bool space = false;
      while (Skip(" ") || Skip("\n")) space = true;
      if (Skip("/>")) break;
      if (Skip(">")) {
        open_.push_back(elements_.size());
        break;
      }
      std::string name = Name();
      if (!space || name.empty() || !Skip("=\"")) return Error("what follows an element's name is no attribute");
      ASSIGN_OR_RETURN(std::string value, Text('"'));
      Skip("\"");
      if (!element.attributes.emplace(name, value).second) return Error("an attribute that stands twice");
    }
    elements_.push_back(std::move(element));
    return {};
  }
  // Up to `end`, unescaped.
  Result<std::string> Text(char end) {
    const std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}};
    std::string words;
    int continued = 0;  // bytes that a character of UTF-8 still wants
    while (at_ < text_.size() && text_[at_] != end) {
      auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte == '<' || (byte < ' ' && byte != '\n') || byte == 0x7f) return Error("a byte that must not stand there");
      if (((byte & 0xc0) == 0x80) != (continued > 0)) return Error("a part of a character");
      continued = continued > 0 ? continued - 1 : byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
      if (byte != '&') {
        words += text_[at_++];
        continue;
      }
      auto entity = std::find_if(std::begin(kEntities), std::end(kEntities), [&](const auto& known) { return Skip(known.first); });
      if (entity == std::end(kEntities)) return Error("an & that begins nothing");
      words += entity->second;
    }
    if (continued > 0) return Error("a part of a character");
    if (at_ == text_.size() && end != '<') return Error("a value without an end");
    return words;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Element> elements_;
  std::vector<std::size_t> open_;
  int roots_ = 0;
};

std::vector<Element> Named(const std::vector<Element>& elements, std::string_view name) {
  std::vector<Element> found;
  std::copy_if(elements.begin(), elements.end(), std::back_inserter(found), [&](const Element& e) { return e.name == name; });
  return found;
}

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
