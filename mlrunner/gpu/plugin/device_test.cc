// The plugin's tests on a device, against loops over doubles: usage: gpu_device_test PLUGIN TEST. Exit 0: passed; 1: failed; 77: there is
// no device, and why. No library but the plugin is needed, so it runs where there is CMake and CUDA and nothing else.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {
namespace {

int failures = 0;

[[gnu::format(printf, 2, 3)]] bool Expect(bool holds, const char* format, ...) {
  if (holds) return true;
  ++failures;
  va_list arguments;
  va_start(arguments, format);
  std::fputs("FAILED: ", stdout);
  std::vprintf(format, arguments);
  std::fputc('\n', stdout);
  va_end(arguments);
  return false;
}

struct Device {
  const Api* api = nullptr;
  Context* context = nullptr;
  Message why = {};

  // Ends the program: nothing that follows would make sense.
  void Do(Failure failure, const char* what) {
    if (failure == Failure::kNone) return;
    std::printf("FAILED: %s: %s\n", what, why.text);
    std::exit(1);
  }
  void* Put(const std::vector<char>& bytes) {
    void* memory = nullptr;
    Do(api->allocate(context, bytes.size(), &memory, &why), "allocate");
    Do(api->to_device(context, memory, bytes.data(), bytes.size(), &why), "to_device");
    return memory;
  }
  std::vector<char> Get(const void* memory, std::size_t bytes) {
    std::vector<char> got(bytes);
    Do(api->to_host(context, got.data(), memory, bytes, &why), "to_host");
    return got;
  }
};

template <class T>
std::vector<char> Bytes(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Numbers that `element` holds exactly, as doubles and as bytes.
std::vector<double> Numbers(Element element, std::size_t count, unsigned seed, double low = -1, double high = 1) {
  std::mt19937 random(seed);
  std::vector<double> numbers(count);
  for (double& number : numbers) {
    auto x = static_cast<float>(low + (high - low) * (random() / 4294967296.0));
    number = element == Element::kF32 ? x : ToFloat(FromFloat<BFloat16>(x));
  }
  return numbers;
}
std::vector<char> Encode(Element element, const std::vector<double>& numbers) {
  std::vector<float> wide(numbers.begin(), numbers.end());
  if (element == Element::kF32) return Bytes(wide);
  std::vector<BFloat16> narrow;
  for (float x : wide) narrow.push_back(FromFloat<BFloat16>(x));
  return Bytes(narrow);
}
std::vector<double> Decode(Element element, const std::vector<char>& bytes) {
  std::vector<double> numbers(bytes.size() / SizeOf(element));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (element == Element::kF32) {
      float x;
      std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
      numbers[i] = x;
    } else {
      BFloat16 x;
      std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
      numbers[i] = ToFloat(x);
    }
  }
  return numbers;
}

// Relative to the largest magnitude: 4e-6 (67 units of f32's last place) covers sums of some thousand terms, 2^-8 the rounding to bf16.
void ExpectNear(const char* what, Element element, const std::vector<double>& got, const std::vector<double>& expected) {
  double scale = 1e-30, worst = 0;
  for (double x : expected) scale = std::fmax(scale, std::fabs(x));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(got[i] - expected[i]) / scale;
    worst = std::isnan(error) ? HUGE_VAL : std::fmax(worst, error);
  }
  const double tolerance = element == Element::kF32 ? 4e-6 : 1 / 256.0;
  Expect(got.size() == expected.size() && worst <= tolerance, "%s of %s: off by %g, at most %g", what,
         element == Element::kF32 ? "f32" : "bf16", worst, tolerance);
}

template <class A>
std::vector<char> FoldOnTheHost(FoldCall call, const std::vector<FoldRow>& rows) {
  std::vector<char> out(static_cast<std::size_t>(call.count * SizeOf(call.element)));
  call.out = out.data();
  for (std::int64_t i = 0; i < call.count; ++i) FoldElement<A>(call, rows.data(), i);
  return out;
}

