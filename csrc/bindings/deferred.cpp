// Programs of tensors whose pixels are not made yet.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/pool.h"
#include "deferred/deferred_memory.h"
#include "deferred/guard_pages.h"
#include "deferred/other_decoder.h"
#include "deferred/staged_programs.h"
#include "deferred/tensor_program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

// The buffer may be released by any thread.
ImageBytes bytes_from(const nb::object& data) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(data.ptr(), buffer.get(), PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::shared_ptr<Py_buffer> owner(buffer.release(), [](Py_buffer* held) {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire acquire;
    PyBuffer_Release(held);
    delete held;
  });
  return {static_cast<const std::uint8_t*>(owner->buf), static_cast<std::size_t>(owner->len), owner, 0, 0};
}

std::shared_ptr<ImageProgram> image_program(const nb::object& data, const std::array<std::int32_t, 12>& geometry,
                                            const std::string& filter, const nb::sequence& steps,
                                            const std::optional<std::pair<std::uint32_t, std::uint32_t>>& levels,
                                            std::string library, const std::optional<std::array<int, 4>>& place) {
  auto program = std::make_shared<ImageProgram>();
  program->file = bytes_from(data);
  program->file.library = std::move(library);
  if (levels) {
    std::tie(program->file.height, program->file.width) = *levels;
    const std::size_t size = program->file.size;
    if (size == 0 || size != std::size_t{3} * levels->first * levels->second) {
      throw nb::value_error("levels must have 3 channels of their height and width");
    }
  }
  program->geometry = geometry_from(geometry.data());
  program->geometry.filter = filter_from(filter);
  if (nb::len(steps) != 0) {
    const PixelBox& window = program->geometry.window;
    program->geometry.steps = steps_from(steps, window.height, window.width);
  }
  if (place) program->place = PixelBox{(*place)[0], (*place)[1], (*place)[2], (*place)[3]};
  return program;
}

using Places = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::int32_t> places_from(const Places& places, std::uint32_t side) {
  std::vector<std::int32_t> made(places.data(), places.data() + places.size());
  const bool inside = std::all_of(made.begin(), made.end(), [side](std::int32_t place) {
    return place >= 0 && static_cast<std::uint32_t>(place) < side;
  });
  if (made.empty() || !inside) throw nb::value_error("rows and columns must be the levels'");
  return made;
}

// An image of one channel.
std::shared_ptr<ImageProgram> picked(const nb::object& data, std::pair<std::uint32_t, std::uint32_t> levels,
                                     const Places& rows, const Places& columns,
                                     const std::optional<std::array<int, 4>>& place) {
  auto program = std::make_shared<ImageProgram>();
  program->file = bytes_from(data);
  std::tie(program->file.height, program->file.width) = levels;
  if (program->file.size != std::size_t{1} * levels.first * levels.second) {
    throw nb::value_error("levels must have 1 channel of their height and width");
  }
  program->rows = places_from(rows, levels.first);
  program->columns = places_from(columns, levels.second);
  if (place) program->place = PixelBox{(*place)[0], (*place)[1], (*place)[2], (*place)[3]};
  return program;
}

void set_values(TensorProgram& program, const ValueTable& table) {
  LookUpJob job;
  set_table(job, table);
  if (job.channels != 1 && job.channels != 3) throw nb::value_error("a table must have 1 or 3 channels");
  program.channels = static_cast<std::size_t>(job.channels);
  program.value_bytes = job.value_bytes;
  const auto* values = static_cast<const std::uint8_t*>(job.table);
  program.table.assign(values, values + program.channels * 256 * job.value_bytes);
  program.keeps_levels = job.value_bytes == 1;
  for (std::size_t i = 0; i < program.table.size(); ++i) program.keeps_levels &= program.table[i] == (i & 255);
}

using FillFields = std::tuple<std::size_t, int, int, int, int, nb::bytes>;  // image, top, left, height, width, values

bool is_inside(const TensorProgram& program, const PixelBox& box) {
  return box.top >= 0 && box.left >= 0 && box.height >= 0 && box.width >= 0 && box.height <= program.height - box.top &&
         box.width <= program.width - box.left;
}

