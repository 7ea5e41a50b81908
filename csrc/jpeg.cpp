#include "jpeg.h"

#include <algorithm>
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <jpeglib.h>
// jerror.h after jpeglib.h, which it needs.
#include <jerror.h>

namespace fastload {
namespace {

constexpr std::uint32_t bit(Subsampling subsampling) { return 1u << static_cast<int>(subsampling); }

std::atomic<std::uint32_t> trusted{bit(Subsampling::gray) | bit(Subsampling::s444) | bit(Subsampling::s422) |
                                   bit(Subsampling::s420)};

// libjpeg's coefficient arrays of a progressive image may take this much; beyond it, an image is `unsupported`.
constexpr long kMaxLibjpegBytes = 1L << 29;

// A progressive image of more pixels than this takes so long that asking malloc to give its memory back costs nothing.
constexpr std::uint64_t kHugePixels = std::uint64_t{4} << 20;

// Fancy upsampling looks at most one chroma sample, so two pixels, to each side; and libjpeg treats a cropped row's
// ends like the image's. (4:1:1 and 4:1:0 are upsampled by repetition, without a look aside.)
constexpr std::uint32_t kMargin = 2;
// Below three chroma samples libjpeg upsamples by repetition. Never crop that narrow: 4 * 8 leaves eight in 4:1:1.
constexpr std::uint32_t kMinWidth = 32;

}  // namespace

struct Decoder::State {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  std::jmp_buf escape;
  bool created = false;
  Status jump_status = Status::corrupt;
  bool warned = false;
  char text[JMSG_LENGTH_MAX];

  State() {
    std::memset(&info, 0, sizeof info);
    text[0] = '\0';
    info.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    errors.output_message = [](j_common_ptr) {};
    info.client_data = this;
    source.init_source = [](j_decompress_ptr) {};
    source.term_source = [](j_decompress_ptr) {};
    source.fill_input_buffer = on_end_of_data;
    source.skip_input_data = skip;
    source.resync_to_restart = jpeg_resync_to_restart;
  }
  ~State() {
    if (created) jpeg_destroy_decompress(&info);
  }

  static State& of(j_common_ptr info) { return *static_cast<State*>(info->client_data); }

  [[noreturn]] static void on_error(j_common_ptr info) {
    State& state = of(info);
    info->err->format_message(info, state.text);
    switch (info->err->msg_code) {
#if JPEG_LIB_VERSION < 70  // later interfaces (Ubuntu's is 80) have no such code
      case JERR_ARITH_NOTIMPL: state.jump_status = Status::arithmetic; break;
#endif
      case JERR_NO_BACKING_STORE:
      case JERR_OUT_OF_MEMORY:
      case JERR_NOT_COMPILED:
      case JERR_BAD_LIB_VERSION:
      case JERR_BAD_STRUCT_SIZE: state.jump_status = Status::unsupported; break;
      default: state.jump_status = Status::corrupt;
    }
    std::longjmp(state.escape, 1);
  }

  static void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;  // a trace
    // These two have no bearing on the pixels.
    if (info->err->msg_code == JWRN_ADOBE_XFORM || info->err->msg_code == JWRN_JFIF_MAJOR) return;
    State& state = of(info);
    if (!state.warned) info->err->format_message(info, state.text);
    state.warned = true;
  }

  // Pillow feeds a file by suspension; at its end, a decoder that still wants bytes means a truncated file.
  static boolean on_end_of_data(j_decompress_ptr info) {
    State& state = of(reinterpret_cast<j_common_ptr>(info));
    state.jump_status = Status::truncated;
    std::snprintf(state.text, sizeof state.text, "the file ends at row %u of %u", info->output_scanline,
                  info->image_height);
    std::longjmp(state.escape, 1);
  }

  static void skip(j_decompress_ptr info, long count) {
    jpeg_source_mgr* source = info->src;
    if (count <= 0) return;
    if (static_cast<std::size_t>(count) > source->bytes_in_buffer) {
      source->next_input_byte += source->bytes_in_buffer;
      source->bytes_in_buffer = 0;
      on_end_of_data(info);
      return;
    }
    source->next_input_byte += count;
    source->bytes_in_buffer -= static_cast<std::size_t>(count);
  }

  // Makes libjpeg's state new, or as good as new. Calls of it may jump to `escape`.
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
      info.mem->max_memory_to_use = kMaxLibjpegBytes;
    }
  }

  // Gives the image's memory back; libjpeg takes it anew for each.
  Status release(Status status) {
    if (!created) return status;
#if defined(__GLIBC__)
    // malloc would keep up to 64 MiB of what an image of several scans took, in every thread.
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
  Status look_at_rest();
};

