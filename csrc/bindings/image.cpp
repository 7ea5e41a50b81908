// Changes of single images: colours in place, resizes and transforms into other memory; and values of pixels.
#include "bindings/bindings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "image/color/color.h"
#include "image/filters/blur.h"
#include "image/filters/convolve.h"
#include "image/look_up.h"
#include "image/transform/transform.h"
#include "resample/float_job.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

Filter filter_from(const std::string& name) {
  return named<Filter>({{"nearest", Filter::nearest},
                        {"box", Filter::box},
                        {"bilinear", Filter::bilinear},
                        {"hamming", Filter::hamming},
                        {"bicubic", Filter::bicubic},
                        {"lanczos", Filter::lanczos},
                        {"torch_bilinear", Filter::torch_bilinear},
                        {"torch_bicubic", Filter::torch_bicubic},
                        {"torch_lanczos", Filter::torch_lanczos},
                        {"float_bilinear", Filter::float_bilinear},
                        {"float_bicubic", Filter::float_bicubic},
                        {"fma_bilinear", Filter::fma_bilinear},
                        {"fma_bicubic", Filter::fma_bicubic},
                        {"fma4_bilinear", Filter::fma4_bilinear},
                        {"fma4_bicubic", Filter::fma4_bicubic}},
                       name, "interpolation");
}

PassRule pass_rule_from(const std::string& name) {
  if (name == "horizontal_first") return PassRule::horizontal_first;
  if (name == "tall_vertical_first") return PassRule::tall_vertical_first;
  if (name == "sliver_vertical_first") return PassRule::sliver_vertical_first;
  throw nb::value_error(
      ("pass_rule must be horizontal_first, tall_vertical_first or sliver_vertical_first, got " + name).c_str());
}

Sampling sampling_from(const std::string& name) {
  return named<Sampling>(
      {{"nearest", Sampling::nearest}, {"bilinear", Sampling::bilinear}, {"bicubic", Sampling::bicubic}}, name,
      "sampling");
}

PadMode pad_mode_from(const std::string& name) {
  return named<PadMode>({{"constant", PadMode::constant},
                         {"edge", PadMode::edge},
                         {"reflect", PadMode::reflect},
                         {"symmetric", PadMode::symmetric}},
                        name, "mode of padding");
}

void set_table(LookUpJob& job, const ValueTable& table) {
  const std::size_t channels = table.shape(0), bytes = table.itemsize();
  if (channels < 1 || channels > 4 || table.shape(1) != 256 || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) {
    throw nb::value_error("a table must fit pixels: 256 values of 1, 2, 4 or 8 bytes for each of 1 to 4 channels");
  }
  job.channels = static_cast<int>(channels);
  job.value_bytes = bytes;
  job.table = table.data();
}

namespace {

using TableArray = nb::ndarray<const std::uint8_t, nb::shape<3, 256>, nb::c_contig, nb::device::cpu>;

// To be changed in place; may be empty.
Image changeable(const Array& array) {
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
    const Image image = changeable(array);
    nb::gil_scoped_release release;
    change(image, arguments...);
  };
}

