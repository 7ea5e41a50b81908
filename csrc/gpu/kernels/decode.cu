// The program that decodes, crops and resizes the JPEG files of a batch, with the bits of libjpeg-turbo and Pillow.
// decode_layout.h says what decode threads have prepared. Compiled at run time (decode.py); includes no other headers.
//
// The kernels run one after the other. huffman.cu: `huffman` decodes the coefficients of the MCUs that the crops need,
// one thread for each segment, with the symbols that `tables` has looked up. `coefficients` puts those
// of progressive files into their places, which decode threads have decoded. pixels.cu: `transform` makes samples of
// them (libjpeg's accurate integer IDCT); `rows` stretches chroma by a triangle filter, converts to RGB and resizes the
// rows, `second_pass` the columns, with weights of 22 fractional bits; where columns are resized first, `columns_first`
// does so in between.
//
// Whatever the bytes say, nothing is read or written outside of what the batch owns. An image that turns out not to be
// what the index promised is marked as bad, and decoded again on the host.

#include "huffman.cu"
#include "pixels.cu"
#include "points.cu"
