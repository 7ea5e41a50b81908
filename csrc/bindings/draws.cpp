#include "bindings/bindings.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/simd_level.h"
#include "pool/pool.h"
#include "rng/draw_plan.h"

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

nb::bytes state_of(const Generator& generator) {
  std::vector<std::uint8_t> state(generator.state_bytes());
  generator.get_state(state.data());
  return nb::bytes(state.data(), state.size());
}

void set_state(Generator& generator, const nb::bytes& state) {
  if (!generator.set_state(reinterpret_cast<const std::uint8_t*>(state.data()), state.size())) {
    throw nb::value_error("state must be what torch.Generator.get_state() returns");
  }
}

namespace {

using Array = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::device::cpu>;
using ConstArray = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>;

template <typename Any>
void require_rows(const Any& array, const char* name) {
  const std::int64_t channels = static_cast<std::int64_t>(array.shape(2));
  if ((channels != 1 && channels != 3) || (array.stride(2) != 1 && channels != 1) || array.stride(1) != channels) {
    throw nb::value_error((std::string(name) + " must be HWC with 1 or 3 channels, and its rows contiguous").c_str());
  }
}

// Pillow's Image.resize of a whole image.
void resize(const ConstArray& source, Array out, const std::string& filter, const std::string& pass_rule) {
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

template <typename Kind, std::size_t count>
Kind named(const std::pair<const char*, Kind> (&names)[count], const std::string& name, const char* what) {
  for (const auto& [text, kind] : names) {
    if (name == text) return kind;
  }
  throw nb::value_error((std::string("no such ") + what + ": " + name).c_str());
}

constexpr std::pair<const char*, DrawOp::Kind> kOps[] = {
    {"random_resized_crop", DrawOp::Kind::random_resized_crop},
    {"random_crop_v1", DrawOp::Kind::random_crop_v1},
    {"random_crop_v2", DrawOp::Kind::random_crop_v2},
    {"center_crop", DrawOp::Kind::center_crop},
    {"resize", DrawOp::Kind::resize},
    {"resize_shorter", DrawOp::Kind::resize_shorter},
    {"horizontal_flip", DrawOp::Kind::horizontal_flip},
    {"vertical_flip", DrawOp::Kind::vertical_flip},
    {"random_erasing", DrawOp::Kind::random_erasing},
    {"choose", DrawOp::Kind::choose},
    {"chance", DrawOp::Kind::chance},
    {"auto_augment_v1", DrawOp::Kind::auto_augment_v1},
    {"color_jitter", DrawOp::Kind::color_jitter},
    {"torch_color_jitter", DrawOp::Kind::torch_color_jitter},
    {"random_rotation", DrawOp::Kind::random_rotation},
    {"random_affine_v1", DrawOp::Kind::random_affine_v1},
    {"random_affine_v2", DrawOp::Kind::random_affine_v2},
    {"random_perspective", DrawOp::Kind::random_perspective},
    {"random_gaussian", DrawOp::Kind::random_gaussian},
    {"shuffle", DrawOp::Kind::shuffle},
    {"choose_weighted", DrawOp::Kind::choose_weighted},
    {"python_chance", DrawOp::Kind::python_chance},
    {"python_blur", DrawOp::Kind::python_blur},
    {"python_choose", DrawOp::Kind::python_choose},
    {"python_choose_weighted", DrawOp::Kind::python_choose_weighted},
    {"python_shuffle", DrawOp::Kind::python_shuffle},
    {"numpy_choose", DrawOp::Kind::numpy_choose},
    {"python_resized_crop", DrawOp::Kind::python_resized_crop},
    {"python_crop_or_pad", DrawOp::Kind::python_crop_or_pad},
    {"center_crop_or_pad", DrawOp::Kind::center_crop_or_pad},
    {"resize_keep_ratio", DrawOp::Kind::resize_keep_ratio},
    {"python_augment", DrawOp::Kind::python_augment},
    {"python_erasing", DrawOp::Kind::python_erasing},
};
// Steps are ops too; their names are those of the fields of Step::Kind.
constexpr std::pair<const char*, Step::Kind> kSteps[] = {
    {"brightness", Step::Kind::brightness},
    {"contrast", Step::Kind::contrast},
    {"saturation", Step::Kind::saturation},
    {"hue", Step::Kind::hue},
    {"sharpness", Step::Kind::sharpness},
    {"grayscale", Step::Kind::grayscale},
    {"invert", Step::Kind::invert},
    {"posterize", Step::Kind::posterize},
    {"solarize", Step::Kind::solarize},
    {"solarize_add", Step::Kind::solarize_add},
    {"autocontrast", Step::Kind::autocontrast},
    {"equalize", Step::Kind::equalize},
    {"torch_brightness", Step::Kind::torch_brightness},
    {"torch_contrast", Step::Kind::torch_contrast},
    {"torch_saturation", Step::Kind::torch_saturation},
    {"torch_grayscale", Step::Kind::torch_grayscale},
    {"torch_autocontrast", Step::Kind::torch_autocontrast},
    {"torch_invert", Step::Kind::invert},  // as on images, as are the next three
    {"torch_posterize", Step::Kind::posterize},
    {"torch_solarize", Step::Kind::solarize},
    {"torch_equalize", Step::Kind::equalize},
    {"flip_horizontal", Step::Kind::flip_horizontal},
    {"flip_vertical", Step::Kind::flip_vertical},
    {"rotate_90", Step::Kind::rotate_90},
    {"rotate_180", Step::Kind::rotate_180},
    {"rotate_270", Step::Kind::rotate_270},
    {"affine", Step::Kind::affine},
    {"perspective", Step::Kind::perspective},
    {"gaussian_blur", Step::Kind::gaussian_blur},
    {"pad", Step::Kind::pad},
};
constexpr std::pair<const char*, DrawOp::Comparison> kComparisons[] = {
    {"less", DrawOp::Comparison::less},
    {"less_or_equal", DrawOp::Comparison::less_or_equal},
    {"less_as_double", DrawOp::Comparison::less_as_double},
};
constexpr std::pair<const char*, DrawOp::Noise> kNoises[] = {
    {"none", DrawOp::Noise::none},
    {"colors", DrawOp::Noise::colors},
    {"pixels", DrawOp::Noise::pixels},
};
constexpr std::pair<const char*, Sampling> kSamplings[] = {
    {"nearest", Sampling::nearest},
    {"bilinear", Sampling::bilinear},
    {"bicubic", Sampling::bicubic},
};
constexpr std::pair<const char*, PadMode> kPadModes[] = {
    {"constant", PadMode::constant},
    {"edge", PadMode::edge},
    {"reflect", PadMode::reflect},
    {"symmetric", PadMode::symmetric},
};

// Also sets the kind of the step that the level is for.
DrawOp::Level level_from(const nb::dict& fields, Step& step) {
  DrawOp::Level level = fastload::level_from(fields);
  if (fields.contains("step")) step.kind = named(kSteps, nb::cast<std::string>(fields["step"]), "transform");
  if (fields.contains("samplings")) {
    for (const auto& name : nb::cast<std::vector<std::string>>(fields["samplings"])) {
      level.samplings.push_back(named(kSamplings, name, "sampling"));
    }
  }
  return level;
}

constexpr int kDeepest = 60;  // nesting of branches

DrawOp op_from(const std::string& kind, const nb::dict& fields, int depth);

std::vector<std::vector<DrawOp>> branches_from(nb::handle object, int depth) {
  if (depth > kDeepest) throw nb::value_error("transforms are nested too deep");
  std::vector<std::vector<DrawOp>> branches;
  for (nb::handle branch : nb::cast<nb::sequence>(object)) {
    branches.emplace_back();
    for (nb::handle entry : nb::cast<nb::sequence>(branch)) {
      const auto op = nb::cast<std::pair<std::string, nb::dict>>(entry);
      branches.back().push_back(op_from(op.first, op.second, depth));
    }
  }
  return branches;
}

std::array<DrawOp::Jitter, 4> jitters_from(nb::handle object) {
  std::array<DrawOp::Jitter, 4> jitters;
  const auto ranges = nb::cast<std::array<std::optional<std::pair<double, double>>, 4>>(object);
  for (std::size_t i = 0; i < 4; ++i) {
    if (ranges[i]) jitters[i] = {true, ranges[i]->first, ranges[i]->second};
  }
  return jitters;
}

// Throws a ValueError for an unknown kind and a TypeError for an unknown field or a value of another type.
DrawOp op_from(const std::string& kind, const nb::dict& fields, int depth) {
  DrawOp op;
  op.kind = DrawOp::Kind::step;
  const bool is_op =
      std::any_of(std::begin(kOps), std::end(kOps), [&](const auto& entry) { return kind == entry.first; });
  if (is_op) {
    op.kind = named(kOps, kind, "transform");
  } else {
    op.step.kind = named(kSteps, kind, "transform");
  }
  for (const auto& [key, value] : fields) {
    const auto name = nb::cast<std::string>(key);
    try {
      const auto pair = [value = value] { return nb::cast<std::pair<double, double>>(value); };
      const auto set = [](double (&to)[2], const std::pair<double, double>& from) {
        to[0] = from.first;
        to[1] = from.second;
      };
      if (name == "height") {
        op.height = nb::cast<int>(value);
      } else if (name == "width") {
        op.width = nb::cast<int>(value);
      } else if (name == "max_size") {
        op.max_size = nb::cast<int>(value);
      } else if (name == "p") {
        op.p = nb::cast<double>(value);
      } else if (name == "scale") {
        set(op.scale, pair());
      } else if (name == "ratio") {
        set(op.ratio, pair());
      } else if (name == "log_ratio") {
        op.log_ratio[0] = static_cast<float>(pair().first);
        op.log_ratio[1] = static_cast<float>(pair().second);
      } else if (name == "filter") {
        op.filter = filter_from(nb::cast<std::string>(value));
      } else if (name == "comparison") {
        op.comparison = named(kComparisons, nb::cast<std::string>(value), "comparison");
      } else if (name == "noise") {
        op.noise = named(kNoises, nb::cast<std::string>(value), "noise");
      } else if (name == "branches") {
        op.branches = branches_from(value, depth + 1);
      } else if (name == "chances") {
        op.chances = nb::cast<std::vector<double>>(value);
      } else if (name == "jitters") {
        op.jitters = jitters_from(value);
      } else if (name == "translate") {
        op.translate = nb::cast<std::optional<std::array<double, 2>>>(value);
      } else if (name == "center") {
        op.center = nb::cast<std::optional<std::array<double, 2>>>(value);
      } else if (name == "value") {
        op.step.value = nb::cast<double>(value);
      } else if (name == "matrix") {
        op.step.matrix = nb::cast<std::array<double, 6>>(value);
      } else if (name == "coefficients") {
        op.step.coefficients = nb::cast<Coefficients>(value);
      } else if (name == "radii") {
        op.step.radii = nb::cast<std::array<float, 2>>(value);
      } else if (name == "sampling") {
        op.step.sampling = named(kSamplings, nb::cast<std::string>(value), "sampling");
      } else if (name == "fill") {
        op.step.fill = nb::cast<Color>(value);
      } else if (name == "mode") {
        op.step.mode = named(kPadModes, nb::cast<std::string>(value), "mode");
      } else if (name == "margins") {  // top, left, bottom, right
        const auto [top, left, bottom, right] = nb::cast<std::array<int, 4>>(value);
        op.step.box = {top, left, bottom, right};
      } else if (name == "level") {
        op.level = level_from(nb::cast<nb::dict>(value), op.step);
      } else if (!set_python_field(op, name, value)) {
        throw nb::type_error((kind + " has no field " + name).c_str());
      }
    } catch (const nb::cast_error&) {
      throw nb::type_error((kind + "'s " + name + " has a wrong type").c_str());
    }
  }
  return op;
}

void add(DrawPlan& plan, const std::string& kind, const nb::kwargs& fields) {
  std::string error;
  if (!plan.add(op_from(kind, fields, 0), error)) throw nb::value_error(error.c_str());
}

// Applies steps, rotations, affine transforms and blurs to an image, whose memory may change; what draws does so by an
// unseeded generator. With a generator, applies anything behind a first step. Returns whether they fit the image and
// the result fits `out`.
bool apply_to(nb::sequence entries, Array image, Array out, const std::string& pass_rule, Generator* given) {
  require_rows(image, "image");
  require_rows(out, "out");
  if (image.shape(2) != 3 || out.shape(2) != 3) throw nb::value_error("images must have 3 channels");
  DrawPlan plan;
  std::string error;
  for (nb::handle entry : entries) {
    const auto [kind, fields] = nb::cast<std::pair<std::string, nb::dict>>(entry);
    const DrawOp op = op_from(kind, fields, 0);
    if (given == nullptr && op.kind != DrawOp::Kind::step && op.kind != DrawOp::Kind::random_rotation &&
        op.kind != DrawOp::Kind::random_affine_v1 && op.kind != DrawOp::Kind::random_affine_v2 &&
        op.kind != DrawOp::Kind::random_gaussian) {
      throw nb::value_error((kind + " is no step").c_str());
    }
    if (!plan.add(op, error)) throw nb::value_error(error.c_str());
  }
  Generator unseeded;
  Generator& generator = given != nullptr ? *given : unseeded;
  Geometry geometry;
  Question unresolved;
  const auto height = static_cast<int>(image.shape(0)), width = static_cast<int>(image.shape(1));
  if (plan.run(generator, width, height, {}, geometry, unresolved) != DrawStatus::ok) return false;
  const PassRule rule = pass_rule_from(pass_rule);
  nb::gil_scoped_release release;
  return apply_steps(geometry.steps, rule, {image.data(), image.stride(0), height, width},
                     {out.data(), out.stride(0), static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1))});
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
  m.def("apply_steps", &apply_to, "steps"_a, "image"_a.noconvert(), "out"_a.noconvert(),
        "pass_rule"_a = "horizontal_first", "generator"_a = nb::none());
  nb::class_<RandomStream>(m, "RandomStream")
      .def(nb::new_([](nb::bytes state) {
             Generator generator;
             set_state(generator, state);
             return std::make_shared<RandomStream>(generator);
           }),
           "state"_a)
      .def_static(
          "from_seed", [](std::uint64_t seed) { return std::make_shared<RandomStream>(Generator(seed)); }, "seed"_a);

