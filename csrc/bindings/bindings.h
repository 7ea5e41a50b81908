// Helpers shared by the bindings. Arguments are checked and converted with the GIL; then the GIL is released and no
// Python object is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "base/keyed_hash.h"
#include "image/look_up.h"
#include "image/transform/transform.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"

namespace fastload {

void bind_build(nanobind::module_& m);
void bind_decode(nanobind::module_& m);
void bind_deferred(nanobind::module_& m);
void bind_draws(nanobind::module_& m);
void bind_image(nanobind::module_& m);
void bind_index(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_lists(nanobind::module_& m);
void bind_pool(nanobind::module_& m);
void bind_staging(nanobind::module_& m);
void bind_stamp(nanobind::module_& m);
void bind_tagged(nanobind::module_& m);

// Holds a contiguous view of any bytes-like object. Create and destroy with the GIL.
class BytesView {
 public:
  explicit BytesView(nanobind::handle object, int flags = 0) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | flags) != 0) throw nanobind::python_error();
  }
  ~BytesView() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  BytesView(BytesView&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  BytesView& operator=(BytesView&&) = delete;
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }
  // Whether it is an array of bytes of shape (height, width, 3) or, for gray pixels, (height, width).
  bool is_pixels() const {
    const bool fits = view_.ndim == 2 || (view_.ndim == 3 && view_.shape[2] == 3);
    return fits && view_.itemsize == 1 && view_.len > 0;
  }
  std::ptrdiff_t channels() const { return view_.ndim == 2 ? 1 : 3; }
  std::uint32_t height() const { return static_cast<std::uint32_t>(view_.shape[0]); }
  std::uint32_t width() const { return static_cast<std::uint32_t>(view_.shape[1]); }

 private:
  Py_buffer view_;
};

using Array = nanobind::ndarray<std::uint8_t, nanobind::ndim<3>, nanobind::device::cpu>;
using ConstArray = nanobind::ndarray<const std::uint8_t, nanobind::ndim<3>, nanobind::device::cpu>;

// Throws a ValueError.
template <typename Any>
void require_rows(const Any& array, const char* name) {
  const std::int64_t channels = static_cast<std::int64_t>(array.shape(2));
  if ((channels != 1 && channels != 3) || (array.stride(2) != 1 && channels != 1) || array.stride(1) != channels) {
    throw nanobind::value_error(
        (std::string(name) + " must be HWC with 1 or 3 channels, and its rows contiguous").c_str());
  }
}

// What has that name. Throws a ValueError: there is none.
template <typename Kind, std::size_t count>
Kind named(const std::pair<const char*, Kind> (&names)[count], const std::string& name, const char* what) {
  for (const auto& [text, kind] : names) {
    if (name == text) return kind;
  }
  throw nanobind::value_error((std::string("no such ") + what + ": " + name).c_str());
}

Filter filter_from(const std::string& name);
PassRule pass_rule_from(const std::string& name);
Sampling sampling_from(const std::string& name);
PadMode pad_mode_from(const std::string& name);
HashKey key_from(const nanobind::bytes& key);  // throws a ValueError
nanobind::bytes state_of(const Generator& generator);
void set_state(Generator& generator, const nanobind::bytes& state);  // throws a ValueError
// A draw's question for torch, and the answer; both are lists of numbers. Throws a ValueError if these are too few.
const char* name_of(Question::Kind kind);
std::vector<double> numbers_of(const Question& question);
Answer answer_from(const std::string& kind, const std::vector<double>& question, const std::vector<double>& answer);
// Crop, output size, window and flips, as geometry_from() takes them.
nanobind::tuple to_tuple(const Geometry& geometry);
// Of (kind, fields), for an image of height x width. Throws a ValueError.
std::vector<Step> steps_from(const nanobind::sequence& entries, int height, int width);
nanobind::tuple erased_of(const Geometry& geometry);  // boxes, and the generator's state before their noise
// The values of each level of each channel.
using ValueTable = nanobind::ndarray<nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
void set_table(LookUpJob& job, const ValueTable& table);  // throws a ValueError

}  // namespace fastload
