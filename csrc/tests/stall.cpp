// A library to preload that makes reads of one file stall or fail, as on a network file system.
//
// STALL_FILE: the file. STALL_ENTERED: a named pipe that a stalled read opens for writing and closes. STALL_GATE: a
// named pipe; the read continues once a process has opened it for writing. FAIL_FROM: reads do not stall, but fail from
// this byte of the file on.
#include <cerrno>
#include <cstdlib>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// Whether the read may continue.
bool pass(int descriptor, off64_t end) {
  const char* path = std::getenv("STALL_FILE");
  struct stat file, read;
  if (path == nullptr || ::stat(path, &file) != 0 || ::fstat(descriptor, &read) != 0) return true;
  if (file.st_ino != read.st_ino || file.st_dev != read.st_dev) return true;
  if (const char* from = std::getenv("FAIL_FROM")) {
    errno = EIO;
    return end <= std::atoll(from);
  }
  ::close(::open(std::getenv("STALL_ENTERED"), O_WRONLY));
  ::close(::open(std::getenv("STALL_GATE"), O_RDONLY));
  errno = EIO;
  return std::getenv("STALL_FAILS") == nullptr;
}

ssize_t read_at(const char* name, int descriptor, void* buffer, size_t size, off64_t offset) {
  if (!pass(descriptor, offset + static_cast<off64_t>(size))) return -1;
  return reinterpret_cast<ssize_t (*)(int, void*, size_t, off64_t)>(::dlsym(RTLD_NEXT, name))(descriptor, buffer, size,
                                                                                              offset);
}

}  // namespace

extern "C" {

ssize_t pread(int descriptor, void* buffer, size_t size, off_t offset) {
  return read_at("pread", descriptor, buffer, size, offset);
}

ssize_t pread64(int descriptor, void* buffer, size_t size, off64_t offset) {
  return read_at("pread64", descriptor, buffer, size, offset);
}

}  // extern "C"
