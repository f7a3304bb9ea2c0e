// Checkpoints by logical slices: what ranks have written in one cut is read in any other, bit for bit; what is damaged, missing, twice or
// of another shape is named.
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "mlrunner/train/tensor_file.h"
#include "tests/unit/faulty_files.h"
#include "tests/unit/sliced_checkpoints.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner {
namespace {

using storage::FaultyFiles;
using storage::LocalFileSystem;
using testing::Cut;
using testing::CutStates;
using testing::RandomTensor;

constexpr std::int8_t kNone = ShardingSpec::kReplicated;

Checkpoint About(std::int64_t step) { return {.step = step, .position = {1, 2}, .seed = 3, .tensors = {}, .run = 7}; }

// States of every kind of cut on a mesh of 2 × 2 ranks: rows, columns, both, over all four, unevenly, not at all.
CutStates EveryCut() {
  Random random(1);
  CutStates states{{{{"data", 2}, {"tensor", 2}}}, {}, {}};
  states.Add("rows", {{0, kNone}, {}}, RandomTensor(random, Dtype::kF32, {6, 4}));
  states.Add("columns", {{kNone, 1}, {}}, RandomTensor(random, Dtype::kF64, {3, 8}));
  states.Add("both", {{1, 0}, {}}, RandomTensor(random, Dtype::kBF16, {5, 7}));
  states.Add("uneven", {{0}, {}}, RandomTensor(random, Dtype::kI64, {7}));
  states.Add("one", {{0}, {}}, RandomTensor(random, Dtype::kF32, {1}));  // the second half is empty
  states.Add("replicated", {}, RandomTensor(random, Dtype::kF32, {3, 3, 2}));
  states.Add("step", {}, RandomTensor(random, Dtype::kF64, {}));
  states.Add("nothing", {{0, kNone}, {}}, RandomTensor(random, Dtype::kF32, {0, 5}));
  return states;
}

// Cuts over one axis of `ranks`: by rows, by columns, not at all.
std::vector<ShardingSpec> CutsOf(const Dims& dims) {
  std::vector<ShardingSpec> cuts = {{}};
  for (std::size_t d = 0; d < dims.size(); ++d) {
    ShardingSpec cut{std::vector<std::int8_t>(dims.size(), kNone), {}};
    cut.dims[d] = 0;
    cuts.push_back(cut);
  }
  return cuts;
}

// All that `ranks` ranks would ask for, whichever way they cut each state.
void ExpectReadable(const CheckpointReader& reader, const CutStates& states, std::int32_t ranks) {
  const Mesh mesh{{{"ranks", ranks}}};
  for (const LogicalState& state : states.states) {
    const Tensor& whole = states.whole.at(state.name);
    for (const ShardingSpec& cut : CutsOf(state.dims)) {
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const Slice slice = SliceOf(state.dims, cut, mesh, rank);
        auto read = reader.Read(state.name, state.dtype, state.dims, slice);
        ASSERT_TRUE(read.ok()) << read.status().ToString();
        EXPECT_EQ(read->dims, LengthsOf(slice));
        EXPECT_EQ(read->dtype, state.dtype);
        EXPECT_EQ(read->bytes, Cut(whole, slice).bytes) << state.name << " " << ToString(slice);
      }
    }
  }
}

std::unique_ptr<CheckpointReader> Open(storage::FileSystem& files, const std::string& path) {
  auto reader = CheckpointReader::Open(files, path);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  return reader.ok() ? *std::move(reader) : nullptr;
}

TEST(Slices, SavedByFourAndReadByAnyNumber) {
  const CutStates states = EveryCut();
  for (std::uint64_t spread_bytes : {std::uint64_t{0}, ~std::uint64_t{0}}) {  // what several ranks hold is spread over them, or the first's
    testing::TempFolder folder;
    LocalFileSystem files;
    ASSERT_TRUE(testing::SaveSlices(files, folder.path(), About(10), states.Written(4, spread_bytes), {}).ok());
    auto reader = Open(files, CheckpointPath(folder.path(), 10));
    ASSERT_NE(reader, nullptr);
    EXPECT_TRUE(reader->Verify().ok());
    EXPECT_EQ(reader->about().step, 10);
    EXPECT_EQ(reader->about().position, (SamplePosition{1, 2}));
    EXPECT_EQ(reader->index().tensors.size(), states.states.size());
    for (std::int32_t ranks : {1, 2, 3, 5}) ExpectReadable(*reader, states, ranks);
    auto all = LoadCheckpoint(files, CheckpointPath(folder.path(), 10));
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    for (const auto& [name, tensor] : states.whole) EXPECT_EQ(all->tensors.at(name).bytes, tensor.bytes) << name;
  }
}

