// Lines of splits against a simple model, over random texts, split borders, compressions and read sizes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/random.h"
#include "storage/byte_source.h"
#include "storage/input.h"

namespace ropewalk::storage {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/ropewalk-lines-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  InputFile Write(const std::string& name, const std::string& bytes) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    auto listing = ListInputs(std::span(&path, 1), "/");
    EXPECT_TRUE(listing.ok()) << listing.status().ToString();
    return listing->files.at(0);
  }
  std::string path_;
};

std::string Gzip(const std::string& text, int level = 6) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text, bool checksum = false) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum ? 1 : 0);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

struct Line {
  std::uint64_t offset;
  std::string text;
  friend bool operator==(const Line&, const Line&) = default;
};

std::vector<Line> Model(const std::string& text) {
  std::vector<Line> lines;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t newline = std::min(text.find('\n', at), text.size());
    lines.push_back({at, text.substr(at, newline - at)});
    at = newline + 1;
  }
  return lines;
}

Status Collect(const InputFile& file, InputSplit split, std::vector<Line>* lines) {
  return ReadLines(file, split, [&](const LineBatch& batch) {
    EXPECT_EQ(batch.lines.size(), batch.offsets.size());
    EXPECT_FALSE(batch.lines.empty());
    for (std::size_t i = 0; i < batch.lines.size(); ++i) lines->push_back({batch.offsets[i], std::string(batch.lines[i])});
    return true;
  });
}

std::string RandomText(Random& random) {
  std::string text;
  std::size_t lines = random.Below(4) == 0 ? random.Below(8) : random.Below(3000);
  for (std::size_t i = 0; i < lines; ++i) {
    std::size_t length = random.OneIn(50) ? random.Below(5000) : random.OneIn(3) ? 0 : random.Below(130);
    for (std::size_t j = 0; j < length; ++j) {
      char c = static_cast<char>(random.OneIn(6) ? '\r' : random.Below(256));
      text += c == '\n' ? '\0' : c;
    }
    text += random.OneIn(5) ? "\r\n" : "\n";
  }
  if (random.OneIn(2)) text += std::string(random.Below(100), 'e');
  return text;
}

std::uint64_t Seed() {
  const char* given = getenv("ROPEWALK_TEST_SEED");
  std::uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10)
                                        : static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::printf("ROPEWALK_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(Lines, SplitsTogetherGiveEveryLineOnceInOrder) {
  Folder folder;
  Random random(Seed());
  for (int round = 0; round < 150; ++round) {
    std::string text = RandomText(random);
    InputFile file = folder.Write("t", text);
    std::uint64_t pieces = 1 + random.Below(random.OneIn(4) ? 200 : 6);
    std::vector<std::uint64_t> borders = {0, text.size()};
    for (std::uint64_t i = 1; i < pieces; ++i) borders.push_back(random.Below(text.size() + 1));
    std::sort(borders.begin(), borders.end());
    std::vector<Line> got;
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      std::size_t first = got.size();
      ASSERT_TRUE(Collect(file, {0, borders[i], borders[i + 1]}, &got).ok());
      for (std::size_t j = first; j < got.size(); ++j) {
        ASSERT_GE(got[j].offset, borders[i]) << "a line belongs to the split of its first byte";
        ASSERT_LT(got[j].offset, borders[i + 1]);
      }
    }
    ASSERT_EQ(got, Model(text)) << "round " << round;
  }
}

TEST(Lines, EveryBorderOfASmallText) {
  Folder folder;
  std::string text = "a\r\nbc\n\n\r\n\nlast\r";
  InputFile file = folder.Write("t", text);
  for (std::uint64_t a = 0; a <= text.size(); ++a) {
    for (std::uint64_t b = a; b <= text.size(); ++b) {
      std::vector<Line> got;
      ASSERT_TRUE(Collect(file, {0, 0, a}, &got).ok());
      ASSERT_TRUE(Collect(file, {0, a, b}, &got).ok());
      ASSERT_TRUE(Collect(file, {0, b, text.size()}, &got).ok());
      ASSERT_EQ(got, Model(text)) << a << " " << b;
    }
  }
}

