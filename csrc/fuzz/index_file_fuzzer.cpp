// libFuzzer target: an index file is any bytes, as they are and with a header and ids that fit. What is found lies in
// the file, and its tag says that it was written for that JPEG file.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "index/index_file.h"

using namespace fastload;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kHeader = IndexFile::kHeaderBytes, kTag = 8, kEntry = 16;
constexpr int kKeys = 4;

void demand(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "demand failed: %s\n", what);
  std::abort();
}

std::uint64_t word(const Bytes& bytes, std::size_t at) {
  std::uint64_t value;
  std::memcpy(&value, &bytes[at], sizeof value);
  return value;
}

void put(Bytes& bytes, std::size_t at, std::uint64_t value) { std::memcpy(&bytes[at], &value, sizeof value); }

FileKey key(int number) { return {1000, static_cast<std::uint64_t>(number) * 0x9E3779B97F4A7C15}; }

const HashKey& secrets() {
  static const std::uint8_t bytes[HashKey::kBytes] = {1, 2, 3};
  static const HashKey made = HashKey::of(bytes);
  return made;
}

// Makes the header one of this version and key, and gives the last entries the ids and tags of known files.
void fit(Bytes& bytes) {
  std::memcpy(bytes.data(), "FLINDEX\2", 8);
  const std::uint64_t begin = std::min<std::uint64_t>(word(bytes, 16), bytes.size());
  const std::uint64_t end = std::min<std::uint64_t>(std::max(word(bytes, 24), begin), bytes.size());
  const int choice = bytes[40];  // of the tag, which is computed anyway
  if (choice % 8 != 1) {
    put(bytes, 8, (end - begin) / kEntry);
    put(bytes, 16, begin);
    put(bytes, 24, end);
    put(bytes, 32, bytes.size());
  }
  put(bytes, 40, secrets().tag_of(bytes.data(), 40));
  std::uint64_t ids[kKeys];
  for (int i = 0; i < kKeys; ++i) ids[i] = secrets().id_of(key(i));
  std::sort(ids, ids + kKeys);
  std::uint64_t entry = end;
  for (int i = kKeys; i-- > 0 && entry - begin >= kEntry;) {
    entry -= kEntry;
    if (entry >= kHeader) put(bytes, entry, ids[i]);
    if (choice % 8 < 6 && entry >= kHeader && begin >= kHeader + kTag) {
      const std::uint64_t room = begin - kHeader - kTag + 1, place = word(bytes, entry + 8) % room;
      put(bytes, entry + 8, (kHeader + place) << 24 | (kTag + word(bytes, entry + 8) / room % (room - place)));
    }
    const std::uint64_t at = word(bytes, entry + 8) >> 24, size = word(bytes, entry + 8) & 0xFFFFFF;
    if (at < kHeader || size < kTag || at > begin || size > begin - at) continue;
    for (int k = 0; k < kKeys; ++k) {
      if (secrets().id_of(key(k)) == ids[i]) put(bytes, at, secrets().tag_of(key(k), &bytes[at + kTag], size - kTag));
    }
  }
}

void check(const Bytes& bytes) {
  static const int descriptor = ::memfd_create("index", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  demand(::ftruncate(descriptor, 0) == 0 &&
             ::pwrite(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
         "no file");
  std::string error;
  const auto file = IndexFile::open(path.c_str(), secrets(), error);
  demand((file == nullptr) == !error.empty(), "no reason is given");
  if (file == nullptr) return;
  demand(file->bytes() <= bytes.size(), "the table is larger than the file");
  for (int k = 0; k < kKeys; ++k) {
    const Points points = file->find(key(k));
    if (points == nullptr) continue;
    const std::uint64_t tag = secrets().tag_of(key(k), points->data(), points->size());
    Bytes list(kTag);
    put(list, 0, tag);
    list.insert(list.end(), points->begin(), points->end());
    demand(std::search(bytes.begin(), bytes.end(), list.begin(), list.end()) != bytes.end(), "points of elsewhere");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, data + size);
  check(bytes);
  if (size < kHeader) return 0;
  fit(bytes);
  check(bytes);
  return 0;
}