// Puts images into a program, from the place `first` on, which must be there.
void set_images(TensorProgram& program, std::size_t first, const std::vector<std::shared_ptr<ImageProgram>>& images) {
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (images[i]->place && !is_inside(program, *images[i]->place)) {
      throw nb::value_error("an image must have its place within the tensor's");
    }
    const PixelBox all{0, 0, program.height, program.width}, place = images[i]->place.value_or(all);
    const bool is_complete = images[i]->rows.size() == static_cast<std::size_t>(place.height) &&
                             images[i]->columns.size() == static_cast<std::size_t>(place.width);
    if (images[i]->channels() != program.channels || (program.channels == 1 && !is_complete)) {
      throw nb::value_error("an image must have the table's channels; with one, rows and columns of its place");
    }
    program.images[first + i] = images[i];
  }
}

void add_fills(TensorProgram& program, const std::vector<FillFields>& fills) {
  for (const auto& [image, top, left, height, width, bytes] : fills) {
    TensorProgram::Fill fill{image, {top, left, height, width}, {}};
    if (!is_inside(program, fill.box) || image >= program.images.size() ||
        bytes.size() != program.channels * program.value_bytes) {
      throw nb::value_error("a fill must be within its image, and have one value of the table's type a channel");
    }
    for (std::size_t channel = 0; channel < program.channels; ++channel) {
      std::memcpy(fill.values[channel].data(), bytes.c_str() + channel * program.value_bytes, program.value_bytes);
    }
    program.fills.push_back(fill);
  }
}

std::shared_ptr<TensorProgram> tensor_program(const std::vector<std::shared_ptr<ImageProgram>>& images,
                                              std::pair<int, int> size, const std::string& pass_rule,
                                              const ValueTable& table, bool planar,
                                              const std::vector<FillFields>& fills) {
  auto program = std::make_shared<TensorProgram>();
  std::tie(program->height, program->width) = size;
  program->pass_rule = pass_rule_from(pass_rule);
  if (size.first < 1 || size.second < 1) throw nb::value_error("images must have at least one pixel");
  set_values(*program, table);
  program->planar = planar;
  program->images.resize(images.size());
  set_images(*program, 0, images);
  add_fills(*program, fills);
  return program;
}

void require_plain(const TensorProgram& program) {
  if (!program.axes.empty() || !program.parts.empty())
    throw nb::value_error("a program must have no axes and no parts");
}

// The same with other images from the place `first` on, which have these fills, and with other values of all levels.
std::shared_ptr<TensorProgram> with_images(const TensorProgram& program, std::size_t first,
                                           const std::vector<std::shared_ptr<ImageProgram>>& images,
                                           const ValueTable& table, const std::vector<FillFields>& fills) {
  require_plain(program);
  const std::size_t count = program.images.size();
  if (first > count || images.size() > count - first) throw nb::value_error("there are no such images");
  auto made = std::make_shared<TensorProgram>(program);
  set_values(*made, table);
  if (made->value_bytes != program.value_bytes || made->channels != program.channels) {
    throw nb::value_error("values must be as large and as many as the others");
  }
  set_images(*made, first, images);
  const auto is_replaced = [&](const TensorProgram::Fill& fill) {
    return fill.image >= first && fill.image < first + images.size();
  };
  made->fills.erase(std::remove_if(made->fills.begin(), made->fills.end(), is_replaced), made->fills.end());
  add_fills(*made, fills);
  return made;
}

// The same images without fills and with other values of their levels.
std::shared_ptr<TensorProgram> with_values(const TensorProgram& program, const ValueTable& table) {
  require_plain(program);
  auto made = std::make_shared<TensorProgram>();
  made->images = program.images;
  made->height = program.height;
  made->width = program.width;
  made->pass_rule = program.pass_rule;
  made->planar = program.planar;
  set_values(*made, table);
  if (made->channels != program.channels) throw nb::value_error("values must be as many as the others");
  return made;
}

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes bytes_of(const std::vector<Status>& statuses) {
  std::string values;
  for (const Status status : statuses) values.push_back(static_cast<char>(status));
  return nb::bytes(values.data(), values.size());
}

