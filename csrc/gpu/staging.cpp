#include "gpu/staging.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "gpu/staged_steps.h"

namespace fastload {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kMostBytes = std::size_t{1} << 31;  // offsets have 32 bits
constexpr int kWorkThreads = 64;                          // of a block of the first kernel; see huffman.cu
// Of a file that is not staged, maybe for ever, so that large ones reserve little pinned memory.
constexpr std::size_t kMostUnknown = std::size_t{256} << 10;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int blocks_of(const StagedImage& image) {
  return image.mcu_rows * image.mcu_columns * (image.across * image.down + image.components - 1);
}

// Threads of the first kernel: two for each pair of segments in a row.
int threads_of(const StagedImage& image) {
  if (image.mcu_rows == 0 || image.scan_count > 0) return 0;
  constexpr int kTwo = 2 * kSegmentMcus;
  const int last = (image.mcu_column + image.mcu_columns - 1) / kTwo;
  return image.mcu_rows * (last - image.mcu_column / kTwo + 1) * 2;
}

// Lets a view use what is decoded of another one's data.
void share(const StagedImage& owner, StagedImage& view) {
  view.components = owner.components;
  view.across = owner.across;
  view.down = owner.down;
  view.mcu_column = owner.mcu_column;
  view.mcu_columns = owner.mcu_columns;
  view.mcu_row = owner.mcu_row;
  view.mcu_rows = owner.mcu_rows;
  view.samples = owner.samples;
}

std::size_t work_bytes_of(const StagedImage& image) {
  const auto threads = static_cast<std::size_t>(threads_of(image));
  return (threads + kWorkThreads - 1) / kWorkThreads * sizeof(StagedWork);
}

// Of so many bytes of data.
std::size_t subsequences_in(std::size_t bytes) { return (bytes * 8 + kSubsequenceBits - 1) / kSubsequenceBits; }

// Of the data of an image whose points are to be found, or 0.
std::size_t subsequences_of(const StagedImage& image) {
  return image.interval_count == 0 ? 0 : subsequences_in(image.data_bytes);
}

// Of the points that the kernels find.
std::size_t point_bytes_of(const StagedImage& image) {
  const auto in_row = static_cast<std::size_t>(image.points_in_row), rows = static_cast<std::size_t>(image.scan_rows);
  return aligned((in_row * rows + 1) * sizeof(StagedPoint));
}

// What finish() writes of a search in data of at most so many bytes, and its points.
std::size_t search_bytes_of(const StagedImage& image, std::size_t data_bytes) {
  if (image.interval_count == 0) return 0;
  return (subsequences_in(data_bytes) / kFindsPerBlock + 1) * sizeof(StagedWork) + point_bytes_of(image);
}

// Of an image's data, and the zeros behind them, as they are kept.
std::size_t kept_data_bytes_of(const StagedImage& image) { return aligned(image.data_bytes + kStagedZeros); }

// Of the kernels that find points: see Runs in points.cu.
std::size_t run_bytes_of(std::size_t subsequences) {
  return aligned((subsequences * (3 + kPassedMax) + 1) * sizeof(FoundRun) + (subsequences + 1) * sizeof(unsigned));
}

ImageStager& thread_stager() {
  static thread_local ImageStager stager;
  return stager;
}

// Whether a GPU makes all of the geometry; `prepare` has the stager prepare the image.
template <typename Prepare>
bool stage(const JpegHeader& header, const Geometry& geometry, const SampleOptions& options, ImageStager& stager,
           StagedImage& image, Prepare prepare) {
  const PixelBox& window = geometry.window;
  return !options.fast && has_valid_boxes(header, geometry) &&
         prepare(to_region(geometry.crop), job_of(geometry.crop, geometry, options)) &&
         stage_steps(geometry.steps, options.pass_rule, window.height, window.width, options.height, options.width,
                     stager.steps(), image);
}

}  // namespace

