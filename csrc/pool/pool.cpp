#include "pool/pool.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include <pthread.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "pool/ranges.h"

namespace fastload {
namespace {

// Limit on buffers kept for later files, over all threads.
constexpr std::size_t kKeptBytes = std::size_t{64} << 20;
// Limit on file contents kept between header and decode. There are many while a sample's draws are waited for; files
// beyond the limit are read again.
constexpr std::size_t kHeldBytes = std::size_t{64} << 20;

// Most samples that are pixels to take at once, and as many pixels as are worth a task of their own.
constexpr std::size_t kDecodedAtOnce = 16;
constexpr std::size_t kDecodedPixels = std::size_t{64} << 10;

std::ptrdiff_t bytes_of(const std::pair<int, int>& size) { return std::ptrdiff_t{3} * size.first * size.second; }

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Time of the calling thread. Reading its processor time is a system call, so that is not done with a lock held.
class Stopwatch {
 public:
  double seconds() const { return seconds_of(CLOCK_MONOTONIC) - begun_; }
  double busy() const { return seconds_of(CLOCK_THREAD_CPUTIME_ID) - busy_; }

 private:
  double begun_ = seconds_of(CLOCK_MONOTONIC), busy_ = seconds_of(CLOCK_THREAD_CPUTIME_ID);
};

struct ThreadStart {
  std::shared_ptr<PoolState> state;
  int number;
};

void check(const BatchSpec& spec) {
  const std::size_t count = spec.inputs.size();
  const auto require = [](bool condition, const char* rule) {
    if (!condition) throw std::invalid_argument(rule);
  };
  require(!spec.sizes.empty() || (spec.options.height > 0 && spec.options.width > 0),
          "the output's height and width must be at least 1");
  require(spec.out != nullptr || count == 0, "the output must be given");
  require(spec.geometry.size() == (spec.plan == nullptr ? count : 0),
          "there must be one geometry for each image, or a plan and none");
  require(spec.sizes.empty() || (spec.plan != nullptr && spec.sizes.size() == spec.plan->views()),
          "there must be one size for each view");
  for (const auto& [height, width] : spec.sizes)
    require(height > 0 && width > 0, "a view's height and width must be at least 1");
  require(spec.plan != nullptr || (spec.stream == nullptr && spec.seeds.empty()), "only a plan draws random numbers");
  require(spec.stream == nullptr || spec.seeds.empty(), "draws come from a stream or from seeds, not from both");
  require(spec.staging == nullptr || spec.staging->size() == count, "there must be staging memory for each image");
  require(spec.seeds.empty() || spec.seeds.size() == count, "there must be one seed for each image");
  require(spec.values.empty() || spec.values.size() == (spec.plan == nullptr ? 1 : spec.plan->views()),
          "there must be room for the values of each view");
  require(spec.values.empty() || spec.look_up.channels <= 3, "pixels have three channels, and values no more");
  require(spec.values.empty() || spec.staging == nullptr, "a GPU's images have no values here");
  require(spec.values.empty() || count == 0 || !spec.sizes.empty() ||
              spec.row_stride == std::ptrdiff_t{3} * spec.options.width,
          "pixels whose values are looked up must have no gaps");
  if (spec.plan == nullptr) return;
  require(count % spec.plan->views() == 0, "there must be one input for each view of each image");
  require(spec.seeds.empty() || spec.plan->views() == 1, "several views draw from one stream, not from seeds");
}

}  // namespace

// What the pool's threads, its jobs and its public class share.
class PoolState : public std::enable_shared_from_this<PoolState> {
 public:
  static std::shared_ptr<PoolState> create(int threads);

  // True in a forked child, which has no threads: don't lock, wait for or destroy anything here.
  bool foreign() const;
  int threads() const { return wanted_; }

  void add(const std::shared_ptr<Job>& job);
  int resize(int threads);
  WorkDone work_done();
  bool close(double timeout_seconds);
  bool closed();

 private:
  friend class Job;

