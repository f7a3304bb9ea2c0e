#include "mlrunner/executor/executor.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/copy_bytes.h"
#include "base/huge_pages.h"
#include "mlrunner/executor/memory_plan.h"
#include "mlrunner/graph/op_def.h"
#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/bound_lengths.h"
#include "mlrunner/kernels/elements.h"

namespace ropewalk::mlrunner {

Program DefaultProgram(const Graph& graph) {
  std::vector<RegionId> order;  // by their first ops
  std::map<RegionId, std::set<RegionId>> needs;
  for (const Op& op : graph.ops) {
    if (op.def->traits.source) continue;
    if (needs.try_emplace(op.region).second) order.push_back(op.region);
    for (ValueId in : op.inputs) {
      const Op& maker = graph.op(graph.value(in).producer);
      if (!maker.def->traits.source && maker.region != op.region) needs[op.region].insert(maker.region);
    }
  }
  // A region's first op may come before another region that its later ops need (an update that reads the step counter).
  Program program;
  std::set<RegionId> done;
  while (!order.empty()) {
    auto ready = std::find_if(order.begin(), order.end(), [&](RegionId region) {
      return std::all_of(needs[region].begin(), needs[region].end(), [&](RegionId other) { return done.contains(other); });
    });
    if (ready == order.end()) ready = order.begin();  // regions that need each other: Compile refuses the program and names the value
    done.insert(*ready);
    program.push_back({*ready, 0, 0});
    order.erase(ready);
  }
  return program;
}

Tensor ToTensor(Dtype dtype, const RefTensor& values) {
  Tensor tensor{dtype, values.dims, std::vector<std::byte>(values.data.size() * SizeOf(dtype))};
  FromDoubles(dtype, values.data, tensor.bytes.data());
  return tensor;
}

RefTensor ToRef(const Tensor& tensor) {
  RefTensor values{tensor.dims, std::vector<double>(tensor.bytes.empty() ? 0 : tensor.bytes.size() / SizeOf(tensor.dtype))};
  ToDoubles(tensor.dtype, tensor.bytes.data(), values.data);
  return values;
}

bool IsFinite(const Tensor& tensor) {
  constexpr std::size_t kElementsAtOnce = 8192;
  if (tensor.bytes.empty()) return true;
  const std::size_t size = SizeOf(tensor.dtype), count = tensor.bytes.size() / size;
  double values[kElementsAtOnce];
  for (std::size_t done = 0; done < count; done += kElementsAtOnce) {
    const std::span<double> some(values, std::min(count - done, kElementsAtOnce));
    ToDoubles(tensor.dtype, tensor.bytes.data() + done * size, some);
    if (!std::all_of(some.begin(), some.end(), [](double value) { return std::isfinite(value); })) return false;
  }
  return true;
}

namespace {

std::size_t BytesOf(Dtype dtype, const Dims& dims) { return static_cast<std::size_t>(NumElements(dims)) * SizeOf(dtype); }
// Whether a caller's tensor is of that type and shape, and has the bytes of it.
bool Holds(const Tensor& tensor, Dtype dtype, const Dims& dims) {
  return tensor.dtype == dtype && tensor.dims == dims && tensor.bytes.size() == BytesOf(dtype, dims);
}
std::string Describe(const Tensor& tensor) {
  return fmt::format("{} {} in {} bytes", ToString(tensor.dims), Name(tensor.dtype), tensor.bytes.size());
}

}  // namespace

Result<void*> StateStore::Find(const Graph& graph, const StateInfo& state, const Bindings& bindings, const RunContext& run) {
  std::unique_ptr<Tensor>& tensor = tensors_[state.name];
  Dims dims = Evaluate(state.type.shape, bindings);
  if (!tensor) {
    const Dtype dtype = state.type.dtype;
    tensor = std::make_unique<Tensor>(Tensor{dtype, dims, std::vector<std::byte>(BytesOf(dtype, dims))});
    std::byte* at = tensor->bytes.data();
    DrawInitial(graph, state, bindings, run, [&](std::span<const double> values) {
      FromDoubles(dtype, values, at);
      at += values.size() * SizeOf(dtype);
    });
  }
  if (!Holds(*tensor, state.type.dtype, dims)) {
    return Status(Code::kInvalid, "RUN07", fmt::format("state {} is {}", state.name, Describe(*tensor)),
                  fmt::format("the graph has it as {} {}", ToString(dims), Name(state.type.dtype)),
                  "run the graph on the states of the same model and bindings, or on none: then they begin anew");
  }
  return static_cast<void*>(tensor->bytes.data());
}

Tensor StateStore::Get(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? Tensor{} : *found->second;
}

std::size_t StateStore::Bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor->bytes.size();
  return bytes;
}

