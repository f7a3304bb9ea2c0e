// What crosses the border between Ropewalk and its GPU plugin: a table of functions that the plugin gives by one symbol.
//
// Both sides may be built at other times by other compilers, so only numbers, pointers and structs of them cross it; nothing is thrown,
// and neither side frees what the other has made. The first two fields of the table never change: by them a host knows whether it may read
// the rest. Whatever else changes is a new kAbiVersion. No CUDA header is needed to read this.
//
// Owner: the plugin owns contexts, products and device memory until they are given back. Thread rule: a context and what was made from it
// belong to one thread at a time; different contexts are independent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::gpu {

inline constexpr std::uint32_t kAbiVersion = 3;
inline constexpr const char* kApiSymbol = "ropewalk_gpu_api";

enum class Failure : std::int32_t {
  kNone = 0,
  kInvalid = 1,      // the call makes no sense
  kUnsupported = 2,  // it does, and this plugin or device has no way to do it: the host takes another kernel
  kOutOfMemory = 3,
  kDevice = 4,  // the device or a library failed: the context is of no more use
  kLabel = 5,   // a label is none of the classes: the user's data
};
struct Message {  // why a call failed; ends in 0
  char text[256];
};

enum class Element : std::int32_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8 };

struct DeviceInfo {
  char name[64];
  std::int32_t major, minor;  // compute capability
  std::uint64_t memory_bytes;
};

struct MemoryUse {
  std::uint64_t used_bytes, cached_bytes, peak_bytes;  // handed out; kept for the next; the most that both were together
};

// c = op(a) op(b), row-major: a is (batch, m, k), or (batch, k, m) where it is transposed; b (batch, k, n) or (batch, n, k);
// c (batch, m, n).
struct MatMulShape {
  Element element;  // kF32 or kBF16; sums are f32
  std::int32_t transpose_a, transpose_b;
  std::int64_t m, n, k, batch;
  std::int64_t stride_a, stride_b;  // elements from one matrix to the next; 0: the same one for all
};

// One parameter's update. Loshchilov and Hutter 2019, algorithm 2. An output may lie where its input does.
struct AdamWCall {
  Element element;  // of all tensors; kF32 or kBF16; computed in f32
  std::int64_t count;
  const void *parameter, *first_moment, *second_moment, *gradient;
  const float *rate, *step;  // one number each, on the device, of f32 whatever `element` is
  void *new_parameter, *new_first_moment, *new_second_moment;
  double beta1, beta2, epsilon, decay;
};

// Rows of logits (rows, classes) with a label each. Forward gives loss (rows) and log_sum (rows), the logarithm of the sum of exponentials;
// backward takes log_sum and the losses' gradient (rows) and gives the logits' (rows, classes).
struct CrossEntropyCall {
  Element element;  // kF32 or kBF16; computed in f32
  Element label;    // kI32 or kI64
  std::int32_t backward;
  std::int64_t rows, classes;
  const void *logits, *labels;
  void *loss, *log_sum;  // log_sum is read by backward
  const void* loss_gradient;
  void* logits_gradient;
};

enum class Sum : std::int32_t { kSum, kMin, kMax, kProd, kAvg };

// out = scale · (((row 0 op row 1) op row 2) ...), each row times its own scale first, in the accumulator's type; rounded once. `out` may
// be one of the rows and overlaps none otherwise.
inline constexpr std::int32_t kFoldRowsMax = 128;
struct FoldRow {
  const void* data;
  double scale;
  Element element;
};
struct FoldCall {
  Sum sum;              // not kAvg
  Element accumulator;  // kF32 for it and all halves; any other type is its own, and that of all rows and `out`
  Element element;      // of out
  std::int32_t row_count;
  const FoldRow* rows;  // read before fold() returns
  double scale;         // of whole numbers 1, as their rows' scales
  std::int64_t count;
  void* out;
};