  struct Task {
    std::shared_ptr<Job> job;
    std::size_t sample = 0;
    bool drawn = false;  // header read and geometry drawn: decode it
  };
  // One thread's slot; not taken if the thread was never started or has ended.
  struct Place {
    bool taken = false;
    pthread_t thread{};
  };
  struct Spent {
    double seconds = 0, busy = 0;
  };
  using Known = std::shared_ptr<const std::vector<Answer>>;
  static constexpr std::size_t kMostKnown = 256;  // the latest; a sample may ask for one again

  PoolState() = default;
  ~PoolState() = default;
  static void* run_thread(void* self);
  void work(int number);

  // Called without mutex_, for a sample that this thread owns.
  static bool draw_alone(const Job& job, std::size_t sample, const JpegHeader& header, const Known& known,
                         Outcome& outcome, Question& unresolved);
  static Target target_of(const Job& job, std::size_t sample);
  static SampleOptions options_of(const Job& job, std::size_t sample);
  static KeptFiles::Known load_kept(const Job& job, const Input& input, JpegHeader& header, Outcome& outcome);
  static void make(const Job& job, std::size_t sample, ByteSource& source, const KeptFiles::Known& kept,
                   const JpegHeader& header, Outcome& outcome, DecodeRange& range);
  static void settle(const Job& job, std::size_t sample, Status status);
  Spent begin(const Task& task, std::unique_lock<std::mutex>& lock, DecodeRange& range);
  Spent complete(const Task& task, std::unique_lock<std::mutex>& lock, DecodeRange& range);
  Spent complete_decoded(const Task& task, std::unique_lock<std::mutex>& lock);

  // Called with mutex_ held.
  template <typename Condition>
  bool await(std::unique_lock<std::mutex>& lock, double timeout_seconds, Condition condition) {
    if (!(timeout_seconds >= 0 && timeout_seconds < 1e8)) {  // longer would overflow the clock
      changed_.wait(lock, condition);
      return true;
    }
    return changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), condition);
  }
  int start_threads(int wanted);
  void leave(int number);
  bool pick(Task& task);
  void finish(Job& job, std::size_t sample);
  void advance_draws(RandomStream& stream);
  bool draw_in_order(Job& job);
  void request(Job& job, Request::Kind kind, std::size_t sample, const Question& question);
  void cancel(Job& job);
  void delist(Job& job);
  void hold(Job::Sample& sample, ByteSource&& source);
  ByteSource take_held(Job::Sample& sample);
  Buffer take_buffer();
  void give_buffer(Buffer&& buffer);

  std::mutex mutex_;
  std::condition_variable work_;     // there may be a task, or the pool is closing
  std::condition_variable changed_;  // a job is done, has a request, or finished a task; or a thread has ended
  pid_t process_ = 0;
  std::vector<Place> threads_;   // by number; those from wanted_ on end after their current task
  std::vector<pthread_t> left_;  // threads that have left work() and must be joined
  int alive_ = 0;                // threads still in work()
  std::atomic<int> wanted_{0};   // written with mutex_ held
  bool closing_ = false;
  WorkDone work_done_;
  std::deque<std::shared_ptr<Job>> jobs_;  // unfinished, in the order of submission
  Known known_ = std::make_shared<std::vector<Answer>>();
  std::vector<Buffer> spare_buffers_;
  std::size_t spare_bytes_ = 0;
  std::size_t held_bytes_ = 0;  // of samples between header and decode
};

std::shared_ptr<PoolState> PoolState::create(int threads) {
  // A forked child leaks the state, because its locks and condition variables may be in any condition there.
  std::shared_ptr<PoolState> state(new PoolState, [](PoolState* self) {
    if (!self->foreign()) delete self;
  });
  state->process_ = ::getpid();
  const std::lock_guard<std::mutex> lock(state->mutex_);  // the threads wait until all have been started
  const int error = state->start_threads(threads);
  if (state->wanted_ == 0) throw std::system_error(error, std::generic_category(), "cannot start a decode thread");
  return state;
}

