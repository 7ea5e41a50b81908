#include "jpeg/libjpeg_decoder.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <jpeglib.h>
// jerror.h needs jpeglib.h before it.
#include <jerror.h>

namespace fastload {
namespace {

// Limit on libjpeg's coefficient arrays of a progressive image; larger images are `unsupported`.
constexpr long kMaxLibjpegBytes = 1L << 29;

// Each scan of a progressive image visits all of its pixels, and a scan can be as short as 20 bytes: a legal file of
// 286 KB took 380 s. Pillow has no limit and would return pixels, so beyond this limit the image is `unsupported` and
// left to the caller, which can be interrupted. Encoders write about 10 scans, optimizers up to 20.
constexpr int kOrdinaryScans = 32;
constexpr std::uint64_t kMaxScannedPixels = std::uint64_t{1} << 30;  // pixels times scans; 0.6 ns each

// A progressive image with more pixels takes so long that the cost of malloc_trim is negligible.
constexpr std::uint64_t kHugePixels = std::uint64_t{4} << 20;

// Fancy upsampling reads at most one chroma sample (two pixels) to each side, and libjpeg treats a cropped row's ends
// like the image's. (4:1:1 and 4:1:0 are upsampled by repetition, without neighbours.)
constexpr std::uint32_t kMargin = 2;
// Below three chroma samples libjpeg upsamples by repetition, so never crop that narrow: 4 * 8 leaves eight in 4:1:1.
constexpr std::uint32_t kMinWidth = 32;

// libjpeg gets this much input at a time; a decode can be stopped in between. With the shortest codes that is a million
// blocks, which take 30 ms to skip.
constexpr std::size_t kPieceBytes = kChunkBytes;

// Upper bound on a coefficient's bytes in a scan: a code of 16 bits, 11 more bits, and every byte stuffed.
constexpr std::uint64_t kMaxCoefficientBytes = 8;

}  // namespace

struct LibjpegDecoder::State {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  jpeg_progress_mgr progress;
  std::jmp_buf escape;
  bool created = false;
  ByteSource* input = nullptr;
  std::size_t position = 0;  // input offset of the next bytes for libjpeg
  Status jump_status = Status::corrupt;
  char text[JMSG_LENGTH_MAX];

  State() {
    std::memset(&info, 0, sizeof info);
    std::memset(&progress, 0, sizeof progress);
    text[0] = '\0';
    info.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    errors.output_message = [](j_common_ptr) {};
    info.client_data = this;
    source.init_source = [](j_decompress_ptr) {};
    source.term_source = [](j_decompress_ptr) {};
    source.fill_input_buffer = fill;
    source.skip_input_data = skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    progress.progress_monitor = on_progress;
  }
  ~State() {
    if (created) jpeg_destroy_decompress(&info);
  }

  static State& of(void* info) { return *static_cast<State*>(static_cast<j_common_ptr>(info)->client_data); }

  [[noreturn]] void jump(Status status) {
    jump_status = status;
    std::longjmp(escape, 1);
  }

  [[noreturn]] static void on_error(j_common_ptr info) {
    State& state = of(info);
    info->err->format_message(info, state.text);
    switch (info->err->msg_code) {
#if JPEG_LIB_VERSION < 70  // later interfaces (Ubuntu's is 80) lack this code
      case JERR_ARITH_NOTIMPL: state.jump(Status::arithmetic);
#endif
      case JERR_NO_BACKING_STORE:
      case JERR_OUT_OF_MEMORY:
      case JERR_NOT_COMPILED:
      case JERR_BAD_LIB_VERSION:
      case JERR_BAD_STRUCT_SIZE: state.jump(Status::unsupported);
      default: state.jump(Status::corrupt);
    }
  }

  static void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;  // a trace
    // These two do not affect the pixels.
    if (info->err->msg_code == JWRN_ADOBE_XFORM || info->err->msg_code == JWRN_JFIF_MAJOR) return;
    State& state = of(info);
    info->err->format_message(info, state.text);
    state.jump(Status::corrupt);
  }

  // Called for each row of blocks in a file with several scans, and for each row of pixels.
  static void on_progress(j_common_ptr info) {
    State& state = of(info);
    if (state.input->stopped()) state.jump(Status::cancelled);
    const JDIMENSION width = state.info.image_width, height = state.info.image_height;
    const int scan = state.info.input_scan_number;
    if (scan <= kOrdinaryScans || std::uint64_t{width} * height * static_cast<unsigned>(scan) <= kMaxScannedPixels)
      return;
    std::snprintf(state.text, sizeof state.text, "%d scans or more of %u x %u pixels", scan, width, height);
    state.jump(Status::unsupported);
  }

