#include "worker/blocks/fetcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>

#include "rpc/address.h"

namespace ropewalk::blocks {
namespace {

constexpr std::uint64_t kWindowBytesMin = 64u << 10;
constexpr std::uint64_t kExtentBytesMax = 1ull << 40;

Status CannotReach(const std::string& address, const std::string& why) {
  return Status(Code::kUnavailable, "BLK40", "cannot reach the blocks of the worker at " + address, why,
                "none needed: the job goes on elsewhere");
}

}  // namespace

Result<UniqueFd> ConnectTcp(const std::string& address, std::int64_t timeout_ms) {
  ASSIGN_OR_RETURN(std::vector<rpc::SocketAddress> candidates, rpc::ResolveAddress(address));
  std::string why = "the name has no address";
  for (const rpc::SocketAddress& to : candidates) {
    UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status(Code::kResourceExhausted, "BLK13", "no socket for blocks", std::strerror(errno), "raise the open files limit");
    int error = 0;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0) error = errno;
    if (error == EINPROGRESS) {
      pollfd one{fd.get(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (::poll(&one, 1, static_cast<int>(timeout_ms)) == 0)
        error = ETIMEDOUT;
      else if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    }
    if (error != 0) {
      why = std::strerror(error);
      continue;
    }
    (void)::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);  // blocking from here on, bounded by its time-outs
    rpc::TuneSocket(fd.get());
    return fd;
  }
  return CannotReach(address, why);
}

// ---- the stream ------------------------------------------------------------------------------------------------------------------------

class FetchStream final : public dag::ExtentStream {
 public:
  FetchStream(Fetcher* fetcher, std::shared_ptr<Fetcher::Fetch> fetch) : fetcher_(fetcher), fetch_(std::move(fetch)) {
    fetcher_->Start(fetch_);
  }
  ~FetchStream() override {
    if (!fetcher_->home_.here()) return;  // a lock may have been held when the child was forked
    {
      std::lock_guard lock(fetch_->mutex);
      fetch_->abandoned = true;
    }
    std::lock_guard lock(fetcher_->mutex_);
    --fetcher_->open_streams_;
  }

  Result<std::optional<dag::Extent>> Next() override {
    while (at_ == window_.end) {
      RETURN_IF_ERROR(failed_);
      // The threads that fetch are the parent's: in a forked child nobody would answer.
      if (!fetcher_->home_.here()) return Status(Code::kInternal, "BLK44", "a forked child asks for its parent's blocks");
      {
        std::unique_lock lock(fetch_->mutex);
        fetch_->changed.wait(lock, [this] { return !fetch_->busy; });
      }
      if (fetch_->ready == nullptr) return std::optional<dag::Extent>();  // the window before was the last one
      Result<Fetcher::Window> next = std::move(*fetch_->ready);
      fetch_->ready.reset();
      if (!next.ok()) {
        failed_ = std::move(next).status();
        continue;
      }
      window_ = *std::move(next);
      at_ = window_.begin;
      offset_ = 0;
      entries_.assign(fetch_->entries.begin() + static_cast<std::ptrdiff_t>(window_.begin),
                      fetch_->entries.begin() + static_cast<std::ptrdiff_t>(window_.end));
      if (fetch_->next < fetch_->entries.size()) fetcher_->Start(fetch_);  // while this window is worked on
    }
    const ExtentEntry& entry = entries_[at_++ - window_.begin];
    std::span<const std::byte> bytes(window_.buffer->data() + offset_, entry.length);
    offset_ += entry.length;
    return std::optional<dag::Extent>({.part = entry.part, .records = entry.records, .bytes = bytes, .holder = window_.buffer});
  }

 private:
  Fetcher* const fetcher_;
  std::shared_ptr<Fetcher::Fetch> fetch_;
  Fetcher::Window window_;
  std::vector<ExtentEntry> entries_;  // of the window: the fetch's own are touched by the fetching thread
  std::size_t at_ = 0;
  std::uint64_t offset_ = 0;
  Status failed_;
};

// ---- the fetcher -----------------------------------------------------------------------------------------------------------------------

Fetcher::Fetcher(RemoteOptions options, BufferPool pool) : options_(std::move(options)), pool_(std::move(pool)) {}

Fetcher::~Fetcher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (int fd : in_use_) ::shutdown(fd, SHUT_RDWR);
  }
  queued_.notify_all();
  closing_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<dag::ExtentStream> Fetcher::Open(const dag::SegmentRef& segment, std::uint32_t first, std::uint32_t count) {
  auto fetch = std::make_shared<Fetch>();
  fetch->ref = segment;
  fetch->first = first;
  fetch->count = count;
  {
    std::lock_guard lock(mutex_);
    ++open_streams_;
  }
  return std::make_unique<FetchStream>(this, std::move(fetch));
}