// Starts the missing ones of threads 0 to wanted - 1, as many as possible. Returns the last error.
int PoolState::start_threads(int wanted) {
  // Leave signals to the process's other threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto count = static_cast<std::size_t>(wanted);
  if (threads_.size() < count) threads_.resize(count);
  int error = 0;
  std::size_t started = 0;
  for (; started < count; ++started) {
    Place& place = threads_[started];
    if (place.taken) continue;
    auto* start = new ThreadStart{shared_from_this(), static_cast<int>(started)};
    error = pthread_create(&place.thread, nullptr, &PoolState::run_thread, start);
    place.taken = error == 0;
    if (error != 0) {
      delete start;
      break;
    }
    ++alive_;
  }
  wanted_ = static_cast<int>(started);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

int PoolState::resize(int threads) {
  std::vector<pthread_t> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) throw std::runtime_error("the decode pool must be open to be resized, but it is closed");
    start_threads(threads);  // thread 0 always exists
    ended.swap(left_);
    work_.notify_all();  // surplus threads may be asleep
  }
  for (const pthread_t thread : ended) pthread_join(thread, nullptr);
  return wanted_;
}

// Thread `number` ends. Frees its slot, unless close() has given up on the thread.
void PoolState::leave(int number) {
  Place& place = threads_[static_cast<std::size_t>(number)];
  if (place.taken) left_.push_back(place.thread);
  place.taken = false;
  --alive_;
  changed_.notify_all();
}

WorkDone PoolState::work_done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return work_done_;
}

bool PoolState::foreign() const { return ::getpid() != process_; }

void* PoolState::run_thread(void* argument) {
  const std::unique_ptr<ThreadStart> start(static_cast<ThreadStart*>(argument));
  char name[16];  // the kernel's limit, terminating zero included
  std::snprintf(name, sizeof name, "fl-decode-%d", start->number);
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#endif
  start->state->work(start->number);
  return nullptr;
}

void PoolState::work(int number) {
  std::unique_lock<std::mutex> lock(mutex_);
  Task task;
  DecodeRange range;
  while (closing_ || number < wanted_) {
    if (pick(task)) {
      ++task.job->running_;
      const bool reads = task.job->spec_.staging != nullptr;
      range.enter(task.job.get(), task.job->spec_.number, reads ? DecodeRange::Work::read : DecodeRange::Work::decode);
      const Spent spent = task.drawn ? complete(task, lock, range) : begin(task, lock, range);
      work_done_.seconds += spent.seconds;
      work_done_.busy_seconds += spent.busy;
      task.job->work_seconds_ = task.job->work_seconds_ + spent.seconds;
      if (--task.job->running_ == 0 && task.job->stop_) changed_.notify_all();
      task.job.reset();
    } else if (closing_) {
      break;
    } else {
      range.leave();
      work_.wait(lock);
    }
  }
  leave(number);
}

// Serves the first job with any work. Within it, drawn samples precede fresh ones once there are as many as threads, so
// that few files are held in memory and each is read shortly before it is decoded.
bool PoolState::pick(Task& task) {
  for (const auto& job : jobs_) {
    const bool fresh = !job->again_.empty() || job->next_fresh_ < job->samples_.size();
    if (!job->ready_.empty() && (!fresh || job->ready_.size() >= static_cast<std::size_t>(wanted_))) {
      task = {job, job->ready_.front(), true};
      job->ready_.pop_front();
      return true;
    }
    if (!job->again_.empty()) {
      task = {job, job->again_.back(), false};
      job->again_.pop_back();
      return true;
    }
    if (fresh) {
      task = {job, job->next_fresh_++, false};
      return true;
    }
  }
  return false;
}

