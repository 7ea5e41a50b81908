#include "deferred/deferred_memory.h"

#include <new>
#include <utility>

#ifdef __linux__

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "deferred/guard_pages.h"
#include "deferred/other_decoder.h"
#include "image/look_up.h"

namespace fastload {
namespace {

enum State : std::uint32_t {
  kFree,
  kArmed,
  kPainting,  // by one thread; all others wait
  kPainted,
  kFailed,
};

}  // namespace

// Its pages cannot be accessed unless it is painted. An armed slot is a mapping of its own, as a painted one is: there
// may be no more mappings when it is painted. It stays one, so that arming a slot that was not painted takes no system
// call.
struct DeferredMemory::Slot {
  std::uint8_t* begin = nullptr;
  int size_class = 0;
  std::atomic<std::uint32_t> state{kFree};  // changes under the lock
  std::size_t bytes = 0;                    // that the program needs, whole pages
  std::size_t mapped_bytes = 0;             // of the mapping that cannot be accessed
  // Changes under the lock, never while it is painted from.
  std::shared_ptr<const TensorProgram> program;
  DeferredMemory* user = nullptr;
  int faults_when_painted = 0;
  Slot* next = nullptr;  // in the list of free slots or of requests
};

namespace {

using Slot = DeferredMemory::Slot;

constexpr std::size_t kSmallestSlot = std::size_t{64} << 10;  // the largest page of any Linux
constexpr std::size_t kChunk = std::size_t{16} << 20;
constexpr std::size_t kMostChunks = 4096;
constexpr std::size_t kPlaces = 2 * kMostChunks;
// As much address space is left to others, where it is limited.
constexpr std::size_t kLeftBytes = std::size_t{1} << 30;
constexpr int kClassesPerOctave = 8;
constexpr int kClasses = 40 * kClassesPerOctave;
// A thread may fault when another has painted already, once. One that faults again and again is kept from the memory by
// something else.
constexpr int kMostFaultsWhenPainted = 4096;
// A slot splits the mapping that it lies in. As many mappings are left to others.
constexpr long kMappingsPerSlot = 4;
// Mappings that are kept to be given up when pages are moved, for which the system wants a few more than it takes.
constexpr std::size_t kReservePages = 24;

// A page that a process gets costs about 1 us the first time, which is more than what is written to it. So this much is
// kept of those that were freed.
constexpr std::size_t kMostSpareBytes = std::size_t{64} << 20;

// From here on large pages are asked for, which are had in no time.
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kLargeBytes = 2 * kLargePage;

// Pages that are kept; this stands in them.
struct SparePages {
  SparePages* next = nullptr;
  std::size_t bytes = 0;
};

// Slots of one size, in chunks of their own. Never freed.
struct Region {
  std::uint8_t* begin = nullptr;
  std::size_t chunks = 0;
  std::size_t slot_bytes = 0;
  std::size_t count = 0;
  std::unique_ptr<Slot[]> slots;
  Region* next = nullptr;

