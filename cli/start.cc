#include "cli/start.h"

#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/job_name.h"
#include "cli/dev_cluster.h"
#include "cli/settings.h"
#include "master/daemon/master.h"
#include "rpc/address.h"
#include "storage/io_error.h"
#include "worker/daemon/worker.h"

namespace ropewalk::cli {
namespace {

constexpr std::uint64_t kSecondsMax = 7 * 24 * 3600;  // of a setting: a week
constexpr std::uint64_t kSilenceSecondsLeast = 3;     // a word is owed every second, and may be late

// All folders of a path; daemons make only the last one themselves, so that a typing mistake does not create a tree. The home folder is
// ours.
Status MakeParents(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (mkdir(path.substr(0, slash).c_str(), 0700) == 0 || errno == EEXIST) continue;
    Status why = storage::IoError(errno, "CLI09", "cannot make the folder " + storage::QuotedPath(path.substr(0, slash)));
    return Status(Code::kUserError, why.tag(), why.what(), why.why(), why.fix());
  }
  return {};
}

Status StartMaster(const Invocation& invocation, const Config& config) {
  RETURN_IF_ERROR(RefuseOpenAddress(config.Text("master.listen")));
  std::string folder = StateFolder(config, "master");
  RETURN_IF_ERROR(MakeParents(folder));
  RETURN_IF_ERROR(MakeParents(TokenFile(config, "master")));
  master::MasterOptions options;
  options.state_dir = folder;
  options.listen_address = config.Text("master.listen");
  options.token_file = TokenFile(config, "master");
  options.artifact_bytes_max = config.Number("master.artifacts");
  options.job_output_bytes_max = config.Number("master.job_stdout");
  options.job_log_bytes_max = config.Number("master.job_logs");
  options.on_listening = [&](const std::string& address) {
    std::printf("master listens on %s; token file %s; state in %s\n  start a worker:  ropewalk start worker --join %s --token-file %s\n",
                address.c_str(), options.token_file.c_str(), options.state_dir.c_str(), address.c_str(), options.token_file.c_str());
    std::fflush(stdout);
    if (invocation.ready_fd < 0) return;
    std::string line = address + "\n";
    if (write(invocation.ready_fd, line.data(), line.size()) < 0) std::perror("ropewalk: ready-fd");
    close(invocation.ready_fd);
  };
  return master::RunMaster(options);
}

Status StartWorker(const Config& config) {
  RETURN_IF_ERROR(RefuseOpenAddress(config.Text("worker.listen")));
  RETURN_IF_ERROR(CheckSlots(config, "worker.slots"));
  RETURN_IF_ERROR(CheckMemory(config, "worker.memory"));
  std::string folder = StateFolder(config, "worker");
  RETURN_IF_ERROR(MakeParents(folder));
  worker::WorkerOptions options;
  options.master_address = config.Text("worker.join");
  options.token_file = TokenFile(config, "worker");
  options.name = config.Text("worker.name");
  options.job_user = config.Text("worker.job_user");
  options.artifact_bytes_max = config.Number("worker.artifacts");
  options.slots = static_cast<std::uint32_t>(config.Number("worker.slots"));
  options.memory_bytes = config.Number("worker.memory");
  if (config.Number("worker.drain_timeout") > kSecondsMax)
    return Status(Code::kInvalid, "SPEC02", "worker.drain_timeout " + config.Text("worker.drain_timeout") + " is not possible",
                  "it is longer than a week of waiting", "give at most " + std::to_string(kSecondsMax) + " seconds");
  options.drain_ms_max = static_cast<std::int64_t>(config.Number("worker.drain_timeout")) * 1000;
  if (config.Number("worker.executor_silence") > kSecondsMax)
    return Status(Code::kInvalid, "SPEC02", "worker.executor_silence " + config.Text("worker.executor_silence") + " is not possible",
                  "it is longer than a week", "give at most " + std::to_string(kSecondsMax) + " seconds, or 0: never");
  if (const std::uint64_t silence = config.Number("worker.executor_silence"); silence > 0 && silence < kSilenceSecondsLeast)
    return Status(Code::kInvalid, "SPEC02", "worker.executor_silence " + config.Text("worker.executor_silence") + " is not possible",
                  "executors say something once a second: healthy ones would be ended",
                  "give at least " + std::to_string(kSilenceSecondsLeast) + " seconds, or 0: never");
  options.silence_ms_max = static_cast<std::int64_t>(config.Number("worker.executor_silence")) * 1000;
  options.state_dir = folder;
  options.data_address = config.Text("worker.listen");
  options.on_registered = [master = options.master_address](WorkerId worker, const std::string& name) {
    std::printf("worker %s (%s) has joined %s\n", name.c_str(), WorkerName(worker).c_str(), master.c_str());
    std::fflush(stdout);
  };
  return worker::RunWorker(options);
}

}  // namespace

Status RefuseOpenAddress(const std::string& address) {
  ASSIGN_OR_RETURN(std::vector<rpc::SocketAddress> candidates, rpc::ResolveAddress(address));
  for (const rpc::SocketAddress& candidate : candidates) {
    if (candidate.is_loopback()) continue;
    return Status(Code::kInvalid, "SEC01", "refused to listen on " + address,
                  "it can be reached from other machines, and there is no TLS yet: whoever can read the network could submit jobs",
                  "listen on 127.0.0.1: master and workers run on one machine for now. A client elsewhere may forward the master's port "
                  "through SSH; a worker may not, since workers read blocks from each other as well");
  }
  return {};
}

Status Start(const Invocation& invocation, const Config& config) {
  FLAGS_logtostderr = true;  // files, rotation and services are the caller's choice
  google::InitGoogleLogging("ropewalk");
  if (invocation.verb == "start master") return StartMaster(invocation, config);
  if (invocation.verb == "start dev") {
    ASSIGN_OR_RETURN(DevOptions options, DevOptionsOf(config));
    return RunDevCluster(options);
  }
  return StartWorker(config);
}

}  // namespace ropewalk::cli