// A thread's results are private until it holds the lock again. If the job has been cancelled by then, its caller may
// be gone, so the outcome is dropped and the output is not touched.
PoolState::Spent PoolState::begin(const Task& task, std::unique_lock<std::mutex>& lock, DecodeRange& range) {
  Job& job = *task.job;
  const Input& input = job.spec_.inputs[task.sample];
  const bool ordered = job.ordered();
  ByteSource source;
  source.watch(&job.stop_);
  source.set_buffer(take_buffer());
  const Known known = known_;
  JpegHeader header;
  Outcome outcome;
  Question unresolved;
  bool resolved = true;
  lock.unlock();
  const Stopwatch watch;
  KeptFiles::Known kept = load_kept(job, input, header, outcome);
  bool failed = kept == nullptr && !load(input, job.spec_.options.max_pixels, source, header, outcome);
  const Spent read{watch.seconds(), watch.busy()};
  if (!failed && !ordered) {
    resolved = draw_alone(job, task.sample, header, known, outcome, unresolved);
    if (outcome.drawn) make(job, task.sample, source, kept, header, outcome, range);
    failed = resolved && outcome.status != Status::ok;
  }
  if (failed || outcome.drawn) settle(job, task.sample, outcome.status);
  const Spent spent = ordered ? read : Spent{watch.seconds(), watch.busy()};
  lock.lock();
  work_done_.read_seconds += read.seconds;
  work_done_.read_busy_seconds += read.busy;
  Job::Sample& sample = job.samples_[task.sample];
  if (ordered && !failed && !job.stop_) {
    hold(sample, std::move(source));
    sample.kept = std::move(kept);
  } else {
    give_buffer(source.take_buffer());
  }
  if (job.stop_) return spent;
  sample.outcome = std::move(outcome);
  if (ordered) {
    sample.header = header;
    sample.header_read = true;
    advance_draws(*job.spec_.stream);
  } else if (resolved) {
    finish(job, task.sample);
  } else {
    job.stuck_.push_back(task.sample);
    if (job.request_.kind == Request::Kind::none) request(job, Request::Kind::question, task.sample, unresolved);
  }
  return spent;
}

PoolState::Spent PoolState::complete(const Task& task, std::unique_lock<std::mutex>& lock, DecodeRange& range) {
  Job& job = *task.job;
  if (job.spec_.inputs[task.sample].is_decoded()) return complete_decoded(task, lock);
  Job::Sample& sample = job.samples_[task.sample];
  ByteSource source = take_held(sample);
  if (!source.is_open()) source.set_buffer(take_buffer());
  const KeptFiles::Known kept = std::move(sample.kept);
  const JpegHeader header = sample.header;
  Outcome outcome = sample.outcome;
  lock.unlock();
  const Stopwatch watch;
  make(job, task.sample, source, kept, header, outcome, range);
  settle(job, task.sample, outcome.status);
  const Spent spent{watch.seconds(), watch.busy()};
  lock.lock();
  give_buffer(source.take_buffer());
  if (job.stop_) return spent;
  sample.outcome = std::move(outcome);
  finish(job, task.sample);
  return spent;
}

// The same for pixels, which take little longer than to pick a task: for as many samples at once as make that cheap.
PoolState::Spent PoolState::complete_decoded(const Task& task, std::unique_lock<std::mutex>& lock) {
  Job& job = *task.job;
  std::array<std::size_t, kDecodedAtOnce> numbers{task.sample};
  std::array<Outcome, kDecodedAtOnce> outcomes;
  std::size_t count = 1, pixels = 0;
  const auto begin_next = [&](std::size_t number) {
    outcomes[count - 1] = std::move(job.samples_[number].outcome);
    pixels += std::size_t{outcomes[count - 1].width} * outcomes[count - 1].height;
  };
  begin_next(task.sample);
  while (count < kDecodedAtOnce && pixels < kDecodedPixels && !job.ready_.empty() &&
         job.spec_.inputs[job.ready_.front()].is_decoded()) {
    numbers[count++] = job.ready_.front();
    job.ready_.pop_front();
    begin_next(numbers[count - 1]);
  }
  lock.unlock();
  const Stopwatch watch;
  for (std::size_t i = 0; i < count && !job.stop_; ++i) {
    if (i + 1 < count) prefetch(job.spec_.inputs[numbers[i + 1]]);
    const Target target = target_of(job, numbers[i]);
    const SampleOptions options = options_of(job, numbers[i]);
    ByteSource none;
    JpegHeader header;
    header.width = outcomes[i].width;
    header.height = outcomes[i].height;
    decode(job.spec_.inputs[numbers[i]], none, header, options, target, outcomes[i]);
    settle(job, numbers[i], outcomes[i].status);
  }
  const Spent spent{watch.seconds(), watch.busy()};
  lock.lock();
  if (job.stop_) return spent;
  for (std::size_t i = 0; i < count; ++i) {
    job.samples_[numbers[i]].outcome = std::move(outcomes[i]);
    finish(job, numbers[i]);
  }
  return spent;
}

