// This process's action at SIGSEGV: memory faults that are ours are handled, all others go where they went before.
// Linux only. Knows neither Python nor torch.
#pragma once

namespace fastload {

// Handles a fault at an address. Returns whether the instruction may run again; false: the fault is not ours. Called in
// a signal handler, of the thread that made the fault, for faults of instructions only; may be called by many threads
// at once.
using FaultHandler = bool (*)(void* address);

// Makes `handle` the first to be asked. Asks the action that there is now for what is not ours. Does nothing if the
// action is ours. False if it cannot be had: no Linux, or SIGSEGV is blocked in this thread.
bool install_fault_handler(FaultHandler handle);

// Whether a fault of this thread would be handled now.
bool handles_faults();

}  // namespace fastload