namespace {

// Where the bytes of a value are: in a buffer of the arena, in a state, in an input of the caller, or nowhere (tokens).
struct Place {
  enum class Kind : std::uint8_t { kNone, kArena, kState, kInput } kind = Kind::kNone;
  int index = 0;           // buffer, state, or input
  std::size_t offset = 0;  // in bytes
  std::int32_t micro_batch = 0;
};

// One op at one micro-batch.
struct Instruction {
  const Op* op = nullptr;
  std::int32_t micro_batch = 0;
  std::vector<Place> in, out;
  CompiledKernel kernel;
  std::unique_ptr<Executable> bodies[2];  // while, cond
  std::size_t copy_bytes = 0;             // reads and writes of states that move bytes
  int scratch = -1;                       // buffer
  int start = -1;                         // of a done half: the instruction of its start half
};

struct Buffer {
  Lifetime life;
  bool registered = false;  // other ranks read it
};

}  // namespace

struct Executable::Impl {
  const Graph& graph;
  Bindings bindings;
  ExecutorOptions options;
  HugeBuffer arena;  // before `code`: a kernel whose work was started by a run that failed ends it when it goes, and writes until then
  std::vector<Instruction> code;
  std::vector<Buffer> buffers;
  std::vector<char*> places;  // of the buffers
  MemoryPlan plan, registered_plan;
  std::size_t bound = 0, fallbacks = 0;
  struct Seen {
    std::string name;
    Place place;
    TensorType type;
    std::size_t index = 0;
    std::int32_t micro_batch = 0;
    bool tap = false;
  };
  std::vector<Seen> seen;
  std::int32_t num_micro_batches = 1;
  std::vector<void*> states;  // of the running call
  std::vector<bool> touched;  // states that this program reads or writes: a rank need not hold the others

  void* At(const Place& place, const RunInputs& inputs) const {
    switch (place.kind) {
      case Place::Kind::kArena:
        return places[place.index] + place.offset;
      case Place::Kind::kState:
        return static_cast<char*>(states[place.index]) + place.offset;
      case Place::Kind::kInput:
        return const_cast<std::byte*>(inputs.micro_batches[place.micro_batch][place.index]->bytes.data() +
                                      place.offset);  // read only: never planned in place
      case Place::Kind::kNone:
        return nullptr;
    }
    return nullptr;
  }
  Status Step(Instruction& i, const RunInputs& inputs, StateStore& store);
  Status RunWhile(Instruction& i, const std::vector<void*>& in, const std::vector<void*>& out, const RunContext& run, StateStore& store);
  Status RunCond(Instruction& i, const std::vector<void*>& in, const std::vector<void*>& out, const RunContext& run, StateStore& store);
  Tensor Copy(ValueId value, const void* from) const {
    Tensor tensor{graph.value(value).type.dtype, Evaluate(graph.value(value).type.shape, bindings), {}};
    tensor.bytes.resize(BytesOf(tensor.dtype, tensor.dims));
    CopyBytes(tensor.bytes.data(), from, tensor.bytes.size());
    return tensor;
  }
};

namespace {

using Key = std::pair<ValueId, std::int32_t>;  // a value of one micro-batch

// Turns a graph and a program into instructions with places.
class Compiler {
 public:
  Compiler(Executable::Impl& to, const KernelTable& table) : to_(to), graph_(to.graph), table_(table) {}

  Status Run(const Program& program) {
    RETURN_IF_ERROR(LayOut(program));
    FindStates();
    WriteStatesInPlace();
    PackBuckets();
    LiveAndReuse();
    RETURN_IF_ERROR(MakeKernels());
    return PlaceBuffers();
  }

 private:
  ConcreteType Type(ValueId value) const {
    const ValueInfo& info = graph_.value(value);
    return {info.type.dtype, Evaluate(info.type.shape, to_.bindings), info.layout};
  }
  bool IsToken(ValueId value) const { return SizeOf(graph_.value(value).type.dtype) == 0; }
  // What runs once before all micro-batches (casts of parameters) exists once, and is there for each of them.
  Key KeyOf(ValueId value, std::int32_t micro_batch) const {
    const RegionInfo& region = graph_.region(graph_.op(graph_.value(value).producer).region);
    return {value, region.kind == RegionKind::kForward && region.parameter.valid() ? 0 : micro_batch};
  }
  const Op& Maker(Key key) const { return graph_.op(graph_.value(key.first).producer); }
  int Last() const { return static_cast<int>(to_.code.size()); }

