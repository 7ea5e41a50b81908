// Changes of colour, in place.
#include "bindings/bindings.h"

#include <algorithm>
#include <limits>

#include <nanobind/ndarray.h>

#include "image/color.h"

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

}  // namespace

void bind_color(nb::module_& m) {
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
