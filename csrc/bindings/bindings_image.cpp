// Changes of colour, in place.
#include "bindings/bindings.h"

#include <algorithm>
#include <limits>

#include <nanobind/ndarray.h>

#include "image/color/color.h"
#include "image/look_up.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

using Array = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::device::cpu>;
using TableArray = nb::ndarray<const std::uint8_t, nb::shape<3, 256>, nb::c_contig, nb::device::cpu>;

Image image_from(const Array& array) {
  const std::size_t most = std::numeric_limits<int>::max() / 3;  // a row's bytes fit an int
  const bool is_empty = array.size() == 0;
  if (array.shape(2) != 3 || array.shape(0) > most || array.shape(1) > most ||
      (!is_empty && (array.stride(2) != 1 || (array.stride(1) != 3 && array.shape(1) > 1)))) {
    throw nb::value_error("image must be HWC with 3 channels, and its rows contiguous");
  }
  return {array.data(), array.stride(0), static_cast<int>(array.shape(0)), static_cast<int>(array.shape(1))};
}

// A Python function that changes an image without the GIL.
template <typename... Arguments>
auto in_place(void (*change)(Image, Arguments...)) {
  return [change](const Array& array, Arguments... arguments) {
    const Image image = image_from(array);
    nb::gil_scoped_release release;
    change(image, arguments...);
  };
}

void apply(const Array& array, const TableArray& values) {
  const Image image = image_from(array);
  LevelTable table;
  for (int channel = 0; channel < 3; ++channel) std::copy_n(values.data() + channel * 256, 256, table[channel].data());
  nb::gil_scoped_release release;
  apply_table(table, image);
}

using Levels = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Batch = nb::ndarray<nb::ndim<4>, nb::device::cpu>;

void look_up_batch(const Levels& levels, const ValueTable& table, const Batch& out, bool planar) {
  LookUpJob job;
  set_table(job, table);
  job.stride = static_cast<std::ptrdiff_t>(levels.shape(3));
  job.levels = levels.data();
  job.images = levels.shape(0);
  job.pixels = levels.shape(1) * levels.shape(2);
  if (job.channels > job.stride || out.itemsize() != job.value_bytes ||
      out.size() != job.images * job.pixels * static_cast<std::size_t>(job.channels)) {
    throw nb::value_error("levels, table and out must fit: the table's channels, and values of its size");
  }
  job.out = out.data();
  job.planar = planar;
  nb::gil_scoped_release release;
  advise_large_pages(job.out, out.nbytes());
  look_up(job);
}

}  // namespace

void set_table(LookUpJob& job, const ValueTable& table) {
  const std::size_t channels = table.shape(0), bytes = table.itemsize();
  if (channels < 1 || channels > 4 || table.shape(1) != 256 || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) {
    throw nb::value_error("a table must fit pixels: 256 values of 1, 2, 4 or 8 bytes for each of 1 to 4 channels");
  }
  job.channels = static_cast<int>(channels);
  job.value_bytes = bytes;
  job.table = table.data();
}

void bind_color(nb::module_& m) {
  m.def("look_up", &look_up_batch, "levels"_a.noconvert(), "table"_a.noconvert(), "out"_a.noconvert(), "planar"_a);
  m.def(
      "advise_large_pages",
      [](const nb::ndarray<nb::device::cpu>& array) { advise_large_pages(array.data(), array.nbytes()); }, "array"_a);
  m.def("apply_table", &apply, "image"_a.noconvert(), "table"_a.noconvert());
  m.def("adjust_brightness", in_place(adjust_brightness), "image"_a.noconvert(), "factor"_a);
  m.def("adjust_contrast", in_place(adjust_contrast), "image"_a.noconvert(), "factor"_a);
  m.def("adjust_saturation", in_place(adjust_saturation), "image"_a.noconvert(), "factor"_a);
  m.def("adjust_hue", in_place(adjust_hue), "image"_a.noconvert(), "shift"_a);
  m.def("adjust_sharpness", in_place(adjust_sharpness), "image"_a.noconvert(), "factor"_a);
  m.def("to_grayscale", in_place(to_grayscale), "image"_a.noconvert());
  m.def("invert", in_place(invert), "image"_a.noconvert());
  m.def(
      "posterize",
      [](const Array& array, int bits) {
        if (bits < 1 || bits > 8) throw nb::value_error("bits must be from 1 to 8");  // as in Pillow 13
        in_place(posterize)(array, bits);
      },
      "image"_a.noconvert(), "bits"_a);
  m.def("solarize", in_place(solarize), "image"_a.noconvert(), "threshold"_a);
  m.def("autocontrast", in_place(autocontrast), "image"_a.noconvert());
  m.def("equalize", in_place(equalize), "image"_a.noconvert());
}

}  // namespace fastload