  bool has(const void* address) const { return address >= begin && address < begin + chunks * kChunk; }
};

void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t is) {
  while (value.load() == is) syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, is, nullptr, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& value) {
  syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// All slots of this process. One, which is never destroyed.
struct Arena {
  // Held for moments; neither a fault nor a callback happens meanwhile. Taken before a fork, so that a child's copy is
  // free and consistent.
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::size_t chunks = 0;
  std::array<std::atomic<Region*>, kPlaces> places{};  // of chunks, by their numbers, or behind; read without the lock
  Region* regions = nullptr;
  std::uint8_t* reserve = nullptr;  // mappings
  std::array<Slot*, kClasses> free_slots{};
  long armed = 0, most_armed = 0;
  std::array<SparePages*, kClasses> spare_pages{};
  std::size_t spare_bytes = 0;

  // The painter is a thread of its own: it has a stack of a known size, and the core's thread-local memory is not in
  // use there, as it may be on the thread that faults.
  Slot* requests = nullptr;
  std::atomic<std::uint32_t> requests_made{0};
  bool has_painter = false;  // in this process
};

std::atomic<Arena*> arena{nullptr};

class Locked {
 public:
  Locked() { pthread_mutex_lock(&arena.load()->mutex); }
  ~Locked() { pthread_mutex_unlock(&arena.load()->mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// The number of a class, and how many bytes its slots have: five to eight times a power of two, if not the fewest.
std::pair<int, std::size_t> size_class(std::size_t bytes) {
  int octave = 0;
  while ((kSmallestSlot * kClassesPerOctave << octave) < bytes) ++octave;
  const std::size_t step = kSmallestSlot << octave;
  const std::size_t steps = (bytes + step - 1) / step;
  return {octave * kClassesPerOctave + static_cast<int>(steps) - 1, steps * step};
}

std::size_t chunk_number(const void* address) { return reinterpret_cast<std::uintptr_t>(address) / kChunk; }

// The region that has this address. There are at least twice as many places as chunks.
Region* region_at(const Arena& all, const void* address) {
  for (std::size_t place = chunk_number(address);; ++place) {
    Region* region = all.places[place % kPlaces].load(std::memory_order_acquire);
    if (region == nullptr || region->has(address)) return region;
  }
}

// The slot that has this address, free or not. Requires the lock.
Slot* slot_at(const Arena& all, const void* address) {
  const Region* region = region_at(all, address);
  if (region == nullptr) return nullptr;
  const auto number = static_cast<std::size_t>(static_cast<const std::uint8_t*>(address) - region->begin);
  return number / region->slot_bytes < region->count ? &region->slots[number / region->slot_bytes] : nullptr;
}

// Whether this process may have as much more address space, and others something, too.
bool has_room(std::size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages != 0 && pages * whole_pages(1) + bytes + kLeftBytes <= limit.rlim_cur;
}

// Address space that cannot be accessed, at a multiple of the chunk; null if there is none.
std::uint8_t* chunks_for(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* room = has_room(bytes) ? mmap(nullptr, bytes + kChunk, PROT_NONE, kFlags, -1, 0) : MAP_FAILED;
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::uint8_t*>(room);
  const std::size_t skipped = (kChunk - reinterpret_cast<std::uintptr_t>(room) % kChunk) % kChunk;
  if (skipped != 0) munmap(begin, skipped);
  munmap(begin + skipped + bytes, kChunk - skipped);
  return begin + skipped;
}

// Adds slots of a class; false if there is no room. Requires the lock.
bool add_region(Arena& all, int number, std::size_t slot_bytes) {
  const std::size_t chunks = (slot_bytes + kChunk - 1) / kChunk;
  std::uint8_t* begin = chunks > kMostChunks - all.chunks ? nullptr : chunks_for(chunks * kChunk);
  if (begin == nullptr) return false;
  auto region = std::make_unique<Region>();
  region->begin = begin;
  region->chunks = chunks;
  region->slot_bytes = slot_bytes;
  region->count = chunks * kChunk / slot_bytes;
  region->slots = std::make_unique<Slot[]>(region->count);
  for (std::size_t i = region->count; i-- > 0;) {
    Slot& slot = region->slots[i];
    slot.begin = region->begin + i * slot_bytes;
    slot.size_class = number;
    slot.next = std::exchange(all.free_slots[static_cast<std::size_t>(number)], &slot);
  }
  all.chunks += chunks;
  region->next = std::exchange(all.regions, region.get());
  for (std::size_t i = 0; i < chunks; ++i) {
    std::size_t place = chunk_number(begin) + i;
    while (all.places[place % kPlaces].load() != nullptr) ++place;
    all.places[place % kPlaces].store(region.get(), std::memory_order_release);
  }
  region.release();
  return true;
}

// Keeps mappings to give up; false if there are none. Requires the lock.
bool have_reserve(Arena& all) {
  const std::size_t page = whole_pages(1), bytes = kReservePages * page;
  if (all.reserve != nullptr) return true;
  void* pages = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return false;
  all.reserve = static_cast<std::uint8_t*>(pages);
  for (std::size_t at = 0; at < bytes; at += 2 * page) {
    if (mprotect(all.reserve + at, page, PROT_READ) == 0) continue;
    munmap(std::exchange(all.reserve, nullptr), bytes);
    return false;
  }
  return true;
}

// Gives up what is kept of mappings and memory. Requires the lock.
void give_up_reserve(Arena& all) {
  if (all.reserve != nullptr) munmap(std::exchange(all.reserve, nullptr), kReservePages * whole_pages(1));
  for (SparePages*& spare : all.spare_pages) {
    while (spare != nullptr) {
      SparePages* pages = std::exchange(spare, spare->next);
      munmap(pages, pages->bytes);
    }
  }
  all.spare_bytes = 0;
}

// Calls `make` again without the reserve if it returns null.
template <class Make>
auto with_reserve(Arena& all, const Make& make) {
  auto made = make();
  if (!made) {
    give_up_reserve(all);
    made = make();
    have_reserve(all);
  }
  return made;
}

// Makes the slot's bytes a mapping of their own; those behind, at least a page, stay as they were. Requires the lock.
bool separate(Slot& slot) {
  if (slot.mapped_bytes == slot.bytes) return true;
  if (slot.mapped_bytes > slot.bytes) madvise(slot.begin, slot.mapped_bytes, MADV_DODUMP);
  slot.mapped_bytes = 0;
  if (madvise(slot.begin, slot.bytes, MADV_DONTDUMP) != 0) return false;
  slot.mapped_bytes = slot.bytes;
  return true;
}

// Large pages, where the system gives any, can be moved if they have the same place within a large page at both ends.
std::uint8_t* map_readable(const Slot& slot) {
  constexpr int kAccess = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (slot.bytes < kLargeBytes) {
    void* pages = mmap(nullptr, slot.bytes, kAccess, kFlags | MAP_POPULATE, -1, 0);
    return pages == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(pages);
  }
  void* room = mmap(nullptr, slot.bytes + kLargePage, kAccess, kFlags | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::uint8_t*>(room);
  const std::uintptr_t distance = reinterpret_cast<std::uintptr_t>(slot.begin) - reinterpret_cast<std::uintptr_t>(room);
  const std::size_t skipped = distance % kLargePage;
  if (skipped != 0) munmap(begin, skipped);
  munmap(begin + skipped + slot.bytes, kLargePage - skipped);
  advise_large_pages(begin + skipped, slot.bytes);
  return begin + skipped;
}

bool make_inaccessible(void* begin, std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(begin, bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
}

// Readable pages with any contents, which are to become a slot's; null if there is no memory.
std::uint8_t* pages_for(const Slot& slot) {
  Arena& all = *arena.load();
  {
    const Locked lock;
    SparePages*& spare = all.spare_pages[static_cast<std::size_t>(slot.size_class)];
    if (spare != nullptr && spare->bytes == slot.bytes) {
      all.spare_bytes -= slot.bytes;
      return reinterpret_cast<std::uint8_t*>(std::exchange(spare, spare->next));
    }
  }
  if (std::uint8_t* pages = map_readable(slot)) return pages;
  const Locked lock;
  return with_reserve(all, [&] { return map_readable(slot); });
}

// Takes a painted slot's pages away. Requires the lock. False: they are still there.
bool take_pages(Arena& all, Slot& slot) {
#ifdef MREMAP_DONTUNMAP
  SparePages*& first = all.spare_pages[static_cast<std::size_t>(slot.size_class)];
  if (first != nullptr && first->bytes != slot.bytes) {
    all.spare_bytes -= first->bytes;
    SparePages* other = std::exchange(first, first->next);
    munmap(other, other->bytes);
  }
  if (slot.bytes < kLargeBytes && all.spare_bytes + slot.bytes <= kMostSpareBytes) {
    void* moved = mremap(slot.begin, slot.bytes, slot.bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
    if (moved != MAP_FAILED) {
      first = new (moved) SparePages{first, slot.bytes};
      all.spare_bytes += slot.bytes;
    }
  }
#endif
  slot.mapped_bytes = 0;
  return with_reserve(all, [&] { return make_inaccessible(slot.begin, slot.bytes); });
}

// All at once: another thread sees none of the pages, or all. Frees the old place.
bool move_pages(void* from, std::size_t bytes, void* to) {
  return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
}

// Ends painting, in one step as seen by a fork: `pages` become the slot's, or are null. Returns the state.
State end_painting(Slot& slot, std::uint8_t* pages, State if_not) {
  const std::size_t bytes = slot.bytes;  // which may be freed soon
  State state = if_not;
  {
    const Locked lock;
    const auto move = [&] { return move_pages(pages, slot.bytes, slot.begin); };
    if (pages != nullptr && with_reserve(*arena.load(), move)) state = kPainted;
    slot.state.store(state);
  }
  wake_all(slot.state);
  if (pages != nullptr && state != kPainted) munmap(pages, bytes);
  return state;
}

Status paint_elsewhere(const TensorProgram& program, std::size_t image, std::uint8_t* out) {
  try {
    WholePixels whole;
    if (!decode_elsewhere(program.images[image]->file, whole)) return Status::unsupported;
    return program.paint_whole(image, whole.data.data(), whole.height, whole.width, out);
  } catch (const std::bad_alloc&) {
    return Status::unsupported;
  }
}

// Paints a slot whose state is kPainting, for a thread that cannot go on else.
void paint_for_access(Slot& slot) {
  const TensorProgram& program = *slot.program;
  std::uint8_t* pages = pages_for(slot);
  Status status = pages == nullptr ? Status::unsupported : Status::ok;
  for (std::size_t i = 0; i < program.images.size() && status == Status::ok; ++i) {
    std::uint8_t* out = pages + program.place_of(i);
    status = program.paint(i, out);
    if (status != Status::ok) status = paint_elsewhere(program, i, out);
  }
  if (status != Status::ok) {
    char text[160];
    const int size = std::snprintf(text, sizeof text, "fastload: an image cannot be decoded when it is used: %s\n",
                                   pages == nullptr ? "no memory" : name_of(status));
    if (write(STDERR_FILENO, text, static_cast<std::size_t>(size)) < 0) errno = 0;
    if (pages != nullptr) munmap(pages, slot.bytes);
    pages = nullptr;
  }
  end_painting(slot, pages, kFailed);
}

[[noreturn]] void* run_painter(void*) {
  Arena& all = *arena.load();
  while (true) {
    const std::uint32_t made = all.requests_made.load();
    Slot* slot = nullptr;
    {
      const Locked lock;
      slot = all.requests;
      if (slot != nullptr) all.requests = std::exchange(slot->next, nullptr);
    }
    if (slot != nullptr) {
      paint_for_access(*slot);
    } else {
      wait_while(all.requests_made, made);
    }
  }
}

// Requires the lock. Signals are for other threads, except those of faults.
bool start_painter() {
  constexpr std::size_t kStackBytes = std::size_t{1} << 20;
  sigset_t mask, before;
  sigfillset(&mask);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&mask, fault);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_sigmask(SIG_SETMASK, &mask, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, &run_painter, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (started) pthread_setname_np(thread, "fastload-painter");
  return started;
}

// Has a slot painted and waits for it. Returns whether it may be accessed.
bool on_fault(void* address) {
  Arena& all = *arena.load();
  if (region_at(all, address) == nullptr) return false;
  Slot* slot = nullptr;
  {
    const Locked lock;
    slot = slot_at(all, address);
    if (slot == nullptr || static_cast<std::uint8_t*>(address) >= slot->begin + slot->bytes) return false;
    const std::uint32_t state = slot->state.load();
    if (state == kFree || state == kFailed) return false;
    if (state == kPainted) return ++slot->faults_when_painted < kMostFaultsWhenPainted;
    if (state == kArmed) {
      if (!all.has_painter) all.has_painter = start_painter();
      if (!all.has_painter) return false;
      slot->state.store(kPainting);
      slot->next = std::exchange(all.requests, slot);
      all.requests_made.fetch_add(1);
    }
  }
  wake_all(all.requests_made);
  wait_while(slot->state, kPainting);
  return slot->state.load() != kFailed;
}

void before_fork() { pthread_mutex_lock(&arena.load()->mutex); }
void after_fork_in_parent() { pthread_mutex_unlock(&arena.load()->mutex); }

// Threads that were painting are not in the child.
void after_fork_in_child() {
  Arena& all = *arena.load();
  all.requests = nullptr;
  all.has_painter = false;
  for (const Region* region = all.regions; region != nullptr; region = region->next) {
    for (std::size_t i = 0; i < region->count; ++i) {
      if (region->slots[i].state.load() == kPainting) region->slots[i].state.store(kArmed);
    }
  }
  pthread_mutex_unlock(&all.mutex);
}

long most_mappings() {
  long most = 0;
  if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(file, "%ld", &most) != 1) most = 0;
    std::fclose(file);
  }
  return most;
}

// A free slot, armed for so many bytes; null if there are no more. Requires the lock.
Slot* arm(Arena& all, std::size_t bytes, const std::shared_ptr<const TensorProgram>& program, DeferredMemory* user) {
  const std::size_t pages = whole_pages(bytes);
  const auto [number, slot_bytes] = size_class(pages + whole_pages(1));
  Slot*& free = all.free_slots[static_cast<std::size_t>(number)];
  if (all.armed >= all.most_armed || !have_reserve(all)) return nullptr;
  if (free == nullptr && !add_region(all, number, slot_bytes)) return nullptr;
  free->bytes = pages;
  if (!separate(*free)) return nullptr;
  Slot* slot = std::exchange(free, free->next);
  ++all.armed;
  slot->program = program;
  slot->user = user;
  slot->next = nullptr;
  slot->faults_when_painted = 0;
  slot->state.store(kArmed);
  return slot;
}

// Frees a slot; returns its program. Requires the lock, and that it is not painted just now.
std::shared_ptr<const TensorProgram> disarm(Arena& all, Slot& slot) {
  --all.armed;
  slot.user = nullptr;
  if (slot.state.load() == kPainted && !take_pages(all, slot)) {
    slot.state.store(kFailed);  // such pages must not be used again
  } else {
    slot.state.store(kFree);
    slot.next = std::exchange(all.free_slots[static_cast<std::size_t>(slot.size_class)], &slot);
  }
  return std::move(slot.program);
}

// What faults do in this process is tried with a slot.
bool tries_well(Arena& all) {
  Slot* slot = nullptr;
  {
    const Locked lock;
    slot = arm(all, 1, std::make_shared<TensorProgram>(), nullptr);  // of no images: zeros
  }
  if (slot == nullptr) return false;
  const volatile std::uint8_t* byte = slot->begin;
  const bool zero = *byte == 0 && slot->state.load() == kPainted;
  const Locked lock;
  disarm(all, *slot);
  return zero && slot->state.load() == kFree;
}

bool prepare() {
  auto all = std::make_unique<Arena>();
  all->most_armed = most_mappings() / kMappingsPerSlot;
  if (all->most_armed == 0) return false;
  arena.store(all.release());
  return pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child) == 0;
}

}  // namespace

bool DeferredMemory::available() {
  static const bool prepared = prepare();
  if (!prepared || !install_fault_handler(&on_fault)) return false;
  static const bool works = tries_well(*arena.load());
  return works;
}

DeferredMemory* DeferredMemory::at(const void* address) {
  Arena* all = arena.load();
  if (all == nullptr || region_at(*all, address) == nullptr) return nullptr;
  const Locked lock;
  const Slot* slot = slot_at(*all, address);
  return slot == nullptr ? nullptr : slot->user;
}

bool DeferredMemory::any() {
  Arena* all = arena.load();
  if (all == nullptr) return false;
  const Locked lock;
  return all->armed != 0;
}

DeferredMemory::DeferredMemory(const std::shared_ptr<const TensorProgram>& program) {
  if (!handles_faults()) throw std::bad_alloc();
  const Locked lock;
  slot_ = arm(*arena.load(), program->nbytes(), program, this);
  if (slot_ == nullptr) throw std::bad_alloc();
}

DeferredMemory::~DeferredMemory() {
  std::shared_ptr<const TensorProgram> program;  // dropped last, without the lock: the files' owner may need another
  while (true) {
    wait_while(slot_->state, kPainting);  // by an access that was never allowed
    const Locked lock;
    if (slot_->state.load() == kPainting) continue;
    program = disarm(*arena.load(), *slot_);
    return;
  }
}

std::uint8_t* DeferredMemory::data() const { return slot_->begin; }

bool DeferredMemory::is_painted() const { return slot_->state.load() == kPainted; }

std::shared_ptr<const TensorProgram> DeferredMemory::program() const {
  const Locked lock;
  return slot_->program;
}

bool DeferredMemory::set_program(std::shared_ptr<const TensorProgram> program) {
  while (true) {
    wait_while(slot_->state, kPainting);
    const Locked lock;
    if (slot_->state.load() == kPainting) continue;
    if (slot_->state.load() == kPainted) return false;
    slot_->program.swap(program);  // the parameter goes after the lock
    return true;
  }
}

std::vector<Status> DeferredMemory::paint(const std::vector<const std::uint8_t*>& levels) {
  std::vector<Status> statuses;
  while (true) {
    wait_while(slot_->state, kPainting);
    const Locked lock;
    if (slot_->state.load() == kPainting) continue;
    statuses.resize(slot_->program->images.size(), Status::ok);
    if (slot_->state.load() == kPainted) return statuses;
    slot_->state.store(kPainting);
    break;
  }
  const TensorProgram& program = *slot_->program;
  std::uint8_t* pages = pages_for(*slot_);
  bool complete = pages != nullptr;
  for (std::size_t i = 0; i < statuses.size() && pages != nullptr; ++i) {
    std::uint8_t* out = pages + program.place_of(i);
    if (i < levels.size() && levels[i] != nullptr) {
      statuses[i] = program.paint_levels(i, levels[i], out);
    } else {
      statuses[i] = program.paint(i, out);
      complete = complete && statuses[i] == Status::ok;
    }
  }
  if (pages == nullptr || !complete) {
    if (pages != nullptr) munmap(pages, slot_->bytes);
    end_painting(*slot_, nullptr, kArmed);
    if (pages == nullptr) throw std::bad_alloc();
  } else if (end_painting(*slot_, pages, kArmed) != kPainted) {
    throw std::bad_alloc();
  }
  return statuses;
}

}  // namespace fastload

#else

namespace fastload {

struct DeferredMemory::Slot {};

bool DeferredMemory::available() { return false; }
DeferredMemory* DeferredMemory::at(const void*) { return nullptr; }
bool DeferredMemory::any() { return false; }
DeferredMemory::DeferredMemory(const std::shared_ptr<const TensorProgram>&) : slot_(nullptr) { throw std::bad_alloc(); }
DeferredMemory::~DeferredMemory() = default;
std::uint8_t* DeferredMemory::data() const { return nullptr; }
bool DeferredMemory::is_painted() const { return slot_ != nullptr; }
std::shared_ptr<const TensorProgram> DeferredMemory::program() const { return nullptr; }
bool DeferredMemory::set_program(std::shared_ptr<const TensorProgram>) { return false; }
std::vector<Status> DeferredMemory::paint(const std::vector<const std::uint8_t*>&) { return {}; }

}  // namespace fastload

#endif
