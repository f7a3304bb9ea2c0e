#include "mlrunner/train/arguments.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "job/options.h"
#include "storage/toml_file.h"

namespace ropewalk::mlrunner {
namespace {

Status Bad(const std::string& what, const std::string& why, const std::string& fix = "`ropewalk train --help` shows how it is called") {
  return Status(Code::kInvalid, "TRAIN03", "train: " + what, why, fix);
}

// A flag of jobs that would be taken and change nothing.
bool MeansNothing(const std::string& flag) {
  return flag == "--threads" || flag == "--memory" || flag == "--partitions" || flag == "--verify";
}

Status BadFlag(const std::string& flag) {
  std::vector<std::string> flags = job::OptionFlags();
  std::erase_if(flags, MeansNothing);
  flags.insert(flags.end(), {"--ranks", "--set", "--help"});
  const std::string near = NearestName(flag, flags), what = "unknown flag \"" + EscapeForLog(flag, 100) + "\"";
  const std::string why = fmt::format("it takes {}", fmt::join(flags, ", "));
  return near.empty() ? Bad(what, why) : Bad(what, why, "did you mean \"" + near + "\"?");
}

// A path in the job means the same in every process.
Status MakeAbsolute(Config* config, const std::string& key, const std::string& folder) {
  const std::string& path = config->Text(key);
  if (path.empty() || path[0] == '/') return {};
  return config->Set(ConfigLayer::kFlag, {key, folder + "/" + path, config->Origin(key)});
}

}  // namespace

Result<TrainArguments> ParseTrainArguments(const std::vector<std::string>& args, const std::string& folder) {
  TrainArguments arguments;
  std::string file;
  struct Setting {
    std::string text;
    const char* origin;
  };
  std::vector<Setting> settings;
  arguments.argv.push_back(args.empty() ? "ropewalk train" : args[0]);
  for (std::size_t i = 1; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::size_t equals = arg.find('=');
    const std::string flag = arg.starts_with("--") ? arg.substr(0, equals) : arg;
    const bool attached = arg.starts_with("--") && equals != std::string::npos;
    if (arg == "--help" || arg == "-h") return arguments.help = true, arguments;
    if (MeansNothing(flag))
      return Bad("it takes no " + flag, "it is for the tasks of batch jobs, and a training is one gang of ranks",
                 flag == "--threads" ? "--set train.threads=N: the threads of each rank" : "leave it out");
    if (job::PassOption(args, &i, &arguments.argv)) continue;
    if (flag == "--set" || flag == "--ranks") {
      if (!attached && i + 1 >= args.size()) return Bad(flag + " needs a value", "it is the last argument");
      std::string value = attached ? arg.substr(equals + 1) : args[++i];
      settings.push_back(flag == "--set" ? Setting{value, "flag --set"} : Setting{"train.ranks=" + value, "flag --ranks"});
    } else if (arg.starts_with('-')) {
      return BadFlag(flag);
    } else if (file.empty()) {
      file = arg;
    } else {
      return Bad("two job files, \"" + EscapeForLog(file, 200) + "\" and \"" + EscapeForLog(arg, 200) + "\"", "a training has one");
    }
  }
  Config config(TrainKeys(), "docs/training.md lists all keys");
  if (!file.empty()) {
    ASSIGN_OR_RETURN(std::vector<ConfigEntry> entries, storage::ReadTomlFile(file));
    for (const ConfigEntry& entry : entries) RETURN_IF_ERROR(config.Set(ConfigLayer::kFile, entry));
  } else if (settings.empty()) {
    return Bad("which job?", "no job file is named", "ropewalk train JOB.toml; examples/train has some");
  }
  for (const Setting& setting : settings) RETURN_IF_ERROR(ApplySetting(&config, setting.text, setting.origin));
  DropOverruled(&config);
  for (const std::string& key : PathKeys()) RETURN_IF_ERROR(MakeAbsolute(&config, key, folder));
  ASSIGN_OR_RETURN(arguments.job, ReadTrainJob(config));
  for (std::string& setting : AsSettings(config)) arguments.argv.push_back("--set=" + setting);
  // An empty list says that there is a job, of defaults only.
  if (AsSettings(config).empty()) arguments.argv.push_back("--set=train.ranks=" + config.Text("train.ranks"));
  return arguments;
}

std::string TrainUsage() {
  std::string text =
      "usage: ropewalk train JOB.toml [--ranks N] [--set section.key=value]... [--master HOST:PORT]\n"
      "Trains a model: on this machine, or, with --master, on the workers of a cluster.\n"
      "`ropewalk train torch --help`: a program that was written for torchrun.\n\n"
      "  --ranks N          processes that train together (train.ranks)\n"
      "  --set KEY=VALUE    a value of the job file, like --set optimizer.learning_rate=0.01\n"
      "  --master, --token-file, --detach, --name   as with `ropewalk submit`\n\n"
      "Keys of the job file, and their defaults:\n";
  for (const ConfigKey& key : TrainKeys())
    text += fmt::format("  {:<26} {:<14} {}\n", key.name, key.fallback.empty() ? "\"\"" : key.fallback, key.help);
  return text;
}

}  // namespace ropewalk::mlrunner
