// Exercises all of the pool's functions from many threads at once, for the thread and address sanitizers.
//
//   pool_stress SECONDS FILE...
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "codecs/codecs.h"
#include "pool/pool.h"

using namespace fastload;

namespace {

constexpr int kSide = 16;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPixels = kSide * kSide;

std::shared_ptr<DrawPlan> training_plan(int views = 1) {
  auto plan = std::make_shared<DrawPlan>();
  std::string error;
  DrawOp crop;
  crop.kind = DrawOp::Kind::random_resized_crop;
  crop.height = crop.width = kSide;
  crop.log_ratio[0] = -0.28768207f;
  crop.log_ratio[1] = 0.28768207f;
  DrawOp flip;
  for (int view = 0; view < views; ++view) {
    if (view > 0) plan->begin_view();
    if (!plan->add(crop, error) || !plan->add(flip, error)) std::abort();
  }
  return plan;
}

// A table whose values tell level and channel.
const std::vector<std::uint16_t>& table() {
  static const std::vector<std::uint16_t> values = [] {
    std::vector<std::uint16_t> made(3 * 256);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::uint16_t>(1000 + i);
    return made;
  }();
  return values;
}

// Gray pixels.
Input decoded() {
  static const std::vector<std::uint8_t> levels = [] {
    std::vector<std::uint8_t> made(40 * 30);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::uint8_t>(i);
    return made;
  }();
  Input input;
  input.data = levels.data();
  input.height = 30;
  input.width = 40;
  input.strides = {40, 1, 0};
  return input;
}

struct Batch {
  std::vector<std::uint8_t> out;
  std::vector<std::vector<std::uint16_t>> values;  // of each view
  std::size_t channels = 3;
  bool planar = false;
  std::shared_ptr<Job> job;

  // Makes room for a job's pixels and, if asked, their values.
  void hold(BatchSpec& spec, bool has_values) {
    const std::size_t views = spec.plan->views();
    out.resize(spec.inputs.size() * kPixels * 3);
    spec.out = out.data();
    spec.row_stride = kSide * 3;
    spec.sample_stride = kPixels * 3;
    if (!has_values) return;
    values.assign(views, std::vector<std::uint16_t>(spec.inputs.size() / views * kPixels * channels));
    for (auto& view : values) spec.values.push_back(view.data());
    spec.look_up.table = table().data();
    spec.look_up.value_bytes = 2;
    spec.look_up.channels = static_cast<int>(channels);
    spec.look_up.planar = planar;
  }

