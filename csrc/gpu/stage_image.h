// Prepares one JPEG file for the CUDA kernels that decode it (gpu/kernels/decode.cu). Knows neither Python nor
// CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/source.h"
#include "gpu/kept_files.h"
#include "gpu/kernels/decode_layout.h"
#include "index/jpeg_index.h"
#include "jpeg/baseline.h"
#include "jpeg/decoder.h"
#include "jpeg/entropy/scan_points.h"
#include "jpeg/progressive/decoder.h"
#include "jpeg/region_pixels.h"
#include "resample/axis_tables.h"

namespace fastload {

// What to prepare of a file's data.
enum class StagedData {
  of_crop,
  whole,   // for other crops of the file, too
  shared,  // nothing: another image has it
};

// What is done with a file whose points the index does not know.
enum class NewFile {
  refuse,  // threads decode it
  scan,    // its points are noted in the index first, without making pixels
  find,    // kernels find its points
  keep,    // the same, even if the index knows them, as they are to be kept with the data
};

// Prepares one image at a time, in two steps, so that it is written once, where it stays. Not thread-safe.
class ImageStager {
 public:
  // Finds what the kernels need to decode and resize as `job` says, whose source is `crop` of the image and is resized
  // as a whole; `image` is complete but for the offsets. False if the file has to be decoded here: the core does not
  // decode it, or refuses new files and this is one. `index` may be null: then all files are new, but progressive ones,
  // whose coefficients are decoded here and never looked up. Throws std::bad_alloc.
  bool prepare(ByteSource& source, const JpegHeader& header, const Region& crop, const ResizeJob& job, JpegIndex* index,
               StagedData data, NewFile new_file, StagedImage& image);
  // The same for a file whose data are in the device's memory, but for what write() adds.
  bool prepare_kept(const KeptFile& file, const Region& crop, const ResizeJob& job, StagedImage& image);
  // What there is to keep of the prepared image's file, but for what its data are and where.
  KeptFile to_keep(const JpegHeader& header, const StagedImage& image) const;
  // Whether the prepared image's file is new.
  bool is_new() const { return is_new_; }
  // The file's key in the index, if there is one.
  const JpegIndex::Key& key() const { return key_; }
  const Scan& scan() const { return baseline_.scan; }
  // Of the prepared image, without a number.
  const StagedCodes& codes() const { return codes_; }
  // What else write() writes, where image.steps will say. prepare() empties it.
  std::vector<std::uint8_t>& steps() { return steps_; }
  // Most bytes that write() writes, a multiple of 16.
  std::size_t bytes() const;
  // Writes the prepared image to `memory`, which is aligned to 16 bytes and begins at byte `at` of the batch. False if
  // its data is not sound; the file then has to be decoded here.
  bool write(ByteSource& source, std::uint8_t* memory, std::size_t at, StagedImage& image);

 private:
  bool prepare_pixels(const Region& crop, const ResizeJob& job, StagedImage& image);
  bool prepare_scan(ByteSource& source, const JpegHeader& header, const Region& region, JpegIndex* index,
                    NewFile new_file, StagedImage& image);
  std::vector<std::uint8_t> scan_for_points(ByteSource& source);
  bool prepare_coefficients(ByteSource& source, const JpegHeader& header, const Region& region, StagedImage& image);
  bool prepare_to_find(ByteSource& source, StagedImage& image);
  bool prepare_rows(ByteSource& source, const CodedPoints& known, const McuWindow& mcus);
  bool write_row(ByteSource& source, const ScanPoint* point, const std::uint8_t* begin, bool is_last, StagedPoint* to);
  bool write_data(ByteSource& source, std::size_t from, std::size_t to);
  bool write_scan(ByteSource& source, const std::uint8_t* begin, unsigned* ends);
  std::uint8_t* write_coefficients(std::uint8_t* memory, std::size_t at, StagedImage& image) const;

  HuffmanTables tables_;
  BaselineHeader baseline_;
  ProgressiveDecoder progressive_;
  AxisTables axes_;
  StagedCodes codes_;
  std::vector<std::uint8_t> steps_;
  // Row by row, where its segments begin, at points and half points, and the last one ends.
  std::vector<ScanPoint> points_;
  std::size_t segments_ = 0;  // of each row
  bool open_end_ = false;     // no point says where the last row ends
  JpegIndex::Key key_;
  bool is_new_ = false;
  std::size_t intervals_ = 0;   // of a scan whose points are to be found; 0: they are known
  std::size_t data_bytes_ = 0;  // at most
  // Of a progressive file, or 0.
  std::size_t coefficient_bytes_ = 0;
  std::uint8_t* data_ = nullptr;  // behind the data that is written
};

}  // namespace fastload
