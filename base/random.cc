#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace ropewalk {

std::string SecureRandomBytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t done = 0; done < count;) {
    ssize_t n = getrandom(bytes.data() + done, count - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) std::abort();  // a machine without random bytes must not hand out guessable tokens
    done += static_cast<std::size_t>(n);
  }
  return bytes;
}

}  // namespace ropewalk
