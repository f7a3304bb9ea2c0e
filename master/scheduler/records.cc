#include "master/scheduler/records.h"

#include <array>

#include "base/bytes.h"

namespace ropewalk::scheduler {
namespace {

// One description of each record's fields serves writing and reading: Fields(coder, record) visits them in order.
class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}
  static std::uint8_t version() { return kRecordVersion; }
  void Int(std::uint64_t v) { out_.Varint(v); }
  void Int(std::uint32_t v) { out_.Varint(v); }
  void Int(std::int64_t v) { out_.Fixed(v); }
  void Int(std::int32_t v) { out_.Fixed(v); }
  void Fixed(std::uint64_t v) { out_.Fixed(v); }
  void Bool(bool v) { out_.Fixed<std::uint8_t>(v ? 1 : 0); }
  void Bytes(const std::string& v) { out_.Sized(v); }
  template <class T, class F>
  void List(const std::vector<T>& list, F each) {
    out_.Varint(list.size());
    for (const T& item : list) each(*this, const_cast<T&>(item));
  }
  template <class Tag>
  void Id(const ropewalk::Id<Tag>& id) {
    out_.Varint(id.value);
  }

 private:
  ByteWriter out_;
};

class Reader {
 public:
  Reader(std::string_view bytes, std::uint8_t version) : in_(bytes), version_(version) {}
  std::uint8_t version() const { return version_; }
  void Int(std::uint64_t& v) { v = in_.Varint(); }
  void Int(std::uint32_t& v) {
    std::uint64_t wide = in_.Varint();
    v = static_cast<std::uint32_t>(wide);
    if (v != wide) bad_ = true;
  }
  void Int(std::int64_t& v) { v = in_.Fixed<std::int64_t>(); }
  void Int(std::int32_t& v) { v = in_.Fixed<std::int32_t>(); }
  void Fixed(std::uint64_t& v) { v = in_.Fixed<std::uint64_t>(); }
  void Bool(bool& v) {
    std::uint8_t byte = in_.Fixed<std::uint8_t>();
    v = byte == 1;
    if (byte > 1) bad_ = true;
  }
  void Bytes(std::string& v) { v = in_.Sized(); }
  template <class T, class F>
  void List(std::vector<T>& list, F each) {
    std::uint64_t n = in_.Varint();
    if (n > in_.remaining()) {  // each item takes a byte at least: nothing is allocated for a damaged count
      bad_ = true;
      return;
    }
    list.resize(static_cast<std::size_t>(n));
    for (T& item : list) {
      if (!in_.ok()) return;
      each(*this, item);
    }
  }
  template <class Tag>
  void Id(ropewalk::Id<Tag>& id) {
    id.value = in_.Varint();
  }
  bool Whole() const { return in_.ok() && in_.empty() && !bad_; }

 private:
  ByteReader in_;
  const std::uint8_t version_;
  bool bad_ = false;
};

template <class C>
void StringList(C& c, std::vector<std::string>& list) {
  c.List(list, [](C& c, std::string& s) { c.Bytes(s); });
}
template <class C>
void StageList(C& c, std::vector<StageId>& list) {
  c.List(list, [](C& c, StageId& id) { c.Id(id); });
}