nb::bytes paint(const TensorProgram& program, const Memory& out) {
  if (out.size() != program.nbytes()) throw nb::value_error("out must be as large as the tensor");
  std::vector<Status> statuses(program.images.size());
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      statuses[i] = program.paint(i, out.data() + program.place_of(i));
    }
  }
  return bytes_of(statuses);
}

nb::bytes write(const TensorProgram& program, int file, std::int64_t offset) {
  std::vector<Status> statuses(program.images.size());
  int error = 0;
  {
    nb::gil_scoped_release release;
    error = program.write(file, offset, statuses.data());
  }
  if (error != 0) {
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return bytes_of(statuses);
}

void require_levels_of(const TensorProgram& whole, std::size_t image, const ConstArray& levels) {
  if (image >= whole.images.size()) throw nb::value_error("there is no such image");
  const TensorProgram& program = whole.owner_of(image);
  const bool fits = program.channels == 3 && levels.shape(0) == static_cast<std::size_t>(program.height) &&
                    levels.shape(1) == static_cast<std::size_t>(program.width) && levels.shape(2) == 3;
  if (!fits || levels.stride(2) != 1 || levels.stride(1) != 3 || levels.stride(0) != std::int64_t{3} * program.width) {
    throw nb::value_error("levels must be the image's, HWC without gaps");
  }
}

void paint_levels(const TensorProgram& program, std::size_t image, const ConstArray& levels, const Memory& out) {
  require_levels_of(program, image, levels);
  if (out.size() != program.place_of(image + 1) - program.place_of(image)) {
    throw nb::value_error("out must be as large as an image");
  }
  nb::gil_scoped_release release;
  if (program.paint_levels(image, levels.data(), out.data()) != Status::ok) throw std::bad_alloc();
}

// The program's images, each in the order of dimensions (size, stride in values), the outermost first, from `first` on.
std::shared_ptr<TensorProgram> in_order(const TensorProgram& program,
                                        const std::vector<std::pair<std::size_t, std::size_t>>& axes,
                                        std::size_t first) {
  require_plain(program);
  auto made = std::make_shared<TensorProgram>(program);
  made->first = first;
  const std::size_t values = program.image_bytes() / program.value_bytes;
  bool is_inside = first < values && !axes.empty();
  for (const auto& [size, stride] : axes) {
    is_inside = is_inside && size > 0 && (size == 1 || stride <= (values - 1 - first) / (size - 1));
    if (!is_inside) break;
    first += (size - 1) * stride;
    made->axes.push_back({size, stride});
  }
  if (!is_inside) throw nb::value_error("dimensions must be those of an image's values");
  return made;
}

// What the programs describe, one behind the other.
std::shared_ptr<TensorProgram> in_parts(const std::vector<std::shared_ptr<TensorProgram>>& programs) {
  auto whole = std::make_shared<TensorProgram>();
  for (const auto& part : programs) {
    if (!part->parts.empty()) throw nb::value_error("a part must have no parts");
    whole->value_bytes = part->value_bytes;
    whole->images.insert(whole->images.end(), part->images.begin(), part->images.end());
    whole->parts.push_back(part);
  }
  return whole;
}

// The program of a tensor that holds these ones' images, one behind the other.
std::shared_ptr<TensorProgram> joined(const std::vector<std::shared_ptr<TensorProgram>>& programs, bool planar) {
  if (programs.empty()) throw nb::value_error("there must be a program");
  auto whole = std::make_shared<TensorProgram>(*programs[0]);
  whole->planar = planar;
  for (std::size_t i = 1; i < programs.size(); ++i) {
    if (!append(*programs[i], *whole)) throw nb::value_error("programs must have one size and one table");
  }
  return whole;
}

void make_memory(DeferredMemory* memory, const std::shared_ptr<TensorProgram>& program) {
  if (program->nbytes() == 0) throw nb::value_error("a program must have images");
  new (memory) DeferredMemory(program);
}

void set_program(DeferredMemory& memory, const std::shared_ptr<TensorProgram>& program) {
  if (program->nbytes() != memory.program()->nbytes()) throw nb::value_error("a program must be as large as the last");
  if (!memory.set_program(program)) throw nb::value_error("a program must be set before the memory is painted");
}

nb::bytes paint_memory(DeferredMemory& memory, const std::vector<std::pair<std::size_t, ConstArray>>& levels) {
  std::vector<const std::uint8_t*> made(memory.program()->images.size());
  for (const auto& [image, array] : levels) {
    require_levels_of(*memory.program(), image, array);
    made[image] = array.data();
  }
  std::vector<Status> statuses;
  {
    nb::gil_scoped_release release;
    statuses = memory.paint(made);
  }
  return bytes_of(statuses);
}

nb::dlpack::dtype dtype_from(const std::string& name) {
  using Code = nb::dlpack::dtype_code;
  static constexpr std::pair<const char*, nb::dlpack::dtype> kTypes[] = {
      {"uint8", {static_cast<std::uint8_t>(Code::UInt), 8, 1}},
      {"int8", {static_cast<std::uint8_t>(Code::Int), 8, 1}},
      {"int16", {static_cast<std::uint8_t>(Code::Int), 16, 1}},
      {"int32", {static_cast<std::uint8_t>(Code::Int), 32, 1}},
      {"int64", {static_cast<std::uint8_t>(Code::Int), 64, 1}},
      {"uint16", {static_cast<std::uint8_t>(Code::UInt), 16, 1}},
      {"uint32", {static_cast<std::uint8_t>(Code::UInt), 32, 1}},
      {"uint64", {static_cast<std::uint8_t>(Code::UInt), 64, 1}},
      {"bool", {static_cast<std::uint8_t>(Code::Bool), 8, 1}},
      {"float16", {static_cast<std::uint8_t>(Code::Float), 16, 1}},
      {"bfloat16", {static_cast<std::uint8_t>(Code::Bfloat), 16, 1}},
      {"float32", {static_cast<std::uint8_t>(Code::Float), 32, 1}},
      {"float64", {static_cast<std::uint8_t>(Code::Float), 64, 1}},
  };
  return named(kTypes, name, "dtype");
}

// A DLPack capsule whose owner is the memory.
nb::object array_of(nb::handle self, const std::vector<std::size_t>& shape, const std::vector<std::int64_t>& strides,
                    const std::string& dtype_name) {
  auto& memory = nb::cast<DeferredMemory&>(self);
  const nb::dlpack::dtype dtype = dtype_from(dtype_name);
  std::size_t last = 0, count = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    count *= shape[i];
    if (i < strides.size() && strides[i] >= 0 && shape[i] != 0) {
      last += (shape[i] - 1) * static_cast<std::size_t>(strides[i]);
    } else {
      count = 0;
    }
  }
  const std::size_t bytes = memory.program()->nbytes();
  if (count == 0 || strides.size() != shape.size() || count * (dtype.bits / 8) > bytes ||
      last >= bytes / (dtype.bits / 8)) {
    throw nb::value_error("shape and strides must be those of values within the memory");
  }
  const nb::ndarray<nb::device::cpu> array(memory.data(), shape.size(), shape.data(), self, strides.data(), dtype);
  return nb::cast(array);
}

