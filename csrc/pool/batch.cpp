#include "pool/pool.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pool/pool_state.h"

namespace fastload {
namespace {

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
