#include <dlfcn.h>

#include <cstdio>
#include <utility>

#include <jpeglib.h>
#if defined(FASTLOAD_WEBP)
#include <webp/decode.h>
#endif

#include "codecs/codecs.h"

namespace fastload {
namespace {

// `function` is the library's.
template <class Function>
LinkedLibrary linked(const char* name, std::string version, const char* built_with, Function* function) {
  Dl_info about{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(function), &about) != 0 && about.dli_fname != nullptr;
  return {name, std::move(version), built_with, found ? about.dli_fname : ""};
}

}  // namespace

std::vector<LinkedLibrary> linked_libraries() {
#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)
  const char* const jpeg_version = FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION);
  std::vector<LinkedLibrary> libraries{linked("libjpeg", jpeg_version, FASTLOAD_JPEG_FILE, &jpeg_std_error)};
#if defined(FASTLOAD_WEBP)
  libraries.push_back(linked("libwebp", webp_version(), FASTLOAD_WEBP_FILE, &WebPGetDecoderVersion));
#endif
  return libraries;
}

}  // namespace fastload
