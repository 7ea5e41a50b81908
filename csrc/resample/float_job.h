// A resize by one of the filters in float.
#pragma once

#include "resample/float/resampler.h"
#include "resample/resample.h"

namespace fastload {

inline FloatResize float_resize(const ResizeJob& job) {
  FloatResize made;
  const Filter filter = job.filter;
  made.bicubic = filter == Filter::float_bicubic || filter == Filter::fma_bicubic || filter == Filter::fma4_bicubic;
  made.products = filter < Filter::fma_bilinear    ? Products::rounded
                  : filter < Filter::fma4_bilinear ? Products::fused
                                                   : Products::fused_but_fours;
  made.width = job.width;
  made.height = job.height;
  made.out_width = job.out_width;
  made.out_height = job.out_height;
  made.window = job.window;
  made.flip_horizontal = job.flip_horizontal;
  made.flip_vertical = job.flip_vertical;
  made.channels = job.channels;
  return made;
}

}  // namespace fastload