  // The instructions, and who makes and uses what.
  Status LayOut(const Program& program) {
    auto add = [&](const Op& op, std::int32_t mb) -> Status {
      if (op.def->traits.source) return {};
      int at = Last();
      for (ValueId in : op.inputs) {
        const Op& maker = graph_.op(graph_.value(in).producer);
        // Tokens too: a state's version counts as made when its assignment has run.
        if (!maker.def->traits.source && !made_.contains(KeyOf(in, mb))) {
          return Status(Code::kInvalid, "RUN06", fmt::format("step {} of micro-batch {} needs {}", op.def->name, mb, graph_.Describe(in)),
                        "the program has not run what makes it", "put its region first");
        }
        if (!IsToken(in)) uses_[KeyOf(in, mb)].push_back(at);
      }
      if (op.half == Half::kStart) started_[{op.outputs[0], mb}] = at;
      int makes = op.half == Half::kDone ? started_.at({op.inputs[0], mb}) : at;
      for (ValueId out : op.outputs) made_[KeyOf(out, mb)] = makes;
      if (op.half == Half::kDone) {
        // The start half reads its inputs and writes the outputs until the done half.
        for (ValueId in : to_.code[makes].op->inputs) {
          if (!IsToken(in)) uses_[KeyOf(in, mb)].push_back(at);
        }
        for (ValueId out : op.outputs) uses_[KeyOf(out, mb)].push_back(at);
      }
      Instruction instruction;
      instruction.op = &op;
      instruction.micro_batch = mb;
      if (op.half == Half::kDone) instruction.start = makes;
      to_.code.push_back(std::move(instruction));
      return {};
    };
    if (program.empty()) {
      for (const Op& op : graph_.ops) RETURN_IF_ERROR(add(op, 0));
    }
    for (const ProgramStep& step : program) {
      if (step.micro_batch < 0) {
        return Status(Code::kInvalid, "RUN06", fmt::format("a program names micro-batch {}", step.micro_batch), "they count from 0",
                      "mend what makes the program's steps");
      }
      to_.num_micro_batches = std::max(to_.num_micro_batches, step.micro_batch + 1);
      for (const Op& op : graph_.ops) {
        if (op.region == step.region)
          RETURN_IF_ERROR(add(op, step.micro_batch));
        else if (op.region == step.beside)
          RETURN_IF_ERROR(add(op, 0));
      }
    }
    for (const auto* list : {&graph_.outputs, &graph_.taps}) {
      for (const NamedValue& named : *list) {
        for (std::int32_t mb = 0; mb < to_.num_micro_batches; ++mb) {
          const Key key = KeyOf(named.value, mb);
          if (made_.contains(key) || Maker(key).def == &kInput) outside_.insert(key);
        }
      }
    }
    return {};
  }

  // Moves no bytes: the output is the first input in another shape, or a stretch of it.
  bool IsView(const Op& op) const { return op.half == Half::kWhole && (op.def->traits.view || StretchBegin(op).has_value()); }
  // Of a slice that lies in one piece: where it begins, in bytes.
  std::optional<std::size_t> StretchBegin(const Op& op) const {
    if (op.def != &kSlice || op.half != Half::kWhole) return std::nullopt;
    ConcreteType in = Type(op.inputs[0]), out = Type(op.outputs[0]);
    if (!in.layout.IsRowMajor() || !out.layout.IsRowMajor()) return std::nullopt;
    auto axis = static_cast<std::size_t>(op.attrs.Int(Attr::kAxis));
    for (std::size_t d = 0; d < axis; ++d) {
      if (in.dims[d] != 1) return std::nullopt;
    }
    std::int64_t begin = op.attrs.DimOf(Attr::kBegin).Evaluate(to_.bindings);
    if (begin < 0 || begin > in.dims[axis] - out.dims[axis]) return std::nullopt;  // the kernel says what is wrong
    return static_cast<std::size_t>(begin * in.layout.Strides(in.dims)[axis]) * SizeOf(in.dtype);
  }

  // The value whose bytes these are, or a stretch of whose bytes.
  Key Root(Key key) const {
    const Op& op = Maker(key);
    return IsView(op) ? Root(KeyOf(op.inputs[0], key.second)) : key;
  }
  // Where in its root's bytes a value begins.
  std::size_t OffsetInRoot(Key key) const {
    const Op& op = Maker(key);
    return IsView(op) ? StretchBegin(op).value_or(0) + OffsetInRoot(KeyOf(op.inputs[0], key.second)) : 0;
  }
  bool IsWholeRoot(Key key) const { return Type(key.first).Bytes() == Type(Root(key).first).Bytes(); }

  // Uses of a value's bytes by whatever name; reads that are no copies follow the state.
  void FindStates() {
    for (const auto& [key, uses] : uses_) {
      std::vector<int>& all = root_uses_[Root(key)];
      all.insert(all.end(), uses.begin(), uses.end());
    }
    for (const Key& key : outside_) {
      root_outside_.insert(Root(key));
      root_uses_[Root(key)].push_back(Last());
    }
    for (auto& [key, uses] : root_uses_) std::sort(uses.begin(), uses.end());
    to_.touched.assign(graph_.states.size(), false);
    for (int i = 0; i < Last(); ++i) {
      const OpDef* def = to_.code[i].op->def;
      if (def == &kAssign) writes_[StateOf(i)].push_back(i);
      if (def == &kAssign || def == &kRead) to_.touched[StateOf(i)] = true;
    }
    for (int i = 0; i < Last(); ++i) {
      const Op& op = *to_.code[i].op;
      if (op.def != &kRead) continue;
      Key key = KeyOf(op.outputs[0], to_.code[i].micro_batch);
      int last_use = root_uses_.contains(key) ? root_uses_[key].back() : i;
      bool overwritten = false;
      for (int w : writes_[StateOf(i)]) overwritten = overwritten || (w > i && w < last_use);
      if (overwritten || root_outside_.contains(key)) {
        copied_.insert(key);
      } else {
        reads_[StateOf(i)].push_back(key);
      }
    }
  }
  std::uint32_t StateOf(int i) const { return graph_.value(to_.code[i].op->inputs[0]).state.value; }
  bool IsState(Key root) const { return Maker(root).def == &kRead && !copied_.contains(root); }
  bool IsTemporary(Key root) const { return made_.contains(root) && !IsState(root) && !in_state_.contains(root); }