bool stage_sample(ByteSource& source, const JpegHeader& header, const Geometry& geometry, const SampleOptions& options,
                  ImageStager& stager, StagedData data, NewFile new_file, StagedImage& image) {
  return stage(header, geometry, options, stager, image, [&](const Region& crop, const ResizeJob& job) {
    return stager.prepare(source, header, crop, job, options.index, data, new_file, image);
  });
}

Staging::Staging(std::uint8_t* memory, std::size_t size, std::size_t count, std::size_t views, NewFile new_file,
                 std::size_t most_samples, std::shared_ptr<FoundPoints> found, std::shared_ptr<KeptFiles> kept)
    : memory_(memory),
      size_(std::min(size, kMostBytes) / kAlignment * kAlignment),
      count_(count),
      views_(views),
      most_samples_(most_samples),
      new_file_(new_file),
      found_(std::move(found)),
      places_(count),
      kept_(std::move(kept)) {
  used_ = wanted_ = aligned(count * sizeof(StagedImage));
  if (used_ > size_) throw std::invalid_argument("staging memory must have room for its images' numbers");
  if (reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) {
    throw std::invalid_argument("staging memory must be aligned to 16 bytes");
  }
  if (views == 0 || count % views != 0) throw std::invalid_argument("each sample must have all views");
  if (views > 1) files_.resize(count / views);
  if (new_file == NewFile::find || kept_ != nullptr) sought_.resize(count);
  if (kept_ != nullptr) {
    known_.resize(count);
    to_keep_.resize(count);
  }
}

KeptFiles::Known Staging::kept(const Input& input) const {
  FileVersion version;
  if (kept_ == nullptr || kept_->empty() || input.data != nullptr || input.key ||
      !version_of(input.path.c_str(), version))
    return nullptr;
  return kept_->find(version);
}

