// The GPU's kernels in graphs, op by op and in a training, against the float64 reference. Without a GPU they run by the fake plugin, whose
// kernels are the real ones' arithmetic; ROPEWALK_TEST_GPU_PLUGIN names the real one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "mlrunner/gpu/kernels.h"
#include "mlrunner/graph/infer.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/unit/against_reference.h"

namespace ropewalk::mlrunner {
namespace {

class GpuKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* real = std::getenv("ROPEWALK_TEST_GPU_PLUGIN");
    is_fake_ = real == nullptr;
    auto plugin = GpuPlugin::Open({is_fake_ ? std::string(ROPEWALK_GPU_PLUGINS) + "/fake_gpu_plugin.so" : real});
    if (!plugin.ok() && plugin.status().tag() == "GPU03") GTEST_SKIP() << plugin.status().ToString();
    ASSERT_TRUE(plugin.ok()) << plugin.status().ToString();
    auto gpu = Gpu::Open(*std::move(plugin), {.pool_bytes_max = 256 << 20});
    ASSERT_TRUE(gpu.ok()) << gpu.status().ToString();
    gpu_ = *std::move(gpu);
  }
  // Nothing is left on the device when the executables have gone.
  void TearDown() override {
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->memory_use().used_bytes, 0u);
    }
  }
  KernelTable Table() const {
    KernelTable table = CpuKernels();
    AddGpuKernels(&table, gpu_);
    return table;
  }
  std::shared_ptr<Gpu> gpu_;
  bool is_fake_ = true;
};

struct Case {
  const char* name;
  std::vector<Shape> shapes;  // of floating-point inputs
  CaseFunction function;
  double low = -2, high = 2;
};

Value Labels(Builder& b, Dtype dtype, std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> narrow;
  for (std::int64_t row = 0; row < rows; ++row) narrow.push_back(static_cast<std::int32_t>(row * 7919 % classes));
  if (dtype == Dtype::kI32) return Constant(b, Literal::Of(dtype, {rows}, narrow));
  return Constant(b, Literal::Of(dtype, {rows}, std::vector<std::int64_t>(narrow.begin(), narrow.end())));
}

Vars AdamW(Builder& b, const Vars& v) {
  const Dtype wide = AtLeastF32(v[0].dtype());  // 301 steps: bf16 has no such number
  return b.Emit(kAdamW, {v[0], v[1], v[2] * v[2], v[3], b.Number(.001953125, wide), b.Number(301, wide)},
                {{Attr::kLow, .9}, {Attr::kHigh, .999}, {Attr::kEpsilon, 1e-8}, {Attr::kValue, .01}});
}

std::vector<Case> Cases() {
  auto product = [](bool ta, bool tb) { return [=](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1], ta, tb)}; }; };
  auto entropy = [](Dtype labels, std::int64_t rows, std::int64_t classes) {
    return [=](Builder& b, const Vars& v) {
      Vars both = b.Emit(kCrossEntropy, {v[0], Labels(b, labels, rows, classes)}, {});
      Value gradient = b.EmitOne(kCrossEntropyGrad, {v[0], Labels(b, labels, rows, classes), both[1], v[1]}, {});
      return Vars{both[0], both[1], gradient};
    };
  };
  return {
      {"plain", {{33, 65}, {65, 47}}, product(false, false)},
      {"ta", {{65, 33}, {65, 47}}, product(true, false)},
      {"tb", {{33, 65}, {47, 65}}, product(false, true)},
      {"ta tb", {{65, 33}, {47, 65}}, product(true, true)},
      {"batch", {{2, 3, 9, 17}, {2, 3, 17, 5}}, product(false, false)},
      {"batch tb", {{2, 3, 9, 17}, {2, 3, 5, 17}}, product(false, true)},
      {"batch ta", {{6, 17, 9}, {6, 17, 5}}, product(true, false)},
      {"one right side", {{4, 9, 17}, {17, 5}}, product(false, false)},
      {"one right side, ta", {{4, 17, 9}, {17, 5}}, product(true, false)},
      {"one left side", {{9, 17}, {4, 17, 5}}, product(false, false)},
      {"a row", {{1, 300}, {300, 1}}, product(false, false)},
      {"adamw", {{1031}, {1031}, {1031}, {1031}}, AdamW},
      {"adamw of a table", {{37, 41}, {37, 41}, {37, 41}, {37, 41}}, AdamW},
      {"entropy", {{37, 10}, {37}}, entropy(Dtype::kI32, 37, 10), -9, 9},
      {"entropy, wide", {{5, 3001}, {5}}, entropy(Dtype::kI64, 5, 3001), -9, 9},
      {"entropy, one class", {{3, 1}, {3}}, entropy(Dtype::kI32, 3, 1), -9, 9},
  };
}