  // Gives libjpeg the next bytes. False at the end.
  bool refill() {
    const Span span = input->at(position, 1);
    source.next_input_byte = span.data;
    source.bytes_in_buffer = std::min(span.size, kPieceBytes);
    position += source.bytes_in_buffer;
    return source.bytes_in_buffer > 0;
  }

  // Pillow feeds a file by suspension; at its end, a decoder that still wants bytes means a truncated file.
  static boolean fill(j_decompress_ptr info) {
    State& state = of(info);
    if (state.refill()) return TRUE;
    const Status status = state.input->failure_or(Status::truncated);
    if (status == Status::truncated) {
      std::snprintf(state.text, sizeof state.text, "the file ends at row %u of %u", info->output_scanline,
                    info->image_height);
    }
    state.jump(status);
  }

  static void skip(j_decompress_ptr info, long count) {
    if (count <= 0) return;
    State& state = of(info);
    const std::size_t skipped = std::min(static_cast<std::size_t>(count), state.source.bytes_in_buffer);
    state.source.next_input_byte += skipped;
    state.source.bytes_in_buffer -= skipped;
    state.position += static_cast<std::size_t>(count) - skipped;
    if (state.position > state.input->size()) fill(info);
  }

  // Resets libjpeg's state, or recreates it. Its calls may jump to `escape`.
  void renew(bool tables_may_stay) {
    if (created) {
      jpeg_abort_decompress(&info);
      if (!tables_may_stay) {
        created = false;
        jpeg_destroy_decompress(&info);
      }
    }
    if (!created) {
      jpeg_create_decompress(&info);
      created = true;
      info.client_data = this;
      info.progress = &progress;
      info.mem->max_memory_to_use = kMaxLibjpegBytes;
    }
  }

  // Frees the image's memory; libjpeg allocates it for each image.
  Status release(Status status) {
    if (!created) return status;
#if defined(__GLIBC__)
    // malloc would keep up to 64 MiB per thread from an image with several scans.
    const bool huge = info.coef_bits != nullptr && std::uint64_t{info.image_width} * info.image_height > kHugePixels;
    jpeg_abort_decompress(&info);
    if (huge) malloc_trim(0);
#else
    jpeg_abort_decompress(&info);
#endif
    return status;
  }

  bool read(JSAMPARRAY rows, JDIMENSION count) {
    const JDIMENSION end = info.output_scanline + count;
    while (info.output_scanline < end) {
      const JDIMENSION got = jpeg_read_scanlines(&info, rows, end - info.output_scanline);
      if (got == 0) return false;
      rows += got;
    }
    return true;
  }

  void discard(JDIMENSION count) {
    if (count == 0) return;
    JSAMPARRAY row =
        (*info.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE, info.output_width * 3, 1);
    while (count > 0 && read(row, 1)) --count;
  }

  RowLayout crop(const Region& region);
  bool smooths_blocks() const;
  Status find(bool is_ff, std::uint64_t most);
  Status look_at_rest();
};

// Tells libjpeg which columns and rows to decode, and moves it to the first of them.
RowLayout LibjpegDecoder::State::crop(const Region& region) {
  JDIMENSION left = region.left - std::min(region.left, kMargin);
  JDIMENSION right = std::min(info.output_width, region.left + region.width + kMargin);
  if (right - left < kMinWidth) {
    right = std::min(info.output_width, left + kMinWidth);
    left = right - std::min(right, kMinWidth);
  }
  JDIMENSION width = right - left;
  if (info.arith_code) {  // the arithmetic decoder cannot skip
    left = 0;
    width = info.output_width;
    discard(region.top);
  } else {
    jpeg_crop_scanline(&info, &left, &width);
    jpeg_skip_scanlines(&info, region.top);
  }
  return {left, width};
}

// libjpeg smooths between blocks if the last refinements of a progressive file are missing. Smoothing reads beyond the
// margin, and differs between versions of libjpeg-turbo.
bool LibjpegDecoder::State::smooths_blocks() const {
  if (!info.progressive_mode || info.coef_bits == nullptr) return false;
  for (int component = 0; component < info.num_components; ++component) {
    for (int i = 0; i < 10; ++i)
      if (info.coef_bits[component][i] != 0) return true;
  }
  return false;
}