template <class C>
void Fields(C& c, CountersRecord& r) {
  c.Int(r.job_next);
  c.Int(r.executors_reserved);
}
template <class C>
void Fields(C& c, JobAcceptedRecord& r) {
  JobSpec& s = r.spec;
  dag::Settings& t = s.settings;
  c.Id(t.job);
  c.Bytes(t.name);
  c.Fixed(t.seed);
  c.Int(t.now_us);
  c.Int(t.slots);
  c.Int(t.partitions);
  c.Int(t.operator_bytes);
  c.Int(t.split_bytes_max);
  c.Int(t.collect_bytes_max);
  c.Int(t.user_attempts_max);
  c.Bool(t.verify);
  c.Bytes(t.work_dir);
  c.Bytes(s.submit_key);
  StringList(c, s.argv);
  StringList(c, s.environment);
  StringList(c, s.artifacts);
  c.Bytes(s.user);
  c.Int(s.executors_max);
  c.Int(s.glibc_min);
  c.Int(s.cpu_level_min);
  c.Int(s.time_limit_ms);
}
template <class C>
void Fields(C& c, AttemptsRecord& r) {
  c.Id(r.job);
  c.Int(r.reserved);
}
template <class C>
void Fields(C& c, OnceRecord& r) {
  c.Id(r.job);
  c.Bytes(r.name);
  c.Bytes(r.value);
}
template <class C>
void Fields(C& c, TaskDoneRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Id(r.id.stage);
  c.Int(r.id.task);
  c.Int(r.id.attempt);
  c.Fixed(r.hash);
  c.Bool(r.has_value);
  c.Bytes(r.value);
}
template <class C>
void Fields(C& c, TasksForgottenRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Id(r.stage);
  c.List(r.tasks, [](C& c, std::uint32_t& task) { c.Int(task); });
}
template <class C>
void Fields(C& c, VerifiedRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Id(r.stage);
}
template <class C>
void Fields(C& c, WinnersRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Id(r.stage);
  c.List(r.tasks, [](C& c, TaskDoneRecord& task) { Fields(c, task); });
  StageList(c, r.pinned);
}
template <class C>
void Fields(C& c, ActionPublishedRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Fixed(r.fingerprint);
  c.Bytes(r.name);
  StringList(c, r.values);
  StageList(c, r.pinned);
}
template <class C>
void Fields(C& c, RetiredRecord& r) {
  c.Id(r.job);
  StageList(c, r.stages);
}
template <class C>
void Fields(C& c, StageView& s) {
  c.Id(s.id);
  c.Bytes(s.name);
  c.Int(s.tasks);
  c.Int(s.done);
  c.Int(s.failed);
  c.Int(s.ms);
  c.Int(s.counters.records_in);
  c.Int(s.counters.bytes_in);
  c.Int(s.counters.records_out);
  c.Int(s.counters.bytes_out);
  c.Int(s.counters.bytes_spilled);
}
template <class C>
void Fields(C& c, ActionView& a) {
  c.Int(a.sequence);
  c.Bytes(a.name);
  c.Bytes(a.plan_text);
  c.Bool(a.published);
  c.List(a.stages, [](C& c, StageView& stage) { Fields(c, stage); });
}
template <class C>
void Fields(C& c, JobFinishedRecord& r) {
  c.Id(r.job);
  c.Bytes(r.submit_key);
  c.Bytes(r.name);
  c.Bytes(r.user);
  c.Int(r.submitted_us);
  c.Int(r.code);
  c.Bytes(r.tag);
  c.Bytes(r.what);
  c.Bytes(r.why);
  c.Bytes(r.fix);
  c.Int(r.main_exit);
  c.Int(r.actions_done);
  if (c.version() < 2) return;
  c.Int(r.started_us);
  c.Int(r.finished_us);
  c.List(r.past, [](C& c, ActionView& action) { Fields(c, action); });
  if (c.version() < 3) return;
  StringList(c, r.argv);
  StringList(c, r.outputs);
  c.Int(r.workers_lost);
  c.List(r.lost_workers, [](C& c, LostWorker& worker) {
    c.Bytes(worker.name);
    c.Int(worker.tasks);
  });
}

template <class C>
void Fields(C& c, CutRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  StageList(c, r.stages);
}
template <class C>
void Fields(C& c, CutsUndoneRecord& r) {
  c.Id(r.job);
}
template <class C>
void Fields(C& c, GangRecord& r) {
  c.Id(r.job);
  c.Int(r.sequence);
  c.Id(r.stage);
  c.Int(r.epoch_next);
  c.Int(r.failures);
  c.Int(r.restarts);
}

template <class T>
Result<Record> DecodeAs(std::string_view fields, std::uint8_t version) {
  T record;
  Reader reader(fields, version);
  Fields(reader, record);
  if (!reader.Whole())
    return Status(Code::kDataLoss, "JRN01", "a record of the journal cannot be read", "its fields do not fit its kind",
                  "restore the master's folder from a backup");
  return Record(std::move(record));
}

using Decoder = Result<Record> (*)(std::string_view, std::uint8_t);
// A record's kind is its place here + 1, in the order of the variant. Only ever append.
template <class... T>
constexpr std::array<Decoder, sizeof...(T)> Decoders(const std::variant<T...>*) {
  return {&DecodeAs<T>...};
}

}  // namespace

std::string Encode(const Record& record) {
  std::string bytes;
  bytes += static_cast<char>(kRecordVersion);
  bytes += static_cast<char>(record.index() + 1);
  Writer writer(&bytes);
  // Writing only reads the fields; the shared description takes them non-const for the reader's sake.
  std::visit([&](const auto& r) { Fields(writer, const_cast<std::remove_cvref_t<decltype(r)>&>(r)); }, record);
  return bytes;
}

Result<Record> Decode(std::string_view bytes) {
  static constexpr auto kDecoders = Decoders(static_cast<const Record*>(nullptr));
  if (bytes.size() < 2) return Status(Code::kDataLoss, "JRN01", "a record of the journal is cut short");
  auto version = static_cast<std::uint8_t>(bytes[0]);
  auto kind = static_cast<std::uint8_t>(bytes[1]);
  if (version > kRecordVersion || kind > kDecoders.size())
    return Status(Code::kVersionSkew, "JRN02", "the journal was written by a newer master",
                  "a record has version " + std::to_string(version) + " and kind " + std::to_string(kind),
                  "start the version that wrote it, or a newer one");
  if (version == 0 || kind == 0)
    return Status(Code::kDataLoss, "JRN01", "a record of the journal cannot be read", "it is of no known kind");
  return kDecoders[kind - 1](bytes.substr(2), version);
}

}  // namespace ropewalk::scheduler
