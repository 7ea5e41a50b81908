// Draws the random parameters of a chain of transforms exactly as torchvision does. Knows neither Python nor torch.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "image/steps.h"
#include "resample/resample.h"
#include "rng/generator.h"
#include "rng/perspective.h"

namespace fastload {

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
    random_erasing,       // p, scale, ratio, log_ratio, noise; torchvision v1 and v2 draw the same
    step,                 // step; no draw
    choose,               // branches: one of them is drawn by randint
    chance,               // p, comparison, branches: the first if the draw meets p, else the second, if any
    auto_augment_v1,      // branches: four for each policy, see draw_plan.cpp; chances: two for each policy
    color_jitter,         // jitters: brightness, contrast, saturation, hue in the order of a drawn permutation
    torch_color_jitter,   // the same of a uint8 tensor, without hue
    random_rotation,      // jitters: angle; center; step's sampling and fill
    random_affine_v1,     // jitters: angle, scale, shears along x and y; translate; center; step's sampling and fill
    random_affine_v2,     // the same, but the matrix rounds otherwise
    random_perspective,   // step's value, from 0 to 1: how far corners move; its sampling and fill
    random_gaussian,      // jitters: sigma; height and width: of the kernel
    shuffle,              // branches: all of them, in the order of a drawn permutation
    choose_weighted,      // branches and chances, one for each: one of them is drawn by torch.multinomial
    // The following draw from Python's generator, one of them from NumPy's; see draw_python.h.
    python_chance,           // p, comparison: as chance, but the draw and p are doubles
    python_blur,             // scale: of which the radius is drawn by random.uniform
    python_choose,           // branches: one of them, by random.choice
    python_choose_weighted,  // branches, and chances summed up: one of them, by random.choices
    python_shuffle,          // branches: all of them, in the order of random.shuffle
    numpy_choose,            // branches: count of them, by numpy.random.choice
    python_resized_crop,     // height, width, scale, ratio, logs, filter or filters: timm's
    python_crop_or_pad,      // height, width; step's mode and fill: timm's RandomCropOrPad
    center_crop_or_pad,      // the same; no draw
    resize_keep_ratio,       // height, width, longest, p, scale, by_area, aspect_p, logs, filter or filters: timm's
    python_augment,          // p, level, step: timm's AugmentOp
    python_erasing,          // p, scale, logs, count, most_count, noise: timm's RandomErasing
  };
  // How a draw r of rand() meets p. torch compares the float32 draw with p rounded to float32; .item() gives a double.
  enum class Comparison { less, less_or_equal, less_as_double };
  // What an erasing draws by torch's normal_ for each box: nothing, a value for each channel, or one for each pixel
  // too.
  enum class Noise { none, colors, pixels };
  // A range from which a number is drawn; off: no draw, and what it changes stays.
  struct Jitter {
    bool on = false;
    double low = 0;
    double high = 0;
  };
  // How timm's AugmentOp turns a magnitude into an argument: magnitude / 10 * slope + intercept, which may be negated
  // by chance and truncated; at most `most`; added to `base` or subtracted from it; at least `least`.
  struct Level {
    enum class Use {
      nothing,
      value,           // of the step
      bits,            // the same; 8 or more change nothing
      angle,           // degrees, with one of samplings, as are the next six
      shear_x,         //
      shear_y,         //
      shift_x,         // pixels
      shift_y,         //
      part_of_width,   // shift
      part_of_height,  //
      radius,          // of a blur
      largest_radius,  // half of it
    };
    Use use = Use::nothing;
    double magnitude = 10;
    double deviation = 0;  // of a normal distribution; infinite: uniform from 0 to magnitude
    double highest = 10;   // magnitude
    double slope = 0;
    double intercept = 0;
    bool negates = false;
    bool whole = false;
    bool subtracts = false;
    double most = std::numeric_limits<double>::infinity();
    double base = 0;
    double least = -std::numeric_limits<double>::infinity();
    std::vector<Sampling> samplings;  // one of them is drawn; none: the step's
  };
  Kind kind = Kind::horizontal_flip;
  int height = 0;
  int width = 0;
  int max_size = 0;
  double p = 0.5;
  double scale[2] = {0.08, 1.0};
  double ratio[2] = {3.0 / 4.0, 4.0 / 3.0};
  float log_ratio[2] = {0, 0};       // torch.log(torch.tensor(ratio)), computed by torch
  Filter filter = Filter::bilinear;  // of a resize
  Comparison comparison = Comparison::less;
  Step step;
  std::vector<std::vector<DrawOp>> branches;
  std::vector<double> chances;
  std::array<Jitter, 4> jitters;
  std::optional<std::array<double, 2>> translate;  // the most, as parts of width and height
  std::optional<std::array<double, 2>> center;     // x and y; none: the image's
  std::vector<Filter> filters;                     // one of them is drawn; none: `filter`
  double logs[2] = {0, 0};                         // math.log of a ratio's bounds, computed by Python
  double longest = 0;                              // weight of the longer side's ratio
  double aspect_p = 0;
  bool by_area = false;
  int count = 1;
  int most_count = 1;
  Noise noise = Noise::none;
  Level level;
};