// Advances to the next byte that is 0xFF (or, if !is_ff, is not), but no further than input offset `most`.
Status LibjpegDecoder::State::find(bool is_ff, std::uint64_t most) {
  while (true) {
    if (source.bytes_in_buffer == 0) {
      const bool too_far = position > most;
      if (too_far || !refill()) {
        const Status status = input->failure_or(too_far ? Status::corrupt : Status::truncated);
        if (input->failure() == Status::ok) std::snprintf(text, sizeof text, "no end marker");
        return status;
      }
    }
    const JOCTET *begin = source.next_input_byte, *end = begin + source.bytes_in_buffer;
    const JOCTET* at = begin;
    if (is_ff) {
      at = static_cast<const JOCTET*>(std::memchr(begin, 0xFF, source.bytes_in_buffer));
      if (at == nullptr) at = end;
    } else {
      while (at != end && *at == 0xFF) ++at;
    }
    source.next_input_byte = at;
    source.bytes_in_buffer = static_cast<std::size_t>(end - at);
    if (at != end) return Status::ok;
  }
}

// Whether only the rest of the scan and the end marker follow. Then libjpeg could at most warn, which Pillow ignores,
// so the rows decoded so far are what Pillow returns. Costs a memchr over the rest instead of a decode. If anything
// else follows, Pillow may raise, depending on libjpeg-turbo's version.
Status LibjpegDecoder::State::look_at_rest() {
  // Pillow reads no further than the image, so don't read gigabytes after it here either.
  const std::uint64_t coefficients = (std::uint64_t{info.image_width} + 64) * (info.image_height + 64) * 3;
  const std::uint64_t most = position + coefficients * kMaxCoefficientBytes;
  int marker = info.unread_marker;
  while (true) {
    if (marker == 0xD9) return Status::ok;
    if (marker != 0 && (marker < 0xD0 || marker > 0xD7)) {
      std::snprintf(text, sizeof text, "marker FF %02X below the region", static_cast<unsigned>(marker));
      return Status::corrupt;
    }
    Status found = find(true, most);
    if (found == Status::ok) found = find(false, most);  // fill bytes may precede a marker
    if (found != Status::ok) return found;
    marker = *source.next_input_byte++;
    --source.bytes_in_buffer;
  }
}

LibjpegDecoder::LibjpegDecoder() : state_(new State) {}
LibjpegDecoder::~LibjpegDecoder() = default;

Status LibjpegDecoder::start(ByteSource& source, const JpegHeader& header, const Region& region,
                             const DecodeOptions& options, RowLayout& layout) {
  State& s = *state_;
  // This function may hold no object with a destructor, because libjpeg's errors longjmp out of it.
  if (setjmp(s.escape)) return s.release(s.jump_status);
  s.renew(header.tables_complete);
  s.input = &source;
  s.position = 0;
  s.source.bytes_in_buffer = 0;
  s.info.src = &s.source;
  jpeg_read_header(&s.info, TRUE);
  if (s.info.image_width != header.width || s.info.image_height != header.height ||
      s.info.num_components != header.components) {
    return s.release(Status::corrupt);  // the two parsers disagree
  }
  s.info.out_color_space = JCS_RGB;
  s.info.scale_num = 1;
  s.info.scale_denom = static_cast<unsigned>(options.scale_denominator);
  jpeg_start_decompress(&s.info);
  if (s.smooths_blocks()) return s.release(Status::unsupported);
  const std::uint32_t image_width = s.info.output_width, image_height = s.info.output_height;
  if (region.width == 0 || region.height == 0 || region.left > image_width || region.top > image_height ||
      region.width > image_width - region.left || region.height > image_height - region.top) {
    return s.release(Status::bad_geometry);
  }
  layout = s.crop(region);
  return Status::ok;
}

Status LibjpegDecoder::read(std::uint8_t* const* rows, int count) {
  State& s = *state_;
  if (setjmp(s.escape)) return s.release(s.jump_status);
  return s.read(const_cast<JSAMPARRAY>(rows), static_cast<JDIMENSION>(count)) ? Status::ok : s.release(Status::corrupt);
}

Status LibjpegDecoder::finish() {
  State& s = *state_;
  if (setjmp(s.escape)) return s.release(s.jump_status);
  // A file with several scans has been read to its end by now.
  return s.release(jpeg_has_multiple_scans(&s.info) ? Status::ok : s.look_at_rest());
}

void LibjpegDecoder::clear_message() { state_->text[0] = '\0'; }
const char* LibjpegDecoder::message() const { return state_->text; }

}  // namespace fastload
