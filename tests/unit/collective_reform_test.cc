// Ranks that come and go between calls: who has which number then, that nothing of those who leave is missing, and who is not let in. Ranks
// that are killed meanwhile are in collective_reform_kill_test.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/random.h"
#include "mlrunner/collective/run/door.h"
#include "rpc/address.h"
#include "rpc/frame.h"
#include "tests/unit/collective_gang.h"

namespace ropewalk::collective::testing {
namespace {

class Reforming : public ::testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Wires, Reforming, ::testing::Values(Wire::kShared, Wire::kTcp),
                         [](const auto& info) { return std::string(info.param == Wire::kShared ? "shared" : "tcp"); });

using Made = std::unique_ptr<Communicator>;

JoinOptions As(std::int32_t rank) { return {.machine = "here", .rank = rank, .timeout_ms = 60'000}; }

// Each gives the one of its place; so the sum says how many there are, and the other value who is where.
void ExpectRanks(Communicator& all, std::int32_t rank, std::int32_t ranks) {
  EXPECT_EQ(all.rank(), rank);
  ASSERT_EQ(all.ranks(), ranks);
  std::vector<std::int64_t> x(3'000, 1), places(static_cast<std::size_t>(ranks));
  Status status = all.AllReduce({.in = x.data(), .out = x.data(), .count = 3'000, .dtype = Dtype::kI64, .name = "x"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(x, std::vector<std::int64_t>(3'000, ranks));
  places[rank] = rank + 1;
  status = all.AllReduce({.in = places.data(), .out = places.data(), .count = ranks, .dtype = Dtype::kI64, .name = "places"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (std::int32_t other = 0; other < ranks; ++other) EXPECT_EQ(places[other], other + 1);
  for (std::int32_t other = 0; other < ranks; ++other) EXPECT_EQ(all.members()[other], other);
}

Made Must(Result<Made> made) {
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *std::move(made) : nullptr;
}

void UntilSomebodyKnocks(Communicator& all) {
  while (!all.HasNewcomers()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Rank 1 of three goes, and is back with its old number; all others count as before.
TEST_P(Reforming, ARankLeavesAndComesBackWithTheSameNumber) {
  Meeting meeting(3);
  std::string ticket;
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      Made all = Must(Communicator::Connect(meeting.Of(rank), Over(GetParam())));
      ASSERT_NE(all, nullptr);
      ExpectRanks(*all, rank, 3);
      if (rank == 1) {
        Status status = all->Leave();
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(all->Barrier().tag(), "COLL33");
        all.reset();
        meeting.Barrier(rank);
        all = Must(Communicator::Join(ticket, As(1)));
        ASSERT_NE(all, nullptr);
      } else {
        all = Must(all->Reform({}));
        ASSERT_NE(all, nullptr);
        ExpectRanks(*all, rank / 2, 2);
        if (rank == 2) {
          auto invited = all->Invite();
          ASSERT_TRUE(invited.ok()) << invited.status().ToString();
          ticket = *invited;
          EXPECT_EQ(*all->Invite(), ticket);
          EXPECT_FALSE(all->HasNewcomers());
        }
        meeting.Barrier(rank);
        if (rank == 2) UntilSomebodyKnocks(*all);
        all = Must(all->Reform({}));
        ASSERT_NE(all, nullptr);
      }
      ExpectRanks(*all, rank, 3);
      EXPECT_EQ(all->shares_memory(), GetParam() == Wire::kShared);
      // It is a communicator like any other.
      Made part = Must(all->Split({.color = rank == 0 ? kNoGroup : 0}));
      if (part != nullptr) {
        EXPECT_TRUE(part->Barrier().ok());
      }
      meeting.Barrier(rank);
      if (rank == 0) all->Abort(Status(Code::kCancelled, "TEST01", "enough"));
      EXPECT_EQ(all->Barrier().tag(), "TEST01");
      Made again = Must(all->Shrink());
      ASSERT_NE(again, nullptr);
      ExpectRanks(*again, rank, 3);
      meeting.Barrier(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

// What it has submitted is there on all ranks, though nobody has waited for it; what is left behind fails nobody.
TEST_P(Reforming, NothingOfARankThatLeavesIsMissing) {
  constexpr int kCalls = 40;
  constexpr std::int64_t kCount = 50'000;
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t me = all.rank();
    std::vector<std::vector<float>> x(kCalls);
    std::vector<Handle> handles;
    for (int call = 0; call < kCalls; ++call) {
      x[call].assign(kCount, static_cast<float>(me + call));
      auto handle = all.Submit({.in = x[call].data(), .out = x[call].data(), .count = kCount, .name = "later"}, {.priority = -call});
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      handles.push_back(*handle);
    }
    Made more;
    if (me == 0) {
      EXPECT_TRUE(all.Leave().ok());
    } else {
      more = Must(all.Reform({}));
      ASSERT_NE(more, nullptr);
    }
    for (int call = 0; call < kCalls; ++call) {
      Status status = all.Wait(handles[call]);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(x[call], std::vector<float>(kCount, static_cast<float>(3 + 3 * call)));
    }
    if (me == 0) return;  // and destroys it, while the others go on
    for (int round = 0; round < 20; ++round) ExpectRanks(*more, me - 1, 2);
    EXPECT_EQ(all.Barrier().tag(), "COLL33");
    EXPECT_EQ(all.Shrink().status().tag(), "COLL33");
    EXPECT_EQ(all.Reform({}).status().tag(), "COLL33");
    EXPECT_EQ(all.Invite().status().tag(), "COLL33");
    (void)meeting;
  });
}

// One rank alone grows by two at once. Nobody says when the second one has knocked: so it is tried again where it came too late.
TEST_P(Reforming, TwoComeAtOnceByOneDoor) {
  bool have_met = false;
  for (int attempt = 1; attempt <= 5 && !have_met; ++attempt) {
    Meeting alone(1);
    Made all = Must(Communicator::Connect(alone.Of(0), Over(GetParam())));
    ASSERT_NE(all, nullptr);
    ExpectRanks(*all, 0, 1);
    const std::string ticket = *all->Invite();
    std::vector<std::thread> threads;
    for (std::int32_t i = 0; i < 2; ++i)
      threads.emplace_back([&ticket] {
        auto joined = Communicator::Join(ticket, As(-1));
        if (joined.ok()) {
          ExpectRanks(**joined, (*joined)->rank(), (*joined)->ranks());
        } else {
          EXPECT_EQ(joined.status().tag(), "COLL31") << joined.status().ToString();
        }
      });
    UntilSomebodyKnocks(*all);
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * attempt));
    Made more = Must(all->Reform({}));
    ASSERT_NE(more, nullptr);
    have_met = more->ranks() == 3;
    ExpectRanks(*more, 0, more->ranks());
    all.reset();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(have_met);
}

// By two doors, while a third rank leaves; one of them wants to be the first.
TEST_P(Reforming, TwoComeAtOnceByTwoDoorsWhileOneLeaves) {
  Meeting meeting(5);
  std::string tickets[2];
  std::vector<std::thread> newcomers;
  for (std::int32_t i = 0; i < 2; ++i)
    newcomers.emplace_back([&, i] {
      meeting.Barrier(3 + i);
      Made all = Must(Communicator::Join(tickets[i], As(i == 0 ? 0 : -1)));
      ASSERT_NE(all, nullptr);
      ExpectRanks(*all, i == 0 ? 0 : 3, 4);
    });
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const std::int32_t rank = all.rank();
    if (rank < 2) tickets[rank] = *all.Invite();
    meeting.Barrier(rank);
    if (rank < 2) UntilSomebodyKnocks(all);
    Made more = Must(all.Reform({.leaves = rank == 1}));  // with its door
    EXPECT_EQ(more == nullptr, rank == 1);
    if (more != nullptr) ExpectRanks(*more, rank == 0 ? 1 : 2, 4);
  });
  for (std::thread& newcomer : newcomers) newcomer.join();
}

// ---- who is not let in -----------------------------------------------------------------------------------------------------------------

// Speaks to the door itself; returns what it was told in the end.
Status SpeakAt(const Ticket& ticket, const std::string& word) {
  auto channel = rpc::Channel::Connect(ticket.address, ticket.secret, "newcomer", 60'000);
  if (!channel.ok()) return channel.status();
  RETURN_IF_ERROR((*channel)->Send(rpc::FrameKind::kMessage, word));
  for (;;) {
    auto frame = (*channel)->Receive(60'000);
    if (!frame.ok()) return frame.status();
    if (frame->payload[0] == 5) return Status(Code::kUnavailable, "TEST01", "refused", frame->payload);
  }
}

TEST_P(Reforming, RefusesWhoHasAnotherTicketOrVersionOrWantsAnImpossibleNumber) {
  struct Guest {
    std::string name;
    std::function<Status(const std::string&)> knock;
    std::function<void(const Status&)> check;
  };
  const std::vector<Guest> guests = {
      {"with the secret of another job",
       [](const std::string& ticket) {
         Ticket other = *DecodeTicket(ticket);
         other.secret = std::string(32, 's');
         return Communicator::Join(Encode(other), As(-1)).status();
       },
       [](const Status& status) {
         EXPECT_EQ(status.tag(), "COLL32") << status.ToString();
         EXPECT_EQ(status.code(), Code::kUnauthenticated);
       }},
      {"of another version",
       [](const std::string& ticket) {
         std::string word(1, '\1');
         word += std::string("\x63\0", 2) + std::string(4, '\xff') + std::string("\1x", 2);
         return SpeakAt(*DecodeTicket(ticket), word);
       },
       [](const Status& status) {
         EXPECT_NE(status.why().find("this newcomer is of version 99"), std::string::npos) << status.ToString();
       }},
      {"that wants a number which there is not", [](const std::string& ticket) { return Communicator::Join(ticket, As(7)).status(); },
       [](const Status& status) {
         EXPECT_EQ(status.tag(), "COLL30") << status.ToString();
         EXPECT_EQ(status.code(), Code::kInvalid);
       }},
      {"that talks nonsense", [](const std::string& ticket) { return SpeakAt(*DecodeTicket(ticket), "what?"); },
       [](const Status& status) { EXPECT_FALSE(status.ok()); }},
      {"whose place is none",
       [](const std::string& ticket) {
         std::string word(1, '\1');
         word += std::string("\1\0", 2) + std::string(4, '\xff') + std::string("\1x", 2);
         return SpeakAt(*DecodeTicket(ticket), word);
       },
       [](const Status& status) { EXPECT_FALSE(status.ok()); }},
  };
  for (const Guest& guest : guests) {
    SCOPED_TRACE("a newcomer " + guest.name);
    std::string ticket;
    Meeting door(3);
    std::thread thread([&] {
      door.Barrier(2);
      guest.check(guest.knock(ticket));
    });
    WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting&) {
      const std::int32_t rank = all.rank();
      if (rank == 0) ticket = *all.Invite();
      door.Barrier(rank);
      if (rank == 0) UntilSomebodyKnocks(all);
      // It is left out, whatever it is; the ranks go on.
      Made more = Must(all.Reform({}));
      ASSERT_NE(more, nullptr);
      ExpectRanks(*more, rank, 2);
    });
    thread.join();
  }
}

TEST(Tickets, AreReadBackAndNothingElseIs) {
  const Ticket ticket{.address = "127.0.0.1:4711", .secret = std::string("\0\xff secret", 9)};
  auto back = DecodeTicket(Encode(ticket));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->address, ticket.address);
  EXPECT_EQ(back->secret, ticket.secret);
  for (const char* text : {"", "ropewalk-", "ropewalk-1/x", "ropewalk-1//", "ropewalk-1/127.0.0.1:1/", "ropewalk-1/127.0.0.1:1/xyz",
                           "ropewalk-1/nowhere/00", "http://127.0.0.1:1/00"})
    EXPECT_EQ(DecodeTicket(text).status().code(), Code::kInvalid) << text;
  EXPECT_EQ(DecodeTicket("ropewalk-2/127.0.0.1:1/00").status().tag(), "COLL23");
  EXPECT_EQ(Communicator::Join("no ticket", {}).status().tag(), "COLL30");
}

// Who comes when the ranks have been formed anew, or whom nobody takes in, is told so, and when it may come again.
TEST_P(Reforming, WhoIsNotTakenInIsToldSo) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t rank = all.rank();
    std::string ticket;
    if (rank == 0) {
      ticket = *all.Invite();
      JoinOptions hasty = As(-1);
      hasty.timeout_ms = 200;
      const Status status = Communicator::Join(ticket, hasty).status();
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    }
    Made more = Must(all.Reform({}));
    ASSERT_NE(more, nullptr);
    ExpectRanks(*more, rank, 2);
    if (rank == 0) {
      const Status status = Communicator::Join(ticket, As(-1)).status();
      EXPECT_EQ(status.tag(), "COLL31") << status.ToString();
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_NE(status.fix().find("take a new ticket"), std::string::npos) << status.ToString();
    }
    meeting.Barrier(rank);
  });
}

// One that waits at a door whose rank goes on with calls is in nobody's way, and neither is one that connects and says nothing.
TEST_P(Reforming, WhoeverWaitsAtADoorDisturbsNobody) {
  WithRanks(2, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t rank = all.rank();
    std::thread waits;
    int silent = -1;
    if (rank == 0) {
      const std::string ticket = *all.Invite();
      auto addresses = rpc::ResolveAddress(DecodeTicket(ticket)->address);
      ASSERT_TRUE(addresses.ok());
      silent = socket((*addresses)[0].storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      ASSERT_EQ(connect(silent, reinterpret_cast<const sockaddr*>(&(*addresses)[0].storage), (*addresses)[0].size), 0);
      waits = std::thread([ticket] {
        Made all = Must(Communicator::Join(ticket, As(-1)));
        ASSERT_NE(all, nullptr);
        ExpectRanks(*all, 2, 3);
      });
    }
    for (int round = 0; round < 50; ++round) ExpectRanks(all, rank, 2);
    if (rank == 0) UntilSomebodyKnocks(all);  // not the silent one
    Made more = Must(all.Reform({}));
    ASSERT_NE(more, nullptr);
    ExpectRanks(*more, rank, 3);
    if (waits.joinable()) waits.join();
    if (silent >= 0) close(silent);
    meeting.Barrier(rank);
  });
}

// The control of the agreement: one that has the ticket, and was not in what the ranks agreed on, knocks at their mesh itself, with all
// that a ticket tells. It proves nothing there.
TEST_P(Reforming, WhoMissedTheAgreementTakesNoPart) {
  std::atomic<int> refused{0};
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting& meeting) {
    const std::int32_t rank = all.rank();
    std::string secret;
    if (rank == 0) secret = DecodeTicket(*all.Invite())->secret;
    std::atomic<bool> is_over{false};
    std::thread rogue;
    if (rank == 0)
      rogue = std::thread([&] {
        // The sockets of this process that listen at this moment are those of the ranks.
        while (!is_over) {
          for (int fd = 3; fd < 256; ++fd) {
            int listens = 0;
            socklen_t bytes = sizeof(listens);
            if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
            sockaddr_storage address{};
            bytes = sizeof(address);
            if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) continue;
            // Where they are not accepted, it would wait.
            if (address.ss_family != (GetParam() == Wire::kTcp ? AF_INET : AF_UNIX)) continue;
            const int stranger = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
            (void)setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
            // The hello of rank 2 to rank 0, as mesh.cc has it.
            std::string hello(40, '\0');
            const std::uint32_t magic = 0x4c4c4548, from = 2;
            const std::uint16_t version = 3;
            std::memcpy(hello.data(), &magic, 4);
            std::memcpy(hello.data() + 4, &version, 2);
            std::memcpy(hello.data() + 12, &from, 4);
            const std::string role = hello.substr(0, 24), nonce = hello.substr(24);
            char challenge[48];
            if (connect(stranger, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
                send(stranger, hello.data(), hello.size(), MSG_NOSIGNAL) == 40 &&
                recv(stranger, challenge, sizeof(challenge), MSG_WAITALL) == 48) {
              const std::string proof = rpc::AuthProof(secret, "connect", role, nonce, std::string_view(challenge, 16));
              (void)!send(stranger, proof.data(), proof.size(), MSG_NOSIGNAL);
              char more;
              if (recv(stranger, &more, 1, 0) <= 0) ++refused;
            }
            close(stranger);
          }
        }
      });
    Made before;
    for (int round = 0; round < 30; ++round) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the others wait for it
      Made more = Must((before == nullptr ? all : *before).Reform({}));
      ASSERT_NE(more, nullptr);
      before = std::move(more);
      ExpectRanks(*before, rank, 3);
    }
    is_over = true;
    if (rogue.joinable()) rogue.join();
    meeting.Barrier(rank);
  });
  std::printf("%d times a stranger with the ticket was refused\n", refused.load());
  EXPECT_GT(refused, 0);
}