// What is kept of the file in the GPU's memory, with its header; null if that does not suffice.
KeptFiles::Known PoolState::load_kept(const Job& job, const Input& input, JpegHeader& header, Outcome& outcome) {
  KeptFiles::Known kept = job.spec_.staging == nullptr ? nullptr : job.spec_.staging->kept(input);
  if (kept == nullptr || check_supported(kept->header, job.spec_.options.max_pixels) != Status::ok) return nullptr;
  header = kept->header;
  outcome.width = header.width;
  outcome.height = header.height;
  outcome.bytes = static_cast<std::size_t>(kept->version.size);
  return kept;
}

// Prepares the image for a GPU, or makes its pixels. Large files were closed once their headers were read, and those
// that are kept have not been opened.
void PoolState::make(const Job& job, std::size_t sample, ByteSource& source, const KeptFiles::Known& kept,
                     const JpegHeader& header, Outcome& outcome, DecodeRange& range) {
  const Input& input = job.spec_.inputs[sample];
  const Target target = target_of(job, sample);
  const SampleOptions options = options_of(job, sample);
  if (kept != nullptr) {
    if (job.spec_.staging->add_kept(sample, kept, outcome.geometry, options,
                                    static_cast<std::size_t>(target.data - job.spec_.out))) {
      outcome.status = Status::ok;
      return;
    }
    source.expect(kept->version);
  }
  if (job.spec_.staging != nullptr && !input.is_decoded() && reopen(input, source) &&
      job.spec_.staging->add(sample, source, header, outcome.geometry, options,
                             static_cast<std::size_t>(target.data - job.spec_.out))) {
    outcome.status = Status::ok;
    return;
  }
  range.decode();
  decode(input, source, header, options, target, outcome);
}

// Looks up a sample's values while its pixels are in the cache. Blackens one that failed, so that no caller mistakes a
// partial image for a complete one.
void PoolState::settle(const Job& job, std::size_t sample, Status status) {
  if (job.stop_) return;
  const Target target = target_of(job, sample);
  const SampleOptions options = options_of(job, sample);
  const std::size_t width = static_cast<std::size_t>(options.width), height = static_cast<std::size_t>(options.height);
  if (status != Status::ok) {
    for (int y = 0; y < options.height; ++y) std::memset(target.data + target.row_stride * y, 0, width * 3);
  } else if (!job.spec_.values.empty()) {
    LookUpJob values = job.spec_.look_up;
    values.levels = target.data;
    values.images = 1;
    values.pixels = width * height;
    const std::size_t bytes = values.pixels * static_cast<std::size_t>(values.channels) * values.value_bytes;
    values.out = static_cast<std::byte*>(job.spec_.values[sample % job.views()]) + bytes * (sample / job.views());
    look_up(values);
  }
}

SampleOptions PoolState::options_of(const Job& job, std::size_t sample) {
  SampleOptions options = job.spec_.options;
  if (!job.spec_.sizes.empty()) std::tie(options.height, options.width) = job.spec_.sizes[sample % job.views()];
  return options;
}

