// Listings, patterns and packing.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>

#include "base/random.h"
#include "storage/glob.h"
#include "storage/list_inputs.h"

namespace ropewalk::storage {
namespace {

namespace fs = std::filesystem;

class Listing : public testing::Test {
 protected:
  Listing() {
    char name[] = "/tmp/ropewalk-listing-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Listing() override { fs::remove_all(root_); }
  void Write(const std::string& name, const std::string& bytes = "x\n") {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name, std::ios::binary) << bytes;
  }
  // Paths relative to the folder of the test.
  std::vector<std::string> List(std::vector<std::string> patterns) {
    auto listing = ListInputs(patterns, root_);
    EXPECT_TRUE(listing.ok()) << listing.status().ToString();
    std::vector<std::string> names;
    if (listing.ok()) {
      hidden_ = listing->skipped_hidden;
      for (const InputFile& file : listing->files) names.push_back(file.path.substr(root_.size() + 1));
    }
    return names;
  }
  Status Fails(const std::string& pattern) {
    auto listing = ListInputs(std::span(&pattern, 1), root_);
    EXPECT_FALSE(listing.ok()) << pattern;
    return listing.ok() ? Status() : listing.status();
  }
  using Names = std::vector<std::string>;
  std::string root_;
  std::uint64_t hidden_ = 0;
};

TEST_F(Listing, AFolderMeansAllFilesBelowInByteOrder) {
  for (const char* name :
       {"in/b", "in/a/z", "in/a.txt", "in/B", "in/a/deep/er/x", "in/\xff", "in/ü", "in/new\nline", "in/-dash", "in/with space"})
    Write(name);
  EXPECT_EQ(List({"in"}), (Names{"in/-dash", "in/B", "in/a.txt", "in/a/deep/er/x", "in/a/z", "in/b", "in/new\nline", "in/with space",
                                 "in/ü", "in/\xff"}));
  EXPECT_EQ(List({"./in//a/"}), (Names{"in/a/deep/er/x", "in/a/z"}));
  EXPECT_EQ(List({"file://" + root_ + "/in/b"}), (Names{"in/b"}));
}

TEST_F(Listing, HiddenNamesAreSkippedUnlessNamedOutright) {
  for (const char* name : {"in/a", "in/.hidden", "in/_SUCCESS", "in/_temporary/x", "in/.d/y"}) Write(name);
  EXPECT_EQ(List({"in"}), (Names{"in/a"}));
  EXPECT_EQ(hidden_, 4u);
  EXPECT_EQ(List({"in/*"}), (Names{"in/a"}));
  EXPECT_EQ(hidden_, 4u);
  EXPECT_EQ(List({"in/.hidden", "in/_temporary"}), (Names{"in/.hidden", "in/_temporary/x"}));
  EXPECT_EQ(List({"in/_*"}), (Names{"in/_SUCCESS", "in/_temporary/x"}));
  fs::remove(root_ + "/in/a");
  EXPECT_EQ(List({"in"}), Names{});
  EXPECT_NE(Fails("in/*").why().find("skipped"), std::string::npos);
}

TEST_F(Listing, AnExistingPathWinsOverAPattern) {
  for (const char* name : {"in/*star[1].txt", "in/star1.txt", "in/xstar1.txt", "d[12]/f1", "d1/f1", "d2/f1"}) Write(name);
  EXPECT_EQ(List({"in/*star[1].txt"}), (Names{"in/*star[1].txt"}));
  EXPECT_EQ(List({"in/\\*star\\[1].txt"}), (Names{"in/*star[1].txt"}));
  EXPECT_EQ(List({"in/?star[1].txt"}), (Names{"in/xstar1.txt"}));
  EXPECT_EQ(List({"d[12]/f?"}), (Names{"d[12]/f1"}));
  EXPECT_EQ(List({"d?/f?"}), (Names{"d1/f1", "d2/f1"}));
}

TEST_F(Listing, PatternsMatchFoldersAndKeepTheirOrder) {
  for (const char* name : {"2024-01/a.log", "2024-02/b.log", "2024-02/c.txt", "2025-01/d.log"}) Write(name);
  EXPECT_EQ(List({"2024-*"}), (Names{"2024-01/a.log", "2024-02/b.log", "2024-02/c.txt"}));
  EXPECT_EQ(List({"2025*/*.log", "2024*/*.log"}), (Names{"2025-01/d.log", "2024-01/a.log", "2024-02/b.log"}));
  EXPECT_EQ(List({"2024-01/a.log", "2024-01/a.log"}), (Names{"2024-01/a.log", "2024-01/a.log"}));
}

TEST_F(Listing, TwoStarsStandForAnyNumberOfFolders) {
  for (const char* name : {"in/a.txt", "in/b/b.txt", "in/b/c/c.txt", "in/b/c/c.log", "in/.h/d.txt", "in/x/b/b/e.txt", "in/y.txt/f.txt"})
    Write(name);
  fs::create_directory_symlink(root_ + "/in", root_ + "/in/b/back");
  EXPECT_EQ(List({"in/**/*.txt"}), (Names{"in/a.txt", "in/b/b.txt", "in/b/c/c.txt", "in/x/b/b/e.txt", "in/y.txt/f.txt"}))
      << "each once, and links are not followed";
  EXPECT_EQ(List({"in/**/b/**/*.txt"}), (Names{"in/b/b.txt", "in/b/c/c.txt", "in/x/b/b/e.txt"}));
  EXPECT_EQ(List({"in/b/c/**"}), (Names{"in/b/c/c.log", "in/b/c/c.txt"}));
  EXPECT_EQ(List({"**/c.log"}), (Names{"in/b/c/c.log"}));
  EXPECT_EQ(Fails("in/**/none").code(), Code::kNotFound);
  EXPECT_EQ(Fails("in/a.txt/**").code(), Code::kNotFound);
  std::string many = "in";
  for (int i = 0; i < 40; ++i) many += "/**";
  EXPECT_EQ(Fails(many + "/none").code(), Code::kNotFound) << "and it does not take for ever";
}

TEST_F(Listing, WhatOnlyAShellExpandsIsNamed) {
  Write("in/a");
  Write("in/{x,y}");
  for (const char* pattern : {"in/{a,b}", "in/{a,b}*"}) EXPECT_NE(Fails(pattern).why().find("braces"), std::string::npos) << pattern;
  EXPECT_NE(Fails("in/a,in/b").why().find("comma"), std::string::npos);
  EXPECT_NE(Fails("in/a,in/b*").why().find("comma"), std::string::npos);
  EXPECT_EQ(List({"in/{x,y}"}), (Names{"in/{x,y}"})) << "a path that exists is what it says";
}

// Read as bytes they would give rubbish. Suffix and first bytes must both say so.
TEST_F(Listing, FormsThatAreNotReadAreRefused) {
  const std::map<std::string, std::string> files = {{"a.bz2", "BZh91AY"},
                                                    {"a.xz", std::string("\xfd"
                                                                         "7zXZ\0\0",
                                                                         7)},
                                                    {"a.lz4", "\x04\x22\x4d\x18zz"},
                                                    {"a.zip", "PK\x03\x04"},
                                                    {"a.7z", "7z\xbc\xaf\x27\x1c"},
                                                    {"a.parquet", "PAR1zzzz"},
                                                    {"a.orc", "ORCzz"},
                                                    {"a.avro", "Obj\x01zz"}};
  for (const auto& [name, bytes] : files) {
    Write("in/" + name, bytes);
    for (const std::string& pattern : {"in/" + name, std::string("in"), std::string("in/*")}) {
      Status status = Fails(pattern);
      EXPECT_EQ(status.tag(), "IO07") << status.ToString();
      EXPECT_NE(status.what().find(name), std::string::npos) << status.ToString();
      EXPECT_FALSE(status.why().empty() || status.fix().empty()) << status.ToString();
    }
    Write("in/" + name, "plain text\n");
    EXPECT_EQ(List({"in/" + name}), (Names{"in/" + name})) << "a suffix alone says nothing";
    fs::rename(root_ + "/in/" + name, root_ + "/in/data");
    Write("in/data", bytes);
    EXPECT_EQ(List({"in"}), (Names{"in/data"})) << "first bytes alone neither";
    fs::remove(root_ + "/in/data");
  }
}

TEST_F(Listing, LinksAreFollowedAndLoopsRefused) {
  Write("real/a");
  fs::create_directory(root_ + "/in");
  fs::create_symlink(root_ + "/real", root_ + "/in/link");
  EXPECT_EQ(List({"in"}), (Names{"in/link/a"}));
  fs::create_symlink(root_ + "/in", root_ + "/real/back");
  EXPECT_EQ(Fails("in").tag(), "IO02");
  fs::remove(root_ + "/real/back");
  fs::create_symlink(root_ + "/nowhere", root_ + "/in/dangling");
  Status dangling = Fails("in");
  EXPECT_EQ(dangling.tag(), "IO02");
  EXPECT_EQ(dangling.code(), Code::kUserError);
  EXPECT_NE(dangling.what().find("in/dangling"), std::string::npos);
}

TEST_F(Listing, WhatIsNotThereIsNamedWithTheNearestName) {
  Write("in/words.txt");
  Status status = Fails("in/wrods.txt");
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.tag(), "IO01");
  EXPECT_NE(status.what().find("in/wrods.txt"), std::string::npos);
  EXPECT_NE(status.fix().find("words.txt"), std::string::npos);
  EXPECT_EQ(Fails("none/x").code(), Code::kNotFound);
  EXPECT_EQ(Fails("none/*").code(), Code::kNotFound);
  EXPECT_EQ(Fails("in/words.txt/x").code(), Code::kNotFound);
  EXPECT_EQ(Fails("in/words.txt/").code(), Code::kNotFound);
  EXPECT_EQ(Fails("").code(), Code::kInvalid);
  EXPECT_EQ(Fails(std::string("in\0/words.txt", 13)).code(), Code::kInvalid);
  EXPECT_EQ(Fails("s3://bucket/key").code(), Code::kInvalid);
  EXPECT_NE(Fails("a\nb").what().find("a\\nb"), std::string::npos) << "a name must not forge a log line";
}

TEST_F(Listing, PipesAreRefused) {
  ASSERT_EQ(mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(Fails("pipe").tag(), "IO02");
}

TEST_F(Listing, UnreadableFilesAndFoldersAreNamed) {
  for (const char* name : {"in/a", "x/open/b.txt", "x/closed/b.txt", "x/closed/sub/b.txt"}) Write(name);
  chmod(root_.c_str(), 0755);
  const bool root = geteuid() == 0;  // who reads everything, so the listing runs as nobody
  auto as_root = [&] { return root ? seteuid(0) : 0; };
  auto as_user = [&] { return root ? seteuid(65534) : 0; };
  chmod((root_ + "/in/a").c_str(), 0);
  ASSERT_EQ(as_user(), 0);
  EXPECT_EQ(Fails("in").tag(), "IO02");
  EXPECT_EQ(Fails("in/*").tag(), "IO02");
  ASSERT_EQ(as_root(), 0);
  chmod((root_ + "/in").c_str(), 0);
  ASSERT_EQ(as_user(), 0);
  EXPECT_EQ(Fails("in").tag(), "IO02");
  EXPECT_EQ(Fails("in/*").tag(), "IO02");
  ASSERT_EQ(as_root(), 0);
  chmod((root_ + "/in").c_str(), 0755);
  // One folder among others that may not be entered, or may be read and not entered: what it holds is not left out in silence.
  for (mode_t mode : {0, 0444}) {
    chmod((root_ + "/x/closed").c_str(), mode);
    ASSERT_EQ(as_user(), 0);
    for (const char* pattern : {"x", "x/*", "x/*/b.txt", "x/*/*.txt", "x/**/b.txt", "x/**/*.txt", "x/**", "x/*/sub/b.txt", "x/c*/sub/*",
                                "x/closed/sub/*", "x/closed/sub/*.txt", "x/closed/sub/b.txt", "x/closed/*/b.txt", "**/b.txt"}) {
      Status status = Fails(pattern);
      EXPECT_EQ(status.tag(), "IO02") << pattern << ": " << status.ToString();
      EXPECT_EQ(status.code(), Code::kUserError) << pattern << ": " << status.ToString();
      EXPECT_NE(status.what().find("/closed"), std::string::npos) << pattern << ": " << status.ToString();
    }
    EXPECT_EQ(List({"x/open/*"}), (Names{"x/open/b.txt"}));
    ASSERT_EQ(as_root(), 0);
  }
  // May be entered and not read: what is named outright is found, and what is not there is not blamed on the folder.
  chmod((root_ + "/x/closed").c_str(), 0111);
  ASSERT_EQ(as_user(), 0);
  EXPECT_EQ(List({"x/*/b.txt"}), (Names{"x/closed/b.txt", "x/open/b.txt"}));
  EXPECT_EQ(Fails("x/closed/none").why(), "there is no such file or folder");
  ASSERT_EQ(as_root(), 0);
  chmod((root_ + "/x/closed").c_str(), 0700);
}

// Also where a pattern asks for it, or for something below it.
TEST_F(Listing, LinksThatLeadNowhereAreNamed) {
  for (const char* name : {"x1/a.txt", "x1/sub/b.txt", "x2/c.txt"}) Write(name);
  auto named = [&](const char* link, std::initializer_list<const char*> patterns) {
    for (const fs::path& target : {fs::path("gone"), fs::path(link).filename()}) {  // the second one leads to itself
      fs::create_symlink(target, root_ + "/" + link);
      for (const char* pattern : patterns) {
        Status status = Fails(pattern);
        EXPECT_EQ(status.tag(), "IO02") << pattern << ": " << status.ToString();
        EXPECT_EQ(status.code(), Code::kUserError) << pattern << ": " << status.ToString();
        EXPECT_NE(status.what().find(link), std::string::npos) << pattern << ": " << status.ToString();
      }
      fs::remove(root_ + "/" + link);
    }
  };
  named("x2/a.txt", {"x*/a.txt", "x*/*.txt", "x*", "**/a.txt", "x2/a.txt"});
  named("x2/sub", {"x*/sub/b.txt", "x*/*/b.txt", "x*/sub/*", "x*/sub", "x2/sub/*"});
  EXPECT_EQ(List({"x*/a.txt"}), (Names{"x1/a.txt"}));
  EXPECT_EQ(List({"x*/sub/*"}), (Names{"x1/sub/b.txt"}));
}

// Its size says that there is nothing to read.
TEST_F(Listing, AFileOfNoBytesThatHoldsSomeIsRefused) {
  const std::string status_file = "/proc/" + std::to_string(getpid()) + "/status";
  Write("in/empty", "");
  fs::create_symlink(status_file, root_ + "/in/link");
  for (const std::string& pattern :
       {status_file, status_file.substr(0, status_file.size() - 1) + "?", std::string("in"), std::string("in/*")}) {
    Status status = Fails(pattern);
    EXPECT_EQ(status.tag(), "IO02") << pattern;
    EXPECT_EQ(status.code(), Code::kUserError);
    EXPECT_NE(status.what().find(pattern.starts_with("in") ? "in/link" : status_file), std::string::npos) << status.ToString();
    EXPECT_NE(status.fix().find("copy"), std::string::npos) << status.ToString();
  }
  fs::remove(root_ + "/in/link");
  EXPECT_EQ(List({"in"}), (Names{"in/empty"})) << "an empty file is one";
}

TEST_F(Listing, TheFoldersThatAreInputAsAWholeAreTold) {
  for (const char* name : {"in/a", "in/sub/b", "in2/c", "else/where/d", "in3/e.txt"}) Write(name);
  fs::create_directory_symlink(root_ + "/else/where", root_ + "/in/link");
  auto folders = [&](std::vector<std::string> patterns) {
    std::vector<std::string> walked;
    EXPECT_TRUE(ListInputs(patterns, root_, &walked).ok());
    for (std::string& folder : walked) folder = folder.substr(root_.size() + 1);
    return walked;
  };
  EXPECT_EQ(folders({"in"}), (Names{"in", "in/link"})) << "what a link leads to may lie elsewhere";
  EXPECT_EQ(folders({"./in2/"}), (Names{"in2"}));
  EXPECT_EQ(folders({"file://" + root_ + "/in2"}), (Names{"in2"}));
  EXPECT_EQ(folders({"in?"}), (Names{"in2", "in3"}));
  EXPECT_EQ(folders({"in2/*", "in3/e.txt"}), Names{}) << "files only";
  EXPECT_EQ(folders({"in/s*"}), (Names{"in/sub"}));
  EXPECT_EQ(folders({"in2/**"}), (Names{"in2"}));
}

TEST_F(Listing, SurvivesItsEncoding) {
  Write("in/a.gz");
  Write("in/b.zst", "123");
  Write("in/c\n\xff", "");
  auto listing = ListInputs(std::vector<std::string>{"in"}, root_);
  ASSERT_TRUE(listing.ok());
  std::string bytes = EncodeListing(*listing);
  auto back = DecodeListing(bytes);
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->files.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back->files[i].path, listing->files[i].path);
    EXPECT_EQ(back->files[i].bytes, listing->files[i].bytes);
    EXPECT_EQ(back->files[i].mtime_ns, listing->files[i].mtime_ns);
    EXPECT_EQ(back->files[i].compression, listing->files[i].compression);
  }
  EXPECT_EQ(back->files[0].compression, Compression::kGzip);
  EXPECT_EQ(back->files[1].compression, Compression::kZstd);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodeListing(std::string_view(bytes).substr(0, cut)).ok()) << cut;
  EXPECT_FALSE(DecodeListing(bytes + "x").ok());
}

