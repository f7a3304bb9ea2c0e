// What a bench says: to main, to people, to programs, as a picture.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mlrunner/measure/report.h"
#include "tests/unit/xml_reader.h"

namespace ropewalk::measure {
namespace {

using nlohmann::json;

BenchJob Job() { return {.ranks = 4, .left_out = {"native: it needs a \"library\""}}; }

BenchReport Report() {
  BenchReport report{.machines = 2};
  WireReport& wire = report.wires.emplace_back();
  wire.wire = "tcp";
  wire.model.call_ns = 1'500;
  wire.model.latency_ns = 20'000;
  wire.model.overhead_ns = 250;
  wire.model.ns_per_byte = .5;
  wire.model.alone_ns_per_byte = .25;
  wire.model.reduce_ns_per_byte = .125;
  wire.model.copy_ns_per_byte = .0625;
  wire.model.from_first = {{}, {21'000, .25}, {22'000, .5}, {23'000, .75}};
  wire.model.beyond = {{.bytes = 1 << 20, .ns_per_byte = 1, .reduce_ns_per_byte = .5, .copy_ns_per_byte = .25}};
  wire.model.across_latency_ns = 30'000;
  wire.model.across_ns_per_byte = 8;
  report.choices = {{.wire = "tcp", .bytes = 4'096, .text = "ring: 12.0 us predicted"}, {.wire = "shared", .bytes = 4'096, .text = "none"}};
  report.points = {{.algorithm = "ring",
                    .wire = "tcp",
                    .is_chosen = true,
                    .bytes = 4'096,
                    .count = 1'024,
                    .iterations = 20,
                    .median_us = 16,
                    .p95_us = 20,
                    .least_us = 15,
                    .predicted_us = 12,
                    .wrong = 0},
                   {.algorithm = "direct",
                    .wire = "tcp",
                    .bytes = 1'000'000,
                    .count = 250'000,
                    .iterations = 5,
                    .median_us = 1'000,
                    .p95_us = 1'200,
                    .least_us = 900,
                    .predicted_us = 800,
                    .wrong = 3,
                    .first_wrong = "rank 2: element 7 is nan and should be 4"},
                   {.algorithm = "chain", .wire = "tcp", .bytes = 4'096, .count = 1'024, .iterations = 20, .median_us = 32, .p95_us = 40}};
  return report;
}

TEST(BenchReport, TravelsWhole) {
  const std::string bytes = Encode(Report());
  auto again = DecodeBenchReport(bytes);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(Encode(*again), bytes);
  EXPECT_EQ(AsJson(Job(), *again), AsJson(Job(), Report()));
  EXPECT_EQ(again->points[1].first_wrong, Report().points[1].first_wrong);
  EXPECT_EQ(again->wires[0].model.from_first[3].ns_per_byte, .75);
  EXPECT_EQ(again->wires[0].model.beyond, Report().wires[0].model.beyond);
  EXPECT_EQ(again->choices[0].text, "ring: 12.0 us predicted");
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodeBenchReport(bytes.substr(0, cut)).ok()) << cut;
  EXPECT_FALSE(DecodeBenchReport(bytes + "x").ok());
}

TEST(BenchReport, JsonHasTheTermsOfTheTable) {
  const json report = json::parse(AsJson(Job(), Report()));
  EXPECT_EQ(report["collective"], "allreduce");
  EXPECT_EQ(report["ranks"], 4);
  EXPECT_EQ(report["machines"], 2);
  EXPECT_EQ(report["left_out"][0], "native: it needs a \"library\"");
  const json& costs = report["calibration"][0];
  EXPECT_EQ(costs["wire"], "tcp");
  EXPECT_EQ(costs["latency_ns"], 20'000);
  EXPECT_EQ(costs["alone_ns_per_byte"], .25);
  EXPECT_EQ(costs["beyond"][0]["bytes"], 1 << 20);
  EXPECT_EQ(costs["beyond"][0]["copy_ns_per_byte"], .25);
  EXPECT_EQ(costs["across_ns_per_byte"], 8);
  EXPECT_EQ(report["choices"][0]["choice"], "ring: 12.0 us predicted");
  EXPECT_EQ(report["choices"][0]["size"], 4'096);
  EXPECT_EQ(costs["from_rank_0"].size(), 3u);
  EXPECT_EQ(costs["from_rank_0"][2]["rank"], 3);
  const json& point = report["points"][1];
  EXPECT_EQ(point["algorithm"], "direct");
  EXPECT_EQ(point["size"], 1'000'000);
  EXPECT_EQ(point["count"], 250'000);
  EXPECT_EQ(point["median_us"], 1'000);
  EXPECT_EQ(point["algbw_gb_per_s"], 1);
  EXPECT_EQ(point["busbw_gb_per_s"], 1.5) << "2(P - 1)/P of four ranks";
  EXPECT_EQ(point["predicted_us"], 800);
  EXPECT_EQ(point["wrong"], 3);
  EXPECT_FALSE(point["chosen"]);
  EXPECT_TRUE(report["points"][0]["chosen"]);
  EXPECT_TRUE(report["points"][2]["wrong"].is_null()) << "it was not checked";
  std::istringstream lines(AsJsonLines(Job(), Report()));
  std::string line;
  std::size_t count = 0;
  for (; std::getline(lines, line); ++count) EXPECT_EQ(json::parse(line), report["points"][count]);
  EXPECT_EQ(count, 3u);
}

TEST(BenchReport, TheTableIsForPeople) {
  const std::string table = AsTable(Job(), Report());
  EXPECT_EQ(
      table,
      "# allreduce of f32, sum, 4 ranks on 2 machines; a time is the slowest rank's, from a barrier on; * is chosen where none is named\n"
      "# left out: native: it needs a \"library\"\n"
      "# tcp: a call 1.50 us, latency 20.00 us, overhead 0.25 us, a link 2.00 GB/s (4.00 GB/s alone), reduced at 8.00 GB/s\n"
      "#   in vectors of 1M: a link 1.00 GB/s, reduced at 2.00 GB/s, copied at 4.00 GB/s\n"
      "#   to another machine: latency 30.00 us more, a machine's link 0.12 GB/s\n"
      "# 4K over tcp: ring: 12.0 us predicted\n"
      "   size   count  dtype  algorithm  wire  median us  p95 us  algbw GB/s  busbw GB/s  predicted us  wrong\n"
      "     4K    1024    f32      ring*   tcp      16.00   20.00       0.256       0.384         12.00      0\n"
      "1000000  250000    f32     direct   tcp     1000.0  1200.0       1.000       1.500         800.0      3\n"
      "     4K    1024    f32      chain   tcp      32.00   40.00       0.128       0.192          0.00      -\n");
  BenchJob barrier{.collective = collective::Collective::kBarrier, .ranks = 1};
  EXPECT_EQ(Title(barrier), "barrier of f32, 1 rank");
}

TEST(BenchReport, APictureHasEveryPointWhereItBelongs) {
  auto elements = testing::XmlReader(AsSvg(Job(), Report())).Read();
  ASSERT_TRUE(elements.ok()) << elements.status().ToString();
  EXPECT_EQ(elements->at(0).attributes.at("xmlns"), "http://www.w3.org/2000/svg");
  const auto dots = testing::Named(*elements, "circle");
  ASSERT_EQ(dots.size(), 3u);
  auto number = [](const testing::Element& element, const char* name) { return std::stod(element.attributes.at(name)); };
  // ring and chain: the same size, the first twice as fast; direct: larger and faster.
  EXPECT_EQ(number(dots[0], "cx"), number(dots[2], "cx"));
  EXPECT_LT(number(dots[0], "cx"), number(dots[1], "cx"));
  EXPECT_LT(number(dots[0], "cy"), number(dots[2], "cy"));
  EXPECT_LT(number(dots[1], "cy"), number(dots[0], "cy"));
  const double width = number(elements->at(0), "width"), height = number(elements->at(0), "height");
  for (const auto& dot : dots)
    EXPECT_TRUE(number(dot, "cx") > 0 && number(dot, "cx") < width && number(dot, "cy") > 0 && number(dot, "cy") < height);
  // Of each curve the measured line and the predicted one, but where nothing was predicted.
  EXPECT_EQ(testing::Named(*elements, "polyline").size(), 5u);
  std::string words;
  for (const auto& text : testing::Named(*elements, "text")) words += text.text + "|";
  for (const char* part : {"allreduce of f32, sum, 4 ranks|", "bus bandwidth, GB/s|", "4K|", "ring, tcp|", "direct, tcp|"})
    EXPECT_NE(words.find(part), std::string::npos) << part << " in " << words;
}

TEST(BenchReport, APictureOfNothingIsOne) {
  for (const BenchJob& job : {BenchJob{.ranks = 1}, BenchJob{.collective = collective::Collective::kBarrier, .ranks = 3}}) {
    auto elements = testing::XmlReader(AsSvg(job, {.points = {{.algorithm = "x", .wire = "tcp", .median_us = 3}}})).Read();
    ASSERT_TRUE(elements.ok()) << elements.status().ToString();
    EXPECT_TRUE(testing::Named(*elements, "circle").empty());
  }
}

TEST(BenchReport, QuantilesAreOfTheNearestRank) {
  EXPECT_EQ(Quantile({}, .5), 0);
  EXPECT_EQ(Quantile({7}, .95), 7);
  EXPECT_EQ(Quantile({1, 2, 3, 4}, .5), 2);
  EXPECT_EQ(Quantile({1, 2, 3}, .5), 2);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, .95), 95);
  EXPECT_EQ(Quantile(hundred, 1), 100);
}

}  // namespace
}  // namespace ropewalk::measure
