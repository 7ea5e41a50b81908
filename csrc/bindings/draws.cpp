// What is drawn for an image: generators, plans of transforms, and what they ask torch.
#include "bindings/bindings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
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

#include "pool/pool.h"
#include "rng/draw_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

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

const char* name_of(Question::Kind kind) { return kind == Question::Kind::exp ? "exp" : "perspective"; }

std::vector<double> numbers_of(const Question& question) {
  const std::ptrdiff_t count = question.kind == Question::Kind::exp ? 1 : 10;
  return {question.numbers.begin(), question.numbers.begin() + count};
}

Answer answer_from(const std::string& kind, const std::vector<double>& question, const std::vector<double>& answer) {
  const bool is_exp = kind == "exp";
  if (!is_exp && kind != "perspective") throw nb::value_error(("no such question: " + kind).c_str());
  if (question.size() != (is_exp ? 1 : 10) || !(answer.empty() || answer.size() == (is_exp ? 1 : 8))) {
    throw nb::value_error("an exp has 1 number and 1 as its answer, a perspective 10 and 8");
  }
  Answer made;
  made.question.kind = is_exp ? Question::Kind::exp : Question::Kind::perspective;
  std::copy(question.begin(), question.end(), made.question.numbers.begin());
  if (answer.empty()) return made;
  made.numbers.emplace();
  std::copy(answer.begin(), answer.end(), made.numbers->begin());
  return made;
}

nb::tuple to_tuple(const Geometry& g) {
  return nb::make_tuple(g.crop.top, g.crop.left, g.crop.height, g.crop.width, g.out_height, g.out_width, g.window.top,
                        g.window.left, g.window.height, g.window.width, g.flip_horizontal, g.flip_vertical);
}

nb::tuple erased_of(const Geometry& geometry) {
  nb::list boxes;
  for (const PixelBox& box : geometry.erased) {
    boxes.append(nb::make_tuple(box.top, box.left, box.height, box.width));
  }
  return nb::make_tuple(boxes, geometry.noise == nullptr ? nb::object(nb::none()) : state_of(*geometry.noise));
}

