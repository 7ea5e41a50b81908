// Removes the zero that follows each byte FF of entropy-coded data. Knows no files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Bytes that unstuff() may write behind the end of its target.
inline constexpr std::size_t kUnstuffSlack = 32;

// Copies data from [from, from_end) to [to, to_end), which do not overlap, without the zeros; both positions move to
// where it stopped. Stops before a byte FF that is the last, or is followed by anything else. Reads nothing behind
// `readable_end`, which is `from_end` or behind it; writes up to kUnstuffSlack bytes behind `to_end`.
void unstuff(const std::uint8_t*& from, const std::uint8_t* from_end, const std::uint8_t* readable_end,
             std::uint8_t*& to, const std::uint8_t* to_end);

}  // namespace fastload
