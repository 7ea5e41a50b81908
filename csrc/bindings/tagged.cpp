// Files that end with tags of a key.
#include "bindings/bindings.h"

#include "base/keyed_hash.h"
#include "base/source.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

nb::bytes make_tags(nb::handle data, const nb::bytes& key) {
  const HashKey with = key_from(key);
  const BytesView bytes(data);
  Tags tags;
  {
    nb::gil_scoped_release release;
    tags = tags_of(with, bytes.data(), bytes.size());
  }
  return nb::bytes(tags.data(), tags.size());
}

nb::object read_tagged(const nb::bytes& path, const nb::bytes& key) {
  const HashKey with = key_from(key);
  ByteSource source;
  Status status;
  {
    nb::gil_scoped_release release;
    status = source.open(path.c_str(), &with);
  }
  if (status != Status::ok) return nb::none();
  return nb::bytes(source.at(0, source.size()).data, source.size());
}

}  // namespace

HashKey key_from(const nb::bytes& key) {
  if (key.size() != HashKey::kBytes) throw nb::value_error("a key must have 48 bytes");
  return HashKey::of(static_cast<const std::uint8_t*>(key.data()));
}

void bind_tagged(nb::module_& m) {
  m.def("tags_of", &make_tags, "data"_a, "key"_a);
  m.def("read_tagged", &read_tagged, "path"_a, "key"_a);
}

}  // namespace fastload