// ---- mistakes --------------------------------------------------------------------------------------------------------------------------

TEST_P(Reforming, WaitsNoLongerThanItMayForARankThatDoesNotCome) {
  CommunicatorOptions options = Over(GetParam());
  options.timeout_ms = 1'000;
  WithRanks(3, options, [&](Communicator& all, Meeting& meeting) {
    if (all.rank() != 2) {
      const Status status = all.Reform({}).status();
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_TRUE(status.what().starts_with("rank 2 did not come")) << status.ToString();
    }
    meeting.Barrier(all.rank());
    // It hears of it when it comes, and the communicator is as it was.
    if (all.rank() == 2) {
      EXPECT_EQ(all.Reform({}).status().tag(), "COLL28");
    }
    meeting.Barrier(all.rank());
    ExpectRanks(all, all.rank(), 3);
    Made more = Must(all.Reform({}));
    ASSERT_NE(more, nullptr);
    ExpectRanks(*more, all.rank(), 3);
    meeting.Barrier(all.rank());
  });
}

TEST_P(Reforming, GoesOnAfterAFailureWithNewcomersInTheirPlaces) {
  std::string ticket;
  Meeting door(4);
  std::thread newcomer([&] {
    door.Barrier(3);
    Made all = Must(Communicator::Join(ticket, As(1)));
    ASSERT_NE(all, nullptr);
    ExpectRanks(*all, 1, 3);
  });
  WithRanks(3, Over(GetParam()), [&](Communicator& all, Meeting&) {
    const std::int32_t me = all.rank();
    ExpectRanks(all, me, 3);
    if (me == 0) ticket = *all.Invite();
    door.Barrier(me);
    if (me == 1) return;  // without a word to the others
    EXPECT_EQ(all.Barrier().tag(), "COLL20");
    if (me == 0) UntilSomebodyKnocks(all);
    Made more = Must(all.Reform({}));
    ASSERT_NE(more, nullptr);
    ExpectRanks(*more, me, 3);
  });
  newcomer.join();
}

