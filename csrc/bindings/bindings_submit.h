// What Python gives to be decoded, converted for the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/bindings_batch.h"

namespace fastload {

// A bytes-like object is the file's contents or, with `arrays`, pixels if it has their shape; anything else is a path;
// a str with an attribute `tagged_with` is that of a file which must have been tagged with this key.
Input input_from(nanobind::handle object, std::vector<BytesView>& views, bool arrays = false);
void require_layout(const Images& out, std::size_t count);  // throws a ValueError
SampleOptions options_from(const Images& out, const std::string& filter, const std::string& pass_rule,
                           std::uint64_t max_pixels, bool fast);
// (crop, output size, window, flips): top, left, height, width; height, width; top, left, height, width; two flags.
Geometry geometry_from(const std::int32_t* g);

void bind_submit(nanobind::class_<BoundPool>& pool);

}  // namespace fastload
