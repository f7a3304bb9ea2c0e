#include "cli/launch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/nearest.h"
#include "cli/settings.h"
#include "job/client/job_marker.h"
#include "job/options.h"
#include "storage/io_error.h"

namespace ropewalk::cli {
namespace {

using storage::QuotedPath;

const std::vector<std::string>& BuiltIns() {
  static const std::vector<std::string> names = {"wordcount", "sort", "grep"};
  return names;
}

enum class Where { kBoth, kSubmit, kRun };  // which of the verbs takes the flag
struct LaunchFlag {
  const char* flag;
  const char* variable;
  bool has_value;
  Where where = Where::kBoth;
  bool for_tasks = false;  // changes nothing where all is one gang of ranks
};
constexpr LaunchFlag kFlags[] = {
    {"--master", "ROPEWALK_MASTER", true, Where::kSubmit},
    {"--token-file", "ROPEWALK_TOKEN_FILE", true, Where::kSubmit},
    {"--detach", "ROPEWALK_DETACH", false, Where::kSubmit},
    {"--name", "ROPEWALK_NAME", true},
    {"--threads", "ROPEWALK_THREADS", true, Where::kRun, true},
    {"--memory", "ROPEWALK_MEMORY", true, Where::kRun, true},
    {"--partitions", "ROPEWALK_PARTITIONS", true, Where::kBoth, true},
    {"--verify", "ROPEWALK_VERIFY", true, Where::kBoth, true},
    {"--output", "ROPEWALK_OUTPUT", true},
    {"--quiet", "ROPEWALK_QUIET", false},
    {"-q", "ROPEWALK_QUIET", false},
};
const LaunchFlag* FindFlag(const std::string& flag) {
  auto found = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const LaunchFlag& f) { return flag == f.flag; });
  return found == std::end(kFlags) ? nullptr : found;
}

// The verbs that start a program of their own, in this process unless a flag names a master.
struct GangVerb {
  const char* verb;
  const char* program;
  const char* what;                // for people
  const char* instead_of_threads;  // what to do
};
constexpr GangVerb kGangVerbs[] = {
    {"train", "ropewalk-train", "a training", "--set train.threads=N: the threads of each rank"},
    {"bench collective", "ropewalk-bench", "a bench", "leave it out"},
};
const GangVerb* FindGangVerb(const std::string& verb) {
  auto found = std::find_if(std::begin(kGangVerbs), std::end(kGangVerbs), [&](const GangVerb& known) { return verb == known.verb; });
  return found == std::end(kGangVerbs) ? nullptr : found;
}

// Before the job's name and after it a flag of the other verb is refused alike.
Status CheckVerb(const std::string& self, const LaunchFlag& flag, bool cluster) {
  const GangVerb* gang = FindGangVerb(self.substr(self.find(' ') + 1));
  if (gang != nullptr && flag.for_tasks)
    return Status(Code::kInvalid, "CLI02", self + " takes no " + flag.flag,
                  std::string("it is for the tasks of batch jobs, and ") + gang->what + " is one gang of ranks",
                  std::string(flag.flag) == "--threads" ? gang->instead_of_threads : "leave it out");
  if (flag.where == Where::kBoth || (flag.where == Where::kSubmit) == cluster) return {};
  if (cluster)
    return Status(Code::kInvalid, "CLI02", self + " takes no " + flag.flag,
                  "it is for jobs in one process; on a cluster the workers have slots and memory of their own",
                  gang != nullptr ? "leave it out, or leave out --master" : "leave it out, or use `ropewalk run`");
  return Status(Code::kInvalid, "CLI02", self + " takes no " + flag.flag, "it runs the job in this process, without a master",
                gang != nullptr ? "leave it out, or name one: --master HOST:PORT" : "leave it out, or use `ropewalk submit`");
}

// What the job would refuse in the environment is refused here, by the name that was typed.
Status CheckValues(const std::string& self, const std::vector<std::pair<std::string, std::string>>& environment, bool cluster) {
  for (const auto& [variable, value] : environment) {
    auto flag = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const LaunchFlag& f) { return variable == f.variable; });
    if (flag == std::end(kFlags)) continue;
    RETURN_IF_ERROR(CheckVerb(self, *flag, cluster));
    std::vector<std::string> args = {"job", std::string(flag->flag) + (flag->has_value ? "=" + value : "")};
    RETURN_IF_ERROR(job::TakeOptions(&args, [](const char*) { return nullptr; }).status());
  }
  return {};
}

