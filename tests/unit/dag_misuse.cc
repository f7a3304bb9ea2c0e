// Not a test by itself: dag_misuse_test.cc compiles it. The lines below each "expect:", down to the next one, must be refused with its
// words; without MISUSE it must compile.
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "dag/map_reduce.h"
#include "dag/session.h"
#include "dag/text.h"

namespace ropewalk::dag {

struct Opaque {
  explicit Opaque(int) {}
  virtual ~Opaque() = default;
};

struct Whole {  // bytes of its own, but no default constructor
  explicit Whole(int n) : n(n) {}
  int n;
};

struct Longer {
  int n = 0;
  std::string text{};
  int table[3] = {};
  int operator()(std::string_view line) const { return int(line.size()) + n + table[0]; }
};
template <class... F>
struct Both : F... {
  using F::operator()...;
};
template <class... F>
Both(F...) -> Both<F...>;
int Length(std::string_view line) { return int(line.size()); }
std::size_t Least(std::string_view line, std::size_t n) { return std::min(n, line.size()); }

void Fine(Session& job) {
  auto lines = job.ReadLines("in");
  // Between two lambdas any copyable type will do.
  lines.Map([](std::string_view line) { return Opaque(int(line.size())); }).Map([](const Opaque&) { return 1; }).Sum();
  lines.FlatMap(Words).CountByKey().WriteText("out");
  lines.Map([](std::string_view line) { return std::pair(line, 1); }).ReduceByKey(std::plus<>()).Count();
  // Nor need those that are not stored have a default constructor.
  lines.Map([](std::string_view line) { return Whole(int(line.size())); }).Map([](const Whole& w) { return w.n; }).Sum();
  // Functions of every kind that carry values.
  lines.Map(Longer{3, "x", {1, 2}}).Sum();
  lines.Map(&Length).Sum();
  lines.Map(&std::string_view::size).Sum();
  lines.Map(std::bind(Least, std::placeholders::_1, 3)).Sum();
  lines.Filter(Both{Longer{1}, [](std::string_view, int) { return 2; }}).Count();
  auto shared = std::make_shared<int>(3);
  auto broadcast = job.Broadcast(std::string("x"));
  lines.Map([shared, broadcast](std::string_view line) { return *shared + int(line.size() + broadcast->size()); }).Sum();
}

#ifdef MISUSE
// expect: capture values that can be copied
void UncopyableCapture(Session& job) {
  auto owned = std::make_unique<int>(1);
  job.ReadLines("in").Map([owned = std::move(owned)](std::string_view line) { return line.size() + *owned; });
}
struct Counter {
  int* counter;
  int operator()(std::string_view) const { return ++*counter; }
};
// expect: this function carries an address into tasks
void PointerInAFunctionObject(Session& job) {
  int n = 0;
  job.ReadLines("in").Map(Counter{&n});
}
struct CounterByReference {
  std::string name;
  int& counter;
  int operator()(std::string_view) const { return ++counter; }
};
// expect: this function carries an address into tasks
void ReferenceInAFunctionObject(Session& job) {
  int n = 0;
  job.ReadLines("in").Map(CounterByReference{"n", n});
}
struct Prefix {
  std::string_view prefix;
  bool operator()(std::string_view line) const { return line.starts_with(prefix); }
};
// expect: this function carries an address into tasks
void ViewInAFunctionObject(Session& job, const std::string& prefix) { job.ReadLines("in").Filter(Prefix{prefix}); }
struct Nested {
  int n;
  std::pair<int, Prefix> prefix;
  std::string operator()(std::string_view line) const { return std::string(line); }
};
// expect: this function carries an address into tasks
void ViewDeepInAFunctionObject(Session& job) { job.ReadLines("in").KeyBy(Nested{1, {2, {"x"}}}); }
struct Weights {
  std::span<const int> weights;
  int operator()(int n) const { return weights[n]; }
};
// expect: this function carries an address into tasks
void SpanInAFunctionObject(Session& job, const std::vector<int>& weights) {
  job.ReadLines("in").Map([](std::string_view line) { return std::pair(int(line.size()), 1); }).MapValues(Weights{weights});
}
// expect: this function carries an address into tasks
void ReferenceToAFunction(Session& job) {
  auto fn = [n = 3](std::string_view line) { return line.size() + n; };
  job.ReadLines("in").Map(std::ref(fn));
}
// expect: this function carries an address into tasks
void BoundPointer(Session& job) {
  std::size_t n = 3;
  job.ReadLines("in").Map(
      std::bind([](std::string_view line, std::size_t* least) { return line.size() + *least; }, std::placeholders::_1, &n));
}
// expect: this function carries an address into tasks
void BoundReference(Session& job) {
  std::size_t n = 3;
  job.ReadLines("in").Map(std::bind(Least, std::placeholders::_1, std::ref(n)));
}
struct Callback {
  int (*length)(std::string_view);
  std::vector<int> operator()(std::string_view line) const { return {length(line)}; }
};
// expect: this function carries an address into tasks
void FunctionPointerInAFunctionObject(Session& job) { job.ReadLines("in").FlatMap(Callback{&Length}); }
struct SumInto {
  long* total;
  int operator()(int a, int b) const { return int(*total += a + b); }
};
// expect: this function carries an address into tasks
void PointerInACombiner(Session& job) {
  long total = 0;
  job.FromVector(std::vector<std::pair<int, int>>()).ReduceByKey(SumInto{&total});
}
struct ReduceInto {
  long* total;
  int operator()(int a, int b) const { return int(*total += a + b); }
};
// expect: this function carries an address into tasks
void PointerInReduce(Session& job) {
  long total = 0;
  job.FromVector(std::vector<int>()).Reduce(ReduceInto{&total});
}
struct CombineTotal {
  long* total;
  int operator()(int a, int b) const { return int(*total += a + b); }
};
// expect: this function carries an address into tasks
void PointerInAGroupCombiner(Session& job) {
  long total = 0;
  job.FromVector(std::vector<std::pair<int, int>>()).CombineGroups(CombineTotal{&total}, [](const int& key, Values<int>&) { return key; });
}
struct GroupInto {
  long* total;
  int operator()(const int& key, Values<int>&) const { return int(*total += key); }
};
// expect: this function carries an address into tasks
void PointerInAGroupFunction(Session& job) {
  long total = 0;
  job.FromVector(std::vector<std::pair<int, int>>()).ReduceGroups(GroupInto{&total});
}
struct Order {
  const int* order;
  int operator()(int n) const { return order[n]; }
};
// expect: this function carries an address into tasks
void PointerInASortKey(Session& job, const int* order) { job.FromVector(std::vector<int>()).SortBy(Order{order}); }
struct Rank {
  const int* rank;
  int operator()(int n) const { return rank[n]; }
};
// expect: this function carries an address into tasks
void PointerInATopKey(Session& job, const int* rank) { job.FromVector(std::vector<int>()).Top(3, Rank{rank}); }
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
struct Either {
  char kind;
  union {
    long whole;
    double part;
  };
};
// expect: unions and std::variant are refused, since nobody can see which member is in use: write RopewalkEncode and RopewalkDecode
void StructsWithAUnion(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int n) { return Either{'e', {n}}; }).Cache();
}
// expect: unions and std::variant are refused, since nobody can see which member is in use: write RopewalkEncode and RopewalkDecode
void Variants(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int n) { return std::variant<int, double>(n); }).Cache();
}
// expect: Ropewalk cannot encode their type
void ErrorCodes(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int) { return std::error_code(); }).Cache();
}
// expect: this function carries an address into tasks
void BoundVariantOfAPointer(Session& job, std::variant<int, const char*> either) {
  job.ReadLines("in").Map(std::bind([](std::string_view, const auto&) { return 1; }, std::placeholders::_1, either));
}
struct Located {
  int id;
  float xyz[3];
};
struct Flagged {
  double seconds;
  unsigned direct : 1;
};
struct Base {
  double weight;
};
struct Derived : Base {
  int n;
};
class Duration {
 public:
  Duration() = default;
  explicit Duration(double seconds) : seconds_(seconds) {}

