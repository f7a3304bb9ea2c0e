#include "dag/plan/dataset_base.h"

#include <utility>

#include "base/hash.h"
#include "dag/plan/actions.h"

namespace ropewalk::dag {

DatasetBase::DatasetBase(PlanNodePtr node, PipeNotes notes) : node_(std::move(node)), notes_(std::move(notes)) {}
DatasetBase::~DatasetBase() = default;
DatasetBase::DatasetBase(const DatasetBase&) = default;
DatasetBase::DatasetBase(DatasetBase&&) noexcept = default;
DatasetBase& DatasetBase::operator=(const DatasetBase&) = default;
DatasetBase& DatasetBase::operator=(DatasetBase&&) noexcept = default;

std::uint32_t DatasetBase::Partitions(std::uint32_t wanted) const {
  return wanted != 0 ? wanted : DefaultPartitions(context()->settings());
}

PipeNotes DatasetBase::Noted(const char* op, Site site, std::uint64_t hash) const {
  context()->RequireMainThread("build a dataset");
  return {notes_.operators + " > " + op,
          HashCombine(HashCombine(notes_.fingerprint, Checksum64(site.ToString())), HashCombine(Checksum64(std::string_view(op)), hash))};
}

PlanNodePtr DatasetBase::NewNode(const char* op, Site site, std::uint32_t partitions, std::uint64_t fingerprint) const {
  return std::make_shared<PlanNode>(context(),
                                    PlanNode::Options{.op = op, .site = site, .partitions = partitions, .fingerprint = fingerprint});
}

PlanNodePtr DatasetBase::NewPipeNode(Site site) const {
  return std::make_shared<PlanNode>(context(), PlanNode::Options{.op = "Pipe",
                                                                 .site = site,
                                                                 .partitions = node_->partitions(),
                                                                 .fingerprint = notes_.fingerprint,
                                                                 .label = node_->label() + notes_.operators,
                                                                 .parents = {node_}});
}

PlanNodePtr DatasetBase::NewUnionNode(const PlanNodePtr& a, const PlanNodePtr& b, Site site) {
  return std::make_shared<PlanNode>(
      a->context(), PlanNode::Options{.op = "Union", .site = site, .partitions = a->partitions() + b->partitions(), .parents = {a, b}});
}

StageSpec DatasetBase::SpecOf(std::uint32_t side) const {
  StageSpec spec;
  spec.side = side;
  spec.from = node_;
  spec.operators = notes_.operators;
  spec.fingerprint = notes_.fingerprint;
  return spec;
}

void DatasetBase::AddStage(PlanNode& node, std::uint32_t side, InputPattern read_as, std::uint32_t parts, StageProgram program) const {
  StageSpec spec = SpecOf(side);
  spec.read_as = read_as;
  spec.parts = parts;
  spec.program = std::move(program);
  node.AddStage(std::move(spec));
}

RunningAction DatasetBase::StartResult(const char* op, Site site, std::uint64_t fingerprint, StageProgram program) const {
  PlanNodePtr action = NewActionNode(context(), op, site, fingerprint);
  StageSpec spec = SpecOf(0);
  spec.output = StageOutput::kResult;
  spec.program = std::move(program);
  action->AddStage(std::move(spec));
  return RunningAction(action);
}

Written DatasetBase::WriteParts(const char* op, const std::string& folder, bool overwrite, Site site,
                                const std::function<StageProgram(const storage::OutputSpec&)>& program) const {
  PlanNodePtr action = NewActionNode(context(), op, site, HashCombine(Checksum64(folder), overwrite));
  storage::OutputSpec spec = CheckedOutput(*action, folder, overwrite);
  StageSpec write = SpecOf(0);
  write.program = program(spec);
  AddOutputStages(*action, std::move(write), spec);
  RunningAction running(action, [spec] { storage::DiscardOutput(spec); });
  const std::vector<std::string> values = running.Wait();
  const Result<Written> written = values.size() == 1 ? DecodeWritten(values[0]) : Result<Written>(DamagedResult(op));
  if (!written.ok()) context()->Fail(written.status());
  return *written;
}

}  // namespace ropewalk::dag
