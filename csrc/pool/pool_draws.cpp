// When the pool makes the draws of its samples: each by itself, or in the order of a stream.
#include "pool/pool_state.h"

#include <utility>

namespace fastload {

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

}  // namespace fastload
