#include "bindings/pool.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/submit.h"

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
  const Geometry& g = outcome.geometry;
  return nb::make_tuple(g.crop.top, g.crop.left, g.crop.height, g.crop.width, g.out_height, g.out_width, g.window.top,
                        g.window.left, g.window.height, g.window.width, g.flip_horizontal, g.flip_vertical);
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

void bind_batch(nb::module_& m) {
  bind_index(m);
  bind_staging(m);

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

  nb::class_<BoundPool> pool_class(m, "Pool");
  pool_class.def(nb::init<int>(), "threads"_a)
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
      .def("close", &BoundPool::close, "timeout_s"_a = kJoinSeconds);
  bind_submit(pool_class);
}

}  // namespace fastload
