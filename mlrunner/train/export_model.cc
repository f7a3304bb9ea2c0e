#include "mlrunner/train/export_model.h"

#include <map>
#include <memory>
#include <utility>

#include "mlrunner/onnx/export.h"
#include "mlrunner/tensors/safetensors.h"
#include "mlrunner/train/step_graph.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

constexpr std::string_view kOnnx = ".onnx", kSafetensors = ".safetensors";

bool IsWritten(const StateInfo& state) { return state.kind == StateKind::kParameter || state.kind == StateKind::kStatistic; }

Status CannotWrite(int error, const std::string& path) {
  const Status io = storage::IoError(error, "TRAIN09", "");
  return Status(io.code(), "TRAIN09", "what is trained cannot be written to " + storage::QuotedPath(path), io.why(),
                "name another file in train.export, in a folder that is there");
}

}  // namespace

bool ExportsTo(std::string_view path) { return path.ends_with(kOnnx) || path.ends_with(kSafetensors); }

Status CanExport(storage::FileSystem& files, const TrainJob& job, const Samples& samples) {
  const std::string& path = job.export_to;
  if (path.ends_with(kOnnx)) {
    ASSIGN_OR_RETURN(const Graph graph, ForwardGraph(job, samples));
    const auto zeros = [](const StateInfo& state) -> Result<Tensor> {
      const Dims dims = Evaluate(state.logical, Bindings{});
      return Tensor{state.type.dtype, dims, std::vector<std::byte>(static_cast<std::size_t>(NumElements(dims)) * SizeOf(state.type.dtype))};
    };
    RETURN_IF_ERROR(onnx::ToOnnx(graph, {.outputs = {}, .state = zeros}).status());
  }
  const std::string tried = path + ".tried";
  std::unique_ptr<storage::WritableFile> file;
  if (const int error = files.Create(tried, &file); error != 0) return CannotWrite(error, path);
  if (const int error = file->Close(); error != 0) return CannotWrite(error, path);
  if (const int error = files.RemoveFile(tried); error != 0) return CannotWrite(error, path);
  return {};
}

Status ExportTrained(storage::FileSystem& files, const TrainJob& job, const Samples& samples, const StateStore& states) {
  ASSIGN_OR_RETURN(const Graph graph, ForwardGraph(job, samples));
  const auto value = [&](const StateInfo& state) -> Result<Tensor> { return ConvertTo(states.Get(state.name), state.type.dtype); };
  if (job.export_to.ends_with(kOnnx)) return onnx::ExportOnnx(graph, {.outputs = {}, .state = value}, files, job.export_to);
  std::map<std::string, Tensor> tensors;
  for (const StateInfo& state : graph.states) {
    if (!IsWritten(state)) continue;
    ASSIGN_OR_RETURN(tensors[state.name], value(state));
  }
  return WriteSafetensors(files, job.export_to, tensors);
}

}  // namespace ropewalk::mlrunner
