// Connects the ranks of a communicator with each other: one link between each two (they watch each other through it) and, over TCP, one
// socket for each channel. Nobody comes in without a proof that it knows the secret, which the ranks draw together over the rendezvous.
//
//   all ranks: listen on a Unix socket without a name in the file system, and on TCP; exchange where, and a part of the secret
//   each two:  the higher rank connects. hello ▶ ◀ challenge and proof (HMAC-SHA256) ▶ proof
//   one machine: rank 0 passes the board's memory, each rank its pool's, to all others (SCM_RIGHTS)
//
// Thread rule: a blocking call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/hosts.h"
#include "mlrunner/collective/run/shared_transport.h"

namespace ropewalk::collective {

struct Mesh {
  bool shares_memory = false;
  std::int32_t ranks_on_machine_max = 1;
  Nodes nodes;                        // the machines
  Hosts hosts;                        // by rank
  std::vector<std::string> machines;  // by rank
  std::string secret;                 // what the ranks drew
  std::uint64_t name = 0;             // of it, to tell the messages of one mesh from another's; it says nothing of the secret
  std::vector<UniqueFd> links;        // by rank
  std::vector<UniqueFd> data;         // TCP: [peer · channels + channel]
  SharedMemory board;                 // shared memory: of all
  std::vector<SharedMemory> pools;    // shared memory: by rank
};

// Thread safe: ends a ConnectMesh() that is under way, with this status.
class MeshCancel {
 public:
  MeshCancel();
  void Set(const Status& why);
  int fd() const { return bell_.get(); }  // readable once it is set
  Status why() const { return why_.why(); }
  bool is_set() const { return why_.is_set(); }

 private:
  UniqueFd bell_;
  Interruption why_;
};

// Where a rank listens until it has met its peers, and the word that tells them so.
struct MeshListener {
  UniqueFd on_unix, on_tcp;
  std::string word;
};
Result<MeshListener> ListenForMesh(const std::string& machine, const std::string& address, Wire wire);

// `words`: what all ranks say of where they listen, by rank. What `rendezvous` has for the exchange is not needed. kInvalid COLL30,
// kUnavailable COLL31, kResourceExhausted COLL13; each says where the ranks are that it names.
Result<Mesh> ConnectMesh(const MeshListener& listener, const std::vector<std::string>& words, const Rendezvous& rendezvous,
                         const CommunicatorOptions& options, std::int32_t channels, const MeshCancel& cancel);
// Both, and the exchange between them.
Result<Mesh> ConnectMesh(const Rendezvous& rendezvous, const CommunicatorOptions& options, std::int32_t channels, const MeshCancel& cancel);

}  // namespace ropewalk::collective