bool Staging::add_kept(std::size_t number, const KeptFiles::Known& file, const Geometry& geometry,
                       const SampleOptions& options, std::size_t out) try {
  ImageStager& stager = thread_stager();
  StagedImage staged;
  std::size_t at = 0;
  const auto prepare = [&](const Region& crop, const ResizeJob& job) {
    return stager.prepare_kept(*file, crop, job, staged);
  };
  if (number / views_ >= most_samples_ || !fastload::stage(file->header, geometry, options, stager, staged, prepare) ||
      !take(stager, true, work_bytes_of(staged), false, staged, at)) {
    return false;
  }
  ByteSource none;
  stager.write(none, memory_ + at, at, staged);
  staged.out = out;
  staged.owner = static_cast<int>(number);
  known_[number] = file;
  image(number) = staged;
  places_[number] = Place::staged;
  kept_count_.fetch_add(1, std::memory_order_relaxed);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool Staging::add(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                  const SampleOptions& options, std::size_t out) try {
  if (found_ != nullptr && options.index != nullptr) found_->learn(*options.index);
  if (number / views_ >= most_samples_) return false;
  return views_ > 1 ? add_view(number, source, header, geometry, options, out)
                    : stage(number, source, header, geometry, options, out, StagedData::of_crop, number);
} catch (const std::bad_alloc&) {
  return false;
}

bool Staging::add_part(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                       const SampleOptions& options, std::size_t out, std::size_t owner) try {
  const StagedData data = owner == number ? StagedData::whole : StagedData::shared;
  return stage(number, source, header, geometry, options, out, data, owner);
} catch (const std::bad_alloc&) {
  return false;
}

// The first of a file's views stages the whole of it, for which others wait. One with other bytes has its own data.
bool Staging::add_view(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                       const SampleOptions& options, std::size_t out) {
  constexpr std::chrono::milliseconds kLook(10);  // how soon a stopped source is noticed
  File& file = files_[number / views_];
  JpegIndex::Key key;
  if (options.index == nullptr)
    return stage(number, source, header, geometry, options, out, StagedData::of_crop, number);
  if (!options.index->key_of(source, key)) return false;
  std::unique_lock<std::mutex> lock(mutex_);
  if (file.state == File::State::unknown) {
    file.state = File::State::in_progress;
    file.key = key;
    file.owner = number;
    lock.unlock();
    bool done = false;
    try {
      done = stage(number, source, header, geometry, options, out, StagedData::whole, number);
    } catch (const std::bad_alloc&) {
    }
    lock.lock();
    file.state = done ? File::State::staged : File::State::refused;
    staged_.notify_all();
    return done;
  }
  if (!(file.key == key)) {
    lock.unlock();
    return stage(number, source, header, geometry, options, out, StagedData::of_crop, number);
  }
  while (file.state == File::State::in_progress) {
    if (source.stopped()) return false;
    staged_.wait_for(lock, kLook);
  }
  if (file.state == File::State::refused) return false;
  const std::size_t owner = file.owner;
  lock.unlock();
  return stage(number, source, header, geometry, options, out, StagedData::shared, owner);
}

bool Staging::stage(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                    const SampleOptions& options, std::size_t out, StagedData data, std::size_t owner) {
  ImageStager& stager = thread_stager();
  StagedImage staged;
  const bool keeps =
      kept_ != nullptr && new_file_ != NewFile::refuse && data != StagedData::shared && kept_->wants_file(source);
  const NewFile new_file = keeps ? NewFile::keep : new_file_;
  if (!stage_sample(source, header, geometry, options, stager, data, new_file, staged)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_ += aligned(std::min(source.size(), kMostUnknown));
    return false;
  }
  const bool has_data = data != StagedData::shared && staged.scan_count == 0;  // that a code is needed for
  // The data are at most what write() may write.
  const std::size_t work = has_data ? work_bytes_of(staged) + search_bytes_of(staged, stager.bytes()) : 0;
  std::size_t at = 0;
  if (!take(stager, has_data, work + (keeps ? sizeof(StagedKeep) : 0), true, staged, at)) return false;
  if (!stager.write(source, memory_ + at, at, staged)) return false;
  if (keeps && staged.interval_count > 0) {
    to_keep_[number] = stager.to_keep(header, staged);
    to_keep_[number]->version = *source.version();
  }
  if (staged.interval_count > 0 && stager.is_new() && options.index != nullptr) {
    JpegIndex::Key now = stager.key();  // the file may have changed, unless it is in memory
    if (source.held_bytes() > 0 || options.index->key_of(source, now)) {
      if (now == stager.key()) sought_[number] = FoundPoints::File{now, stager.scan(), 0};
    }
  }
  staged.out = out;
  staged.owner = static_cast<int>(owner);
  if (stager.is_new() || staged.interval_count > 0) new_files_.fetch_add(1, std::memory_order_relaxed);
  image(number) = staged;
  places_[number] = Place::staged;
  return true;
}

bool Staging::take(const ImageStager& stager, bool has_codes, std::size_t kept, bool counts, StagedImage& image,
                   std::size_t& at) {
  const StagedCodes& codes = stager.codes();
  const std::size_t needed = stager.bytes();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = has_codes ? std::find(codes_.begin(), codes_.end(), codes) : codes_.begin();
  const bool is_new = has_codes && found == codes_.end();
  if (is_new) kept += sizeof codes;
  const bool fits = needed + kept <= size_ - used_ - reserved_;
  if (fits || counts) wanted_ += needed + kept;
  if (!fits) return false;
  image.code_set = static_cast<int>(found - codes_.begin());
  if (is_new) codes_.push_back(codes);
  at = used_;
  used_ += needed;
  reserved_ += kept;
  return true;
}

// Its data stays, which other views may need.
void Staging::remove(std::size_t number) {
  if (!has(number)) return;
  places_[number] = Place::removed;
  StagedImage& staged = image(number);
  staged.width = staged.height = staged.out_width = staged.out_height = 0;
  staged.vertical_first = staged.step_count = staged.step_images = 0;
  if (views_ == 1) staged = StagedImage{};
}

// Behind the views of a sample, or the parts of a file, that begin there.
std::size_t Staging::end_of_file(std::size_t begin) const {
  std::size_t end = begin + views_;
  while (end < count_ && has(end) && owner(end) < end) ++end;
  return end;
}

std::vector<Staging::Chunk> Staging::finish(std::size_t most_bytes) {
  for (std::size_t number = 0; number < count_; ++number) {
    if (places_[number] == Place::empty) image(number) = StagedImage{};
  }
  std::vector<Chunk> chunks;
  std::vector<StagedWork> work;
  struct Needs {
    std::size_t coefficients = 0, samples = 0, rgb = 0, between = 0, stepped = 0;
    std::size_t other() const { return samples + rgb + between + 2 * stepped; }
  };
  const auto needs_of = [](const StagedImage& staged) {
    const auto pixels = [](int height, int width) {
      return aligned(std::size_t{4} * static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
    };
    const auto blocks = static_cast<std::size_t>(blocks_of(staged));
    Needs needs;
    needs.coefficients = blocks * 64 * sizeof(std::int16_t);
    needs.samples = blocks * 64;
    needs.rgb = staged.vertical_first != 0 ? pixels(staged.height, staged.width) : 0;
    needs.between =
        staged.vertical_first != 0 ? pixels(staged.out_height, staged.width) : pixels(staged.height, staged.out_width);
    needs.stepped = staged.step_images > 0 ? aligned(std::size_t{4} * staged.step_pixels) : 0;
    return needs;
  };
  for (std::size_t begin = 0, end = 0; begin < count_; begin = end) {
    end = end_of_file(begin);
    std::size_t total = 0;
    bool is_empty = true;
    for (std::size_t number = begin; number < end; ++number) {
      const StagedImage& staged = image(number);
      const Needs needs = needs_of(staged);
      total += needs.coefficients + needs.other();
      is_empty = is_empty && staged.mcu_rows == 0 && staged.out_width == 0;
    }
    if (is_empty) continue;
    if (chunks.empty() || chunks.back().coefficient_bytes + chunks.back().other_bytes + total > most_bytes) {
      chunks.emplace_back();
      chunks.back().first_image = begin;
      chunks.back().work = work.size();
    }
    Chunk& chunk = chunks.back();
    chunk.images = end - chunk.first_image;
    const auto place = [](std::size_t& used, std::size_t bytes) {
      const auto at = static_cast<unsigned>(used / kAlignment);
      used += bytes;
      return at;
    };
    for (std::size_t number = begin; number < end; ++number) {
      StagedImage& staged = image(number);
      const Needs needs = needs_of(staged);
      staged.coefficients = place(chunk.coefficient_bytes, needs.coefficients);
      staged.samples = place(chunk.other_bytes, needs.samples);
      staged.rgb = place(chunk.other_bytes, needs.rgb);
      staged.between = place(chunk.other_bytes, needs.between);
      for (int i = 0; i < staged.step_images; ++i) staged.stepped[i] = place(chunk.other_bytes, needs.stepped);
      chunk.any_vertical_first |= staged.vertical_first != 0;
      chunk.any_steps |= staged.step_count > 0;
      chunk.widest = std::max(chunk.widest, staged.width);
      chunk.highest = std::max(chunk.highest, staged.height);
      chunk.widest_out = std::max(chunk.widest_out, staged.out_width);
      chunk.highest_out = std::max(chunk.highest_out, staged.out_height);
      if (staged.scan_count > 0) {
        chunk.block_rows = std::max(chunk.block_rows, staged.mcu_rows * (staged.down + staged.components - 1));
      }
      for (int thread = 0; thread < threads_of(staged); thread += kWorkThreads) {
        work.push_back({static_cast<int>(number), thread});
        ++chunk.work_items;
      }
    }
    for (std::size_t number = begin; number < end; ++number) {
      StagedImage& staged = image(number);
      if (staged.out_width > 0 && owner(number) != number) share(image(owner(number)), staged);
    }
  }
  search_.work = work.size();
  for (std::size_t number = 0; number < count_; ++number) {
    const std::size_t subsequences = subsequences_of(image(number));
    if (subsequences == 0) continue;
    ++search_.images;
    for (std::size_t first = 0; first <= subsequences; first += kFindsPerBlock) {
      work.push_back({static_cast<int>(number), static_cast<int>(first)});
    }
  }
  search_.work_items = work.size() - search_.work;
  std::copy(work.begin(), work.end(), reinterpret_cast<StagedWork*>(memory_ + used_));
  for (Chunk& chunk : chunks) chunk.work = used_ + chunk.work * sizeof(StagedWork);
  search_.work = used_ + search_.work * sizeof(StagedWork);
  used_ += work.size() * sizeof(StagedWork);
  codes_at_ = used_;
  for (const StagedCodes& codes : codes_) {
    std::memcpy(memory_ + used_, codes.data(), sizeof codes);
    used_ += sizeof codes;
  }
  keeps_at_ = used_;  // what they say is known later
  used_ += keeps_.size() * sizeof(StagedKeep);
  place_searches();
  place_keeps();
  return chunks;
}

std::vector<std::size_t> Staging::keepable() const {
  std::vector<std::size_t> numbers;
  for (std::size_t number = 0; number < to_keep_.size(); ++number) {
    if (!to_keep_[number] || !has(number)) continue;
    const FileVersion& version = to_keep_[number]->version;
    const auto is_same = [&](std::size_t other) { return to_keep_[other]->version == version; };
    if (std::none_of(numbers.begin(), numbers.end(), is_same)) numbers.push_back(number);
  }
  return numbers;
}

std::size_t Staging::keep_bytes() const {
  std::size_t bytes = 0;
  for (const std::size_t number : keepable()) {
    bytes += kept_data_bytes_of(image(number)) + point_bytes_of(image(number));
  }
  return bytes;
}

void Staging::keep_in(const KeptMemory& memory, std::uint64_t address) {
  keeps_ = keepable();
  for (const std::size_t number : keeps_) {
    const StagedImage& staged = image(number);
    KeptFile& file = *to_keep_[number];
    memory.place(file, address);
    file.data_bytes = staged.data_bytes;
    file.points = static_cast<unsigned>(kept_data_bytes_of(staged));
    address += file.points + point_bytes_of(staged);
  }
}

void Staging::place_keeps() {
  auto* to = reinterpret_cast<StagedKeep*>(memory_ + keeps_at_);
  for (const std::size_t number : keeps_) {
    const StagedImage& staged = image(number);
    const KeptFile& file = *to_keep_[number];
    *to++ = {file.address, staged.data, static_cast<unsigned>(file.points / kAlignment), staged.found_points,
             static_cast<unsigned>(point_bytes_of(staged) / kAlignment)};
  }
}

void Staging::keep(const std::int32_t* bad) {
  for (const std::size_t number : keeps_) {
    if (bad[number] == 0) kept_->keep(KeptFile(*to_keep_[number]));
  }
}

// Where the kernels write the runs and the points that they find: the latter behind what is used, where stage() has
// kept room for them.
void Staging::place_searches() {
  used_ = aligned(used_);
  std::size_t end = used_;
  for (std::size_t number = 0; number < count_; ++number) {
    StagedImage& staged = image(number);
    const std::size_t subsequences = subsequences_of(staged);
    if (subsequences == 0) continue;
    staged.runs = static_cast<unsigned>(search_.run_bytes / kAlignment);
    search_.run_bytes += run_bytes_of(subsequences);
    staged.found_points = static_cast<unsigned>(end);
    staged.points += staged.found_points;
    end += point_bytes_of(staged);
  }
  search_.point_bytes = search_.images == 0 ? 0 : end - used_;
}

std::shared_ptr<FoundPoints> Staging::found(const std::uint8_t* points, const std::int32_t* bad) const {
  std::vector<FoundPoints::File> files;
  for (std::size_t number = 0; number < sought_.size(); ++number) {
    const StagedImage& staged = image(number);
    if (!sought_[number] || staged.interval_count == 0 || bad[number] != 0) continue;
    files.push_back(*sought_[number]);
    files.back().first = staged.found_points - used_;
  }
  return std::make_shared<FoundPoints>(std::move(files), points, search_.point_bytes);
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
