// Pillow's and torchvision's changes of colour on uint8 RGB images, bit for bit. Knows neither Python nor torch.
//
// Each function says which call it reproduces. All levels of SIMD (base/simd_level.h) give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/image.h"

namespace fastload {

// Value of each level of each channel: what Image.point(table) does.
using LevelTable = std::array<std::array<std::uint8_t, 256>, 3>;

void apply_table(const LevelTable& table, Image image);  // in place

// Writes `count` pixels as three planes, one behind the other.
void to_planes(const std::uint8_t* pixels, std::size_t count, std::uint8_t* out);

// Writes `count` pixels of three planes, each `channel` bytes behind the one before.
void from_planes(const std::uint8_t* red, std::ptrdiff_t channel, std::size_t count, std::uint8_t* pixels);

// ImageEnhance.Brightness(image).enhance(factor); torchvision's adjust_brightness. In place, as are all below.
void adjust_brightness(Image image, double factor);
// ImageEnhance.Contrast: blends with the rounded mean of the grey image.
void adjust_contrast(Image image, double factor);
// ImageEnhance.Color: blends with the grey image.
void adjust_saturation(Image image, double factor);
// torchvision's adjust_hue on a PIL image. `shift` is what it adds to Pillow's hue, uint8(hue_factor * 255).
void adjust_hue(Image image, std::uint8_t shift);
// ImageEnhance.Sharpness: blends with ImageFilter.SMOOTH.
void adjust_sharpness(Image image, double factor);
// Image.convert("L"), three times.
void to_grayscale(Image image);
// ImageOps.
void invert(Image image);
void posterize(Image image, int bits);         // 1 to 8
void solarize(Image image, double threshold);  // inverts levels not below it
void solarize_add(Image image, int added);     // timm's: adds to levels below 128, at most to 255; added >= 0
void autocontrast(Image image);
void equalize(Image image);

// torchvision's v2 functions of uint8 tensors, which compute in float32 and fuse where torch's kernels do. Factors are
// at least 0.
void torch_brightness(Image image, double factor);
// At most 2^24 pixels; the mean is that of one of torch's threads. Bit i of `twice` says that torch rounds twice where
// it blends the i-th value from the end, in order of the tensor's memory, whose channels are outermost if it is
// `planar`.
void torch_contrast(Image image, double factor, unsigned twice = 0, bool planar = false);
void torch_saturation(Image image, double factor);
// Without fusing. An image of at most two rows or columns stays as it is.
void torch_sharpness(Image image, double factor);
void torch_hue(Image image, double factor);  // -0.5 to 0.5
void torch_grayscale(Image image);           // rgb_to_grayscale, three times
void torch_autocontrast(Image image);

// Each channel's source.
using ChannelOrder = std::array<int, 3>;
void permute_channels(Image image, const ChannelOrder& order);

// As many pixels have a sum of grays that float32 holds, in whatever order they are added.
constexpr std::int64_t kMostExactGrays = (std::int64_t{1} << 24) / 255;

}  // namespace fastload
