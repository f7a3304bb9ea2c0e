#include "mlrunner/train/arguments.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "job/options.h"
#include "mlrunner/train/family.h"
#include "storage/file_system.h"
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
  flags.insert(flags.end(), {"--data", "--export", "--ranks", "--set", "--help"});
  const std::string near = NearestName(flag, flags), what = "unknown flag \"" + EscapeForLog(flag, 100) + "\"";
  const std::string why = fmt::format("it takes {}", fmt::join(flags, ", "));
  return near.empty() ? Bad(what, why) : Bad(what, why, "did you mean \"" + near + "\"?");
}

// What `--data` means: a family of data, or what lies there, by its name or its files. Of other names data.kind says it.
std::map<std::string, std::string> DataSettings(const std::string& value, const std::string& folder) {
  if (FindDataFamily(value) != nullptr) return {{"data.kind", value}};
  std::map<std::string, std::string> settings = {{"data.path", value}};
  const auto ends = [&](std::string_view ending) {
    return value.ends_with(ending) || value.ends_with(std::string(ending) + ".gz") || value.ends_with(std::string(ending) + ".zst");
  };
  const std::string path = value.starts_with('/') ? value : folder + "/" + value;
  storage::LocalFileSystem files;
  std::vector<std::string> names;
  if (ends(".csv")) {
    settings["data.kind"] = "csv";
  } else if (ends(".txt")) {
    settings["data.kind"] = "text";
  } else if (files.List(path, &names) == 0) {
    const bool is_idx = std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.find("-idx") != name.npos; });
    settings["data.kind"] = is_idx ? "fashion-mnist" : "image-folder";
  }
  return settings;
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
  std::vector<Setting> settings, shorts;
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
    if (flag == "--set" || flag == "--ranks" || flag == "--data" || flag == "--export") {
      if (!attached && i + 1 >= args.size()) return Bad(flag + " needs a value", "it is the last argument");
      std::string value = attached ? arg.substr(equals + 1) : args[++i];
      if (flag == "--set") {
        settings.push_back({value, "flag --set"});
      } else if (flag == "--data") {
        for (const auto& [key, text] : DataSettings(value, folder)) shorts.push_back({key + "=" + text, "flag --data"});
      } else {
        settings.push_back(flag == "--ranks" ? Setting{"train.ranks=" + value, "flag --ranks"}
                                             : Setting{"train.export=" + value, "flag --export"});
      }
    } else if (arg.starts_with('-')) {
      return BadFlag(flag);
    } else if (arg.ends_with(".onnx")) {
      shorts.push_back({"model.kind=onnx", "the command line"});
      shorts.push_back({"model.path=" + arg, "the command line"});
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
  } else if (settings.empty() && shorts.empty()) {
    return Bad("which job?", "no job file is named", "ropewalk train JOB.toml; examples/train has some");
  }
  settings.insert(settings.begin(), shorts.begin(), shorts.end());  // --set wins over what they mean
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
      "       ropewalk train MODEL.onnx --data PATH|KIND [--export FILE] [--ranks N] [--set section.key=value]...\n"
      "Trains a model: on this machine, or, with --master, on the workers of a cluster.\n"
      "`ropewalk train torch --help`: a program that was written for torchrun.\n\n"
      "  --ranks N          processes that train together (train.ranks)\n"
      "  --data PATH|KIND   what is learnt from (data.path, or data.kind); of *.csv, *.txt and folders of pictures or IDX files the kind, "
      "too\n"
      "  --export FILE      FILE.onnx or FILE.safetensors gets what was trained (train.export)\n"
      "  --set KEY=VALUE    a value of the job file, like --set optimizer.learning_rate=0.01\n"
      "  --master, --token-file, --detach, --name   as with `ropewalk submit`\n\n"
      "Keys of the job file, and their defaults:\n";
  for (const ConfigKey& key : TrainKeys())
    text += fmt::format("  {:<26} {:<14} {}\n", key.name, key.fallback.empty() ? "\"\"" : key.fallback, key.help);
  return text;
}

}  // namespace ropewalk::mlrunner
