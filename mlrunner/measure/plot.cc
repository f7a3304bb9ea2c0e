#include "mlrunner/measure/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/escape_xml.h"

namespace ropewalk::measure {
namespace {

constexpr double kLeft = 70, kTop = 40, kWidth = 640, kHeight = 400, kBelow = 50, kLegend = 230, kLine = 18;
// Told apart by people who do not see all colours, too (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

// Whole powers of a base, from below the least to above the greatest.
struct Axis {
  double base = 10;
  double low = std::numeric_limits<double>::infinity(), high = -low;  // exponents

  void Cover(double value) {
    low = std::min(low, std::floor(std::log(value) / std::log(base)));
    high = std::max(high, std::ceil(std::log(value) / std::log(base)));
  }
  void Close() {
    if (low > high) low = 0, high = 1;
    if (low == high) ++high;
  }
  double Part(double value) const { return (std::log(value) / std::log(base) - low) / (high - low); }
};

std::string PowerOfTwo(double exponent) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  const int unit = std::clamp(static_cast<int>(exponent) / 10, 0, 4);
  return fmt::format("{:g}{}", std::exp2(exponent - 10 * unit), kUnits[unit]);
}

bool IsOnAxes(const Place& place) { return place.x > 0 && place.y > 0 && std::isfinite(place.x) && std::isfinite(place.y); }

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, EscapeXml(text));
}

}  // namespace

std::string Svg(const Plot& plot) {
  Axis across{.base = 2}, up{.base = 10};
  for (const Curve& curve : plot.curves)
    for (const auto* places : {&curve.measured, &curve.predicted})
      for (const Place& place : *places)
        if (IsOnAxes(place)) {
          across.Cover(place.x);
          up.Cover(place.y);
        }
  across.Close();
  up.Close();
  auto x = [&](double value) { return kLeft + kWidth * across.Part(value); };
  auto y = [&](double value) { return kTop + kHeight * (1 - up.Part(value)); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kLeft + kWidth + kLegend, std::max(kTop + kHeight + kBelow, kTop + kLine * static_cast<double>(plot.curves.size() + 2)));
  svg += Text(kLeft + kWidth / 2, kTop - 16, "middle", plot.title);
  svg += Text(kLeft + kWidth / 2, kTop + kHeight + 40, "middle", plot.x_label);
  svg += Text(kLeft, kTop - 16, "middle", plot.y_label);
  const double every = std::ceil((across.high - across.low) / 12);  // labels that do not touch
  for (double exponent = across.low; exponent <= across.high; exponent += every) {
    const double at = x(std::exp2(exponent));
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#dddddd\"/>\n", at, kTop, kTop + kHeight);
    svg += Text(at, kTop + kHeight + 18, "middle", PowerOfTwo(exponent));
  }
  for (double exponent = up.low; exponent <= up.high; ++exponent) {
    const double at = y(std::pow(10, exponent));
    svg += fmt::format("<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#dddddd\"/>\n", at, kLeft, kLeft + kWidth);
    svg += Text(kLeft - 8, at + 4, "end", fmt::format("{:g}", std::pow(10, exponent)));
  }
  for (std::size_t c = 0; c < plot.curves.size(); ++c) {
    const Curve& curve = plot.curves[c];
    const char* colour = kColours[c % std::size(kColours)];
    for (const bool is_measured : {false, true}) {
      std::string corners, dots;
      for (const Place& place : is_measured ? curve.measured : curve.predicted) {
        if (!IsOnAxes(place)) continue;
        corners += fmt::format("{}{:.1f},{:.1f}", corners.empty() ? "" : " ", x(place.x), y(place.y));
        if (is_measured)
          dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {:g} at {:g}</title></circle>\n",
                              x(place.x), y(place.y), colour, EscapeXml(curve.name), place.y, place.x);
      }
      if (corners.empty()) continue;
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"{}/>\n", corners, colour,
                         is_measured ? "" : " stroke-dasharray=\"5 4\"");
      svg += dots;
    }
    const double at = kTop + kLine * static_cast<double>(c + 1);
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", kLeft + kWidth + 12, at - 4,
                       kLeft + kWidth + 36, at - 4, colour);
    svg += Text(kLeft + kWidth + 42, at, "start", curve.name);
  }
  svg += Text(kLeft + kWidth + 42, kTop + kLine * static_cast<double>(plot.curves.size() + 1), "start", "broken: predicted");
  return svg + "</svg>\n";
}

}  // namespace ropewalk::measure
