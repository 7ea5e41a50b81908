// A thread pool that turns batches of JPEG files into batches of pixels. Knows neither Python nor torch.
//
// Per image: read file -> header -> draws -> region decode -> resize -> flip -> the caller's memory. Threads serve the
// batch submitted first; idle ones serve the next. Draws from one stream are made in the order of submission and of the
// samples, while headers are read and pixels decoded in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/source.h"
#include "gpu/staging.h"
#include "image/look_up.h"
#include "index/jpeg_index.h"
#include "jpeg/header.h"
#include "rng/draw_plan.h"
#include "sample/sample.h"

namespace fastload {

class Job;

// How long to wait for a thread that may be stuck reading a file; torch waits as long for a worker.
inline constexpr double kJoinSeconds = 5.0;

// A random stream from which jobs draw one after the other, like the generator of one torch worker. Shared from this,
// so that a binding can drop its references without the GIL.
class RandomStream : public std::enable_shared_from_this<RandomStream> {
 public:
  explicit RandomStream(const Generator& generator) : generator_(generator) {}

 private:
  friend class Job;
  friend class PoolState;
  Generator generator_;
  std::deque<Job*> waiting_;  // jobs with draws left to make, in the order of submission
};

struct BatchSpec {
  std::vector<Input> inputs;
  SampleOptions options;
  std::shared_ptr<JpegIndex> index;  // or null
  // Takes the images that a GPU can decode, so that `out` has none of them; or null. Its memory must stay valid as that
  // of `out`.
  std::shared_ptr<Staging> staging;
  // Sample 0. Samples whose status is not ok are black, unless the job was cancelled. This memory and the inputs' bytes
  // must stay valid until the job is done or, if it was cancelled, until idle().
  std::uint8_t* out = nullptr;
  std::ptrdiff_t sample_stride = 0;  // bytes
  std::ptrdiff_t row_stride = 0;
  // Where the values of each view's images go, one image behind the other; or none. `look_up` has the table and the
  // layout. Values of samples whose status is not ok are not written. Valid as long as `out`, which then has no gaps.
  std::vector<void*> values;
  LookUpJob look_up;
  // If views differ in size: (height, width) of each. All images of a view then lie one behind the other without gaps,
  // and so do the views; the strides and the options' size don't count.
  std::vector<std::pair<int, int>> sizes;
  // What to do with each image: either one Geometry each, or a plan. A plan draws from `stream`, or from one generator
  // per sample if there are `seeds`, or not at all. A Geometry may be incomplete (see complete()). If a plan has
  // several views, each image is as many inputs in a row, and the first views of all images come first in the output.
  std::vector<Geometry> geometry;
  std::shared_ptr<const DrawPlan> plan;
  std::shared_ptr<RandomStream> stream;
  std::vector<std::uint64_t> seeds;
  std::uint64_t number = 0;  // of the batch, for a profiler
};

// What a job needs from its caller.
struct Request {
  enum class Kind {
    none,
    // The draws of `sample` cannot be made here: this core does not take its file (outcome says why), or the image is
    // too small for the crop. The caller must process it from generator_before(sample), then call skip().
    sample,
    // The draws of `sample` depend on something that only torch can compute with its bits. Call provide().
    question,
  };
  Kind kind = Kind::none;
  std::size_t sample = 0;
  Question question;
};

enum class WaitResult {
  done,       // every outcome is final
  requested,  // see request()
  timeout,
  foreign,  // this process was forked and the pool's threads live in its parent: the job will never finish
};

// Totals over a pool's threads so far.
struct WorkDone {
  double seconds = 0;       // from start to end of each task
  double busy_seconds = 0;  // of those, on a core; the rest is waiting for a file, a core or each other
  double read_seconds = 0;  // of `seconds`: reading files up to the header
  double read_busy_seconds = 0;
  std::uint64_t samples = 0;
};

class PoolState;

// One submitted batch. Thread-safe. Dropping the last reference outside the pool does not cancel it.
class Job {
 public:
  WaitResult wait(double timeout_seconds);  // negative: no limit
  Request request() const;
  void provide(const Answer& answer);
  // Call after handling `request().sample`; the stream continues from `after`. The outcome's status stays.
  void skip(const Generator& after);
  // The stream's state before a sample's draws; with size(), after those of the last. False if the draws have not got
  // that far, or there is no stream.
  bool generator_before(std::size_t sample, Generator& generator) const;
  bool foreign() const;

