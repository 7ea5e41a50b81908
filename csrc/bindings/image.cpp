#include "bindings/bindings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "image/filters/blur.h"
#include "image/filters/convolve.h"
#include "image/transform.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

using SourceArray = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>;
using OutArray = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::device::cpu>;

constexpr std::size_t kMostSide = std::size_t{1} << 24;
constexpr std::size_t kMostWeights = 999;

template <class ImageType, class Array>
ImageType image_from(const Array& array, const char* name) {
  const auto side = [&array](int axis) { return array.shape(axis) >= 1 && array.shape(axis) <= kMostSide; };
  if (array.shape(2) != 3 || array.stride(2) != 1 || (array.shape(1) > 1 && array.stride(1) != 3)) {
    throw nb::value_error((std::string(name) + " must be HWC with 3 channels, and its rows contiguous").c_str());
  }
  if (!side(0) || !side(1)) throw nb::value_error((std::string(name) + "'s sides must be 1 to 2^24 pixels").c_str());
  return {array.data(), array.stride(0), static_cast<int>(array.shape(0)), static_cast<int>(array.shape(1))};
}

struct Images {
  Images(const SourceArray& source, const OutArray& target)
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

template <class Choice, std::size_t count>
Choice choice(const std::string& name, const char* what, const std::pair<const char*, Choice> (&choices)[count]) {
  for (const auto& [text, value] : choices) {
    if (name == text) return value;
  }
  throw nb::value_error((std::string("no such ") + what + ": " + name).c_str());
}

Sampling sampling_from(const std::string& name) {
  return choice<Sampling>(
      name, "sampling",
      {{"nearest", Sampling::nearest}, {"bilinear", Sampling::bilinear}, {"bicubic", Sampling::bicubic}});
}

void bound_affine(const SourceArray& source, const OutArray& target, const std::array<double, 6>& matrix,
                  const std::string& sampling, const Color& fill) {
  const Images images(source, target);
  const Sampling chosen = sampling_from(sampling);
  nb::gil_scoped_release release;
  transform_affine(images.in, images.out, matrix, chosen, fill);
}

void bound_perspective(const SourceArray& source, const OutArray& target, const std::array<double, 8>& coefficients,
                       const std::string& sampling, const Color& fill) {
  const Images images(source, target);
  const Sampling chosen = sampling_from(sampling);
  nb::gil_scoped_release release;
  transform_perspective(images.in, images.out, coefficients, chosen, fill);
}

void bound_transpose(const SourceArray& source, const OutArray& target, const std::string& how) {
  const Images images(source, target);
  const Transpose chosen = choice<Transpose>(how, "transpose",
                                             {{"flip_horizontal", Transpose::flip_horizontal},
                                              {"flip_vertical", Transpose::flip_vertical},
                                              {"rotate_90", Transpose::rotate_90},
                                              {"rotate_180", Transpose::rotate_180},
                                              {"rotate_270", Transpose::rotate_270}});
  const bool turned = chosen == Transpose::rotate_90 || chosen == Transpose::rotate_270;
  const int height = turned ? images.in.width : images.in.height, width = turned ? images.in.height : images.in.width;
  if (images.out.height != height || images.out.width != width) {
    throw nb::value_error("out must have the source's sides, swapped for quarter turns");
  }
  nb::gil_scoped_release release;
  transpose(images.in, images.out, chosen);
}

void bound_pad(const SourceArray& source, const OutArray& target, int left, int top, const std::string& mode,
               const Color& fill) {
  const Images images(source, target);
  const PadMode chosen = choice<PadMode>(mode, "mode of padding",
                                         {{"constant", PadMode::constant},
                                          {"edge", PadMode::edge},
                                          {"reflect", PadMode::reflect},
                                          {"symmetric", PadMode::symmetric}});
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

void bound_blur(const OutArray& array, std::pair<float, float> radius) {
  const Image image = image_from<Image>(array, "image");
  for (const float value : {radius.first, radius.second}) {
    if (!(std::fabs(value) <= kMostBlurRadius)) throw nb::value_error("radius must be at most 100000");
  }
  nb::gil_scoped_release release;
  gaussian_blur(image, radius.first, radius.second);
}

void bound_convolve(const SourceArray& source, const nb::ndarray<const float, nb::ndim<2>, nb::c_contig>& weights,
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

void bind_transform(nb::module_& m) {
  const auto source = "source"_a.noconvert(), out = "out"_a.noconvert();
  m.def("transform_affine", &bound_affine, source, out, "matrix"_a, "sampling"_a, "fill"_a);
  m.def("transform_perspective", &bound_perspective, source, out, "coefficients"_a, "sampling"_a, "fill"_a);
  m.def("transpose", &bound_transpose, source, out, "how"_a);
  m.def("pad", &bound_pad, source, out, "left"_a, "top"_a, "mode"_a, "fill"_a);
  m.def("gaussian_blur", &bound_blur, "image"_a.noconvert(), "radius"_a);
  m.def(
      "gaussian_blur", [](const OutArray& image, float radius) { bound_blur(image, {radius, radius}); },
      "image"_a.noconvert(), "radius"_a);
  m.def("convolve", &bound_convolve, "source"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert());
  m.def("rotation_matrix", &bound_rotation_matrix, "angle"_a, "center"_a);
  m.def("inverse_affine_matrix", &bound_inverse_affine_matrix, "center"_a, "angle"_a, "translate"_a, "scale"_a,
        "shear"_a, "v2"_a = false);
}

}  // namespace fastload