// What to make of one image: crop it to `crop`, resize to out_height x out_width (no resize if that is the crop's
// size), keep `window`, flip, then apply `steps`.
struct Geometry {
  PixelBox crop;
  int out_height = 0;
  int out_width = 0;
  PixelBox window;
  bool flip_horizontal = false;
  bool flip_vertical = false;
  std::optional<Filter> filter;  // of the resize; none: the batch's
  std::vector<Step> steps;
  // Boxes of the finished image that the caller must fill, in order, and the generator, without others, before their
  // noise is drawn by torch's normal_ for one after the other; null if they get none.
  std::vector<PixelBox> erased;
  std::shared_ptr<const Generator> noise;
};

enum class DrawStatus {
  ok,
  // What torch computes of the draws may round either way, and the difference would change the image. Compute it with
  // torch (`unresolved` says what), append it to `known` and run again. About one crop in 50,000, and one perspective
  // transform in 20.
  ambiguous,
  // A crop larger than the image, or a resize to nothing: torchvision pads or raises. Or a weighted choice so close
  // that it depends on how torch's logarithm rounds. Or a step that Pillow may refuse.
  crop_too_large,
};

// What only torch can compute with its bits.
struct Question {
  enum class Kind {
    none,
    exp,          // of the first number, in float32
    perspective,  // torchvision's coefficients; the numbers are the corners
  };
  Kind kind = Kind::none;
  Corners numbers{};
  bool operator==(const Question& other) const { return kind == other.kind && numbers == other.numbers; }
};

struct Answer {
  Question question;
  std::optional<Coefficients> numbers;  // exp's is the first one; none: torch raises an error
};

// A chain of transforms, or one for each of several views of an image.
class DrawPlan {
 public:
  // Appends a transform to the last view. Returns false, with the reason in `error`, if its arguments are invalid or it
  // follows an erasing.
  bool add(const DrawOp& op, std::string& error);

  bool draws_others() const { return draws_others_; }  // from Python's or NumPy's generator
  // Ends a view; what is added next belongs to another one of the same image.
  void begin_view();
  std::size_t views() const { return views_.size(); }

  UniformRule uniform_rule;
  // Draws the parameters of one view for an image of width x height, in torchvision's order. Changes `generator` only
  // if it returns ok. `unresolved` is then what `known` has been asked last, if anything.
  DrawStatus run(Generator& generator, int width, int height, const std::vector<Answer>& known, Geometry& geometry,
                 Question& unresolved, std::size_t view = 0) const;

 private:
  std::vector<std::vector<DrawOp>> views_{1};
  bool erases_ = false;
  bool draws_others_ = false;
};

}  // namespace fastload
