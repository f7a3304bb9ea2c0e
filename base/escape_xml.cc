#include "base/escape_xml.h"

namespace ropewalk {

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '&')
      escaped += "&amp;";
    else if (c == '"')
      escaped += "&quot;";
    else if (static_cast<unsigned char>(c) < ' ' || c == '\x7f')
      escaped += '?';
    else
      escaped += c;
  }
  return escaped;
}

}  // namespace ropewalk
