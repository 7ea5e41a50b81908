#include "deferred/guard_pages.h"

#ifdef __linux__

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fastload {
namespace {

// Actions that were there when ours was installed, the oldest first. More than one if another was installed over ours,
// and then ours again.
constexpr int kMostActions = 16;
std::array<struct sigaction, kMostActions> previous;
std::atomic<int> previous_count{0};
std::atomic<FaultHandler> handler{nullptr};

// An action that was installed over ours knows ours as the one before it, and returns to it (faulthandler sets it again
// and raises the signal). What is asked next is the one before that.
std::atomic<long> asking_thread{0};
std::atomic<int> asked{0};  // by that thread

bool is_function(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void end_by(int signal, const siginfo_t* info) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  if (info->si_code > 0) return;  // the instruction faults again
  raise(signal);
}

// As the kernel calls it.
void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  sigset_t mask = action.sa_mask, before;
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ask_previous(int signal, siginfo_t* info, void* context) {
  const long thread = syscall(SYS_gettid);
  long nobody = 0;
  const bool first = asking_thread.compare_exchange_strong(nobody, thread);
  const bool counts = first || nobody == thread;
  const int place = previous_count.load() - 1 - (counts ? asked.fetch_add(1) : 0);
  if (place < 0) {
    end_by(signal, info);
  } else {
    const struct sigaction action = previous[static_cast<std::size_t>(place)];
    if ((action.sa_flags & SA_RESETHAND) != 0) {
      previous[static_cast<std::size_t>(place)] = {};
      previous[static_cast<std::size_t>(place)].sa_handler = SIG_DFL;
    }
    if (is_function(action)) {
      call(action, signal, info, context);
    } else if (action.sa_handler == SIG_DFL || info->si_code > 0) {  // a fault cannot be ignored
      end_by(signal, info);
    }
  }
  if (counts) asked.fetch_sub(1);
  if (first) asking_thread.store(0);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_fault = info->si_code == SEGV_MAPERR || info->si_code == SEGV_ACCERR;
  if (!is_fault || !handler.load()(info->si_addr)) ask_previous(signal, info, context);
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &on_signal;
}

}  // namespace

bool handles_faults() {
  struct sigaction now;
  sigset_t blocked;
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || !is_ours(now)) return false;
  return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 && sigismember(&blocked, SIGSEGV) == 0;
}

bool install_fault_handler(FaultHandler handle) {
  struct sigaction now;
  handler.store(handle);
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return false;
  if (is_ours(now)) return handles_faults();
  const int count = previous_count.load();
  if (count == kMostActions) return false;
  previous[static_cast<std::size_t>(count)] = now;
  previous_count.store(count + 1);
  struct sigaction action{};
  action.sa_sigaction = &on_signal;
  // On the thread's alternate stack, if it has one: else an overflow of its stack would not reach the previous action.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, nullptr) == 0) return handles_faults();
  previous_count.store(count);
  return false;
}

}  // namespace fastload

#else

namespace fastload {

bool install_fault_handler(FaultHandler) { return false; }
bool handles_faults() { return false; }

}  // namespace fastload

#endif
