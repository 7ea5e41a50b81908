#include "deferred/tensor_program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/buffer.h"
#include "image/color/color.h"
#include "image/look_up.h"

namespace fastload {
namespace {

// Values that are written to a file at once: a write takes as long as copying 20 KiB.
constexpr std::size_t kWriteBytes = std::size_t{256} << 10;

int write_all(int file, const std::uint8_t* from, std::size_t bytes, std::int64_t offset) {
  while (bytes > 0) {
    const ::ssize_t written = ::pwrite(file, from, bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    from += written;
    offset += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return 0;
}

// Writes rows of one pattern, `count` times in each. `stride` is the bytes from a row to the next.
void fill_rows(const std::uint8_t* pattern, std::size_t bytes, std::size_t count, std::size_t rows, std::size_t stride,
               std::uint8_t* out) {
  if (rows == 0 || count == 0) return;
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * bytes, pattern, bytes);
  for (std::size_t row = 1; row < rows; ++row) std::memcpy(out + row * stride, out, count * bytes);
}

void fill(const TensorProgram& program, const TensorProgram::Fill& fill, std::uint8_t* out) {
  const std::size_t bytes = program.value_bytes, width = static_cast<std::size_t>(program.width);
  const auto rows = static_cast<std::size_t>(fill.box.height), columns = static_cast<std::size_t>(fill.box.width);
  const std::size_t first = static_cast<std::size_t>(fill.box.top) * width + static_cast<std::size_t>(fill.box.left);
  const std::size_t channels = program.channels;
  std::array<std::uint8_t, 3 * 8> pixel;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const std::uint8_t* value = fill.values[channel].data();
    if (program.planar) {
      const std::size_t plane = static_cast<std::size_t>(program.height) * width;
      fill_rows(value, bytes, columns, rows, width * bytes, out + (channel * plane + first) * bytes);
    } else {
      std::memcpy(pixel.data() + channel * bytes, value, bytes);
    }
  }
  if (program.planar) return;
  const std::size_t pixel_bytes = channels * bytes;
  fill_rows(pixel.data(), pixel_bytes, columns, rows, width * pixel_bytes, out + first * pixel_bytes);
}

// The dimensions without those of size 1; two that lie one behind the other are one.
std::vector<TensorProgram::Axis> fewest(const std::vector<TensorProgram::Axis>& axes) {
  std::vector<TensorProgram::Axis> kept;
  for (const TensorProgram::Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!kept.empty() && kept.back().stride == axis.size * axis.stride) {
      kept.back() = {kept.back().size * axis.size, axis.stride};
    } else {
      kept.push_back(axis);
    }
  }
  return kept;
}

// Copies values in the order of the axes. Returns where those behind belong.
template <class Value>
std::uint8_t* reorder(const TensorProgram::Axis* axis, const TensorProgram::Axis* end, const Value* from,
                      std::uint8_t* out) {
  if (axis == end || (axis + 1 == end && axis->stride == 1)) {
    const std::size_t bytes = (axis == end ? 1 : axis->size) * sizeof(Value);
    std::memcpy(out, from, bytes);
    return out + bytes;
  }
  if (axis + 1 == end) {
    for (std::size_t i = 0; i < axis->size; ++i)
      std::memcpy(out + i * sizeof(Value), from + i * axis->stride, sizeof(Value));
    return out + axis->size * sizeof(Value);
  }
  for (std::size_t i = 0; i < axis->size; ++i) out = reorder(axis + 1, end, from + i * axis->stride, out);
  return out;
}

// For an image's values in their own order.
AlignedBuffer& thread_values() {
  static thread_local AlignedBuffer buffer;
  return buffer;
}

template <class Value>
void reorder(const TensorProgram& program, const std::uint8_t* values, void* out) {
  const auto axes = fewest(program.axes);
  const auto* from = reinterpret_cast<const Value*>(values) + program.first;
  reorder(axes.data(), axes.data() + axes.size(), from, static_cast<std::uint8_t*>(out));
}

}  // namespace

const TensorProgram& TensorProgram::owner_of(std::size_t& image) const {
  for (const auto& part : parts) {
    if (image < part->images.size()) return *part;
    image -= part->images.size();
  }
  return *this;
}

std::size_t TensorProgram::image_bytes() const {
  std::size_t count = axes.empty() ? values() : 1;
  for (const Axis& axis : axes) count *= axis.size;
  return count * value_bytes;
}

std::size_t TensorProgram::place_of(std::size_t image) const {
  if (parts.empty()) return image * image_bytes();
  std::size_t place = 0;
  for (const auto& part : parts) {
    if (image < part->images.size()) return place + part->place_of(image);
    image -= part->images.size();
    place += part->nbytes();
  }
  return place;
}

template <class Paint>
Status TensorProgram::in_order(void* out, const Paint& paint) const {
  if (axes.empty()) return paint(out);
  try {
    std::uint8_t* const made = thread_values().require(values() * value_bytes);
    const Status status = paint(made);
    if (status != Status::ok) return status;
    switch (value_bytes) {
      case 1: reorder<std::uint8_t>(*this, made, out); break;
      case 2: reorder<std::uint16_t>(*this, made, out); break;
      case 4: reorder<std::uint32_t>(*this, made, out); break;
      default: reorder<std::uint64_t>(*this, made, out);
    }
    return Status::ok;
  } catch (const std::bad_alloc&) {
    return Status::unsupported;
  }
}

Status TensorProgram::paint_levels(std::size_t image, const std::uint8_t* levels, void* out) const {
  const TensorProgram& owner = owner_of(image);
  return owner.in_order(out, [&](void* made) {
    owner.paint_values(image, levels, made);
    return Status::ok;
  });
}