// The device's folds against the same arithmetic on the host, to the last bit; of random bits, among them infinities and subnormal numbers.
void TestFold(Device& d) {
  struct Type {
    Element element, accumulator;
    const char* name;
    std::vector<char> (*on_host)(FoldCall, const std::vector<FoldRow>&);
  };
  const Type types[] = {{Element::kF32, Element::kF32, "f32", FoldOnTheHost<float>},
                        {Element::kF64, Element::kF64, "f64", FoldOnTheHost<double>},
                        {Element::kF16, Element::kF32, "f16", FoldOnTheHost<float>},
                        {Element::kBF16, Element::kF32, "bf16", FoldOnTheHost<float>},
                        {Element::kI32, Element::kI32, "i32", FoldOnTheHost<std::int32_t>},
                        {Element::kI64, Element::kI64, "i64", FoldOnTheHost<std::int64_t>},
                        {Element::kU8, Element::kU8, "u8", FoldOnTheHost<std::uint8_t>}};
  constexpr std::int64_t kCount = 100'003;
  void* stream = nullptr;
  d.Do(d.api->make_stream(d.context, &stream, &d.why), "make_stream");
  std::mt19937 random(13);
  for (const Type& type : types) {
    const std::int64_t size = SizeOf(type.element);
    const bool is_float = type.accumulator == Element::kF32 || type.accumulator == Element::kF64;
    for (Sum sum : {Sum::kSum, Sum::kMin, Sum::kMax, Sum::kProd}) {
      for (std::size_t row_count : {1u, 2u, 5u}) {
        const double scale = is_float && row_count == 5 ? 1.0 / 3 : 1;
        std::vector<std::vector<char>> numbers(row_count, std::vector<char>(static_cast<std::size_t>(kCount * size)));
        std::vector<FoldRow> there, here;
        for (auto& row : numbers) {
          for (char& byte : row) byte = static_cast<char>(random());
          here.push_back({row.data(), scale, type.element});
          there.push_back({d.Put(row), scale, type.element});
        }
        void* out = d.Put(std::vector<char>(static_cast<std::size_t>(kCount * size)));
        d.Do(d.api->synchronize(d.context, &d.why), "synchronize");  // what was put is there for the other stream
        FoldCall call = {sum, type.accumulator, type.element, static_cast<std::int32_t>(row_count), there.data(), scale, kCount, out};
        d.Do(d.api->fold(d.context, stream, &call, &d.why), "fold");
        d.Do(d.api->wait_stream(d.context, stream, &d.why), "wait_stream");
        const std::vector<char> got = d.Get(out, static_cast<std::size_t>(kCount * size)), expected = type.on_host(call, here);
        std::int64_t other = 0;
        for (std::int64_t i = 0; i < kCount; ++i) {
          const double a = LoadAs<double>(got.data(), type.element, i), b = LoadAs<double>(expected.data(), type.element, i);
          const bool are_nans = is_float && a != a && b != b;  // whose bits are the processor's affair
          if (!are_nans && std::memcmp(got.data() + i * size, expected.data() + i * size, static_cast<std::size_t>(size)) != 0) ++other;
        }
        Expect(other == 0, "%s, operation %d of %zu rows: %lld elements have other bits than on the host", type.name, static_cast<int>(sum),
               row_count, static_cast<long long>(other));
        for (const FoldRow& row : there) d.api->release(d.context, const_cast<void*>(row.data));
        d.api->release(d.context, out);
      }
    }
  }
  // A mean of whole numbers is none; the device must not be asked.
  std::int32_t number = 0;
  const FoldRow row = {&number, .5, Element::kI32};
  const FoldCall mean = {Sum::kSum, Element::kI32, Element::kI32, 1, &row, 1, 1, &number};
  Expect(d.api->fold(d.context, stream, &mean, &d.why) == Failure::kInvalid, "a scaled fold of whole numbers is taken");
  d.api->free_stream(d.context, stream);
}

void TestMatMul(Device& d) {
  for (Element element : {Element::kF32, Element::kBF16}) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      for (int batch : {1, 3}) {
        for (auto [m, n, k] : {std::array{64, 128, 256}, std::array{33, 47, 65}, std::array{1, 10, 784}}) {
          MatMulShape shape{element, transposes & 1, transposes >> 1, m, n, k, batch, batch == 1 ? 0 : m * k, 0};
          const bool ta = shape.transpose_a != 0, tb = shape.transpose_b != 0;
          std::vector<double> a = Numbers(element, static_cast<std::size_t>(batch) * m * k, 1), b = Numbers(element, k * n, 2);
          std::vector<double> expected(static_cast<std::size_t>(batch) * m * n);
          for (int z = 0; z < batch; ++z) {
            for (int i = 0; i < m; ++i) {
              for (int j = 0; j < n; ++j) {
                double sum = 0;
                for (int x = 0; x < k; ++x) sum += a[z * m * k + (ta ? x * m + i : i * k + x)] * b[tb ? j * k + x : x * n + j];
                expected[(z * m + i) * n + j] = sum;
              }
            }
          }
          MatMul* product = nullptr;
          d.Do(d.api->make_matmul(d.context, &shape, &product, &d.why), "make_matmul");
          void *da = d.Put(Encode(element, a)), *db = d.Put(Encode(element, b)),
               *dc = d.Put(std::vector<char>(expected.size() * SizeOf(element)));
          d.Do(d.api->matmul(product, da, db, dc, &d.why), "matmul");
          ExpectNear("a product", element, Decode(element, d.Get(dc, expected.size() * SizeOf(element))), expected);
          d.api->free_matmul(product);
          for (void* memory : {da, db, dc}) d.api->release(d.context, memory);
        }
      }
    }
  }
  MatMulShape none{Element::kF32, 0, 0, 0, 1, 1, 1, 0, 0};
  MatMul* product = nullptr;
  Expect(d.api->make_matmul(d.context, &none, &product, &d.why) == Failure::kInvalid, "a product without rows was made");
}