struct GlobCase {
  const char* pattern;
  const char* name;
  bool matches;
};

TEST(Glob, Table) {
  const GlobCase table[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "abc", true},
      {"a*c", "abbbc", true},
      {"a*c", "abbbd", false},
      {"*a*b*", "xxaybz", true},
      {"*a*b*", "xxbya", false},
      {"?", "a", true},
      {"?", "", false},
      {"?", "ü", true},
      {"?", "\xff", true},
      {"??", "ü", false},
      {"[abc]", "b", true},
      {"[a-c]", "d", false},
      {"[!a-c]", "d", true},
      {"[^a]", "a", false},
      {"[]]", "]", true},
      {"[a", "[a", true},
      {"[a-]", "-", true},
      {"\\*", "*", true},
      {"\\*", "a", false},
      {"a\\", "a\\", true},
      {"*.txt", "a.txt", true},
      {"*.txt", "a.txt.gz", false},
      {"a**b", "ab", true},
      {"\xff*", "\xff\xfe", true},
      {"[\\]]", "]", true},
      {"a\nb", "a\nb", true},
  };
  for (const GlobCase& c : table) EXPECT_EQ(GlobMatch(c.pattern, c.name), c.matches) << c.pattern << " ~ " << c.name;
}

TEST(Glob, ManyStarsStayFast) {
  std::string pattern, name(5000, 'a');
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatch(pattern + "b", name));
}

