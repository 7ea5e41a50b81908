#include "jpeg.h"

#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // first, so that libjpeg's pointer to it is a pointer to this
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  manager->base.format_message(info, manager->message);
  std::longjmp(manager->escape, 1);
}

void stay_silent(j_common_ptr) {}

Subsampling subsampling_of(const jpeg_decompress_struct& info) {
  if (info.num_components == 1) return Subsampling::gray;
  if (info.num_components < 3) return Subsampling::other;
  const auto* luma = &info.comp_info[0];
  for (int i = 1; i < 3; ++i) {
    if (info.comp_info[i].h_samp_factor != 1 || info.comp_info[i].v_samp_factor != 1) {
      // Some encoders write 4:4:4 with every factor 2; what counts is the ratio.
      if (info.comp_info[i].h_samp_factor == luma->h_samp_factor &&
          info.comp_info[i].v_samp_factor == luma->v_samp_factor)
        continue;
      return Subsampling::other;
    }
  }
  if (info.comp_info[1].h_samp_factor == luma->h_samp_factor && info.comp_info[1].v_samp_factor == luma->v_samp_factor)
    return Subsampling::s444;
  switch (luma->h_samp_factor * 10 + luma->v_samp_factor) {
    case 21: return Subsampling::s422;
    case 22: return Subsampling::s420;
    case 12: return Subsampling::s440;
    case 41: return Subsampling::s411;
    case 42: return Subsampling::s410;
    default: return Subsampling::other;
  }
}

}  // namespace

const char* name_of(Subsampling subsampling) {
  switch (subsampling) {
    case Subsampling::gray: return "gray";
    case Subsampling::s444: return "4:4:4";
    case Subsampling::s422: return "4:2:2";
    case Subsampling::s420: return "4:2:0";
    case Subsampling::s440: return "4:4:0";
    case Subsampling::s411: return "4:1:1";
    case Subsampling::s410: return "4:1:0";
    case Subsampling::other: break;
  }
  return "other";
}

bool read_header(const std::uint8_t* data, std::size_t size, JpegHeader& header, std::string& error) {
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) {
    error = "not a JPEG file (it does not start with FF D8 FF)";
    return false;
  }
  jpeg_decompress_struct info;
  ErrorManager errors;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = on_error;
  errors.base.output_message = stay_silent;
  errors.message[0] = '\0';
  // Nothing with a destructor may be created between here and the end of the jump's reach.
  if (setjmp(errors.escape)) {
    jpeg_destroy_decompress(&info);
    error = errors.message;
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, data, static_cast<unsigned long>(size));
  jpeg_read_header(&info, TRUE);
  header.width = info.image_width;
  header.height = info.image_height;
  header.components = info.num_components;
  header.subsampling = subsampling_of(info);
  header.progressive = info.progressive_mode == TRUE;
  jpeg_destroy_decompress(&info);
  return true;
}

std::string libjpeg_version() {
#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)
  return "libjpeg-turbo " FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION) " (API " FASTLOAD_TEXT(JPEG_LIB_VERSION) ")";
}

}  // namespace fastload