nb::object memory_at(std::uintptr_t address) {
  DeferredMemory* memory = DeferredMemory::at(reinterpret_cast<const void*>(address));
  return memory == nullptr ? nb::none() : nb::find(*memory);
}

nb::bytes bytes_of(const std::vector<std::int32_t>& numbers) {
  return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]);
}

nb::tuple stage(const std::vector<std::shared_ptr<TensorProgram>>& tensors, const std::vector<std::size_t>& first,
                const StagingMemory& memory, std::size_t most_bytes) {
  if (first.size() != tensors.size()) throw nb::value_error("each tensor must have a place in the pixels");
  for (const auto& tensor : tensors) {
    require_plain(*tensor);
    if (tensor->channels != 3) throw nb::value_error("tensors must have 3 channels");
  }
  StagedPrograms staged;
  std::vector<std::int32_t> owners;
  std::string has;
  {
    nb::gil_scoped_release release;
    staged = stage_programs(tensors, first, memory.data(), memory.size(), most_bytes);
    for (std::size_t i = 0; i < staged.order.size(); ++i) {
      has.push_back(staged.staging->has(i) ? '\1' : '\0');
      owners.push_back(static_cast<std::int32_t>(staged.staging->owner(i)));
    }
  }
  nb::list chunks;
  for (const Staging::Chunk& chunk : staged.chunks) chunks.append(to_tuple(chunk));
  const Staging& staging = *staged.staging;
  return nb::make_tuple(nb::bytes(has.data(), has.size()), bytes_of(owners), bytes_of(staged.order), staging.used(),
                        staging.wanted(), to_tuple(staging.search()),
                        nb::make_tuple(staging.codes_at(), staging.code_sets()), chunks);
}

