// k-means: main computes the new centres from an action's result and hands them to the next. Input lines: X Y.   k_means POINTS K ROUNDS
#include <ropewalk/ropewalk.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct Point {
  double x = 0, y = 0;
};
struct Cluster {
  double x = 0, y = 0;  // sums
  std::uint64_t points = 0;
};

Point Parse(std::string_view line) {
  std::string text(line);
  char* end = nullptr;
  double x = std::strtod(text.c_str(), &end);
  return {x, std::strtod(end, nullptr)};
}

std::uint32_t Nearest(const std::vector<Point>& centres, const Point& p) {
  std::uint32_t best = 0;
  auto distance = [&](std::uint32_t i) {
    double dx = centres[i].x - p.x, dy = centres[i].y - p.y;
    return dx * dx + dy * dy;
  };
  for (std::uint32_t i = 1; i < centres.size(); ++i)
    if (distance(i) < distance(best)) best = i;
  return best;
}

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 4) return 2;
  auto points = job.ReadLines(argv[1]).Map(Parse).Cache();
  std::vector<Point> centres = points.Take(static_cast<std::size_t>(std::atoi(argv[2])));
  for (int round = 0; round < std::atoi(argv[3]); ++round) {
    auto current = job.Broadcast(centres);
    auto clusters = points.Map([current](const Point& p) { return std::pair(Nearest(*current, p), Cluster{p.x, p.y, 1}); })
                        .ReduceByKey([](const Cluster& a, const Cluster& b) { return Cluster{a.x + b.x, a.y + b.y, a.points + b.points}; });
    for (const auto& [i, c] : clusters.Collect()) {
      auto n = static_cast<double>(c.points);
      centres[i] = {c.x / n, c.y / n};
    }
  }
  for (const Point& centre : centres) std::printf("%.6f %.6f\n", centre.x, centre.y);
}