void apply(const Array& array, const TableArray& values) {
  const Image image = changeable(array);
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

// The same of one image's bytes, without the cost of arrays: it is for small ones, and keeps the GIL.
void look_up_bytes(nb::handle levels, const ValueTable& table, nb::handle out, bool planar) {
  LookUpJob job;
  set_table(job, table);
  const BytesView from(levels), to(out, PyBUF_WRITABLE);
  job.stride = job.channels;
  job.levels = from.data();
  job.images = 1;
  job.pixels = from.size() / static_cast<std::size_t>(job.channels);
  const bool fits = from.size() == job.pixels * static_cast<std::size_t>(job.channels);
  if (!fits || to.size() != from.size() * job.value_bytes || reinterpret_cast<std::uintptr_t>(to.data()) % 8 != 0) {
    throw nb::value_error("levels, table and out must fit: whole pixels, and aligned values of the table's size");
  }
  job.out = const_cast<std::uint8_t*>(to.data());
  job.planar = planar;
  look_up(job);
}

// Pillow's Image.resize of a whole image to `size`, of which `out` is the window from `window` on, then flipped.
void resize(const ConstArray& source, Array out, const std::string& filter, const std::string& pass_rule,
            std::optional<std::array<int, 2>> size, std::array<int, 2> window, bool mirrored, bool flipped) {
  static thread_local Resampler resampler;
  require_rows(source, "source");
  require_rows(out, "out");
  if (source.shape(2) != out.shape(2)) throw nb::value_error("source and out must have equally many channels");
  if (size && out.shape(0) == 0) throw nb::value_error("out must have rows");  // as a window it would be all of them
  ResizeJob job;
  job.height = static_cast<int>(source.shape(0));
  job.width = static_cast<int>(source.shape(1));
  job.window = {window[0], window[1], static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1))};
  job.out_height = size ? (*size)[0] : job.window.height;
  job.out_width = size ? (*size)[1] : job.window.width;
  job.flip_horizontal = mirrored;
  job.flip_vertical = flipped;
  job.channels = static_cast<int>(out.shape(2));
  job.filter = filter_from(filter);
  job.order = pass_order(pass_rule_from(pass_rule), job.width, job.height, job.out_width, job.out_height);
  SourceView view;
  view.data = source.data();
  view.stride = source.stride(0);
  view.box = {0, 0, job.height, job.width};
  std::string error;
  bool fits;
  {
    nb::gil_scoped_release release;
    fits = resampler.prepare(job, error);
    if (fits) resampler.run(view, out.data(), out.stride(0));
  }
  if (!fits) throw nb::value_error(error.c_str());
}

using Values = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ValuesOfLevels = nb::ndarray<const float, nb::shape<3, 256>, nb::c_contig, nb::device::cpu>;

// torch's resize of values of a whole image's levels to `size`; False, and nothing is done, if some are not finite.
bool resize_values(const ConstArray& source, const ValuesOfLevels& values, const Values& out, std::array<int, 2> size,
                   bool planar, const std::string& filter) {
  static thread_local FloatResampler resampler;
  require_rows(source, "source");
  const float* const known = values.data();
  if (!std::all_of(known, known + values.size(), [](float value) { return std::isfinite(value); })) return false;
  ResizeJob job;
  job.height = static_cast<int>(source.shape(0));
  job.width = static_cast<int>(source.shape(1));
  std::tie(job.out_height, job.out_width) = std::make_pair(size[0], size[1]);
  job.window = {0, 0, size[0], size[1]};
  job.filter = filter_from(filter);
  if (!is_float(job.filter)) throw nb::value_error("the filter must be one in float");
  if (source.shape(2) != 3 || job.height < 1 || job.width < 1 || size[0] < 1 || size[1] < 1 ||
      out.size() != std::size_t{3} * static_cast<std::size_t>(size[0]) * static_cast<std::size_t>(size[1])) {
    throw nb::value_error("source must have 3 channels and pixels, and out as many values as size says");
  }
  nb::gil_scoped_release release;
  resampler.prepare(float_resize(job));
  resampler.start(known, out.data(), planar);
  const PixelBox region = resampler.region();
  for (int y = 0; y < region.height; y += kLanes) {
    const std::uint8_t* rows[kLanes];
    const int count = std::min(kLanes, region.height - y);
    for (int i = 0; i < count; ++i) {
      rows[i] = source.data() + (region.top + y + i) * source.stride(0) + std::ptrdiff_t{3} * region.left;
    }
    resampler.take(rows, count);
  }
  return true;
}

constexpr std::size_t kMostSide = std::size_t{1} << 24;
constexpr std::size_t kMostWeights = 999;