// Takes our flags out of what follows the job's name, up to a "--". Every launch flag may stand there as well as before the name.
Status TakeFlags(const std::string& self, std::vector<std::string>* args, std::vector<std::pair<std::string, std::string>>* environment) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < args->size(); ++i) {
    const std::string& arg = (*args)[i];
    if (arg == "--") {
      kept.insert(kept.end(), args->begin() + static_cast<std::ptrdiff_t>(i), args->end());
      break;
    }
    std::string flag = arg.substr(0, arg.find('='));
    const LaunchFlag* known = FindFlag(flag);
    bool attached = flag.size() < arg.size();
    if (known == nullptr || (attached && !known->has_value)) {
      kept.push_back(arg);
      continue;
    }
    std::string value = "1";
    if (known->has_value && !attached && i + 1 >= args->size())
      return Status(Code::kInvalid, "CLI02", flag + " needs a value", "it is the last argument", "give it one");
    if (known->has_value) value = attached ? arg.substr(flag.size() + 1) : (*args)[i + 1];
    if (job::OutputForm form; flag == "--output" && !ParseOutputForm(value, &form))
      return Status(Code::kInvalid, "CLI02", self + ": --output takes table, json or jsonl, not " + QuotedPath(value),
                    "it says how results and errors are printed",
                    "the folder that a built-in job writes is -o OUT or --into OUT; what is for your own executable goes after \"--\"");
    if (known->has_value && !attached) ++i;
    environment->emplace_back(known->variable, value);
  }
  *args = std::move(kept);
  return {};
}

// One in the environment is for `submit`.
bool NamesMaster(const Invocation& invocation) {
  return std::any_of(invocation.flags.begin(), invocation.flags.end(),
                     [](const ConfigEntry& flag) { return flag.origin == "flag --master"; }) ||
         std::any_of(invocation.launch.begin(), invocation.launch.end(),
                     [](const std::string& arg) { return arg.substr(0, arg.find('=')) == "--master"; });
}

Status NoJob(const std::string& self) {
  return Status(Code::kInvalid, "CLI02", self + ": which job?", "none is named",
                "`" + self + " wordcount INPUT... -o OUT`, or the path of your executable");
}

bool IsFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

Status CheckExecutable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    int error = errno;
    std::string fix = "check the path";
    if (path.find('/') == std::string::npos) {
      std::string near = NearestName(path, BuiltIns());
      fix = near.empty() ? "there are wordcount, sort and grep; your own executable needs its path" : "did you mean \"" + near + "\"?";
    }
    Status why = storage::IoError(error, "", "");
    return Status(Code::kNotFound, "CLI03", "there is no job " + QuotedPath(path), "it is no built-in job, and as a path: " + why.why(),
                  fix);
  }
  if (S_ISDIR(info.st_mode))
    return Status(Code::kInvalid, "CLI04", QuotedPath(path) + " cannot be executed", "it is a folder", "name the executable in it");
  if (access(path.c_str(), X_OK) != 0)
    return Status(Code::kInvalid, "CLI04", QuotedPath(path) + " cannot be executed", storage::IoError(errno, "", "").why(),
                  "is it a job's executable? chmod +x it");
  return {};
}

}  // namespace

