#include "gpu/found_points.h"

#include <algorithm>
#include <utility>

#include "jpeg/entropy/scan_points.h"

namespace fastload {
namespace {

// Lists a scan's points as the index keeps them. Empty if they are not in order.
std::vector<std::uint8_t> coded(const StagedPoint* found, const Scan& scan) {
  static thread_local PointRecorder recorder;
  recorder.begin(scan, CodedPoints());
  const std::uint64_t mcus = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  std::uint64_t stuffed = 0, before = 0;
  for (std::uint64_t mcu = 0; mcu < mcus; mcu = recorder.next_mcu(), ++found) {
    if (found->bit < before) return {};
    before = found->bit;
    stuffed += found->stuffed;
    const std::uint64_t restarts = scan.restart_interval == 0 ? 0 : mcu / scan.restart_interval;
    ScanPoint point;
    point.mcu = mcu;
    point.byte = static_cast<std::size_t>(scan.data_at + found->bit / 8 + stuffed + 2 * restarts);
    point.bit = static_cast<int>(found->bit % 8);
    std::copy(std::begin(found->predictors), std::end(found->predictors), point.predictors);
    recorder.add(point);
  }
  return recorder.encode(scan.mcu_rows);
}

}  // namespace

void FoundPoints::learn(JpegIndex& index) {
  if (done()) return;
  const std::size_t number = next_.fetch_add(1, std::memory_order_relaxed);
  if (number >= files_.size()) return;
  const File& file = files_[number];
  if (!PointRecorder::takes(file.scan)) return;
  auto points = coded(reinterpret_cast<const StagedPoint*>(points_.data() + file.first), file.scan);
  if (!points.empty()) index.keep(file.key, std::move(points));
}

}  // namespace fastload
