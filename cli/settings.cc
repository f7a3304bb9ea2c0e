#include "cli/settings.h"

#include <unistd.h>

#include <cstdlib>

#include "base/home_folder.h"
#include "cli/toml_file.h"

extern char** environ;

namespace ropewalk::cli {
namespace {

std::vector<ConfigKey> Keys() {
  using enum ConfigType;
  return {
      {"client.master", kText, "127.0.0.1:7077", "the master that jobs are sent to"},
      {"client.token_file", kText, "", "the cluster's token"},
      {"master.listen", kText, "127.0.0.1:7077", "loopback only, as long as there is no TLS"},
      {"master.dir", kText, "", "journal, artifacts and logs"},
      {"master.token_file", kText, "", "written with mode 0600 when missing"},
      {"worker.join", kText, "127.0.0.1:7077", "the master"},
      {"worker.token_file", kText, "", "the cluster's token"},
      {"worker.listen", kText, "127.0.0.1:0", "where other workers read blocks"},
      {"worker.dir", kText, "", "spilled blocks, artifacts, logs"},
      {"worker.slots", kNumber, "0", "tasks at a time; 0: all cores"},
      {"worker.memory", kBytes, "0", "for shuffled data; 0: the daemon's choice"},
      {"worker.name", kText, "", "in lists and logs; empty: the host's name"},
      {"worker.drain_timeout", kNumber, "60", "seconds that SIGTERM waits for running tasks and for jobs that need what lies here"},
      {"dev.dir", kText, "", "state of master and workers, and the token"},
      {"dev.port", kNumber, "7077", "of the master; 0: any free one"},
      {"dev.workers", kNumber, "1", "worker daemons"},
      {"dev.slots", kNumber, "0", "of each worker; 0: all cores, shared among the workers"},
      {"dev.memory", kBytes, "0", "of each worker; 0: the daemon's choice"},
  };
}

// The short names that jobs know as well.
Status SetShortNames(Config* config) {
  struct Short {
    const char* variable;
    const char* key;
  };
  for (const Short& s : {Short{"ROPEWALK_MASTER", "client.master"},
                         {"ROPEWALK_TOKEN_FILE", "client.token_file"},
                         {"ROPEWALK_TOKEN_FILE", "master.token_file"},
                         {"ROPEWALK_TOKEN_FILE", "worker.token_file"}}) {
    const char* value = std::getenv(s.variable);
    if (value == nullptr || *value == '\0') continue;
    RETURN_IF_ERROR(config->Set(ConfigLayer::kEnvironment, {s.key, value, std::string("environment ") + s.variable}));
  }
  return {};
}

}  // namespace

Result<Config> LoadConfig(const Invocation& invocation) {
  Config config(Keys());
  for (const ConfigEntry& flag : invocation.flags) RETURN_IF_ERROR(config.Set(ConfigLayer::kFlag, flag));
  RETURN_IF_ERROR(SetShortNames(&config));
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  RETURN_IF_ERROR(config.SetFromEnvironment(environment));
  std::string file = invocation.config_file;
  if (file.empty() && access((HomeFolder() + "/config.toml").c_str(), F_OK) == 0) file = HomeFolder() + "/config.toml";
  if (!file.empty()) {
    auto entries = ReadTomlFile(file);
    if (!entries.ok()) return entries.status();
    for (const ConfigEntry& entry : *entries) RETURN_IF_ERROR(config.Set(ConfigLayer::kFile, entry));
  }
  return config;
}

std::string TokenFile(const Config& config, const std::string& section) {
  const std::string& given = config.Text(section + ".token_file");
  return given.empty() ? DefaultTokenFile() : given;
}

std::string StateFolder(const Config& config, const std::string& section) {
  const std::string& given = config.Text(section + ".dir");
  return given.empty() ? HomeFolder() + "/" + section : given;
}

}  // namespace ropewalk::cli
