// Calls of `ropewalk train` from a cluster's folder, as a user types them there.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/cluster.h"

namespace ropewalk::cluster {

class TrainCalls : public testing::Test {
 protected:
  explicit TrainCalls(Cluster::Options options) : cluster_(std::move(options)) {}

  // ropewalk train WORDS...; `behind` come after the flags that name the cluster.
  std::unique_ptr<Process> Call(std::vector<std::string> words, const std::vector<std::string>& behind, bool on_cluster) {
    std::vector<std::string> argv = {Binary("ropewalk"), "train"};
    argv.insert(argv.end(), words.begin(), words.end());
    if (on_cluster) argv.insert(argv.end(), {"--master", cluster_.address(), "--token-file", cluster_.token_file()});
    argv.insert(argv.end(), behind.begin(), behind.end());
    return std::make_unique<Process>(Process::Options{std::move(argv),
                                                      {"HOME=" + (cluster_.dir() / "home").string()},
                                                      cluster_.dir(),
                                                      cluster_.dir() / ("train" + std::to_string(calls_++))});
  }
  // The number after "name": in the line that it ends with; -1: there is none.
  static double Number(const std::string& json, const std::string& name) {
    std::size_t at = json.find("\"" + name + "\":");
    return at == std::string::npos ? -1 : std::strtod(json.c_str() + at + name.size() + 3, nullptr);
  }

  Cluster cluster_;

 private:
  int calls_ = 0;
};

}  // namespace ropewalk::cluster