// One rank's states lie in the checkpoint's own file, and would otherwise be in memory twice.
TEST(Slices, AreHandedOverOnceWhereTheyLieAsTheyAreAskedFor) {
  Random random(3);
  const Tensor w = RandomTensor(random, Dtype::kF32, {6, 4});
  Checkpoint checkpoint = About(1);
  checkpoint.tensors["w"] = w;
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(SaveCheckpoint(files, folder.path(), checkpoint, {}).ok());
  auto reader = Open(files, CheckpointPath(folder.path(), 1));
  ASSERT_NE(reader, nullptr);
  const Slice half{{0, 0}, {3, 4}};
  auto part = reader->Take("w", Dtype::kF32, {6, 4}, half);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ(part->bytes, reader->Read("w", Dtype::kF32, {6, 4}, half)->bytes) << "a part is a copy";
  EXPECT_EQ(reader->Take("w", Dtype::kF32, {6}, WholeOf({6})).status().tag(), "CKPT03");
  auto whole = reader->Take("w", Dtype::kF32, {6, 4}, WholeOf({6, 4}));
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(whole->bytes, w.bytes);
  EXPECT_EQ(reader->Take("w", Dtype::kF32, {6, 4}, WholeOf({6, 4})).status().code(), Code::kInternal);
  EXPECT_EQ(reader->Read("w", Dtype::kF32, {6, 4}, half).status().code(), Code::kInternal);
}

// Length 6 over 4 ranks: 2, 2, 2 and nothing, which is not written.
TEST(Slices, AnEmptyShardIsNoPiece) {
  Random random(2);
  CutStates states{{{{"ranks", 4}}}, {}, {}};
  states.Add("w", {{0}, {}}, RandomTensor(random, Dtype::kF32, {6}));
  const auto written = states.Written(4);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(written[rank].size(), rank < 3 ? 1u : 0u);
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(testing::SaveSlices(files, folder.path(), About(1), written, {}).ok());
  auto reader = Open(files, CheckpointPath(folder.path(), 1));
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->index().files.size(), 3u);
  for (std::int32_t ranks : {1, 2, 3, 4, 8}) ExpectReadable(*reader, states, ranks);
}

