#include "storage/artifacts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
  void Reopen(std::uint64_t most = 1 << 20) {
    auto store = ArtifactStore::Open({root_ + "/a", most});
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
