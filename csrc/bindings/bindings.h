// Helpers shared by the bindings. Arguments are checked and converted with the GIL; then the GIL is released and no
// Python object is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "image/look_up.h"
#include "jpeg/keyed_hash.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"

namespace fastload {

void bind_jpeg(nanobind::module_& m);
void bind_resample(nanobind::module_& m);
void bind_draws(nanobind::module_& m);
void bind_decode(nanobind::module_& m);
void bind_batch(nanobind::module_& m);
void bind_index(nanobind::module_& m);
void bind_lists(nanobind::module_& m);
void bind_staging(nanobind::module_& m);
void bind_tagged(nanobind::module_& m);
void bind_stamp(nanobind::module_& m);
void bind_color(nanobind::module_& m);
void bind_transform(nanobind::module_& m);
void bind_python_random(nanobind::module_& m);

// Holds a contiguous view of any bytes-like object. Create and destroy with the GIL.
class BytesView {
 public:
  explicit BytesView(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND) != 0) throw nanobind::python_error();
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

Filter filter_from(const std::string& name);
PassRule pass_rule_from(const std::string& name);
HashKey key_from(const nanobind::bytes& key);  // throws a ValueError
nanobind::bytes state_of(const Generator& generator);
// A draw's question for torch, and the answer; both are lists of numbers. Throws a ValueError if these are too few.
const char* name_of(Question::Kind kind);
std::vector<double> numbers_of(const Question& question);
Answer answer_from(const std::string& kind, const std::vector<double>& question, const std::vector<double>& answer);
using AnswerFields = std::tuple<std::string, std::vector<double>, std::vector<double>>;  // kind, question, answer
nanobind::tuple draw(const DrawPlan& plan, Generator& generator, int width, int height,
                     const std::vector<AnswerFields>& known, std::size_t view);
nanobind::tuple draw_erased(const DrawPlan& plan, Generator& generator, int width, int height);
nanobind::tuple erased_of(const Geometry& geometry);  // boxes, and the generator's state before their noise
void set_state(Generator& generator, const nanobind::bytes& state);                  // throws a ValueError
DrawOp::Level level_from(const nanobind::dict& fields);                              // without its samplings
bool set_python_field(DrawOp& op, const std::string& name, nanobind::handle value);  // false: there is none of the name
// The values of each level of each channel.
using ValueTable = nanobind::ndarray<nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
void set_table(LookUpJob& job, const ValueTable& table);  // throws a ValueError

}  // namespace fastload