// The worst error of any output, relative to its largest magnitude.
double Error(const Case& test, Dtype dtype, Device device, const KernelTable& table, std::size_t* fallbacks) {
  const auto graph = GraphOf(test.shapes, dtype, test.function);
  if (!graph) return HUGE_VAL;
  const DrawnInputs inputs(test.shapes, dtype, test.low, test.high);
  // Values between ops are rounded as ours are: what is compared is the last op's own error.
  const Ran ran = RunAgainst(ByReference(*graph, inputs, true), *graph, inputs, table, {.device = device});
  *fallbacks = ran.fallbacks;
  return ran.error;
}

TEST_F(GpuKernels, AsTheReference) {
  for (const Case& test : Cases()) {
    SCOPED_TRACE(test.name);
    std::size_t fallbacks = 0;
    // As model_kernels_test has it: 33 units of f32's last place; here and there one more of bf16's.
    EXPECT_LE(Error(test, Dtype::kF32, Device::kGpu, Table(), &fallbacks), 2e-6);
    EXPECT_EQ(fallbacks, 0u);
    EXPECT_LE(Error(test, Dtype::kBF16, Device::kGpu, Table(), &fallbacks), 1 / 128.0);
    // The CPU's twins of the same kernels.
    EXPECT_LE(Error(test, Dtype::kF32, Device::kCpu, CpuKernels(), &fallbacks), 2e-6);
  }
}

// The table must have found them: without the CPU's kernels the same bf16 graph has nothing but these and the reference.
TEST_F(GpuKernels, AreTaken) {
  for (const Case& test : Cases()) {
    SCOPED_TRACE(test.name);
    std::size_t with = 0, without = 0;
    KernelTable alone;
    AddGpuKernels(&alone, gpu_);
    Error(test, Dtype::kBF16, Device::kGpu, alone, &with);
    Error(test, Dtype::kBF16, Device::kGpu, KernelTable(), &without);
    EXPECT_LT(with, without);
  }
}

// A product that the library has no algorithm for, and one that is no batch of matrices, are the CPU's.
TEST_F(GpuKernels, WhatIsDeclinedIsTheCpus) {
  if (!is_fake_) GTEST_SKIP() << "the fake declines a product of 13 rows";
  auto product = [](Builder&, const Vars& v) { return Vars{MatMul(v[0], v[1])}; };
  std::size_t fallbacks = 0;
  EXPECT_LE(Error({"13 rows", {{13, 17}, {17, 5}}, product}, Dtype::kF32, Device::kGpu, Table(), &fallbacks), 2e-6);
  EXPECT_EQ(fallbacks, 0u);
  EXPECT_LE(Error({"both ways", {{2, 1, 9, 17}, {1, 3, 17, 5}}, product}, Dtype::kF32, Device::kGpu, Table(), &fallbacks), 2e-6);
  auto wide = [](Builder& b, const Vars& v) {
    return Vars{b.EmitOne(kMatMul, v, {{Attr::kDtype, static_cast<std::int64_t>(Dtype::kF32)}})};
  };
  EXPECT_LE(Error({"bf16 written in f32", {{9, 17}, {17, 5}}, wide}, Dtype::kBF16, Device::kGpu, Table(), &fallbacks), 2e-6);
  EXPECT_EQ(fallbacks, 0u);
  EXPECT_LE(Error({"f64", {{9, 17}, {17, 5}}, product}, Dtype::kF64, Device::kGpu, Table(), &fallbacks), 1e-12);
  EXPECT_EQ(fallbacks, 1u);
}

