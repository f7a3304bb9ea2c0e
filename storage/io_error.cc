#include "storage/io_error.h"

#include <cerrno>
#include <system_error>

#include "base/escape.h"

namespace ropewalk::storage {

std::string QuotedPath(std::string_view path) { return "\"" + EscapeForLog(path) + "\""; }

Status IoError(int error_number, std::string tag, std::string what) {
  std::string why = std::system_category().message(error_number);
  Code code = Code::kUserError;
  std::string fix;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      code = Code::kResourceExhausted;
      fix = "free space on that disk, or choose a folder on another one";
      break;
    case EMFILE:
    case ENFILE:
      code = Code::kResourceExhausted;
      fix = "raise the limit of open files (ulimit -n)";
      break;
    case ENOMEM:
      code = Code::kResourceExhausted;
      fix = "give more memory";
      break;
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case ENXIO:
      code = Code::kUnavailable;
      fix = "look at the machine's kernel log: the device or mount may be failing";
      break;
    case ENOENT:
    case ENOTDIR:
      code = Code::kNotFound;
      fix = "check the path";
      break;
    case EACCES:
    case EPERM:
      fix = "give this user the permission, or run as one who has it";
      break;
    case EROFS:
      fix = "choose a folder on a writable file system";
      break;
    case EISDIR:
      fix = "give a file here, not a folder";
      break;
    default:
      fix = "look at the path and at what else uses it";
      break;
  }
  return Status(code, std::move(tag), std::move(what), std::move(why), std::move(fix));
}

}  // namespace ropewalk::storage