namespace {

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
    {"torch_sharpness", Step::Kind::torch_sharpness},
    {"torch_hue", Step::Kind::torch_hue},
    {"torch_permute", Step::Kind::permute},
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
    {"torch_gather", Step::Kind::gather},
    {"gaussian_blur", Step::Kind::gaussian_blur},
    {"convolve", Step::Kind::convolve},
    {"pad", Step::Kind::pad},
    {"crop", Step::Kind::crop},
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
using Use = DrawOp::Level::Use;
constexpr std::pair<const char*, Use> kUses[] = {
    {"nothing", Use::nothing},
    {"value", Use::value},
    {"bits", Use::bits},
    {"angle", Use::angle},
    {"shear_x", Use::shear_x},
    {"shear_y", Use::shear_y},
    {"shift_x", Use::shift_x},
    {"shift_y", Use::shift_y},
    {"part_of_width", Use::part_of_width},
    {"part_of_height", Use::part_of_height},
    {"radius", Use::radius},
    {"largest_radius", Use::largest_radius},
};

// Also sets the kind of the step that the level is for.
DrawOp::Level level_from(const nb::dict& fields, Step& step) {
  DrawOp::Level level;
  const std::pair<const char*, double*> numbers[] = {
      {"magnitude", &level.magnitude}, {"deviation", &level.deviation}, {"highest", &level.highest},
      {"slope", &level.slope},         {"intercept", &level.intercept}, {"most", &level.most},
      {"base", &level.base},           {"least", &level.least},
  };
  const std::pair<const char*, bool*> flags[] = {
      {"negates", &level.negates}, {"whole", &level.whole}, {"subtracts", &level.subtracts}};
  for (const auto& [name, number] : numbers) {
    if (fields.contains(name)) *number = nb::cast<double>(fields[name]);
  }
  for (const auto& [name, flag] : flags) {
    if (fields.contains(name)) *flag = nb::cast<bool>(fields[name]);
  }
  if (fields.contains("use")) level.use = named(kUses, nb::cast<std::string>(fields["use"]), "use of a level");
  if (fields.contains("step")) step.kind = named(kSteps, nb::cast<std::string>(fields["step"]), "transform");
  if (fields.contains("samplings")) {
    for (const auto& name : nb::cast<std::vector<std::string>>(fields["samplings"])) {
      level.samplings.push_back(sampling_from(name));
    }
  }
  return level;
}

std::shared_ptr<const std::vector<float>> weights_from(const nb::bytes& bytes) {
  auto weights = std::make_shared<std::vector<float>>(bytes.size() / sizeof(float));
  std::memcpy(weights->data(), bytes.data(), weights->size() * sizeof(float));
  return weights;
}

// Shared, as no thread that lets go of steps may need the GIL for it.
struct BoundPlaces {
  std::shared_ptr<const PixelPlaces> places;
};

BoundPlaces places_from(const nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& numbers) {
  constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
  if (numbers.shape(0) > most || numbers.shape(1) > most || numbers.size() > most) {
    throw nb::value_error("there must be at most 2**31 - 1 numbers");
  }
  const auto count = static_cast<std::int32_t>(numbers.size());
  const std::int32_t *const begin = numbers.data(), *const end = begin + count;
  if (!std::all_of(begin, end, [count](std::int32_t number) { return number >= -1 && number < count; })) {
    throw nb::value_error("numbers must be those of pixels, or -1");
  }
  const auto height = static_cast<int>(numbers.shape(0)), width = static_cast<int>(numbers.shape(1));
  return {std::make_shared<PixelPlaces>(PixelPlaces{height, width, {begin, end}})};
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
      } else if (name == "weights") {  // float32, row by row
        op.step.weights = weights_from(nb::cast<nb::bytes>(value));
      } else if (name == "places") {
        op.step.places = nb::cast<const BoundPlaces&>(value).places;
      } else if (name == "twice") {
        op.step.twice = nb::cast<unsigned>(value);
      } else if (name == "planar") {
        op.step.planar = nb::cast<bool>(value);
      } else if (name == "order") {
        op.step.order = nb::cast<ChannelOrder>(value);
      } else if (name == "sampling") {
        op.step.sampling = sampling_from(nb::cast<std::string>(value));
      } else if (name == "fill") {
        op.step.fill = nb::cast<Color>(value);
      } else if (name == "mode") {
        op.step.mode = pad_mode_from(nb::cast<std::string>(value));
      } else if (name == "margins") {  // top, left, bottom, right
        const auto [top, left, bottom, right] = nb::cast<std::array<int, 4>>(value);
        op.step.box = {top, left, bottom, right};
      } else if (name == "level") {
        op.level = level_from(nb::cast<nb::dict>(value), op.step);
      } else if (name == "filters") {
        for (const auto& filter : nb::cast<std::vector<std::string>>(value)) op.filters.push_back(filter_from(filter));
      } else if (name == "logs") {
        const auto [low, high] = nb::cast<std::pair<double, double>>(value);
        op.logs[0] = low;
        op.logs[1] = high;
      } else if (name == "longest") {
        op.longest = nb::cast<double>(value);
      } else if (name == "aspect_p") {
        op.aspect_p = nb::cast<double>(value);
      } else if (name == "by_area") {
        op.by_area = nb::cast<bool>(value);
      } else if (name == "count") {
        op.count = nb::cast<int>(value);
      } else if (name == "most_count") {
        op.most_count = nb::cast<int>(value);
      } else {
        throw nb::type_error((kind + " has no field " + name).c_str());
      }
    } catch (const nb::cast_error&) {
      throw nb::type_error((kind + "'s " + name + " has a wrong type").c_str());
    }
  }
  if (op.step.kind == Step::Kind::convolve) op.step.box = {0, 0, op.height, op.width};
  return op;
}

void add(DrawPlan& plan, const std::string& kind, const nb::kwargs& fields) {
  std::string error;
  if (!plan.add(op_from(kind, fields, 0), error)) throw nb::value_error(error.c_str());
}

using AnswerFields = std::tuple<std::string, std::vector<double>, std::vector<double>>;  // kind, question, answer

// The draws of one view of an image: ("ok" | "exp" | "perspective" | "crop_too_large", geometry or None, numbers of the
// question).
nb::tuple draw(const DrawPlan& plan, Generator& generator, int width, int height,
               const std::vector<AnswerFields>& known, std::size_t view) {
  if (view >= plan.views()) throw nb::index_error("view out of range");
  std::vector<Answer> answers;
  for (const auto& [kind, question, answer] : known) answers.push_back(answer_from(kind, question, answer));
  Geometry geometry;
  Question unresolved;
  const nb::list nothing;
  switch (plan.run(generator, width, height, answers, geometry, unresolved, view)) {
    case DrawStatus::ambiguous: return nb::make_tuple(name_of(unresolved.kind), nb::none(), numbers_of(unresolved));
    case DrawStatus::crop_too_large: return nb::make_tuple("crop_too_large", nb::none(), nothing);
    case DrawStatus::ok: break;
  }
  return nb::make_tuple("ok", to_tuple(geometry), nothing);
}