TEST_F(GpuKernels, LabelsOutOfRangeAreNamed) {
  for (std::int32_t bad : {-1, 10}) {
    Builder b;
    Value x = b.Input("x", Dtype::kF32, {3, 10});
    b.Output("loss", CrossEntropy(x, Constant(b, Literal::Of(Dtype::kI32, {3}, std::vector<std::int32_t>{3, bad, bad}))));
    Graph graph = *b.Finish();
    auto executable = Compile(graph, {}, {}, Table(), {.device = Device::kGpu});
    ASSERT_TRUE(executable.ok());
    Tensor zeros = ToTensor(Dtype::kF32, {{3, 10}, std::vector<double>(30)});
    RunInputs inputs;
    inputs.micro_batches[0] = {&zeros};
    StateStore states;
    Status status = (*executable)->Run(inputs, states).status();
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_NE(status.ToString().find("label of sample 1 is " + std::to_string(bad)), std::string::npos) << status.ToString();
  }
}

// Ops of both devices in one step, states written where they lie: what CPU and GPU learn is the same up to rounding.
TEST_F(GpuKernels, LearnWhatTheCpuLearns) {
  Builder b;
  Value x = b.Input("x", Dtype::kF32, {16, 12});
  Value labels = Labels(b, Dtype::kI32, 16, 5);
  std::vector<Parameter> parameters = {b.NewParameter("w1", {12, 24}, Initializer::Normal(.3)),
                                       b.NewParameter("b1", {24}, Initializer::Zeros()),
                                       b.NewParameter("w2", {24, 5}, Initializer::Normal(.3))};
  Value hidden = Relu(MatMul(x, parameters[0]) + parameters[1]);
  Value loss = Mean(CrossEntropy(MatMul(hidden, parameters[2]), labels));
  b.Output("loss", loss);
  ApplyAdamW(b, parameters, Grad(loss, {parameters.begin(), parameters.end()}), .01);
  auto graph = b.Finish();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Random random(5);
  RefTensor numbers{{16, 12}, {}};
  for (int i = 0; i < 16 * 12; ++i) numbers.data.push_back(RoundTo(Dtype::kF32, random.Unit() * 2 - 1));
  const Tensor input = ToTensor(Dtype::kF32, numbers);
  auto learn = [&](Device device) {
    auto executable = Compile(*graph, {}, DefaultProgram(*graph), Table(), {.device = device});
    EXPECT_TRUE(executable.ok()) << executable.status().ToString();
    std::vector<double> losses;
    StateStore states;
    for (std::uint64_t step = 0; step < 30 && executable.ok(); ++step) {
      RunInputs inputs;
      inputs.micro_batches[0] = {&input};
      inputs.run = {.seed = 3, .step = step};
      auto outputs = (*executable)->Run(inputs, states);
      EXPECT_TRUE(outputs.ok()) << outputs.status().ToString();
      if (!outputs.ok()) break;
      losses.push_back(ToRef(outputs->outputs[0][0]).data[0]);
    }
    return losses;
  };
  const std::vector<double> cpu = learn(Device::kCpu), gpu = learn(Device::kGpu);
  ASSERT_EQ(gpu.size(), 30u);
  EXPECT_LT(gpu.back(), gpu.front() / 2) << "it does not learn";
  // AdamW's first steps are signs of gradients: small differences stay small, but grow.
  for (std::size_t step = 0; step < gpu.size(); ++step) EXPECT_NEAR(gpu[step], cpu[step], 1e-4 * cpu[0]) << step;
}

}  // namespace
}  // namespace ropewalk::mlrunner