// Two hundred rounds over each wire in which some leave and some come, drawn by all alike; the sum says who is there.
TEST_P(Reforming, AtRandomTwoHundredTimes) {
  constexpr std::int32_t kSeats = 4, kRounds = 200;
  const std::uint64_t seed = 20261201;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Meeting meeting(kSeats);
  std::vector<std::string> tickets(kRounds);
  std::vector<std::thread> threads;
  std::atomic<int> left{0}, came{0};
  for (std::int32_t seat = 0; seat < kSeats; ++seat)
    threads.emplace_back([&, seat] {
      Made all = Must(Communicator::Connect(meeting.Of(seat), Over(GetParam())));
      ASSERT_NE(all, nullptr);
      Random shared(seed);
      std::vector<std::int32_t> members(kSeats), outside;  // seats by rank
      for (std::int32_t other = 0; other < kSeats; ++other) members[other] = other;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::int32_t> stay, leave;
        for (std::int32_t member : members) (shared.OneIn(3) ? leave : stay).push_back(member);
        if (stay.empty()) std::swap(stay, leave);
        const std::int32_t host = members[shared.Below(members.size())];
        const bool comes = !outside.empty() && shared.OneIn(2);
        const std::int32_t comer = comes ? outside[shared.Below(outside.size())] : -1;
        const std::int32_t wish = comes && shared.OneIn(2) ? static_cast<std::int32_t>(shared.Below(stay.size() + 1)) : -1;
        if (seat == host) tickets[round] = *all->Invite();
        meeting.Barrier(seat);
        if (seat == comer) {
          all = Must(Communicator::Join(tickets[round], As(wish)));
          ++came;
        } else if (all != nullptr) {
          const bool leaves = std::find(leave.begin(), leave.end(), seat) != leave.end();
          if (comes && seat == host) UntilSomebodyKnocks(*all);
          Made next = Must(all->Reform({.leaves = leaves}));
          EXPECT_EQ(next == nullptr, leaves);
          all = std::move(next);
          left += leaves ? 1 : 0;
        }
        std::erase(outside, comer);
        outside.insert(outside.end(), leave.begin(), leave.end());
        members = stay;
        if (comes) members.insert(wish < 0 ? members.end() : members.begin() + wish, comer);
        const auto me = std::find(members.begin(), members.end(), seat);
        ASSERT_EQ(all != nullptr, me != members.end());
        if (all != nullptr) ExpectRanks(*all, static_cast<std::int32_t>(me - members.begin()), static_cast<std::int32_t>(members.size()));
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("%d left, %d came\n", left.load(), came.load());
  EXPECT_GT(left, 10);
  EXPECT_GT(came, 10);
}

}  // namespace
}  // namespace ropewalk::collective::testing