  nb::class_<Generator>(m, "Generator")
      .def(nb::init<std::uint64_t>(), "seed"_a)
      .def_ro_static("STATE_BYTES", &Generator::kStateBytes)
      .def("seed_others", &Generator::seed_others, "seed"_a)
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
      .def(
          "randperm",
          [](Generator& self, std::uint16_t count) {
            std::vector<int> order(count);
            self.randperm(order.data(), count);
            return order;
          },
          "count"_a)
      .def("skip_normals", &Generator::skip_normals, "count"_a)
      .def("get_state", &state_of)
      .def("set_state", &set_state, "state"_a);
  m.def("perspective_coefficients", &perspective_coefficients, "corners"_a);
  m.def("seed_for_index", &seed_for_index, "seed"_a, "epoch"_a, "index"_a);

  nb::class_<DrawPlan>(m, "DrawPlan")
      .def(nb::init<>())
      .def("add", &add, "kind"_a, "fields"_a)
      .def(
          "set_uniform_rule",
          [](DrawPlan& self, bool fused, bool excludes_upper) {
            self.uniform_rule = UniformRule{fused, excludes_upper};
          },
          "fused"_a, "excludes_upper"_a)
      .def("begin_view", &DrawPlan::begin_view)
      .def("draw_erased", &draw_erased, "generator"_a, "width"_a, "height"_a)
      .def("draw", &draw, "generator"_a, "width"_a, "height"_a, "known"_a = nb::list(), "view"_a = 0);
}

}  // namespace fastload
