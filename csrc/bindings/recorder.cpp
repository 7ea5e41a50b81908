// What most calls of torch take that come by a recorder of deferred tensors: nothing of theirs is deferred.
#include <cstdint>

#include "bindings/bindings.h"
#include "deferred/deferred_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

constexpr int kMostDepth = 4;

// Of the process; never freed.
struct Known {
  PyObject* passed = nullptr;    // a set of functions that read no pixels
  PyObject* watched = nullptr;   // a set of functions that are recorded whatever they get
  PyObject* plain = nullptr;     // a set of types whose values have no tensors
  PyObject* tensor = nullptr;    // torch.Tensor
  PyObject* data_ptr = nullptr;  // its method
};
Known known;

enum class Found { nothing, something, error };

// Whether a tensor may be deferred; something that is not known here may be.
Found look_at(PyObject* value, int depth) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (type == known.tensor) {
    PyObject* address = PyObject_CallOneArg(known.data_ptr, value);
    if (address == nullptr) {  // a tensor without memory of its own
      if (PyErr_ExceptionMatches(PyExc_RuntimeError) == 0) return Found::error;
      PyErr_Clear();
      return Found::nothing;
    }
    const auto number = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLong(address));
    Py_DECREF(address);
    if (PyErr_Occurred() != nullptr) return Found::error;
    const DeferredMemory* memory = DeferredMemory::at(reinterpret_cast<const void*>(number));
    return memory != nullptr && !memory->is_painted() ? Found::something : Found::nothing;
  }
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    if (depth == kMostDepth) return Found::nothing;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      const Found found = look_at(PySequence_Fast_GET_ITEM(value, i), depth + 1);
      if (found != Found::nothing) return found;
    }
    return Found::nothing;
  }
  const int is_plain = PySet_Contains(known.plain, type);
  return is_plain < 0 ? Found::error : is_plain == 1 ? Found::nothing : Found::something;
}

Found look_at_all(PyObject* function, PyObject* arguments, PyObject* named) {
  if (PyFunction_Check(function)) return Found::something;  // maybe the user's, in the place of torch's
  const int is_watched = PySet_Contains(known.watched, function);
  if (is_watched != 0) return is_watched < 0 ? Found::error : Found::something;
  if (named != nullptr && named != Py_None && PyDict_GetItemString(named, "out") != nullptr) return Found::something;
  const int is_passed = PySet_Contains(known.passed, function);
  if (is_passed != 0) return is_passed < 0 ? Found::error : Found::nothing;
  Found found = look_at(arguments, 0);
  if (found != Found::nothing || named == nullptr || named == Py_None) return found;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; found == Found::nothing && PyDict_Next(named, &at, &key, &value) != 0;) {
    found = look_at(value, 0);
  }
  return found;
}

// (function, types, arguments, named arguments)
PyObject* torch_function(PyObject* mode, PyObject* const* given, Py_ssize_t count) {
  if (count < 3 || count > 4 || !PyTuple_CheckExact(given[2]) ||
      (count == 4 && given[3] != Py_None && !PyDict_CheckExact(given[3]))) {
    PyErr_SetString(PyExc_TypeError, "__torch_function__ takes a function, types, a tuple and a dict of arguments");
    return nullptr;
  }
  PyObject* named = count == 4 ? given[3] : nullptr;
  const Found found = look_at_all(given[0], given[2], named);
  if (found == Found::error) return nullptr;
  if (found == Found::something) {
    PyObject* result =
        PyObject_CallMethod(mode, "record", "OOOO", given[0], given[1], given[2], named == nullptr ? Py_None : named);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  return PyObject_Call(given[0], given[2], named == Py_None ? nullptr : named);
}

PyMethodDef definition = {"__torch_function__",
                          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(torch_function)), METH_FASTCALL,
                          "Calls a function, after record() if a deferred tensor may be among its arguments."};

nb::object bound_to(nb::handle mode, const nb::frozenset& passed, const nb::frozenset& watched,
                    const nb::frozenset& plain, nb::handle tensor, nb::handle data_ptr) {
  known = {passed.inc_ref().ptr(), watched.inc_ref().ptr(), plain.inc_ref().ptr(), tensor.inc_ref().ptr(),
           data_ptr.inc_ref().ptr()};
  return nb::steal(PyCFunction_NewEx(&definition, mode.ptr(), nullptr));
}

}  // namespace

void bind_recorder(nb::module_& m) {
  m.def("torch_function", &bound_to, "mode"_a, "passed"_a, "watched"_a, "plain"_a, "tensor"_a, "data_ptr"_a);
}

}  // namespace fastload
