// Which files the user's patterns mean.
#include "storage/list_inputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/nearest.h"
#include "storage/folder.h"
#include "storage/glob.h"
#include "storage/io_error.h"

namespace ropewalk::storage {
namespace {

constexpr std::size_t kFilesMax = 10'000'000;
constexpr std::size_t kDepthMax = 256;

Compression CompressionOf(std::string_view path) {
  if (path.ends_with(".gz")) return Compression::kGzip;
  if (path.ends_with(".zst")) return Compression::kZstd;
  return Compression::kNone;
}

Status Unreadable(int error_number, const std::string& path) {
  Status status = IoError(error_number, "IO02", "cannot read input " + QuotedPath(path));
  if (status.code() != Code::kNotFound) return status;
  // It was listed in its folder a moment ago, so the name is right: a dangling link, or somebody removes files.
  return Status(Code::kUserError, "IO02", status.what(), status.why() + " (a link that leads nowhere?)", "mend or remove it");
}

// Forms of files that hold lines or records, but whose bytes are none. Both suffix and first bytes must say so: anything else is data.
struct UnknownForm {
  std::string_view suffix, magic;
  const char* what;
  const char* fix;
};
constexpr UnknownForm kUnknownForms[] = {
    {".bz2", "BZh", "is compressed by bzip2", "bunzip2 -k it first"},
    {".xz",
     std::string_view("\xfd"
                      "7zXZ\0",
                      6),
     "is compressed by xz", "unxz -k it first"},
    {".lz4", "\x04\x22\x4d\x18", "is compressed by lz4", "unlz4 it first"},
    {".zip", "PK\x03\x04", "is a zip archive", "unzip it first"},
    {".7z", "7z\xbc\xaf\x27\x1c", "is a 7-Zip archive", "unpack it first"},
    {".parquet", "PAR1", "is a table of columns (Parquet)", "write it as text or as records of one size first"},
    {".orc", "ORC", "is a table of columns (ORC)", "write it as text or as records of one size first"},
    {".avro", "Obj\x01", "is an Avro container", "write it as text or as records of one size first"},
};
Status RefuseUnknownForm(const std::string& path) {
  auto form =
      std::find_if(std::begin(kUnknownForms), std::end(kUnknownForms), [&](const UnknownForm& f) { return path.ends_with(f.suffix); });
  if (form == std::end(kUnknownForms)) return {};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Unreadable(errno, path);
  char head[8];
  const ssize_t n = pread(fd, head, sizeof head, 0);
  const int error = errno;
  close(fd);
  if (n < 0) return Unreadable(error, path);
  if (!std::string_view(head, static_cast<std::size_t>(n)).starts_with(form->magic)) return {};
  return Status(Code::kUserError, "IO07", "input " + QuotedPath(path) + " " + form->what,
                "only .gz and .zst are read decompressed; every other file is read as the bytes that it holds", form->fix);
}

// /proc, /sys and some FUSE file systems say of files with content that their size is 0. A job reads what its listing says, so it would
// find nothing in them and succeed.
Status RefuseHiddenContent(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Unreadable(errno, path);
  struct stat info;
  char byte;
  ssize_t n = fstat(fd, &info) == 0 ? pread(fd, &byte, 1, 0) : -1;
  if (n > 0 && info.st_size == 0 && fstat(fd, &info) != 0) n = -1;  // it may have grown between the two
  const int error = errno;
  close(fd);
  if (n < 0) return Unreadable(error, path);
  if (n == 0 || info.st_size != 0) return {};  // written since we looked: its reader says that it changed
  return Status(Code::kUserError, "IO02", "cannot read input " + QuotedPath(path),
                "its size is said to be 0 bytes and it holds some (as files in /proc do), and a job plans its work by sizes",
                "copy the data into a file first");
}

// Drops "." components, doubled and trailing slashes. ".." stays: behind a symbolic link only the kernel knows where it leads.
std::string Tidy(const std::string& path) {
  std::string out;
  for (std::size_t at = 0; at < path.size();) {
    std::size_t slash = std::min(path.find('/', at), path.size());
    std::string_view component(path.data() + at, slash - at);
    if (!component.empty() && component != ".") (out += '/') += component;
    at = slash + 1;
  }
  return out.empty() ? "/" : out;
}

class Lister {
 public:
  Lister(InputListing* listing, std::vector<std::string>* folders) : listing_(listing), folders_(folders) {}

