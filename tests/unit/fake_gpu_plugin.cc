// A GPU plugin without a GPU: its device memory is the host's, and its kernels run the arithmetic of mlrunner/gpu/maths.h, block by block
// and thread by thread, as the device would; products go through the column-major form that cuBLASLt is given, in plain loops. What is
// no device memory is refused.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "mlrunner/gpu/device_pool.h"
#include "mlrunner/gpu/geometry.h"
#include "mlrunner/gpu/maths.h"
#include "mlrunner/gpu/plugin_abi.h"

namespace ropewalk::gpu {

class FakeMemory : public DeviceMemory {
 public:
  void* Take(std::size_t bytes) override { return bytes > (std::size_t{1} << 30) ? nullptr : std::aligned_alloc(512, bytes); }
  void GiveBack(void* memory) override { std::free(memory); }
};

struct Context {
  explicit Context(std::size_t pool_bytes_max) : pool(&memory, pool_bytes_max) {}
  FakeMemory memory;
  DevicePool pool;
  std::vector<std::pair<const char*, std::size_t>> pieces;  // handed out
  bool Owns(const void* data, std::size_t bytes) const {
    for (const auto& [begin, size] : pieces) {
      if (data >= begin && static_cast<const char*>(data) + bytes <= begin + size) return true;
    }
    return bytes == 0;
  }
};

struct MatMul {
  Context* context;
  MatMulShape shape;
};

namespace {

Failure Fail(Failure failure, Message* why, const char* text) {
  std::snprintf(why->text, sizeof why->text, "%s", text);
  return failure;
}

Failure NotOurs(Message* why) { return Fail(Failure::kInvalid, why, "this is no device memory"); }

std::size_t Bytes(Element element, std::int64_t count) { return static_cast<std::size_t>(count * SizeOf(element)); }

template <class T>
void Multiply(const MatMulShape& s, const void* a, const void* b, void* c) {
  const ColumnMajorProduct p = AsColumnMajor(s);
  auto at = [](const ColumnMajor& m, const void* data, std::int64_t z, std::int64_t i, std::int64_t j) {
    if (m.transposed) std::swap(i, j);
    return ToFloat(static_cast<const T*>(data)[z * m.stride + j * m.leading + i]);
  };
  const std::int64_t inner = p.first.transposed ? p.first.rows : p.first.columns;
  for (std::int64_t z = 0; z < s.batch; ++z) {
    for (std::int64_t j = 0; j < p.result.columns; ++j) {
      for (std::int64_t i = 0; i < p.result.rows; ++i) {
        double sum = 0;
        for (std::int64_t x = 0; x < inner; ++x) sum += static_cast<double>(at(p.first, b, z, i, x)) * at(p.second, a, z, x, j);
        static_cast<T*>(c)[z * p.result.stride + j * p.result.leading + i] = FromFloat<T>(static_cast<float>(sum));
      }
    }
  }
}

template <class T>
void Update(const AdamWCall& c) {
  const AdamWNumbers numbers = MakeAdamWNumbers(c.beta1, c.beta2, c.epsilon, c.decay, *c.rate, *c.step);
  const Launch launch = ElementLaunch(c.count);
  const std::int64_t stride = static_cast<std::int64_t>(launch.blocks) * launch.threads;
  for (std::int64_t first = 0; first < stride; ++first) {
    for (std::int64_t i = first; i < c.count; i += stride) {
      AdamWElement(numbers, static_cast<const T*>(c.parameter), static_cast<const T*>(c.first_moment),
                   static_cast<const T*>(c.second_moment), static_cast<const T*>(c.gradient), static_cast<T*>(c.new_parameter),
                   static_cast<T*>(c.new_first_moment), static_cast<T*>(c.new_second_moment), i);
    }
  }
}

template <class F>
float Fold(std::vector<float>* of_threads, F f) {
  for (int half = static_cast<int>(of_threads->size()) / 2; half > 0; half /= 2) {
    for (int thread = 0; thread < half; ++thread) TreeFold(of_threads->data(), half, thread, f);
  }
  return of_threads->front();
}

// The first row whose label is none; rows: all are classes.
template <class T, class L>
std::int64_t Rows(const CrossEntropyCall& c) {
  const Launch launch = RowLaunch(c.rows, c.classes);
  const auto threads = static_cast<int>(launch.threads);
  std::vector<float> of_threads(launch.threads);
  std::int64_t bad_row = c.rows;
  for (std::int64_t block = 0; block < launch.blocks; ++block) {
    for (std::int64_t row = block; row < c.rows; row += launch.blocks) {
      const std::int64_t label = static_cast<const L*>(c.labels)[row];
      if (label < 0 || label >= c.classes) {
        bad_row = std::min(bad_row, row);
        continue;
      }
      const T* x = static_cast<const T*>(c.logits) + row * c.classes;
      if (c.backward != 0) {
        for (int thread = 0; thread < threads; ++thread)
          RowGradient(x, ToFloat(static_cast<const T*>(c.log_sum)[row]), ToFloat(static_cast<const T*>(c.loss_gradient)[row]), label,
                      static_cast<T*>(c.logits_gradient) + row * c.classes, c.classes, thread, threads);
        continue;
      }
      for (int thread = 0; thread < threads; ++thread) of_threads[thread] = RowMax(x, c.classes, thread, threads);
      const float top = Fold(&of_threads, TakeMax());
      for (int thread = 0; thread < threads; ++thread) of_threads[thread] = RowSumExp(x, top, c.classes, thread, threads);
      const float log_sum = top + std::log(Fold(&of_threads, TakeSum()));
      static_cast<T*>(c.log_sum)[row] = FromFloat<T>(log_sum);
      static_cast<T*>(c.loss)[row] = FromFloat<T>(log_sum - ToFloat(x[label]));
    }
  }
  return bad_row;
}

Failure Probe(DeviceInfo* devices, std::int32_t room, std::int32_t* found, Message*) {
  if (room > 0) devices[0] = {"Fake", 9, 0, std::uint64_t{1} << 30};
  if (room > 1) devices[1] = {"Old", 7, 0, std::uint64_t{1} << 30};
  return *found = 2, Failure::kNone;
}

Failure Open(std::int32_t device, std::uint64_t pool_bytes_max, Context** context, Message* why) {
  if (device == 1) return Fail(Failure::kUnsupported, why, "it is too old");
  return *context = new Context(pool_bytes_max), Failure::kNone;
}

Failure Allocate(Context* context, std::size_t bytes, void** memory, Message* why) {
  *memory = context->pool.Allocate(bytes);
  if (*memory == nullptr) return Fail(Failure::kOutOfMemory, why, "the fake is full");
  std::memset(*memory, 0xff, bytes);  // not-a-number: what is read before it was written shows
  context->pieces.emplace_back(static_cast<char*>(*memory), bytes);
  return Failure::kNone;
}

void Release(Context* context, void* memory) {
  std::erase_if(context->pieces, [&](const auto& piece) { return piece.first == memory; });
  if (!context->pool.Release(memory)) std::abort();  // a test must not pass that gives back what it does not have
}

Failure ToDevice(Context* context, void* to, const void* from, std::size_t bytes, Message* why) {
  if (!context->Owns(to, bytes)) return NotOurs(why);
  return std::memcpy(to, from, bytes), Failure::kNone;
}

Failure ToHost(Context* context, void* to, const void* from, std::size_t bytes, Message* why) {
  if (!context->Owns(from, bytes)) return NotOurs(why);
  return std::memcpy(to, from, bytes), Failure::kNone;
}

Failure MakeProduct(Context* context, const MatMulShape* shape, MatMul** made, Message* why) {
  if (!IsLegal(*shape)) return Fail(Failure::kInvalid, why, "no such product");
  if (shape->m == 13) return Fail(Failure::kUnsupported, why, "no algorithm");  // as a library may
  return *made = new MatMul{context, *shape}, Failure::kNone;
}

Failure Product(MatMul* product, const void* a, const void* b, void* c, Message* why) {
  const MatMulShape& s = product->shape;
  const std::int64_t of_a = s.stride_a == 0 ? 1 : s.batch, of_b = s.stride_b == 0 ? 1 : s.batch;
  if (!product->context->Owns(a, Bytes(s.element, of_a * s.m * s.k)) || !product->context->Owns(b, Bytes(s.element, of_b * s.k * s.n)) ||
      !product->context->Owns(c, Bytes(s.element, s.batch * s.m * s.n)))
    return NotOurs(why);
  s.element == Element::kF32 ? Multiply<float>(s, a, b, c) : Multiply<BFloat16>(s, a, b, c);
  return Failure::kNone;
}

Failure AdamW(Context* context, const AdamWCall* call, Message* why) {
  for (const void* tensor :
       {call->parameter, call->first_moment, call->second_moment, call->gradient, static_cast<const void*>(call->new_parameter),
        static_cast<const void*>(call->new_first_moment), static_cast<const void*>(call->new_second_moment)}) {
    if (!context->Owns(tensor, Bytes(call->element, call->count))) return NotOurs(why);
  }
  if (!context->Owns(call->rate, sizeof(float)) || !context->Owns(call->step, sizeof(float))) return NotOurs(why);
  call->element == Element::kF32 ? Update<float>(*call) : Update<BFloat16>(*call);
  return Failure::kNone;
}

Failure CrossEntropy(Context* context, const CrossEntropyCall* call, Message* why) {
  const CrossEntropyCall& c = *call;
  bool ours = context->Owns(c.logits, Bytes(c.element, c.rows * c.classes)) && context->Owns(c.labels, Bytes(c.label, c.rows)) &&
              context->Owns(c.log_sum, Bytes(c.element, c.rows));
  ours = ours && (c.backward != 0 ? context->Owns(c.loss_gradient, Bytes(c.element, c.rows)) &&
                                        context->Owns(c.logits_gradient, Bytes(c.element, c.rows * c.classes))
                                  : context->Owns(c.loss, Bytes(c.element, c.rows)));
  if (!ours) return NotOurs(why);
  const bool narrow = c.label == Element::kI32;
  const std::int64_t bad = c.element == Element::kF32 ? (narrow ? Rows<float, std::int32_t>(c) : Rows<float, std::int64_t>(c))
                                                      : (narrow ? Rows<BFloat16, std::int32_t>(c) : Rows<BFloat16, std::int64_t>(c));
  if (bad == c.rows) return Failure::kNone;
  const long long label = narrow ? static_cast<const std::int32_t*>(c.labels)[bad] : static_cast<const std::int64_t*>(c.labels)[bad];
  std::snprintf(why->text, sizeof why->text, "label of sample %lld is %lld", static_cast<long long>(bad), label);
  return Failure::kLabel;
}

constexpr Api kApi = {
    .abi_version = kAbiVersion,
    .bytes = sizeof(Api),
    .probe = Probe,
    .open = Open,
    .close = [](Context* context) { delete context; },
    .allocate = Allocate,
    .release = Release,
    .memory_use = [](Context* context,
                     MemoryUse* use) { *use = {context->pool.used_bytes(), context->pool.cached_bytes(), context->pool.peak_bytes()}; },
    .to_device = ToDevice,
    .to_host = ToHost,
    .synchronize = [](Context*, Message*) { return Failure::kNone; },
    .is_idle = [](Context*, void*, std::int32_t* idle, Message*) { return *idle = 1, Failure::kNone; },
    .make_matmul = MakeProduct,
    .matmul = Product,
    .free_matmul = [](MatMul* product) { delete product; },
    .adamw = AdamW,
    .cross_entropy = CrossEntropy,
    .nccl = [](Message* why) -> const NcclTable* { return Fail(Failure::kUnsupported, why, "the fake has no NCCL"), nullptr; },
    .stream = [](Context*) -> void* { return nullptr; },
};

}  // namespace
}  // namespace ropewalk::gpu

extern "C" const ropewalk::gpu::Api* ropewalk_gpu_api() { return &ropewalk::gpu::kApi; }
