// Looks up every pixel of a batch of images in a table of 256 values per channel.
//
// In: uint8, NHWC. Out: NHWC (torch's channels_last) or NCHW. Values are only copied, so only their size matters:
// float16 and bfloat16 share a kernel. Compiled at run time with two macros: VALUE_BYTES (4 or 2) and CHANNELS (1 to
// 4). Includes no headers, because a machine with a driver may lack CUDA's.
//
// The kernel is memory-bound, and four fifths of its traffic are stores (float32). So each thread stores 16 bytes at a
// time, adjacent to its neighbour's, and loads the 4 or 8 levels that these need: a 16-byte load would spread a warp's
// stores over four times as many cache lines.

#if VALUE_BYTES == 4
using Value = unsigned int;
#elif VALUE_BYTES == 2
using Value = unsigned short;
#else
#error "VALUE_BYTES must be 4 or 2"
#endif

static_assert(CHANNELS >= 1 && CHANNELS <= 4, "CHANNELS must be 1 to 4");

constexpr unsigned THREADS = 256;  // per block; nvrtc.py has the same number
constexpr unsigned LEVELS = 256;
constexpr unsigned WIDTH = 16 / VALUE_BYTES;  // values in a store, and levels in a load
constexpr unsigned UNROLL = 4;                // loads in flight per thread

// COUNT levels of one thread, loaded WIDTH at a time (from an address that is a multiple of WIDTH) or one by one.
template <unsigned COUNT, bool WIDE>
struct Levels;

template <unsigned COUNT>
struct Levels<COUNT, true> {
  unsigned words[COUNT / 4];

  __device__ __forceinline__ void load(const unsigned char* from) {
#if VALUE_BYTES == 4
    const unsigned* at = reinterpret_cast<const unsigned*>(from);
#pragma unroll
    for (unsigned i = 0; i < COUNT / 4; ++i) {
      words[i] = __ldg(at + i);
    }
#else
    const uint2* at = reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (unsigned i = 0; i < COUNT / 8; ++i) {
      const uint2 pair = __ldg(at + i);
      words[2 * i] = pair.x;
      words[2 * i + 1] = pair.y;
    }
#endif
  }

  __device__ __forceinline__ unsigned operator[](unsigned i) const { return (words[i / 4] >> (8 * (i % 4))) & 255u; }
};

template <unsigned COUNT>
struct Levels<COUNT, false> {
  unsigned char bytes[COUNT];

  __device__ __forceinline__ void load(const unsigned char* from) {
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      bytes[i] = __ldg(from + i);
    }
  }

  __device__ __forceinline__ unsigned operator[](unsigned i) const { return bytes[i]; }
};

template <unsigned COUNT>
__device__ __forceinline__ void store(Value* to, const Value (&values)[COUNT]) {
  static_assert(COUNT == 1 || COUNT == WIDTH, "one value or 16 bytes");
  if constexpr (COUNT == 1) {
    *to = values[0];
  } else {
#if VALUE_BYTES == 4
    *reinterpret_cast<uint4*>(to) = make_uint4(values[0], values[1], values[2], values[3]);
#else
    *reinterpret_cast<uint4*>(to) = make_uint4(
        values[0] | static_cast<unsigned>(values[1]) << 16, values[2] | static_cast<unsigned>(values[3]) << 16,
        values[4] | static_cast<unsigned>(values[5]) << 16, values[6] | static_cast<unsigned>(values[7]) << 16);
#endif
  }
}

__device__ __forceinline__ void fetch_table(Value* shared, const Value* table) {
  for (unsigned i = threadIdx.x; i < CHANNELS * LEVELS; i += THREADS) {
    shared[i] = table[i];
  }
  __syncthreads();
}

