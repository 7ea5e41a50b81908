#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

namespace fastload {
namespace {

class FileDescriptor {
 public:
  // O_NONBLOCK: opening a named pipe must not wait for its writer. It changes nothing for a regular file.
  explicit FileDescriptor(const char* path) {
    do {
      descriptor_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor_ < 0 && errno == EINTR);
  }
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace

void Buffer::resize(std::size_t size) {
  if (size > capacity_) {
    constexpr std::size_t step = 1 << 16;
    const std::size_t capacity = (size + step - 1) / step * step;
    data_.reset();
    capacity_ = size_ = 0;
    data_.reset(new std::uint8_t[capacity]);
    capacity_ = capacity;
  }
  size_ = size;
}

void Buffer::shrink(std::size_t bytes) {
  if (capacity_ <= bytes) return;
  data_.reset();
  capacity_ = size_ = 0;
}

Status read_file(const char* path, Buffer& buffer, int& error_number) {
  error_number = 0;
  const FileDescriptor file(path);
  struct stat about;
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) {
    error_number = errno;
    return Status::unreadable;
  }
  if (S_ISDIR(about.st_mode)) {
    error_number = EISDIR;
    return Status::unreadable;
  }
  if (!S_ISREG(about.st_mode) || static_cast<std::uint64_t>(about.st_size) > kMaxFileBytes) return Status::unsupported;
  const auto wanted = static_cast<std::size_t>(about.st_size);
  buffer.resize(wanted);
  std::size_t got = 0;
  while (got < wanted) {
    const ssize_t count = ::read(file.get(), buffer.data() + got, wanted - got);
    if (count == 0) break;
    if (count > 0) {
      got += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      error_number = errno;
      return Status::unreadable;
    }
  }
  buffer.truncate(got);
  return Status::ok;
}

}  // namespace fastload
