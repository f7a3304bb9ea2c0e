// Not a test by itself: dag_misuse_test.cc compiles it. Each misuse must be refused with the words behind "expect:"; without MISUSE it must
// compile.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dag/map_reduce.h"
#include "dag/session.h"
#include "dag/text.h"

namespace ropewalk::dag {

struct Opaque {
  explicit Opaque(int) {}
  virtual ~Opaque() = default;
};

void Fine(Session& job) {
  auto lines = job.ReadLines("in");
  // Between two lambdas any copyable type will do.
  lines.Map([](std::string_view line) { return Opaque(int(line.size())); }).Map([](const Opaque&) { return 1; }).Sum();
  lines.FlatMap(Words).CountByKey().WriteText("out");
  lines.Map([](std::string_view line) { return std::pair(line, 1); }).ReduceByKey(std::plus<>()).Count();
}

#ifdef MISUSE
// expect: capture values that can be copied
void UncopyableCapture(Session& job) {
  auto owned = std::make_unique<int>(1);
  job.ReadLines("in").Map([owned = std::move(owned)](std::string_view line) { return line.size() + *owned; });
}
// expect: Map: the function must take one record of the dataset
void WrongParameter(Session& job) {
  job.ReadLines("in").Map([](int n) { return n; });
}
// expect: Map: the function returns nothing
void NoResult(Session& job) {
  job.ReadLines("in").Map([](std::string_view) {});
}
// expect: a record must not be a pointer
void PointerRecord(Session& job) {
  job.ReadLines("in").Map([](std::string_view line) { return line.data(); });
}
// expect: FlatMap: the function must return a range
void NotARange(Session& job) {
  job.ReadLines("in").FlatMap([](std::string_view line) { return line.size() + 0.5; });
}
// expect: or fn(record, Emit<U> emit) with U written out
void EmitWithoutType(Session& job) {
  job.ReadLines("in").FlatMap([](std::string_view line, auto emit) { emit(line); });
}
// expect: Filter: the function must take one record and return bool
void FilterOfNothing(Session& job) {
  job.ReadLines("in").Filter([](std::string_view) {});
}
// expect: needs a dataset of std::pair<Key, Value>
void ReduceWithoutKeys(Session& job) {
  job.ReadLines("in").ReduceByKey([](int a, int b) { return a + b; });
}
// expect: ReduceByKey: the function must be V(V, V)
void WrongCombiner(Session& job) {
  job.ReadLines("in")
      .Map([](std::string_view line) { return std::pair(line, 1); })
      .ReduceByKey([](const std::string& a, const std::string& b) { return a + b; });
}
// expect: Join: the keys of both datasets must have the same type
void JoinOfDifferentKeys(Session& job) {
  auto a = job.FromVector(std::vector<std::pair<int, int>>());
  auto b = job.FromVector(std::vector<std::pair<std::string, int>>());
  a.Join(b);
}
// expect: Union: both datasets must hold the same type
void UnionOfDifferentTypes(Session& job) { job.FromVector(std::vector<int>()).Union(job.FromVector(std::vector<double>())); }
struct Viewing {
  std::string_view text;
};
struct Pointing {
  long number;
  const char* text;
};
// expect: Ropewalk cannot encode their type
void StructsOfPointers(Session& job) {
  job.FromVector(std::vector<int>{1}).Map([](int n) { return Pointing{n, "x"}; }).Cache();
}
void StructsOfViews(Session& job) {
  job.ReadLines("in").Map([](std::string_view line) { return Viewing{line}; }).Cache();
}
// expect: Ropewalk cannot encode their type
void OpaqueRecords(Session& job) {
  job.ReadLines("in").Map([](std::string_view line) { return Opaque(int(line.size())); }).Cache();
}
// expect: Broadcast takes what a dataset may hold
void BroadcastOfAPointer(Session& job) {
  int here = 1;
  job.Broadcast(&here);
}
// expect: WriteText cannot write this type
void Unprintable(Session& job) {
  job.ReadLines("in").Map([](std::string_view line) { return Opaque(int(line.size())); }).WriteText("out");
}
struct Padded {
  char small;
  long large;
};
// expect: WriteRecords writes std::string, and trivially copyable records without padding
void PaddedRecords(Session& job) { job.FromVector(std::vector<Padded>()).WriteRecords("out"); }
// expect: ReadRecords<T>: T must be trivially copyable
void StringsAsFixedRecords(Session& job) { job.ReadRecords<std::string>("in"); }
// expect: the mapper must emit std::pair<Key, Value>
void MapperWithoutKeys(Session& job) {
  MapReduce(job.ReadLines("in"), Words, NoCombiner(), [](const std::string& key, Values<int>&) { return key; });
}
#endif

}  // namespace ropewalk::dag
