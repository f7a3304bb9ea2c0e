#include "mlrunner/kernels/kernel.h"

#include <cstring>

#include <fmt/format.h>

#include "mlrunner/graph/op_def.h"
#include "mlrunner/kernels/cpu.h"
#include "mlrunner/kernels/elements.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

// Elements of a buffer as doubles, row-major whatever the layout.
RefTensor Load(const ConcreteType& type, const void* data) {
  RefTensor flat{{type.layout.PhysicalElements(type.dims)}, {}};
  flat.data.resize(static_cast<std::size_t>(flat.dims[0]));
  ToDoubles(type.dtype, data, flat.data);
  if (type.layout.IsRowMajor()) return {type.dims, std::move(flat.data)};
  RefTensor tensor{type.dims, std::vector<double>(NumElements(type.dims))};
  Dims index(type.dims.size());
  for (double& value : tensor.data) {
    value = flat.data[type.layout.Offset(type.dims, index)];
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.dims[d]) break;
      index[d] = 0;
    }
  }
  return tensor;
}

void Store(const ConcreteType& type, const RefTensor& tensor, void* data) {
  if (type.layout.IsRowMajor()) return FromDoubles(type.dtype, tensor.data, data);
  std::vector<double> flat(static_cast<std::size_t>(type.layout.PhysicalElements(type.dims)));
  Dims index(type.dims.size());
  for (double value : tensor.data) {
    flat[type.layout.Offset(type.dims, index)] = value;
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.dims[d]) break;
      index[d] = 0;
    }
  }
  FromDoubles(type.dtype, flat, data);
}

Result<CompiledKernel> CompileReference(const RefTable& table, const KernelRequest& request) {
  auto found = table.find(request.op.def);
  if (found == table.end()) {
    return Status(Code::kInvalid, "RUN02", fmt::format("{} has no kernel", request.op.def->name), "neither for the device nor as reference",
                  "add one to the kernel table");
  }
  RefKernel kernel = found->second;
  const Graph* graph = &request.graph;
  Op op = request.op;
  Bindings bindings = request.bindings;
  std::vector<ConcreteType> in = request.in, out = request.out;
  CompiledKernel compiled;
  compiled.is_reference = true;
  compiled.run = [=](const KernelCall& call) {
    std::vector<RefTensor> loaded;
    // Tokens have no numbers. (A tensor without elements may lie nowhere, too, and still has its shape.)
    for (std::size_t i = 0; i < in.size(); ++i) loaded.push_back(SizeOf(in[i].dtype) == 0 ? RefTensor{} : Load(in[i], call.in[i]));
    RefCall ref{*graph, op, bindings, call.run, {}, {}};
    for (const RefTensor& tensor : loaded) ref.in.push_back(&tensor);
    for (const ConcreteType& type : out) ref.out.push_back({type.dims, std::vector<double>(NumElements(type.dims))});
    RETURN_IF_ERROR(kernel(ref));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (SizeOf(out[i].dtype) == 0) continue;
      for (double& value : ref.out[i].data) value = RoundTo(out[i].dtype, value);
      Store(out[i], ref.out[i], call.out[i]);
    }
    return Status();
  };
  return compiled;
}

}  // namespace

Dtype KernelDtype(const KernelRequest& request) {
  for (const ConcreteType& type : request.in) {
    if (IsFloat(type.dtype)) return type.dtype;
  }
  for (const ConcreteType& type : request.out) {
    if (SizeOf(type.dtype) > 0) return type.dtype;
  }
  return Dtype::kToken;
}

Result<CompiledKernel> KernelTable::Compile(Device device, const KernelRequest& request) const {
  // Between kernels values lie in the host's memory, so the CPU can do what a GPU has no kernel for.
  for (; device != Device::kReference; device = device == Device::kGpu ? Device::kCpu : Device::kReference) {
    auto found = makers_.find({request.op.def, device, KernelDtype(request)});
    if (found == makers_.end()) continue;
    auto compiled = found->second(request);
    // A kernel may decline a shape or layout; anything else is a failure.
    if (!IsDeclined(compiled)) return compiled;
  }
  return CompileReference(reference_, request);
}

std::map<const OpDef*, KernelMaker> KernelTable::Makers(Device device, Dtype dtype) const {
  std::map<const OpDef*, KernelMaker> some;
  for (const auto& [key, maker] : makers_) {
    const auto& [def, its_device, its_dtype] = key;
    if (its_device == device && its_dtype == dtype) some[def] = maker;
  }
  return some;
}

namespace {

// What has a kernel of f32 and none of 16 bits gets one.
void AddWidenedKernels(KernelTable& table) {
  const auto wide = table.Makers(Device::kCpu, Dtype::kF32);
  for (Dtype half : {Dtype::kBF16, Dtype::kF16}) {
    const auto own = table.Makers(Device::kCpu, half);
    for (const auto& [def, maker] : wide)
      if (!own.contains(def)) table.Add(*def, Device::kCpu, half, WidenedKernel(maker));
  }
}

}  // namespace

KernelTable CpuKernels() {
  KernelTable table;
  AddProductKernels(table);
  AddElementwiseKernels(table);
  AddRowKernels(table);
  AddSequenceKernels(table);
  AddTableKernels(table);
  AddRoutingKernels(table);
  AddNormKernels(table);
  AddPoolKernels(table);
  AddAttentionKernels(table);
  AddResidualNormKernels(table);
  AddOptimizerKernels(table);
  AddRandomKernels(table);
  AddWidenedKernels(table);
  return table;
}

}  // namespace ropewalk::mlrunner
