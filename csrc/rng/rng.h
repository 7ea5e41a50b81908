// Reproduces torch's random stream and torchvision's random parameters exactly. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "resample/resample.h"

namespace fastload {

// How the installed torch turns 24 random bits into uniform_(from, to). Versions and CPU kernels differ in the last
// bit, so the caller determines the rule by comparing a few draws.
struct UniformRule {
  bool fused = true;           // one rounding for x * (to - from) + from (FMA kernels), else two
  bool excludes_upper = true;  // a result that rounds up to `to` becomes `from`
};

// torch's CPU generator: at::mt19937. Copyable (2.5 KB).
class Generator {
 public:
  static constexpr std::size_t kStateBytes = 5056;  // of torch.Generator.get_state()

  explicit Generator(std::uint64_t seed = 5489) { this->seed(seed); }

  void seed(std::uint64_t seed);  // torch.manual_seed(seed); as there, only the low 32 bits affect the stream
  std::uint32_t random();
  std::uint64_t random64();
  float uniform(double from, double to, UniformRule rule);                      // torch.empty(1).uniform_(from, to)
  float rand() { return static_cast<float>(random() & 0xffffffu) * 0x1p-24f; }  // torch.rand(1)
  std::int64_t randint(std::int64_t low, std::int64_t high);  // torch.randint(low, high, (1,)); low < high

  // torch.Generator's get_state() and set_state() layout, including cached normal samples (no op here draws any).
  void get_state(std::uint8_t out[kStateBytes]) const;
  bool set_state(const std::uint8_t in[kStateBytes]);  // false, and no change, if the state is invalid

 private:
  void next_block();

  std::uint64_t initial_seed_ = 0;
  int left_ = 1;            // torch's counters: numbers left in the block + 1 ...
  std::uint32_t next_ = 0;  // ... and the index of the next one
  std::array<std::uint32_t, 624> state_{};
  std::array<std::uint8_t, 40> normals_{};
};

// The seed of one sample when randomness depends only on (seed, epoch, index), not on workers or batch order. 63 bits,
// so that torch.initial_seed() fits into an int64 tensor.
std::uint64_t seed_for_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index);

// One transform. Fields not listed for its kind are ignored.
struct DrawOp {
  enum class Kind {
    random_resized_crop,  // height, width, scale, ratio, log_ratio; torchvision v1 and v2 draw the same
    random_crop_v1,       // height, width; draws for both axes unless the sizes are equal
    random_crop_v2,       // height, width; draws only for the axes that shrink
    center_crop,          // height, width; no draw
    resize,               // height, width; no draw
    resize_shorter,       // height: the shorter side; max_size or 0; no draw
    horizontal_flip,      // p
    vertical_flip,        // p
    random_erasing,       // p, scale, ratio, log_ratio; torchvision v1 and v2 draw the same
  };
  Kind kind = Kind::horizontal_flip;
  int height = 0;
  int width = 0;
  int max_size = 0;
  double p = 0.5;
  double scale[2] = {0.08, 1.0};
  double ratio[2] = {3.0 / 4.0, 4.0 / 3.0};
  float log_ratio[2] = {0, 0};  // torch.log(torch.tensor(ratio)), computed by torch
};

// One sample's geometry: crop the image to `crop`, resize to out_height x out_width (no resize if that is the crop's
// size), keep `window`, then flip.
struct Geometry {
  PixelBox crop;
  int out_height = 0;
  int out_width = 0;
  PixelBox window;
  bool flip_horizontal = false;
  bool flip_vertical = false;
  PixelBox erased;  // box of the finished image that the caller must fill. Height or width 0: none
};

enum class DrawStatus {
  ok,
  // torch.exp(x) of one draw may round either way on this CPU, and the difference would change the crop. Compute it
  // with torch (x is `unresolved`), append {x, exp(x)} to `known` and run again. About one sample in 50,000.
  ambiguous_exp,
  crop_too_large,  // a crop larger than the image, or a resize to nothing: torchvision pads or raises
};

struct KnownExp {
  float input;
  float output;
};

class DrawPlan {
 public:
  // Appends a transform. Returns false, with the reason in `error`, if the chain would no longer be one Geometry (two
  // resizes, a resize after a flip, anything after an erasing, ...).
  bool add(const DrawOp& op, std::string& error);

  UniformRule uniform_rule;

  // Draws one sample's parameters for an image of width x height, in torchvision's order. Changes `generator` only if
  // it returns ok. Allocates nothing.
  DrawStatus run(Generator& generator, int width, int height, const std::vector<KnownExp>& known, Geometry& geometry,
                 float& unresolved) const;

 private:
  std::vector<DrawOp> ops_;
  bool resizes_ = false;
  bool flips_ = false;
  bool erases_ = false;
};

}  // namespace fastload
