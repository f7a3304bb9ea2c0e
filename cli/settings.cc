#include "cli/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/home_folder.h"
#include "base/known_names.h"
#include "cli/dev_cluster.h"
#include "job/machine.h"
#include "job/options.h"
#include "storage/toml_file.h"
#include "worker/daemon/machine.h"

extern char** environ;

namespace ropewalk::cli {
namespace {

// The short names that jobs know as well; one name serves all sections that have a key of its kind.
Status SetShortNames(Config* config) {
  for (const KnownVariable& variable : KnownVariables()) {
    const char* value = std::getenv(variable.name);
    if (variable.key[0] == '\0' || value == nullptr || *value == '\0') continue;
    std::vector<std::string> keys = {variable.key};
    if (keys[0] == "client.token_file") keys.insert(keys.end(), {"master.token_file", "worker.token_file"});
    for (const std::string& key : keys)
      RETURN_IF_ERROR(config->Set(ConfigLayer::kEnvironment, {key, value, std::string("environment ") + variable.name}));
  }
  return {};
}

// What a key that says nothing, or 0, comes to on this machine; "" where the key's own default says it all.
std::string Filled(const Config& config, const std::string& key) {
  std::size_t dot = key.find('.');
  std::string section = key.substr(0, dot), name = key.substr(dot + 1);
  if (name == "token_file" || name == "dir") return name == "dir" ? StateFolder(config, section) : TokenFile(config, section);
  if (key == "worker.name") return worker::HostName() + "-PID";
  if (key == "worker.slots") return std::to_string(std::max(1u, std::thread::hardware_concurrency()));
  if (key == "worker.memory") return std::to_string(worker::MachineMemoryBytes() / 2);
  if (section == "dev") {
    auto dev = DevOptionsOf(config);
    if (!dev.ok()) return "";
    if (name == "slots") return std::to_string(dev->slots);
    if (name == "memory") return std::to_string(dev->memory_bytes != 0 ? dev->memory_bytes : worker::MachineMemoryBytes() / 2);
  }
  if (key == "job.name") return "the program's name";
  if (key == "job.threads") return std::to_string(job::Cores());
  if (key == "job.memory") return std::to_string(job::HalfOfMemory());
  if (key == "job.partitions") return "from the slots";
  if (key == "job.operator_memory") return "from the workers";
  if (key == "worker.job_user") return "the worker's own";
  if (key == "job.event_log" || key == "job.metrics" || key == "job.env") return "none";
  return "";
}

}  // namespace

Result<Config> LoadConfig(const Invocation& invocation) {
  Config config(KnownKeys());
  for (const ConfigEntry& flag : invocation.flags) RETURN_IF_ERROR(config.Set(ConfigLayer::kFlag, flag));
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  RETURN_IF_ERROR(CheckVariables(environment));
  RETURN_IF_ERROR(config.SetFromEnvironment(environment));
  RETURN_IF_ERROR(SetShortNames(&config));  // they win over ROPEWALK_SECTION__KEY, as in a job
  std::string file = invocation.config_file;
  if (file.empty() && access((HomeFolder() + "/config.toml").c_str(), F_OK) == 0) file = HomeFolder() + "/config.toml";
  if (!file.empty()) {
    auto entries = storage::ReadTomlFile(file);
    if (!entries.ok()) return entries.status();
    for (const ConfigEntry& entry : *entries) RETURN_IF_ERROR(config.Set(ConfigLayer::kFile, entry));
  }
  return config;
}

Status CheckSlots(const Config& config, const std::string& key) {
  if (!config.IsSet(key)) return {};
  std::uint64_t slots = config.Number(key);
  if (slots >= 1 && slots <= 1024) return {};
  return Status(Code::kInvalid, "SPEC02", key + " " + std::to_string(slots) + " is not possible", "a worker runs so many tasks at a time",
                "give 1 to 1024, or leave it out");
}

Status CheckMemory(const Config& config, const std::string& key) {
  std::uint64_t bytes = config.Number(key);
  if (bytes == 0 || bytes >= job::kMemoryBytesLeast) return {};
  return Status(Code::kInvalid, "SPEC02", key + " " + config.Text(key) + " is not possible", "a single task needs more",
                "give 16M or more, or leave it out");
}

std::string TokenFile(const Config& config, const std::string& section) {
  const std::string& given = config.Text(section + ".token_file");
  return given.empty() ? DefaultTokenFile() : given;
}

std::string StateFolder(const Config& config, const std::string& section) {
  const std::string& given = config.Text(section + ".dir");
  return given.empty() ? HomeFolder() + "/" + section : given;
}

std::vector<ConfigEntry> ShownConfig(const Config& config) {
  std::vector<ConfigEntry> entries = config.Show();
  for (ConfigEntry& entry : entries) {
    bool says_nothing = entry.value.empty() || (entry.value == "0" && entry.name != "dev.port" && entry.name != "worker.drain_timeout" &&
                                                entry.name != "worker.executor_silence");
    if (!says_nothing) continue;
    if (std::string filled = Filled(config, entry.name); !filled.empty()) entry.value = std::move(filled);
  }
  for (const KnownVariable& variable : KnownVariables()) {
    if (std::string(variable.name) != "ROPEWALK_HOME") continue;  // no key, since it says where the file of the keys lies
    bool given = HomeFolder() == std::string(std::getenv(variable.name) != nullptr ? std::getenv(variable.name) : "");
    entries.push_back({variable.name, HomeFolder(), given ? std::string("environment ") + variable.name : "default"});
  }
  return entries;
}

std::vector<std::pair<std::string, std::string>> JobVariables(const Config& config) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const KnownVariable& variable : KnownVariables()) {
    std::string key = variable.key;
    if (!key.starts_with("job.") || !config.IsSet(key)) continue;
    const std::string& value = config.Text(key);
    if (!value.empty() && value != "0") variables.emplace_back(variable.name, value);
  }
  return variables;
}

}  // namespace ropewalk::cli