void TestAdamW(Device& d) {
  for (Element element : {Element::kF32, Element::kBF16}) {
    for (std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{3'000'001}}) {
      // A step that bf16 has not.
      const double b1 = .9, b2 = .999, epsilon = 1e-8, decay = .01, rate = Numbers(Element::kF32, 1, 7, .001, .002)[0], step = 301;
      std::vector<double> p = Numbers(element, n, 3), m = Numbers(element, n, 4), v = Numbers(element, n, 5, 0, 1),
                          g = Numbers(element, n, 6);
      void* in[4];
      int i = 0;
      for (const auto* tensor : {&p, &m, &v, &g}) in[i++] = d.Put(Encode(element, *tensor));
      void *drate = d.Put(Encode(Element::kF32, {rate})), *dstep = d.Put(Encode(Element::kF32, {step}));
      const auto *rate_there = static_cast<const float*>(drate), *step_there = static_cast<const float*>(dstep);
      // Where the old ones lie.
      AdamWCall call{
          element, static_cast<std::int64_t>(n), in[0], in[1], in[2], in[3], rate_there, step_there, in[0], in[1], in[2], b1, b2, epsilon,
          decay};
      d.Do(d.api->adamw(d.context, &call, &d.why), "adamw");
      for (std::size_t x = 0; x < n; ++x) {
        m[x] = b1 * m[x] + (1 - b1) * g[x];
        v[x] = b2 * v[x] + (1 - b2) * g[x] * g[x];
        p[x] -= rate * (m[x] / (1 - std::pow(b1, step)) / (std::sqrt(v[x] / (1 - std::pow(b2, step))) + epsilon) + decay * p[x]);
      }
      i = 0;
      for (const auto* tensor : {&p, &m, &v}) ExpectNear("AdamW", element, Decode(element, d.Get(in[i++], n * SizeOf(element))), *tensor);
      for (void* memory : {in[0], in[1], in[2], in[3], drate, dstep}) d.api->release(d.context, memory);
    }
  }
}