void TensorProgram::paint_values(std::size_t image, const std::uint8_t* levels, void* out) const {
  LookUpJob job;
  job.levels = levels;
  job.images = 1;
  job.pixels = static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  job.table = table.data();
  job.value_bytes = value_bytes;
  job.out = out;
  job.planar = planar;
  if (keeps_levels && planar) {
    to_planes(levels, job.pixels, static_cast<std::uint8_t*>(out));
  } else {
    look_up(job);
  }
  paint_fills(image, out);
}

void TensorProgram::paint_fills(std::size_t image, void* out) const {
  for (const Fill& each : fills) {
    if (each.image == image) fill(*this, each, static_cast<std::uint8_t*>(out));
  }
}

void TensorProgram::paint_picked(std::size_t image, void* out) const {
  const ImageProgram& program = *images[image];
  const PixelBox place = program.place.value_or(PixelBox{0, 0, height, width});
  PickJob job;
  job.levels = program.file.data;
  job.row_stride = program.file.width;
  job.rows = program.rows.data();
  job.columns = program.columns.data();
  job.height = static_cast<std::size_t>(place.height);
  job.width = static_cast<std::size_t>(place.width);
  job.table = table.data();
  job.value_bytes = value_bytes;
  job.out_stride = static_cast<std::size_t>(width);
  const std::size_t first = static_cast<std::size_t>(place.top) * job.out_stride + static_cast<std::size_t>(place.left);
  job.out = static_cast<std::uint8_t*>(out) + first * value_bytes;
  pick(job);
  paint_fills(image, out);
}

Status TensorProgram::paint(std::size_t image, void* out) const {
  std::size_t number = image;
  const TensorProgram& owner = owner_of(number);
  if (owner.channels == 1) {
    return owner.in_order(out, [&](void* made) {
      owner.paint_picked(number, made);
      return Status::ok;
    });
  }
  const ImageBytes& file = images[image]->file;
  if (file.is_decoded()) return paint_whole(image, file.data, file.height, file.width, out);
  Input input;
  input.data = file.data;
  input.size = file.size;
  return paint_input(image, input, out);
}

Status TensorProgram::paint_whole(std::size_t image, const std::uint8_t* pixels, std::uint32_t file_height,
                                  std::uint32_t file_width, void* out) const {
  Input input;
  input.data = pixels;
  input.height = file_height;
  input.width = file_width;
  input.strides = {std::ptrdiff_t{3} * file_width, 3, 1};
  return paint_input(image, input, out);
}

Status TensorProgram::paint_input(std::size_t image, const Input& input, void* out) const {
  const TensorProgram& owner = owner_of(image);
  return owner.in_order(out, [&](void* made) { return owner.paint_values(image, input, made); });
}

Status TensorProgram::paint_values(std::size_t image, const Input& input, void* out) const {
  static thread_local std::vector<std::uint8_t> levels;
  try {
    const bool at_once = keeps_levels && !planar;
    if (!at_once) levels.resize(3 * static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
    std::uint8_t* const pixels = at_once ? static_cast<std::uint8_t*>(out) : levels.data();
    const PixelBox place = images[image]->place.value_or(PixelBox{0, 0, height, width});
    SampleOptions options;
    options.height = place.height;
    options.width = place.width;
    options.pass_rule = pass_rule;
    Outcome outcome;
    const std::ptrdiff_t row = std::ptrdiff_t{3} * width;
    const Target target{pixels + place.top * row + std::ptrdiff_t{3} * place.left, row};
    process(input, images[image]->geometry, options, target, outcome);
    if (outcome.status != Status::ok) return outcome.status;
    if (at_once) {
      paint_fills(image, out);
    } else {
      paint_values(image, pixels, out);
    }
    return Status::ok;
  } catch (const std::bad_alloc&) {
    return Status::unsupported;
  }
}

int TensorProgram::write(int file, std::int64_t offset, Status* statuses) const {
  static thread_local AlignedBuffer buffer;
  for (const auto& part : parts) {
    const int error = part->write(file, offset, statuses);
    if (error != 0) return error;
    statuses += part->images.size();
    offset += static_cast<std::int64_t>(part->nbytes());
  }
  if (!parts.empty()) return 0;
  const std::size_t bytes = image_bytes(), at_once = std::max<std::size_t>(1, kWriteBytes / bytes);
  try {
    std::uint8_t* const values = buffer.require(std::min(at_once, images.size()) * bytes);
    for (std::size_t first = 0; first < images.size(); first += at_once) {
      const std::size_t count = std::min(at_once, images.size() - first);
      for (std::size_t i = 0; i < count; ++i) statuses[first + i] = paint(first + i, values + i * bytes);
      const int error = write_all(file, values, count * bytes, offset);
      if (error != 0) return error;
      offset += static_cast<std::int64_t>(count * bytes);
    }
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  return 0;
}

bool append(const TensorProgram& program, TensorProgram& to) {
  if (!program.axes.empty() || !program.parts.empty() || !to.axes.empty() || !to.parts.empty()) return false;
  if (program.height != to.height || program.width != to.width || program.channels != to.channels ||
      program.pass_rule != to.pass_rule || program.value_bytes != to.value_bytes || program.table != to.table) {
    return false;
  }
  for (TensorProgram::Fill fill : program.fills) {
    fill.image += to.images.size();
    to.fills.push_back(fill);
  }
  to.images.insert(to.images.end(), program.images.begin(), program.images.end());
  return true;
}

}  // namespace fastload
