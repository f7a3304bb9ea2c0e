#include "storage/read_whole.h"

#include <algorithm>

#include "storage/byte_source.h"
#include "storage/input.h"
#include "storage/io_error.h"

namespace ropewalk::storage {

Result<std::string> ReadWhole(const std::string& path, std::size_t bytes_max) {
  const std::string patterns[] = {path};
  ASSIGN_OR_RETURN(InputListing listing, ListInputs(patterns, "."));
  if (listing.files.size() != 1)
    return Status(Code::kUserError, "IO05", QuotedPath(path) + " is not one file",
                  "it is a folder or a pattern, and stands for " + std::to_string(listing.files.size()) + " files", "name one file");
  ASSIGN_OR_RETURN(std::unique_ptr<InputFileReader> reader, InputFileReader::Open(listing.files[0]));
  std::unique_ptr<ByteSource> source = NewSource(reader.get(), 0);
  std::string bytes;
  std::size_t used = 0;
  for (;;) {
    // Compressed files do not say how long they are: the room doubles.
    bytes.resize(std::max<std::size_t>({used * 2, listing.files[0].bytes + 1, std::size_t{64} << 10}));
    ASSIGN_OR_RETURN(std::size_t more, source->Read(std::span(bytes).subspan(used)));
    used += more;
    if (used > bytes_max)
      return Status(Code::kUserError, "IO05", QuotedPath(path) + " is too large",
                    "it holds more than " + std::to_string(bytes_max) + " bytes", "name a smaller file");
    if (used < bytes.size()) break;
  }
  RETURN_IF_ERROR(reader->CheckUnchanged());
  bytes.resize(used);
  return bytes;
}

}  // namespace ropewalk::storage