TEST(Slices, OfARandomCutAnyOther) {
  const std::uint64_t seed = testing::SeedOfTest();
  SCOPED_TRACE(fmt::format("ROPEWALK_SEED={}", seed));
  Random random(seed);
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kI64, Dtype::kU8, Dtype::kBool};
  for (int round = 0; round < 60; ++round) {
    CutStates states;
    for (std::uint64_t axes = random.Between(0, 2); axes > 0; --axes)
      states.mesh.axes.push_back({fmt::format("axis{}", axes), static_cast<std::int32_t>(random.Between(1, 4))});
    // Some meshes are used by several groups of ranks, which are replicas.
    const auto ranks = static_cast<std::int32_t>(static_cast<std::uint64_t>(states.mesh.NumRanks()) * random.Between(1, 2));
    for (std::uint64_t count = random.Between(1, 5); count > 0; --count) {
      Dims dims(random.Between(0, 4));
      ShardingSpec cut{std::vector<std::int8_t>(dims.size(), kNone), {}};
      std::set<std::int8_t> used;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        dims[d] = static_cast<std::int64_t>(random.OneIn(12) ? 0 : random.Between(1, 7));
        const auto axis = static_cast<std::int8_t>(random.Between(0, states.mesh.axes.size()) - 1);
        if (axis >= 0 && used.insert(axis).second) cut.dims[d] = axis;
      }
      states.Add(fmt::format("state{}", count), cut, RandomTensor(random, kDtypes[random.Below(std::size(kDtypes))], dims));
    }
    testing::TempFolder folder;
    LocalFileSystem files;
    const Status saved = testing::SaveSlices(files, folder.path(), About(round), states.Written(ranks, random.OneIn(2) ? 0 : 1000), {});
    ASSERT_TRUE(saved.ok()) << "round " << round << ": " << saved.ToString();
    auto reader = Open(files, CheckpointPath(folder.path(), round));
    ASSERT_NE(reader, nullptr);
    for (const LogicalState& state : states.states) {
      for (int k = 0; k < 10; ++k) {
        Slice slice = WholeOf(state.dims);
        for (std::size_t d = 0; d < state.dims.size(); ++d) {
          slice.begin[d] = static_cast<std::int64_t>(random.Between(0, static_cast<std::uint64_t>(state.dims[d])));
          slice.end[d] = static_cast<std::int64_t>(
              random.Between(static_cast<std::uint64_t>(slice.begin[d]), static_cast<std::uint64_t>(state.dims[d])));
        }
        auto read = reader->Read(state.name, state.dtype, state.dims, slice);
        ASSERT_TRUE(read.ok()) << "round " << round << ": " << read.status().ToString();
        ASSERT_EQ(read->bytes, Cut(states.whole.at(state.name), slice).bytes) << "round " << round << " " << ToString(slice);
      }
    }
  }
}