  // May `maker` write its output `out` over a buffer that it reads as `root`? Every operand of those bytes must have the output's shape, or
  // be the one that the output is an update of.
  bool MayOverwrite(const Instruction& maker, Key root, Key out) const {
    if (maker.op->half != Half::kWhole) return false;
    if (const auto place = static_cast<std::size_t>(graph_.value(out.first).output);
        place < static_cast<std::size_t>(maker.op->def->traits.updates)) {
      for (std::size_t i = 0; i < maker.op->inputs.size(); ++i) {
        if (i != place && !IsToken(maker.op->inputs[i]) && Root(KeyOf(maker.op->inputs[i], maker.micro_batch)) == root) return false;
      }
      return IsWholeRoot(KeyOf(maker.op->inputs[place], maker.micro_batch));
    }
    if (!maker.op->def->traits.elementwise) return false;
    const Dims dims = Type(out.first).dims;
    for (ValueId in : maker.op->inputs) {
      if (!IsToken(in) && Root(KeyOf(in, maker.micro_batch)) == root && (Type(in).dims != dims)) return false;
    }
    return true;
  }

  // A new version is computed where the old one lies, if nobody reads the old one later.
  void WriteStatesInPlace() {
    for (const auto& [state, writes] : writes_) {
      if (writes.size() != 1) continue;
      const Instruction& assign = to_.code[writes[0]];
      Key root = Root(KeyOf(assign.op->inputs[1], assign.micro_batch));
      if (!IsWholeRoot(KeyOf(assign.op->inputs[1], assign.micro_batch)) || !made_.contains(root) || IsState(root) ||
          in_state_.contains(root) || root_outside_.contains(root))
        continue;
      int made = made_.at(root);
      const Instruction& maker = to_.code[made];
      ConcreteType type = Type(root.first);
      if (maker.op->half != Half::kWhole || maker.op->def == &kBucket || maker.op->def == &kRead || !type.layout.IsRowMajor()) continue;
      bool fits = type.dtype == graph_.states[state].type.dtype;
      for (const Key& read : reads_[state]) {
        for (int use : root_uses_[read]) {
          bool before_version = made_.at(read) < writes[0];
          if (!before_version) continue;
          fits = fits && (use < made || (use == made && MayOverwrite(maker, read, root)) || use == writes[0]);
        }
        // A read that comes between the making and the assignment would see the new bytes.
        fits = fits && !(made_.at(read) > made && made_.at(read) < writes[0]);
      }
      for (const Key& read : copied_) {
        if (graph_.value(Maker(read).inputs[0]).state.value == state) fits = fits && !(made_.at(read) > made && made_.at(read) < writes[0]);
      }
      if (fits) in_state_[root] = state;
    }
  }

  // Members of a bucket are made in their places in it.
  void PackBuckets() {
    for (int i = 0; i < Last(); ++i) {
      const Instruction& bucket = to_.code[i];
      if (bucket.op->def != &kBucket || bucket.op->half == Half::kDone) continue;
      Key key{BucketOutput(bucket), bucket.micro_batch};
      std::size_t offset = 0;
      int begin = i;
      std::vector<std::pair<Key, std::size_t>> packed;
      std::set<Key> in;
      for (ValueId value : bucket.op->inputs) {
        Key root = Root(KeyOf(value, bucket.micro_batch));
        std::size_t bytes = Type(value).Bytes();
        // Loops store 64 bytes at a time at most to what they own; any 4-byte place is fine for them.
        bool once = in.insert(root).second && !member_.contains(root) && root.second == key.second;
        if (IsTemporary(root) && once && Type(root.first).Bytes() == bytes && Maker(root).def != &kBucket &&
            Type(root.first).layout.IsRowMajor() && Maker(root).half == Half::kWhole) {
          packed.emplace_back(root, offset);
          begin = std::min(begin, made_.at(root));
        }
        offset += bytes;
      }
      if (packed.empty() || !IsTemporary(key)) continue;
      for (const auto& [root, at] : packed) member_[root] = {key, at};
      bucket_begin_[key] = begin;
    }
  }
  ValueId BucketOutput(const Instruction& bucket) const {
    if (bucket.op->half == Half::kWhole) return bucket.op->outputs[0];
    for (const Op& op : graph_.ops) {
      if (op.half == Half::kDone && op.inputs[0] == bucket.op->outputs[0]) return op.outputs[0];
    }
    return bucket.op->outputs[0];
  }

