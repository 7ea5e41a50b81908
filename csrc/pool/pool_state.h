// State shared by the pool's threads, its jobs and its public class.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include <pthread.h>
#include <sys/types.h>

#include "pool/pool.h"
#include "pool/ranges.h"

namespace fastload {

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
  static void make(const Job& job, std::size_t sample, ByteSource& source, const JpegHeader& header, Outcome& outcome,
                   DecodeRange& range);
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

}  // namespace fastload
