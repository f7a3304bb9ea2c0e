// Block services and their readers over real sockets: two daemons in one process, flaky and hostile peers, leases, tokens.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "rpc/address.h"
#include "tests/unit/blocks_testing.h"
#include "worker/blocks/block_service.h"
#include "worker/blocks/fetcher.h"
#include "worker/blocks/wire.h"

namespace ropewalk::blocks {
namespace {

using testing::ExpectSame;
using testing::Fill;
using testing::InAForkedChild;
using testing::Model;
using testing::Seed;
using testing::TempDir;

constexpr JobId kJob{5};
const std::string kToken(32, 't');

struct Daemon {
  TempDir dir;
  std::vector<SegmentId> lost;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<BlockService> service;

  explicit Daemon(std::uint64_t memory_bytes_max = 1ull << 30, ServiceOptions options = {}, const std::string& listen = "127.0.0.1:0") {
    auto opened = BlockStore::Open(
        {.memory_bytes_max = memory_bytes_max, .spill_dir = dir.path() + "/spill", .job = kJob, .on_lost = [this](JobId, SegmentId id) {
           lost.push_back(id);
         }});
    EXPECT_TRUE(opened.ok());
    store = *std::move(opened);
    options.unix_path = unix_path();
    options.listen_address = listen;
    auto started = BlockService::Start(options, store.get());
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    if (started.ok()) service = *std::move(started);
    if (service) service->AllowJob(kJob, kToken);
  }
  std::string unix_path() const { return dir.path() + "/blocks.sock"; }
  RemoteOptions Options() const {
    return {.unix_path = unix_path(),
            .data_address = service->data_address(),
            .job = kJob,
            .token = kToken,
            .first_retry_ms = 5,
            .answer_ms = 20'000};
  }
  std::unique_ptr<RemoteBlocks> Reader(std::uint64_t read_ahead_bytes = 8u << 20) const {
    RemoteOptions options = Options();
    options.read_ahead_bytes = read_ahead_bytes;
    auto blocks = RemoteBlocks::Connect(options);
    EXPECT_TRUE(blocks.ok()) << blocks.status().ToString();
    return *std::move(blocks);
  }
};

TaskAttempt Producer(std::uint32_t task) { return {StageId{7}, task, 1}; }

struct Written {
  dag::SegmentRef ref;
  std::uint32_t parts = 0;
  Model model;
};

Written Write(const Daemon& daemon, RemoteBlocks& blocks, std::mt19937_64& random, std::uint32_t task, std::uint32_t parts,
              std::size_t extents, std::size_t largest) {
  Written written{.parts = parts};
  auto writer = blocks.NewSegment(Producer(task), parts);
  EXPECT_TRUE(writer.ok());
  written.model = Fill(**writer, random, parts, extents, largest);
  auto info = (*writer)->Seal();
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  written.ref = {.producer = Producer(task), .segment = info->segment, .location = daemon.service->data_address(), .bytes = info->bytes};
  return written;
}

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(BlocksService, RandomSegmentsLocallyAndBetweenTwoDaemons) {
  std::mt19937_64 random(Seed());
  for (std::uint64_t memory : {std::uint64_t(0), std::uint64_t(1) << 30}) {
    Daemon a(memory), b;
    auto in_a = a.Reader(), in_b = b.Reader(), small_window_in_b = b.Reader(1);
    std::vector<Written> all;
    for (std::uint32_t task = 0; task < 12; ++task)
      all.push_back(Write(a, *in_a, random, task, task == 3 ? 0 : 1 + random() % 30, task == 4 ? 0 : random() % 40,
                          task % 6 == 1 ? 3u << 20 : 100u << 10));
    EXPECT_EQ(a.store->stats().segments, 12u);
    EXPECT_EQ(memory == 0, a.store->stats().memory_bytes == 0);
    for (const Written& w : all) {
      for (RemoteBlocks* reader : {in_a.get(), in_b.get(), small_window_in_b.get()}) {
        ExpectSame(*reader, w.ref, 0, w.parts, w.model);
        if (w.parts > 3) ExpectSame(*reader, w.ref, 2, w.parts - 3, w.model);
        ExpectSame(*reader, w.ref, w.parts, 3, {});
      }
    }
    EXPECT_TRUE(Eventually([&] { return a.store->stats().leases == 0; }));
    EXPECT_GT(a.service->stats().served_bytes_total, 0u);
    EXPECT_EQ(b.service->stats().served_bytes_total, 0u);
  }
}

// It has neither the connections nor the threads that would answer it: an error at once, and nothing in its parent's segment.
TEST(BlocksService, AForkedChildNeitherWritesNorReadsItsParentsBlocks) {
  Daemon a, b;
  auto in_a = a.Reader(), in_b = b.Reader(1);
  std::mt19937_64 random(Seed());
  const Written read = Write(a, *in_a, random, 1, 1, 40, 100u << 10);
  auto stream = in_b->Open(read.ref, 0, 1);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->Next().ok());
  auto writer = in_a->NewSegment(Producer(2), 1);
  ASSERT_TRUE(writer.ok());
  const std::string first(3u << 20, 'p'), second(6u << 20, 'q');
  ASSERT_TRUE((*writer)->Append(0, AsBytes(first), 1).ok());
  InAForkedChild(
      [&] {
        const std::string other(3u << 20, 'c');
        const Status small = (*writer)->Append(0, AsBytes(std::string_view(other).substr(0, 9'000)), 1);
        const Status large = (*writer)->Append(0, AsBytes(other), 1);
        const Status sealed = (*writer)->Seal().status();
        Status next;
        for (int i = 0; i < 100 && next.ok(); ++i) next = (*stream)->Next().status();
        const Status opened = in_b->Open(read.ref, 0, 1).status();
        writer->reset();
        stream->reset();
        return small.ok() && large.tag() == "BLK44" && sealed.tag() == "BLK44" && next.tag() == "BLK44" && opened.tag() == "BLK44";
      },
      [&] { ASSERT_TRUE((*writer)->Append(0, AsBytes(second), 1).ok()); });
  auto info = (*writer)->Seal();
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  const dag::SegmentRef ref{.producer = Producer(2), .segment = info->segment, .location = a.service->data_address(), .bytes = info->bytes};
  for (RemoteBlocks* reader : {in_a.get(), in_b.get()}) ExpectSame(*reader, ref, 0, 1, {{0, {{first, 1}, {second, 1}}}});
  ExpectSame(*in_b, read.ref, 0, 1, read.model);
}

TEST(BlocksService, ManyStreamsAtOnceFromManyThreads) {
  std::mt19937_64 random(Seed());
  Daemon a(5u << 20), b;
  auto in_a = a.Reader(), in_b = b.Reader(256u << 10);
  std::vector<Written> all;
  for (std::uint32_t task = 0; task < 40; ++task) all.push_back(Write(a, *in_a, random, task, 4, 10, 400u << 10));
  EXPECT_GT(a.store->stats().spilled_bytes, 0u);
  std::vector<std::thread> threads;
  for (std::uint32_t part = 0; part < 4; ++part) {
    for (RemoteBlocks* reader : {in_a.get(), in_b.get()}) {
      threads.emplace_back([&, part, reader] {
        // As a merge does: all streams are open, one extent of each in turn.
        std::vector<std::unique_ptr<dag::ExtentStream>> streams;
        std::vector<std::size_t> at(all.size(), 0);
        for (const Written& w : all) {
          auto stream = reader->Open(w.ref, part, 1);
          ASSERT_TRUE(stream.ok()) << stream.status().ToString();
          streams.push_back(*std::move(stream));
        }
        for (std::size_t live = all.size(); live > 0;) {
          live = 0;
          for (std::size_t i = 0; i < all.size(); ++i) {
            auto extent = streams[i]->Next();
            ASSERT_TRUE(extent.ok()) << extent.status().ToString();
            auto model = all[i].model.find(part);
            std::size_t count = model == all[i].model.end() ? 0 : model->second.size();
            ASSERT_EQ(extent->has_value(), at[i] < count);
            if (!extent->has_value()) continue;
            ASSERT_TRUE(AsView((*extent)->bytes) == model->second[at[i]++].first);
            ++live;
          }
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BlocksService, LeasesKeepBytesAndEndWithStreamOrSocket) {
  std::mt19937_64 random(Seed());
  Daemon a;
  auto blocks = a.Reader();
  Written w = Write(a, *blocks, random, 1, 1, 20, 1u << 20);
  {
    auto stream = blocks->Open(w.ref, 0, 1);
    ASSERT_TRUE(stream.ok());
    EXPECT_EQ(a.store->stats().leases, 1u);
    a.store->FreeJob(kJob);
    EXPECT_EQ(a.store->stats().segments, 0u);
    EXPECT_GT(a.store->stats().memory_bytes, 0u);
    std::uint64_t bytes = 0;
    while (true) {
      auto extent = (*stream)->Next();
      ASSERT_TRUE(extent.ok()) << extent.status().ToString();
      if (!extent->has_value()) break;
      bytes += (*extent)->bytes.size();
    }
    EXPECT_EQ(bytes, w.ref.bytes);
  }
  EXPECT_TRUE(Eventually([&] { return a.store->stats().memory_bytes == 0; }));
  EXPECT_EQ(blocks->Open(w.ref, 0, 1).status().code(), Code::kDataLoss);

  Written again = Write(a, *blocks, random, 2, 1, 20, 1u << 20);
  auto stream = blocks->Open(again.ref, 0, 1);
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(a.store->stats().leases, 1u);
  a.service->ForgetJob(kJob);  // as when the executor's socket ends
  EXPECT_TRUE(Eventually([&] { return a.store->stats().leases == 0; }));
  EXPECT_EQ(a.store->stats().segments, 1u);
  EXPECT_EQ(blocks->Open(again.ref, 0, 1).status().code(), Code::kUnavailable);
}

TEST(BlocksService, WrongTokenAndUnknownJobGetNothing) {
  std::mt19937_64 random(Seed());
  Daemon a, b;
  auto blocks = a.Reader();
  Written w = Write(a, *blocks, random, 1, 1, 3, 1000);
  RemoteOptions wrong = a.Options();
  wrong.token = std::string(32, 'x');
  EXPECT_EQ(RemoteBlocks::Connect(wrong).status().code(), Code::kUnauthenticated);
  wrong.token = "";
  EXPECT_EQ(RemoteBlocks::Connect(wrong).status().code(), Code::kUnauthenticated);
  wrong = a.Options();
  wrong.job = JobId{6};
  EXPECT_EQ(RemoteBlocks::Connect(wrong).status().code(), Code::kUnauthenticated);
  EXPECT_EQ(a.service->stats().refused_total, 3u);
  // An owner that does not know our job: its blocks cannot be had, which is no fault of the reader's token.
  b.service->AllowJob(JobId{9}, kToken);
  RemoteOptions other = b.Options();
  other.job = JobId{9};
  auto of_other_job = RemoteBlocks::Connect(other);
  ASSERT_TRUE(of_other_job.ok());
  Status status = testing::Drain(**of_other_job, w.ref, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_NE(status.what().find(w.ref.location), std::string::npos) << status.ToString();
  // A job that is known sees its own segments only.
  a.service->AllowJob(JobId{9}, kToken);
  status = testing::Drain(**of_other_job, w.ref, 1);
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  EXPECT_NE(status.what().find("stage 7 task 1 attempt 1"), std::string::npos) << status.ToString();
}

TEST(BlocksService, UnreachableOwnerIsUnavailableAfterBoundedRetry) {
  Daemon a;
  auto blocks = a.Reader();
  std::string gone;
  {
    Daemon b;
    gone = b.service->data_address();
  }
  auto start = std::chrono::steady_clock::now();
  Status status = testing::Drain(*blocks, {.producer = Producer(1), .segment = SegmentId{1}, .location = gone}, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.what().find(gone), std::string::npos) << status.ToString();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(BlocksService, ARestartedOwnerWithOtherSegmentsIsDataLoss) {
  std::mt19937_64 random(Seed());
  Daemon reader_side;
  auto reader = reader_side.Reader();
  auto a = std::make_unique<Daemon>();
  std::string address = a->service->data_address();
  Written w = Write(*a, *a->Reader(), random, 1, 1, 3, 1000);
  ExpectSame(*reader, w.ref, 0, 1, w.model);
  a.reset();
  Daemon again(1u << 30, {}, address);
  ASSERT_NE(again.service, nullptr);
  Written other = Write(again, *again.Reader(), random, 2, 1, 3, 1000);
  EXPECT_EQ(other.ref.segment, w.ref.segment);
  EXPECT_EQ(testing::Drain(*reader, w.ref, 1).code(), Code::kDataLoss) << "the same id in another life is another segment";
  ExpectSame(*reader, other.ref, 0, 1, other.model);
}

// Passes bytes between a reader and a daemon, and does harm to them on the way.
class Proxy {
 public:
  // The first `harmed` connections are cut after `cut_after` bytes towards the reader (0: never), and the `flipped` bits of the byte at
  // `flip_at` are flipped.
  Proxy(const std::string& target, std::size_t cut_after, std::size_t flip_at, int harmed, int flipped = 16)
      : target_(target), cut_after_(cut_after), flip_at_(flip_at), flipped_(flipped), harmed_(harmed) {
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 64), 0);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    acceptor_ = std::thread([this] {
      while (true) {
        int client = ::accept(fd_.get(), nullptr, nullptr);
        if (client < 0) return;
        rpc::TuneSocket(client);
        ++connections;
        threads_.emplace_back([this, client, harm = harmed_-- > 0] { Relay(UniqueFd(client), harm); });
      }
    });
  }
  ~Proxy() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  const std::string& address() const { return address_; }
  std::atomic<int> connections{0};

 private:
  void Relay(UniqueFd client, bool harm) {
    auto server = ConnectTcp(target_, 20'000);
    if (!server.ok()) return;
    for (int fd : {client.get(), server->get()}) SetTimeouts(fd, 20'000, 20'000);
    std::size_t sent = 0;
    char buffer[4096];
    pollfd fds[2] = {{client.get(), POLLIN, 0}, {server->get(), POLLIN, 0}};
    while (::poll(fds, 2, 20'000) > 0) {
      for (int i : {0, 1}) {
        if (fds[i].revents == 0) continue;
        ssize_t n = ::recv(fds[i].fd, buffer, sizeof buffer, 0);
        if (n <= 0) return;
        if (i == 1) {
          if (harm && flip_at_ >= sent && flip_at_ < sent + static_cast<std::size_t>(n))
            buffer[flip_at_ - sent] ^= static_cast<char>(flipped_);
          if (harm && cut_after_ > 0 && sent + static_cast<std::size_t>(n) > cut_after_) n = static_cast<ssize_t>(cut_after_ - sent);
          sent += static_cast<std::size_t>(n);
        }
        if (!SendBytes(fds[1 - i].fd, {buffer, static_cast<std::size_t>(n)}).ok()) return;
        if (i == 1 && harm && cut_after_ > 0 && sent >= cut_after_) return;
      }
    }
  }

  const std::string target_;
  const std::size_t cut_after_, flip_at_;
  const int flipped_;
  int harmed_;
  UniqueFd fd_;
  std::string address_;
  std::thread acceptor_;
  std::vector<std::thread> threads_;
};

TEST(BlocksService, AConnectionThatBreaksIsTriedAgain) {
  std::mt19937_64 random(Seed());
  Daemon a, b;
  auto in_a = a.Reader();
  Written w = Write(a, *in_a, random, 1, 3, 30, 50000);
  std::uint64_t whole = w.ref.bytes;
  for (std::size_t cut :
       {std::size_t(1), std::size_t(10), std::size_t(40), std::size_t(60), std::size_t(200), std::size_t(whole / 2), std::size_t(whole)}) {
    Proxy proxy(a.service->data_address(), cut, ~std::size_t(0), 3);
    auto in_b = b.Reader(128u << 10);
    dag::SegmentRef ref = w.ref;
    ref.location = proxy.address();
    ExpectSame(*in_b, ref, 0, 3, w.model);
    EXPECT_GT(proxy.connections, 1) << "nothing was cut at " << cut;
  }
  Proxy dead(a.service->data_address(), 100, ~std::size_t(0), 1000);
  auto in_b = b.Reader();
  dag::SegmentRef ref = w.ref;
  ref.location = dead.address();
  EXPECT_EQ(testing::Drain(*in_b, ref, 3).code(), Code::kUnavailable);
}

TEST(BlocksService, BitsThatFlipOnTheWayAreNeverHandedOut) {
  std::mt19937_64 random(Seed());
  Daemon a, b;
  auto in_a = a.Reader();
  Written w;
  for (std::uint32_t task = 1; w.ref.bytes == 0; ++task) w = Write(a, *in_a, random, task, 2, 4, 100);
  std::size_t stream_bytes = kNonceBytesOnWire + kProofBytes + 24 + 16 + w.ref.bytes;
  for (const auto& [part, extents] : w.model) stream_bytes += extents.size() * sizeof(ExtentEntry);
  RemoteOptions options = b.Options();
  options.first_retry_ms = 1;
  for (std::size_t at = 0; at < stream_bytes; at += 1 + random() % 5) {
    // The harmed connection ends with the answer: a reader whom a flipped length makes wait for more meets the end, and no clock decides.
    Proxy proxy(a.service->data_address(), stream_bytes, at, 1, 1 << random() % 8);
    auto in_b = RemoteBlocks::Connect(options);
    ASSERT_TRUE(in_b.ok());
    dag::SegmentRef ref = w.ref;
    ref.location = proxy.address();
    Status status = testing::Compare(**in_b, ref, 0, 2, w.model);
    EXPECT_TRUE(status.ok()) << "byte " << at << ": " << status.ToString();
    EXPECT_GE(proxy.connections, 2) << "byte " << at << " was flipped and nobody minded";
    if (HasFailure()) return;  // one is enough
  }
  // Damaged every time: the segment itself must be damaged.
  Proxy always(a.service->data_address(), 0, stream_bytes - 1, 1000);
  auto in_b = b.Reader();
  dag::SegmentRef ref = w.ref;
  ref.location = always.address();
  Status status = testing::Drain(*in_b, ref, 2);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.what().find(ToString(w.ref.producer)), std::string::npos) << status.ToString();
}

// Each bit of a frame, header and payload: it is damage at once, which recovery handles by another try; never a limit that was exceeded,
// which ends a task, nor a wait for bytes that do not come (nothing follows the frame, and the sender keeps the connection).
TEST(BlocksService, EveryFlippedBitOfAFrameIsDamage) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd near(ends[0]), far(ends[1]);
  SetTimeouts(far.get(), 20'000, 20'000);
  const std::string payloads[] = {"", EncodeQuery({Producer(1), SegmentId{7}, 0, 3, 1000}),
                                  EncodeStatus(Status(Code::kDataLoss, "BLK08", "gone"))};
  for (const std::string& payload : payloads) {
    for (WireKind kind : {WireKind::kOk, WireKind::kError, WireKind::kOpenRemote}) {
      ASSERT_TRUE(SendWireFrame(near.get(), kind, payload).ok());
      std::string frame(24 + payload.size(), '\0');
      ASSERT_TRUE(ReceiveBytes(far.get(), std::as_writable_bytes(std::span(frame))).ok());
      for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
        std::string flipped = frame;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        ASSERT_TRUE(SendBytes(near.get(), flipped).ok());
        auto start = std::chrono::steady_clock::now();
        auto received = ReceiveWireFrame(far.get(), kRequestBytesMax);
        ASSERT_FALSE(received.ok()) << "bit " << bit;
        EXPECT_EQ(received.status().code(), Code::kDataLoss) << "bit " << bit << ": " << received.status().ToString();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << "bit " << bit << ": it waited for more";
        // Whoever meets damage ends the connection; here the rest is thrown away.
        std::string rest(frame.size(), '\0');
        while (::recv(far.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) continue;
      }
    }
  }
  // An honest frame that is too large is still told from damage.
  ASSERT_TRUE(SendWireFrame(near.get(), WireKind::kOk, std::string(100, 'x')).ok());
  EXPECT_EQ(ReceiveWireFrame(far.get(), 99).status().code(), Code::kResourceExhausted);
}

TEST(BlocksService, EmptyExtentsCostNoWait) {
  Daemon a;
  auto in_a = a.Reader();
  auto passed = in_a->NewSegment(Producer(1), 1), own = a.store->NewSegment(Producer(2), 1);
  SegmentId ids[2];
  for (auto* writer : {&passed, &own}) {
    ASSERT_TRUE(writer->ok());
    for (const char* bytes : {"0123456789", "", ""}) ASSERT_TRUE((**writer)->Append(0, AsBytes(std::string_view(bytes)), 1).ok());
    auto info = (**writer)->Seal();
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    ids[writer == &own ? 1 : 0] = info->segment;
  }
  UniqueFd fd = *ConnectTcp(a.service->data_address(), 5000);
  SetTimeouts(fd.get(), 20'000, 20'000);
  ASSERT_TRUE(ProveToken(fd.get(), kJob, kToken).ok());
  // "More follows" with nothing behind it holds an answer back for 200 ms: far more, 200 times over, than any load does.
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    for (std::uint32_t task : {1, 2}) {
      for (const std::vector<ByteRange>& ranges : {std::vector<ByteRange>{{0, 10}, {10, 0}, {10, 0}}, std::vector<ByteRange>{{10, 0}}}) {
        ASSERT_TRUE(SendWireFrame(fd.get(), WireKind::kRead, EncodeRead(Producer(task), ids[task - 1], ranges)).ok());
        auto answer = ReceiveWireFrame(fd.get(), kResponseBytesMax);
        ASSERT_TRUE(answer.ok()) << answer.status().ToString();
        ASSERT_EQ(answer->kind, WireKind::kOk);
        std::string data(ranges[0].length, '\0');
        ASSERT_TRUE(ReceiveBytes(fd.get(), std::as_writable_bytes(std::span(data))).ok());
        EXPECT_EQ(data, ranges[0].length == 0 ? "" : "0123456789");
      }
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "answers are held back";
}

TEST(BlocksService, ATruncatedRunFileIsReportedLost) {
  std::mt19937_64 random(Seed());
  Daemon a(0), b;
  auto in_a = a.Reader(), in_b = b.Reader();
  Written w = Write(a, *in_a, random, 1, 1, 10, 100000);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(a.dir.path()))
    if (entry.path().extension() == ".run") std::filesystem::resize_file(entry.path(), w.ref.bytes / 2);
  EXPECT_EQ(testing::Drain(*in_a, w.ref, 1).code(), Code::kDataLoss);
  EXPECT_EQ(testing::Drain(*in_b, w.ref, 1).code(), Code::kDataLoss);
  EXPECT_EQ(a.lost, std::vector<SegmentId>{w.ref.segment});
  EXPECT_EQ(a.store->stats().segments, 0u);
}

// ---- hostile peers ---------------------------------------------------------------------------------------------------------------------

UniqueFd RawUnix(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  SetTimeouts(fd.get(), 5000, 5000);
  return fd;
}

// A connection that has proven its token.
UniqueFd Proven(const Daemon& daemon, bool local) {
  UniqueFd fd = local ? RawUnix(daemon.unix_path()) : *ConnectTcp(daemon.service->data_address(), 5000);
  SetTimeouts(fd.get(), 20'000, 20'000);
  Status status = ProveToken(fd.get(), kJob, kToken);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return fd;
}

// Whether a question over TCP gets an answer ("no such segment"), or the connection has ended.
bool Answers(int fd) {
  if (!SendWireFrame(fd, WireKind::kOpenRemote, EncodeQuery({Producer(99), SegmentId{99}, 0, 1, 0})).ok()) return false;
  return ReceiveWireFrame(fd, kResponseBytesMax).ok();
}

// Sends all but the last byte of `bytes`, one each 100 ms, until the other side ends the connection; how many it took.
std::size_t Drip(int fd, std::string_view bytes) {
  for (std::size_t sent = 0; sent + 1 < bytes.size(); ++sent) {
    char byte;
    pollfd one{fd, POLLIN, 0};
    if (!SendBytes(fd, bytes.substr(sent, 1)).ok() || (::poll(&one, 1, 100) > 0 && ::recv(fd, &byte, 1, 0) <= 0)) return sent;
  }
  return bytes.size() - 1;
}

TEST(BlocksService, HostileRequestsHarmNobody) {
  std::mt19937_64 random(Seed());
  Daemon a;
  auto blocks = a.Reader();
  Written w = Write(a, *blocks, random, 1, 1, 3, 1000);
  // A segment of the service's own memory, which gives whole extents only.
  auto own = a.store->NewSegment(Producer(77), 1);
  ASSERT_TRUE((*own)->Append(0, AsBytes("0123456789"), 1).ok());
  SegmentId own_id = (*own)->Seal()->segment;
  std::string good = testing::SegmentBytes(Producer(2), kJob, 1, {{0, "abc"}});
  for (int round = 0; round < 300; ++round) {
    bool local = random() % 2 == 0;
    UniqueFd fd = local ? RawUnix(a.unix_path()) : *ConnectTcp(a.service->data_address(), 1000);
    SetTimeouts(fd.get(), 5000, 5000);
    if (random() % 4 == 0) {  // garbage instead of a proof
      (void)SendBytes(fd.get(), testing::RandomBytes(random, random() % 300));
      continue;
    }
    ASSERT_TRUE(ProveToken(fd.get(), kJob, kToken).ok());
    switch (random() % 7) {
      case 0:
        (void)SendBytes(fd.get(), testing::RandomBytes(random, random() % 3000));
        break;
      case 1:
        (void)SendWireFrame(fd.get(), static_cast<WireKind>(random() % 16), testing::RandomBytes(random, random() % 200));
        break;
      case 2:
        (void)SendWireFrame(fd.get(), WireKind::kRead,
                            EncodeRead(w.ref.producer, w.ref.segment, std::vector<ByteRange>{{random(), random()}}));
        break;
      case 3:
        (void)SendWireFrame(fd.get(), WireKind::kRead,
                            EncodeRead(Producer(77), own_id, std::vector<ByteRange>{{random() % 12, random() % 12}}));
        break;
      case 4: {
        std::string bad = good;
        bad[random() % bad.size()] ^= static_cast<char>(1 + random() % 255);
        UniqueFd memfd(testing::SealedMemfd(bad));
        (void)SendWireFrame(fd.get(), WireKind::kAdopt, EncodeAdopt({Producer(2)}), memfd.get());
        break;
      }
      case 5: {  // memory: nonsense on a link, and reservations of no link
        (void)SendWireFrame(fd.get(), WireKind::kOpenMemory, {});
        for (int i = 0; i < 4; ++i)
          (void)SendWireFrame(fd.get(), static_cast<WireKind>(6 + random() % 8),
                              EncodeWords({random() % 4, random(), random()}, random() % 4));
        break;
      }
      default: {  // other kinds of descriptors
        UniqueFd other(::open("/dev/zero", O_RDWR | O_CLOEXEC));
        (void)SendWireFrame(fd.get(), WireKind::kAdopt, EncodeAdopt({Producer(2)}), other.get());
        (void)SendWireFrame(fd.get(), WireKind::kAdopt, EncodeAdopt({Producer(2)}));
        break;
      }
    }
    char answer[64];
    (void)::recv(fd.get(), answer, sizeof answer, MSG_DONTWAIT);
  }
  ExpectSame(*blocks, w.ref, 0, 1, w.model);
  EXPECT_TRUE(Eventually([&] { return a.service->stats().connections <= 2; })) << a.service->stats().connections;
}

TEST(BlocksService, ConnectionsAreBoundedAndSilentPeersAreCutOff) {
  Daemon a(1u << 30, {.connections_max = 8, .connections_of_job_max = 4, .handshake_ms = 1000});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(*ConnectTcp(a.service->data_address(), 1000));
  EXPECT_TRUE(Eventually([&] { return a.service->stats().refused_total >= 12; }));
  EXPECT_LE(a.service->stats().connections, 8u);
  EXPECT_TRUE(Eventually([&] { return a.service->stats().connections == 0; })) << "silent peers keep their places";
  auto blocks = a.Reader();
  // A connection counts a moment after its proof has been answered: this one does for sure once it has been used.
  EXPECT_EQ(blocks->Open({.producer = Producer(99), .segment = SegmentId{99}}, 0, 1).status().code(), Code::kDataLoss);
  std::vector<UniqueFd> of_job;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    of_job.push_back(Proven(a, false));
    refused += Answers(of_job.back().get()) ? 0 : 1;
  }
  EXPECT_EQ(refused, 4) << "two are the reader's";
}

TEST(BlocksService, AHalfRequestIsCutOffSoonAndASilentReaderIsNot) {
  Daemon a(1u << 30, {.request_ms = 300});  // idle_ms is 10 minutes
  UniqueFd silent = Proven(a, false);
  ASSERT_TRUE(Answers(silent.get()));
  const std::string payload = EncodeQuery({Producer(99), SegmentId{99}, 0, 1, 0});
  // As it is sent: a header that does not prove itself would be refused at once, not waited for.
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd from(ends[0]), to(ends[1]);
  ASSERT_TRUE(SendWireFrame(from.get(), WireKind::kOpenRemote, payload).ok());
  from.Close();
  std::string whole(1024, '\0');
  ssize_t bytes = ::recv(to.get(), whole.data(), whole.size(), MSG_WAITALL);
  ASSERT_GT(bytes, static_cast<ssize_t>(payload.size()));
  whole.resize(static_cast<std::size_t>(bytes));
  for (bool local : {false, true}) {
    for (std::size_t half : {std::size_t(1), std::size_t(23), std::size_t(24), std::size_t(25), whole.size() - 1}) {
      UniqueFd fd = Proven(a, local);
      ASSERT_TRUE(SendBytes(fd.get(), std::string_view(whole).substr(0, half)).ok());
      char byte;
      EXPECT_EQ(::recv(fd.get(), &byte, 1, 0), 0) << half << " bytes of a request keep a place";
    }
    // A byte now and then buys no time: the limit is the whole request's.
    UniqueFd fd = Proven(a, local);
    EXPECT_LT(Drip(fd.get(), whole), whole.size() - 1);
  }
  EXPECT_TRUE(Answers(silent.get())) << "a reader may be silent between requests";
}

TEST(BlocksService, AHelloThatDripsIsCutOff) {
  Daemon a(1u << 30, {.handshake_ms = 300});
  UniqueFd fd = *ConnectTcp(a.service->data_address(), 5000);
  char nonce[kNonceBytesOnWire];
  SetTimeouts(fd.get(), 20'000, 20'000);
  ASSERT_EQ(::recv(fd.get(), nonce, sizeof nonce, MSG_WAITALL), static_cast<ssize_t>(sizeof nonce));
  const std::string hello(8 + 8 + kNonceBytesOnWire + kProofBytes, 'h');  // whole, it would be refused at once
  EXPECT_LT(Drip(fd.get(), hello), hello.size() - 1);
}

TEST(BlocksService, BadPlacesAreRefusedByName) {
  Daemon a;
  auto start = [&](ServiceOptions options) { return BlockService::Start(options, a.store.get()).status(); };
  EXPECT_EQ(start({.unix_path = "/tmp/" + std::string(200, 'x')}).code(), Code::kInvalid);
  EXPECT_EQ(start({.unix_path = a.dir.path() + "/s", .listen_address = "0.0.0.0:0"}).code(), Code::kInvalid);
  EXPECT_EQ(start({.unix_path = a.dir.path() + "/s", .listen_address = a.service->data_address()}).code(), Code::kUnavailable);
  struct stat info{};
  ASSERT_EQ(::stat(a.unix_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace ropewalk::blocks
