// Runs the steps on the decoded images of a batch, with the bits of the decode threads (csrc/image). steps_layout.h
// says what these have prepared. Compiled at run time (decode.py); includes no other headers.
//
// One block of threads makes all steps of an image, one after the other. Floats and doubles are rounded after each
// operation, as on the host: the program is compiled without fused operations but those that torch fuses.

#include "decode_layout.h"
#include "step_colors.cu"
#include "step_filters.cu"
#include "step_images.h"
#include "step_moves.cu"
#include "steps_layout.h"

namespace fastload {

// Grid: images.
extern "C" __global__ void __launch_bounds__(kStepThreads, 2)
    steps(const u8* __restrict__ batch, long long first_image, u8* scratch, u8* pixels) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.x];
  const int count = image.step_count;
  const u8* const data = batch + image.steps;
  u32* here = reinterpret_cast<u32*>(scratch + static_cast<u64>(image.stepped[0]) * 16);
  u32* there = reinterpret_cast<u32*>(scratch + static_cast<u64>(image.stepped[1]) * 16);
  Words in{here, image.out_height, image.out_width};
  for (int i = 0; i < count; ++i) {
    const StagedStep& step = reinterpret_cast<const StagedStep*>(data)[i];
    const Sink out{nullptr, pixels + image.out};
    const bool last = i + 1 == count;
    const int area = in.height * in.width;
    const Sink same = last ? out : Sink{here, nullptr}, other = last ? out : Sink{there, nullptr};
    bool moved = false;  // the result is there, not here
    switch (step.kind) {
      case StagedKind::saturation:
        for_each(area, same, [&](int at) {
          const u32 pixel = here[at];
          const int gray = gray_of(pixel);
          return joined(blended(gray, channel_of(pixel, 0), step.factor),
                        blended(gray, channel_of(pixel, 1), step.factor),
                        blended(gray, channel_of(pixel, 2), step.factor));
        });
        break;
      case StagedKind::torch_saturation:
        for_each(area, same, [&](int at) {
          const u32 pixel = here[at];
          const int gray = torch_gray_of(pixel);
          return joined(torch_blended(gray, channel_of(pixel, 0), step.factor, step.share),
                        torch_blended(gray, channel_of(pixel, 1), step.factor, step.share),
                        torch_blended(gray, channel_of(pixel, 2), step.factor, step.share));
        });
        break;
      case StagedKind::hue: for_each(area, same, [&](int at) { return shifted_hue(here[at], step.numbers[0]); }); break;
      case StagedKind::grayscale:
        for_each<kAtOnce>(area, same, [&](int at) { return static_cast<u32>(gray_of(here[at])) * 0x010101; });
        break;
      case StagedKind::torch_grayscale:
        for_each(area, same, [&](int at) { return static_cast<u32>(torch_gray_of(here[at])) * 0x010101; });
        break;
      case StagedKind::table:
      case StagedKind::contrast:
      case StagedKind::autocontrast:
      case StagedKind::equalize:
      case StagedKind::torch_contrast:
      case StagedKind::torch_autocontrast:
        make_tables(step, data, here, area);
        for_each<kAtOnce>(area, same, [&](int at) { return look_up(here[at]); });
        break;
      case StagedKind::sharpness:
        for_each_at(in.height, in.width, other, [&](int y, int x) { return sharpened(in, y, x, step.factor); });
        moved = true;
        break;
      case StagedKind::move:
        for_each_at<kAtOnce>(step.height, step.width, other, [&](int y, int x) {
          return here[step.numbers[0] + x * step.numbers[1] + y * step.numbers[2]];
        });
        moved = true;
        break;
      case StagedKind::pad:
        for_each_at(step.height, step.width, other, [&](int y, int x) { return padded(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::affine:
        for_each_at<kAtOnce>(in.height, in.width, other, [&](int y, int x) { return moved_by(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::pick: {
        const int* const columns = reinterpret_cast<const int*>(data + step.data);
        const int* const rows = columns + in.width;
        for_each_at<kAtOnce>(in.height, in.width, other, [&](int y, int x) {
          const int column = columns[x], row = rows[y];
          return in.has(row, column) ? in.at(row, column) : step.fill;
        });
        moved = true;
        break;
      }
      case StagedKind::map:
        for_each_at(in.height, in.width, other, [&](int y, int x) { return mapped(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::blur: {
        const int passes = (step.numbers[1] != 0 ? 3 : 0) + (step.numbers[4] != 0 ? 3 : 0);
        const bool has_x = step.numbers[1] != 0;
        for (int pass = 0; pass < passes; ++pass) {
          const bool along_x = has_x && pass < 3;
          const Words source{moved ? there : here, in.height, in.width};
          const Sink next{moved ? here : there, nullptr};
          const Box box(step.numbers + (along_x ? 0 : 3));
          const Sink target = last && pass + 1 == passes ? out : next;
          if (along_x && box.radius <= kMostWhole) {
            blur_rows(source, box, target);
          } else {
            blur_lines(source, box, along_x, target);
          }
          __syncthreads();
          moved = !moved;
        }
        break;
      }
      case StagedKind::resize: resize(in, step, data, there, same); break;
      case StagedKind::filter: filter(in, step, data, there, same); break;
      case StagedKind::convolve:
        convolved(in, step, data, other);
        moved = true;
        break;
    }
    __syncthreads();
    if (moved) {
      u32* const swapped = here;
      here = there;
      there = swapped;
    }
    in = {here, step.height, step.width};
  }
}

}  // namespace fastload