TEST(Slices, WhatRanksHoldAlikeIsWrittenOnceAndSpread) {
  std::vector<LogicalState> states;
  for (int i = 0; i < 8; ++i) states.push_back({fmt::format("w{}", i), Dtype::kF32, {100, 10}, {}});
  const Mesh mesh{{{"data", 4}}};
  auto bytes_of = [&](const std::vector<WrittenSlice>& slices) {
    std::size_t bytes = 0;
    for (const WrittenSlice& written : slices) bytes += static_cast<std::size_t>(NumElements(written.slice)) * 4;
    return bytes;
  };
  auto spread = WritersOf(states, mesh, 4, 32'000);
  ASSERT_TRUE(spread.ok());
  for (const auto& slices : *spread) EXPECT_EQ(bytes_of(slices), 8000u);
  auto first = WritersOf(states, mesh, 4, 32'001);
  ASSERT_TRUE(first.ok());
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(bytes_of((*first)[rank]), rank == 0 ? 32'000u : 0u);
  // Slices are written by who holds them, replicas of a slice by one of these.
  auto cut = WritersOf({{"w", Dtype::kF32, {6, 4}, {{1, kNone}, {}}}}, {{{"data", 2}, {"tensor", 2}}}, 4, ~std::uint64_t{0});
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ((*cut)[0], (std::vector<WrittenSlice>{{0, {{0, 0}, {3, 4}}}}));
  EXPECT_EQ((*cut)[1], (std::vector<WrittenSlice>{{0, {{3, 0}, {6, 4}}}}));
  EXPECT_TRUE((*cut)[2].empty() && (*cut)[3].empty());
  auto partial = WritersOf({{"w", Dtype::kF32, {6}, {{kNone}, {0}}}}, mesh, 4, 0);
  ASSERT_FALSE(partial.ok());
  EXPECT_EQ(partial.status().tag(), "CKPT01") << partial.status().ToString();
}

// A part is a file that other tools read too.
TEST(Slices, APartIsASafetensorsFile) {
  const CutStates states = EveryCut();
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(testing::SaveSlices(files, folder.path(), About(10), states.Written(4, ~std::uint64_t{0}), {}).ok());
  auto part = ReadTensorFile(files, folder.path() + "/part-000000000010-0000000000000007-0-1-0.safetensors");
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  ASSERT_TRUE(part->tensors.contains("columns[0:3, 4:8]"));
  EXPECT_EQ(part->tensors.at("columns[0:3, 4:8]").bytes, Cut(states.whole.at("columns"), {{0, 4}, {3, 8}}).bytes);
  // It is no checkpoint, whatever its name.
  std::filesystem::rename(folder.path() + "/part-000000000010-0000000000000007-0-1-0.safetensors", CheckpointPath(folder.path(), 20));
  EXPECT_EQ(LoadCheckpoint(files, CheckpointPath(folder.path(), 20)).status().code(), Code::kDataLoss);
}

TEST(Slices, WhatDoesNotFitIsRefusedByName) {
  const CutStates states = EveryCut();
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(testing::SaveSlices(files, folder.path(), About(10), states.Written(4), {}).ok());
  auto reader = Open(files, CheckpointPath(folder.path(), 10));
  ASSERT_NE(reader, nullptr);
  struct Case {
    const char* name;
    Dtype dtype;
    Dims dims;
    Slice slice;
    Code code;
    const char* said;
  };
  for (const Case& c :
       {Case{"other", Dtype::kF32, {6, 4}, {{0, 0}, {6, 4}}, Code::kUserError, "it has no state other"},
        Case{"rows", Dtype::kF64, {6, 4}, {{0, 0}, {6, 4}}, Code::kUserError, "state rows is (6, 4) f32 there and (6, 4) f64"},
        Case{"rows", Dtype::kF32, {4, 6}, {{0, 0}, {4, 6}}, Code::kUserError, "state rows is (6, 4) f32 there and (4, 6) f32"},
        Case{"rows", Dtype::kF32, {6, 4}, {{0, 0}, {7, 4}}, Code::kInvalid, "[0:7, 0:4] is no slice of state rows (6, 4)"},
        Case{"rows", Dtype::kF32, {6, 4}, {{0}, {6}}, Code::kInvalid, "[0:6] is no slice of state rows"}}) {
    auto read = reader->Read(c.name, c.dtype, c.dims, c.slice);
    ASSERT_FALSE(read.ok()) << c.said;
    EXPECT_EQ(read.status().tag(), "CKPT03");
    EXPECT_EQ(read.status().code(), c.code);
    EXPECT_NE(read.status().ToString().find(c.said), std::string::npos) << read.status().ToString();
    EXPECT_FALSE(read.status().why().empty() || read.status().fix().empty()) << read.status().ToString();
  }
}

// --- damage ---

class SliceDamage : public ::testing::Test {
 protected:
  SliceDamage() {
    Random random(4);
    states_.mesh = {{{"ranks", 2}}};
    states_.Add("w", {{0, kNone}, {}}, RandomTensor(random, Dtype::kF32, {4, 3}));
    states_.Add("v", {{0}, {}}, RandomTensor(random, Dtype::kF32, {4}));
    EXPECT_TRUE(testing::SaveSlices(files_, folder_.path(), About(1), states_.Written(2), {.keep = 9}).ok());
    EXPECT_TRUE(testing::SaveSlices(files_, folder_.path(), About(2), states_.Written(2), {.keep = 9, .stands_on = 1}).ok());
  }
  std::string Manifest() const { return CheckpointPath(folder_.path(), 2); }
  std::string Part(int rank) const { return fmt::format("{}/part-000000000002-0000000000000007-0-{}-0.safetensors", folder_.path(), rank); }
  // It is passed over for the one before it, with this reason.
  void ExpectPassedOver(const std::string& why) {
    std::vector<Status> passed_over;
    auto newest = OpenNewestCheckpoint(files_, folder_.path(), &passed_over);
    ASSERT_TRUE(newest.ok()) << newest.status().ToString();
    ASSERT_NE(*newest, nullptr);
    EXPECT_EQ((*newest)->about().step, 1);
    ASSERT_EQ(passed_over.size(), 1u);
    const Status& status = passed_over[0];
    EXPECT_EQ(status.tag(), "CKPT02") << status.ToString();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.what().find(Manifest()), std::string::npos) << status.ToString();
    EXPECT_NE(status.why().find(why), std::string::npos) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
    EXPECT_EQ(LoadCheckpoint(files_, Manifest()).status().why(), status.why());
  }
  // The checkpoint's own file with another index in it.
  void Rewrite(const std::function<void(CheckpointIndex&)>& change) {
    auto file = ReadTensorFile(files_, Manifest());
    ASSERT_TRUE(file.ok());
    auto index = ParseCheckpointIndex(file->metadata["slices"], Manifest());
    ASSERT_TRUE(index.ok()) << index.status().ToString();
    EXPECT_EQ(Encode(*index), file->metadata["slices"]);
    change(*index);
    file->metadata["slices"] = Encode(*index);
    ASSERT_TRUE(WriteTensorFile(files_, Manifest(), file->metadata, file->tensors).ok());
  }

  CutStates states_;
  testing::TempFolder folder_;
  LocalFileSystem files_;
};

TEST_F(SliceDamage, AMissingPart) {
  std::filesystem::remove(Part(1));
  ExpectPassedOver("is missing: there is no such file");
  // What does not lie in it can be read.
  auto reader = Open(files_, Manifest());
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->Read("w", Dtype::kF32, {4, 3}, {{0, 0}, {2, 3}}).ok());
  EXPECT_EQ(reader->Read("w", Dtype::kF32, {4, 3}, {{1, 0}, {3, 3}}).status().tag(), "CKPT02");
}

TEST_F(SliceDamage, ATruncatedPart) {
  std::filesystem::resize_file(Part(0), std::filesystem::file_size(Part(0)) - 1);
  ExpectPassedOver("ends after 23 of 24 bytes");
}

TEST_F(SliceDamage, EveryFlippedBitOfASliceIsNoticedByWhoReadsIt) {
  std::stringstream text;
  text << std::ifstream(Part(1), std::ios::binary).rdbuf();
  const std::string whole = text.str();
  auto header = ReadTensorFileHeader(files_, Part(1));
  ASSERT_TRUE(header.ok());
  auto reader = Open(files_, Manifest());
  ASSERT_NE(reader, nullptr);
  int noticed = 0;
  for (std::size_t bit = header->data_begins * 8; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    std::ofstream(Part(1), std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_EQ(reader->Verify().tag(), "CKPT02") << bit;
    const Status of_w = reader->Read("w", Dtype::kF32, {4, 3}, {{3, 1}, {4, 2}}).status();  // not all of what is damaged
    const Status of_v = reader->Read("v", Dtype::kF32, {4}, {{3}, {4}}).status();
    EXPECT_NE(of_w.ok(), of_v.ok()) << bit;
    EXPECT_NE((of_w.ok() ? of_v : of_w).why().find("has another checksum"), std::string::npos);
    ++noticed;
  }
  EXPECT_EQ(noticed, (2 * 3 + 2) * 32);
  ExpectPassedOver("[2:4, 0:3] of state w, in part-000000000002-0000000000000007-0-1-0.safetensors, has another checksum");
}

TEST_F(SliceDamage, AGap) {
  Rewrite([](CheckpointIndex& index) { index.tensors.at("w").pieces.pop_back(); });
  ExpectPassedOver("state w (4, 3) has a gap: its pieces hold 6 of 12 elements");
}

TEST_F(SliceDamage, APieceThatIsThereTwice) {
  Rewrite([](CheckpointIndex& index) {
    auto& pieces = index.tensors.at("w").pieces;
    pieces.push_back(pieces[0]);
  });
  ExpectPassedOver("state w has elements twice: [0:2, 0:3] in part-");
}

TEST_F(SliceDamage, PiecesThatOverlapInOneElement) {
  Rewrite([](CheckpointIndex& index) { index.tensors.at("v").pieces[1].slice.begin[0] = 1; });
  ExpectPassedOver("state v has elements twice: [0:2] in part-");
}

TEST_F(SliceDamage, AnotherShape) {
  Rewrite([](CheckpointIndex& index) { index.tensors.at("v").dims = {3}; });
  ExpectPassedOver("tensor v has a piece that is none of it");
}

// Its bytes are looked for behind those of the file, or are others'.
TEST_F(SliceDamage, AnotherType) {
  Rewrite([](CheckpointIndex& index) { index.tensors.at("v").dtype = Dtype::kF64; });
  ExpectPassedOver("of state v, in part-000000000002-0000000000000007-0-0-0.safetensors, has another checksum");
}

// An index that says so is not believed: nobody takes memory for it.
TEST_F(SliceDamage, APieceThatNoMemoryHolds) {
  Rewrite([](CheckpointIndex& index) {
    StoredTensor& v = index.tensors.at("v");
    v.dims = {std::int64_t{1} << 59};
    v.pieces.resize(1);
    v.pieces[0].slice = WholeOf(v.dims);
  });
  ExpectPassedOver("of state v, in part-000000000002-0000000000000007-0-0-0.safetensors, ends after ");
}

TEST_F(SliceDamage, AFileElsewhere) {
  Rewrite([](CheckpointIndex& index) { index.files[0].name = "../" + index.files[0].name; });
  ExpectPassedOver("its index of slices: a file that is none");
}

TEST_F(SliceDamage, AnIndexThatIsNone) {
  for (const char* text :
       {"", "{}", "[]", "{\"files\":[],\"tensors\":[]}", "{\"files\":[1],\"tensors\":{}}",
        "{\"files\":[],\"tensors\":{\"w\":{\"dtype\":\"F33\",\"shape\":[1],\"pieces\":[]}}}",
        "{\"files\":[],\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[-1],\"pieces\":[]}}}",
        "{\"files\":[],\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[2000000000,2000000000,2000000000],\"pieces\":[]}}}",
        "{\"files\":[],\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"pieces\":[{}]}}}",
        "{\"files\":[],\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"pieces\":[{\"offsets\":[0],\"lengths\":[1],"
        "\"at\":0,\"checksum\":\"0\",\"file\":0}]}}}"}) {
    auto index = ParseCheckpointIndex(text, "here");
    ASSERT_FALSE(index.ok()) << text;
    EXPECT_EQ(index.status().tag(), "CKPT02") << text;
    EXPECT_NE(index.status().what().find("here"), std::string::npos);
  }
}

// What is read in several goes is checked as what is read in one.
TEST(Slices, ALongPieceIsVerifiedToItsEnd) {
  Random random(5);
  CutStates states{{{{"ranks", 2}}}, {}, {}};
  states.Add("w", {{0}, {}}, RandomTensor(random, Dtype::kU8, {18'000'001}));
  testing::TempFolder folder;
  LocalFileSystem files;
  ASSERT_TRUE(testing::SaveSlices(files, folder.path(), About(1), states.Written(2), {}).ok());
  auto reader = Open(files, CheckpointPath(folder.path(), 1));
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->Verify().ok());
  const std::string part = folder.path() + "/part-000000000001-0000000000000007-0-0-0.safetensors";
  const auto bytes = std::filesystem::file_size(part);
  for (std::uint64_t from_end : {1u, 5'000'000u}) {
    std::fstream file(part, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(bytes - from_end));
    const auto flipped = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(bytes - from_end));
    file.put(flipped).flush();
    const Status status = reader->Verify();
    EXPECT_NE(status.why().find("has another checksum"), std::string::npos) << status.ToString();
    file.seekp(static_cast<std::streamoff>(bytes - from_end));
    file.put(static_cast<char>(flipped ^ 1)).flush();
    EXPECT_TRUE(reader->Verify().ok()) << from_end;
  }
  std::filesystem::resize_file(part, bytes - 1);
  EXPECT_NE(reader->Verify().why().find("ends after 9000000 of 9000001 bytes"), std::string::npos) << reader->Verify().ToString();
}

// A disk that fails is another matter than a checkpoint that is damaged: nothing is passed over.
TEST_F(SliceDamage, AFailingDiskIsNone) {
  FaultyFiles failing;
  failing.fail_at = 2;  // behind the list and the checkpoint's own file
  std::vector<Status> passed_over;
  auto newest = OpenNewestCheckpoint(failing, folder_.path(), &passed_over);
  ASSERT_FALSE(newest.ok());
  EXPECT_EQ(newest.status().code(), Code::kUnavailable) << newest.status().ToString();
  EXPECT_EQ(newest.status().tag(), "CKPT02");
  EXPECT_NE(newest.status().what().find("a part of the checkpoint"), std::string::npos) << newest.status().ToString();
  EXPECT_TRUE(passed_over.empty());
}

}  // namespace
}  // namespace ropewalk::mlrunner
