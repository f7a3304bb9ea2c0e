// How the GPU plugin is found and opened, and why not: a machine that cannot use one computes on the CPU and says the reason once.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "mlrunner/gpu/gpu.h"

namespace ropewalk::mlrunner {
namespace {

std::string Plugin(const std::string& name) { return std::string(ROPEWALK_GPU_PLUGINS) + "/" + name + ".so"; }

TEST(GpuLoader, LooksWhereTheUserSaysElseBesideTheExecutable) {
  EXPECT_EQ(GpuPluginPlaces("/x/y.so", "/opt/bin/train"), std::vector<std::string>{"/x/y.so"});
  EXPECT_EQ(GpuPluginPlaces("", "/opt/bin/train"),
            (std::vector<std::string>{"/opt/bin/ropewalk_gpu.so", "/opt/lib/ropewalk/ropewalk_gpu.so"}));
  EXPECT_TRUE(GpuPluginPlaces("", "").empty());
  EXPECT_NE(ThisExecutable().find("gpu_loader_test"), std::string::npos) << ThisExecutable();
}

TEST(GpuLoader, TakesTheFirstThatIsThere) {
  auto plugin = GpuPlugin::Open({"/no/such/folder/ropewalk_gpu.so", Plugin("fake_gpu_plugin"), Plugin("broken_gpu_plugin_symbol")});
  ASSERT_TRUE(plugin.ok()) << plugin.status().ToString();
  EXPECT_EQ((*plugin)->path(), Plugin("fake_gpu_plugin"));
  ASSERT_EQ((*plugin)->devices().size(), 2u);
  EXPECT_STREQ((*plugin)->devices()[0].name, "Fake");
}

struct Case {
  std::string path;
  Code code;
  const char *tag, *text;  // the text is somewhere in it
};

TEST(GpuLoader, SaysWhyAPluginCannotBeUsed) {
  const std::string folder = (std::filesystem::temp_directory_path() / ("ropewalk-gpu-" + std::to_string(getpid()))).string();
  std::filesystem::create_directory(folder);
  const std::string text = folder + "/text.so";
  std::ofstream(text) << "no shared object";
  for (const Case& c : {
           Case{folder + "/none.so", Code::kNotFound, "GPU01", "none.so"},
           Case{text, Code::kNotFound, "GPU01", "text.so cannot be opened"},
           Case{folder, Code::kNotFound, "GPU01", "cannot be opened"},
           Case{Plugin("broken_gpu_plugin_symbol"), Code::kVersionSkew, "GPU02", "no symbol ropewalk_gpu_api"},
           Case{Plugin("broken_gpu_plugin_table"), Code::kVersionSkew, "GPU02", "it gives no table"},
           Case{Plugin("broken_gpu_plugin_version"), Code::kVersionSkew, "GPU02", "version 3 of"},
           Case{Plugin("broken_gpu_plugin_size"), Code::kVersionSkew, "GPU02", "another version"},
           Case{Plugin("broken_gpu_plugin_driver"), Code::kUnavailable, "GPU03", "the driver is older than the runtime"},
           Case{Plugin("broken_gpu_plugin_devices"), Code::kUnavailable, "GPU03", "the driver knows of none"},
       }) {
    SCOPED_TRACE(c.path);
    Status status = GpuPlugin::Open({c.path}).status();
    EXPECT_EQ(status.code(), c.code);
    EXPECT_EQ(status.tag(), c.tag);
    EXPECT_NE(status.ToString().find(c.text), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
    // Who only wants to go on is told once, and has the CPU.
    std::vector<Status> said;
    EXPECT_EQ(GpuOrSay(c.path, {}, [&](const Status& why) { said.push_back(why); }), nullptr);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].tag(), c.tag);
  }
  std::filesystem::remove_all(folder);
}

TEST(GpuLoader, OpensTheDeviceThatIsAskedFor) {
  auto say = [](const Status& why) { ADD_FAILURE() << why.ToString(); };
  auto gpu = GpuOrSay(Plugin("fake_gpu_plugin"), {}, say);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->info().major, 9);
  auto plugin = GpuPlugin::Open({Plugin("fake_gpu_plugin")});
  ASSERT_TRUE(plugin.ok());
  auto old = Gpu::Open(*plugin, {.device = 1});
  EXPECT_EQ(old.status().tag(), "GPU03");
  EXPECT_EQ(old.status().code(), Code::kUnavailable);
  EXPECT_EQ(old.status().why(), "it is too old");
  for (std::int32_t device : {-1, 2}) EXPECT_EQ(Gpu::Open(*plugin, {.device = device}).status().code(), Code::kInvalid);
}

TEST(GpuLoader, BuffersComeFromThePoolAndGoBack) {
  auto plugin = GpuPlugin::Open({Plugin("fake_gpu_plugin")});
  ASSERT_TRUE(plugin.ok());
  auto opened = Gpu::Open(*plugin, {.pool_bytes_max = 1 << 20});
  ASSERT_TRUE(opened.ok());
  Gpu& gpu = **opened;
  {
    auto buffer = gpu.Allocate(1000);
    ASSERT_TRUE(buffer.ok());
    const std::string sent(1000, 'x');
    std::string got(1000, 0);
    ASSERT_TRUE(gpu.ToDevice(buffer->data(), sent.data(), sent.size()).ok());
    ASSERT_TRUE(gpu.ToHost(got.data(), buffer->data(), got.size()).ok());
    EXPECT_EQ(got, sent);
    GpuBuffer moved = *std::move(buffer);
    EXPECT_EQ(gpu.memory_use().used_bytes, 1024u);
    Status full = gpu.Allocate(1 << 20).status();
    EXPECT_EQ(full.code(), Code::kResourceExhausted);
    EXPECT_EQ(full.tag(), "GPU05");
    // The fake knows its memory.
    EXPECT_EQ(gpu.ToDevice(got.data(), sent.data(), 1).tag(), "KERNEL02");
  }
  EXPECT_EQ(gpu.memory_use().used_bytes, 0u);
  EXPECT_EQ(gpu.memory_use().cached_bytes, 1024u);
  EXPECT_TRUE(gpu.Allocate(1 << 20).ok()) << "what was kept must make room";
}

}  // namespace
}  // namespace ropewalk::mlrunner