  // A path that exists: a file, or a folder with all below it.
  Status Add(const std::string& path) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return Unreadable(errno, path);
    if (!S_ISDIR(info.st_mode)) return AddFile(path, info);
    folders_->push_back(path);
    std::size_t first = listing_->files.size();
    RETURN_IF_ERROR(Walk(path, info));
    // By whole relative paths: "a.txt" comes before "a/b.txt", whatever a walk by folders would give.
    std::sort(listing_->files.begin() + static_cast<std::ptrdiff_t>(first), listing_->files.end(),
              [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
    return {};
  }

 private:
  Status AddFile(const std::string& path, const struct stat& info) {
    if (!S_ISREG(info.st_mode)) {
      return Status(Code::kUserError, "IO02", "cannot read input " + QuotedPath(path),
                    "it is a pipe, socket or device, and a job may read its input twice", "copy the data into a file first");
    }
    if (faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0) return Unreadable(errno, path);
    if (info.st_size == 0) RETURN_IF_ERROR(RefuseHiddenContent(path));
    RETURN_IF_ERROR(RefuseUnknownForm(path));
    if (listing_->files.size() >= kFilesMax)
      return Status(Code::kInvalid, "IO01", "more than " + std::to_string(kFilesMax) + " input files", "the plan of a job holds them all",
                    "join small files, or run several jobs");
    listing_->files.push_back(
        {path, static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, CompressionOf(path)});
    return {};
  }

  Status Walk(const std::string& folder, const struct stat& folder_info) {
    auto id = std::pair(folder_info.st_dev, folder_info.st_ino);
    if (std::find(above_.begin(), above_.end(), id) != above_.end() || above_.size() >= kDepthMax) {
      return Status(Code::kUserError, "IO02", "cannot read the folder " + QuotedPath(folder),
                    "a symbolic link leads back to a folder above it, or folders are nested too deep",
                    "remove the link, or name the files by a pattern");
    }
    above_.push_back(id);
    auto names = FolderNames(folder);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (IsHiddenName(name)) {
        ++listing_->skipped_hidden;
        continue;
      }
      std::string path = (folder == "/" ? "" : folder) + "/" + name;
      struct stat info;
      if (stat(path.c_str(), &info) != 0) return Unreadable(errno, path);
      if (!S_ISDIR(info.st_mode)) {
        RETURN_IF_ERROR(AddFile(path, info));
        continue;
      }
      struct stat link;
      if (lstat(path.c_str(), &link) != 0) return Unreadable(errno, path);
      if (S_ISLNK(link.st_mode) || info.st_dev != folder_info.st_dev) folders_->push_back(path);
      RETURN_IF_ERROR(Walk(path, info));
    }
    above_.pop_back();
    return {};
  }

