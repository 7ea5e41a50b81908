#include "base/source.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

namespace fastload {
namespace {

FileVersion version_of(const struct stat& about) {
#if defined(__APPLE__)
  return {about.st_dev, about.st_ino, about.st_size, about.st_mtimespec, about.st_ctimespec};
#else
  return {about.st_dev, about.st_ino, about.st_size, about.st_mtim, about.st_ctim};
#endif
}

// See ByteSource::tells_changes(); of an open file.
bool tells_changes_of([[maybe_unused]] int descriptor, [[maybe_unused]] dev_t device) {
#if defined(__linux__)
  static thread_local struct {
    bool known = false, tells = false;
    dev_t device = 0;
  } last;
  struct statfs about;
  if (last.known && last.device == device) return last.tells;
  if (::fstatfs(descriptor, &about) != 0) return false;
  constexpr std::uint64_t kXfs = 0x58465342, kZfs = 0x2FC12FC1, kBcachefs = 0xCA451A4E;
  const auto type = static_cast<std::uint32_t>(about.f_type);
  const bool tells = type == EXT4_SUPER_MAGIC || type == kXfs || type == BTRFS_SUPER_MAGIC || type == TMPFS_MAGIC ||
                     type == F2FS_SUPER_MAGIC || type == OVERLAYFS_SUPER_MAGIC || type == kZfs || type == kBcachefs;
  last.known = true;
  last.tells = tells;
  last.device = device;
  return tells;
#else
  return false;
#endif
}

bool same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

bool FileVersion::has_data_of(const FileVersion& other) const {
  return device == other.device && inode == other.inode && size == other.size && same(modified, other.modified);
}

bool FileVersion::operator==(const FileVersion& other) const {
  return has_data_of(other) && same(changed, other.changed);
}

bool version_of(const char* path, FileVersion& version) {
  struct stat about;
  if (::stat(path, &about) != 0 || !S_ISREG(about.st_mode)) return false;
  version = version_of(about);
  return true;
}

ByteSource& ByteSource::operator=(ByteSource&& other) noexcept {
  close();
  data_ = std::exchange(other.data_, nullptr);
  size_ = other.size_;
  buffer_ = std::move(other.buffer_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  chunk_at_ = other.chunk_at_;
  known_ = other.known_;
  opened_at_ = other.opened_at_;
  tells_changes_ = other.tells_changes_;
  version_ = other.version_;
  stop_ = other.stop_;
  failure_ = other.failure_;
  error_number_ = other.error_number_;
  return *this;
}

void ByteSource::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Buffer ByteSource::take_buffer() {
  close();
  if (data_ == buffer_.data()) data_ = nullptr;
  return std::exchange(buffer_, Buffer());
}

Status ByteSource::fail(int error_number) {
  error_number_ = error_number;
  return failure_ = Status::unreadable;
}

Status ByteSource::open(const char* path, const HashKey* key) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer. No effect on regular files.
  do {
    descriptor_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  const Status status = examine();
  if (status != Status::ok) {
    close();
    return status;
  }
  if (key == nullptr && size_ > kWholeFileBytes) {
    buffer_.resize(kChunkBytes);
    buffer_.truncate(0);
    return Status::ok;
  }
  if (key == nullptr) {
    buffer_.resize(size_);
    fill(0, size_);
  } else if (!read_tagged(*key) && failure_ == Status::ok) {
    fail(EBADMSG);
  }
  close();
  static const std::uint8_t nothing = 0;
  if (failure_ == Status::ok) data_ = size_ > 0 ? buffer_.data() : &nothing;
  return failure_;
}

// Checks that the open file is a regular file, and the same as before.
Status ByteSource::examine() {
  struct stat about;
  if (descriptor_ < 0 || ::fstat(descriptor_, &about) != 0) return fail(errno);
  if (S_ISDIR(about.st_mode)) return fail(EISDIR);
  if (!S_ISREG(about.st_mode)) return Status::unsupported;
  const FileVersion found = version_of(about);
  if (known_ && !found.has_data_of(version_)) return Status::corrupt;
  version_ = found;
  known_ = true;
  opened_at_ = ::time(nullptr);
  tells_changes_ = tells_changes_of(descriptor_, about.st_dev);
  size_ = static_cast<std::size_t>(about.st_size);
  return Status::ok;
}

// Reads the data of a file that was tagged with the key; false if it was not. Nothing is allocated for others.
bool ByteSource::read_tagged(const HashKey& key) {
  Tags tags;
  const std::size_t data = size_ - std::min(size_, kTagsBytes);
  if (read(data, tags.data(), kTagsBytes) != kTagsBytes || !is_tagged(key, tags, data)) return false;
  buffer_.resize(data);
  fill(0, data);
  size_ = buffer_.size();
  return failure_ == Status::ok && tags == tags_of(key, buffer_.data(), size_);
}

// The bytes that could be read from `offset` on, up to `wanted`.
std::size_t ByteSource::read(std::size_t offset, std::uint8_t* to, std::size_t wanted) {
  std::size_t got = 0;
  while (got < wanted) {
    const ssize_t count = ::pread(descriptor_, to + got, wanted - got, static_cast<off_t>(offset + got));
    if (count == 0) break;  // the file has shrunk
    if (count > 0) {
      got += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      fail(errno);
      break;
    }
  }
  return got;
}

// Reads `wanted` bytes from `offset` on into the buffer, which must be large enough.
void ByteSource::fill(std::size_t offset, std::size_t wanted) {
  const std::size_t got = read(offset, buffer_.data(), wanted);
  chunk_at_ = offset;
  buffer_.truncate(got);
  if (got < wanted && failure_ == Status::ok) size_ = offset + got;
}

Span ByteSource::at(std::size_t offset, std::size_t count) {
  if (failure_ == Status::ok && stopped()) failure_ = Status::cancelled;
  if (failure_ != Status::ok || offset >= size_) return {};
  if (data_ != nullptr) return {data_ + offset, size_ - offset};
  const std::size_t needed = std::min(count, size_ - offset);
  if (offset < chunk_at_ || offset + needed > chunk_at_ + buffer_.size()) {
    buffer_.resize(kChunkBytes);  // within its capacity
    fill(offset, std::min(kChunkBytes, size_ - offset));
    if (failure_ != Status::ok) return {};
  }
  const std::size_t skipped = offset - chunk_at_;
  return {buffer_.data() + skipped, buffer_.size() - skipped};
}

}  // namespace fastload
