#include "job/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/home_folder.h"
#include "base/known_names.h"

namespace ropewalk::job {
namespace {

Status Refuse(const std::string& source, const std::string& value, const std::string& accepts) {
  return Status(Code::kInvalid, "CFG01", source + ": \"" + value + "\" cannot be used", "it takes " + accepts, "mend the value");
}

Status ParseCount(const std::string& source, const std::string& text, std::uint32_t max, std::uint32_t* out) {
  std::uint32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > max) {
    return Refuse(source, text, "a number from 1 to " + std::to_string(max));
  }
  *out = value;
  return Status();
}

Status ParseSwitch(const std::string& source, const std::string& text, bool* out) {
  if (text == "on" || text == "1" || text == "true" || text == "yes") {
    *out = true;
  } else if (text == "off" || text == "0" || text == "false" || text == "no") {
    *out = false;
  } else {
    return Refuse(source, text, "on or off");
  }
  return Status();
}

// One setting, from wherever it came; `source` is the flag or variable as the user knows it.
struct Setting {
  const char* flag;  // nullptr: no flag
  const char* variable;
  const char* long_variable;  // of its configuration key; nullptr: it has none that a job reads
  bool needs_value;
  Status (*apply)(const std::string& source, const std::string& text, JobOptions* options);
};

constexpr std::uint32_t kThreadsMax = 1024, kPartitionsMax = 100'000;
constexpr std::uint64_t kOperatorBytesLeast = 64u << 10;

const Setting kSettings[] = {
    {"--master", "ROPEWALK_MASTER", nullptr, true,
     [](const std::string& source, const std::string& text, JobOptions* o) {
       if (text.find(':') == std::string::npos) return Refuse(source, text, "HOST:PORT");
       o->master = text;
       return Status();
     }},
    {"--token-file", "ROPEWALK_TOKEN_FILE", nullptr, true,
     [](const std::string&, const std::string& text, JobOptions* o) { return o->token_file = text, Status(); }},
    {"--detach", "ROPEWALK_DETACH", "ROPEWALK_JOB__DETACH", false,
     [](const std::string& source, const std::string& text, JobOptions* o) { return ParseSwitch(source, text, &o->detach); }},
    {"--name", "ROPEWALK_NAME", "ROPEWALK_JOB__NAME", true,
     [](const std::string&, const std::string& text, JobOptions* o) { return o->name = text, Status(); }},
    {"--threads", "ROPEWALK_THREADS", "ROPEWALK_JOB__THREADS", true,
     [](const std::string& source, const std::string& text, JobOptions* o) { return ParseCount(source, text, kThreadsMax, &o->threads); }},
    {"--memory", "ROPEWALK_MEMORY", "ROPEWALK_JOB__MEMORY", true,
     [](const std::string& source, const std::string& text, JobOptions* o) {
       std::optional<std::uint64_t> bytes = ParseBytes(text);
       if (!bytes || *bytes < kMemoryBytesLeast) return Refuse(source, text, "bytes, as 512M or 4G, from 16M on: one task needs as much");
       o->memory_bytes = *bytes;
       return Status();
     }},
    {nullptr, "ROPEWALK_OPERATOR_MEMORY", "ROPEWALK_JOB__OPERATOR_MEMORY", true,
     [](const std::string& source, const std::string& text, JobOptions* o) {
       std::optional<std::uint64_t> bytes = ParseBytes(text);
       if (!bytes || *bytes < kOperatorBytesLeast) return Refuse(source, text, "bytes, as 16M, from 64K on");
       o->operator_bytes = *bytes;
       return Status();
     }},
    {"--partitions", "ROPEWALK_PARTITIONS", "ROPEWALK_JOB__PARTITIONS", true,
     [](const std::string& source, const std::string& text, JobOptions* o) {
       return ParseCount(source, text, kPartitionsMax, &o->partitions);
     }},
    {"--verify", "ROPEWALK_VERIFY", "ROPEWALK_JOB__VERIFY", true,
     [](const std::string& source, const std::string& text, JobOptions* o) { return ParseSwitch(source, text, &o->verify); }},
    {nullptr, "ROPEWALK_OUTPUT", "ROPEWALK_COMMAND__OUTPUT", true,
     [](const std::string& source, const std::string& text, JobOptions* o) {
       if (text != "table" && text != "json" && text != "jsonl") return Refuse(source, text, "table, json or jsonl");
       o->output = text == "table" ? OutputForm::kTable : text == "json" ? OutputForm::kJson : OutputForm::kJsonLines;
       return Status();
     }},
    // No flag: a program may have a --quiet of its own.
    {nullptr, "ROPEWALK_QUIET", "ROPEWALK_JOB__QUIET", true,
     [](const std::string& source, const std::string& text, JobOptions* o) { return ParseSwitch(source, text, &o->quiet); }},
    {nullptr, "ROPEWALK_EVENT_LOG", "ROPEWALK_JOB__EVENT_LOG", true,
     [](const std::string&, const std::string& text, JobOptions* o) { return o->event_log = text, Status(); }},
    {nullptr, "ROPEWALK_METRICS", "ROPEWALK_JOB__METRICS", true,
     [](const std::string&, const std::string& text, JobOptions* o) { return o->metrics = text, Status(); }},
    {nullptr, "ROPEWALK_ENV", "ROPEWALK_JOB__ENV", true,
     [](const std::string&, const std::string& text, JobOptions* o) {
       for (std::size_t at = 0; at < text.size();) {
         std::size_t comma = std::min(text.find(',', at), text.size());
         if (comma > at) o->environment_names.push_back(text.substr(at, comma - at));
         at = comma + 1;
       }
       return Status();
     }},
};

Status ReadEnvironment(const Setting& setting, const Getenv& environment, JobOptions* options) {
  for (const char* variable : {setting.variable, setting.long_variable}) {
    const char* value = variable == nullptr ? nullptr : environment(variable);
    if (value != nullptr && value[0] != 0) return setting.apply(variable, value, options);
  }
  return Status();
}

// Whose flag `arg` is, with a value attached or not; null: none of ours.
const Setting* SettingOf(std::string_view arg) {
  const std::string_view flag = arg.substr(0, arg.find('='));
  const Setting* found =
      std::find_if(std::begin(kSettings), std::end(kSettings), [&](const Setting& s) { return s.flag != nullptr && flag == s.flag; });
  return found == std::end(kSettings) ? nullptr : found;
}

const char* VariableHere(const char* name) { return std::getenv(name); }

}  // namespace