template <class ImageType, class Any>
ImageType image_from(const Any& array, const char* name) {
  const auto side = [&array](int axis) { return array.shape(axis) >= 1 && array.shape(axis) <= kMostSide; };
  if (array.shape(2) != 3 || array.stride(2) != 1 || (array.shape(1) > 1 && array.stride(1) != 3)) {
    throw nb::value_error((std::string(name) + " must be HWC with 3 channels, and its rows contiguous").c_str());
  }
  if (!side(0) || !side(1)) throw nb::value_error((std::string(name) + "'s sides must be 1 to 2^24 pixels").c_str());
  return {array.data(), array.stride(0), static_cast<int>(array.shape(0)), static_cast<int>(array.shape(1))};
}

struct Images {
  Images(const ConstArray& source, const Array& target)
      : in(image_from<ConstImage>(source, "source")), out(image_from<Image>(target, "out")) {
    const auto span = [](const ConstImage& image) {
      const std::uint8_t *first = image.row(0), *last = image.row(image.height - 1);
      return std::make_pair(std::min(first, last), std::max(first, last) + 3 * std::ptrdiff_t{image.width});
    };
    const auto [in_begin, in_end] = span(in);
    const auto [out_begin, out_end] = span(out);
    if (in_begin < out_end && out_begin < in_end) throw nb::value_error("source and out must not overlap");
  }

  ConstImage in;
  Image out;
};

void bound_affine(const ConstArray& source, const Array& target, const std::array<double, 6>& matrix,
                  const std::string& sampling, const Color& fill) {
  const Images images(source, target);
  const Sampling chosen = sampling_from(sampling);
  nb::gil_scoped_release release;
  transform_affine(images.in, images.out, matrix, chosen, fill);
}

void bound_perspective(const ConstArray& source, const Array& target, const std::array<double, 8>& coefficients,
                       const std::string& sampling, const Color& fill) {
  const Images images(source, target);
  const Sampling chosen = sampling_from(sampling);
  nb::gil_scoped_release release;
  transform_perspective(images.in, images.out, coefficients, chosen, fill);
}

void bound_transpose(const ConstArray& source, const Array& target, const std::string& how) {
  const Images images(source, target);
  const Transpose chosen = named<Transpose>({{"flip_horizontal", Transpose::flip_horizontal},
                                             {"flip_vertical", Transpose::flip_vertical},
                                             {"rotate_90", Transpose::rotate_90},
                                             {"rotate_180", Transpose::rotate_180},
                                             {"rotate_270", Transpose::rotate_270}},
                                            how, "transpose");
  const bool turned = chosen == Transpose::rotate_90 || chosen == Transpose::rotate_270;
  const int height = turned ? images.in.width : images.in.height, width = turned ? images.in.height : images.in.width;
  if (images.out.height != height || images.out.width != width) {
    throw nb::value_error("out must have the source's sides, swapped for quarter turns");
  }
  nb::gil_scoped_release release;
  transpose(images.in, images.out, chosen);
}

void bound_pad(const ConstArray& source, const Array& target, int left, int top, const std::string& mode,
               const Color& fill) {
  const Images images(source, target);
  const PadMode chosen = pad_mode_from(mode);
  const auto check = [chosen](int before, int size, int out_size) {
    const std::int64_t after = std::int64_t{out_size} - size - before;
    if (before < 0 || after < 0) throw nb::value_error("margins must be at least 0: out must have room for source");
    const std::int64_t margin = std::max<std::int64_t>(before, after);
    if ((chosen == PadMode::reflect && margin >= size) || (chosen == PadMode::symmetric && margin > size)) {
      throw nb::value_error("the margins are too large to mirror the source once");
    }
  };
  check(left, images.in.width, images.out.width);
  check(top, images.in.height, images.out.height);
  nb::gil_scoped_release release;
  pad(images.in, images.out, left, top, chosen, fill);
}

void bound_blur(const Array& array, std::pair<float, float> radius) {
  const Image image = image_from<Image>(array, "image");
  for (const float value : {radius.first, radius.second}) {
    if (!(std::fabs(value) <= kMostBlurRadius)) throw nb::value_error("radius must be at most 100000");
  }
  nb::gil_scoped_release release;
  gaussian_blur(image, radius.first, radius.second);
}

