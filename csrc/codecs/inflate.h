// Inflates zlib's streams, and refuses what zlib refuses. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// By how many bytes the memory for inflated data must be larger.
inline constexpr std::size_t kInflatePadding = 320;

// Inflates a whole stream to at most `most` bytes; `made` is how many. False if it has more, if bytes are missing or
// left, if a checksum is wrong, or if zlib refuses a code: `to` then has any contents. Also overwrites the padding.
bool inflate(const std::uint8_t* data, std::size_t size, std::uint8_t* to, std::size_t most, std::size_t& made);

// A PNG chunk's checksum.
std::uint32_t crc_32(const std::uint8_t* data, std::size_t size);

}  // namespace fastload
