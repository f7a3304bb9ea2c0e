// A file system whose n-th operation fails.
//
// Thread rule: one thread.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/file_system.h"

namespace ropewalk::storage {

// Passes operations through until the n-th, which fails; a "crashed" one fails all that follow as well.
class FaultyFiles final : public FileSystem {
 public:
  int fail_at = -1;  // counted from 0; -1: never
  int error = EIO;
  bool crash = false;           // everything after the fault fails too
  bool torn = false;            // an append that fails leaves half of its bytes
  bool simple_renames = false;  // as NFS: no flags
  int operations = 0;
  std::function<void(int operation)> before;  // called before each, with its number
  std::vector<std::string> synced_folders;

  int Create(const std::string& path, std::unique_ptr<WritableFile>* file) override {
    if (int e = Fault(); e != 0) return e;
    std::unique_ptr<WritableFile> real;
    int e = local_.Create(path, &real);
    if (e == 0) *file = std::make_unique<File>(this, std::move(real));
    return e;
  }
  int ReadSmall(const std::string& path, std::size_t most, std::string* bytes) override {
    return Pass([&] { return local_.ReadSmall(path, most, bytes); });
  }
  int ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into, std::size_t* read) override {
    return Pass([&] { return local_.ReadAt(path, offset, into, read); });
  }
  int MakeFolder(const std::string& path) override {
    return Pass([&] { return local_.MakeFolder(path); });
  }
  int SyncFolder(const std::string& path) override {
    synced_folders.push_back(path);
    return Pass([&] { return local_.SyncFolder(path); });
  }
  int Look(const std::string& path, FileFacts* facts) override {
    return Pass([&] { return local_.Look(path, facts); });
  }
  int List(const std::string& path, std::vector<std::string>* names) override {
    return Pass([&] { return local_.List(path, names); });
  }
  int Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    return Pass([&] { return simple_renames && mode != RenameMode::kReplace ? EINVAL : local_.Rename(from, to, mode); });
  }
  int RemoveFile(const std::string& path) override {
    return Pass([&] { return local_.RemoveFile(path); });
  }
  int RemoveFolder(const std::string& path) override {
    return Pass([&] { return local_.RemoveFolder(path); });
  }

 private:
  class File final : public WritableFile {
   public:
    File(FaultyFiles* owner, std::unique_ptr<WritableFile> real) : owner_(owner), real_(std::move(real)) {}
    int Append(std::span<const std::byte> bytes) override {
      int e = owner_->Fault();
      if (e == 0) return real_->Append(bytes);
      if (owner_->torn) (void)real_->Append(bytes.first(bytes.size() / 2));
      return e;
    }
    int Sync() override {
      return owner_->Pass([&] { return real_->Sync(); });
    }
    int Close() override {
      return owner_->Pass([&] { return real_->Close(); });
    }

   private:
    FaultyFiles* owner_;
    std::unique_ptr<WritableFile> real_;
  };
  int Fault() {
    int n = operations++;
    if (before) before(n);
    return fail_at >= 0 && (n == fail_at || (crash && n > fail_at)) ? error : 0;
  }
  int Pass(const std::function<int()>& real) {
    int e = Fault();
    return e != 0 ? e : real();
  }
  LocalFileSystem local_;
};

}  // namespace ropewalk::storage