// Tells libjpeg which columns and rows to decode, and moves it to the first of them.
RowLayout Decoder::State::crop(const Region& region) {
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

// A progressive file whose last refinements are missing is decoded with smoothing between blocks, which looks farther
// than the margin and which libjpeg-turbo changed between versions.
bool Decoder::State::smooths_blocks() const {
  if (!info.progressive_mode || info.coef_bits == nullptr) return false;
  for (int component = 0; component < info.num_components; ++component) {
    for (int i = 0; i < 10; ++i)
      if (info.coef_bits[component][i] != 0) return true;
  }
  return false;
}

// Whether the data from here on is the scan's rest and the end marker. Then libjpeg could at most warn about it, which
// Pillow ignores, so the rows already out are what Pillow returns. Costs a memchr over the rest instead of decoding it.
// With anything else in there, Pillow may raise, and what exactly makes it raise depends on libjpeg-turbo's version.
Status Decoder::State::look_at_rest() {
  int marker = info.unread_marker;
  const JOCTET* at = source.next_input_byte;
  const JOCTET* end = at + source.bytes_in_buffer;
  while (true) {
    if (marker == 0xD9) return Status::ok;
    if (marker != 0 && (marker < 0xD0 || marker > 0xD7)) {
      std::snprintf(text, sizeof text, "marker FF %02X below the region", static_cast<unsigned>(marker));
      return Status::corrupt;
    }
    at = at < end ? static_cast<const JOCTET*>(std::memchr(at, 0xFF, static_cast<std::size_t>(end - at))) : nullptr;
    while (at != nullptr && at < end && *at == 0xFF) ++at;  // fill bytes may precede a marker
    if (at == nullptr || at == end) {
      std::snprintf(text, sizeof text, "no end marker");
      return Status::truncated;
    }
    marker = *at++;
  }
}

Decoder::Decoder() : state_(new State) {}
Decoder::~Decoder() = default;

Status Decoder::start(const std::uint8_t* data, std::size_t size, const JpegHeader& header, const Region& region,
                      const DecodeOptions& options, RowLayout& layout) {
  State& s = *state_;
  s.text[0] = '\0';
  const Status supported = check_supported(header, options.max_pixels);
  if (supported != Status::ok) return supported;
  // No object with a destructor may live in this function: libjpeg's errors jump out of it.
  if (setjmp(s.escape)) return s.release(s.jump_status);
  s.warned = false;
  s.renew(header.tables_complete);
  s.source.next_input_byte = data;
  s.source.bytes_in_buffer = size;
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
  if (s.warned) return s.release(Status::corrupt);
  if (s.smooths_blocks()) return s.release(Status::unsupported);
  const std::uint32_t image_width = s.info.output_width, image_height = s.info.output_height;
  if (region.width == 0 || region.height == 0 || region.left > image_width || region.top > image_height ||
      region.width > image_width - region.left || region.height > image_height - region.top) {
    return s.release(Status::bad_geometry);
  }
  layout = s.crop(region);
  return Status::ok;
}

Status Decoder::read(std::uint8_t* const* rows, int count) {
  State& s = *state_;
  if (setjmp(s.escape)) return s.release(s.jump_status);
  return s.read(const_cast<JSAMPARRAY>(rows), static_cast<JDIMENSION>(count)) ? Status::ok : s.release(Status::corrupt);
}

Status Decoder::finish() {
  State& s = *state_;
  if (setjmp(s.escape)) return s.release(s.jump_status);
  if (s.warned) return s.release(Status::corrupt);
  // A file of several scans has been read to its end by now.
  return s.release(jpeg_has_multiple_scans(&s.info) ? Status::ok : s.look_at_rest());
}

const char* Decoder::message() const { return state_->text; }

Decoder& thread_decoder() {
  static thread_local Decoder decoder;
  return decoder;
}

Status check_supported(const JpegHeader& header, std::uint64_t max_pixels) {
  if (max_pixels != 0 && std::uint64_t{header.width} * header.height > max_pixels) return Status::bomb;
  if ((trusted_subsamplings() & bit(header.subsampling)) == 0) return Status::unsupported;
  return Status::ok;
}

void set_trusted_subsamplings(std::uint32_t mask) { trusted.store(mask, std::memory_order_relaxed); }
std::uint32_t trusted_subsamplings() { return trusted.load(std::memory_order_relaxed); }

std::string libjpeg_version() {
#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)
  return "libjpeg-turbo " FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION) " (API " FASTLOAD_TEXT(JPEG_LIB_VERSION) ")";
}

}  // namespace fastload
