#include "jpeg/decoder.h"

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include <jpeglib.h>

#include "base/simd_level.h"
#include "jpeg/libjpeg_decoder.h"
#include "jpeg/region_decoder.h"

namespace fastload {
namespace {

constexpr std::uint32_t bit(Subsampling subsampling) { return 1u << static_cast<int>(subsampling); }

std::atomic<std::uint32_t> trusted{bit(Subsampling::gray) | bit(Subsampling::s444) | bit(Subsampling::s422) |
                                   bit(Subsampling::s420)};
// libjpeg-turbo's SIMD is faster than the portable kernels.
std::atomic<bool> own_decoder{best_simd_level() != SimdLevel::portable};
std::atomic<std::uint64_t> own_count{0}, libjpeg_count{0}, replaced_count{0};

}  // namespace

struct Decoder::State {
  LibjpegDecoder libjpeg;
  RegionDecoder own;
  bool uses_own = false;     // `own` has decoded `rows_done` rows of the image
  bool is_replaced = false;  // libjpeg continues for `own`: its rows are as wide as `replacement` says
  ByteSource* source = nullptr;
  JpegHeader header;
  Region region;
  DecodeOptions options;
  RowLayout layout, replacement;
  std::uint32_t rows_done = 0;
  std::vector<std::uint8_t> row;

  Status replace();
  Status read_replacement(std::uint8_t* const* rows, int count);
};

// Decodes the image again with libjpeg, up to where the own decoder came. Until there their rows are the same.
Status Decoder::State::replace() {
  uses_own = false;
  is_replaced = true;
  Status status = libjpeg.start(*source, header, region, options, replacement);
  if (status != Status::ok) return status;
  row.resize(std::size_t{3} * replacement.width);
  std::uint8_t* const rows = row.data();
  for (std::uint32_t i = 0; i < rows_done && status == Status::ok; ++i) status = libjpeg.read(&rows, 1);
  return status;
}

// Reads rows with libjpeg, and moves the region's columns to where the own decoder's layout has them.
Status Decoder::State::read_replacement(std::uint8_t* const* rows, int count) {
  std::uint8_t* const from = row.data();
  for (int i = 0; i < count; ++i) {
    const Status status = libjpeg.read(&from, 1);
    if (status != Status::ok) return status;
    std::memcpy(rows[i] + std::size_t{3} * (region.left - layout.left),
                from + std::size_t{3} * (region.left - replacement.left), std::size_t{3} * region.width);
  }
  return Status::ok;
}

Decoder::Decoder() : state_(new State) {}
Decoder::~Decoder() = default;

std::size_t Decoder::own_scan_bytes(ByteSource& source, const JpegHeader& header) {
  return uses_own_decoder() ? state_->own.scan_bytes(source, header) : 0;
}

Status Decoder::start(ByteSource& source, const JpegHeader& header, const Region& region, const DecodeOptions& options,
                      RowLayout& layout) {
  State& s = *state_;
  s.libjpeg.clear_message();
  s.uses_own = s.is_replaced = false;
  const Status supported = check_supported(header, options.max_pixels);
  if (supported != Status::ok) return supported;
  if (uses_own_decoder() && !options.libjpeg_only && options.scale_denominator == 1 &&
      s.own.start(source, header, region, layout, options.index)) {
    s.uses_own = true;
    s.source = &source;
    s.header = header;
    s.region = region;
    s.options = options;
    s.layout = layout;
    s.rows_done = 0;
    return Status::ok;
  }
  return s.libjpeg.start(source, header, region, options, layout);
}

Status Decoder::read(std::uint8_t* const* rows, int count) {
  State& s = *state_;
  if (s.uses_own) {
    if (s.own.read(rows, count)) {
      s.rows_done += static_cast<std::uint32_t>(count);
      return Status::ok;
    }
    const Status status = s.replace();
    if (status != Status::ok) return status;
  }
  return s.is_replaced ? s.read_replacement(rows, count) : s.libjpeg.read(rows, count);
}

Status Decoder::finish() {
  State& s = *state_;
  if (s.uses_own) {
    if (s.own.finish()) {
      own_count.fetch_add(1, std::memory_order_relaxed);
      return Status::ok;
    }
    const Status status = s.replace();
    if (status != Status::ok) return status;
  }
  const Status status = s.libjpeg.finish();
  (s.is_replaced ? replaced_count : libjpeg_count).fetch_add(1, std::memory_order_relaxed);
  return status;
}

const char* Decoder::message() const { return state_->libjpeg.message(); }

Decoder& thread_decoder() {
  static thread_local Decoder decoder;
  return decoder;
}

Status check_supported(const JpegHeader& header, std::uint64_t max_pixels) {
  if (max_pixels != 0 && std::uint64_t{header.width} * header.height > max_pixels) return Status::bomb;
  if (header.format == Format::jpeg && (trusted_subsamplings() & bit(header.subsampling)) == 0)
    return Status::unsupported;
  return Status::ok;
}

bool uses_own_decoder() { return own_decoder.load(std::memory_order_relaxed); }
void set_own_decoder(bool enabled) { own_decoder.store(enabled, std::memory_order_relaxed); }

DecodeCounts decode_counts() {
  return {own_count.load(std::memory_order_relaxed), libjpeg_count.load(std::memory_order_relaxed),
          replaced_count.load(std::memory_order_relaxed)};
}

void set_trusted_subsamplings(std::uint32_t mask) { trusted.store(mask, std::memory_order_relaxed); }
std::uint32_t trusted_subsamplings() { return trusted.load(std::memory_order_relaxed); }

std::string libjpeg_version() {
#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)
  return "libjpeg-turbo " FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION) " (API " FASTLOAD_TEXT(JPEG_LIB_VERSION) ")";
}

}  // namespace fastload