Target PoolState::target_of(const Job& job, std::size_t sample) {
  const BatchSpec& spec = job.spec_;
  const std::size_t views = job.views(), view = sample % views, images = spec.inputs.size() / views;
  if (!spec.sizes.empty()) {
    std::ptrdiff_t begin = 0;
    for (std::size_t i = 0; i < view; ++i) begin += bytes_of(spec.sizes[i]) * static_cast<std::ptrdiff_t>(images);
    begin += bytes_of(spec.sizes[view]) * static_cast<std::ptrdiff_t>(sample / views);
    return {spec.out + begin, std::ptrdiff_t{3} * spec.sizes[view].second};
  }
  const std::size_t place = view * images + sample / views;
  return {spec.out + spec.sample_stride * static_cast<std::ptrdiff_t>(place), spec.row_stride};
}

// Finds the geometry of a sample whose draws depend on no other's. On false, `unresolved` must be known first.
bool PoolState::draw_alone(const Job& job, std::size_t index, const JpegHeader& header, const Known& known,
                           Outcome& outcome, Question& unresolved) {
  if (job.spec_.plan == nullptr) {
    outcome.geometry = job.spec_.geometry[index];
    fastload::complete(outcome.geometry, header);
  } else {
    const std::uint64_t seed = job.spec_.seeds.empty() ? 0 : job.spec_.seeds[index];
    Generator generator(seed);
    if (job.spec_.plan->draws_others()) generator.seed_others(seed);
    const DrawStatus status =
        job.spec_.plan->run(generator, static_cast<int>(outcome.width), static_cast<int>(outcome.height), *known,
                            outcome.geometry, unresolved, index % job.views());
    if (status == DrawStatus::ambiguous) return false;
    if (status == DrawStatus::crop_too_large) {
      outcome.status = Status::bad_geometry;
      return true;
    }
  }
  outcome.drawn = true;
  return true;
}

void PoolState::advance_draws(RandomStream& stream) {
  while (!stream.waiting_.empty() && draw_in_order(*stream.waiting_.front())) stream.waiting_.pop_front();
}

// Makes the draws of samples whose turn it is. Returns whether the whole job is drawn.
bool PoolState::draw_in_order(Job& job) {
  RandomStream& stream = *job.spec_.stream;
  if (job.request_.kind != Request::Kind::none) return false;
  if (job.marks_.empty()) job.marks_.push_back({0, stream.generator_});
  for (; job.frontier_ < job.samples_.size(); ++job.frontier_) {
    Job::Sample& sample = job.samples_[job.frontier_];
    Outcome& outcome = sample.outcome;
    if (!sample.header_read) return false;
    if (outcome.status == Status::cancelled) {
      Question unresolved;
      const DrawStatus status =
          job.spec_.plan->run(stream.generator_, static_cast<int>(outcome.width), static_cast<int>(outcome.height),
                              *known_, outcome.geometry, unresolved, job.frontier_ % job.views());
      if (status == DrawStatus::ok) {
        outcome.drawn = true;
        job.ready_.push_back(job.frontier_);
        work_.notify_one();
        // generator_before() may come when the answer is forgotten.
        if (unresolved.kind != Question::Kind::none) job.marks_.push_back({job.frontier_ + 1, stream.generator_});
        continue;
      }
      if (status == DrawStatus::ambiguous) {
        request(job, Request::Kind::question, job.frontier_, unresolved);
        return false;
      }
      outcome.status = Status::bad_geometry;
      give_buffer(take_held(sample).take_buffer());
      settle(job, job.frontier_, outcome.status);
    }
    request(job, Request::Kind::sample, job.frontier_, {});
    return false;
  }
  if (job.marks_.back().sample != job.frontier_) job.marks_.push_back({job.frontier_, stream.generator_});
  return true;
}

void PoolState::request(Job& job, Request::Kind kind, std::size_t sample, const Question& question) {
  job.request_ = {kind, sample, question};
  changed_.notify_all();
}

void PoolState::finish(Job& job, std::size_t sample) {
  if (job.samples_[sample].final) return;
  job.samples_[sample].final = true;
  ++work_done_.samples;
  if (--job.unfinished_ == 0) {
    delist(job);
    changed_.notify_all();
  }
}