 private:
  double seconds_ = 0;
};
// expect: Ropewalk cannot look into the type of these
void KeysWithAnArray(Session& job) { job.FromVector(std::vector<std::pair<Located, int>>()).ReduceByKey(std::plus<>()); }
// expect: Ropewalk cannot look into the type of these
void KeysWithBits(Session& job) { job.FromVector(std::vector<std::pair<Flagged, int>>()).GroupByKey(); }
// expect: Ropewalk cannot look into the type of these
void KeysWithABase(Session& job) { job.FromVector(std::vector<Derived>()).CountByKey(); }
// expect: Ropewalk cannot look into the type of these
void KeysWithPrivateFloats(Session& job) { job.FromVector(std::vector<std::vector<Duration>>()).Distinct(); }
// expect: Ropewalk cannot order this type
void SortByAnArray(Session& job) {
  job.FromVector(std::vector<int>()).SortBy([](int n) { return Located{n, {}}; });
}
struct Named : Base {
  std::string name;
};
// expect: Ropewalk cannot encode their type
void StructsWithABaseAndText(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int) { return Named(); }).Cache();
}
// expect: Ropewalk cannot encode their type
void OpaqueRecords(Session& job) {
  job.ReadLines("in").Map([](std::string_view line) { return Opaque(int(line.size())); }).Cache();
}
class Cents {
 public:
  explicit Cents(long n) : n_(n) {}
  long n() const { return n_; }

 private:
  long n_;
};
// expect: a record that is stored or sent needs a default constructor
void RecordsWithoutDefaultConstructor(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int n) { return Cents(n); }).Cache();
}
// expect: a record that is stored or sent needs a default constructor
void ListsOfSuch(Session& job) {
  job.FromVector(std::vector<int>()).Map([](int n) { return std::vector<std::vector<Cents>>{{Cents(n)}}; }).Collect();
}
// expect: Sum: the records are text
void SumOfText(Session& job) { job.ReadLines("in").Sum(); }
// expect: a dataset cannot be looped over
void LoopOverADataset(Session& job) {
  for (auto x : job.FromVector(std::vector<int>())) (void)x;
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
