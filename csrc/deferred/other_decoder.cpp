#include "deferred/other_decoder.h"

#ifdef __linux__

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace fastload {
namespace {

using Command = std::vector<std::string>;
std::atomic<const Command*> command{nullptr};  // never freed: it may be in use

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return number_; }
  void reset() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

bool write_all(int to, const std::uint8_t* data, std::size_t size) {
  while (size != 0) {
    const ssize_t written = write(to, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return lseek(to, 0, SEEK_SET) == 0;
}

bool has_ended(pid_t child) {
  const pid_t ended = waitpid(child, nullptr, WNOHANG);
  return ended == child || (ended < 0 && errno == ECHILD && kill(child, 0) != 0);  // another may have waited for it
}

// The end of a pipe is no proof that its writer lives: another process that was forked meanwhile may have it, too. So
// the child is asked for from time to time.
bool read_all(int from, pid_t child, bool& ended, std::uint8_t* data, std::size_t size) {
  constexpr int kMilliseconds = 50;
  while (size != 0) {
    pollfd waited{from, POLLIN, 0};
    const int ready = poll(&waited, 1, ended ? 0 : kMilliseconds);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) {
      if (ended) return false;
      ended = has_ended(child);
      continue;
    }
    const ssize_t got = read(from, data, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

pid_t start(const Command& words, int input, int output) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = -1;
  const int failed = posix_spawn(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed ? -1 : child;
}

}  // namespace

void set_other_decoder(std::vector<std::string> words) {
  const Command* known = command.load();
  if (known != nullptr && *known == words) return;
  command.store(words.empty() ? nullptr : new Command(std::move(words)));
}

bool decode_elsewhere(const ImageBytes& file, WholePixels& pixels) {
  constexpr std::uint32_t kMostSide = 1 << 17;
  const Command* known = command.load();
  if (known == nullptr) return false;
  Command words = *known;
  words.push_back(file.library);
  const Descriptor input(memfd_create("fastload", MFD_CLOEXEC));
  std::array<int, 2> ends;
  if (input < 0 || !write_all(input, file.data, file.size) || pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  const Descriptor output(ends[0]);
  Descriptor theirs(ends[1]);
  const pid_t child = start(words, input, theirs);
  theirs.reset();
  if (child < 0) return false;
  std::array<std::uint32_t, 2> size{};
  bool ended = false;
  bool complete = read_all(output, child, ended, reinterpret_cast<std::uint8_t*>(size.data()), sizeof size);
  complete = complete && size[0] - 1 < kMostSide && size[1] - 1 < kMostSide;
  if (complete) {
    pixels.height = size[0];
    pixels.width = size[1];
    pixels.data.resize(std::size_t{3} * size[0] * size[1]);
    complete = read_all(output, child, ended, pixels.data.data(), pixels.data.size());
  }
  if (!complete && !ended) kill(child, SIGKILL);
  while (!ended && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return complete;
}

}  // namespace fastload

#else

namespace fastload {

void set_other_decoder(std::vector<std::string>) {}
bool decode_elsewhere(const ImageBytes&, WholePixels&) { return false; }

}  // namespace fastload

#endif