  InputListing* listing_;
  std::vector<std::string>* folders_;
  std::vector<std::pair<dev_t, ino_t>> above_;  // the folders that are being walked
};

Status NotFound(const std::string& pattern, const std::string& path) {
  std::size_t slash = path.rfind('/');
  std::string folder = slash == 0 ? "/" : path.substr(0, slash), fix = "check the path";
  auto names = FolderNames(folder);
  std::string why = "there is no such file or folder";
  if (!names.ok() && names.status().code() == Code::kNotFound) {
    why = "the folder " + QuotedPath(folder) + " does not exist";
  } else if (std::string near = !names.ok() ? "" : NearestName(std::string_view(path).substr(slash + 1), *names); !near.empty()) {
    fix = "did you mean " + QuotedPath((folder == "/" ? "" : folder) + "/" + near) + "?";
  }
  return Status(Code::kNotFound, "IO01", "input " + QuotedPath(pattern) + " not found", why, fix);
}

// What other tools take for several names, and we do not; OK where there is no sign of it.
Status MeantForAShell(const std::string& pattern) {
  std::size_t brace = pattern.find('{');
  const bool braces = brace != std::string::npos && pattern.find('}', brace) != std::string::npos;
  if (!braces && pattern.find(',') == std::string::npos) return {};
  return Status(Code::kNotFound, "IO01", "input " + QuotedPath(pattern) + " not found",
                braces ? "braces are not part of a pattern here (* ? [abc] ** are), and no file has this name"
                       : "a comma is part of the name, and no file has this name",
                braces ? "leave them to the shell (without quotes), or give several inputs"
                       : "give several inputs one after another (in a program: ReadLines({\"a\", \"b\"}))");
}

// Each file once, in the order of paths: "**" may come to one by several ways.
void OnceEach(InputListing* listing, std::size_t first) {
  auto begin = listing->files.begin() + static_cast<std::ptrdiff_t>(first);
  std::sort(begin, listing->files.end(), [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
  listing->files.erase(std::unique(begin, listing->files.end(), [](const InputFile& a, const InputFile& b) { return a.path == b.path; }),
                       listing->files.end());
}

Status ListPattern(const std::string& pattern, const std::string& work_dir, InputListing* listing, std::vector<std::string>* folders) {
  if (pattern.empty() || pattern.find('\0') != std::string::npos)
    return Status(Code::kInvalid, "IO01", "input " + QuotedPath(pattern) + " is no path", "it is empty or holds a NUL",
                  "give a file, a folder or a pattern");
  std::string local = pattern.starts_with("file:///") ? pattern.substr(7) : pattern;
  std::string path = Tidy(local[0] == '/' ? local : work_dir + "/" + local);
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (pattern.back() == '/' && !S_ISDIR(info.st_mode))
      return Status(Code::kNotFound, "IO01", "input " + QuotedPath(pattern) + " is no folder", "it is a file",
                    "leave out the slash at the end");
    return Lister(listing, folders).Add(path);
  }
  int error_number = errno;
  if (std::size_t colon = local.find("://"); colon != std::string::npos && colon > 0 && local.find('/') == colon + 1)
    return Status(Code::kInvalid, "IO01", "input " + QuotedPath(pattern) + ": this version reads local files only",
                  "the name begins with a scheme that is not file://", "copy the data to a path that all workers see");
  // The name may be there though what it leads to is not.
  if ((error_number != ENOENT && error_number != ENOTDIR && error_number != ENAMETOOLONG) || lstat(path.c_str(), &info) == 0)
    return Unreadable(error_number, path);
  if (!HasGlobCharacters(local) && local.find('\\') == std::string::npos) {
    Status shell = MeantForAShell(pattern);
    return shell.ok() ? NotFound(pattern, path) : shell;
  }
  std::uint64_t hidden = 0;
  bool any = false;
  const std::size_t first = listing->files.size();
  Lister lister(listing, folders);
  RETURN_IF_ERROR(GlobExpand(path, &hidden, [&](const std::string& found) {
    any = true;
    return lister.Add(found);
  }));
  listing->skipped_hidden += hidden;
  if (path.find("**") != std::string::npos) OnceEach(listing, first);
  if (any) return {};
  if (Status shell = MeantForAShell(pattern); !shell.ok()) return shell;
  return Status(Code::kNotFound, "IO01", "input " + QuotedPath(pattern) + " not found",
                hidden == 0 ? "no path matches the pattern" : "it matches only names that begin with '.' or '_', which are skipped",
                hidden == 0 ? "check the pattern; quote it so that the shell leaves it alone" : "name such a file outright");
}

}  // namespace

Result<InputListing> ListInputs(std::span<const std::string> patterns, const std::string& work_dir) {
  std::vector<std::string> folders;
  return ListInputs(patterns, work_dir, &folders);
}

Result<InputListing> ListInputs(std::span<const std::string> patterns, const std::string& work_dir, std::vector<std::string>* folders) {
  if (patterns.empty())
    return Status(Code::kInvalid, "IO01", "no input is given", "a dataset of files needs at least one", "give files, folders or patterns");
  InputListing listing;
  for (const std::string& pattern : patterns) RETURN_IF_ERROR(ListPattern(pattern, work_dir, &listing, folders));
  return listing;
}

std::string EncodeListing(const InputListing& listing) {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Varint(1);  // version
  out.Varint(listing.skipped_hidden);
  out.Varint(listing.files.size());
  for (const InputFile& file : listing.files) {
    out.Sized(file.path);
    out.Varint(file.bytes);
    out.Fixed(file.mtime_ns);
    out.Fixed(static_cast<std::uint8_t>(file.compression));
  }
  return bytes;
}

Result<InputListing> DecodeListing(std::string_view bytes) {
  ByteReader in(bytes);
  auto damaged = [] {
    return Status(Code::kDataLoss, "IO06", "an input listing cannot be read", "its bytes are damaged or of another version");
  };
  if (in.Varint() != 1) return damaged();
  InputListing listing;
  listing.skipped_hidden = in.Varint();
  std::uint64_t count = in.Varint();
  if (!in.ok() || count > in.remaining()) return damaged();  // a file takes more than a byte: nothing huge is allocated for a lie
  listing.files.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    InputFile file;
    file.path = in.Sized();
    file.bytes = in.Varint();
    file.mtime_ns = in.Fixed<std::int64_t>();
    auto compression = in.Fixed<std::uint8_t>();
    if (!in.ok() || compression > static_cast<std::uint8_t>(Compression::kZstd)) return damaged();
    file.compression = static_cast<Compression>(compression);
    listing.files.push_back(std::move(file));
  }
  if (!in.ok() || !in.empty()) return damaged();
  return listing;
}

}  // namespace ropewalk::storage