// Texts above the size of the read buffer, with newlines at and around its borders and lines longer than it.
TEST(Lines, LongLinesAndBufferBorders) {
  Folder folder;
  Random random(Seed());
  for (int round = 0; round < 12; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) {
      constexpr std::size_t kSizes[] = {256 << 10, 512 << 10, 1 << 20, 2 << 20, 3 << 20};
      std::size_t length = kSizes[random.Below(5)] + random.Below(5) - 2;
      text += std::string(length, static_cast<char>('a' + i)) + (random.OneIn(2) ? "\r\n" : "\n");
      for (std::uint64_t j = random.Below(20000); j > 0; --j) text += random.OneIn(2) ? "xy\n" : "\n";
    }
    if (random.OneIn(2)) text.pop_back();
    InputFile file = folder.Write("t", text);
    std::uint64_t border = random.Below(text.size());
    std::vector<Line> got;
    ASSERT_TRUE(Collect(file, {0, 0, border}, &got).ok());
    ASSERT_TRUE(Collect(file, {0, border, text.size()}, &got).ok());
    ASSERT_TRUE(got == Model(text)) << "round " << round;
  }
}

TEST(Lines, ALineOf100MegabytesGrowsTheBuffer) {
  Folder folder;
  InputFile file = folder.Write("t", std::string(100'000'000, 'q') + "\nend\n");
  std::vector<std::size_t> lengths;
  ASSERT_TRUE(ReadLines(file, {0, 0, file.bytes}, [&](const LineBatch& batch) {
                for (auto line : batch.lines) lengths.push_back(line.size());
                return true;
              }).ok());
  EXPECT_EQ(lengths, (std::vector<std::size_t>{100'000'000, 3}));
}

