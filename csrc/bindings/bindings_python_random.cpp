#include "bindings/bindings.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "rng/draw_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

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

Use use_from(const std::string& name) {
  for (const auto& [text, use] : kUses) {
    if (name == text) return use;
  }
  throw nb::value_error(("no such use of a level: " + name).c_str());
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

DrawOp::Level level_from(const nb::dict& fields) {
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
  if (fields.contains("use")) level.use = use_from(nb::cast<std::string>(fields["use"]));
  return level;
}

bool set_python_field(DrawOp& op, const std::string& name, nb::handle value) {
  if (name == "filters") {
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
    return false;
  }
  return true;
}

void bind_python_random(nb::module_& m) {
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
}

}  // namespace fastload