// What most calls of torch take that come by a recorder of deferred tensors: nothing of theirs is deferred.
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

void bind_deferred(nb::module_& m) {
  nb::class_<ImageProgram>(m, "ImageProgram")
      .def(nb::new_(&image_program), "data"_a, "geometry"_a, "filter"_a = "bilinear", "steps"_a = nb::tuple(),
           "levels"_a = nb::none(), "library"_a = "Pillow", "place"_a = nb::none())
      .def_static("picked", &picked, "data"_a, "levels"_a, "rows"_a.noconvert(), "columns"_a.noconvert(),
                  "place"_a = nb::none());
  nb::class_<TensorProgram>(m, "TensorProgram")
      .def(nb::new_(&tensor_program), "images"_a, "size"_a, "pass_rule"_a, "table"_a.noconvert(), "planar"_a,
           "fills"_a = std::vector<FillFields>{})
      .def_prop_ro("nbytes", &TensorProgram::nbytes)
      .def("with_values", &with_values, "table"_a.noconvert())
      .def("with_images", &with_images, "first"_a, "images"_a, "table"_a.noconvert(), "fills"_a)
      .def("in_order", &in_order, "axes"_a, "first"_a)
      .def_static("in_parts", &in_parts, "programs"_a)
      .def_static("joined", &joined, "programs"_a, "planar"_a)
      .def("paint", &paint, "out"_a.noconvert())
      .def("write", &write, "file"_a, "offset"_a = 0)
      .def("paint_levels", &paint_levels, "image"_a, "levels"_a.noconvert(), "out"_a.noconvert());
  using Made = std::vector<std::pair<std::size_t, ConstArray>>;
  nb::class_<DeferredMemory>(m, "DeferredMemory", nb::dynamic_attr())
      .def("__init__", &make_memory, "program"_a)
      .def_prop_rw(
          "program",
          [](const DeferredMemory& memory) { return std::const_pointer_cast<TensorProgram>(memory.program()); },
          &set_program)
      .def_prop_ro("painted", &DeferredMemory::is_painted)
      .def_prop_ro("address",
                   [](const DeferredMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
      .def("paint", &paint_memory, "levels"_a = Made{})
      .def("array", &array_of, "shape"_a, "strides"_a, "dtype_name"_a);
  m.def("deferred_memory_at", &memory_at, "address"_a);
  m.def("has_deferred_memory", &DeferredMemory::any);
  m.def(
      "guard_pages",
      [](std::vector<std::string> decoder) {
        if (!decoder.empty()) set_other_decoder(std::move(decoder));
        return DeferredMemory::available();
      },
      "decoder"_a = std::vector<std::string>{});
  m.def("guard_is_ours", &handles_faults);
  m.def("stage_programs", &stage, "tensors"_a, "first"_a, "memory"_a.noconvert(), "most_bytes"_a);
  m.def("torch_function", &bound_to, "mode"_a, "passed"_a, "watched"_a, "plain"_a, "tensor"_a, "data_ptr"_a);
}

}  // namespace fastload
