#include "bindings/bindings.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "rng/rng.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

Filter filter_from(const std::string& name) {
  if (name == "nearest") return Filter::nearest;
  if (name == "box") return Filter::box;
  if (name == "bilinear") return Filter::bilinear;
  if (name == "hamming") return Filter::hamming;
  if (name == "bicubic") return Filter::bicubic;
  if (name == "lanczos") return Filter::lanczos;
  if (name == "torch_bilinear") return Filter::torch_bilinear;
  if (name == "torch_bicubic") return Filter::torch_bicubic;
  if (name == "torch_lanczos") return Filter::torch_lanczos;
  throw nb::value_error(("interpolation must be nearest, box, bilinear, hamming, bicubic, lanczos, torch_bilinear, "
                         "torch_bicubic or torch_lanczos, got " +
                         name)
                            .c_str());
}

PassRule pass_rule_from(const std::string& name) {
  if (name == "horizontal_first") return PassRule::horizontal_first;
  if (name == "tall_vertical_first") return PassRule::tall_vertical_first;
  if (name == "sliver_vertical_first") return PassRule::sliver_vertical_first;
  throw nb::value_error(
      ("pass_rule must be horizontal_first, tall_vertical_first or sliver_vertical_first, got " + name).c_str());
}

namespace {

using Image = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::device::cpu>;
using ConstImage = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>;

template <typename Array>
void require_rows(const Array& array, const char* name) {
  const std::int64_t channels = static_cast<std::int64_t>(array.shape(2));
  if ((channels != 1 && channels != 3) || (array.stride(2) != 1 && channels != 1) || array.stride(1) != channels) {
    throw nb::value_error((std::string(name) + " must be HWC with 1 or 3 channels, and its rows contiguous").c_str());
  }
}

// Pillow's Image.resize of a whole image.
void resize(const ConstImage& source, Image out, const std::string& filter, const std::string& pass_rule) {
  static thread_local Resampler resampler;
  require_rows(source, "source");
  require_rows(out, "out");
  if (source.shape(2) != out.shape(2)) throw nb::value_error("source and out must have equally many channels");
  ResizeJob job;
  job.height = static_cast<int>(source.shape(0));
  job.width = static_cast<int>(source.shape(1));
  job.out_height = static_cast<int>(out.shape(0));
  job.out_width = static_cast<int>(out.shape(1));
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

DrawOp::Kind kind_from(const std::string& name) {
  using Kind = DrawOp::Kind;
  static const std::pair<const char*, Kind> kinds[] = {
      {"random_resized_crop", Kind::random_resized_crop},
      {"random_crop_v1", Kind::random_crop_v1},
      {"random_crop_v2", Kind::random_crop_v2},
      {"center_crop", Kind::center_crop},
      {"resize", Kind::resize},
      {"resize_shorter", Kind::resize_shorter},
      {"horizontal_flip", Kind::horizontal_flip},
      {"vertical_flip", Kind::vertical_flip},
      {"random_erasing", Kind::random_erasing},
  };
  for (const auto& [text, kind] : kinds) {
    if (name == text) return kind;
  }
  throw nb::value_error(("no such transform: " + name).c_str());
}

void add(DrawPlan& plan, const std::string& kind, int height, int width, int max_size, double p,
         std::pair<double, double> scale, std::pair<double, double> ratio, std::pair<float, float> log_ratio) {
  DrawOp op;
  op.kind = kind_from(kind);
  op.height = height;
  op.width = width;
  op.max_size = max_size;
  op.p = p;
  op.scale[0] = scale.first;
  op.scale[1] = scale.second;
  op.ratio[0] = ratio.first;
  op.ratio[1] = ratio.second;
  op.log_ratio[0] = log_ratio.first;
  op.log_ratio[1] = log_ratio.second;
  std::string error;
  if (!plan.add(op, error)) throw nb::value_error(error.c_str());
}

nb::bytes state_of(const Generator& generator) {
  std::uint8_t state[Generator::kStateBytes];
  generator.get_state(state);
  return nb::bytes(state, sizeof state);
}

// One sample's draws: ("ok" | "ambiguous_exp" | "crop_too_large", geometry or None, input of the unresolved exp).
nb::tuple draw(const DrawPlan& plan, Generator& generator, int width, int height,
               const std::vector<std::pair<float, float>>& known) {
  std::vector<KnownExp> exps;
  for (const auto& [input, output] : known) exps.push_back({input, output});
  Geometry g;
  float unresolved = 0;
  switch (plan.run(generator, width, height, exps, g, unresolved)) {
    case DrawStatus::ambiguous_exp: return nb::make_tuple("ambiguous_exp", nb::none(), unresolved);
    case DrawStatus::crop_too_large: return nb::make_tuple("crop_too_large", nb::none(), 0.0f);
    case DrawStatus::ok: break;
  }
  return nb::make_tuple(
      "ok",
      nb::make_tuple(g.crop.top, g.crop.left, g.crop.height, g.crop.width, g.out_height, g.out_width, g.window.top,
                     g.window.left, g.window.height, g.window.width, g.flip_horizontal, g.flip_vertical),
      0.0f);
}

}  // namespace

void bind_resample(nb::module_& m) {
  m.def("resize", &resize, "source"_a.noconvert(), "out"_a.noconvert(), "filter"_a = "bilinear",
        "pass_rule"_a = "horizontal_first");
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
}

void bind_draws(nb::module_& m) {
  nb::class_<Generator>(m, "Generator")
      .def(nb::init<std::uint64_t>(), "seed"_a)
      .def("seed", &Generator::seed, "seed"_a)
      .def("random", &Generator::random)
      .def("rand", &Generator::rand)
      .def(
          "randint",
          [](Generator& self, std::int64_t low, std::int64_t high) {
            if (low >= high) throw nb::value_error("randint draws from [low, high): low must be less than high");
            return self.randint(low, high);
          },
          "low"_a, "high"_a)
      .def(
          "uniform",
          [](Generator& self, double from, double to, bool fused, bool excludes_upper) {
            return self.uniform(from, to, UniformRule{fused, excludes_upper});
          },
          "low"_a, "high"_a, "fused"_a = true, "excludes_upper"_a = true)
      .def("get_state", &state_of)
      .def(
          "set_state",
          [](Generator& self, nb::bytes state) {
            if (state.size() != Generator::kStateBytes ||
                !self.set_state(reinterpret_cast<const std::uint8_t*>(state.data()))) {
              throw nb::value_error("state must be what torch.Generator.get_state() returns");
            }
          },
          "state"_a);
  m.def("seed_for_index", &seed_for_index, "seed"_a, "epoch"_a, "index"_a);

  nb::class_<DrawPlan>(m, "DrawPlan")
      .def(nb::init<>())
      .def("add", &add, "kind"_a, nb::kw_only(), "height"_a = 0, "width"_a = 0, "max_size"_a = 0, "p"_a = 0.5,
           "scale"_a = std::pair<double, double>(0.08, 1.0),
           "ratio"_a = std::pair<double, double>(3.0 / 4.0, 4.0 / 3.0),
           "log_ratio"_a = std::pair<float, float>(0.0f, 0.0f))
      .def(
          "set_uniform_rule",
          [](DrawPlan& self, bool fused, bool excludes_upper) {
            self.uniform_rule = UniformRule{fused, excludes_upper};
          },
          "fused"_a, "excludes_upper"_a)
      .def("draw", &draw, "generator"_a, "width"_a, "height"_a, "known"_a = std::vector<std::pair<float, float>>());
}

}  // namespace fastload
