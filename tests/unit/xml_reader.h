// Reads the XML of pictures as strictly as its rules are, as far as pictures need them: a test that it takes a picture shows that a browser
// does.
//
// Thread rule: values.
#pragma once

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace ropewalk::testing {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
  int Number(const std::string& attribute) const { return std::stoi(attributes.at(attribute)); }
};

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

inline std::vector<Element> Named(const std::vector<Element>& elements, std::string_view name) {
  std::vector<Element> found;
  std::copy_if(elements.begin(), elements.end(), std::back_inserter(found), [&](const Element& e) { return e.name == name; });
  return found;
}

}  // namespace ropewalk::testing
