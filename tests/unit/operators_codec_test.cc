// Codec: what goes in comes out, equal keys are equal bytes, and damaged bytes are noticed and never read past.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <complex>
#include <random>
#include <system_error>
#include <typeindex>
#include <variant>

#include "dag/codec.h"

namespace user {
struct Celsius {  // a class with a codec of its own
  Celsius() = default;
  explicit Celsius(double d) : degrees_(d) {}
  double degrees() const { return degrees_; }
  bool operator==(const Celsius&) const = default;

 private:
  virtual void NotAnAggregate() const {}
  double degrees_ = 0;
};
void RopewalkEncode(const Celsius& c, ropewalk::ByteWriter& out) { out.Fixed(c.degrees()); }
void RopewalkDecode(ropewalk::ByteReader& in, Celsius& c) { c = Celsius(in.Fixed<double>()); }

struct Growing {  // whose codec gives more bytes each time
  std::string text;
};
void RopewalkEncode(const Growing& g, ropewalk::ByteWriter& out) {
  static int times = 0;
  out.Raw(g.text + std::string(++times * 1000, '+'));
}
void RopewalkDecode(ropewalk::ByteReader& in, Growing& g) {
  std::string_view bytes = in.Raw(in.remaining());
  g.text = bytes.substr(0, bytes.find('+'));
}
}  // namespace user

namespace ropewalk::dag {
namespace {

enum class Colour : std::uint16_t { kRed = 1, kBlue = 900 };
struct Plain {
  std::int32_t a, b;
  bool operator==(const Plain&) const = default;
};
struct Padded {
  std::uint8_t a;
  double b;
  std::string c;
  std::vector<std::string> d;
  std::optional<Plain> e;
  bool operator==(const Padded&) const = default;
};
struct Pointing {
  const char* p;
  std::string s;
};
struct Viewing {
  std::string_view v;
  int n;
};

static_assert(Storable<int> && Storable<Colour> && Storable<std::string> && Storable<Plain> && Storable<Padded> && Storable<user::Celsius>);
static_assert(Storable<std::map<std::string, std::vector<std::pair<int, std::optional<std::string>>>>>);
static_assert(!Storable<int*> && !Storable<std::string_view> && !Storable<Pointing> && !Storable<Viewing> && !Storable<const int&>);
// Without padding too, where their bytes could be copied as they are.
struct PackedPointing {
  std::uint64_t number;
  const char* text;
};
struct PackedViewing {
  std::string_view text;
};
struct PackedTable {
  const char* names[4];
};
struct PackedPlain {
  std::uint64_t number;
  char text[24];
};
static_assert(!Storable<PackedPointing> && !Storable<PackedViewing> && !Storable<std::span<int>> && Storable<PackedPlain>);
static_assert(!codec_internal::kIsRaw<PackedTable> && codec_internal::kIsRaw<PackedPlain>);

// Trivially copyable ones that nobody can look into.
struct Located {
  std::int32_t id;
  float xyz[3];
  bool operator==(const Located& o) const { return id == o.id && std::equal(xyz, xyz + 3, o.xyz); }
};
struct Table {
  double x[8];
  bool operator==(const Table& o) const { return std::equal(x, x + 8, o.x); }
};
struct Single {
  char mark;
  double x[1];
  bool operator==(const Single& o) const { return mark == o.mark && x[0] == o.x[0]; }
};
struct Rows {
  char name;
  std::int32_t cells[2][3];
  bool operator==(const Rows& o) const { return name == o.name && std::memcmp(cells, o.cells, sizeof(cells)) == 0; }
};
struct Derived : Plain {
  double weight;
  bool operator==(const Derived&) const = default;
};
struct Marker {};
struct Marked : Marker {
  double weight;
  bool operator==(const Marked& o) const { return weight == o.weight; }
};
struct Bits {
  double seconds;
  unsigned kind : 3, direct : 1;
  bool operator==(const Bits&) const = default;
};
struct OneBit {
  unsigned direct : 1;
  double seconds;
  bool operator==(const OneBit&) const = default;
};
struct Flags {  // more members than bytes
  bool a : 1, b : 1, c : 1;
  bool operator==(const Flags&) const = default;
};
class Private {
 public:
  Private() = default;
  explicit Private(double d) : d_(d) {}
  bool operator==(const Private&) const = default;

