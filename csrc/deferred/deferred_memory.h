// Memory that is painted when it is touched first. Linux only. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "deferred/tensor_program.h"

namespace fastload {

// Private memory of a program's size. It cannot be accessed until it is painted. An access by an instruction, reading
// or writing, in any thread and in forked children, paints it first; by the kernel (read(2), write(2), ...) fails with
// EFAULT. An image that the core does not decode is left to decode_elsewhere(). If that fails, the access is an
// ordinary memory fault.
//
// Neither painting nor waiting for it needs a lock of the caller's. Unless said otherwise functions are thread-safe.
class DeferredMemory {
 public:
  // Whether this process can have such memory. The first call prepares it; later ones make sure that it still can.
  static bool available();
  // The one that has this address, if any. Not while that may be destroyed.
  static DeferredMemory* at(const void* address);
  // Whether there is any.
  static bool any();

  // Throws std::bad_alloc: there is no memory, too much is armed already, or it is not available.
  explicit DeferredMemory(const std::shared_ptr<const TensorProgram>& program);
  ~DeferredMemory();
  DeferredMemory(const DeferredMemory&) = delete;
  DeferredMemory& operator=(const DeferredMemory&) = delete;

  std::uint8_t* data() const;
  bool is_painted() const;
  std::shared_ptr<const TensorProgram> program() const;
  // Replaces the program by one of the same size; false if it is too late for that.
  bool set_program(std::shared_ptr<const TensorProgram> program);

  // Paints it on this thread, if nothing has yet, and returns the status of each image. Where `levels` is not null, it
  // is the image's levels, made elsewhere. If a status is not `ok`, nothing is painted. Throws std::bad_alloc.
  std::vector<Status> paint(const std::vector<const std::uint8_t*>& levels);

  struct Slot;

 private:
  Slot* slot_;
};

}  // namespace fastload
