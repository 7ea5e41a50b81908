// The sources in csrc/gpu/kernels, which are compiled at run time.
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

constexpr std::pair<std::string_view, std::string_view> kSources[] = {
#include <kernel_sources.inc>  // made by CMakeLists.txt: the files' names and texts
};

std::string_view kernel_source(const std::string& file) {
  for (const auto& [name, text] : kSources) {
    if (name == file) return text;
  }
  throw nb::value_error(
      ("there must be a file of the name among the kernels' sources, but there is no " + file).c_str());
}

}  // namespace

void bind_kernels(nb::module_& m) { m.def("kernel_source", &kernel_source, "file"_a); }

}  // namespace fastload
