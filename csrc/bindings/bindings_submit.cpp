#include "bindings/bindings_submit.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

using Indices = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Geometries = nb::ndarray<const std::int32_t, nb::shape<-1, 12>, nb::c_contig, nb::device::cpu>;

// All pixels of `out` are in one row.
void require_room(const Images& out, std::size_t count, const std::vector<std::pair<int, int>>& sizes) {
  std::size_t pixels = 0;
  for (const auto& [height, width] : sizes) {
    pixels += static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  }
  if (count % sizes.size() != 0 || out.shape(1) != 1 || out.shape(2) != pixels * (count / sizes.size())) {
    throw nb::value_error("out must be one row with exactly the pixels of all views");
  }
}

// Lets the pool look values up for each view, (N, C, H, W).
void set_values(BatchSpec& spec, const std::vector<ViewValues>& values, const ValueTable& table) {
  set_table(spec.look_up, table);
  for (std::size_t view = 0; view < values.size(); ++view) {
    const ViewValues& out = values[view];
    const auto size = view < spec.sizes.size() ? spec.sizes[view] : std::pair(spec.options.height, spec.options.width);
    if (out.shape(0) * values.size() != spec.inputs.size() || out.shape(1) != table.shape(0) ||
        out.shape(2) != static_cast<std::size_t>(size.first) || out.shape(3) != static_cast<std::size_t>(size.second) ||
        out.itemsize() != table.itemsize()) {
      throw nb::value_error("values must be NCHW for each view, of the table's type and with its channels");
    }
    advise_large_pages(out.data(), out.nbytes());
    spec.values.push_back(out.data());
  }
}

// Some images of an array of shape (N, height, width, 3 or 1) with any strides, each `times` times.
std::vector<Input> inputs_from(const Pixels& pixels, const Indices& indices, std::size_t times) {
  if (pixels.size() == 0) throw nb::value_error("pixels must have at least one image, row and column");
  if (pixels.shape(3) != 3 && pixels.shape(3) != 1) throw nb::value_error("pixels must have 3 channels or one");
  Input input;
  input.height = static_cast<std::uint32_t>(pixels.shape(1));
  input.width = static_cast<std::uint32_t>(pixels.shape(2));
  input.strides = {pixels.stride(1), pixels.stride(2), pixels.shape(3) == 1 ? 0 : pixels.stride(3)};
  std::vector<Input> inputs(indices.size() * times, input);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t index = indices.data()[i / times];
    if (index < 0 || index >= static_cast<std::int64_t>(pixels.shape(0))) {
      throw nb::index_error("an index must be from 0 to less than the number of images");
    }
    inputs[i].data = pixels.data() + pixels.stride(0) * index;
  }
  return inputs;
}

BoundJob* submit(BoundPool& pool, std::variant<Pixels, nb::sequence> inputs, Images out,
                 std::optional<Geometries> geometry, std::shared_ptr<DrawPlan> plan,
                 std::shared_ptr<RandomStream> stream, std::optional<std::vector<std::uint64_t>> seeds,
                 std::uint64_t number, const std::string& filter, const std::string& pass_rule,
                 std::uint64_t max_pixels, bool fast, bool arrays, const std::vector<std::pair<int, int>>& sizes,
                 std::shared_ptr<JpegIndex> index, std::optional<Indices> indices, const BoundStaging* staging,
                 std::vector<ViewValues> values, std::optional<ValueTable> table) {
  free_given_up();
  BatchSpec spec;
  std::vector<BytesView> views;
  Pixels pixels;
  if (std::holds_alternative<Pixels>(inputs)) {
    pixels = std::get<Pixels>(std::move(inputs));
    if (!indices) throw nb::value_error("pixels and the indices go together");
    spec.inputs = inputs_from(pixels, *indices, plan == nullptr ? 1 : plan->views());
  } else {
    const nb::sequence& given = std::get<nb::sequence>(inputs);
    views.reserve(nb::len(given));
    spec.inputs.reserve(nb::len(given));
    for (nb::handle input : given) spec.inputs.push_back(input_from(input, views, arrays));
  }
  const std::size_t count = spec.inputs.size();
  if (sizes.empty() || count > 0) require_layout(out, sizes.empty() ? count : 1);
  if (!sizes.empty()) require_room(out, count, sizes);
  spec.sizes = sizes;
  spec.out = out.data();
  spec.sample_stride = out.stride(0);
  spec.row_stride = out.stride(1);
  spec.options = options_from(out, filter, pass_rule, max_pixels, fast);
  if (geometry) {
    for (std::size_t i = 0; i < geometry->shape(0); ++i)
      spec.geometry.push_back(geometry_from(geometry->data() + 12 * i));
  }
  if (plan != nullptr) spec.plan = std::make_shared<const DrawPlan>(*plan);
  spec.stream = std::move(stream);
  if (seeds) spec.seeds = std::move(*seeds);
  spec.number = number;
  spec.index = std::move(index);
  if (staging != nullptr) spec.staging = staging->staging;
  if (table.has_value() != !values.empty()) throw nb::value_error("values and the table go together");
  if (table) set_values(spec, values, *table);
  auto bound = std::make_unique<BoundJob>(Held{nullptr, std::move(views), std::move(pixels), std::move(out),
                                               staging != nullptr ? staging->memory : StagingMemory(),
                                               std::move(values), std::move(table)});
  bound->attach(pool.submit(std::move(spec)));
  return bound.release();  // Python takes ownership
}

}  // namespace

