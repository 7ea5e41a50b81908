// The memory in which decode threads prepare a batch's files for a GPU. Knows neither Python nor CUDA.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/found_points.h"
#include "gpu/kept_files.h"
#include "gpu/kernels/decode_layout.h"
#include "gpu/stage_image.h"
#include "sample/sample.h"

namespace fastload {

// Prepares the image for kernels on a GPU, if they make all of `geometry`: see ImageStager::prepare() and
// stage_steps().
bool stage_sample(ByteSource& source, const JpegHeader& header, const Geometry& geometry, const SampleOptions& options,
                  ImageStager& stager, StagedData data, NewFile new_file, StagedImage& image);

// One batch: first a StagedImage for each, then what these refer to, the StagedWork, and the sets of codes.
// Thread-safe.
class Staging {
 public:
  // A part of the batch whose intermediate results take up to a limit, or one image.
  struct Chunk {
    std::size_t first_image = 0, images = 0;
    std::size_t work = 0;  // byte of the batch where its StagedWork begins
    std::size_t work_items = 0;
    std::size_t coefficient_bytes = 0, other_bytes = 0;  // of intermediate results
    int block_rows = 0;                                  // of all components: most of a progressive image
    bool any_vertical_first = false, any_steps = false;
    // Of its images' regions and results, pixels.
    int widest = 0, highest = 0, widest_out = 0, highest_out = 0;
  };

  // `memory` must stay valid while threads use it. Each `views` images in a row may be views of one file, which is then
  // decoded once. Samples behind the first `most_samples` are refused.
  // If `found` is not null, each add() also brings the points of one more file of an earlier batch to the index.
  // With `kept`, the kernels use what is kept of files, and new ones of it are staged as a whole if it wants them.
  Staging(std::uint8_t* memory, std::size_t size, std::size_t count, std::size_t views = 1,
          NewFile new_file = NewFile::refuse, std::size_t most_samples = static_cast<std::size_t>(-1),
          std::shared_ptr<FoundPoints> found = nullptr, std::shared_ptr<KeptFiles> kept = nullptr);

  // What is kept of the input's file as it is now; null if nothing is. Never throws.
  KeptFiles::Known kept(const Input& input) const;
  // As add(), of such a file.
  bool add_kept(std::size_t number, const KeptFiles::Known& file, const Geometry& geometry,
                const SampleOptions& options, std::size_t out);

  // Prepares one image, whose result begins at byte `out` of the batch's pixels. False if it has to be decoded here:
  // see stage_image(), or there is no room. Never throws.
  bool add(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
           const SampleOptions& options, std::size_t out);
  // The same for one of several images in a row that are parts of one file, whose data is staged with `owner`, an
  // earlier one of them or the image itself.
  bool add_part(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                const SampleOptions& options, std::size_t out, std::size_t owner);
  bool has(std::size_t number) const { return places_[number] == Place::staged; }
  // The image whose data an image is decoded from.
  std::size_t owner(std::size_t number) const { return static_cast<std::size_t>(image(number).owner); }
  // Only once no thread adds images: takes one out again.
  void remove(std::size_t number);
  // Only once no thread adds images, and only once: divides the batch into chunks of at most `most_bytes` of
  // intermediate results.
  std::vector<Chunk> finish(std::size_t most_bytes);

  // Only once no thread adds images: how much device memory it takes to keep what can be.
  std::size_t keep_bytes() const;
  // Before finish(): keeps it there, from that address on, which is a multiple of 16.
  void keep_in(const KeptMemory& memory, std::uint64_t address);
  // Once finished, of what is to be kept: where the StagedKeeps begin, and their number.
  std::size_t keeps_at() const { return keeps_at_; }
  std::size_t keep_count() const { return keeps_.size(); }
  // Once the kernels have run: lets later batches use it, but not images whose `bad` is not 0. Throws std::bad_alloc.
  void keep(const std::int32_t* bad);
  // How many samples are of files that were kept before.
  std::size_t kept_files() const { return kept_count_.load(std::memory_order_relaxed); }

  // Once finished: where the sets of codes begin, and their number.
  std::size_t codes_at() const { return codes_at_; }
  std::size_t code_sets() const { return codes_.size(); }

  // Once finished, of the images whose points are to be found.
  struct Search {
    std::size_t images = 0;
    std::size_t work = 0, work_items = 0;  // byte of the batch where their StagedWork begins
    std::size_t run_bytes = 0;             // of intermediate results
    std::size_t point_bytes = 0;           // behind the batch's used() bytes
  };
  const Search& search() const { return search_; }
  // Once the kernels have run: what the index may learn. `points` are the search's; of images whose `bad` is not 0
  // nothing is learnt. Throws std::bad_alloc.
  std::shared_ptr<FoundPoints> found(const std::uint8_t* points, const std::int32_t* bad) const;

  std::size_t size() const { return count_; }
  std::size_t used() const;
  // The bytes that all images together would have taken; files that are not staged, maybe as the index does not know
  // them yet, count with their sizes.
  std::size_t wanted() const;
  // Of how many of the files that are staged the points are to be found, or the index did not know them.
  std::size_t new_files() const { return new_files_.load(std::memory_order_relaxed); }

 private:
  // Whether there is an image in its place. Beside them: memory that other threads have written is slow to look at.
  enum class Place : std::uint8_t { empty, staged, removed };
  // What is known of the file that several images are views of.
  struct File {
    enum class State { unknown, in_progress, staged, refused };
    State state = State::unknown;
    JpegIndex::Key key;
    std::size_t owner = 0;
  };

  StagedImage& image(std::size_t number) const { return reinterpret_cast<StagedImage*>(memory_)[number]; }
  bool add_view(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                const SampleOptions& options, std::size_t out);
  bool stage(std::size_t number, ByteSource& source, const JpegHeader& header, const Geometry& geometry,
             const SampleOptions& options, std::size_t out, StagedData data, std::size_t owner);
  std::size_t end_of_file(std::size_t begin) const;
  // Takes memory for what the stager writes, and keeps `kept` bytes free. False if there is none; unless `counts`, it
  // is not wanted then.
  bool take(const ImageStager& stager, bool has_codes, std::size_t kept, bool counts, StagedImage& image,
            std::size_t& at);
  // The images that can be kept, one of each file.
  std::vector<std::size_t> keepable() const;
  void place_keeps();
  void place_searches();

  std::uint8_t* const memory_;
  const std::size_t size_, count_, views_, most_samples_;
  const NewFile new_file_;
  const std::shared_ptr<FoundPoints> found_;  // of an earlier batch, or null
  std::vector<Place> places_;                 // of each image
  mutable std::mutex mutex_;
  std::condition_variable staged_;  // a file is not in progress any more
  std::vector<File> files_;         // if there are several views
  std::size_t used_ = 0, wanted_ = 0;
  std::size_t reserved_ = 0;  // bytes for finish()
  std::vector<StagedCodes> codes_;
  std::size_t codes_at_ = 0;
  std::atomic<std::size_t> new_files_{0};
  Search search_;
  std::vector<std::optional<FoundPoints::File>> sought_;  // of each image, if points may be found
  const std::shared_ptr<KeptFiles> kept_;                 // or null; then the next two are empty
  std::vector<KeptFiles::Known> known_;                   // of each image, what it is made of
  std::vector<std::optional<KeptFile>> to_keep_;          // of each image
  std::vector<std::size_t> keeps_;                        // images; those that are kept in fact
  std::size_t keeps_at_ = 0;
  std::atomic<std::size_t> kept_count_{0};
};

}  // namespace fastload