  // Buffers with lifetimes; elementwise ops take over a buffer that dies in them.
  void LiveAndReuse() {
    std::vector<std::pair<int, Key>> order;
    for (const auto& [key, at] : made_) {
      if (Root(key) == key && IsTemporary(key) && !IsToken(key.first)) order.emplace_back(at, key);
    }
    std::sort(order.begin(), order.end());
    auto last_use = [&](Key key) {
      auto uses = root_uses_.find(key);
      return uses == root_uses_.end() ? made_.at(key) : std::max(made_.at(key), uses->second.back());
    };
    for (const auto& [at, key] : order) {
      if (member_.contains(key)) continue;
      std::size_t bytes = Type(key.first).Bytes();
      int end = last_use(key), begin = bucket_begin_.contains(key) ? bucket_begin_.at(key) : at;
      int reused = -1;
      const Instruction& maker = to_.code[at];
      if (to_.options.reuse_memory && !bucket_begin_.contains(key) && !root_outside_.contains(key)) {
        for (ValueId in : maker.op->inputs) {
          if (IsToken(in)) continue;
          Key root = Root(KeyOf(in, maker.micro_batch));
          auto found = buffer_.find(root);
          if (found == buffer_.end() || member_.contains(root) || root_outside_.contains(root) || bucket_begin_.contains(root)) continue;
          Buffer& buffer = to_.buffers[found->second];
          if (maker.op->outputs.size() == 1 && buffer.life.end == at && buffer.life.bytes == bytes &&
              Type(in).layout == Type(key.first).layout && Type(in).dtype == Type(key.first).dtype && MayOverwrite(maker, root, key)) {
            reused = found->second;
            break;
          }
        }
      }
      if (reused >= 0) {
        to_.buffers[reused].life.end = end;
        buffer_[key] = reused;
      } else {
        buffer_[key] = static_cast<int>(to_.buffers.size());
        to_.buffers.push_back({{bytes, begin, end}, false});
      }
    }
    // A member that is read after its bucket keeps the bucket's bytes.
    for (const auto& [key, in] : member_) {
      Lifetime& life = to_.buffers[buffer_.at(in.first)].life;
      life.end = std::max(life.end, last_use(key));
    }
  }

  // What other ranks read is planned for itself.
  void FindRegistered() {
    if (!to_.options.registered_memory) return;
    for (const Instruction& instruction : to_.code) {
      if (!instruction.op->def->traits.collective) continue;
      for (const auto* places : {&instruction.in, &instruction.out}) {
        for (const Place& place : *places) {
          if (place.kind == Place::Kind::kArena) to_.buffers[place.index].registered = true;
        }
      }
    }
  }

  Status PlaceBuffers() {
    FindRegistered();
    to_.places.assign(to_.buffers.size(), nullptr);
    for (bool registered : {false, true}) {
      std::vector<Lifetime> lives;
      std::vector<std::size_t> which;
      for (std::size_t i = 0; i < to_.buffers.size(); ++i) {
        if (to_.buffers[i].registered != registered) continue;
        lives.push_back(to_.buffers[i].life);
        which.push_back(i);
      }
      if (!registered) to_.bound = LowerBound(lives);
      if (!to_.options.reuse_memory) {
        for (Lifetime& life : lives) life = {life.bytes, 0, static_cast<int>(to_.code.size())};
      }
      MemoryPlan& plan = registered ? to_.registered_plan : to_.plan;
      plan = PlanMemory(lives);
      RETURN_IF_ERROR(CheckPlan(lives, plan));
      char* memory = nullptr;
      if (!registered) {
        try {
          to_.arena = ProcessPages().Take(std::max<std::size_t>(plan.bytes, 64));
        } catch (const std::bad_alloc&) {
          return OutOfMemory(plan.bytes);
        }
        memory = to_.arena.data();
      } else if (plan.bytes > 0) {
        ASSIGN_OR_RETURN(memory, to_.options.registered_memory(plan.bytes));
      }
      for (std::size_t i = 0; i < which.size(); ++i) to_.places[which[i]] = memory + plan.offsets[i];
    }
    return {};
  }

