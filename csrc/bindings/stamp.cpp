// What Python objects hold, to see quickly whether any of it was replaced.
#include "bindings/bindings.h"

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

// Remembers values by identity. All calls need the GIL.
class Stamp {
 public:
  Stamp() = default;
  Stamp(const nb::list& entries, const nb::list& containers, const nb::list& objects, const nb::list& types,
        const nb::list& functions) {
    std::unordered_map<PyObject*, std::size_t> known;
    for (nb::handle entry : entries) {
      const nb::tuple parts = nb::cast<nb::tuple>(entry);
      PyObject* const dict = parts[0].ptr();
      check(PyDict_Check(dict), "an entry must be of a dict");
      const auto [place, is_new] = known.try_emplace(dict, spaces_.size());
      if (is_new) spaces_.push_back({nb::borrow(dict), changes_of(dict), {}});
      spaces_[place->second].entries.push_back({parts[1], nb::borrow(item_of(dict, parts[1].ptr()))});
    }
    for (nb::handle container : containers) {
      check(PyDict_Check(container.ptr()) || PyList_Check(container.ptr()), "a container must be a dict or list");
      containers_.push_back({nb::borrow(container), {}});
      each_item(container.ptr(), [&](PyObject* item) {
        containers_.back().items.push_back(nb::borrow(item));
        return true;
      });
    }
    for (nb::handle object : objects)
      objects_.push_back({nb::borrow(object), nb::borrow(object.type()), dict_of(object)});
    for (nb::handle type : types) {
      check(PyType_Check(type.ptr()), "a type must be one");
      give_version(type);
      types_.push_back({nb::borrow(type), version_of(type)});
    }
    for (nb::handle function : functions) {
      check(PyFunction_Check(function.ptr()), "a function must be one of Python's");
      functions_.push_back({nb::borrow(function), nb::borrow(PyFunction_GET_CODE(function.ptr())),
                            nb::borrow(PyFunction_GET_DEFAULTS(function.ptr())),
                            nb::borrow(PyFunction_GET_KW_DEFAULTS(function.ptr()))});
    }
  }

  // Whether everything is what it was. A type that has no version, as many changes leave it, counts as changed.
  bool holds() const {
    for (const Type& type : types_) {
      if (type.version == 0 || version_of(type.type) != type.version) return false;
    }
    for (const Function& known : functions_) {
      PyObject* const function = known.function.ptr();
      if (PyFunction_GET_CODE(function) != known.code.ptr() ||
          PyFunction_GET_DEFAULTS(function) != known.defaults.ptr() ||
          PyFunction_GET_KW_DEFAULTS(function) != known.keywords.ptr()) {
        return false;
      }
    }
    for (const Space& space : spaces_) {
      const std::uint64_t changes = changes_of(space.dict.ptr());
      if (changes != 0 && changes == space.changes) continue;
      for (const Entry& entry : space.entries) {
        if (item_of(space.dict.ptr(), entry.key.ptr()) != entry.value.ptr()) return false;
      }
      space.changes = changes;
    }
    for (const Object& object : objects_) {
      if (object.object.type().ptr() != object.type.ptr() || !dict_of(object.object).is(object.dict)) return false;
    }
    for (const Container& container : containers_) {
      std::size_t at = 0;
      const bool same = each_item(container.object.ptr(), [&](PyObject* item) {
        return at < container.items.size() && item == container.items[at++].ptr();
      });
      if (!same || at != container.items.size()) return false;
    }
    return true;
  }

  // Calls `visit` with each object that is remembered until it returns another number than 0, which is returned.
  template <typename Visit>
  int each_object(const Visit& visit) const {
    int stop = 0;
    const auto all = [&](const auto&... objects) { return ((stop = visit(objects.ptr())) || ...); };
    for (const Space& space : spaces_) {
      if (all(space.dict)) return stop;
      for (const Entry& entry : space.entries) {
        if (all(entry.key, entry.value)) return stop;
      }
    }
    for (const Container& container : containers_) {
      if (all(container.object)) return stop;
      for (const nb::object& item : container.items) {
        if (all(item)) return stop;
      }
    }
    for (const Object& object : objects_) {
      if (all(object.object, object.type, object.dict)) return stop;
    }
    for (const Type& type : types_) {
      if (all(type.type)) return stop;
    }
    for (const Function& known : functions_) {
      if (all(known.function, known.code, known.defaults, known.keywords)) return stop;
    }
    return 0;
  }

 private:
  struct Entry {
    nb::object key, value;  // no value: absent
  };
  struct Space {
    nb::object dict;
    mutable std::uint64_t changes;
    std::vector<Entry> entries;
  };
  struct Container {
    nb::object object;
    std::vector<nb::object> items;  // of a dict, keys and values
  };
  struct Object {
    nb::object object, type, dict;
  };
  struct Type {
    nb::object type;
    unsigned int version;
  };
  struct Function {
    nb::object function, code, defaults, keywords;
  };

  static void check(bool fits, const char* rule) {
    if (!fits) throw nb::type_error(rule);
  }

  static PyObject* item_of(PyObject* dict, PyObject* key) {
    PyObject* const value = PyDict_GetItemWithError(dict, key);
    if (value == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    return value;
  }

  // A number that differs after each change of a dict; 0 where Python has none.
  static std::uint64_t changes_of([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX < 0x030E0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
#else
    return 0;
#endif
  }

  // A type gets a version when an attribute is looked up; each change takes it away.
  static void give_version(nb::handle type) {
#if PY_VERSION_HEX >= 0x030C0000
    PyUnstable_Type_AssignVersionTag(reinterpret_cast<PyTypeObject*>(type.ptr()));
#else
    const nb::str name("__call__");
    _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type.ptr()), name.ptr());
#endif
  }

  static unsigned int version_of(nb::handle type) {
    return reinterpret_cast<PyTypeObject*>(type.ptr())->tp_version_tag;
  }

  static nb::object dict_of(nb::handle object) {
    PyObject* const dict = PyObject_GenericGetDict(object.ptr(), nullptr);
    if (dict == nullptr) throw nb::python_error();
    return nb::steal(dict);
  }

  // Calls `visit` with each item until it returns false. Returns whether all were visited.
  template <typename Visit>
  static bool each_item(PyObject* container, const Visit& visit) {
    if (PyList_Check(container)) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(container); ++i) {
        if (!visit(PyList_GET_ITEM(container, i))) return false;
      }
      return true;
    }
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(container, &place, &key, &value) != 0;) {
      if (!visit(key) || !visit(value)) return false;
    }
    return true;
  }

  std::vector<Space> spaces_;
  std::vector<Container> containers_;
  std::vector<Object> objects_;
  std::vector<Type> types_;
  std::vector<Function> functions_;
};

// A loader has a stamp, and what that remembers may lead to the loader: Python's collector has to see the cycle.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<Stamp>(self)->each_object(
      [&](PyObject* object) { return object == nullptr ? 0 : visit(object, arg); });
}

int clear(PyObject* self) {
  // In one move, as what is freed may run code that asks the stamp.
  if (nb::inst_ready(self)) const Stamp remembered = std::exchange(*nb::inst_ptr<Stamp>(self), Stamp());
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

void bind_stamp(nb::module_& m) {
  nb::class_<Stamp>(m, "Stamp", nb::type_slots(slots))
      .def(nb::init<const nb::list&, const nb::list&, const nb::list&, const nb::list&, const nb::list&>(), "entries"_a,
           "containers"_a, "objects"_a, "types"_a, "functions"_a)
      .def("holds", &Stamp::holds);
}

}  // namespace fastload