 private:
  char c_ = 'c';
  double d_ = 0;
};
template <class... T>
inline constexpr bool kOnlyValues = ((codec_internal::kIsPadded<T> && Storable<T> && !kKey<T> && !kPlainBytes<T>) && ...);
static_assert(kOnlyValues<Located, Table, Single, Rows, Derived, Marked, Bits, OneBit, Flags, Private, std::complex<double>,
                          std::chrono::duration<double>>);
static_assert(!kKey<std::vector<std::pair<int, Table>>> && !kKey<std::map<int, std::optional<Private>>> && Storable<std::vector<Table>>);
static_assert(kKey<long double> && kKey<std::string> && kKey<Plain> && kKey<Padded> && kKey<user::Celsius> && kKey<PackedPlain>);
static_assert(!Storable<PackedTable>);
// Which bytes of a union are its value is known to nobody but its owner: those of the members that are not in use are left over.
struct Either {
  char kind;
  union {
    std::int64_t whole;
    double part;
  };
};
struct EitherFirst {
  union {
    std::int64_t whole;
    char part;
  };
  int kind;
};
struct EitherAlone {
  union {
    std::int64_t whole;
    const char* text;
  };
};
union Number {
  std::int64_t whole;
  char part;
};
using Choice = std::variant<int, double>;
struct NumberInATable {
  int kinds[2];
  Number number;
};
struct ChoicesInATable {
  std::pair<int, std::array<Choice, 2>> choices;
  int kinds[2];
};
struct Chooses {
  std::string name;
  Choice choice;
};
struct Chosen : Choice {};
static_assert(!Storable<Number> && !Storable<Either> && !Storable<EitherFirst> && !Storable<EitherAlone>);
static_assert(!Storable<Choice> && !Storable<std::variant<int, std::string>> && !Storable<std::vector<std::optional<Choice>>>);
static_assert(!Storable<NumberInATable> && !Storable<ChoicesInATable> && !Storable<Chooses> && !Storable<Chosen>);
// Private addresses in classes of the library.
struct Failed {
  int tries[2];
  std::error_code error;
};
static_assert(!Storable<std::variant<std::string_view, long>> && !Storable<std::variant<const char*, long>>);
static_assert(!Storable<std::error_code> && !Storable<std::error_condition> && !Storable<Failed>);
static_assert(!Storable<std::type_index>);
static_assert(HoldsAddress<std::variant<int, std::string_view>>() && HoldsAddress<std::error_code>() && !HoldsAddress<Choice>());
struct Named : Plain {
  std::string name;
};
struct Names {
  std::string names[2];
};
static_assert(!Storable<Named> && !Storable<Names>, "nor can those be copied as bytes");
// Structs whose members have no default, explicit or many constructors come apart all the same.
struct Whole {
  explicit Whole(int n) : n(n) {}
  int n;
};
struct Choosy {
  explicit Choosy(double d = 0) : d(d) {}
  double d;
};
struct Mixed {
  Whole whole = Whole(1);
  Choosy choosy;
  std::optional<std::vector<std::string>> names;
  std::array<float, 2> pair;
  std::string text;
  std::map<int, double> map;
  user::Celsius celsius;
  bool on;
};
static_assert(member_internal::ComesApart<Mixed>() && member_internal::ComesApart<Padded>() && member_internal::ComesApart<Plain>());
struct Empty {
  bool operator==(const Empty&) const = default;
};
static_assert(Storable<Empty> && kKey<Empty> && Codec<Empty>::kFixed && Codec<Empty>::kFixedBytes == 0);
static_assert(!Storable<std::pair<int, const char*>> && !Storable<std::unique_ptr<int>>);
static_assert(std::is_same_v<View<std::string>, std::string_view>);
static_assert(std::is_same_v<View<std::pair<std::string, std::tuple<int, std::string>>>,
                             std::pair<std::string_view, std::tuple<int, std::string_view>>>);
static_assert(std::is_same_v<View<std::vector<std::string>>, std::vector<std::string>>);
static_assert(std::is_same_v<Owned<const std::pair<std::string_view, int>&>, std::pair<std::string, int>>);
static_assert(std::is_same_v<Owned<const char*>, std::string>);
static_assert(Codec<Plain>::kFixed && Codec<Plain>::kFixedBytes == 8 && !Codec<Padded>::kFixed);

template <class T>
void RoundTrip(const T& value) {
  std::string bytes = Encode<T>(value);
  EXPECT_EQ(bytes.size(), Codec<T>::Size(value));
  auto back = Decode<T>(bytes);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(*back == value);
  ByteReader skip(bytes);
  Codec<T>::Skip(skip);
  EXPECT_TRUE(skip.ok() && skip.empty());
  // The view, and what is kept of it.
  ByteReader read(bytes);
  typename Codec<T>::View view{};
  Codec<T>::Read(read, &view);
  EXPECT_TRUE(read.ok() && read.empty());
  EXPECT_EQ(Encode<T>(view), bytes);
  T kept{};
  Codec<T>::Assign(&kept, view);
  EXPECT_TRUE(kept == value);
  // Cut anywhere it must be noticed; the copy has no byte behind its end, so that ASan sees a read past it.
  for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 8) {
    std::unique_ptr<char[]> cut(new char[n]);
    std::copy_n(bytes.data(), n, cut.get());
    EXPECT_EQ(Decode<T>({cut.get(), n}).status().code(), Code::kDataLoss);
  }
  EXPECT_FALSE(Decode<T>(bytes + "x").ok());
}

Padded MakePadded() { return {7, -0.5, std::string("c\0d", 3), {"", "x", std::string(300, 'y')}, Plain{1, -2}}; }

TEST(Codec, RoundTripsEveryKindOfType) {
  RoundTrip<std::int64_t>(-5);
  RoundTrip<bool>(true);
  RoundTrip<float>(1.5f);
  RoundTrip<Colour>(Colour::kBlue);
  RoundTrip<std::string>("");
  for (std::size_t n : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 16384, 70000}) {
    std::string s;
    for (std::size_t i = 0; i < n; ++i) s += static_cast<char>(i * 37);
    RoundTrip<std::string>(s);
  }
  RoundTrip<Plain>({1, 2});
  RoundTrip<Padded>(MakePadded());
  RoundTrip<user::Celsius>(user::Celsius(36.6));
  RoundTrip<std::pair<std::string, int>>({"a", 3});
  RoundTrip<std::tuple<std::string, Plain, std::optional<std::string>>>({"a", {3, 4}, "b"});
  RoundTrip<std::optional<std::string>>(std::nullopt);
  RoundTrip<std::array<std::string, 3>>({"a", "", "ccc"});
  RoundTrip<std::vector<bool>>({true, false, true});
  RoundTrip<std::vector<double>>({1, 2, 3});
  RoundTrip<std::vector<Padded>>({MakePadded(), MakePadded()});
  RoundTrip<std::map<std::string, std::vector<int>>>({{"a", {1}}, {"b", {}}});
  RoundTrip<std::unordered_map<std::string, user::Celsius>>({{"a", user::Celsius(1)}, {"b", user::Celsius(2)}});
  RoundTrip<std::set<int>>({3, 1, 2});
  RoundTrip<long double>(1.0L / 3);
  RoundTrip<std::vector<long double>>({1, -2.5L});
  RoundTrip<Located>({7, {1, -2.5f, 3}});
  RoundTrip<Table>({{1, 2, 3, 4, 5, 6, 7, -0.5}});
  RoundTrip<Single>({'s', {1.5}});
  RoundTrip<Rows>({'r', {{1, 2, 3}, {4, 5, 6}}});
  RoundTrip<Derived>({{1, 2}, .25});
  RoundTrip<Marked>({{}, .25});
  RoundTrip<Bits>({.5, 5, 1});
  RoundTrip<OneBit>({1, .5});
  RoundTrip<Flags>({true, false, true});
  RoundTrip<Private>(Private(1.5));
  RoundTrip<std::complex<double>>({1, -2});
  RoundTrip<std::chrono::duration<double>>(std::chrono::duration<double>(1.5));
  RoundTrip<std::pair<std::string, std::vector<Bits>>>({"b", {{.5, 5, 1}, {0, 1, 0}}});
  RoundTrip<Empty>({});
  RoundTrip<std::tuple<>>({});
  RoundTrip<std::vector<Empty>>({{}, {}});
}