  // What takes the most of an arena of `bytes` that there is no memory for.
  Status OutOfMemory(std::size_t bytes) const {
    constexpr std::size_t kNamed = 3;
    std::vector<std::pair<std::size_t, std::string>> largest;
    std::set<int> known;
    for (const auto& [key, index] : buffer_)
      if (known.insert(index).second)
        largest.emplace_back(to_.buffers[static_cast<std::size_t>(index)].life.bytes, graph_.Describe(key.first));
    std::stable_sort(largest.begin(), largest.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string names;
    for (std::size_t i = 0; i < std::min(kNamed, largest.size()); ++i)
      names += fmt::format("{}{} of {} bytes", i == 0 ? "" : ", ", largest[i].second, largest[i].first);
    return Status(Code::kResourceExhausted, "RUN10", fmt::format("no memory for the {} bytes that a run needs for its values", bytes),
                  fmt::format("{} of them are alive at once, this process has {} already; the largest: {}", to_.bound,
                              ProcessPages().used_bytes(), names),
                  "a smaller batch, or more micro-batches");
  }

  Place PlaceOf(Key key) const {
    if (IsToken(key.first)) return {};
    Place place = PlaceOfRoot(Root(key));
    place.offset += OffsetInRoot(key);
    return place;
  }
  Place PlaceOfRoot(Key root) const {
    if (Maker(root).def == &kInput) {
      auto found = std::find(graph_.inputs.begin(), graph_.inputs.end(), root.first);
      return {Place::Kind::kInput, static_cast<int>(found - graph_.inputs.begin()), 0, root.second};
    }
    if (IsState(root)) return {Place::Kind::kState, static_cast<int>(graph_.value(Maker(root).inputs[0]).state.value), 0, 0};
    if (auto found = in_state_.find(root); found != in_state_.end()) return {Place::Kind::kState, static_cast<int>(found->second), 0, 0};
    if (auto found = member_.find(root); found != member_.end()) {
      return {Place::Kind::kArena, buffer_.at(found->second.first), found->second.second, 0};
    }
    return {Place::Kind::kArena, buffer_.at(root), 0, 0};
  }

  Status MakeKernels() {
    for (int i = 0; i < Last(); ++i) {
      Instruction& instruction = to_.code[i];
      const Op& op = *instruction.op;
      std::int32_t mb = instruction.micro_batch;
      std::vector<ValueId> outputs = op.outputs;
      if (op.half == Half::kStart) {  // the outputs are the done half's
        for (const Op& done : graph_.ops) {
          if (done.half == Half::kDone && done.inputs[0] == op.outputs[0]) outputs = done.outputs;
        }
      }
      for (ValueId in : op.inputs) instruction.in.push_back(PlaceOf(KeyOf(in, mb)));
      for (ValueId out : outputs) instruction.out.push_back(PlaceOf(KeyOf(out, mb)));
      if (op.half == Half::kDone || IsView(op)) continue;
      if (op.def == &kRead) {
        if (copied_.contains(KeyOf(op.outputs[0], mb))) instruction.copy_bytes = Type(op.outputs[0]).Bytes();
        continue;
      }
      if (op.def == &kAssign) {
        auto placed = in_state_.find(Root(KeyOf(op.inputs[1], mb)));  // it may lie in another state that gets the same value
        if (placed == in_state_.end() || placed->second != StateOf(i)) instruction.copy_bytes = Type(op.inputs[1]).Bytes();
        continue;
      }
      if (op.def == &kWhile || op.def == &kCond) {
        for (int b = 0; b < 2; ++b) {
          ASSIGN_OR_RETURN(instruction.bodies[b], Compile(*op.bodies[b], to_.bindings, {}, table_, to_.options));
        }
        continue;
      }
      Op whole = op;  // kernels know nothing of halves
      whole.half = Half::kWhole;
      whole.outputs = outputs;
      KernelRequest request{graph_, whole, to_.bindings, {}, {}, to_.options.num_threads};
      for (ValueId in : op.inputs) request.in.push_back(Type(in));
      for (ValueId out : outputs) request.out.push_back(Type(out));
      auto kernel = table_.Compile(to_.options.device, request);
      if (!kernel.ok()) {
        return kernel.status().WithContext(fmt::format("{}:{}", op.provenance.where.file, op.provenance.where.line));
      }
      instruction.kernel = *std::move(kernel);
      to_.fallbacks += instruction.kernel.is_reference;
      if (instruction.kernel.scratch_bytes > 0) {
        instruction.scratch = static_cast<int>(to_.buffers.size());
        to_.buffers.push_back({{instruction.kernel.scratch_bytes, i, i}, false});
      }
    }
    for (const Key& key : outside_) {
      auto add = [&](const std::vector<NamedValue>& list, bool tap) {
        for (std::size_t k = 0; k < list.size(); ++k) {
          if (list[k].value == key.first) {
            to_.seen.push_back({list[k].name, PlaceOf(key), graph_.value(key.first).type, k, key.second, tap});
          }
        }
      };
      add(graph_.outputs, false);
      add(graph_.taps, true);
    }
    return {};
  }

  Executable::Impl& to_;
  const Graph& graph_;
  const KernelTable& table_;
  std::map<Key, int> made_, started_;
  std::map<Key, std::vector<int>> uses_, root_uses_;
  std::set<Key> outside_, root_outside_;               // seen after the run
  std::map<std::uint32_t, std::vector<int>> writes_;   // state -> assigns
  std::map<std::uint32_t, std::vector<Key>> reads_;    // state -> reads that are no copies
  std::set<Key> copied_;                               // reads that are
  std::map<Key, std::uint32_t> in_state_;              // values that are computed into a state
  std::map<Key, std::pair<Key, std::size_t>> member_;  // values that are computed into a bucket
  std::map<Key, int> bucket_begin_;
  std::map<Key, int> buffer_;
};

}  // namespace

Executable::~Executable() = default;
std::size_t Executable::arena_bytes() const { return impl_->plan.bytes; }
std::size_t Executable::registered_bytes() const { return impl_->registered_plan.bytes; }
std::size_t Executable::arena_bytes_bound() const { return impl_->bound; }
std::size_t Executable::fallback_ops() const { return impl_->fallbacks; }

Result<std::unique_ptr<Executable>> Compile(const Graph& graph, const Bindings& bindings, const Program& program, const KernelTable& table,
                                            const ExecutorOptions& options) {
  auto executable = std::make_unique<Executable>();
  executable->impl_ = std::make_unique<Executable::Impl>(Executable::Impl{graph, bindings, options});
  for (std::size_t i = 0; i < graph.symbols.size(); ++i) {
    const SymbolInfo& symbol = graph.symbols[i];
    if (i >= bindings.size() || bindings[i] < symbol.min || (symbol.max > 0 && bindings[i] > symbol.max)) {
      return Status(
          Code::kInvalid, "RUN08", fmt::format("{} has no number that it may have", symbol.name),
          (symbol.max > 0 ? fmt::format("it lies in [{}, {}], and ", symbol.min, symbol.max)
                          : fmt::format("it is at least {}, and ", symbol.min)) +
              (i < bindings.size() ? fmt::format("{} is bound", bindings[i]) : fmt::format("only {} numbers are bound", bindings.size())),
          "bind each symbol of the graph, in the order in which they were made, to a number that it may have");
    }
  }
  RETURN_IF_ERROR(CheckLengths(graph, bindings));
  omp_set_num_threads(options.num_threads);  // a primitive of oneDNN divides its work among as many as there are when it is made
  Compiler compiler(*executable->impl_, table);
  RETURN_IF_ERROR(compiler.Run(program));
  return executable;
}

Status Executable::Impl::Step(Instruction& i, const RunInputs& inputs, StateStore& store) {
  const Op& op = *i.op;
  std::vector<void*> in, out;
  in.reserve(i.in.size());
  out.reserve(i.out.size());
  for (const Place& place : i.in) in.push_back(At(place, inputs));
  for (const Place& place : i.out) out.push_back(At(place, inputs));
  if (op.half == Half::kDone) {
    const CompiledKernel& kernel = code[i.start].kernel;
    return kernel.wait ? kernel.wait() : Status();
  }
  if (op.def == &kRead || op.def == &kAssign) {
    if (i.copy_bytes == 0) return {};
    void* state = states[graph.value(op.inputs[0]).state.value];
    if (op.def == &kRead) {
      CopyBytes(out[0], state, i.copy_bytes);
    } else if (in[1] != state) {
      CopyBytes(state, in[1], i.copy_bytes);
    }
    return {};
  }
  RunContext run = inputs.run;
  if (!inputs.sample_offsets.empty()) run.sample_offset = inputs.sample_offsets.at(i.micro_batch);
  if (op.def == &kWhile) return RunWhile(i, in, out, run, store);
  if (op.def == &kCond) return RunCond(i, in, out, run, store);
  if (!i.kernel.run) return {};  // a view
  KernelCall call{in.data(), out.data(), i.scratch < 0 ? nullptr : places[i.scratch], run};
  RETURN_IF_ERROR(i.kernel.run(call));
  // Kernels know nothing of halves: one that only starts its work is waited for at once where the op was not split.
  return op.half == Half::kWhole && i.kernel.wait ? i.kernel.wait() : Status();
}

namespace {

Result<std::vector<Tensor>> RunBody(Executable& body, const std::vector<const Tensor*>& arguments, const RunContext& run,
                                    StateStore& store) {
  RunInputs inputs;
  inputs.micro_batches = {arguments};
  inputs.run = run;
  ASSIGN_OR_RETURN(RunOutputs outputs, body.Run(inputs, store));
  return std::move(outputs.outputs[0]);
}

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<const Tensor*> Pointers(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  std::vector<const Tensor*> pointers;
  for (const auto* list : {&a, &b}) {
    for (const Tensor& tensor : *list) pointers.push_back(&tensor);
  }
  return pointers;
}

}  // namespace

Status Executable::Impl::RunWhile(Instruction& i, const std::vector<void*>& in, const std::vector<void*>& out, const RunContext& run,
                                  StateStore& store) {
  const Op& op = *i.op;
  auto n = static_cast<std::size_t>(op.attrs.Int(Attr::kCount)), c = static_cast<std::size_t>(op.attrs.Int(Attr::kCaptures));
  std::vector<Tensor> vars, test, after;
  for (std::size_t k = 0; k < in.size(); ++k) (k < n ? vars : k < n + c ? test : after).push_back(Copy(op.inputs[k], in[k]));
  std::vector<std::int64_t> stacked = op.attrs.Ints(Attr::kStacked);
  for (std::size_t k = 0; k < stacked.size(); ++k) {
    std::size_t bytes = Copy(op.outputs[n + 1 + k], out[n + 1 + k]).bytes.size();
    if (bytes > 0) std::memset(out[n + 1 + k], 0, bytes);
  }
  std::int64_t rounds = 0;
  for (;; ++rounds) {
    ASSIGN_OR_RETURN(std::vector<Tensor> more, RunBody(*i.bodies[0], Pointers(vars, test), run, store));
    if (more[0].bytes[0] == std::byte{0}) break;
    if (rounds == op.attrs.Int(Attr::kBound)) {
      return Status(Code::kUserError, "RUN03", fmt::format("a while goes on after {} rounds", rounds),
                    "that is the bound that it was given", "give a larger bound");
    }
    for (std::size_t k = 0; k < stacked.size(); ++k) {
      const std::vector<std::byte>& row = vars[stacked[k]].bytes;
      CopyBytes(static_cast<std::byte*>(out[n + 1 + k]) + static_cast<std::size_t>(rounds) * row.size(), row.data(), row.size());
    }
    ASSIGN_OR_RETURN(vars, RunBody(*i.bodies[1], Pointers(vars, after), run, store));
  }
  for (std::size_t k = 0; k < n; ++k) CopyBytes(out[k], vars[k].bytes.data(), vars[k].bytes.size());
  CopyBytes(out[n], &rounds, sizeof rounds);
  return {};
}

Status Executable::Impl::RunCond(Instruction& i, const std::vector<void*>& in, const std::vector<void*>& out, const RunContext& run,
                                 StateStore& store) {
  const Op& op = *i.op;
  auto first = static_cast<std::size_t>(op.attrs.Int(Attr::kCaptures));
  bool yes = *static_cast<const std::uint8_t*>(in[0]) != 0;
  std::vector<Tensor> arguments;
  for (std::size_t k = 1; k < in.size(); ++k) {
    if ((k - 1 < first) == yes) arguments.push_back(Copy(op.inputs[k], in[k]));
  }
  ASSIGN_OR_RETURN(std::vector<Tensor> results, RunBody(*i.bodies[yes ? 0 : 1], Pointers(arguments, {}), run, store));
  for (std::size_t k = 0; k < results.size(); ++k) CopyBytes(out[k], results[k].bytes.data(), results[k].bytes.size());
  return {};
}

Result<RunOutputs> Executable::Run(const RunInputs& inputs, StateStore& states) {
  Impl& impl = *impl_;
  if (static_cast<std::int32_t>(inputs.micro_batches.size()) != impl.num_micro_batches) {
    return Status(Code::kInvalid, "RUN01",
                  fmt::format("inputs of {} micro-batches for a program of {}", inputs.micro_batches.size(), impl.num_micro_batches),
                  "each micro-batch runs on inputs of its own", fmt::format("give {} lists of inputs", impl.num_micro_batches));
  }
  for (const auto& list : inputs.micro_batches) {
    if (list.size() != impl.graph.inputs.size()) {
      return Status(Code::kInvalid, "RUN01", fmt::format("{} inputs for a graph that takes {}", list.size(), impl.graph.inputs.size()),
                    "every Input of the builder takes a tensor", "give one for each, in the order in which they were made");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const ValueInfo& info = impl.graph.value(impl.graph.inputs[i]);
      Dims dims = Evaluate(info.type.shape, impl.bindings);
      if (!Holds(*list[i], info.type.dtype, dims)) {
        return Status(
            Code::kInvalid, "RUN01",
            fmt::format("input {} is {} {}, and {} is given", info.name, ToString(dims), Name(info.type.dtype), Describe(*list[i])),
            fmt::format("the graph was compiled for that type, and by its bindings for that shape, which has {} bytes",
                        BytesOf(info.type.dtype, dims)),
            "give such a tensor, or compile with the bindings of this one");
      }
    }
  }
  impl.states.assign(impl.graph.states.size(), nullptr);
  for (std::size_t i = 0; i < impl.graph.states.size(); ++i) {
    const StateInfo& state = impl.graph.states[i];
    if (!impl.touched[i]) continue;
    ASSIGN_OR_RETURN(impl.states[i], states.Find(impl.graph, state, impl.bindings, inputs.run));
  }
  omp_set_num_threads(impl.options.num_threads);  // oneDNN's team
  for (Instruction& instruction : impl.code) {
    const std::int64_t begin_ns = inputs.times == nullptr ? 0 : NowNs();
    Status status = impl.Step(instruction, inputs, states);
    if (inputs.times != nullptr) inputs.times->push_back({instruction.op, instruction.micro_batch, begin_ns, NowNs()});
    if (!status.ok()) {
      const Provenance& origin = instruction.op->provenance;
      return status.WithContext(
          fmt::format("{} ({}{}{})", instruction.op->def->name, origin.module, origin.module.empty() ? "" : ", ", Name(origin.phase)));
    }
  }
  RunOutputs outputs;
  outputs.outputs.assign(impl.num_micro_batches, std::vector<Tensor>(impl.graph.outputs.size()));
  outputs.taps.resize(impl.num_micro_batches);
  for (const Impl::Seen& seen : impl.seen) {
    Tensor tensor{seen.type.dtype, Evaluate(seen.type.shape, impl.bindings), {}};
    tensor.bytes.resize(BytesOf(tensor.dtype, tensor.dims));
    CopyBytes(tensor.bytes.data(), impl.At(seen.place, inputs), tensor.bytes.size());
    (seen.tap ? outputs.taps[seen.micro_batch][seen.name] : outputs.outputs[seen.micro_batch][seen.index]) = std::move(tensor);
  }
  return outputs;
}

}  // namespace ropewalk::mlrunner
