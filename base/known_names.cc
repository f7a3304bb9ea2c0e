#include "base/known_names.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/escape.h"
#include "base/nearest.h"

extern char** environ;

namespace ropewalk {
namespace {

constexpr std::string_view kPrefix = "ROPEWALK_";
constexpr const char* kTestPrefixes[] = {"ROPEWALK_TEST_", "ROPEWALK_SIM_", "ROPEWALK_BENCH_"};

constexpr KnownVariable kVariables[] = {
    {"ROPEWALK_MASTER", "client.master", "jobs submit themselves there; without it main runs in its own process"},
    {"ROPEWALK_TOKEN_FILE", "client.token_file", "the cluster's token"},
    {"ROPEWALK_DETACH", "job.detach", "print the job's id and leave"},
    {"ROPEWALK_NAME", "job.name", "in lists"},
    {"ROPEWALK_THREADS", "job.threads", "embedded"},
    {"ROPEWALK_MEMORY", "job.memory", "embedded"},
    {"ROPEWALK_OPERATOR_MEMORY", "job.operator_memory", "at what size an operator writes out or spills"},
    {"ROPEWALK_PARTITIONS", "job.partitions", "of shuffles"},
    {"ROPEWALK_VERIFY", "job.verify", "run sampled tasks twice"},
    {"ROPEWALK_QUIET", "job.quiet", "nothing of progress and end"},
    {"ROPEWALK_EVENT_LOG", "job.event_log", "embedded"},
    {"ROPEWALK_METRICS", "job.metrics", "embedded"},
    {"ROPEWALK_ENV", "job.env", "names of variables that executors get"},
    {"ROPEWALK_OUTPUT", "command.output", "how results and errors are printed"},
    {"ROPEWALK_HOME", "", "folder of the token, config.toml and daemons' state"},
    {"ROPEWALK_GPU_PLUGIN", "", "file of the GPU plugin, where it does not lie beside the program"},
    {"ROPEWALK_EXECUTOR_FD", "", "set by workers for their executors"},
    {"ROPEWALK_SOURCE_DIR", "", "tests: where the sources lie"},
    {"ROPEWALK_JOURNAL_CHILD", "", "tests: a child of the journal's test"},
    {"ROPEWALK_SCRIPTS_REWRITE", "", "tests: write the scripts' answers anew"},
};

Status Unknown(const std::string& variable, std::vector<std::string> names) {
  // Without what all of them begin with: it would make everything look near.
  for (std::string& name : names) name.erase(0, kPrefix.size());
  std::string near = NearestName(std::string_view(variable).substr(kPrefix.size()), names);
  if (!near.empty()) near = std::string(kPrefix) + near;
  return Status(Code::kInvalid, "SPEC01", "environment: unknown variable \"" + EscapeForLog(variable, 200) + "\"",
                "nothing reads it, and names that begin with ROPEWALK_ are Ropewalk's own",
                near.empty() ? "`ropewalk config show` lists all keys; unset it" : "did you mean \"" + near + "\"?");
}

}  // namespace

const std::vector<ConfigKey>& KnownKeys() {
  using enum ConfigType;
  static const std::vector<ConfigKey> keys = {
      {"client.master", kText, "127.0.0.1:7077", "the master that jobs are sent to"},
      {"client.token_file", kText, "", "the cluster's token"},
      {"master.listen", kText, "127.0.0.1:7077", "loopback only, as long as there is no TLS"},
      {"master.dir", kText, "", "journal, artifacts and logs"},
      {"master.token_file", kText, "", "written with mode 0600 when missing"},
      {"master.artifacts", kBytes, "16G", "executables and libraries that are kept for the next submit"},
      {"master.job_stdout", kBytes, "1G", "of what one job's main prints that is kept; what is above is counted"},
      {"master.job_logs", kBytes, "64M", "of each other log of a job that is kept: what its tasks print, its events"},
      {"worker.join", kText, "127.0.0.1:7077", "the master"},
      {"worker.token_file", kText, "", "the cluster's token"},
      {"worker.listen", kText, "127.0.0.1:0", "where other workers read blocks"},
      {"worker.dir", kText, "", "spilled blocks, artifacts, logs"},
      {"worker.slots", kNumber, "0", "tasks at a time; left out: all cores"},
      {"worker.memory", kBytes, "0", "for shuffled data and operators; 0: half of the machine's"},
      {"worker.name", kText, "", "in lists and logs; empty: host and process"},
      {"worker.drain_timeout", kNumber, "60", "seconds that SIGTERM waits for running tasks and for jobs that need what lies here"},
      {"worker.executor_silence", kNumber, "30",
       "seconds (3 or more) after which an executor that says nothing (a stopped process) is ended; 0: never"},
      {"worker.artifacts", kBytes, "16G", "executables and libraries that are kept for the next executor"},
      {"worker.job_user", kText, "", "whom jobs run as; empty: as the worker. Needs root"},
      {"dev.dir", kText, "", "state of master and workers, and the token"},
      {"dev.port", kNumber, "7077", "of the master; 0: any free one"},
      {"dev.workers", kNumber, "2", "worker daemons; with two, executors compare their plans"},
      {"dev.slots", kNumber, "0", "tasks at a time on each worker; left out: the cores, divided among the workers"},
      {"dev.memory", kBytes, "0", "of each worker; 0: half of the machine's, divided among the workers"},
      {"job.name", kText, "", "in lists; empty: the program's name"},
      {"job.detach", kSwitch, "false", "submit: print the job's id and leave"},
      {"job.threads", kNumber, "0", "embedded; 0: all cores"},
      {"job.memory", kBytes, "0", "embedded: for shuffled data; 0: half of what this process may use"},
      {"job.operator_memory", kBytes, "0", "when an operator writes out or spills; 0: from memory and slots of the smallest worker"},
      {"job.partitions", kNumber, "0", "of shuffles where the program names none; 0: from the slots"},
      {"job.verify", kSwitch, "true", "run sampled tasks twice and compare"},
      {"job.quiet", kSwitch, "false", "say nothing of progress and end; errors are told all the same"},
      {"job.event_log", kText, "", "embedded: file to append the event log to"},
      {"job.metrics", kText, "", "embedded: file in which what ranks measure is kept"},
      {"job.env", kText, "", "names of further variables that executors get: A,B,C"},
      {"command.output", kText, "table", "table, json or jsonl"},
  };
  return keys;
}

std::span<const KnownVariable> KnownVariables() { return kVariables; }

Status CheckVariables(std::span<const std::string> environment) {
  std::vector<std::string> keys, names;
  for (const ConfigKey& key : KnownKeys()) {
    std::string name = key.name;
    name.replace(name.find('.'), 1, "__");
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    keys.push_back(std::string(kPrefix) + name);
  }
  for (const KnownVariable& variable : kVariables) names.emplace_back(variable.name);
  for (const std::string& entry : environment) {
    if (!entry.starts_with(kPrefix)) continue;
    std::string name = entry.substr(0, entry.find('='));
    bool ours =
        std::any_of(std::begin(kTestPrefixes), std::end(kTestPrefixes), [&](const char* prefix) { return name.starts_with(prefix); });
    std::size_t border = name.find("__");
    const std::vector<std::string>& known = border != std::string::npos && border > kPrefix.size() - 1 ? keys : names;
    if (!ours && std::find(known.begin(), known.end(), name) == known.end()) return Unknown(name, known);
  }
  return {};
}

Status CheckVariables() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  return CheckVariables(environment);
}

}  // namespace ropewalk
