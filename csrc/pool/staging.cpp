#include "pool/staging.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

namespace fastload {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kMostBytes = std::size_t{1} << 31;  // offsets have 32 bits
constexpr int kWorkThreads = 64;                          // of a block of the first kernel; see huffman.cu

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int blocks_of(const StagedImage& image) {
  return image.mcu_rows * image.mcu_columns * (image.across * image.down + image.components - 1);
}

// Threads of the first kernel: two for each two segments of a row.
int threads_of(const StagedImage& image) {
  constexpr int kTwo = 2 * kSegmentMcus;
  const int last = (image.mcu_column + image.mcu_columns - 1) / kTwo;
  return image.mcu_rows * (last - image.mcu_column / kTwo + 1) * 2;
}

std::size_t work_bytes_of(const StagedImage& image) {
  const auto threads = static_cast<std::size_t>(threads_of(image));
  return (threads + kWorkThreads - 1) / kWorkThreads * sizeof(StagedWork);
}

}  // namespace

Staging::Staging(std::uint8_t* memory, std::size_t size, std::size_t count)
    : memory_(memory), size_(std::min(size, kMostBytes)), count_(count) {
  used_ = wanted_ = aligned(count * sizeof(StagedImage));
  if (used_ > size_) throw std::invalid_argument("staging memory must have room for its images' numbers");
  if (reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) {
    throw std::invalid_argument("staging memory must be aligned to 16 bytes");
  }
  std::memset(memory_, 0, used_);
}

bool Staging::add(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                  const SampleOptions& options, std::size_t out) try {
  static thread_local ImageStager stager;
  StagedImage staged;
  if (!stage_sample(source, header, geometry, options, stager, staged)) return false;
  const StagedCodes& codes = stager.codes();
  const std::size_t needed = stager.bytes(), work = work_bytes_of(staged);
  std::size_t at = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find(codes_.begin(), codes_.end(), codes);
    const std::size_t kept = work + (found == codes_.end() ? sizeof codes : 0);
    wanted_ += needed + kept;
    if (needed + kept > size_ - used_ - kept_) return false;
    staged.code_set = static_cast<int>(found - codes_.begin());
    if (found == codes_.end()) codes_.push_back(codes);
    at = used_;
    used_ += needed;
    kept_ += kept;
  }
  if (!stager.write(source, memory_ + at, at, staged)) return false;
  staged.out = out;
  image(number) = staged;
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void Staging::remove(std::size_t number) { image(number) = StagedImage{}; }

std::vector<Staging::Chunk> Staging::finish(std::size_t most_bytes) {
  std::vector<Chunk> chunks;
  std::vector<StagedWork> work;
  for (std::size_t number = 0; number < count_; ++number) {
    StagedImage& staged = image(number);
    if (staged.mcu_rows == 0) continue;
    const auto blocks = static_cast<std::size_t>(blocks_of(staged));
    const auto pixels = [](int height, int width) {
      return aligned(std::size_t{4} * static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
    };
    const std::size_t coefficients = blocks * 64 * sizeof(std::int16_t), samples = blocks * 64;
    const std::size_t rgb = staged.vertical_first != 0 ? pixels(staged.height, staged.width) : 0;
    const std::size_t between =
        staged.vertical_first != 0 ? pixels(staged.out_height, staged.width) : pixels(staged.height, staged.out_width);
    const auto step_images = static_cast<std::size_t>(staged.step_images);
    const std::size_t stepped = aligned(std::size_t{4} * staged.step_pixels);
    if (chunks.empty() || chunks.back().coefficient_bytes + chunks.back().other_bytes + coefficients + samples + rgb +
                                  between + step_images * stepped >
                              most_bytes) {
      chunks.emplace_back();
      chunks.back().first_image = number;
      chunks.back().work = work.size();
    }
    Chunk& chunk = chunks.back();
    chunk.images = number + 1 - chunk.first_image;
    const auto place = [](std::size_t& used, std::size_t bytes) {
      const auto at = static_cast<unsigned>(used / kAlignment);
      used += bytes;
      return at;
    };
    staged.coefficients = place(chunk.coefficient_bytes, coefficients);
    staged.samples = place(chunk.other_bytes, samples);
    staged.rgb = place(chunk.other_bytes, rgb);
    staged.between = place(chunk.other_bytes, between);
    for (std::size_t i = 0; i < step_images; ++i) staged.stepped[i] = place(chunk.other_bytes, stepped);
    chunk.any_vertical_first |= staged.vertical_first != 0;
    chunk.any_steps |= staged.step_count > 0;
    chunk.widest = std::max(chunk.widest, staged.width);
    chunk.highest = std::max(chunk.highest, staged.height);
    chunk.widest_out = std::max(chunk.widest_out, staged.out_width);
    chunk.highest_out = std::max(chunk.highest_out, staged.out_height);
    for (int thread = 0; thread < threads_of(staged); thread += kWorkThreads) {
      work.push_back({static_cast<int>(number), thread});
      ++chunk.work_items;
    }
  }
  std::copy(work.begin(), work.end(), reinterpret_cast<StagedWork*>(memory_ + used_));
  for (Chunk& chunk : chunks) chunk.work = used_ + chunk.work * sizeof(StagedWork);
  used_ += work.size() * sizeof(StagedWork);
  codes_at_ = used_;
  for (const StagedCodes& codes : codes_) {
    std::memcpy(memory_ + used_, codes.data(), sizeof codes);
    used_ += sizeof codes;
  }
  return chunks;
}

std::size_t Staging::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

std::size_t Staging::wanted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return wanted_;
}

}  // namespace fastload