void PoolState::add(const std::shared_ptr<Job>& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closing_) throw std::runtime_error("the decode pool must be open to take a batch, but it is closed");
  jobs_.push_back(job);
  if (job->ordered()) {
    job->spec_.stream->waiting_.push_back(job.get());
    if (job->begin_decoded()) advance_draws(*job->spec_.stream);
  }
  work_.notify_all();
}

// Ends a job, except for the tasks in progress, whose outcomes are dropped.
void PoolState::cancel(Job& job) {
  job.stop_ = true;
  job.next_fresh_ = job.samples_.size();
  job.again_.clear();
  job.stuck_.clear();
  job.ready_.clear();
  job.request_ = {};
  if (job.ordered()) {
    auto& waiting = job.spec_.stream->waiting_;
    waiting.erase(std::remove(waiting.begin(), waiting.end(), &job), waiting.end());
    advance_draws(*job.spec_.stream);  // the stream's next job may have been waiting for this
  }
  delist(job);
  for (Job::Sample& sample : job.samples_) {
    take_held(sample);
    sample.kept.reset();
    sample.final = true;
  }
  job.unfinished_ = 0;
  changed_.notify_all();
}

void PoolState::delist(Job& job) {
  const auto listed =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const std::shared_ptr<Job>& other) { return other.get() == &job; });
  if (listed != jobs_.end()) jobs_.erase(listed);
}

bool PoolState::closed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}

bool PoolState::close(double timeout_seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  closing_ = true;
  while (!jobs_.empty()) {
    const std::shared_ptr<Job> job = jobs_.front();
    cancel(*job);
  }
  work_.notify_all();
  const bool ended = await(lock, timeout_seconds, [this] { return alive_ == 0; });
  std::vector<pthread_t> joinable;
  joinable.swap(left_);
  for (Place& place : threads_) {
    if (place.taken) pthread_detach(place.thread);
    place.taken = false;
  }
  lock.unlock();
  for (const pthread_t thread : joinable) pthread_join(thread, nullptr);
  return ended;
}

// Keeps a sample's bytes until its draws are made, or drops them beyond kHeldBytes.
void PoolState::hold(Job::Sample& sample, ByteSource&& source) {
  if (source.held_bytes() == 0 || held_bytes_ + source.held_bytes() > kHeldBytes) give_buffer(source.take_buffer());
  held_bytes_ += source.held_bytes();
  sample.source = std::move(source);
}

ByteSource PoolState::take_held(Job::Sample& sample) {
  held_bytes_ -= sample.source.held_bytes();
  return std::move(sample.source);
}

Buffer PoolState::take_buffer() {
  if (spare_buffers_.empty()) return {};
  Buffer buffer = std::move(spare_buffers_.back());
  spare_buffers_.pop_back();
  spare_bytes_ -= buffer.capacity();
  return buffer;
}

void PoolState::give_buffer(Buffer&& buffer) {
  Buffer dying = std::move(buffer);
  const std::size_t bytes = dying.capacity();
  if (bytes == 0 || spare_bytes_ + bytes > kKeptBytes) return;
  spare_bytes_ += bytes;
  spare_buffers_.push_back(std::move(dying));
}

Job::Job(std::shared_ptr<PoolState> pool, BatchSpec spec)
    : pool_(std::move(pool)), spec_(std::move(spec)), samples_(spec_.inputs.size()), unfinished_(samples_.size()) {}

bool Job::begin_decoded() {
  const auto decoded = [](const Input& input) { return input.is_decoded(); };
  if (!std::all_of(spec_.inputs.begin(), spec_.inputs.end(), decoded)) return false;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = samples_[i];
    load(spec_.inputs[i], spec_.options.max_pixels, sample.source, sample.header, sample.outcome);
    sample.header_read = true;
  }
  next_fresh_ = samples_.size();
  return true;
}

bool Job::foreign() const { return pool_->foreign(); }

