// Lists of a batch's numbers, without Python's work for each.
#include "bindings/bindings.h"

#include <nanobind/ndarray.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

using Ints = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Writes the ints of a list or tuple. False, with `out` unspecified, if it has anything else, or one that does not fit.
bool put_ints(nb::handle numbers, const Ints& out) {
  if (!PyList_CheckExact(numbers.ptr()) && !PyTuple_CheckExact(numbers.ptr())) return false;
  if (static_cast<std::size_t>(PySequence_Fast_GET_SIZE(numbers.ptr())) != out.size()) {
    throw nb::value_error("out must have room for exactly the numbers");
  }
  PyObject** const items = PySequence_Fast_ITEMS(numbers.ptr());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!PyLong_CheckExact(items[i])) return false;
    int overflow = 0;
    out.data()[i] = PyLong_AsLongLongAndOverflow(items[i], &overflow);
    if (overflow != 0) return false;
  }
  return true;
}

// [values[i] for i in indices], also with negative ones.
nb::list items_of(const nb::list& values, const Ints& indices) {
  const nb::list items = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(indices.size())));
  if (!items.is_valid()) throw nb::python_error();
  // After the new list: it may start a garbage collection, whose callbacks may shorten `values`.
  const auto count = static_cast<std::int64_t>(nb::len(values));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices.data()[i], place = index < 0 ? index + count : index;
    if (place < 0 || place >= count) throw nb::index_error("list index out of range");
    PyObject* const item = PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(place));
    Py_INCREF(item);
    PyList_SET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return items;
}

}  // namespace

void bind_lists(nb::module_& m) {
  m.def("put_ints", &put_ints, "numbers"_a, "out"_a.noconvert());
  m.def("items_of", &items_of, "values"_a, "indices"_a.noconvert());
}

}  // namespace fastload