void Fetcher::Start(std::shared_ptr<Fetch> fetch) {
  {
    std::lock_guard lock(fetch->mutex);
    fetch->busy = true;
  }
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(fetch));
    if (threads_.size() < options_.fetch_threads) threads_.emplace_back([this] { Work(); });
  }
  queued_.notify_one();
}

void Fetcher::Work() {
  while (true) {
    std::shared_ptr<Fetch> fetch;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      fetch = std::move(queue_.front());
      queue_.pop_front();
    }
    std::unique_ptr<Result<Window>> result;
    try {
      result = std::make_unique<Result<Window>>(FetchWindow(*fetch));
    } catch (const std::exception& e) {
      result = std::make_unique<Result<Window>>(Status(
          Code::kResourceExhausted, "BLK41", "cannot read the segment of " + ToString(fetch->ref.producer), e.what(), "give more memory"));
    }
    std::lock_guard lock(fetch->mutex);
    fetch->ready = std::move(result);
    fetch->busy = false;
    fetch->changed.notify_all();
  }
}

std::uint64_t Fetcher::WindowBytes() {
  std::lock_guard lock(mutex_);
  // Two windows of a stream exist at a time: the one in use and the next.
  std::uint64_t fair = options_.read_ahead_bytes_total / (2 * std::max<std::uint64_t>(open_streams_, 1));
  return std::max(kWindowBytesMin, std::min(fair, options_.read_ahead_bytes / 2));
}

Result<Fetcher::Window> Fetcher::FetchWindow(Fetch& fetch) {
  const std::string& address = fetch.ref.location;
  const std::uint64_t window_bytes = WindowBytes();
  std::int64_t pause_ms = options_.first_retry_ms;
  bool damaged_before = false;
  Status last;
  for (std::uint32_t attempt = 0; attempt < options_.attempts_max;) {
    {
      std::lock_guard lock(fetch.mutex);
      if (fetch.abandoned) return Status(Code::kCancelled, "BLK42", "nobody reads this segment any more");
    }
    bool reused = false;
    auto fd = Connection(address, &reused);
    if (fd.ok()) {
      auto window = TryOnce(fetch, window_bytes, fd->get());
      const Code code = window.ok() ? Code::kOk : window.status().code();
      {
        std::lock_guard lock(mutex_);
        std::erase(in_use_, fd->get());
      }
      // A connection is clean after a whole answer only; a damaged extent may mean that we lost count of the bytes.
      if (window.ok()) GiveBack(address, *std::move(fd));
      if (window.ok() || (code != Code::kUnavailable && code != Code::kDataLoss)) return window;
      if (code == Code::kDataLoss) {
        if (window.status().tag() == "BLK08" || damaged_before) return window;  // gone, or damaged twice: not on the way then
        damaged_before = true;
        continue;
      }
      last = window.status();
      if (reused) continue;  // the owner may have closed it while it rested: that was no attempt
    } else {
      last = std::move(fd).status();
      if (last.code() == Code::kResourceExhausted) return last;
    }
    if (++attempt < options_.attempts_max && !Pause(pause_ms))
      return Status(Code::kCancelled, "BLK42", "the reader of blocks is being closed");
    pause_ms *= 2;
  }
  return Status(Code::kUnavailable, "BLK40",
                "cannot read the segment of " + ToString(fetch.ref.producer) + " from the worker at " + address,
                last.what() + ": " + last.why(), "none needed: the job goes on elsewhere");
}

