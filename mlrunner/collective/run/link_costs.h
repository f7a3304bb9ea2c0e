// What messages cost between the ranks of a communicator, measured once for the machines that they are on and kept in a file: the next gang
// on the same machines need not wait for it.
//
//   folder/links-<hash of the key>     the key (form of the file, wire, machine of each rank), the numbers and when they were measured, a
//                                      checksum
//
// A file is written beside its name and renamed, so that who reads at the same time has the old one or the new one, and only its owner may
// read it. One that is damaged, of another form, or of another key with the same hash is as good as none.
//
// Thread rule: functions; CostsOf() as Communicator::Run(). Files may be read and written by any number of processes.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/link_model.h"
#include "mlrunner/collective/run/chooser.h"

namespace ropewalk::collective {

// A blocking call of all ranks, with nothing submitted under way: what rank 0 has on file, or what is measured now (Calibrate,
// MeasureCorrections), and then kept by rank 0; what it says, all use. A file that cannot be written costs time, not the communicator:
// `not_kept` says why. `ground`: of the communicator. `machines`: of all ranks. `folder`: rank 0's; empty: "links" in the home folder.
// Fails as Calibrate().
Result<Costs> CostsOf(Communicator* ranks, ChooseBy by, const Ground& ground, const std::vector<std::string>& machines,
                      const std::string& folder);

// As bytes that travel and lie in files, but for where they are from. kDataLoss (COLL35) when they are no costs.
std::string Encode(const Costs& costs);
Result<Costs> DecodeCosts(std::string_view bytes);

// Of the machines and nodes of all ranks, in their order: another placement has other links.
std::string CostsKey(bool shares_memory, const std::vector<std::string>& machines, const Nodes& nodes);
std::string CostsFile(const std::string& folder, std::string_view key);
// kNotFound (COLL34) when there is none; kDataLoss (COLL35) when it cannot be read, was damaged, or is another key's.
Result<Costs> ReadCosts(const std::string& folder, std::string_view key);
// Makes the folder, too. kUnavailable (COLL34).
Status WriteCosts(const std::string& folder, std::string_view key, const Costs& costs);

}  // namespace ropewalk::collective