TEST(Codec, EqualKeysAreEqualBytesAndValuesKeepTheirBits) {
  EXPECT_EQ(EncodeKey<double>(-0.0), EncodeKey<double>(0.0));
  EXPECT_NE(Encode<double>(-0.0), Encode<double>(0.0));
  double odd_nan = std::bit_cast<double>(0xfff8000000001234ull);
  EXPECT_EQ(EncodeKey<double>(odd_nan), EncodeKey<double>(std::nan("")));
  EXPECT_EQ(EncodeKey<long double>(-0.0L), EncodeKey<long double>(0.0L));
  using Deep = std::vector<std::pair<std::string, std::array<float, 2>>>;
  EXPECT_EQ(EncodeKey<Deep>(Deep{{"a", {-0.0f, 1}}}), EncodeKey<Deep>(Deep{{"a", {0.0f, 1}}}));
  EXPECT_EQ(EncodeKey<std::string>("word"), EncodeKey<std::string>(std::string_view("word")));
  std::unordered_map<int, int> forward, backward;
  for (int i = 0; i < 100; ++i) forward[i] = i;
  for (int i = 100; i-- > 0;) backward[i] = i;
  backward.rehash(1000);
  using Map = std::unordered_map<int, int>;
  EXPECT_EQ(EncodeKey<Map>(forward), EncodeKey<Map>(backward));
  EXPECT_EQ(Encode<Map>(forward), Encode<Map>(backward));
}