// Every byte of every file is in exactly one split; borders and sizes keep the contract.
TEST(PackSplits, CoversEverythingOnceInOrder) {
  std::uint64_t seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  if (const char* given = getenv("ROPEWALK_TEST_SEED")) seed = strtoull(given, nullptr, 10);
  std::printf("ROPEWALK_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int round = 0; round < 500; ++round) {
    InputListing listing;
    for (std::uint64_t i = random.Below(30); i > 0; --i) {
      std::uint64_t bytes = random.OneIn(5) ? 0 : random.Below(random.OneIn(4) ? std::uint64_t{1} << 40 : 1 << 20);
      listing.files.push_back({"f", bytes, 0, random.OneIn(5) ? Compression::kGzip : Compression::kNone});
    }
    std::uint64_t record = random.OneIn(2) ? 0 : 1 + random.Below(1000);
    std::uint64_t most = (std::uint64_t{1} << (16 + random.Below(14))) * 1000;
    std::uint64_t at_file = 0, at_byte = 0;
    auto pass_empty = [&] {
      while (at_file < listing.files.size() && at_byte >= listing.files[at_file].bytes &&
             (at_byte != 0 || listing.files[at_file].compression == Compression::kNone))
        ++at_file, at_byte = 0;
    };
    bool empty_compressed = false;
    for (const auto& task : PackSplits(listing, most, static_cast<std::uint32_t>(random.Below(20)), record)) {
      ASSERT_FALSE(task.empty());
      for (const InputSplit& split : task) {
        if (!empty_compressed) pass_empty();
        empty_compressed = false;
        ASSERT_EQ(split.file, at_file);
        ASSERT_EQ(split.begin, at_byte);
        const InputFile& file = listing.files[split.file];
        if (file.compression != Compression::kNone) {
          ASSERT_EQ(split.end, file.bytes);
          ++at_file, at_byte = 0;
          empty_compressed = true;
          pass_empty();
          continue;
        }
        ASSERT_GT(split.end, split.begin);
        ASSERT_LE(split.end - split.begin, most + record + (record != 0 ? file.bytes % record : 0));
        ASSERT_TRUE(record == 0 || split.end == file.bytes || split.end % record == 0);
        at_byte = split.end;
      }
    }
    pass_empty();
    ASSERT_EQ(at_file, listing.files.size()) << "round " << round;
  }
}

TEST(PackSplits, SmallFilesShareTasksAndLargeOnesFeedEverySlot) {
  InputListing small;
  for (int i = 0; i < 2000; ++i) small.files.push_back({"f", 4000, 0, Compression::kNone});
  std::size_t tasks = PackSplits(small, 128 << 20, 2).size();
  EXPECT_GE(tasks, 4u);
  EXPECT_LE(tasks, 20u);
  InputListing large{{{"f", 1ull << 30, 0, Compression::kNone}}, 0};
  EXPECT_EQ(PackSplits(large, 128 << 20, 2).size(), 8u);
  EXPECT_GE(PackSplits(large, 128 << 20, 16).size(), 58u);
  EXPECT_TRUE(PackSplits({}, 128 << 20, 2).empty());
  EXPECT_TRUE(PackSplits({{{"f", 0, 0, Compression::kNone}}, 0}, 128 << 20, 2).empty());
}

}  // namespace
}  // namespace ropewalk::storage
