// A C interface to the core's arithmetic, for tests and benchmarks of internals (instruction sets, streaming, state).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/simd_level.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"

using namespace fastload;

namespace {

Resampler& resampler() {
  thread_local Resampler instance;
  return instance;
}

std::string& last_error() {
  thread_local std::string error;
  return error;
}

}  // namespace

struct ShimJob {
  int width, height, out_width, out_height;
  int whole;
  float box[4];   // left, top, right, bottom
  int window[4];  // top, left, height, width
  int flip_horizontal, flip_vertical, filter, vertical_first, channels;
};

namespace {

ResizeJob job_of(const ShimJob& shim_job) {
  ResizeJob job;
  job.width = shim_job.width;
  job.height = shim_job.height;
  job.out_width = shim_job.out_width;
  job.out_height = shim_job.out_height;
  job.whole = shim_job.whole != 0;
  job.box_left = shim_job.box[0];
  job.box_top = shim_job.box[1];
  job.box_right = shim_job.box[2];
  job.box_bottom = shim_job.box[3];
  job.window = {shim_job.window[0], shim_job.window[1], shim_job.window[2], shim_job.window[3]};
  job.flip_horizontal = shim_job.flip_horizontal != 0;
  job.flip_vertical = shim_job.flip_vertical != 0;
  job.filter = static_cast<Filter>(shim_job.filter);
  job.order = shim_job.vertical_first != 0 ? PassOrder::vertical_first : PassOrder::horizontal_first;
  job.channels = shim_job.channels;
  return job;
}

}  // namespace

extern "C" {

const char* shim_error() { return last_error().c_str(); }

int shim_set_simd(int level) { return set_simd_level(static_cast<SimdLevel>(level)) ? 1 : 0; }
int shim_simd() { return static_cast<int>(simd_level()); }
int shim_pass_order(int rule, int width, int height, int out_width, int out_height) {
  return static_cast<int>(pass_order(static_cast<PassRule>(rule), width, height, out_width, out_height));
}

// region: top, left, height, width.
int shim_prepare(const ShimJob* shim_job, int* region) {
  const ResizeJob job = job_of(*shim_job);
  if (!resampler().prepare(job, last_error())) return 0;
  const PixelBox& needed = resampler().region();
  region[0] = needed.top;
  region[1] = needed.left;
  region[2] = needed.height;
  region[3] = needed.width;
  return 1;
}

// box: the buffer's rectangle (top, left, height, width).
void shim_run(const std::uint8_t* data, std::ptrdiff_t stride, const int* box, std::uint8_t* out,
              std::ptrdiff_t out_stride) {
  resampler().run({data, stride, {box[0], box[1], box[2], box[3]}}, out, out_stride);
}

// The same in rows, `chunk` at a time, each with box[3] pixels from column box[1]. Returns 0 if not finished at the
// end.
int shim_stream(const std::uint8_t* data, std::ptrdiff_t stride, const int* box, int channels, int chunk,
                std::uint8_t* out, std::ptrdiff_t out_stride) {
  Resampler& r = resampler();
  const PixelBox region = r.region();
  r.begin(box[1], box[3], out, out_stride);
  for (int y = region.top; y < region.top + region.height; y += chunk) {
    for (int i = 0; i < chunk; ++i) {  // the last chunk may extend below the region, as a decoder's does
      if (y + i >= box[0] + box[2]) break;
      std::memcpy(r.row(i), data + (y + i - box[0]) * stride, static_cast<std::size_t>(box[3]) * channels);
    }
    r.push(chunk);
  }
  return r.finished() ? 1 : 0;
}

// Median microseconds of prepare and run together over `repeats`; *prepare_us gets the time of prepare alone.
// stream: rows are copied in 2 at a time, as a decoder would write them.
double shim_time(const ShimJob* shim_job, const std::uint8_t* data, std::ptrdiff_t stride, const int* box, int stream,
                 int repeats, std::uint8_t* out, std::ptrdiff_t out_stride, double* prepare_us) {
  using Clock = std::chrono::steady_clock;
  const auto us = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
  const ResizeJob job = job_of(*shim_job);
  std::vector<double> totals, prepares;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    if (!resampler().prepare(job, last_error())) return -1;
    const auto prepared = Clock::now();
    if (stream != 0) {
      shim_stream(data, stride, box, job.channels, 2, out, out_stride);
    } else {
      shim_run(data, stride, box, out, out_stride);
    }
    totals.push_back(us(Clock::now() - start));
    prepares.push_back(us(prepared - start));
  }
  std::nth_element(totals.begin(), totals.begin() + repeats / 2, totals.end());
  std::nth_element(prepares.begin(), prepares.begin() + repeats / 2, prepares.end());
  *prepare_us = prepares[repeats / 2];
  return totals[repeats / 2];
}