// Boxes to erase in one view of an image of which torch need not be asked anything, and the generator's state before
// their noise.
nb::tuple draw_erased(const DrawPlan& plan, Generator& generator, int width, int height) {
  Geometry geometry;
  Question unresolved;
  if (plan.run(generator, width, height, {}, geometry, unresolved) != DrawStatus::ok) {
    throw nb::value_error("the draws cannot be made");
  }
  return erased_of(geometry);
}

// Steps, rotations, affine transforms and blurs of an image of height x width; what draws does so by an unseeded
// generator. With a generator, anything behind a first step. False if they do not fit the image.
bool steps_of(const nb::sequence& entries, int height, int width, Generator* given, std::vector<Step>& steps) {
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
  Geometry geometry;
  Question unresolved;
  if (plan.run(given != nullptr ? *given : unseeded, width, height, {}, geometry, unresolved) != DrawStatus::ok) {
    return false;
  }
  steps = std::move(geometry.steps);
  return true;
}

// Applies steps to an image, whose memory may change. Returns whether they fit the image and the result fits `out`.
bool apply_to(const nb::sequence& entries, Array image, Array out, const std::string& pass_rule, Generator* given) {
  require_rows(image, "image");
  require_rows(out, "out");
  if (image.shape(2) != 3 || out.shape(2) != 3) throw nb::value_error("images must have 3 channels");
  std::vector<Step> steps;
  const auto height = static_cast<int>(image.shape(0)), width = static_cast<int>(image.shape(1));
  if (!steps_of(entries, height, width, given, steps)) return false;
  const PassRule rule = pass_rule_from(pass_rule);
  nb::gil_scoped_release release;
  return apply_steps(steps, rule, {image.data(), image.stride(0), height, width},
                     {out.data(), out.stride(0), static_cast<int>(out.shape(0)), static_cast<int>(out.shape(1))});
}

std::uint32_t count_from(std::int64_t count) {
  if (count < 1 || count > std::numeric_limits<std::int32_t>::max()) {
    throw nb::value_error(("count must be from 1 to 2**31 - 1, got " + std::to_string(count)).c_str());
  }
  return static_cast<std::uint32_t>(count);
}

template <typename Random>
nb::bytes state_of_twister(const Random& self) {
  std::uint8_t state[Twister::kStateBytes];
  self.get_state(state);
  return nb::bytes(state, sizeof state);
}

template <typename Random>
void set_state_of_twister(Random& self, const nb::bytes& state) {
  if (state.size() != Twister::kStateBytes || !self.set_state(reinterpret_cast<const std::uint8_t*>(state.data()))) {
    throw nb::value_error("state must be what get_state() returns");
  }
}

}  // namespace

std::vector<Step> steps_from(const nb::sequence& entries, int height, int width) {
  std::vector<Step> steps;
  if (!steps_of(entries, height, width, nullptr, steps)) throw nb::value_error("the steps do not fit the image");
  return steps;
}

void bind_draws(nb::module_& m) {
  m.def("apply_steps", &apply_to, "steps"_a, "image"_a.noconvert(), "out"_a.noconvert(),
        "pass_rule"_a = "horizontal_first", "generator"_a = nb::none());
  nb::class_<BoundPlaces>(m, "PixelPlaces").def(nb::new_(&places_from), "numbers"_a.noconvert());
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
  nb::class_<PythonRandom>(m, "PythonRandom")
      .def(nb::init<std::uint64_t>(), "seed"_a)
      .def("random", &PythonRandom::random_double)
      .def(
          "randbelow", [](PythonRandom& self, std::int64_t count) { return self.randbelow(count_from(count)); },
          "count"_a)
      .def("uniform", &PythonRandom::uniform, "low"_a, "high"_a)
      .def("gauss", &PythonRandom::gauss, "mean"_a, "deviation"_a)
      .def("get_state", &state_of_twister<PythonRandom>)
      .def("set_state", &set_state_of_twister<PythonRandom>, "state"_a)
      .def_static("exp", [](double x) { return std::exp(x); }, "x"_a);
  nb::class_<NumpyRandom>(m, "NumpyRandom")
      .def(nb::init<std::uint32_t>(), "seed"_a)
      .def("random", &NumpyRandom::random_double)
      .def(
          "randint", [](NumpyRandom& self, std::int64_t count) { return self.randint(count_from(count)); }, "count"_a)
      .def("get_state", &state_of_twister<NumpyRandom>)
      .def("set_state", &set_state_of_twister<NumpyRandom>, "state"_a);
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