Result<Fetcher::Window> Fetcher::TryOnce(Fetch& fetch, std::uint64_t window_bytes, int fd) {
  const dag::SegmentRef& ref = fetch.ref;
  Window window{.begin = fetch.next};
  std::uint64_t data_bytes = 0;
  std::vector<ExtentEntry> fresh;
  if (!fetch.opened) {
    RETURN_IF_ERROR(
        SendWireFrame(fd, WireKind::kOpenRemote, EncodeQuery({ref.producer, ref.segment, fetch.first, fetch.count, window_bytes})));
  } else {
    window.end = window.begin + GatherLength(fetch.entries, window.begin, window_bytes);
    std::vector<ByteRange> ranges;
    for (std::size_t i = window.begin; i < window.end; ++i) {
      ranges.push_back({fetch.entries[i].offset, fetch.entries[i].length});
      data_bytes += fetch.entries[i].length;
    }
    RETURN_IF_ERROR(SendWireFrame(fd, WireKind::kRead, EncodeRead(ref.producer, ref.segment, ranges)));
  }
  ASSIGN_OR_RETURN(WireFrame answer, ReceiveWireFrame(fd, kResponseBytesMax));
  if (answer.kind == WireKind::kError) return DecodeStatus(answer.payload);
  if (answer.kind != WireKind::kOk) return Status(Code::kDataLoss, "BLK22", "an unknown answer about blocks");
  std::span<const ExtentEntry> entries = fetch.entries;
  if (!fetch.opened) {
    ASSIGN_OR_RETURN(Opened opened, DecodeOpened(answer.payload));
    std::uint32_t part = fetch.first;
    std::uint64_t sum = 0;
    for (const ExtentEntry& entry : opened.entries) {
      if (entry.part < part || entry.part - fetch.first >= fetch.count || entry.length > kExtentBytesMax)
        return Status(Code::kDataLoss, "BLK22", "an answer about blocks has an extent that was not asked for");
      part = entry.part;
    }
    while (sum < opened.data_bytes && window.end < opened.entries.size()) sum += opened.entries[window.end++].length;
    if (sum != opened.data_bytes) return Status(Code::kDataLoss, "BLK22", "an answer about blocks does not agree with itself");
    // Empty extents behind the last byte are here too: they are worth no second trip.
    while (window.end < opened.entries.size() && opened.entries[window.end].length == 0) ++window.end;
    data_bytes = sum;
    fresh = std::move(opened.entries);
    entries = fresh;
  }
  window.buffer = std::make_shared<Buffer>(pool_.Get(data_bytes));
  RETURN_IF_ERROR(ReceiveBytes(fd, {window.buffer->data(), data_bytes}));
  std::uint64_t at = 0;
  for (std::size_t i = window.begin; i < window.end; ++i) {
    RETURN_IF_ERROR(VerifyExtent(entries[i], {window.buffer->data() + at, entries[i].length}, ref.producer));
    at += entries[i].length;
  }
  if (!fetch.opened) {
    fetch.entries = std::move(fresh);
    fetch.opened = true;
  }
  fetch.next = window.end;
  return window;
}

Result<UniqueFd> Fetcher::Connection(const std::string& address, bool* reused) {
  {
    std::lock_guard lock(mutex_);
    auto& idle = idle_[address];
    if (!idle.empty()) {
      UniqueFd fd = std::move(idle.back());
      idle.pop_back();
      in_use_.push_back(fd.get());
      *reused = true;
      return fd;
    }
  }
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectTcp(address, std::min<std::int64_t>(options_.answer_ms, 5'000)));
  SetTimeouts(fd.get(), options_.answer_ms, options_.answer_ms);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Status(Code::kUnavailable, "BLK42", "the reader of blocks is being closed");
    in_use_.push_back(fd.get());
  }
  Status proven = ProveToken(fd.get(), options_.job, options_.token);
  if (proven.ok()) return fd;
  {
    std::lock_guard lock(mutex_);
    std::erase(in_use_, fd.get());
  }
  // An owner that was just started again does not know the job yet, or never will: either way its blocks are not to be had now.
  return CannotReach(address, proven.what() + ": " + proven.why());
}

void Fetcher::GiveBack(const std::string& address, UniqueFd fd) {
  std::lock_guard lock(mutex_);
  auto& idle = idle_[address];
  if (idle.size() < options_.fetch_threads) idle.push_back(std::move(fd));
}

bool Fetcher::Pause(std::int64_t ms) {
  std::unique_lock lock(mutex_);
  closing_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return stopping_; });
  return !stopping_;
}

}  // namespace ropewalk::blocks
