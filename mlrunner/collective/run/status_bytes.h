// A status on its way to another rank.
//
// Thread rule: pure functions.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "base/status.h"

namespace ropewalk::collective {

// Texts that are too long are cut.
void Write(const Status& status, ByteWriter* writer);
// A failure, made safe to show; nothing when the bytes are none.
std::optional<Status> ReadStatus(ByteReader* reader);

}  // namespace ropewalk::collective
