#include "index/index_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fastload {
namespace {

constexpr std::uint8_t kMagic[8] = {'F', 'L', 'I', 'N', 'D', 'E', 'X', 2};
constexpr std::size_t kTagBytes = 8, kEntryBytes = 16;
constexpr int kLengthBits = 24;

// All bytes or none.
bool read_at(int descriptor, std::uint64_t offset, std::uint8_t* to, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::pread(descriptor, to, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<std::uint64_t>(count);
    to += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

IndexFile::~IndexFile() { ::close(descriptor_); }

std::shared_ptr<IndexFile> IndexFile::open(const char* path, const HashKey& secrets, std::string& error) {
  int descriptor;
  do {
    descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    error = std::strerror(errno);
    return nullptr;
  }
  std::shared_ptr<IndexFile> file(new IndexFile(descriptor, secrets));
  return file->read_table(error) ? file : nullptr;
}

bool IndexFile::read_table(std::string& error) {
  struct stat about;
  std::uint8_t header[kHeaderBytes];
  if (::fstat(descriptor_, &about) != 0 || !S_ISREG(about.st_mode) || !read_at(descriptor_, 0, header, sizeof header) ||
      std::memcmp(header, kMagic, sizeof kMagic - 1) != 0) {
    error = "not an index of JPEG files";
    return false;
  }
  if (header[7] != kMagic[7]) {
    error = "written by another version of fastload";
    return false;
  }
  if (secrets_.tag_of(header, kHeaderBytes - kTagBytes) != little_endian(header + kHeaderBytes - kTagBytes)) {
    error = "made with another key, on another machine or by another user, or damaged";
    return false;
  }
  const std::uint64_t count = little_endian(header + 8), begin = little_endian(header + 16),
                      end = little_endian(header + 24), size = little_endian(header + 32);
  if (size != static_cast<std::uint64_t>(about.st_size) || begin > end || end > size ||
      count != (end - begin) / kEntryBytes) {
    error = "cut short, or damaged";
    return false;
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * kEntryBytes);
  if (!read_at(descriptor_, begin, bytes.data(), bytes.size())) {
    error = "cut short, or damaged";
    return false;
  }
  table_.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < table_.size(); ++i) {
    table_[i] = {little_endian(&bytes[kEntryBytes * i]), little_endian(&bytes[kEntryBytes * i + 8])};
  }
  return true;
}

Points IndexFile::find(const FileKey& key) const try {
  const std::uint64_t id = secrets_.id_of(key);
  const auto found = std::lower_bound(table_.begin(), table_.end(), id,
                                      [](const Entry& entry, std::uint64_t wanted) { return entry.id < wanted; });
  if (found == table_.end() || found->id != id) return nullptr;
  const auto size = static_cast<std::size_t>(found->place & ((1u << kLengthBits) - 1));
  if (size < kTagBytes) return nullptr;
  std::uint8_t tag[kTagBytes];
  auto points = std::make_shared<std::vector<std::uint8_t>>(size - kTagBytes);
  const std::uint64_t at = found->place >> kLengthBits;
  if (!read_at(descriptor_, at, tag, sizeof tag) ||
      !read_at(descriptor_, at + kTagBytes, points->data(), points->size()) ||
      secrets_.tag_of(key, points->data(), points->size()) != little_endian(tag)) {
    return nullptr;
  }
  return points;
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace fastload
