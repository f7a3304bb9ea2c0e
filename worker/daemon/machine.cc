#include "worker/daemon/machine.h"

#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "base/escape.h"

namespace ropewalk::worker {

std::string GlibcVersion() { return ::gnu_get_libc_version(); }

std::string CpuLevel() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  auto has = [](auto... supported) { return (supported && ...); };
  bool v2 = has(__builtin_cpu_supports("sse3"), __builtin_cpu_supports("ssse3"), __builtin_cpu_supports("sse4.1"),
                __builtin_cpu_supports("sse4.2"), __builtin_cpu_supports("popcnt"));
  bool v3 = v2 && has(__builtin_cpu_supports("avx"), __builtin_cpu_supports("avx2"), __builtin_cpu_supports("bmi"),
                      __builtin_cpu_supports("bmi2"), __builtin_cpu_supports("fma"));
  bool v4 = v3 && has(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"), __builtin_cpu_supports("avx512cd"),
                      __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl"));
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : v2 ? "x86-64-v2" : "x86-64-v1";
#else
  return "";
#endif
}

std::uint64_t MachineMemoryBytes() {
  long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 4ull << 30;
}

Result<JobUser> FindUser(const std::string& name) {
  passwd entry{}, *found = nullptr;
  std::string buffer(16 << 10, '\0');
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return JobUser{entry.pw_uid, entry.pw_gid};
  return Status(Code::kUserError, "WORKER34", "there is no user " + EscapeForLog(name), error == 0 ? "" : std::strerror(error),
                "make one, or mend worker.job_user");
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "worker";
}

void RaiseFileLimit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &files);  // with fewer descriptors more segments spill
}

}  // namespace ropewalk::worker