  // Ends the job at once: samples without an outcome become `cancelled`, and waiters see it as done. Waits for threads
  // that work on a sample, which stop soon unless they are stuck reading a file, and returns idle(). Other jobs of the
  // same stream continue from its current state. Idempotent.
  bool cancel(double timeout_seconds);  // negative: no limit
  // True once no thread uses the job's memory any more.
  bool idle() const;
  bool pool_closed() const;
  // Seconds that threads have worked on it so far, added up; a task in progress does not count.
  double work_seconds() const;

  std::size_t size() const { return spec_.inputs.size(); }
  // Only after wait() returned `done` or cancel() returned, or, for `request().sample`, while it is requested.
  const Outcome& outcome(std::size_t sample) const { return samples_[sample].outcome; }

 private:
  friend class Pool;
  friend class PoolState;

  struct Sample {
    Outcome outcome;
    JpegHeader header;
    ByteSource source;      // kept from header to decode while draws are waited for; closed beyond the memory limit
    KeptFiles::Known kept;  // then there is no source
    bool header_read = false;
    bool final = false;
  };
  // The stream's state before a sample.
  struct Mark {
    std::size_t sample;
    Generator generator;
  };

  Job(std::shared_ptr<PoolState> pool, BatchSpec spec);

  // Whether all inputs are pixels; they are then ready for their draws.
  bool begin_decoded();

  bool ordered() const { return spec_.plan != nullptr && spec_.stream != nullptr; }
  std::size_t views() const { return spec_.plan == nullptr ? 1 : spec_.plan->views(); }

  std::shared_ptr<PoolState> pool_;
  BatchSpec spec_;
  std::atomic<bool> stop_{false};
  // Below: guarded by the pool's mutex.
  std::vector<Sample> samples_;
  std::size_t next_fresh_ = 0;      // first sample not begun
  std::vector<std::size_t> again_;  // samples to begin again
  std::vector<std::size_t> stuck_;  // samples that wait for provide()
  std::deque<std::size_t> ready_;   // drawn, not yet decoded
  std::size_t frontier_ = 0;        // first sample not drawn (ordered jobs)
  std::vector<Mark> marks_;
  std::size_t unfinished_ = 0;
  std::size_t running_ = 0;               // tasks in progress
  std::atomic<double> work_seconds_ = 0;  // written under the pool's mutex
  Request request_;
};

class Pool {
 public:
  // Starts `threads` threads named fl-decode-0, fl-decode-1, ... Throws std::system_error if none can be started.
  explicit Pool(int threads);
  ~Pool();  // calls close(); in a forked child does nothing
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;
  // Changes the number of threads, at least 1. Surplus threads end after their current image; this does not wait for
  // them, and no submitted work is lost. Thread-safe. Returns the new number, which is lower if threads could not be
  // started. Throws std::runtime_error on a closed or foreign pool.
  int resize(int threads);
  // Thread-safe. All zeros in a forked child.
  WorkDone work_done() const;
  // Throws std::invalid_argument on a spec that contradicts itself, std::runtime_error on a closed or foreign pool.
  std::shared_ptr<Job> submit(BatchSpec spec);
  // Cancels all jobs, then stops and joins the threads. Returns false if threads are stuck reading a file for longer
  // than the limit; they are left to end by themselves. Idempotent.
  bool close(double timeout_seconds = kJoinSeconds);  // negative: no limit

 private:
  std::shared_ptr<PoolState> state_;
};

}  // namespace fastload