TEST(Codec, PaddedStructsLeaveTheirPaddingOut) {
  struct Gap {
    char a;
    std::int64_t b;
  };
  Gap x, y;
  std::memset(static_cast<void*>(&x), 0x11, sizeof(x));
  std::memset(static_cast<void*>(&y), 0x22, sizeof(y));
  x.a = y.a = 'a';
  x.b = y.b = 5;
  EXPECT_EQ(EncodeKey<Gap>(x), EncodeKey<Gap>(y));
  EXPECT_EQ(Codec<Gap>::kFixedBytes, 9u);
}

// What a struct's padding happens to hold is no part of its value: two attempts of a task must write the same bytes.
template <class T>
void ExpectPaddingLeftOut(const T& value) {
  T ones, spoiled;
  std::memset(static_cast<void*>(&ones), 0xff, sizeof(T));
  const std::string used = Encode<T>(ones);  // zeros where the padding is
  EXPECT_GT(std::count(used.begin(), used.end(), '\0'), 0);
  std::memcpy(static_cast<void*>(&spoiled), &value, sizeof(T));
  for (std::size_t i = 0; i < sizeof(T); ++i)
    if (used[i] == 0) reinterpret_cast<char*>(&spoiled)[i] = static_cast<char>(0xa5);
  EXPECT_EQ(Encode<T>(spoiled), Encode<T>(value));
}

TEST(Codec, PaddingOfTypesThatNobodyCanLookIntoIsWrittenAsZeros) {
  ExpectPaddingLeftOut<Single>({'s', {1.5}});
  ExpectPaddingLeftOut<Rows>({'r', {{1, 2, 3}, {4, 5, 6}}});
  ExpectPaddingLeftOut<Private>(Private(2));
  ExpectPaddingLeftOut<long double>(1.0L / 3);
}

TEST(Codec, AUsersCodecIsAskedOnceForEachValue) {
  using Deep = std::pair<std::vector<user::Growing>, std::unordered_map<int, user::Growing>>;
  const Deep deep{{{"a"}, {"b"}, {"c"}}, {{1, {"d"}}, {2, {"e"}}, {3, {"f"}}}};
  codec_internal::Encoded().clear();  // of what other tests only measured
  for (int round = 0; round < 3; ++round) {
    const std::size_t size = Codec<Deep>::Size(deep);
    std::unique_ptr<char[]> exact(new char[size]);  // ASan sees a byte too many
    ASSERT_EQ(Codec<Deep>::Write(deep, exact.get()), exact.get() + size);
    auto back = Decode<Deep>({exact.get(), size});
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(back->first[2].text, "c");
    EXPECT_EQ(back->second[3].text, "f");
  }
  EXPECT_TRUE(codec_internal::Encoded().empty());
}

TEST(Codec, DamagedBytesAreNeverReadPast) {
  std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  using Deep = std::tuple<std::map<std::string, std::vector<Padded>>, std::vector<std::vector<bool>>, std::vector<user::Celsius>>;
  Deep deep{{{"k", {MakePadded()}}, {"l", {}}}, {{true}, {}}, {user::Celsius(1)}};
  const std::string good = Encode<Deep>(deep);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (int flips = random() % 4 + 1; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % 2 ? bytes.size() : random() % bytes.size());
    std::unique_ptr<char[]> exact(new char[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    std::string_view view(exact.get(), bytes.size());
    (void)Decode<Deep>(view).ok();  // must return; ASan and UBSan watch
    ByteReader skip(view);
    Codec<Deep>::Skip(skip);
  }
  // A count that nothing can back.
  std::string huge;
  ByteWriter(&huge).Varint(1ull << 60);
  EXPECT_FALSE(Decode<std::vector<std::string>>(huge).ok());
  EXPECT_FALSE(Decode<std::vector<double>>(huge).ok());
  EXPECT_FALSE(Decode<std::string>(huge).ok());
  using EmptyMap = std::map<Nothing, Nothing>;
  EXPECT_FALSE(Decode<EmptyMap>(huge).ok());
}

}  // namespace
}  // namespace ropewalk::dag
