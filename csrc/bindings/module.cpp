// The module: its parts, what this build has, and what may be set of it.
#include "bindings/bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/simd_level.h"
#include "codecs/codecs.h"
#include "jpeg/decoder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

std::vector<std::string> status_names() {
  std::vector<std::string> names;
  for (int i = 0; i < status_count; ++i) names.emplace_back(name_of(static_cast<Status>(i)));
  return names;
}

std::vector<std::string> subsampling_names() {
  std::vector<std::string> names;
  for (int i = 0; i < subsampling_count; ++i) names.emplace_back(name_of(static_cast<Subsampling>(i)));
  return names;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (int i = 0; i < format_count; ++i) names.emplace_back(name_of(static_cast<Format>(i)));
  return names;
}

}  // namespace

void bind_build(nb::module_& m) {
  m.def("status_names", &status_names);
  m.def("subsampling_names", &subsampling_names);
  m.def("trusted_subsamplings", &trusted_subsamplings);
  m.def("set_trusted_subsamplings", &set_trusted_subsamplings, "mask"_a);
  m.def("format_names", &format_names);
  m.def("trusted_formats", &trusted_formats);
  m.def("set_trusted_formats", &set_trusted_formats, "mask"_a);
  m.def("codec_versions", &codec_versions);
  m.def("libjpeg_version", &libjpeg_version);
  m.def("linked_libraries", [] {
    nb::list found;
    for (const LinkedLibrary& one : linked_libraries()) {
      found.append(nb::make_tuple(one.name, one.version, one.built_with, one.loaded));
    }
    return found;
  });
  m.def("simd_level", [] { return std::string(name_of(simd_level())); });
  m.def(
      "set_simd_level",
      [](const std::string& name) {
        for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::neon}) {
          if (name == name_of(level)) return set_simd_level(level);
        }
        throw nb::value_error(("no such SIMD level: " + name).c_str());
      },
      "name"_a);
  m.def("uses_own_decoder", &uses_own_decoder);
  m.def("set_own_decoder", &set_own_decoder, "enabled"_a);
  m.def("decode_counts", [] {
    const DecodeCounts counts = decode_counts();
    return nb::make_tuple(counts.own, counts.libjpeg, counts.replaced);
  });
}

}  // namespace fastload

NB_MODULE(_core, m) {
  // Pools and plans may outlive the interpreter; that is not a leak.
  nb::set_leak_warnings(false);
  fastload::bind_build(m);
  fastload::bind_decode(m);
  fastload::bind_deferred(m);
  fastload::bind_draws(m);
  fastload::bind_image(m);
  fastload::bind_index(m);
  fastload::bind_kernels(m);
  fastload::bind_lists(m);
  fastload::bind_staging(m);
  fastload::bind_stamp(m);
  fastload::bind_pool(m);
  fastload::bind_tagged(m);
}