void require_layout(const Images& out, std::size_t count) {
  if (out.shape(0) != count) throw nb::value_error("out must have room for exactly one image per input");
  if (count == 0) return;  // NumPy gives an empty array other strides
  if (out.shape(3) != 3 || out.stride(3) != 1 || out.stride(2) != 3) {
    throw nb::value_error("out must be NHWC with 3 channels, and its rows contiguous");
  }
}

SampleOptions options_from(const Images& out, const std::string& filter, const std::string& pass_rule,
                           std::uint64_t max_pixels, bool fast) {
  SampleOptions options;
  options.height = static_cast<int>(out.shape(1));
  options.width = static_cast<int>(out.shape(2));
  options.filter = filter_from(filter);
  options.pass_rule = pass_rule_from(pass_rule);
  options.max_pixels = max_pixels;
  options.fast = fast;
  return options;
}

Input input_from(nb::handle object, std::vector<BytesView>& views, bool arrays) {
  Input input;
  if (PyObject_CheckBuffer(object.ptr())) {
    static const std::uint8_t nothing = 0;
    views.emplace_back(object);
    input.data = views.back().data() != nullptr ? views.back().data() : &nothing;
    input.size = views.back().size();
    if (arrays && views.back().is_pixels()) {
      input.height = views.back().height();
      input.width = views.back().width();
      const std::ptrdiff_t channels = views.back().channels();
      input.strides = {channels * input.width, channels, channels == 3};
    }
    return input;
  }
  if (PyUnicode_Check(object.ptr())) {
    if (!PyUnicode_CheckExact(object.ptr()) && nb::hasattr(object, "tagged_with")) {
      input.key = key_from(nb::cast<nb::bytes>(object.attr("tagged_with")));
    }
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);  // cached in the str, so encoded only once
    if (text != nullptr && std::strlen(text) == static_cast<std::size_t>(size)) {
      input.path.assign(text, static_cast<std::size_t>(size));
      return input;
    }
    PyErr_Clear();  // leave undecodable file names and null bytes to os.fsencode
  }
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(object.ptr(), &encoded) == 0) throw nb::python_error();
  const nb::bytes path = nb::steal<nb::bytes>(encoded);
  input.path.assign(path.c_str(), path.size());
  return input;
}

Geometry geometry_from(const std::int32_t* g) {
  Geometry geometry;
  geometry.crop = {g[0], g[1], g[2], g[3]};
  geometry.out_height = g[4];
  geometry.out_width = g[5];
  geometry.window = {g[6], g[7], g[8], g[9]};
  geometry.flip_horizontal = g[10] != 0;
  geometry.flip_vertical = g[11] != 0;
  return geometry;
}

void bind_submit(nb::class_<BoundPool>& pool) {
  pool.def("submit", &submit, "inputs"_a, "out"_a.noconvert(), nb::kw_only(), "geometry"_a = nb::none(),
           "plan"_a = nb::none(), "stream"_a = nb::none(), "seeds"_a = nb::none(), "number"_a = 0,
           "filter"_a = "bilinear", "pass_rule"_a = "horizontal_first", "max_pixels"_a = 0, "fast"_a = false,
           "arrays"_a = false, "sizes"_a = std::vector<std::pair<int, int>>{}, "index"_a = nb::none(),
           "indices"_a.noconvert() = nb::none(), "staging"_a = nb::none(),
           "values"_a.noconvert() = std::vector<ViewValues>{}, "table"_a.noconvert() = nb::none());
}

}  // namespace fastload