  // Values of samples that are ok are those of their pixels; the others' are not written.
  void check() const {
    const std::size_t views = values.size();
    for (std::size_t sample = 0; views > 0 && sample < job->size(); ++sample) {
      const std::size_t view = sample % views, image = sample / views;
      const bool ok = job->outcome(sample).status == Status::ok;
      const bool cancelled = job->outcome(sample).status == Status::cancelled;  // perhaps after they were written
      const std::uint8_t* pixels = out.data() + (job->size() / views * view + image) * kPixels * 3;
      const std::uint16_t* made = values[view].data() + image * kPixels * channels;
      for (std::size_t i = 0; !cancelled && i < kPixels * channels; ++i) {
        const std::size_t pixel = planar ? i % kPixels : i / channels, channel = planar ? i / kPixels : i % channels;
        if (made[i] == (ok ? table()[256 * channel + pixels[3 * pixel + channel]] : 0)) continue;
        std::fprintf(stderr, "a value is not that of its pixel\n");
        std::abort();
      }
    }
  }
};

// Submits, waits, answers requests, cancels and drops jobs at random.
void use(Pool& pool, const std::vector<std::string>& paths, const std::shared_ptr<JpegIndex>& index, unsigned seed,
         Clock::time_point end, std::atomic<long>& batches) {
  std::mt19937 random(seed);
  const auto chance = [&](int one_in) { return random() % one_in == 0; };
  while (Clock::now() < end) {
    auto stream = std::make_shared<RandomStream>(Generator(random()));
    std::vector<std::unique_ptr<Batch>> flying;
    for (int i = 0; i < 4; ++i) {
      BatchSpec spec;
      const int views = chance(3) ? 2 : 1;
      const bool has_pixels = chance(4);
      for (int k = 0; k < 9; ++k) {
        Input input;
        input.path = chance(40) ? "/nonexistent" : paths[random() % paths.size()];
        if (has_pixels || chance(20)) input = decoded();
        spec.inputs.insert(spec.inputs.end(), static_cast<std::size_t>(views), input);
      }
      spec.options.height = spec.options.width = kSide;
      spec.plan = training_plan(views);
      if (!chance(4)) spec.index = index;
      if (views == 1 && chance(3)) {
        spec.seeds.assign(spec.inputs.size(), random());
      } else {
        spec.stream = stream;
      }
      flying.push_back(std::make_unique<Batch>());
      Batch& batch = *flying.back();
      batch.channels = chance(2) ? 1 : 3;
      batch.planar = chance(2);
      batch.hold(spec, !chance(3));
      batch.job = pool.submit(std::move(spec));
    }
    for (auto& batch : flying) {
      Job& job = *batch->job;
      if (chance(10)) job.cancel(chance(2) ? 0 : -1);
      WaitResult result;
      while ((result = job.wait(30)) == WaitResult::requested) {
        const Request request = job.request();
        Generator before;
        job.generator_before(request.sample, before);
        if (chance(20)) {
          job.cancel(-1);
        } else if (request.kind == Request::Kind::sample) {
          job.skip(before);
        } else if (request.kind == Request::Kind::question) {
          job.provide({request.question, Coefficients{1, 0, 0, 0, 1}});
        }
      }
      if (result != WaitResult::done) {
        std::fprintf(stderr, "a batch did not end\n");
        std::abort();
      }
      if (!job.cancel(30) || !job.idle()) {
        std::fprintf(stderr, "a thread did not leave its batch\n");
        std::abort();
      }
      batch->check();
      ++batches;
    }
  }
}

// A copy of the image that is read in chunks, because it has fill bytes before its first marker.
class LargeFile {
 public:
  explicit LargeFile(const std::string& path) : path_("/tmp/pool_stress." + std::to_string(::getpid()) + ".jpg") {
    std::ifstream from(path, std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(from), {}};
    std::ofstream to(path_, std::ios::binary);
    to << file.substr(0, 2) << std::string(kWholeFileBytes, '\xff') << file.substr(2);
  }
  ~LargeFile() { std::remove(path_.c_str()); }
  LargeFile(const LargeFile&) = delete;
  LargeFile& operator=(const LargeFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Grows and shrinks the pool at random.
void change_size(Pool& pool, unsigned seed, Clock::time_point end) {
  std::mt19937 random(seed);
  std::uint64_t samples = 0;
  while (Clock::now() < end) {
    const int wanted = 1 + static_cast<int>(random() % 6);
    if (pool.resize(wanted) != wanted) {
      std::fprintf(stderr, "threads could not be started\n");
      std::abort();
    }
    const WorkDone done = pool.work_done();
    if (done.samples < samples) std::abort();
    samples = done.samples;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: pool_stress SECONDS FILE...\n");
    return 2;
  }
  set_trusted_subsamplings(0xFF);
  set_trusted_formats(0xFF);
  std::vector<std::string> paths(argv + 2, argv + argc);
  const LargeFile large(paths[0]);
  paths.push_back(large.path());
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  std::atomic<long> batches{0};
  std::uint64_t found = 0;
  int pools = 0;
  unsigned seed = 0;
  while (Clock::now() < end) {
    const auto round_end = std::min(end, Clock::now() + std::chrono::milliseconds(400));
    Pool pool(1 + pools % 4);
    // Most of them have no room for all files.
    const auto index = std::make_shared<JpegIndex>(std::size_t{1000} << pools % 10);
    std::vector<std::thread> users;
    for (int i = 0; i < 3; ++i) {
      users.emplace_back([&, number = seed++] { use(pool, paths, index, number, round_end, batches); });
    }
    users.emplace_back([&, number = seed++] { change_size(pool, number, round_end); });
    for (std::thread& user : users) user.join();
    if (index->totals().bytes > index->most_bytes()) std::abort();
    found += index->totals().found;
    // One batch is still in progress when the pool is destroyed.
    Batch last;
    BatchSpec spec;
    for (int i = 0; i < 100; ++i)
      spec.inputs.push_back({paths[static_cast<std::size_t>(i) % paths.size()], nullptr, 0});
    spec.options.height = spec.options.width = kSide;
    spec.plan = training_plan();
    spec.seeds.assign(100, 1);
    last.hold(spec, true);
    last.job = pool.submit(std::move(spec));
    // Sometimes without waiting: the threads end by themselves.
    const bool waits = pools % 3 != 0;
    if (!pool.close(waits ? 30 : 0) && waits) std::abort();
    if (!last.job->cancel(30)) std::abort();
    ++pools;
  }
  std::printf("%ld batches, %d pools, %llu times with points\n", batches.load(), pools,
              static_cast<unsigned long long>(found));
  if (found == 0) std::abort();
  return 0;
}
