#include <string>
#include <utility>

#include "bindings/pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

void bind_staging(nb::module_& m) {
  nb::class_<BoundStaging>(m, "Staging")
      .def(
          "__init__",
          [](BoundStaging* self, StagingMemory memory, std::size_t images, std::size_t views, bool finds) {
            auto staging = std::make_shared<Staging>(memory.data(), memory.size(), images, views, finds);
            new (self) BoundStaging{std::move(staging), std::move(memory)};
          },
          "memory"_a.noconvert(), "images"_a, "views"_a = 1, "finds"_a = false)
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
            for (const Staging::Chunk& chunk : self.staging->finish(most_bytes)) {
              chunks.append(nb::make_tuple(chunk.first_image, chunk.images, chunk.work, chunk.work_items,
                                           chunk.coefficient_bytes, chunk.other_bytes, chunk.widest, chunk.highest,
                                           chunk.widest_out, chunk.highest_out, chunk.any_vertical_first,
                                           chunk.any_steps));
            }
            return chunks;
          },
          "most_bytes"_a)
      .def_prop_ro("search",
                   [](const BoundStaging& self) {
                     const Staging::Search& search = self.staging->search();
                     return nb::make_tuple(search.images, search.work, search.work_items, search.run_bytes,
                                           search.point_bytes);
                   })
      .def(
          "learn",
          [](const BoundStaging& self, std::size_t image, const StagingMemory& found, JpegIndex& index) {
            if (image >= self.staging->size()) throw nb::index_error("image out of range");
            if (found.size() < self.staging->search().point_bytes) {
              throw nb::value_error("found must be as large as the search says");
            }
            const nb::gil_scoped_release unlocked;
            return self.staging->learn(image, found.data(), index);
          },
          "image"_a, "found"_a.noconvert(), "index"_a)
      .def_prop_ro("used", [](const BoundStaging& self) { return self.staging->used(); })
      .def_prop_ro("wanted", [](const BoundStaging& self) { return self.staging->wanted(); })
      .def_prop_ro(
          "codes",
          [](const BoundStaging& self) { return nb::make_tuple(self.staging->codes_at(), self.staging->code_sets()); })
      .def_prop_ro_static("find_table_bytes", [](nb::handle) { return kFindTableBytes; })
      .def_prop_ro_static("table_bytes", [](nb::handle) { return kStagedTableBytes; })
      .def_prop_ro_static("bytes_per_image", [](nb::handle) { return sizeof(StagedImage); });
}

}  // namespace fastload