std::size_t shim_generator_bytes() { return sizeof(Generator); }
void shim_seed(Generator* generator, std::uint64_t seed) { generator->seed(seed); }
void shim_get_state(const Generator* generator, std::uint8_t* out) { generator->get_state(out); }
int shim_set_state(Generator* generator, const std::uint8_t* in) {
  return generator->set_state(in, Generator::kStateBytes) ? 1 : 0;
}
std::uint64_t shim_seed_for_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index) {
  return seed_for_index(seed, epoch, index);
}

void shim_uniform(Generator* generator, double from, double to, int fused, int excludes_upper, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = generator->uniform(from, to, {fused != 0, excludes_upper != 0});
}
void shim_rand(Generator* generator, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = generator->rand();
}
void shim_randint(Generator* generator, std::int64_t low, std::int64_t high, int count, std::int64_t* out) {
  for (int i = 0; i < count; ++i) out[i] = generator->randint(low, high);
}

struct ShimOp {
  int kind, height, width, max_size;
  double p, scale[2], ratio[2];
  float log_ratio[2];
};

DrawPlan* shim_plan(const ShimOp* ops, int count, int fused, int excludes_upper) {
  auto plan = std::make_unique<DrawPlan>();
  plan->uniform_rule = {fused != 0, excludes_upper != 0};
  for (int i = 0; i < count; ++i) {
    DrawOp op;
    op.kind = static_cast<DrawOp::Kind>(ops[i].kind);
    op.height = ops[i].height;
    op.width = ops[i].width;
    op.max_size = ops[i].max_size;
    op.p = ops[i].p;
    for (int j = 0; j < 2; ++j) {
      op.scale[j] = ops[i].scale[j];
      op.ratio[j] = ops[i].ratio[j];
      op.log_ratio[j] = ops[i].log_ratio[j];
    }
    if (!plan->add(op, last_error())) return nullptr;
  }
  return plan.release();
}
void shim_free_plan(DrawPlan* plan) { delete plan; }

// Draws samples until `count` are done or one is not ok; returns the number done. sizes: (width, height) each. out:
// crop, out_height, out_width, window, flips, 12 ints each. status and unresolved: of the sample that is not ok.
int shim_draw(const DrawPlan* plan, Generator* generator, int count, const int* sizes, const float* known,
              int known_count, int* out, int* status, float* unresolved) {
  std::vector<Answer> answers;
  Question question;
  for (int i = 0; i < known_count; ++i)
    answers.push_back({{Question::Kind::exp, {known[2 * i]}}, Coefficients{known[2 * i + 1]}});
  *status = 0;
  for (int i = 0; i < count; ++i) {
    Geometry g;
    const DrawStatus result = plan->run(*generator, sizes[2 * i], sizes[2 * i + 1], answers, g, question);
    *unresolved = static_cast<float>(question.numbers[0]);
    *status = static_cast<int>(result);
    if (result != DrawStatus::ok) return i;
    const int row[12] = {g.crop.top,      g.crop.left,    g.crop.height,     g.crop.width,
                         g.out_height,    g.out_width,    g.window.top,      g.window.left,
                         g.window.height, g.window.width, g.flip_horizontal, g.flip_vertical};
    std::memcpy(out + 12 * static_cast<std::ptrdiff_t>(i), row, sizeof row);
  }
  return count;
}

}  // extern "C"