void bound_convolve(const ConstArray& source, const nb::ndarray<const float, nb::ndim<2>, nb::c_contig>& weights,
                    const nb::ndarray<float, nb::ndim<3>, nb::c_contig>& out) {
  const ConstImage image = image_from<ConstImage>(source, "source");
  for (const int axis : {0, 1}) {
    if (weights.shape(axis) % 2 != 1 || weights.shape(axis) > kMostWeights) {
      throw nb::value_error("the sides of weights must be odd, and at most 999");
    }
  }
  const Weights all = {weights.data(), static_cast<int>(weights.shape(0)), static_cast<int>(weights.shape(1))};
  if (out.shape(0) != source.shape(0) || out.shape(1) != source.shape(1) || out.shape(2) != 3) {
    throw nb::value_error("out must have the source's shape");
  }
  bool fits;
  {
    nb::gil_scoped_release release;
    fits = convolve(image, all, out.data());
  }
  if (!fits) throw nb::value_error("half of the weights' sides must be smaller than the source's");
}

template <std::size_t count>
void require_finite(const double (&values)[count]) {
  for (const double value : values) {
    if (!std::isfinite(value)) throw nb::value_error("angles, positions and scales must be finite");
  }
}

std::array<double, 6> bound_rotation_matrix(double angle, std::array<double, 2> center) {
  require_finite({angle, center[0], center[1]});
  return rotation_matrix(angle, center);
}

std::array<double, 6> bound_inverse_affine_matrix(std::array<double, 2> center, double angle,
                                                  std::array<double, 2> translate, double scale,
                                                  std::array<double, 2> shear, bool v2) {
  require_finite({center[0], center[1], angle, translate[0], translate[1], scale, shear[0], shear[1]});
  if (scale == 0) throw nb::value_error("scale must not be 0");
  return inverse_affine_matrix(center, angle, translate, scale, shear, v2);
}

}  // namespace

void bind_image(nb::module_& m) {
  m.def("resize_values", &resize_values, "source"_a.noconvert(), "values"_a.noconvert(), "out"_a.noconvert(), "size"_a,
        "planar"_a, "filter"_a);
  m.def("resize", &resize, "source"_a.noconvert(), "out"_a.noconvert(), "filter"_a = "bilinear",
        "pass_rule"_a = "horizontal_first", "size"_a = nb::none(), "window"_a = std::array<int, 2>{},
        "mirrored"_a = false, "flipped"_a = false);
  m.def("look_up", &look_up_batch, "levels"_a.noconvert(), "table"_a.noconvert(), "out"_a.noconvert(), "planar"_a);
  m.def("look_up_bytes", &look_up_bytes, "levels"_a, "table"_a.noconvert(), "out"_a, "planar"_a);
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
  const auto source = "source"_a.noconvert(), out = "out"_a.noconvert();
  m.def("transform_affine", &bound_affine, source, out, "matrix"_a, "sampling"_a, "fill"_a);
  m.def("transform_perspective", &bound_perspective, source, out, "coefficients"_a, "sampling"_a, "fill"_a);
  m.def("transpose", &bound_transpose, source, out, "how"_a);
  m.def("pad", &bound_pad, source, out, "left"_a, "top"_a, "mode"_a, "fill"_a);
  m.def("gaussian_blur", &bound_blur, "image"_a.noconvert(), "radius"_a);
  m.def(
      "gaussian_blur", [](const Array& image, float radius) { bound_blur(image, {radius, radius}); },
      "image"_a.noconvert(), "radius"_a);
  m.def("convolve", &bound_convolve, "source"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert());
  m.def("rotation_matrix", &bound_rotation_matrix, "angle"_a, "center"_a);
  m.def("inverse_affine_matrix", &bound_inverse_affine_matrix, "center"_a, "angle"_a, "translate"_a, "scale"_a,
        "shear"_a, "v2"_a = false);
}

}  // namespace fastload
