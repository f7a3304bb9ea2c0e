// How failures are known that the scheduler, or a worker, answers in its own way. Tags say who fails; what they are called is told to
// people, so it stays.
//
// Thread rule: values.
#pragma once

namespace ropewalk::dag {

// A task's code could not get the memory it asked for (std::bad_alloc): other machines have no more.
inline constexpr char kOutOfMemoryTag[] = "MEM01";

// An executor was killed, and its worker cannot tell whether for lack of memory or by somebody.
inline constexpr char kPerhapsOutOfMemoryTag[] = "WORKER37";

// What ranks are told when their gang is lost (GangContext::OnLost), and what a communicator says of a peer that is gone: a rank that ends
// with these tells of another one.
inline constexpr char kRankLostTag[] = "GANG02";
inline constexpr char kPeerLostTag[] = "COLL20";

// With this code an executor ends that finds its socket to its worker closed by the job's code: nothing else can reach the worker then.
// A job may end with the same by itself, so it is none that programs use: neither of sysexits.h (64..78) nor of shells (from 126 on).
inline constexpr int kExitSocketClosed = 117;
// What its worker calls that, as the most likely cause: the reason says more than a crash does.
inline constexpr char kSocketClosedTag[] = "WORKER32";

}  // namespace ropewalk::dag
