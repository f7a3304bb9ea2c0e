// The commit of an output by one of several attempts.
//
// An attempt that is taken for dead may be alive, on another machine perhaps, and go on at any step of its commit. Nothing can be locked
// over all file systems, so what a commit works on is a folder of which there is one, whose name says whose it is:
//
//   .out.ropewalk-<key>/commit/<attempt>/p      the parts, while they are gathered
//   .out.ropewalk-<key>/commit/<attempt>/ready  the same, whole and with the manifest; exchanged with it: the former output
//   .out.ropewalk-<key>/commit/<attempt>/old    the former output, where folders cannot be exchanged in one step
//
// A later attempt takes it over by renaming it to its own number, at any step; an earlier one never does. Every step of a commit goes
// through that name, so that of an attempt which was overtaken the next step fails, whatever it is, and changes nothing. What the folder
// holds says how far the commit has come: `p`, then `ready`, then neither or another one's `ready`, which means that it was published. The
// folder is born by one rename, and what it gathers is there once: so there are never two that could be published. (Of an output of no
// parts there could be; they are the same.)
//
// Thread rule: any number of attempts at once, in threads, processes or machines, each with a number of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "storage/output_folder.h"

namespace ropewalk::storage {

// CommitOutput() of storage/output_folder.h (which is attempt 0) as attempt number `attempt`. Success says that this output was published,
// by whichever attempt. kStale OUT08: a later attempt has taken over, and it goes on where this one stood.
Status CommitOutput(const OutputSpec& spec, std::span<const std::string> winners, std::uint32_t attempt);

}  // namespace ropewalk::storage
