// Images that the core does not decode, by another program. Linux only. Knows neither Python nor torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deferred/tensor_program.h"

namespace fastload {

// The pixels of a whole image, (height, width, 3).
struct WholePixels {
  std::uint32_t height = 0, width = 0;
  std::vector<std::uint8_t> data;
};

// Sets the program and its arguments; the last one will be the name of the file's library. It reads a file at its
// standard input, and writes height and width (32 bits each, in the machine's byte order) and the pixels to its standard
// output. Others may call decode_elsewhere() meanwhile.
void set_other_decoder(std::vector<std::string> command);

// Starts that program and waits for the pixels; false if it cannot be had or makes none. Throws std::bad_alloc.
bool decode_elsewhere(const ImageBytes& file, WholePixels& pixels);

}  // namespace fastload
