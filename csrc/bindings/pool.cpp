#include "bindings/pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <variant>

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

// How often a wait checks for Python signals (Ctrl-C).
constexpr double kSignalCheckSeconds = 0.1;

// Abandoned jobs for which a thread is stuck reading a file. Their memory stays until the thread stops using it, or
// until the process ends.
std::vector<Held>& given_up() {
  static auto* jobs = new std::vector<Held>;
  return *jobs;
}

}  // namespace

nb::tuple to_tuple(const Outcome& outcome) {
  return nb::make_tuple(name_of(outcome.status), outcome.error_number, outcome.width, outcome.height, outcome.bytes,
                        outcome.detail);
}

void free_given_up() {
  std::vector<Held>& jobs = given_up();
  const auto stuck = std::partition(jobs.begin(), jobs.end(), [](const Held& held) { return !held.job->idle(); });
  const std::vector<Held> done(std::make_move_iterator(stuck), std::make_move_iterator(jobs.end()));
  // Before `done` is destroyed: freeing objects may run any Python code and re-enter this function.
  jobs.erase(stuck, jobs.end());
}

BoundJob::~BoundJob() {
  if (held_.job == nullptr) return;
  const bool waited = waited_ || held_.job->pool_closed();
  if (cancel_within(waited ? 0 : kJoinSeconds)) {
    nb::gil_scoped_release release;  // a job has much to free, and nothing of Python's
    held_.job.reset();
  } else {
    given_up().push_back(std::move(held_));
  }
  free_given_up();
}

const char* BoundJob::wait(double timeout) {
  while (true) {
    const double slice = timeout < 0 || timeout > kSignalCheckSeconds ? kSignalCheckSeconds : timeout;
    WaitResult result;
    {
      nb::gil_scoped_release release;
      result = held_.job->wait(slice);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    switch (result) {
      case WaitResult::done: return "done";
      case WaitResult::requested: return "requested";
      case WaitResult::foreign: throw std::runtime_error("a batch must be waited for in the process that submitted it");
      case WaitResult::timeout: break;
    }
    if (timeout < 0) continue;
    timeout -= slice;
    if (timeout <= 0) return "timeout";
  }
}

bool BoundJob::cancel(double timeout) {
  while (!cancel_within(timeout < 0 ? kSignalCheckSeconds : timeout)) {
    if (timeout >= 0) {
      waited_ = true;
      return false;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return true;
}

nb::tuple BoundJob::request() {
  const Request request = held_.job->request();
  const nb::list nothing;
  switch (request.kind) {
    case Request::Kind::sample: return nb::make_tuple("sample", request.sample, nothing);
    case Request::Kind::question:
      return nb::make_tuple(name_of(request.question.kind), request.sample, numbers_of(request.question));
    case Request::Kind::none: break;
  }
  return nb::make_tuple("none", request.sample, nothing);
}

nb::bytes BoundJob::statuses() {
  std::string codes;
  for (std::size_t i = 0; i < held_.job->size(); ++i) codes += static_cast<char>(held_.job->outcome(i).status);
  return nb::bytes(codes.data(), codes.size());
}

nb::object BoundJob::geometry(std::size_t sample) {
  const Outcome& outcome = at(sample);
  if (!outcome.drawn) return nb::none();
  return to_tuple(outcome.geometry);
}

nb::list BoundJob::erased() {
  nb::list samples;
  for (std::size_t i = 0; i < held_.job->size(); ++i) {
    const Outcome& outcome = held_.job->outcome(i);
    samples.append(erased_of(outcome.drawn ? outcome.geometry : Geometry{}));
  }
  return samples;
}

nb::object BoundJob::generator_before(std::size_t sample) {
  Generator generator;
  if (!held_.job->generator_before(sample, generator)) return nb::none();
  return state_of(generator);
}

void BoundJob::skip(nb::bytes state_after) {
  Generator generator;
  set_state(generator, state_after);
  held_.job->skip(generator);
}

const Outcome& BoundJob::at(std::size_t sample) {
  if (sample >= held_.job->size()) throw nb::index_error("sample out of range");
  return held_.job->outcome(sample);
}

bool BoundJob::cancel_within(double seconds) {
  nb::gil_scoped_release release;
  return held_.job->cancel(seconds);
}

BoundPool::~BoundPool() {
  nb::gil_scoped_release release;
  pool_.reset();
}

int BoundPool::resize(int threads) {
  nb::gil_scoped_release release;
  return pool_->resize(threads);
}

std::shared_ptr<Job> BoundPool::submit(BatchSpec spec) {
  nb::gil_scoped_release release;  // it draws for pixels, and waits for the threads' lock
  return pool_->submit(std::move(spec));
}

WorkDone BoundPool::work_done() {
  nb::gil_scoped_release release;
  return pool_->work_done();
}

bool BoundPool::close(double timeout) {
  bool ended;
  {
    nb::gil_scoped_release release;
    ended = pool_->close(timeout);
  }
  free_given_up();
  return ended;
}

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

void bind_pool(nb::module_& m) {
  nb::class_<BoundJob>(m, "Job")
      .def("wait", &BoundJob::wait, "timeout"_a = -1.0)
      .def("cancel", &BoundJob::cancel, "timeout_s"_a = -1.0)
      .def("request", &BoundJob::request)
      .def(
          "provide",
          [](BoundJob& self, const std::string& kind, const std::vector<double>& question,
             const std::vector<double>& answer) { self.job().provide(answer_from(kind, question, answer)); },
          "kind"_a, "question"_a, "answer"_a)
      .def("skip", &BoundJob::skip, "state_after"_a)
      .def("generator_before", &BoundJob::generator_before, "sample"_a)
      .def("statuses", &BoundJob::statuses)
      .def("outcome", &BoundJob::outcome, "sample"_a)
      .def("geometry", &BoundJob::geometry, "sample"_a)
      .def("erased", &BoundJob::erased)
      .def("work_seconds", [](BoundJob& self) { return self.job().work_seconds(); })
      .def("__len__", [](BoundJob& self) { return self.job().size(); });

  nb::class_<BoundPool>(m, "Pool")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("threads", [](BoundPool& pool) { return pool.pool().threads(); })
      .def("resize", &BoundPool::resize, "threads"_a)
      .def("work_done",
           [](BoundPool& pool) {
             const WorkDone done = pool.work_done();
             return nb::make_tuple(done.seconds, done.samples);
           })
      .def("work_times",
           [](BoundPool& pool) {
             const WorkDone done = pool.work_done();
             return nb::make_tuple(done.seconds, done.busy_seconds, done.read_seconds, done.read_busy_seconds);
           })
      .def("close", &BoundPool::close, "timeout_s"_a = kJoinSeconds)
      .def("submit", &submit, "inputs"_a, "out"_a.noconvert(), nb::kw_only(), "geometry"_a = nb::none(),
           "plan"_a = nb::none(), "stream"_a = nb::none(), "seeds"_a = nb::none(), "number"_a = 0,
           "filter"_a = "bilinear", "pass_rule"_a = "horizontal_first", "max_pixels"_a = 0, "fast"_a = false,
           "arrays"_a = false, "sizes"_a = std::vector<std::pair<int, int>>{}, "index"_a = nb::none(),
           "indices"_a.noconvert() = nb::none(), "staging"_a = nb::none(),
           "values"_a.noconvert() = std::vector<ViewValues>{}, "table"_a.noconvert() = nb::none());
}

}  // namespace fastload
