// The Python classes of pools, their jobs and what these prepare for a GPU; what Python gives to be decoded, converted
// for the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "gpu/found_points.h"
#include "gpu/staging.h"
#include "pool/pool.h"

namespace fastload {

using Images = nanobind::ndarray<std::uint8_t, nanobind::ndim<4>, nanobind::device::cpu>;
using Pixels = nanobind::ndarray<const std::uint8_t, nanobind::ndim<4>, nanobind::device::cpu>;
using ViewValues = nanobind::ndarray<nanobind::ndim<4>, nanobind::c_contig, nanobind::device::cpu>;
using StagingMemory = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// A batch's staging, and the Python object whose memory it uses.
struct BoundStaging {
  std::shared_ptr<Staging> staging;
  StagingMemory memory;
};

nanobind::tuple to_tuple(const Outcome& outcome);
nanobind::tuple to_tuple(const Staging::Chunk& chunk);
nanobind::tuple to_tuple(const Staging::Search& search);

// A bytes-like object is the file's contents or, with `arrays`, pixels if it has their shape; anything else is a path;
// a str with an attribute `tagged_with` is that of a file which must have been tagged with this key.
Input input_from(nanobind::handle object, std::vector<BytesView>& views, bool arrays = false);
void require_layout(const Images& out, std::size_t count);  // throws a ValueError
SampleOptions options_from(const Images& out, const std::string& filter, const std::string& pass_rule,
                           std::uint64_t max_pixels, bool fast);
// (crop, output size, window, flips): top, left, height, width; height, width; top, left, height, width; two flags.
Geometry geometry_from(const std::int32_t* g);

// A core job and the Python objects whose memory it uses. Requires the GIL except where it is explicitly released.
struct Held {
  std::shared_ptr<Job> job;
  std::vector<BytesView> views;
  Pixels pixels;
  Images out;
  StagingMemory staging;
  std::vector<ViewValues> values;
  std::optional<ValueTable> table;
};

// Frees abandoned jobs that no thread uses any more.
void free_given_up();

class BoundJob {
 public:
  explicit BoundJob(Held held) : held_(std::move(held)) {}
  ~BoundJob();
  BoundJob(const BoundJob&) = delete;
  BoundJob& operator=(const BoundJob&) = delete;

  void attach(std::shared_ptr<Job> job) { held_.job = std::move(job); }
  Job& job() { return *held_.job; }
  const char* wait(double timeout);
  bool cancel(double timeout);
  nanobind::tuple request();
  nanobind::bytes statuses();
  nanobind::tuple outcome(std::size_t sample) { return to_tuple(at(sample)); }
  nanobind::object geometry(std::size_t sample);
  // For each sample, boxes (top, left, height, width) to erase and the generator's state before their noise.
  nanobind::list erased();
  nanobind::object generator_before(std::size_t sample);
  void skip(nanobind::bytes state_after);

 private:
  const Outcome& at(std::size_t sample);
  bool cancel_within(double seconds);

  Held held_;
  bool waited_ = false;  // whether a wait for a stuck thread has already timed out
};

// A pool that releases the GIL to close, also when Python drops it.
class BoundPool {
 public:
  explicit BoundPool(int threads) : pool_(std::make_unique<Pool>(threads)) {}
  ~BoundPool();
  BoundPool(const BoundPool&) = delete;
  BoundPool& operator=(const BoundPool&) = delete;

  Pool& pool() { return *pool_; }
  int resize(int threads);
  std::shared_ptr<Job> submit(BatchSpec spec);
  WorkDone work_done();
  bool close(double timeout);

 private:
  std::unique_ptr<Pool> pool_;
};

}  // namespace fastload
