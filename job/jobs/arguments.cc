#include "job/jobs/arguments.h"

#include <charconv>
#include <utility>

#include "base/nearest.h"
#include "job/options.h"

namespace ropewalk::jobs {
namespace {

Status Bad(const std::string& what, const std::string& why) {
  return Status(Code::kInvalid, "JOBS01", what, why, "`ropewalk run JOB --help` shows how wordcount, sort and grep are called");
}

Status Bad(const Arguments& a, const std::string& what, const std::string& why) {
  return Status(Code::kInvalid, "JOBS01", what, why, "`ropewalk run " + a.job + " --help` shows how it is called");
}

// Flags that the job takes, its own and those that Init takes out.
std::vector<std::string> FlagsOf(const std::string& job) {
  std::vector<std::string> flags = {"--output", "--input", "--overwrite", "--reducers", "--help"};
  if (job == "wordcount") flags.emplace_back("--top");
  if (job == "sort") flags.emplace_back("--reverse");
  for (std::string& flag : job::OptionFlags()) flags.push_back(std::move(flag));
  return flags;
}

// Walks the arguments; a flag's value is the next one or follows "=".
class Walker {
 public:
  explicit Walker(const std::vector<std::string>& args) : args_(args) {}

  bool Next() {
    if (++at_ >= args_.size()) return false;
    arg_ = args_[at_];
    value_.clear();
    has_value_ = false;
    if (!only_words_ && arg_.starts_with("--") && arg_.find('=') != std::string::npos) {
      value_ = arg_.substr(arg_.find('=') + 1);
      arg_.resize(arg_.find('='));
      has_value_ = true;
    }
    return true;
  }
  const std::string& arg() const { return arg_; }
  bool is_flag() const { return !only_words_ && arg_.size() > 1 && arg_[0] == '-'; }
  void OnlyWordsFromNow() { only_words_ = true; }

  Result<std::string> Text() {
    if (has_value_) return value_;
    if (at_ + 1 >= args_.size()) return Bad(arg_ + " needs a value", "it is the last argument");
    return args_[++at_];
  }
  Status Number(std::uint32_t max, std::uint32_t* out) {
    ASSIGN_OR_RETURN(std::string text, Text());
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    if (error == std::errc() && end == text.data() + text.size() && *out > 0 && *out <= max) return Status();
    return Bad(arg_ + " " + text, "it takes a number from 1 to " + std::to_string(max));
  }

 private:
  const std::vector<std::string>& args_;
  std::size_t at_ = 1;  // after the job's name
  std::string arg_, value_;
  bool has_value_ = false, only_words_ = false;
};

Status ParseFlag(Walker* walker, Arguments* a) {
  const std::string flag = walker->arg();
  if (flag == "--") return walker->OnlyWordsFromNow(), Status();
  if (flag == "-o" || flag == "--output") {
    ASSIGN_OR_RETURN(a->output, walker->Text());
    return Status();
  }
  if (flag == "-i" && a->job == "grep") return a->ignore_case = true, Status();
  if (flag == "-i" || flag == "--input") {
    ASSIGN_OR_RETURN(std::string input, walker->Text());
    a->inputs.push_back(std::move(input));
    return Status();
  }
  if (flag == "--overwrite") return a->overwrite = true, Status();
  if (flag == "--reducers") return walker->Number(100'000, &a->reducers);
  if (flag == "--top" && a->job == "wordcount") return walker->Number(10'000, &a->top);
  if (flag == "--reverse" && a->job == "sort") return a->reverse = true, Status();
  if (flag == "-E" && a->job == "grep") return a->regex = true, Status();
  std::string near = NearestName(flag, FlagsOf(a->job));
  if (!near.empty() && near != flag)
    return Status(Code::kInvalid, "JOBS01", a->job + ": unknown flag \"" + flag + "\"", "a name that begins with '-' goes after \"--\"",
                  "did you mean \"" + near + "\"?");
  return Bad(*a, a->job + ": unknown flag \"" + flag + "\"", "a name that begins with '-' goes after \"--\"");
}

}  // namespace

Result<Arguments> ParseArguments(const std::vector<std::string>& args) {
  Arguments a;
  if (args.size() < 2) return Bad("which job?", "there are wordcount, sort and grep");
  a.job = args[1];
  if (a.job == "help" || a.job == "--help" || a.job == "-h") return a.job = "help", a;
  if (a.job != "wordcount" && a.job != "sort" && a.job != "grep")
    return Bad("there is no built-in job " + a.job, "there are wordcount, sort and grep");
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (arg == "--help" || arg == "-h") {
      a.help_of = std::exchange(a.job, "help");
      return a;
    }
  }
  Walker walker(args);
  bool has_pattern = a.job != "grep";
  while (walker.Next()) {
    if (walker.is_flag()) {
      RETURN_IF_ERROR(ParseFlag(&walker, &a));
    } else if (!has_pattern) {
      a.pattern = walker.arg();
      has_pattern = true;
    } else {
      a.inputs.push_back(walker.arg());
    }
  }
  if (!has_pattern) return Bad(a, "grep for what?", "the pattern is missing");
  if (a.inputs.empty()) return Bad(a, a.job + " of what?", "no input is named");
  if (a.output.empty()) return Bad(a, a.job + " into what?", "-o OUT is missing");
  return a;
}

std::string Usage(const std::string& job, const std::string& program) {
  const std::string call = program.starts_with("ropewalk ") ? program : "ropewalk run";
  struct Job {
    const char *name, *arguments, *what, *flags;
  };
  static constexpr Job kJobs[] = {
      {"wordcount", " INPUT... -o OUT [--overwrite] [--reducers N] [--top N]", "Counts words: lines of WORD<TAB>COUNT.",
       "  --top N            also print the N commonest words\n"},
      {"sort", " INPUT... -o OUT [--overwrite] [--reducers N] [--reverse]", "Sorts lines by their bytes (LC_ALL=C).",
       "  --reverse          the largest first\n"},
      {"grep", " PATTERN INPUT... -o OUT [--overwrite] [-i] [-E]", "Keeps the lines that hold the pattern.",
       "  -i                 ignore case\n  -E                 PATTERN is a regular expression (RE2), not a text\n"},
  };
  std::string text, flags;
  for (const Job& each : kJobs) {
    if (!job.empty() && job != each.name) continue;
    text += (text.empty() ? "usage: " : "       ") + call + " " + each.name + each.arguments + "\n";
    if (!job.empty()) text += std::string(each.what) + "\n";
    if (!job.empty()) flags = each.flags;
  }
  return text + "\n" +
         "INPUT is a file, a folder or a pattern; .gz and .zst are read decompressed. OUT is a folder that appears whole.\n"
         "  -o, --output OUT   the folder to write\n"
         "  --overwrite        replace a folder that exists\n"
         "  --reducers N       parts of the output\n" +
         flags +
         "Of every job: --name TEXT, --partitions N, --verify=on|off; in this process --threads N and --memory BYTES; on a cluster\n"
         "(`ropewalk submit`) --master HOST:PORT, --token-file FILE and --detach.\n";
}

}  // namespace ropewalk::jobs