void TestCrossEntropy(Device& d) {
  for (Element element : {Element::kF32, Element::kBF16}) {
    for (auto [rows, classes] : {std::pair{1, 1}, std::pair{7, 10}, std::pair{300, 1031}, std::pair{5, 50257}}) {
      std::vector<double> x = Numbers(element, static_cast<std::size_t>(rows) * classes, 8, -9, 9), g = Numbers(element, rows, 9);
      std::vector<std::int64_t> labels;
      for (int row = 0; row < rows; ++row) labels.push_back(row * 7919 % classes);
      std::vector<double> loss, log_sum, dx(x.size());
      for (int row = 0; row < rows; ++row) {
        const double* at = &x[static_cast<std::size_t>(row) * classes];
        double top = at[0], sum = 0;
        for (int c = 0; c < classes; ++c) top = std::fmax(top, at[c]);
        for (int c = 0; c < classes; ++c) sum += std::exp(at[c] - top);
        log_sum.push_back(top + std::log(sum));
        loss.push_back(log_sum[row] - at[labels[row]]);
      }
      const std::size_t bytes = rows * SizeOf(element);
      void *dx_in = d.Put(Encode(element, x)), *dlabels = d.Put(Bytes(labels)), *dg = d.Put(Encode(element, g));
      void *dloss = d.Put(std::vector<char>(bytes)), *dsum = d.Put(std::vector<char>(bytes)),
           *dgrad = d.Put(std::vector<char>(x.size() * SizeOf(element)));
      CrossEntropyCall call{element, Element::kI64, 0, rows, classes, dx_in, dlabels, dloss, dsum, nullptr, nullptr};
      d.Do(d.api->cross_entropy(d.context, &call, &d.why), "cross_entropy");
      ExpectNear("a loss", element, Decode(element, d.Get(dloss, bytes)), loss);
      log_sum = Decode(element, d.Get(dsum, bytes));  // backward starts from what forward rounded
      for (int row = 0; row < rows; ++row) {
        for (int c = 0; c < classes; ++c) {
          const std::size_t at = static_cast<std::size_t>(row) * classes + c;
          dx[at] = (std::exp(x[at] - log_sum[row]) - (c == labels[row] ? 1 : 0)) * g[row];
        }
      }
      call.backward = 1;
      call.loss_gradient = dg;
      call.logits_gradient = dgrad;
      d.Do(d.api->cross_entropy(d.context, &call, &d.why), "cross_entropy backward");
      ExpectNear("a gradient of logits", element, Decode(element, d.Get(dgrad, x.size() * SizeOf(element))), dx);
      // A label that is none.
      if (rows > 2) {
        labels[2] = classes;
        d.Do(d.api->to_device(d.context, dlabels, labels.data(), labels.size() * sizeof labels[0], &d.why), "to_device");
        const std::string expected = "label of sample 2 is " + std::to_string(classes);
        Expect(d.api->cross_entropy(d.context, &call, &d.why) == Failure::kLabel && d.why.text == expected, "a wrong label: \"%s\"",
               d.why.text);
      }
      for (void* memory : {dx_in, dlabels, dg, dloss, dsum, dgrad}) d.api->release(d.context, memory);
    }
  }
}

void TestMemory(Device& d) {
  const std::vector<double> numbers = Numbers(Element::kF32, 1 << 20, 10);
  const std::vector<char> bytes = Encode(Element::kF32, numbers);
  void* memory = d.Put(bytes);
  Expect(reinterpret_cast<std::uintptr_t>(memory) % 512 == 0, "memory is not aligned");
  Expect(d.Get(memory, bytes.size()) == bytes, "what came back is not what was sent");
  d.api->release(d.context, memory);
  Expect(d.Put(bytes) == memory, "what was given back is not handed out again");
  MemoryUse use{};
  d.api->memory_use(d.context, &use);
  Expect(use.used_bytes >= bytes.size() && use.peak_bytes >= use.used_bytes, "the pool has lost count");
  void* too_much = nullptr;
  Expect(d.api->allocate(d.context, std::size_t{1} << 50, &too_much, &d.why) == Failure::kOutOfMemory, "a petabyte was handed out");
  d.Do(d.api->synchronize(d.context, &d.why), "a refused allocation must not spoil the device");
}

// What is said of a stream when its work has ended.
void TestStreams(Device& d) {
  void* stream = nullptr;
  d.Do(d.api->make_stream(d.context, &stream, &d.why), "make_stream");
  std::atomic<int> called = 0;
  d.Do(d.api->notify(d.context, stream, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &called, &d.why), "notify");
  d.Do(d.api->wait_stream(d.context, stream, &d.why), "wait_stream");
  Expect(called == 1, "told %d times that a stream is done", called.load());
  std::int32_t idle = 0;
  d.Do(d.api->is_idle(d.context, stream, &idle, &d.why), "is_idle");
  Expect(idle == 1, "a stream without work is busy");
  d.api->free_stream(d.context, stream);
  void* memory = d.Put(std::vector<char>(4096));
  int here = 0;
  Expect(d.api->is_on_device(d.context, memory) == 1, "device memory is called the host's");
  Expect(d.api->is_on_device(d.context, &here) == 0, "the host's memory is called the device's");
  d.Do(d.api->synchronize(d.context, &d.why), "asking for the host's memory must not spoil the device");
}

