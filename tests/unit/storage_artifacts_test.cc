#include "storage/artifacts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/escape.h"

namespace ropewalk::storage {
namespace {

class Artifacts : public testing::Test {
 protected:
  Artifacts() {
    char name[] = "/tmp/ropewalk-artifacts-XXXXXX";
    root_ = mkdtemp(name);
    Reopen();
  }
  ~Artifacts() override { std::filesystem::remove_all(root_); }
  void Reopen(std::uint64_t most = 1 << 20, std::uint64_t all = 1ull << 30) {
    store_.reset();
    auto store = ArtifactStore::Open({root_ + "/a", most, all});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }
  std::string root_;
  std::unique_ptr<ArtifactStore> store_;
};

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(HexString(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexString(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(Artifacts, ArriveInChunksAndSurviveRestarts) {
  std::string body = "#!/bin/sh\nexit 0\n", name = Sha256(body);
  EXPECT_FALSE(store_->Has(name));
  EXPECT_FALSE(*store_->Put(name, 0, body.size(), body.substr(0, 5)));
  Reopen();
  EXPECT_EQ(store_->ReceivedBytes(name), 5u);
  EXPECT_FALSE(store_->Has(name));
  EXPECT_FALSE(*store_->Put(name, 2, body.size(), body.substr(2, 3))) << "a repeat";
  EXPECT_FALSE(*store_->Put(name, 3, body.size(), body.substr(3, 4))) << "half a repeat";
  EXPECT_EQ(store_->Put(name, 9, body.size(), body.substr(9)).status().tag(), "ART01") << "a gap";
  EXPECT_TRUE(*store_->Put(name, 7, body.size(), body.substr(7)));
  EXPECT_TRUE(*store_->Put(name, 0, body.size(), body)) << "it is there already";
  EXPECT_TRUE(store_->Has(name));
  EXPECT_EQ(*store_->Size(name), body.size());
  EXPECT_EQ(*store_->Read(name, 2, 7), body.substr(2, 7));
  EXPECT_EQ(*store_->Read(name, body.size(), 7), "");
  struct stat info;
  ASSERT_EQ(stat(store_->PathOf(name).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0500u);
  Reopen();
  EXPECT_TRUE(store_->Has(name));
}

TEST_F(Artifacts, WrongContentIsDropped) {
  std::string name = Sha256("right");
  auto put = store_->Put(name, 0, 5, "wrong");
  EXPECT_EQ(put.status().code(), Code::kDataLoss);
  EXPECT_EQ(store_->ReceivedBytes(name), 0u);
  EXPECT_TRUE(*store_->Put(name, 0, 5, "right"));
}

TEST_F(Artifacts, LimitsAndNames) {
  EXPECT_EQ(store_->Put("short", 0, 1, "x").status().tag(), "ART01");
  EXPECT_EQ(store_->Put("", 0, 1, "x").status().tag(), "ART01");
  std::string name = Sha256("x");
  EXPECT_EQ(store_->Put(name, 0, 2 << 20, "x").status().tag(), "ART01");
  EXPECT_EQ(store_->Put(name, 0, 0, "x").status().tag(), "ART01");
  EXPECT_EQ(store_->Put(name, ~0ull, 1, "x").status().tag(), "ART01");
  EXPECT_TRUE(*store_->Put(Sha256(""), 0, 0, "")) << "an empty file is a file";
  EXPECT_EQ(store_->Read(name, 0, 1).status().tag(), "ART04");
  EXPECT_FALSE(store_->Has("no hash"));
}

std::string Body(char of, std::size_t bytes) { return std::string(bytes, of); }

TEST_F(Artifacts, TheLeastRecentlyUsedGivesWay) {
  Reopen(1000, 1000);
  auto put = [&](char of, std::size_t bytes = 300) { return store_->Put(Sha256(Body(of, bytes)), 0, bytes, Body(of, bytes)); };
  auto has = [&](char of, std::size_t bytes = 300) { return access(store_->PathOf(Sha256(Body(of, bytes))).c_str(), F_OK) == 0; };
  for (char of : {'a', 'b', 'c'}) ASSERT_TRUE(put(of).ok());
  EXPECT_EQ(store_->bytes(), 900u);
  EXPECT_TRUE(store_->Has(Sha256(Body('a', 300)))) << "a use";
  ASSERT_TRUE(put('d').ok());
  EXPECT_TRUE(has('a') && has('c') && has('d'));
  EXPECT_FALSE(has('b')) << "was not used for longest";
  EXPECT_EQ(store_->bytes(), 900u);
  // Pinned ones stay, also across what would need their room; pins count.
  for (char of : {'a', 'c', 'd', 'd'}) store_->Pin(Sha256(Body(of, 300)));
  store_->Unpin(Sha256(Body('d', 300)));
  auto full = put('e');
  EXPECT_EQ(full.status().tag(), "ART05") << full.status().ToString();
  EXPECT_EQ(full.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(has('a') && has('c') && has('d'));
  EXPECT_LE(store_->bytes(), 1000u);
  store_->Unpin(Sha256(Body('c', 300)));
  ASSERT_TRUE(put('e').ok());
  EXPECT_FALSE(has('c'));
  EXPECT_TRUE(has('e'));
  EXPECT_EQ(store_->Put(Sha256(Body('x', 1001)), 0, 1001, Body('x', 1001)).status().tag(), "ART01");
}

TEST_F(Artifacts, TheOrderOfUseSurvivesARestart) {
  Reopen(1000, 1000);
  for (char of : {'a', 'b', 'c'}) ASSERT_TRUE(store_->Put(Sha256(Body(of, 300)), 0, 300, Body(of, 300)).ok());
  store_->Pin(Sha256(Body('a', 300)));  // used last; the pin itself ends with the process
  Reopen(1000, 1000);
  EXPECT_EQ(store_->bytes(), 900u);
  ASSERT_TRUE(store_->Put(Sha256(Body('d', 300)), 0, 300, Body('d', 300)).ok());
  EXPECT_TRUE(store_->Has(Sha256(Body('a', 300))));
  EXPECT_FALSE(store_->Has(Sha256(Body('b', 300))));
}

TEST_F(Artifacts, UploadsOfDeadClientsAreDropped) {
  Reopen(1000, 1000);
  const std::string left = Sha256(Body('l', 900));
  ASSERT_TRUE(store_->Put(left, 0, 900, Body('l', 800)).ok());
  auto refused = store_->Put(Sha256(Body('m', 300)), 0, 300, Body('m', 300));
  EXPECT_EQ(refused.status().tag(), "ART05") << "an upload that goes on is not thrown out by another one";
  // Nobody went on with it for a while: it gives way.
  auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(store_->PathOf(left) + ".part", long_ago);
  Reopen(1000, 1000);
  EXPECT_EQ(store_->ReceivedBytes(left), 800u);
  ASSERT_TRUE(store_->Put(Sha256(Body('m', 300)), 0, 300, Body('m', 300)).ok());
  EXPECT_EQ(store_->ReceivedBytes(left), 0u);
  // Days later it is dropped without need.
  ASSERT_TRUE(store_->Put(left, 0, 900, Body('l', 100)).ok());
  std::filesystem::last_write_time(store_->PathOf(left) + ".part", long_ago - std::chrono::hours(48));
  Reopen(1000, 1000);
  EXPECT_EQ(store_->ReceivedBytes(left), 0u);
  EXPECT_EQ(store_->bytes(), 300u);
}

TEST_F(Artifacts, FilesOfThisMachineAreCopied) {
  std::string body(3 << 20, 'b');
  std::ofstream(root_ + "/file", std::ios::binary) << body;
  Reopen(4 << 20);
  auto name = store_->Add(root_ + "/file");
  ASSERT_TRUE(name.ok()) << name.status().ToString();
  EXPECT_EQ(*name, Sha256(body));
  EXPECT_EQ(*Sha256OfFile(store_->PathOf(*name)), *name);
  EXPECT_EQ(store_->Add(root_ + "/none").status().tag(), "IO01");
  EXPECT_EQ(store_->Add(root_).status().tag(), "IO02");
}

}  // namespace
}  // namespace ropewalk::storage