WaitResult Job::wait(double timeout_seconds) {
  if (foreign()) return WaitResult::foreign;
  std::unique_lock<std::mutex> lock(pool_->mutex_);
  const auto changed = [this] { return unfinished_ == 0 || request_.kind != Request::Kind::none; };
  if (!pool_->await(lock, timeout_seconds, changed)) return WaitResult::timeout;
  return unfinished_ == 0 ? WaitResult::done : WaitResult::requested;
}

Request Job::request() const {
  if (foreign()) return {};
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  return request_;
}

void Job::provide(const Answer& answer) {
  if (foreign()) return;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  const std::vector<Answer>& before = *pool_->known_;
  const std::ptrdiff_t dropped = before.size() < PoolState::kMostKnown ? 0 : 1;
  auto known = std::make_shared<std::vector<Answer>>(before.begin() + dropped, before.end());
  known->push_back(answer);
  pool_->known_ = std::move(known);
  if (request_.kind != Request::Kind::question) return;
  request_ = {};
  if (ordered()) {
    pool_->advance_draws(*spec_.stream);
  } else {
    again_.insert(again_.end(), stuck_.begin(), stuck_.end());
    stuck_.clear();
    pool_->work_.notify_all();
  }
}

void Job::skip(const Generator& after) {
  if (foreign()) return;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  if (request_.kind != Request::Kind::sample) return;
  request_ = {};
  spec_.stream->generator_ = after;
  pool_->finish(*this, frontier_);
  ++frontier_;
  marks_.push_back({frontier_, after});
  pool_->advance_draws(*spec_.stream);
}

bool Job::generator_before(std::size_t sample, Generator& generator) const {
  if (foreign()) return false;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  if (marks_.empty() || sample > frontier_) return false;
  auto mark = marks_.rbegin();
  while (mark->sample > sample) ++mark;
  generator = mark->generator;
  for (std::size_t i = mark->sample; i < sample; ++i) {
    Geometry geometry;
    Question unresolved;
    const Outcome& outcome = samples_[i].outcome;
    if (spec_.plan->run(generator, static_cast<int>(outcome.width), static_cast<int>(outcome.height), *pool_->known_,
                        geometry, unresolved, i % views()) != DrawStatus::ok) {
      return false;
    }
  }
  return true;
}

bool Job::cancel(double timeout_seconds) {
  if (foreign()) return true;
  std::unique_lock<std::mutex> lock(pool_->mutex_);
  if (unfinished_ > 0) pool_->cancel(*this);
  return pool_->await(lock, timeout_seconds, [this] { return running_ == 0; });
}

bool Job::idle() const {
  if (foreign()) return true;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  return unfinished_ == 0 && running_ == 0;
}

double Job::work_seconds() const { return foreign() ? 0 : work_seconds_.load(); }

bool Job::pool_closed() const { return foreign() || pool_->closed(); }

Pool::Pool(int threads) : state_(PoolState::create(std::max(1, threads))) {}

Pool::~Pool() {
  if (!state_->foreign() && !state_->closed()) close();
}

int Pool::threads() const { return state_->threads(); }

int Pool::resize(int threads) {
  if (state_->foreign()) throw std::runtime_error("a decode pool must be used in the process that made it");
  return state_->resize(std::max(1, threads));
}

WorkDone Pool::work_done() const { return state_->foreign() ? WorkDone{} : state_->work_done(); }

std::shared_ptr<Job> Pool::submit(BatchSpec spec) {
  if (state_->foreign()) throw std::runtime_error("a decode pool must be used in the process that made it");
  check(spec);
  spec.options.index = spec.index.get();
  // A forked child leaks the job, because a thread that exists only in the parent may have half written it.
  std::shared_ptr<Job> job(new Job(state_, std::move(spec)), [](Job* self) {
    if (!self->foreign()) delete self;
  });
  if (job->size() > 0) state_->add(job);
  return job;
}

bool Pool::close(double timeout_seconds) { return state_->foreign() || state_->close(timeout_seconds); }

}  // namespace fastload