TEST(Lines, BatchesAreLargeAndStopWhenToldTo) {
  Folder folder;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "some line of text\n";
  InputFile file = folder.Write("t", text);
  std::size_t batches = 0, lines = 0;
  ASSERT_TRUE(
      ReadLines(file, {0, 0, file.bytes}, [&](const LineBatch& batch) { return ++batches, lines += batch.lines.size(), true; }).ok());
  EXPECT_EQ(lines, 100'000u);
  EXPECT_LE(batches, 100'000u / 1024);
  batches = 0;
  ASSERT_TRUE(ReadLines(file, {0, 0, file.bytes}, [&](const LineBatch&) { return ++batches < 2; }).ok());
  EXPECT_EQ(batches, 2u);
}

TEST(Lines, NestedReadsOfOneThreadDoNotShareABuffer) {
  Folder folder;
  InputFile outer = folder.Write("o", "outer 1\nouter 2\n"), inner = folder.Write("i", "inner\n");
  std::vector<std::string> got;
  ASSERT_TRUE(ReadLines(outer, {0, 0, outer.bytes}, [&](const LineBatch& batch) {
                for (auto line : batch.lines) {
                  std::vector<Line> lines;
                  EXPECT_TRUE(Collect(inner, {0, 0, inner.bytes}, &lines).ok());
                  got.push_back(std::string(line) + " " + lines.at(0).text);
                }
                return true;
              }).ok());
  EXPECT_EQ(got, (std::vector<std::string>{"outer 1 inner", "outer 2 inner"}));
}

TEST(Compressed, MembersAndFramesAtEveryReadSize) {
  Folder folder;
  std::string plain = "first member\nsecond" + std::string(3000, 'x') + "\n\nlast";
  std::string gz = Gzip("first member\n") + Gzip("") + Gzip("second" + std::string(3000, 'x'), 0) + Gzip("\n\nlast") + std::string(5, '\0');
  std::string zst = Zstd("first member\n") + Zstd("") + std::string("\x50\x2a\x4d\x18\x03\0\0\0abc", 11) +
                    Zstd("second" + std::string(3000, 'x')) + Zstd("\n\nlast");
  for (const auto& [name, stored] : {std::pair<std::string, std::string>{"a.gz", gz}, {"a.zst", zst}}) {
    InputFile file = folder.Write(name, stored);
    for (std::size_t in = 1; in <= stored.size() + 1; in += in < 300 ? 1 : 97) {
      for (std::size_t out : {std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
        auto reader = InputFileReader::Open(file);
        ASSERT_TRUE(reader.ok());
        auto source = file.compression == Compression::kGzip ? NewGzipSource(reader->get(), in) : NewZstdSource(reader->get(), in);
        std::string got, buffer(out, '\0');
        while (true) {
          auto n = source->Read(buffer);
          ASSERT_TRUE(n.ok()) << n.status().ToString();
          got.append(buffer, 0, *n);
          if (*n < out) break;
        }
        ASSERT_EQ(got, plain) << name << " in " << in << " out " << out;
      }
    }
  }
}

TEST(Compressed, RandomTextsEqualTheirPlainForm) {
  Folder folder;
  Random random(Seed());
  for (int round = 0; round < 40; ++round) {
    std::string text, gz, zst;
    for (std::uint64_t members = 1 + random.Below(4); members > 0; --members) {
      std::string part = RandomText(random);
      text += part;
      gz += Gzip(part, static_cast<int>(random.Below(10)));
      zst += Zstd(part);
    }
    for (const InputFile& file : {folder.Write("t.gz", gz), folder.Write("t.zst", zst)}) {
      std::vector<Line> got;
      Status status = Collect(file, {0, 0, file.bytes}, &got);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_TRUE(got == Model(text)) << file.path << " round " << round;
    }
  }
}

struct Damage {
  const char* name;
  const char* file;
  std::string stored;
  const char* says;
  std::size_t at, at_most;  // the offset that is named: of a cut the end of what is stored, else in the damaged member, behind the damage
};

// The number in "at byte N (as stored)"; the largest one where there is none.
std::size_t StoredOffsetIn(const std::string& text) {
  const std::size_t at = text.find("at byte "), end = text.find(" (as stored): ");
  if (at == std::string::npos || end == std::string::npos || end < at) return std::string::npos;
  return std::stoull(text.substr(at + 8, end - at - 8));
}

TEST(Compressed, DamageIsNamedWithItsOffset) {
  Folder folder;
  std::string text;
  Random random(7);
  for (int i = 0; i < 20000; ++i) text += std::to_string(random()) + "\n";
  const std::string gz = Gzip(text), zst = Zstd(text, true);
  const std::size_t g = gz.size(), z = zst.size();
  auto flipped = [](std::string bytes, std::size_t place) {
    bytes[place] = static_cast<char>(bytes[place] ^ 0x40);
    return bytes;
  };
  const std::vector<Damage> table = {
      {"plain text", "a.gz", "not gzip\n", "no gzip data", 0, 0},
      {"empty", "a.gz", "", "ends too early", 0, 0},
      {"only the magic", "a.gz", gz.substr(0, 2), "ends too early", 2, 2},
      {"cut in the header", "a.gz", gz.substr(0, 5), "ends too early", 5, 5},
      {"cut in the body", "a.gz", gz.substr(0, g - 4000), "ends too early", g - 4000, g - 4000},
      {"cut in the trailer", "a.gz", gz.substr(0, g - 1), "ends too early", g - 1, g - 1},
      {"second member cut", "a.gz", gz + gz.substr(0, 100), "ends too early", g + 100, g + 100},
      {"second member's header cut", "a.gz", gz + gz.substr(0, 3), "ends too early", g + 3, g + 3},
      {"flipped bit", "a.gz", flipped(gz, g / 2), "damaged", g / 2, g},
      {"flipped bit in the second member", "a.gz", gz + flipped(gz, g / 2), "damaged", g + g / 2, 2 * g},
      {"flipped bit in the first of two", "a.gz", flipped(gz, g / 2) + gz, "damaged", g / 2, g},
      {"wrong crc", "a.gz", flipped(gz, g - 8), "damaged", g - 8, g},
      {"wrong size", "a.gz", flipped(gz, g - 1), "damaged", g - 4, g},
      {"rubbish after the member", "a.gz", gz + "rubbish", "damaged", g, g + 2},
      {"rubbish after padding", "a.gz", gz + std::string(3, '\0') + "x", "zero padding", g + 3, g + 3},
      {"plain text", "a.zst", "not zstd\n", "no zstd data", 0, 4},
      {"window of 2 GiB", "a.zst", std::string("\x28\xb5\x2f\xfd\0\xa8\1\0\0", 9), "needs more memory", 0, 9},
      {"empty", "a.zst", "", "ends too early", 0, 0},
      {"only the magic", "a.zst", zst.substr(0, 4), "ends too early", 4, 4},
      {"cut in the body", "a.zst", zst.substr(0, z / 2), "ends too early", z / 2, z / 2},
      {"cut tail", "a.zst", zst.substr(0, z - 40), "ends too early", z - 40, z - 40},
      {"cut checksum", "a.zst", zst.substr(0, z - 1), "ends too early", z - 1, z - 1},
      {"cut head", "a.zst", zst.substr(10), "no zstd data", 0, 4},
      {"second frame cut", "a.zst", zst + zst.substr(0, 9), "ends too early", z + 9, z + 9},
      {"flipped bit", "a.zst", flipped(zst, z / 2), "damaged", 0, z},
      {"flipped bit in the second frame", "a.zst", zst + flipped(zst, z / 2), "damaged", z, 2 * z},
      {"flipped bit in the first of two", "a.zst", flipped(zst, z / 2) + zst, "damaged", 0, z},
      {"wrong checksum", "a.zst", flipped(zst, z - 1), "damaged", 0, z},
      {"rubbish after the frame", "a.zst", zst + "rubbish", "damaged", z, z + 4},
  };
  for (const Damage& damage : table) {
    SCOPED_TRACE(std::string(damage.file) + ": " + damage.name);
    InputFile file = folder.Write(damage.file, damage.stored);
    std::vector<Line> got;
    Status status = Collect(file, {0, 0, file.bytes}, &got);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_EQ(status.tag(), "IO03");
    EXPECT_NE(status.what().find(damage.says), std::string::npos) << status.ToString();
    EXPECT_NE(status.what().find(file.path), std::string::npos) << status.ToString();
    EXPECT_GE(StoredOffsetIn(status.what()), damage.at) << status.ToString();
    EXPECT_LE(StoredOffsetIn(status.what()), damage.at_most) << status.ToString();
    EXPECT_FALSE(status.fix().empty());
  }
}

// No single flipped bit of a gzip or (checksummed) zstd file may go unnoticed with a different text.
TEST(Compressed, FlippedBitsNeverGiveAnotherText) {
  Folder folder;
  std::string text = "The quick brown fox\njumps over\nthe lazy dog\n";
  for (const auto& [name, stored] : {std::pair<std::string, std::string>{"a.gz", Gzip(text)}, {"a.zst", Zstd(text, true)}}) {
    for (std::size_t bit = 0; bit < stored.size() * 8; ++bit) {
      std::string flipped = stored;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      InputFile file = folder.Write(name, flipped);
      std::vector<Line> got;
      bool ok = Collect(file, {0, 0, file.bytes}, &got).ok();
      ASSERT_TRUE(!ok || got == Model(text)) << name << " bit " << bit;
    }
  }
}

TEST(Changed, SizeTimeKindAndAbsenceAreNoticed) {
  Folder folder;
  InputFile file = folder.Write("t", "one\ntwo\n");
  std::vector<Line> got;
  ASSERT_TRUE(Collect(file, {0, 0, file.bytes}, &got).ok());

  InputFile older = file;
  older.mtime_ns -= 1;
  InputFile longer = file;
  longer.bytes += 1;
  for (const InputFile& changed : {older, longer}) {
    Status status = Collect(changed, {0, 0, changed.bytes}, &got);
    EXPECT_EQ(status.tag(), "IO02");
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_NE(status.what().find("changed since"), std::string::npos) << status.ToString();
  }
  std::filesystem::remove(file.path);
  Status missing = Collect(file, {0, 0, file.bytes}, &got);
  EXPECT_EQ(missing.tag(), "IO02");
  EXPECT_EQ(missing.code(), Code::kUserError);
  std::filesystem::create_directory(file.path);
  EXPECT_EQ(Collect(file, {0, 0, file.bytes}, &got).tag(), "IO02");
}

TEST(Changed, AFileThatIsRewrittenWhileItIsReadFails) {
  Folder folder;
  InputFile file = folder.Write("t", "one\ntwo\n");
  bool written = false;
  Status status = ReadLines(file, {0, 0, file.bytes}, [&](const LineBatch&) {
    if (!written) std::ofstream(file.path, std::ios::app) << "three\n";
    written = true;
    return true;
  });
  EXPECT_EQ(status.tag(), "IO02");
}

TEST(Records, SplitsGiveEveryRecordOnce) {
  Folder folder;
  Random random(Seed());
  for (int round = 0; round < 50; ++round) {
    auto size = static_cast<std::uint32_t>(1 + random.Below(random.OneIn(8) ? 3'000'000 : 300));
    std::uint64_t count = random.Below(size > 1000 ? 4 : 20000);
    std::string text(size * count, '\0');
    for (char& c : text) c = static_cast<char>(random());
    InputFile file = folder.Write("r", text);
    InputListing listing{{file}, 0};
    std::string got;
    for (const auto& task : PackSplits(listing, 1 + random.Below(text.size() + 1), 3, size)) {
      for (const InputSplit& split : task) {
        Status status = ReadFixedRecords(file, split, size, [&](std::span<const std::byte> bytes, std::uint64_t offset) {
          EXPECT_EQ(bytes.size() % size, 0u);
          EXPECT_EQ(offset, got.size());
          got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          return true;
        });
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    }
    ASSERT_TRUE(got == text) << "round " << round;
  }
}

TEST(Records, CompressedFilesOfAnyMembersGiveEveryRecordOnce) {
  Folder folder;
  Random random(Seed());
  for (int round = 0; round < 40; ++round) {
    auto size = static_cast<std::uint32_t>(1 + random.Below(random.OneIn(8) ? 1'500'000 : 300));
    std::string text(size * random.Below(size > 1000 ? 4 : 5000), '\0'), gz = Gzip(""), zst = Zstd("");
    for (char& c : text) c = static_cast<char>(random());
    for (std::size_t at = 0; at < text.size();) {
      std::size_t n = std::min<std::size_t>(1 + random.Below(400'000), text.size() - at);
      gz += Gzip(text.substr(at, n), 1);
      zst += Zstd(text.substr(at, n));
      at += n;
    }
    for (const InputFile& file : {folder.Write("r.gz", gz), folder.Write("r.zst", zst)}) {
      std::string got;
      Status status = ReadFixedRecords(file, {0, 0, file.bytes}, size, [&](std::span<const std::byte> bytes, std::uint64_t offset) {
        EXPECT_EQ(bytes.size() % size, 0u);
        EXPECT_EQ(offset, got.size());
        got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return true;
      });
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_TRUE(got == text) << "round " << round;
    }
  }
}

TEST(Records, AnIncompleteRecordIsNamed) {
  Folder folder;
  std::string text(205, 'x');
  for (const InputFile& file : {folder.Write("r", text), folder.Write("r.gz", Gzip(text)), folder.Write("r.zst", Zstd(text))}) {
    Status status = ReadFixedRecords(file, {0, 0, 200}, 100, [](auto, auto) { return true; });
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_EQ(status.tag(), "IO04");
    const bool plain = file.compression == Compression::kNone;
    EXPECT_NE(status.what().find(plain ? "at byte 200: " : "at byte 200 (decompressed): "), std::string::npos) << status.what();
    EXPECT_NE(status.what().find(file.path), std::string::npos) << status.what();
    // Known before any work where the size of the file tells it.
    EXPECT_EQ(CheckFixedRecords(file, 100).ok(), file.compression != Compression::kNone);
    EXPECT_TRUE(CheckFixedRecords(file, 205).ok() || file.compression != Compression::kNone);
  }
  for (std::uint32_t size : {0u, kRecordBytesMax + 1})
    EXPECT_EQ(CheckFixedRecords(folder.Write("r", text), size).code(), Code::kInvalid) << size;
}

}  // namespace
}  // namespace ropewalk::storage
