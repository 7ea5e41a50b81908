// A thread pool that turns batches of JPEG files into batches of pixels. Knows neither Python nor torch.
//
// Per image: read file -> header -> draws -> region decode -> resize -> flip -> the caller's memory. The threads serve
// the batch that was submitted first; what it cannot use goes to the next. Draws that come from one stream are made in
// the order of submission and of the samples, while headers are read and pixels decoded in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "jpeg/file.h"
#include "jpeg/jpeg_header.h"
#include "pool/decode_sample.h"
#include "pool/source.h"
#include "rng/rng.h"

namespace fastload {

class Job;

// How long to wait for a thread that may be stuck in reading a file; as long as torch waits for a worker.
inline constexpr double kJoinSeconds = 5.0;

// A random stream that jobs draw from one after the other, like the generator of one torch worker. (Shared from this,
// so that a binding's own references to it need no lock of Python's to be dropped.)
class RandomStream : public std::enable_shared_from_this<RandomStream> {
 public:
  explicit RandomStream(const Generator& generator) : generator_(generator) {}

 private:
  friend class Job;
  friend class PoolState;
  Generator generator_;
  std::deque<Job*> waiting_;  // jobs that have draws to make, in the order of submission
};

struct BatchSpec {
  std::vector<Input> inputs;
  SampleOptions options;
  // Place of sample 0. Black where the status is not ok, unless the job was cancelled. It must stay, as the inputs'
  // bytes, until the job is done, or if it was cancelled, until idle().
  std::uint8_t* out = nullptr;
  std::ptrdiff_t sample_stride = 0;  // bytes
  std::ptrdiff_t row_stride = 0;
  // What to do with each image: either one Geometry each, or a plan. A plan draws from `stream`, or for each sample
  // from a generator of its own if there are `seeds`, or draws nothing. A Geometry may leave things open (see
  // complete()).
  std::vector<Geometry> geometry;
  std::shared_ptr<const DrawPlan> plan;
  std::shared_ptr<RandomStream> stream;
  std::vector<std::uint64_t> seeds;
  std::uint64_t number = 0;  // the batch's, for a profiler
};

// What a job waits for.
struct Request {
  enum class Kind {
    none,
    // The draws of `sample` cannot be made here: its file is no image that this core takes (outcome says which), or is
    // too small for the crop. Let the caller process it from generator_before(sample), then call skip().
    sample,
    // exp(`value`) in float32 decides over a crop, and this core cannot tell how torch rounds it. Call provide_exp().
    exp,
  };
  Kind kind = Kind::none;
  std::size_t sample = 0;
  float value = 0;
};

enum class WaitResult {
  done,       // every outcome is final
  requested,  // request() says what is needed
  timeout,
  foreign,  // the pool's threads live in another process (this one was forked off): nothing will ever come
};

// What the threads of a pool have done so far, all together.
struct WorkDone {
  double seconds = 0;       // from taking up a task to having done it
  double busy_seconds = 0;  // of those: on a core; the rest they waited, for a file, a core or each other
  double read_seconds = 0;  // of `seconds`: reading files up to the header
  double read_busy_seconds = 0;
  std::uint64_t samples = 0;
};

class PoolState;

// One submitted batch. Thread-safe. Dropping the last reference outside of the pool does not cancel it.
class Job {
 public:
  WaitResult wait(double timeout_seconds);  // negative: no limit
  Request request() const;
  void provide_exp(float input, float output);
  // Sample `request().sample` is dealt with; the stream goes on from `after`. The outcome's status stays.
  void skip(const Generator& after);
  // The stream's state before the draws of a sample that has been reached. False if it was not, or there is no stream.
  bool generator_before(std::size_t sample, Generator& generator) const;
  bool foreign() const;

  // Ends the job at once: samples without an outcome are `cancelled`, for whoever waits it is done. Threads that are at
  // one stop soon, unless they are stuck in reading a file; waits for them, and returns idle(). Other jobs of the same
  // stream go on from wherever it stands. Idempotent.
  bool cancel(double timeout_seconds);  // negative: no limit
  // Whether no thread touches the job's memory any more, nor will.
  bool idle() const;
  bool pool_closed() const;

  std::size_t size() const { return spec_.inputs.size(); }
  // Only after wait() said `done` or cancel() returned, or, for `request().sample`, while it is requested.
  const Outcome& outcome(std::size_t sample) const { return samples_[sample].outcome; }

 private:
  friend class Pool;
  friend class PoolState;

  struct Sample {
    Outcome outcome;
    JpegHeader header;
    ByteSource source;  // between header and decode, when the draws come between; closed if that would be too much
    bool header_read = false;
    bool final = false;
  };
  // Where the stream stood before a sample.
  struct Mark {
    std::size_t sample;
    Generator generator;
  };

  Job(std::shared_ptr<PoolState> pool, BatchSpec spec);

  bool ordered() const { return spec_.plan != nullptr && spec_.stream != nullptr; }

  std::shared_ptr<PoolState> pool_;
  BatchSpec spec_;
  std::atomic<bool> stop_{false};
  // Below: guarded by the pool's mutex.
  std::vector<Sample> samples_;
  std::size_t next_fresh_ = 0;      // first sample not begun
  std::vector<std::size_t> again_;  // samples to begin once more
  std::vector<std::size_t> stuck_;  // samples that wait for provide_exp
  std::deque<std::size_t> ready_;   // drawn, not yet decoded
  std::size_t frontier_ = 0;        // first sample not drawn (ordered jobs)
  std::vector<Mark> marks_;
  std::size_t unfinished_ = 0;
  std::size_t running_ = 0;  // tasks that threads are at
  Request request_;
};

class Pool {
 public:
  // Starts `threads` threads named fl-decode-0, fl-decode-1, ... Throws std::system_error if not one can be started.
  explicit Pool(int threads);
  ~Pool();  // close(), unless that was done; in a forked child: nothing
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;
  // From now on `threads` threads serve, at least 1. Those that are too many end after the image that they are at,
  // which is not waited for; nothing that was submitted is lost. Thread-safe. Returns how many there are, which are
  // fewer if no more could be started. Throws std::runtime_error on a closed or foreign pool.
  int resize(int threads);
  // Thread-safe. Nothing in a forked child.
  WorkDone work_done() const;
  // Throws std::invalid_argument on a spec that contradicts itself, std::runtime_error on a closed or foreign pool.
  std::shared_ptr<Job> submit(BatchSpec spec);
  // Cancels all jobs, and stops and joins the threads. Those that are stuck in reading a file for longer than the limit
  // are left to end by themselves: false. Idempotent.
  bool close(double timeout_seconds = kJoinSeconds);  // negative: no limit

 private:
  std::shared_ptr<PoolState> state_;
};

}  // namespace fastload
