// "did you mean ...?": the nearest of the names that would have been right.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ropewalk {

// Edits (insert, delete, replace, swap of neighbours) between two names.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The candidate with the fewest edits, the first of equals; empty when none is near enough to be meant (more than a third of the name).
std::string NearestName(std::string_view name, std::span<const std::string> candidates);

}  // namespace ropewalk
