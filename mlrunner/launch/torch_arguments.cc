#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "job/options.h"
#include "mlrunner/launch/torch.h"

namespace ropewalk::launch {
namespace {

constexpr std::int32_t kRanksMax = 256;

Status Bad(const std::string& what, const std::string& why,
           const std::string& fix = "`ropewalk train torch --help` shows how it is called") {
  return Status(Code::kInvalid, "LAUNCH02", "train torch: " + what, why, fix);
}

std::optional<std::int64_t> NumberIn(const std::string& text, std::int64_t low, std::int64_t high) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) return {};
  return number;
}

}  // namespace

Result<TorchArguments> ParseTorchArguments(const std::vector<std::string>& args, const std::string& folder) {
  TorchArguments arguments;
  TorchJob& job = arguments.job;
  job.folder = folder;
  arguments.argv = {args.at(0), "torch"};
  struct Number {
    const char* flag;
    std::int64_t low, high, value;
    bool is_set = false;
  };
  Number numbers[] = {
      {"--ranks", 1, kRanksMax, 1}, {"--ranks-min", 0, kRanksMax, 0}, {"--shrink-after", 0, 86400, 5}, {"--restarts", 0, 1000, 0}};
  std::size_t i = 2;
  for (; i < args.size() && args[i] != "--"; ++i) {
    const std::string& arg = args[i];
    const std::size_t equals = arg.find('=');
    const std::string flag = arg.starts_with("--") ? arg.substr(0, equals) : arg;
    if (arg == "--help" || arg == "-h") return arguments.help = true, arguments;
    if (job::PassOption(args, &i, &arguments.argv)) continue;
    Number* number = std::find_if(std::begin(numbers), std::end(numbers), [&](const Number& known) { return flag == known.flag; });
    if (number == std::end(numbers) && flag != "--logs" && flag != "--folder") {
      if (!arg.starts_with('-'))
        return Bad("what is \"" + EscapeForLog(arg, 200) + "\"?", "the program and its arguments follow a \"--\"",
                   "ropewalk train torch --ranks 2 -- python3 train.py");
      std::vector<std::string> flags = {"--ranks", "--ranks-min", "--shrink-after", "--restarts", "--folder", "--logs", "--help"};
      for (const std::string& other : job::OptionFlags()) flags.push_back(other);
      const std::string near = NearestName(flag, flags), what = "unknown flag \"" + EscapeForLog(flag, 100) + "\"";
      const std::string why = fmt::format("it takes {}", fmt::join(flags, ", "));
      return near.empty() ? Bad(what, why) : Bad(what, why, "did you mean \"" + near + "\"?");
    }
    if (equals == std::string::npos && i + 1 >= args.size()) return Bad(flag + " needs a value", "it is the last argument");
    const std::string value = equals != std::string::npos ? arg.substr(equals + 1) : args[++i];
    if (number == std::end(numbers)) {
      std::string& path = flag == "--logs" ? job.logs : job.folder;
      if (value.empty()) return Bad(flag + " names no folder", "its value is empty");
      path = value[0] == '/' ? value : folder + "/" + value;
      continue;
    }
    const std::optional<std::int64_t> read = NumberIn(value, number->low, number->high);
    if (!read)
      return Bad(fmt::format("\"{}\" is no value for {}", EscapeForLog(value, 100), flag),
                 fmt::format("it lies in [{}, {}]", number->low, number->high), "mend the value");
    number->value = *read;
    number->is_set = true;
  }
  job.ranks = static_cast<std::int32_t>(numbers[0].value);
  job.ranks_min = static_cast<std::int32_t>(numbers[1].value);
  job.shrink_after = numbers[2].value;
  job.restarts_max = static_cast<std::uint32_t>(numbers[3].value);
  if (job.ranks_min > job.ranks)
    return Bad(fmt::format("--ranks-min {} is more than --ranks {}", job.ranks_min, job.ranks), "it is the number that they may shrink to");
  if (numbers[2].is_set && job.ranks_min == 0)
    return Bad("--shrink-after means nothing", "all ranks are needed", "name --ranks-min, or take it out");
  if (i < args.size()) job.program.assign(args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
  if (job.program.empty() || job.program[0].empty())
    return Bad("which program?", "none follows a \"--\"", "ropewalk train torch --ranks 2 -- python3 train.py");
  if (job.program[0].find('/') != std::string::npos && job.program[0][0] != '/') job.program[0] = folder + "/" + job.program[0];
  for (const Number& number : numbers) arguments.argv.push_back(fmt::format("{}={}", number.flag, number.value));
  if (job.ranks_min == 0) std::erase_if(arguments.argv, [](const std::string& arg) { return arg.starts_with("--shrink-after="); });
  arguments.argv.push_back("--folder=" + job.folder);
  if (!job.logs.empty()) arguments.argv.push_back("--logs=" + job.logs);
  arguments.argv.push_back("--");
  arguments.argv.insert(arguments.argv.end(), job.program.begin(), job.program.end());
  return arguments;
}

std::string TorchUsage() {
  return "usage: ropewalk train torch [--ranks N] [--ranks-min M] [--restarts R] [--logs FOLDER] [--master HOST:PORT] -- PROGRAM ARGS...\n"
         "Runs a program that was written for torchrun, once for each rank: all ranks start together or none does.\n\n"
         "  --ranks N          programs that train together (WORLD_SIZE)\n"
         "  --ranks-min M      go on with fewer, so many at least, where there is no room for all\n"
         "  --shrink-after S   seconds to wait for room for all before that (5)\n"
         "  --restarts R       start all anew so many times when one fails (0)\n"
         "  --folder FOLDER    where the programs start, on each machine (the folder where the command is typed)\n"
         "  --logs FOLDER      write what each rank prints into FOLDER/rank-RANK.FORMING\n"
         "  --master, --token-file, --detach, --name   as with `ropewalk submit`\n\n"
         "Each program gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and the other variables\n"
         "that torchrun sets. It may write the step of a checkpoint into the file that $ROPEWALK_REACHED_FILE names: restarts count from "
         "there\n"
         "on, and a gang of fewer ranks takes in more then when there is room.\n";
}

}  // namespace ropewalk::launch