// Looks up elements from `begin` on, COUNT at a time, `steps` times, and keeps their order.
template <unsigned COUNT>
__device__ __forceinline__ void look_up_linear(const unsigned char* levels, const Value* table, Value* out,
                                               unsigned long long begin, unsigned long long steps) {
  constexpr unsigned TILE = THREADS * UNROLL;
  for (unsigned long long tile = static_cast<unsigned long long>(blockIdx.x) * TILE; tile < steps;
       tile += static_cast<unsigned long long>(gridDim.x) * TILE) {
    Levels<COUNT, (COUNT > 1)> held[UNROLL];
#pragma unroll
    for (unsigned k = 0; k < UNROLL; ++k) {
      const unsigned long long step = tile + k * THREADS + threadIdx.x;
      if (step < steps) {
        held[k].load(levels + begin + step * COUNT);
      }
    }
    const unsigned phase = static_cast<unsigned>((begin + tile * COUNT) % CHANNELS);
#pragma unroll
    for (unsigned k = 0; k < UNROLL; ++k) {
      const unsigned long long step = tile + k * THREADS + threadIdx.x;
      if (step < steps) {
        const unsigned first = (phase + (k * THREADS + threadIdx.x) * COUNT) % CHANNELS;
        Value values[COUNT];
#pragma unroll
        for (unsigned i = 0; i < COUNT; ++i) {
          values[i] = table[(first + i % CHANNELS) % CHANNELS * LEVELS + held[k][i]];
        }
        store(out + begin + step * COUNT, values);
      }
    }
  }
}

// Looks up COUNT neighbouring pixels of an image at a time; COUNT divides `plane`, the number of pixels of an image.
template <unsigned COUNT>
__device__ __forceinline__ void look_up_planar(const unsigned char* levels, const Value* table, Value* out,
                                               unsigned long long images, unsigned plane) {
  constexpr unsigned UNROLL_PLANAR = UNROLL / 2;
  constexpr unsigned TILE = THREADS * UNROLL_PLANAR;
  const unsigned steps_per_image = plane / COUNT;
  const unsigned long long steps = images * steps_per_image;
  for (unsigned long long tile = static_cast<unsigned long long>(blockIdx.x) * TILE; tile < steps;
       tile += static_cast<unsigned long long>(gridDim.x) * TILE) {
    Levels<COUNT * CHANNELS, (COUNT > 1)> held[UNROLL_PLANAR];
#pragma unroll
    for (unsigned k = 0; k < UNROLL_PLANAR; ++k) {
      const unsigned long long step = tile + k * THREADS + threadIdx.x;
      if (step < steps) {
        held[k].load(levels + step * (COUNT * CHANNELS));
      }
    }
    // The 64-bit division is uniform across the block; per-thread dividends fit 32 bits (plane < 2^31).
    const unsigned long long tile_image = tile / steps_per_image;
    const unsigned tile_step = static_cast<unsigned>(tile - tile_image * steps_per_image);
#pragma unroll
    for (unsigned k = 0; k < UNROLL_PLANAR; ++k) {
      if (tile + k * THREADS + threadIdx.x < steps) {
        const unsigned ahead = tile_step + k * THREADS + threadIdx.x;
        const unsigned long long image = tile_image + ahead / steps_per_image;
        const unsigned long long pixel = static_cast<unsigned long long>(ahead % steps_per_image) * COUNT;
#pragma unroll
        for (unsigned channel = 0; channel < CHANNELS; ++channel) {
          Value values[COUNT];
#pragma unroll
          for (unsigned i = 0; i < COUNT; ++i) {
            values[i] = table[channel * LEVELS + held[k][i * CHANNELS + channel]];
          }
          store(out + (image * CHANNELS + channel) * plane + pixel, values);
        }
      }
    }
  }
}

// Sizes are 64-bit, because cuda.core passes Python ints that way. `wide` means that the addresses, and all offsets
// that threads add to them, are multiples of the sizes of a load and of a store.
extern "C" __global__ void __launch_bounds__(THREADS)
    look_up_nhwc(const unsigned char* __restrict__ levels, const Value* __restrict__ table, Value* __restrict__ out,
                 long long images, long long plane, long long wide) {
  __shared__ Value shared[CHANNELS * LEVELS];
  fetch_table(shared, table);
  const unsigned long long elements = static_cast<unsigned long long>(images) * plane * CHANNELS;
  const unsigned long long vectors = wide ? elements / WIDTH : 0;
  look_up_linear<WIDTH>(levels, shared, out, 0, vectors);
  look_up_linear<1>(levels, shared, out, vectors * WIDTH, elements - vectors * WIDTH);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    look_up_nchw(const unsigned char* __restrict__ levels, const Value* __restrict__ table, Value* __restrict__ out,
                 long long images, long long plane, long long wide) {
  __shared__ Value shared[CHANNELS * LEVELS];
  fetch_table(shared, table);
  if (wide) {
    look_up_planar<WIDTH>(levels, shared, out, images, static_cast<unsigned>(plane));
  } else {
    look_up_planar<1>(levels, shared, out, images, static_cast<unsigned>(plane));
  }
}
