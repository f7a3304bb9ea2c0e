#include "dag/session.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/bytes.h"
#include "storage/list_inputs.h"

#include "base/escape.h"

namespace ropewalk::dag {

namespace {

constexpr std::uint64_t kVectorBytesMax = 64u << 20;

// What the driver found, for every replica.
struct Walked {
  storage::InputListing listing;
  std::vector<std::string> folders;  // of which all files are input
};

std::string EncodeWalked(const Walked& walked) {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Sized(storage::EncodeListing(walked.listing));
  out.Varint(walked.folders.size());
  for (const std::string& folder : walked.folders) out.Sized(folder);
  return bytes;
}

Result<Walked> DecodeWalked(std::string_view bytes) {
  ByteReader in(bytes);
  Walked walked;
  ASSIGN_OR_RETURN(walked.listing, storage::DecodeListing(in.Sized()));
  for (std::uint64_t folders = in.Varint(); in.ok() && folders > 0; --folders) walked.folders.emplace_back(in.Sized());
  if (!in.ok() || !in.empty()) return Status(Code::kDataLoss, "IO06", "an input listing cannot be read", "its bytes are damaged");
  return walked;
}

}  // namespace

Session::Session(SessionOptions options)
    : keep_(std::move(options.keep)),
      context_(std::make_shared<PlanContext>(options.backend, std::move(options.fail))),
      args_(std::move(options.args)) {}

Session::~Session() {
  if (context_ == nullptr) return;
  // A dataset that nobody asks for is computed by nobody, and no compiler warns of one that has a name. A main that failed says why itself.
  if (context_->OnMainThread() && context_->last_sequence() == 0 && std::uncaught_exceptions() == 0) {
    const std::uint64_t datasets = context_->NextNodeId() - 1;  // the context closes, so that number is nobody's
    if (datasets > 0)
      std::fprintf(stderr, "warning[DAG06] main made %llu dataset%s and ran no action   why: %s   fix: %s\n",
                   static_cast<unsigned long long>(datasets), datasets == 1 ? "" : "s",
                   "a dataset is computed only where an action asks for it", "end with one, like WriteText, Collect or Count");
  }
  context_->Close();
}

std::string Session::NextOnceName(const char* kind) {
  context_->RequireMainThread((std::string("make a ") + kind).c_str());  // first: a number that is taken elsewhere shifts all later ones
  return std::string(kind) + ":" + std::to_string(context_->NextOnce());
}

std::string Session::OnceBytes(const std::string& name, const std::function<Result<std::string>()>& compute) {
  return context_->Once(name, compute);
}

Result<std::string> Session::Guarded(const std::string& name, const std::function<std::string()>& fn) {
  // The driver's Once is main's code: what it throws must reach the user as the job's error, in every replica.
  try {
    return fn();
  } catch (const std::exception& e) {
    return Status(Code::kUserError, "USER02", "Once(\"" + EscapeForLog(name, 200) + "\") failed: " + EscapeForLog(e.what()),
                  "its function threw an exception", "catch it there, or mend what threw it");
  }
}

std::shared_ptr<const FilePartitions> Session::ListFiles(const InputPaths& paths, std::uint32_t record_bytes) {
  std::string bytes = OnceBytes(NextOnceName("listing"), [&]() -> Result<std::string> {
    Walked walked;
    ASSIGN_OR_RETURN(walked.listing, storage::ListInputs(paths.paths(), settings().work_dir, &walked.folders));
    for (const storage::InputFile& file : walked.listing.files)
      if (record_bytes != 0) RETURN_IF_ERROR(storage::CheckFixedRecords(file, record_bytes));
    return EncodeWalked(walked);
  });
  Result<Walked> walked = DecodeWalked(bytes);
  if (!walked.ok()) context_->Fail(walked.status());
  for (const storage::InputFile& file : walked->listing.files) context_->AddInputPath(file.path);
  // An output below a folder that is read would be input of the next run, though no file of it is listed yet.
  for (std::string& folder : walked->folders) context_->AddInputPath(std::move(folder));
  return Partition(std::move(walked->listing), settings(), record_bytes);
}

PlanNodePtr Session::NewFileNode(const char* op, Site site, const FilePartitions& files, std::uint64_t fingerprint) {
  for (const storage::InputFile& file : files.listing.files) {
    fingerprint = HashCombine(fingerprint, HashCombine(Checksum64(file.path), HashCombine(file.bytes, file.mtime_ns)));
  }
  return std::make_shared<PlanNode>(context_, PlanNode::Options{.op = op,
                                                                .site = site,
                                                                .partitions = static_cast<std::uint32_t>(files.splits.size()),
                                                                .fingerprint = fingerprint,
                                                                .partition_bytes = files.bytes});
}

PlanNodePtr Session::NewVectorNode(Site site, std::size_t size, std::uint64_t bytes, std::uint64_t hash, const VectorOptions& options) {
  if (bytes > kVectorBytesMax) {
    context_->Fail(Status(Code::kUserError, "DAG03", "FromVector (" + site.ToString() + ") of " + std::to_string(bytes >> 20) + " MiB",
                          "the vector is built in every executor; the limit is " + std::to_string(kVectorBytesMax >> 20) + " MiB",
                          "write it to a file and use ReadLines or ReadRecords"));
  }
  std::uint64_t partitions = options.partitions;
  if (partitions == 0) partitions = std::clamp<std::uint64_t>(size, 1, DefaultPartitions(settings()));
  return std::make_shared<PlanNode>(
      context_,
      PlanNode::Options{.op = "FromVector", .site = site, .partitions = static_cast<std::uint32_t>(partitions), .fingerprint = hash});
}

Dataset<std::string_view> Session::ReadLines(InputPaths paths, Site site) {
  auto files = ListFiles(paths, 0);
  return Dataset<std::string_view>(NewFileNode("ReadLines", site, *files, 0), LinesOf(files));
}

Dataset<std::string_view> Session::ReadRecords(InputPaths paths, RecordOptions record, Site site) {
  if (record.bytes == 0 || record.bytes > storage::kRecordBytesMax) context_->Fail(storage::CheckFixedRecords({}, record.bytes));
  auto files = ListFiles(paths, record.bytes);
  return Dataset<std::string_view>(NewFileNode("ReadRecords", site, *files, record.bytes), RecordsOf(files, record.bytes));
}

}  // namespace ropewalk::dag