// P = 1: the calls, types and sums; not what travels between ranks.
void TestNccl(Device& d) {
  const NcclTable* nccl = d.api->nccl(&d.why);
  if (nccl == nullptr) {
    std::printf("SKIPPED gpu_nccl: %s\n", d.why.text);
    std::exit(77);
  }
  auto done = [&](std::int32_t code, const char* what) { Expect(code == 0, "%s: %s", what, nccl->text(code)); };
  NcclId id;
  NcclComm comm = nullptr;
  void* stream = d.api->stream(d.context);
  done(nccl->make_id(&id), "make_id");
  done(nccl->connect(&comm, 1, &id, 0), "connect");
  if (failures > 0) return;
  for (Element element : {Element::kF32, Element::kBF16}) {
    const std::vector<double> numbers = Numbers(element, 100'003, 11);
    const std::vector<char> bytes = Encode(element, numbers);
    void* in = d.Put(bytes);
    std::map<const char*, void*> out;
    for (const char* call : {"all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "receive"})
      out[call] = d.Put(std::vector<char>(bytes.size()));
    const std::size_t count = numbers.size();
    done(nccl->group_begin(), "group_begin");
    done(nccl->all_reduce(in, out["all_reduce"], count, element, Sum::kSum, comm, stream), "all_reduce");
    done(nccl->broadcast(in, out["broadcast"], count, element, 0, comm, stream), "broadcast");
    done(nccl->reduce(in, out["reduce"], count, element, Sum::kMax, 0, comm, stream), "reduce");
    done(nccl->reduce_scatter(in, out["reduce_scatter"], count, element, Sum::kProd, comm, stream), "reduce_scatter");
    done(nccl->all_gather(in, out["all_gather"], count, element, comm, stream), "all_gather");
    done(nccl->group_end(), "group_end");
    done(nccl->group_begin(), "group_begin");
    done(nccl->send(in, count, element, 0, comm, stream), "send");
    done(nccl->receive(out["receive"], count, element, 0, comm, stream), "receive");
    done(nccl->group_end(), "group_end");
    for (const auto& [call, memory] : out) Expect(d.Get(memory, bytes.size()) == bytes, "%s with one rank gives another vector", call);
    std::int32_t error = 0;
    done(nccl->async_error(comm, &error), "async_error");
    done(error, "what was started");
    for (const auto& [call, memory] : out) d.api->release(d.context, memory);
    d.api->release(d.context, in);
  }
  std::int32_t idle = 0;
  d.Do(d.api->is_idle(d.context, nullptr, &idle, &d.why), "is_idle");
  Expect(idle == 1, "the stream is busy after all was read");
  done(nccl->disconnect(comm), "disconnect");
}

int Run(const char* plugin, const std::string& test) {
  const std::map<std::string, std::function<void(Device&)>> tests = {
      {"matmul", TestMatMul},   {"adamw", TestAdamW}, {"cross_entropy", TestCrossEntropy}, {"fold", TestFold}, {"memory", TestMemory},
      {"streams", TestStreams}, {"nccl", TestNccl}};
  auto found = tests.find(test);
  if (found == tests.end()) return std::printf("FAILED: there is no test \"%s\"\n", test.c_str()), 1;
  void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::printf("FAILED: %s\n", dlerror()), 1;
  auto api = reinterpret_cast<const Api* (*)()>(dlsym(library, kApiSymbol));
  if (api == nullptr) return std::printf("FAILED: %s\n", dlerror()), 1;
  Device d{.api = api()};
  if (!Expect(d.api->abi_version == kAbiVersion && d.api->bytes == sizeof(Api), "the plugin is of another version")) return 1;
  DeviceInfo info;
  std::int32_t count = 0;
  // Behind the two numbers there are pointers to functions only; one that was forgotten would end a program that has a device.
  for (std::size_t at = 2 * sizeof(std::uint32_t); at < sizeof(Api); at += sizeof(void*)) {
    const void* function = nullptr;
    std::memcpy(&function, reinterpret_cast<const char*>(d.api) + at, sizeof function);
    Expect(function != nullptr, "the plugin's table has no function at byte %zu", at);
  }
  if (failures > 0) return 1;
  // No driver, or no device: only then may it be skipped.
  Failure probed = d.api->probe(&info, 1, &count, &d.why);
  if (probed != Failure::kNone || count == 0)
    return std::printf("SKIPPED gpu_%s: %s\n", test.c_str(), count == 0 && probed == Failure::kNone ? "no device" : d.why.text), 77;
  std::printf("%s, compute capability %d.%d\n", info.name, info.major, info.minor);
  d.Do(d.api->open(0, std::uint64_t{4} << 30, &d.context, &d.why), "open");
  found->second(d);
  d.Do(d.api->synchronize(d.context, &d.why), "synchronize");
  d.api->close(d.context);
  std::printf("%s: %s\n", test.c_str(), failures == 0 ? "passed" : "failed");
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ropewalk::gpu

int main(int argc, char** argv) {
  if (argc == 3) return ropewalk::gpu::Run(argv[1], argv[2]);
  std::puts("usage: gpu_device_test PLUGIN TEST");
  return 2;
}