std::optional<std::uint64_t> ParseBytes(const std::string& text) {
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.ends_with("iB")) {
    unit.remove_suffix(2);
    if (unit.empty()) return std::nullopt;
  } else if (unit.ends_with("B")) {
    unit.remove_suffix(1);
  }
  if (unit.empty()) return value;
  static constexpr std::string_view kUnits = "KMGT";
  std::size_t power = kUnits.find(unit);
  if (unit.size() != 1 || power == std::string_view::npos) return std::nullopt;
  int shift = 10 * (static_cast<int>(power) + 1);
  if (value > (~0ull >> shift)) return std::nullopt;
  return value << shift;
}

std::vector<std::string> OptionFlags() {
  std::vector<std::string> flags;
  for (const Setting& setting : kSettings)
    if (setting.flag != nullptr) flags.emplace_back(setting.flag);
  return flags;
}

bool IsExecutor() { return std::getenv("ROPEWALK_EXECUTOR_FD") != nullptr; }

OutputForm FormOfErrors() { return EnvironmentOptions(VariableHere).output; }

Status CheckOptions(std::vector<std::string> args) {
  if (IsExecutor()) return {};
  RETURN_IF_ERROR(CheckVariables());
  return TakeOptions(&args, VariableHere).status();
}

bool PassOption(const std::vector<std::string>& args, std::size_t* at, std::vector<std::string>* passed) {
  const std::string& arg = args[*at];
  const Setting* setting = SettingOf(arg);
  if (setting == nullptr) return false;
  passed->push_back(arg);
  if (setting->needs_value && arg == setting->flag && *at + 1 < args.size()) passed->push_back(args[++*at]);
  return true;
}

JobOptions EnvironmentOptions(const Getenv& environment) {
  JobOptions options;
  for (const Setting& setting : kSettings) {
    [[maybe_unused]] Status refused = ReadEnvironment(setting, environment, &options);  // Init says it
  }
  return options;
}

Result<JobOptions> TakeOptions(std::vector<std::string>* args, const Getenv& environment) {
  JobOptions options;
  if (const char* fd = environment("ROPEWALK_EXECUTOR_FD"); fd != nullptr && fd[0] != 0) {
    options.executor_fd = std::atoi(fd);
    return options;
  }
  for (const Setting& setting : kSettings) RETURN_IF_ERROR(ReadEnvironment(setting, environment, &options));
  std::vector<std::string> kept;
  std::string embedded_flag;
  for (std::size_t i = 0; i < args->size(); ++i) {
    const std::string& arg = (*args)[i];
    if (i > 0 && arg == "--") {
      kept.insert(kept.end(), args->begin() + static_cast<std::ptrdiff_t>(i), args->end());
      break;
    }
    const Setting* setting = SettingOf(arg);
    if (i == 0 || setting == nullptr) {
      kept.push_back(arg);
      continue;
    }
    const std::string_view flag = setting->flag;
    std::string value = "on";
    if (flag.size() < arg.size()) {
      value = arg.substr(flag.size() + 1);
    } else if (setting->needs_value) {
      if (++i == args->size()) return Status(Code::kInvalid, "CFG01", arg + " needs a value", "it is the last argument", "give it one");
      value = (*args)[i];
    }
    RETURN_IF_ERROR(setting->apply(setting->flag, value, &options));
    if (flag == "--threads" || flag == "--memory") embedded_flag = flag;
  }
  if (!embedded_flag.empty() && !options.master.empty())
    return Status(Code::kInvalid, "CFG01", embedded_flag + " is for jobs that run in this process",
                  "on a cluster the workers have slots and memory of their own", "leave it out, or leave out the master");
  *args = std::move(kept);
  if (options.token_file.empty()) options.token_file = DefaultTokenFile();
  return options;
}

}  // namespace ropewalk::job
