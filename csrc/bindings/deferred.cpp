// Programs of tensors whose pixels are not made yet.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/pool.h"
#include "deferred/staged_programs.h"
#include "deferred/tensor_program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

// The bytes' reference may be dropped by any thread.
EncodedBytes encoded_from(const nb::bytes& data) {
  PyObject* object = data.ptr();
  Py_INCREF(object);
  const std::shared_ptr<const void> owner(object, [](const void* held) {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire acquire;
    Py_DECREF(static_cast<PyObject*>(const_cast<void*>(held)));
  });
  return {reinterpret_cast<const std::uint8_t*>(data.data()), data.size(), owner};
}

std::shared_ptr<ImageProgram> image_program(const nb::bytes& data, const std::array<std::int32_t, 12>& geometry,
                                            const std::string& filter, const nb::sequence& steps) {
  auto program = std::make_shared<ImageProgram>();
  program->file = encoded_from(data);
  program->geometry = geometry_from(geometry.data());
  program->geometry.filter = filter_from(filter);
  if (nb::len(steps) != 0) {
    const PixelBox& window = program->geometry.window;
    program->geometry.steps = steps_from(steps, window.height, window.width);
  }
  return program;
}

using FillFields = std::tuple<std::size_t, int, int, int, int, nb::bytes>;  // image, top, left, height, width, values

std::shared_ptr<TensorProgram> tensor_program(std::vector<std::shared_ptr<ImageProgram>> images,
                                              std::pair<int, int> size, const std::string& pass_rule,
                                              const ValueTable& table, bool planar,
                                              const std::vector<FillFields>& fills) {
  auto program = std::make_shared<TensorProgram>();
  program->images.assign(images.begin(), images.end());
  std::tie(program->height, program->width) = size;
  program->pass_rule = pass_rule_from(pass_rule);
  LookUpJob job;
  set_table(job, table);
  if (job.channels != 3) throw nb::value_error("a table must have 3 channels");
  if (size.first < 1 || size.second < 1) throw nb::value_error("images must have at least one pixel");
  program->value_bytes = job.value_bytes;
  const auto* values = static_cast<const std::uint8_t*>(job.table);
  program->table.assign(values, values + std::size_t{3} * 256 * job.value_bytes);
  program->planar = planar;
  for (const auto& [image, top, left, height, width, bytes] : fills) {
    TensorProgram::Fill fill{image, {top, left, height, width}, {}};
    const bool inside = top >= 0 && left >= 0 && height >= 0 && width >= 0 && height <= size.first - top &&
                        width <= size.second - left && image < program->images.size();
    if (!inside || bytes.size() != 3 * job.value_bytes) {
      throw nb::value_error("a fill must be within its image, and have one value of the table's type a channel");
    }
    for (std::size_t channel = 0; channel < 3; ++channel) {
      std::memcpy(fill.values[channel].data(), bytes.c_str() + channel * job.value_bytes, job.value_bytes);
    }
    program->fills.push_back(fill);
  }
  return program;
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
      statuses[i] = program.paint(i, out.data() + i * program.image_bytes());
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

void paint_levels(const TensorProgram& program, std::size_t image, const ConstArray& levels, const Memory& out) {
  const bool fits = levels.shape(0) == static_cast<std::size_t>(program.height) &&
                    levels.shape(1) == static_cast<std::size_t>(program.width) && levels.shape(2) == 3;
  if (!fits || !levels.is_valid() || levels.stride(2) != 1 || levels.stride(1) != 3 ||
      levels.stride(0) != std::int64_t{3} * program.width) {
    throw nb::value_error("levels must be the image's, HWC without gaps");
  }
  if (image >= program.images.size() || out.size() != program.image_bytes()) {
    throw nb::value_error("out must be as large as an image, and the tensor have that one");
  }
  nb::gil_scoped_release release;
  program.paint_levels(image, levels.data(), out.data());
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

nb::bytes bytes_of(const std::vector<std::int32_t>& numbers) {
  return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]);
}

nb::tuple stage(const std::vector<std::shared_ptr<TensorProgram>>& tensors, const std::vector<std::size_t>& first,
                const StagingMemory& memory, std::size_t most_bytes) {
  if (first.size() != tensors.size()) throw nb::value_error("each tensor must have a place in the pixels");
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

}  // namespace

void bind_deferred(nb::module_& m) {
  nb::class_<ImageProgram>(m, "ImageProgram")
      .def(nb::new_(&image_program), "data"_a, "geometry"_a, "filter"_a = "bilinear", "steps"_a = nb::tuple());
  nb::class_<TensorProgram>(m, "TensorProgram")
      .def(nb::new_(&tensor_program), "images"_a, "size"_a, "pass_rule"_a, "table"_a.noconvert(), "planar"_a,
           "fills"_a = std::vector<FillFields>{})
      .def_prop_ro("nbytes", &TensorProgram::nbytes)
      .def_static("joined", &joined, "programs"_a, "planar"_a)
      .def("paint", &paint, "out"_a.noconvert())
      .def("write", &write, "file"_a, "offset"_a = 0)
      .def("paint_levels", &paint_levels, "image"_a, "levels"_a.noconvert(), "out"_a.noconvert());
  m.def("stage_programs", &stage, "tensors"_a, "first"_a, "memory"_a.noconvert(), "most_bytes"_a);
}

}  // namespace fastload
