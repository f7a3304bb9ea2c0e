// A job as main sees it: where datasets begin, and the values that every replica of main must agree on.
//
// ropewalk::Init() (job/) makes it and hands it to main as `ropewalk::Job`. Main is replayed in every executor: it may branch on arguments,
// action results and Once() only; seeds and times come from here.
//
// Thread rule: main's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/backend.h"
#include "dag/broadcast.h"
#include "dag/codec.h"
#include "dag/dataset.h"
#include "dag/plan/context.h"
#include "dag/plan/fingerprint.h"
#include "dag/plan/sources.h"

namespace ropewalk::dag {

struct SessionOptions {
  Backend* backend = nullptr;     // outlives the session, or is kept by `keep`
  std::shared_ptr<void> keep;     // released last
  FailHook fail;                  // what a failed action does: it does not return
  std::vector<std::string> args;  // of main, without ours; [0] is the program
};

struct VectorOptions {
  std::uint32_t partitions = 0;  // 0: the default number, at most one for each element
};

struct RecordOptions {
  std::uint32_t bytes = 0;  // of each record; at most 1 GiB
};

// What a pattern argument may be: one path or a list of them.
class InputPaths {
 public:
  InputPaths(const char* path) : paths_{path} {}                            // NOLINT: implicit by design
  InputPaths(std::string path) : paths_{std::move(path)} {}                 // NOLINT
  InputPaths(std::string_view path) : paths_{std::string(path)} {}          // NOLINT
  InputPaths(std::vector<std::string> paths) : paths_(std::move(paths)) {}  // NOLINT
  InputPaths(std::initializer_list<std::string> paths) : paths_(paths) {}   // NOLINT
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) = delete;

  // Lines of text files: paths, folders (all files below), globs; .gz and .zst are decompressed. Lines end at '\n', which is not part of
  // them. Views are valid while a lambda sees them. The listing is made once, by the driver; missing input ends the job.
  Dataset<std::string_view> ReadLines(InputPaths paths, Site site = Site::Here());

  // Records of sizeof(T) bytes each, one after another with nothing between them; a file's size (that of .gz and .zst: decompressed) is a
  // multiple of it. T is trivially copyable: `job.ReadRecords<std::array<char, 100>>("/data")`. Dataset::WriteRecords is the reverse.
  template <class T>
  Dataset<T> ReadRecords(InputPaths paths, Site site = Site::Here()) {
    auto files = ListFiles(paths, sizeof(T));
    return Dataset<T>(NewFileNode("ReadRecords", site, *files, TypeHash<T>()), std::make_shared<FixedRecordStream<T>>(files));
  }

  // The same where the size is known at run time only: `job.ReadRecords("/data", {.bytes = 100})`. Views as with ReadLines.
  Dataset<std::string_view> ReadRecords(InputPaths paths, RecordOptions record, Site site = Site::Here());

  // The elements of a small vector (at most 64 MiB encoded) that is the same in every replica: its content enters the fingerprint.
  template <class T>
  Dataset<Owned<T>> FromVector(std::vector<T> data, VectorOptions options = {}, Site site = Site::Here()) {
    using Element = Owned<T>;
    auto kept = std::make_shared<std::vector<Element>>();
    if constexpr (std::is_same_v<T, Element>) {
      *kept = std::move(data);
    } else {
      kept->resize(data.size());
      for (std::size_t i = 0; i < data.size(); ++i) AssignRecord(&(*kept)[i], data[i]);
    }
    std::uint64_t hash = TypeHash<Element>(), bytes = 0;
    std::string encoded;
    for (const Element& element : *kept) {
      encoded.clear();
      EncodeTo<Element>(element, &encoded);
      bytes += encoded.size();
      hash = HashCombine(hash, Checksum64(encoded));
    }
    PlanNodePtr node = NewVectorNode(site, kept->size(), bytes, hash, options);
    return Dataset<Element>(node, std::make_shared<VectorStream<Element>>(std::move(kept), node->partitions()));
  }

  template <class T>
  Dataset<Owned<T>> FromVector(std::initializer_list<T> data, VectorOptions options = {}, Site site = Site::Here()) {
    return FromVector(std::vector<T>(data), options, site);
  }

  // Hands a value to tasks: capture the result by value. Every executor gets the driver's bytes.
  template <class T>
  ropewalk::Broadcast<Owned<T>> Broadcast(const T& value) {
    using Value = Owned<T>;
    static_assert(Storable<Value>, "Broadcast takes what a dataset may hold: no pointers, references or views inside");
    std::string bytes = OnceBytes(NextOnceName("broadcast"), [&]() -> Result<std::string> { return Encode<Value>(value); });
    return ropewalk::Broadcast<Value>(std::make_shared<const Value>(DecodeOnce<Value>(bytes)));
  }

  // Runs `fn` in one replica only and gives its value in all of them: for files, network, clocks, random devices, anything slow. One name,
  // one value, for the life of the job. An exception of `fn` ends the job. `fn` builds no dataset, runs no action, calls no other Once.
  template <class Fn>
  auto Once(const std::string& name, Fn fn) {
    using Value = std::invoke_result_t<Fn&>;
    if constexpr (std::is_void_v<Value>) {
      OnceBytes("user:" + name, [&]() -> Result<std::string> {
        return Guarded(name, [&] {
          fn();
          return std::string();
        });
      });
    } else {
      using Kept = Owned<Value>;
      static_assert(Storable<Kept>, "Once: the value must be of a type that a dataset may hold");
      return DecodeOnce<Kept>(
          OnceBytes("user:" + name, [&]() -> Result<std::string> { return Guarded(name, [&] { return Encode<Kept>(fn()); }); }));
    }
  }

  std::uint64_t Seed() const { return context_->settings().seed; }
  std::chrono::system_clock::time_point Now() const {
    return std::chrono::system_clock::time_point(std::chrono::microseconds(context_->settings().now_us));
  }
  const std::vector<std::string>& args() const { return args_; }
  const Settings& settings() const { return context_->settings(); }
  PlanContext& context() const { return *context_; }
  const std::shared_ptr<PlanContext>& shared_context() const { return context_; }

 private:
  std::shared_ptr<const FilePartitions> ListFiles(const InputPaths& paths, std::uint32_t record_bytes);
  PlanNodePtr NewFileNode(const char* op, Site site, const FilePartitions& files, std::uint64_t fingerprint);
  PlanNodePtr NewVectorNode(Site site, std::size_t size, std::uint64_t bytes, std::uint64_t hash, const VectorOptions& options);
  std::string NextOnceName(const char* kind);
  std::string OnceBytes(const std::string& name, const std::function<Result<std::string>()>& compute);
  static Result<std::string> Guarded(const std::string& name, const std::function<std::string()>& fn);
  template <class T>
  T DecodeOnce(const std::string& bytes) {
    Result<T> value = Decode<T>(bytes);
    if (!value.ok()) context_->Fail(value.status());
    return *std::move(value);
  }

  std::shared_ptr<void> keep_;
  std::shared_ptr<PlanContext> context_;
  std::vector<std::string> args_;
};

}  // namespace ropewalk::dag
