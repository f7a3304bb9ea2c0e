// Safetensors files: what other programs write is read, what we write they would read; every number of a damaged one is doubted; states are
// loaded by name or not at all.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "base/random.h"
#include "mlrunner/graph/builder.h"
#include "mlrunner/tensors/safetensors.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using storage::LocalFileSystem;
using testing::TempFolder;

Tensor Numbers(Dtype dtype, Dims dims, double first = 0) {
  RefTensor values{std::move(dims), {}};
  for (std::int64_t i = 0; i < NumElements(values.dims); ++i) values.data.push_back(first + static_cast<double>(i) * .5);
  return ToTensor(dtype, values);
}
void Put(const std::string& path, const std::string& header, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << bytes;
}

class Safetensors : public ::testing::Test {
 protected:
  std::string Path(const char* name = "model.safetensors") const { return folder_.path() + "/" + name; }
  Status OpenStatus(const std::string& header, const std::string& bytes) {
    Put(Path(), header, bytes);
    return SafetensorsFile::Open(files_, Path()).status();
  }
  TempFolder folder_;
  LocalFileSystem files_;
};

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  std::map<std::string, Tensor> tensors;
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kI64, Dtype::kI32, Dtype::kU8, Dtype::kBool})
    tensors[std::string(Name(dtype))] = Numbers(dtype, {2, 3});
  tensors["scalar"] = Numbers(Dtype::kF32, {}, 7);
  tensors["nothing"] = Numbers(Dtype::kF32, {0, 4});
  tensors["käse \"7\"\n"] = Numbers(Dtype::kF32, {1});
  ASSERT_TRUE(WriteSafetensors(files_, Path(), tensors, {{"format", "pt"}}).ok());
  auto file = SafetensorsFile::Open(files_, Path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  auto all = file->ReadAll();
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  ASSERT_EQ(all->size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(all->at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(all->at(name).dims, tensor.dims) << name;
    EXPECT_EQ(all->at(name).bytes, tensor.bytes) << name;
  }
  storage::FileFacts facts;
  EXPECT_EQ(files_.Look(Path() + ".new", &facts), ENOENT);
}

// As the format's own library writes it: no metadata, spaces, a type that we have none for.
TEST_F(Safetensors, AForeignFileIsRead) {
  Put(Path(), R"({"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}, "b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}   )",
      "xyz\x01\x02");
  auto file = SafetensorsFile::Open(files_, Path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  auto b = file->Read("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(ToRef(*b).data, (std::vector<double>{1, 2}));
  auto a = file->Read("a");
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.status().tag(), "TENS05");
  EXPECT_NE(a.status().what().find("I8"), std::string::npos);
  EXPECT_EQ(file->Read("c").status().tag(), "TENS03");
}

TEST_F(Safetensors, ALinkLeadsToTheFile) {
  ASSERT_TRUE(WriteSafetensors(files_, Path(), {{"w", Numbers(Dtype::kF32, {5})}}).ok());
  ASSERT_EQ(symlink(Path().c_str(), Path("link").c_str()), 0);
  auto file = SafetensorsFile::Open(files_, Path("link"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->Read("w").ok());
}

TEST_F(Safetensors, DamageIsSaid) {
  const std::string good = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  ASSERT_TRUE(OpenStatus(good, "12").ok());
  auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const std::pair<std::string, std::string> bad[] = {
      {good, "1"},
      {good, "123"},
      {good.substr(0, 20), "12"},
      {"[1, 2]", ""},
      {entry("\"U8\"", "[2]", "[0,3]"), "123"},
      {entry("\"U8\"", "[2]", "[1,3]"), "123"},
      {entry("\"U8\"", "[2]", "[2,0]"), "12"},
      {entry("\"U8\"", "[-2]", "[0,2]"), "12"},
      {entry("\"U8\"", "[1.5]", "[0,2]"), "12"},
      {entry("\"U8\"", "2", "[0,2]"), "12"},
      {entry("7", "[2]", "[0,2]"), "12"},
      {entry("\"U8\"", "[2]", "[0]"), "12"},
      {entry("\"F32\"", "[4611686018427387904,4]", "[0,0]"), ""},
      {entry("\"U8\"", "[9223372036854775808]", "[0,0]"), ""},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "123"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", "123"},
      {R"({"a":7})", ""},
      {R"({"__metadata__":[1]})", ""},
  };
  for (const auto& [header, bytes] : bad) {
    Status status = OpenStatus(header, bytes);
    EXPECT_EQ(status.tag(), "TENS02") << header << "\n" << status.ToString();
    EXPECT_FALSE(status.why().empty() || status.fix().empty()) << header;
  }
  std::ofstream(Path(), std::ios::binary) << "abc";
  EXPECT_EQ(SafetensorsFile::Open(files_, Path()).status().tag(), "TENS02");
  std::ofstream(Path(), std::ios::binary) << std::string(8, '\xff') << "{}";
  EXPECT_EQ(SafetensorsFile::Open(files_, Path()).status().tag(), "TENS02");
  EXPECT_EQ(SafetensorsFile::Open(files_, Path("nowhere")).status().tag(), "TENS01");
}

// What no header is: so deep that reading it fills the memory. Brackets within names are none.
TEST_F(Safetensors, DeepHeadersAreNotRead) {
  const std::size_t count = 1'000'000;
  for (const std::string& deep : {std::string(count, '['), R"({"a":)" + std::string(count, '[') + std::string(count, ']') + "}",
                                  R"({"a\"":{"b":{"c":{"d":1}}}})" + std::string()}) {
    const Status status = OpenStatus(deep, "");
    EXPECT_EQ(status.tag(), "TENS02") << status.ToString();
    EXPECT_NE(status.ToString().find("other things than tensors"), std::string::npos) << status.ToString();
  }
  for (const char* name : {"[[[[[[", R"(\"[{[{[{\")", R"(\\\\)"}) {
    const Status status = OpenStatus(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}}}})", name), "1");
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// What a file calls its tensors does not reach a terminal as it is.
TEST_F(Safetensors, NamesAreShownEscaped) {
  const std::string good = R"({"a\u001b[31m":{"dtype":"QQ\u001b[0m","shape":[2],"data_offsets":[0,2]}})";
  Put(Path(), good, "12");
  auto file = SafetensorsFile::Open(files_, Path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  for (const Status& status :
       {file->Read("a\x1b[31m").status(), file->Read("b\x1b[31m").status(), OpenStatus(R"({"a\u001b[31m":7})", "")}) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.ToString().find('\x1b'), std::string::npos);
  }
}

// Any byte of a file, changed: it is refused, or what is read has the shapes that the header says.
TEST_F(Safetensors, ChangedBytesDoNoHarm) {
  ASSERT_TRUE(WriteSafetensors(files_, Path(), {{"a", Numbers(Dtype::kF32, {3, 2})}, {"b", Numbers(Dtype::kI32, {4})}}).ok());
  std::string bytes;
  ASSERT_EQ(files_.ReadSmall(Path(), 1 << 20, &bytes), 0);
  const std::uint64_t seed = 5;
  SCOPED_TRACE(seed);
  Random random(seed);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = bytes;
    changed[random.Below(changed.size())] = static_cast<char>(random.Below(256));
    std::ofstream(Path(), std::ios::binary) << changed;
    auto file = SafetensorsFile::Open(files_, Path());
    if (!file.ok()) {
      ++refused;
      continue;
    }
    for (const auto& [name, stored] : file->header().tensors) {
      auto tensor = file->Read(name);
      if (tensor.ok()) {
        ASSERT_EQ(tensor->bytes.size(), static_cast<std::size_t>(NumElements(tensor->dims)) * SizeOf(tensor->dtype));
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST_F(Safetensors, AFailedWriteLeavesTheOldFile) {
  ASSERT_TRUE(WriteSafetensors(files_, Path(), {{"w", Numbers(Dtype::kF32, {2}, 1)}}).ok());
  ASSERT_EQ(mkdir((Path() + ".new").c_str(), 0755), 0);
  Status status = WriteSafetensors(files_, Path(), {{"w", Numbers(Dtype::kF32, {2}, 9)}});
  EXPECT_EQ(status.tag(), "TENS01") << status.ToString();
  auto file = SafetensorsFile::Open(files_, Path());
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ToRef(*file->Read("w")).data[0], 1);
}

TEST_F(Safetensors, TypesAreConvertedByRounding) {
  RefTensor values{{6}, {1, 1 + 0x1p-9, -3.1415926, 70000, 0, std::nan("")}};
  Tensor f32 = ToTensor(Dtype::kF32, values);
  EXPECT_EQ(ToRef(ConvertTo(f32, Dtype::kBF16)).data[1], 1);  // a tie goes to even
  EXPECT_EQ(ToRef(ConvertTo(f32, Dtype::kF16)).data[1], 1 + 0x1p-9);
  EXPECT_TRUE(std::isinf(ToRef(ConvertTo(f32, Dtype::kF16)).data[3]));
  EXPECT_TRUE(std::isnan(ToRef(ConvertTo(f32, Dtype::kBF16)).data[5]));
  EXPECT_EQ(ConvertTo(ConvertTo(ConvertTo(f32, Dtype::kF64), Dtype::kF32), Dtype::kF32).bytes, f32.bytes);
  Tensor many = Numbers(Dtype::kF32, {20000});
  EXPECT_EQ(ConvertTo(ConvertTo(many, Dtype::kF64), Dtype::kF32).bytes, many.bytes);
}

class LoadingStates : public Safetensors {
 protected:
  LoadingStates() {
    Builder b;
    Dim batch = b.NewSymbol("B");
    b.Input("x", Dtype::kF32, {batch, 2});
    b.NewParameter("layer/w", {2, 3}, Initializer::Zeros());
    b.NewParameter("layer/b", {3}, Initializer::Zeros());
    b.NewState("mean", StateKind::kStatistic, {Dtype::kF32, {3}}, Initializer::Zeros());
    b.NewState("moment", StateKind::kOptimizer, {Dtype::kF32, {3}}, Initializer::Zeros());
    graph_ = *b.Finish();
  }
  Status Load(const std::map<std::string, Tensor>& tensors, const LoadOptions& options = {}) {
    EXPECT_TRUE(WriteSafetensors(files_, Path(), tensors).ok());
    auto file = SafetensorsFile::Open(files_, Path());
    return file.ok() ? LoadStates(*file, graph_, {4}, options, &states_) : file.status();
  }
  std::map<std::string, Tensor> All() const {
    return {{"layer/w", Numbers(Dtype::kF32, {2, 3})}, {"layer/b", Numbers(Dtype::kF32, {3})}, {"mean", Numbers(Dtype::kF32, {3}, 4)}};
  }
  Graph graph_;
  StateStore states_;
};

TEST_F(LoadingStates, ByName) {
  ASSERT_TRUE(Load(All()).ok());
  EXPECT_EQ(states_.Get("layer/w").bytes, All().at("layer/w").bytes);
  EXPECT_EQ(ToRef(states_.Get("mean")).data[0], 4);
  EXPECT_TRUE(states_.Get("moment").bytes.empty());
}

TEST_F(LoadingStates, ByTheNamesOfTheFile) {
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : All()) tensors["encoder." + name] = tensor;
  LoadOptions options{.name_in_file = [](const std::string& state) { return "encoder." + state; }, .wanted = {}};
  EXPECT_TRUE(Load(tensors, options).ok());
}

TEST_F(LoadingStates, WhatDoesNotFitIsNamedAndNothingIsLoaded) {
  auto tensors = All();
  tensors.erase("mean");
  tensors["net.mean"] = Numbers(Dtype::kF32, {3});
  Status status = Load(tensors);
  EXPECT_EQ(status.tag(), "TENS03");
  EXPECT_NE(status.why().find("net.mean"), std::string::npos) << status.ToString();
  EXPECT_TRUE(states_.Get("layer/w").bytes.empty());

  tensors = All();
  tensors["mean"] = Numbers(Dtype::kF32, {1, 3});
  status = Load(tensors);
  EXPECT_EQ(status.tag(), "TENS04");
  EXPECT_NE(status.what().find("(1, 3)"), std::string::npos);

  tensors = All();
  tensors["layer/b"] = Numbers(Dtype::kBF16, {3}, 1);
  EXPECT_EQ(Load(tensors).tag(), "TENS05");
  EXPECT_TRUE(states_.Get("layer/w").bytes.empty());
  ASSERT_TRUE(Load(tensors, {.name_in_file = {}, .wanted = {}, .convert = true}).ok());
  EXPECT_EQ(states_.Get("layer/b").dtype, Dtype::kF32);
  EXPECT_EQ(ToRef(states_.Get("layer/b")).data, (std::vector<double>{1, 1.5, 2}));

  tensors["layer/b"] = Numbers(Dtype::kI32, {3});
  EXPECT_EQ(Load(tensors, {.name_in_file = {}, .wanted = {}, .convert = true}).tag(), "TENS05");
}

TEST_F(LoadingStates, SomeOnly) {
  LoadOptions options{.name_in_file = {}, .wanted = [](const StateInfo& state) { return state.name == "layer/b"; }};
  ASSERT_TRUE(Load({{"layer/b", Numbers(Dtype::kF32, {3}, 2)}}, options).ok());
  EXPECT_TRUE(states_.Get("layer/w").bytes.empty());
  EXPECT_EQ(ToRef(states_.Get("layer/b")).data[0], 2);
}

}  // namespace
}  // namespace ropewalk::mlrunner
