#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

namespace {

using Flags = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

NewFile new_file_of(const std::string& name) {
  if (name == "refuse") return NewFile::refuse;
  if (name == "scan") return NewFile::scan;
  if (name == "find") return NewFile::find;
  throw nb::value_error("new_file must be 'refuse', 'scan' or 'find'");
}

}  // namespace

nb::tuple to_tuple(const Staging::Chunk& chunk) {
  return nb::make_tuple(chunk.first_image, chunk.images, chunk.work, chunk.work_items, chunk.coefficient_bytes,
                        chunk.other_bytes, chunk.block_rows, chunk.widest, chunk.highest, chunk.widest_out,
                        chunk.highest_out, chunk.any_vertical_first, chunk.any_steps);
}

nb::tuple to_tuple(const Staging::Search& search) {
  return nb::make_tuple(search.images, search.work, search.work_items, search.run_bytes, search.point_bytes);
}

void bind_staging(nb::module_& m) {
  nb::class_<FoundPoints>(m, "FoundPoints")
      .def("learn", &FoundPoints::learn, "index"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("done", &FoundPoints::done);
  nb::class_<KeptMemory>(m, "KeptMemory")
      .def(nb::init<std::uint64_t>(), "address"_a)
      .def_ro("address", &KeptMemory::address)
      .def_prop_ro("users", &KeptMemory::users);
  nb::class_<KeptFiles>(m, "KeptFiles")
      .def(nb::init<int>(), "settle_seconds"_a = KeptFiles::kSettleSeconds)
      .def("forget", &KeptFiles::forget, "memory"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_rw(
          "wants", [](const KeptFiles& self) { return self.wants.load(); },
          [](KeptFiles& self, bool wants) { self.wants = wants; })
      .def_prop_ro("totals", [](const KeptFiles& self) {
        const KeptFiles::Totals totals = self.totals();
        return nb::make_tuple(totals.files, totals.found, totals.missed);
      });
  nb::class_<BoundStaging>(m, "Staging")
      .def(
          "__init__",
          [](BoundStaging* self, StagingMemory memory, std::size_t images, std::size_t views,
             const std::string& new_file, std::optional<std::size_t> most_samples, std::shared_ptr<FoundPoints> found,
             std::shared_ptr<KeptFiles> kept) {
            auto staging = std::make_shared<Staging>(memory.data(), memory.size(), images, views, new_file_of(new_file),
                                                     most_samples.value_or(images), std::move(found), std::move(kept));
            new (self) BoundStaging{std::move(staging), std::move(memory)};
          },
          "memory"_a.noconvert(), "images"_a, "views"_a = 1, "new_file"_a = "refuse", "most_samples"_a = nb::none(),
          "found"_a = nb::none(), "kept"_a = nb::none())
      .def("has",
           [](const BoundStaging& self) {
             std::string flags(self.staging->size(), '\0');
             for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = static_cast<char>(self.staging->has(i));
             return nb::bytes(flags.data(), flags.size());
           })
      .def(
          "owner",
          [](const BoundStaging& self, std::size_t image) {
            if (image >= self.staging->size()) throw nb::index_error("image out of range");
            return self.staging->owner(image);
          },
          "image"_a)
      .def(
          "remove",
          [](BoundStaging& self, std::size_t image) {
            if (image >= self.staging->size()) throw nb::index_error("image out of range");
            self.staging->remove(image);
          },
          "image"_a)
      .def(
          "finish",
          [](BoundStaging& self, std::size_t most_bytes) {
            nb::list chunks;
            for (const Staging::Chunk& chunk : self.staging->finish(most_bytes)) chunks.append(to_tuple(chunk));
            return chunks;
          },
          "most_bytes"_a)
      .def_prop_ro("keep_bytes", [](const BoundStaging& self) { return self.staging->keep_bytes(); })
      .def(
          "keep_in",
          [](BoundStaging& self, const KeptMemory& memory, std::uint64_t address) {
            self.staging->keep_in(memory, address);
          },
          "memory"_a, "address"_a)
      .def_prop_ro(
          "keeps",
          [](const BoundStaging& self) { return nb::make_tuple(self.staging->keeps_at(), self.staging->keep_count()); })
      .def(
          "keep",
          [](BoundStaging& self, const Flags& bad) {
            if (bad.size() != self.staging->size()) throw nb::value_error("bad must be as large as the batch");
            self.staging->keep(bad.data());
          },
          "bad"_a.noconvert())
      .def_prop_ro("kept_files", [](const BoundStaging& self) { return self.staging->kept_files(); })
      .def_prop_ro("search", [](const BoundStaging& self) { return to_tuple(self.staging->search()); })
      .def(
          "found",
          [](const BoundStaging& self, const StagingMemory& points, const Flags& bad) {
            const Staging& staging = *self.staging;
            if (points.size() < staging.search().point_bytes || bad.size() != staging.size()) {
              throw nb::value_error("points and bad must be as large as the search and the batch");
            }
            return staging.found(points.data(), bad.data());
          },
          "points"_a.noconvert(), "bad"_a.noconvert())
      .def_prop_ro("used", [](const BoundStaging& self) { return self.staging->used(); })
      .def_prop_ro("new_files", [](const BoundStaging& self) { return self.staging->new_files(); })
      .def_prop_ro("wanted", [](const BoundStaging& self) { return self.staging->wanted(); })
      .def_prop_ro(
          "codes",
          [](const BoundStaging& self) { return nb::make_tuple(self.staging->codes_at(), self.staging->code_sets()); })
      .def_prop_ro_static("find_table_bytes", [](nb::handle) { return kFindTableBytes; })
      .def_prop_ro_static("table_bytes", [](nb::handle) { return kStagedTableBytes; })
      .def_prop_ro_static("bytes_per_image", [](nb::handle) { return sizeof(StagedImage); });
}

}  // namespace fastload