// NCCL, or what stands in for it. Functions give 0 or a code that `text` explains; they start work on the stream, and do not wait for it.
struct NcclId {
  char bytes[128];
};
using NcclComm = void*;
struct NcclTable {
  std::int32_t (*make_id)(NcclId* id);                                                               // by one rank, for all
  std::int32_t (*connect)(NcclComm* comm, std::int32_t ranks, const NcclId* id, std::int32_t rank);  // on the calling thread's device
  std::int32_t (*disconnect)(NcclComm comm);                                                         // all work is done
  std::int32_t (*abort)(NcclComm comm);                                                              // ends what hangs, then as disconnect
  std::int32_t (*async_error)(NcclComm comm, std::int32_t* error);                                   // of what was started earlier
  std::int32_t (*group_begin)();
  std::int32_t (*group_end)();
  std::int32_t (*all_reduce)(const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm, void* stream);
  // What only the root reads or writes may be null elsewhere.
  std::int32_t (*broadcast)(const void* in, void* out, std::size_t count, Element element, std::int32_t root, NcclComm comm, void* stream);
  std::int32_t (*reduce)(const void* in, void* out, std::size_t count, Element element, Sum sum, std::int32_t root, NcclComm comm,
                         void* stream);
  // `count` is what each rank gets (reduce_scatter) or gives (all_gather): the same for all.
  std::int32_t (*reduce_scatter)(const void* in, void* out, std::size_t count, Element element, Sum sum, NcclComm comm, void* stream);
  std::int32_t (*all_gather)(const void* in, void* out, std::size_t count, Element element, NcclComm comm, void* stream);
  // Outside of a group each waits on the stream for its peer's other half.
  std::int32_t (*send)(const void* in, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void* stream);
  std::int32_t (*receive)(void* out, std::size_t count, Element element, std::int32_t peer, NcclComm comm, void* stream);
  const char* (*text)(std::int32_t code);
};

struct Context;  // a device with its stream, its memory pool and its libraries' handles
struct MatMul;   // a product whose algorithm is chosen

struct Api {
  std::uint32_t abi_version;  // kAbiVersion of the plugin
  std::uint32_t bytes;        // sizeof(Api) of the plugin

  // The devices that can be used; `*found` may exceed `room`. kDevice where there is no driver.
  Failure (*probe)(DeviceInfo* devices, std::int32_t room, std::int32_t* found, Message* why);
  // The pool takes pool_bytes_max from the device at most.
  Failure (*open)(std::int32_t device, std::uint64_t pool_bytes_max, Context** context, Message* why);
  void (*close)(Context* context);

  // Device memory, aligned to 512 bytes. It may be handed out again as soon as it is given back: all work is on one stream.
  Failure (*allocate)(Context* context, std::size_t bytes, void** memory, Message* why);
  void (*release)(Context* context, void* memory);
  void (*memory_use)(Context* context, MemoryUse* use);
  // In the order of the stream. The host's bytes (ordinary memory, not pinned) may be changed when to_device() returns, and are there when
  // to_host() does.
  Failure (*to_device)(Context* context, void* to, const void* from, std::size_t bytes, Message* why);
  Failure (*to_host)(Context* context, void* to, const void* from, std::size_t bytes, Message* why);
  // All work is done; or how it failed.
  Failure (*synchronize)(Context* context, Message* why);
  // Whether what was started on a stream is, without waiting. Null: the context's own stream.
  Failure (*is_idle)(Context* context, void* stream, std::int32_t* idle, Message* why);

  // Operands are device memory, aligned to 16 bytes.
  Failure (*make_matmul)(Context* context, const MatMulShape* shape, MatMul** made, Message* why);
  Failure (*matmul)(MatMul* product, const void* a, const void* b, void* c, Message* why);
  void (*free_matmul)(MatMul* product);
  Failure (*adamw)(Context* context, const AdamWCall* call, Message* why);
  // Waits for its end, because a label may be wrong (kLabel).
  Failure (*cross_entropy)(Context* context, const CrossEntropyCall* call, Message* why);

  // Null, with the reason, where the plugin was built without NCCL.
  const NcclTable* (*nccl)(Message* why);
  void* (*stream)(Context* context);  // for NCCL's functions; calls on this thread's device from now on

  // Streams for collectives that must not wait for each other. These, and is_idle() of such a stream, may be called by any thread.
  Failure (*make_stream)(Context* context, void** stream, Message* why);
  void (*free_stream)(Context* context, void* stream);  // waits for its work
  Failure (*wait_stream)(Context* context, void* stream, Message* why);
  // `call` is called by a thread of the library's when what was started on the stream until now has ended; not at all when the device
  // fails. It must not call the plugin.
  Failure (*notify)(Context* context, void* stream, void (*call)(void* data), void* data, Message* why);
  std::int32_t (*is_on_device)(Context* context, const void* memory);
  // On a stream that make_stream() gave, or, null, on the context's own.
  Failure (*fold)(Context* context, void* stream, const FoldCall* call, Message* why);
};

}  // namespace ropewalk::gpu

// The one symbol.
extern "C" const ropewalk::gpu::Api* ropewalk_gpu_api();
