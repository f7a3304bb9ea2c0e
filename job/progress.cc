#include "job/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/escape.h"
#include "base/monotonic.h"

namespace ropewalk::job {
namespace {

constexpr std::int64_t kQuietMs = 300, kRedrawMs = 100;
constexpr std::int64_t kFirstLineMs = 2'000, kLineMs = 2'000, kSameLineMs = 30'000;

int Columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void WriteAll(const std::string& text) {
  // A terminal that is gone costs the progress line, not the job.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string HumanBytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1023.5 && unit < 5) bytes /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || bytes >= 99.95 ? "%.0f %s" : bytes >= 9.995 ? "%.1f %s" : "%.2f %s", bytes, units[unit]);
  return text;
}

std::string ProgressText(const ProgressState& state, std::int64_t elapsed_ms, int columns) {
  constexpr int kBar = 20;
  std::string text;
  if (state.tasks > 0) {
    std::uint64_t whole = std::uint64_t{state.tasks} * 1000;
    int full = static_cast<int>(kBar * std::min(std::uint64_t{state.done} * 1000 + state.running_permille, whole) / whole);
    text = "[" + std::string(full, '=') + (full < kBar ? ">" : "") + std::string(std::max(0, kBar - full - 1), ' ') + "] " +
           std::to_string(state.done) + "/" + std::to_string(state.tasks) + " ";
  }
  std::string tail;
  if (state.bytes_in > 0) {
    tail = "  " + HumanBytes(double(state.bytes_in));
    if (elapsed_ms > 0) tail += "  " + HumanBytes(double(state.bytes_in) * 1000 / double(elapsed_ms)) + "/s";
  }
  if (!state.note.empty()) tail += "  " + EscapeForLog(state.note, 200);
  std::string name = EscapeForLog(state.name, 200);
  int room = columns - 1 - static_cast<int>(text.size() + tail.size());
  if (static_cast<int>(name.size()) > room) name.resize(std::max(0, room));
  text += name + tail;
  if (static_cast<int>(text.size()) > columns - 1) text.resize(std::max(0, columns - 1));
  return text;
}

std::string ProgressLogText(const ProgressState& state) {
  std::string text;
  if (state.tasks > 0) text = std::to_string(state.done) + "/" + std::to_string(state.tasks) + " tasks";
  if (!state.name.empty()) text += (text.empty() ? "" : ", ") + EscapeForLog(state.name, 200);
  if (state.bytes_in > 0) text += "  " + HumanBytes(double(state.bytes_in));
  if (!state.note.empty()) text += "  " + EscapeForLog(state.note, 200);
  return text;
}

bool ProgressPace::IsDue(const std::string& action, std::int64_t now_ms) {
  if (began_ms_ < 0) began_ms_ = now_ms;
  if (now_ms - began_ms_ < kFirstLineMs) return false;
  if (told_ms_ >= 0 && now_ms - told_ms_ < (action == told_ ? kSameLineMs : kLineMs)) return false;
  told_ = action;
  told_ms_ = now_ms;
  return true;
}

void ProgressLines::Show(const ProgressState& state) {
  const std::string text = ProgressLogText(state);
  if (text.empty() || isatty(STDERR_FILENO) == 1 || !pace_.IsDue(state.name, MonotonicMs())) return;
  WriteAll(prefix_ + text + "\n");
}

ProgressLine::ProgressLine() : started_ms_(MonotonicMs()) {
  const char* term = std::getenv("TERM");
  enabled_ = isatty(STDERR_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

ProgressLine::~ProgressLine() { Erase(); }

void ProgressLine::Show(const ProgressState& state) {
  std::int64_t now_ms = MonotonicMs();
  if (!enabled_ || now_ms - started_ms_ < kQuietMs || now_ms - drawn_ms_ < kRedrawMs) return;
  drawn_ms_ = now_ms;
  drawn_ = true;
  WriteAll("\r" + ProgressText(state, now_ms - started_ms_, Columns()) + "\x1b[K");
}

void ProgressLine::Erase() {
  if (!drawn_) return;
  drawn_ = false;
  WriteAll("\r\x1b[K");
}

}  // namespace ropewalk::job
