// Curves over two logarithmic axes, as a picture (SVG) that a browser shows without anything else.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

namespace ropewalk::measure {

struct Place {
  double x = 0, y = 0;
};

struct Curve {
  std::string name;
  std::vector<Place> measured;   // a full line, with a dot at each place
  std::vector<Place> predicted;  // a broken line of the same colour
};

struct Plot {
  std::string title, x_label, y_label;  // x in powers of two, labelled 4K, 1M; y in powers of ten
  std::vector<Curve> curves;
};

// Places whose x or y is not positive have none on these axes and are left out.
std::string Svg(const Plot& plot);

}  // namespace ropewalk::measure
