// What decode threads write of the JPEG files of a batch, and the kernels in decode.cu read. Numbers only: it is
// compiled by the host's compiler and by NVRTC, which may lack headers.
#pragma once

namespace fastload {

constexpr int kStagedComponents = 3;
constexpr int kStagedCodes = 4;                  // two of DC symbols, then two of AC symbols
constexpr int kStagedCodeBytes = 272;            // 16 counts, 256 symbols
constexpr int kStagedTableBytes = 20000;         // of device memory for the tables made of an image's codes
constexpr unsigned kStagedZeros = 32;            // bytes that kernels may read behind an image's data
constexpr int kSegmentMcus = 4;                  // between two points of a row
constexpr int kStagedWidth = 8192;               // pixels of a region's row, at most
constexpr unsigned kNoStagedPoint = 0xFFFFFFFF;  // of the last row of an image, whose end no point names

// Of files whose points are not known, and are found by the kernels in points.cu.
constexpr unsigned kSubsequenceBits = 1024;  // of the data, which is cut into as many pieces
constexpr unsigned kFindsPerBlock = 256;     // subsequences of a block of threads
constexpr int kFindTableBytes = 12848;       // of device memory for the tables made of an image's codes
constexpr unsigned kLinkMax = 256;           // subsequences in which a decoder synchronizes, or the file is bad
constexpr unsigned kPassedMax = 8;           // ends of subsequences that a run notes on its way

// Of progressive files, whose coefficients decode threads have decoded.
constexpr int kStagedScans = 32;  // first scans of AC coefficients
constexpr int kStagedPlanes = 4;  // bits that refinements add

// Where a segment begins. Each row of MCUs has one for each segment, and one behind the last. Rows begin at a multiple
// of two segments; predictors of odd segments are not known.
struct StagedPoint {
  unsigned bit;  // of the image's data
  short predictors[kStagedComponents];
  unsigned short
      stuffed;  // if it was found: the data's bytes FF since the point before, which zeros follow in the file
};

// One image, or none: then all numbers are 0. Offsets are bytes from the batch's beginning, multiples of 16.
//
// An axis is, for each of its `count` positions, the first source pixel in the region and the number of taps; then all
// first weights, all second ones and so on.
struct StagedImage {
  unsigned data, data_bytes;  // without stuffing and restart markers; zeros follow
  unsigned points, x_axis, y_axis;
  int code_set;  // which of the batch's sets of codes; images may share it
  int owner;     // the image whose data this is: maybe another view of the same file, which is decoded once
  int components, across, down;  // the latter two: luma blocks per MCU
  int mcu_column, mcu_columns;   // the MCUs to decode
  int mcu_row, mcu_rows;
  int scan_columns;               // MCUs per row of the scan
  int restart_interval;           // MCUs; 0: none
  int points_in_row;              // distance of two rows' points
  int image_width, image_height;  // pixels
  int left, top, width, height;   // the pixels to make of them
  int out_width, out_height;
  int x_taps, y_taps;  // of the position with the most
  int vertical_first, flip_vertical;
  unsigned long long out;  // byte of the batch's pixels where the result begins; rows have no gaps
  int dc[kStagedComponents], ac[kStagedComponents];  // codes
  unsigned short quantization[kStagedComponents][64];
  // Steps on the result, if any: `steps` is where they begin, and intermediate images have up to `step_pixels`. The
  // last one makes what goes to `out`.
  unsigned steps, step_pixels;
  int step_count, step_images;  // the latter 1 or 2, or 0 without steps
  // If its points are to be found: the ends of its restart intervals, bytes of the data; the scan's rows of MCUs.
  unsigned intervals, interval_count;
  int scan_rows;
  // If it is progressive: `data` are the values of its first scans of AC coefficients, scan by scan and row by row of
  // blocks, as 4 bytes: the block's column * 64 + the zigzag index, and in the upper half the coefficient. `row_ends`
  // are one 0, then the number of values up to the end of each row. Of each component, row by row of its blocks: the DC
  // coefficients as 2 bytes; then 8 bytes per block, whose bit 63 - k is the coefficient k's: first whether it is
  // negative, if it has no value; then the bits that are added to absolute values, from the lowest on.
  int scan_count;  // 0: it is not
  unsigned char scan_components[kStagedScans];
  unsigned row_ends;
  unsigned dc_values[kStagedComponents], planes[kStagedComponents];
  int plane_count[kStagedComponents];
  // The address of its file's data if that is kept in the device's memory, else 0; `points` are behind it.
  unsigned long long kept;
  // Set for all images at once: where the points that are found go, from the whole scan's first on.
  unsigned found_points;
  // Set for all images at once: where intermediate results go, in units of 16 bytes.
  unsigned runs;
  unsigned coefficients, samples, rgb, between;
  unsigned stepped[2];
};

// What a decoder has done in a run over an image's data; or where one begins, and what those before it have done.
struct FoundRun {
  unsigned bit, state;          // where it has ended; the block of the MCU that comes next, or kFinishedState
  unsigned blocks;              // that have ended
  int sums[kStagedComponents];  // of DC differences since the last restart
  unsigned link;                // the subsequence at whose end it was in the state of that one's own decoder
  unsigned restarted : 1;       // whether there was a restart; of a beginning, whether it is on the chain
  unsigned passed : 31;         // how many ends of subsequences it has noted on its way
};
constexpr unsigned kFinishedState = 0xFFFFFFFF;  // at the end of the data

// What is to be kept of an image whose points were found: `words` of 16 bytes each, one behind the other.
struct StagedKeep {
  unsigned long long to;  // address
  unsigned data, data_words;
  unsigned points, point_words;
};

// A block of threads of the first kernel: each decodes a segment of one image, from the upper left on. Rows have an
// even number; the last one may have nothing to do.
struct StagedWork {
  int image;
  int thread;  // of the image: the block's first
};

}  // namespace fastload
