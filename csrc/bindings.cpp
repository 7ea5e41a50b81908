// nanobind only: checks and converts arguments, releases the GIL, calls the core, turns its answers into Python's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "jpeg.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A contiguous view of any bytes-like object, held for as long as this lives.
class BytesView {
 public:
  explicit BytesView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BytesView() { PyBuffer_Release(&view_); }
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

nb::tuple jpeg_header(nb::handle data) {
  BytesView bytes(data);
  fastload::JpegHeader header;
  std::string error;
  bool ok = false;
  {
    nb::gil_scoped_release release;
    ok = fastload::read_header(bytes.data(), bytes.size(), header, error);
  }
  if (!ok) throw nb::value_error((error + " (" + std::to_string(bytes.size()) + " bytes)").c_str());
  return nb::make_tuple(header.width, header.height, header.components, fastload::name_of(header.subsampling),
                        header.progressive);
}

}  // namespace

NB_MODULE(_core, m) {
  m.def("jpeg_header", &jpeg_header, "data"_a);
  m.def("libjpeg_version", &fastload::libjpeg_version);
}