Result<Launch> PlanLaunch(const Invocation& invocation, const Config& config, const std::string& jobs_binary) {
  const bool gang = FindGangVerb(invocation.verb) != nullptr;
  const bool cluster = invocation.verb == "submit" || (gang && NamesMaster(invocation));
  const std::string self = "ropewalk " + invocation.verb;
  std::vector<std::string> args = invocation.launch;
  if (gang) args.insert(args.begin(), invocation.verb);
  if (args.empty()) return NoJob(self);
  std::string name = args.front();
  if (name.size() > 1 && name[0] == '-') {
    std::vector<std::string> flags = {"--help", "--config"};
    const std::string typed = name.substr(0, name.find('='));
    if (const LaunchFlag* flag = FindFlag(typed)) RETURN_IF_ERROR(CheckVerb(self, *flag, cluster));
    for (const LaunchFlag& flag : kFlags)
      if (CheckVerb(self, flag, cluster).ok()) flags.push_back(flag.flag);
    std::string near = NearestName(typed, flags);
    return Status(
        Code::kInvalid, "CLI01", self + ": unknown flag \"" + name + "\"", self + " has none of that name",
        near.empty() ? "`" + self + " --help` shows what it takes; a job's own flags follow its name" : "did you mean \"" + near + "\"?");
  }
  args.erase(args.begin());

  Launch launch;
  launch.environment = JobVariables(config);
  if (invocation.output != job::OutputForm::kTable || invocation.output_given) {
    const char* form = invocation.output == job::OutputForm::kTable  ? "table"
                       : invocation.output == job::OutputForm::kJson ? "json"
                                                                     : "jsonl";
    launch.environment.emplace_back("ROPEWALK_OUTPUT", form);
  }
  launch.environment.insert(launch.environment.end(), invocation.launch_environment.begin(), invocation.launch_environment.end());
  std::vector<std::pair<std::string, std::string>> after_name;
  RETURN_IF_ERROR(TakeFlags(self, &args, &after_name));
  RETURN_IF_ERROR(CheckValues(self, invocation.launch_environment, cluster));
  RETURN_IF_ERROR(CheckValues(self, after_name, cluster));
  if (cluster) {
    launch.environment.emplace_back("ROPEWALK_MASTER", config.Text("client.master"));
    launch.environment.emplace_back("ROPEWALK_TOKEN_FILE", TokenFile(config, "client"));
  } else {
    // A master in the environment is for `submit`: `run` is this process.
    for (const char* variable : {"ROPEWALK_MASTER", "ROPEWALK_DETACH"}) launch.environment.emplace_back(variable, "");
  }
  launch.environment.insert(launch.environment.end(), after_name.begin(), after_name.end());

  bool built_in = std::find(BuiltIns().begin(), BuiltIns().end(), name) != BuiltIns().end();
  if (gang) {
    launch.path = jobs_binary;
    launch.argv = {self};
  } else if (built_in) {
    launch.path = jobs_binary;
    launch.argv = {self, name};  // what the user typed is what help, `ps` and executors' command lines show
  } else {
    RETURN_IF_ERROR(CheckExecutable(name));
    launch.path = name.find('/') == std::string::npos ? "./" + name : name;
    RETURN_IF_ERROR(job::CheckIsJob(launch.path, self));
    launch.argv = {launch.path};
    // The "--" was for us. Init() would take flags of its own names out of what follows, so it stays where one of those follows it.
    auto border = std::find(args.begin(), args.end(), "--");
    const std::vector<std::string> taken = job::OptionFlags();
    bool needed = border != args.end() && std::any_of(border + 1, args.end(), [&](const std::string& arg) {
                    return std::find(taken.begin(), taken.end(), arg.substr(0, arg.find('='))) != taken.end();
                  });
    if (border != args.end() && !needed) args.erase(border);
  }
  launch.argv.insert(launch.argv.end(), args.begin(), args.end());
  return launch;
}

bool StartsJob(const std::string& verb) { return verb == "run" || verb == "submit" || FindGangVerb(verb) != nullptr; }

std::string ProgramOf(const std::string& verb) {
  const GangVerb* gang = FindGangVerb(verb);
  return gang == nullptr ? "ropewalk-jobs" : gang->program;
}

Result<std::string> FindJobsBinary(const std::string& name) {
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  std::string folder(self, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  for (const char* place : {"/", "/../libexec/ropewalk/"})
    if (IsFile(folder + place + name)) return folder + place + name;
  return Status(Code::kNotFound, "CLI05", "the built-in jobs are not installed",
                "no " + name + " in " + QuotedPath(folder) + " or ../libexec/ropewalk",
                "install the whole package, or build the target " + name);
}

Status Exec(const Launch& launch) {
  for (const auto& [variable, value] : launch.environment) {
    if (value.empty()) {
      unsetenv(variable.c_str());
    } else {
      setenv(variable.c_str(), value.c_str(), 1);
    }
  }
  std::vector<char*> argv;
  for (const std::string& arg : launch.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(launch.path.c_str(), argv.data());
  return Status(Code::kInvalid, "CLI04", QuotedPath(launch.path) + " cannot be executed", storage::IoError(errno, "", "").why(),
                "is it an executable for this machine?");
}

}  // namespace ropewalk::cli
