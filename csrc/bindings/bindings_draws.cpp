// What a plan draws for one image, and what it asks torch.
#include "bindings/bindings.h"

#include <algorithm>
#include <cstddef>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace fastload {

const char* name_of(Question::Kind kind) { return kind == Question::Kind::exp ? "exp" : "perspective"; }

std::vector<double> numbers_of(const Question& question) {
  const std::ptrdiff_t count = question.kind == Question::Kind::exp ? 1 : 10;
  return {question.numbers.begin(), question.numbers.begin() + count};
}

Answer answer_from(const std::string& kind, const std::vector<double>& question, const std::vector<double>& answer) {
  const bool is_exp = kind == "exp";
  if (!is_exp && kind != "perspective") throw nb::value_error(("no such question: " + kind).c_str());
  if (question.size() != (is_exp ? 1 : 10) || !(answer.empty() || answer.size() == (is_exp ? 1 : 8))) {
    throw nb::value_error("an exp has 1 number and 1 as its answer, a perspective 10 and 8");
  }
  Answer made;
  made.question.kind = is_exp ? Question::Kind::exp : Question::Kind::perspective;
  std::copy(question.begin(), question.end(), made.question.numbers.begin());
  if (answer.empty()) return made;
  made.numbers.emplace();
  std::copy(answer.begin(), answer.end(), made.numbers->begin());
  return made;
}

// The draws of one view of an image: ("ok" | "exp" | "perspective" | "crop_too_large", geometry or None, numbers of the
// question).
nb::tuple draw(const DrawPlan& plan, Generator& generator, int width, int height,
               const std::vector<AnswerFields>& known, std::size_t view) {
  if (view >= plan.views()) throw nb::index_error("view out of range");
  std::vector<Answer> answers;
  for (const auto& [kind, question, answer] : known) answers.push_back(answer_from(kind, question, answer));
  Geometry g;
  Question unresolved;
  const nb::list nothing;
  switch (plan.run(generator, width, height, answers, g, unresolved, view)) {
    case DrawStatus::ambiguous: return nb::make_tuple(name_of(unresolved.kind), nb::none(), numbers_of(unresolved));
    case DrawStatus::crop_too_large: return nb::make_tuple("crop_too_large", nb::none(), nothing);
    case DrawStatus::ok: break;
  }
  return nb::make_tuple(
      "ok",
      nb::make_tuple(g.crop.top, g.crop.left, g.crop.height, g.crop.width, g.out_height, g.out_width, g.window.top,
                     g.window.left, g.window.height, g.window.width, g.flip_horizontal, g.flip_vertical),
      nothing);
}

// Boxes to erase in one view of an image of which torch need not be asked anything, and the generator's state before
// their noise.
nb::tuple draw_erased(const DrawPlan& plan, Generator& generator, int width, int height) {
  Geometry geometry;
  Question unresolved;
  if (plan.run(generator, width, height, {}, geometry, unresolved) != DrawStatus::ok) {
    throw nb::value_error("the draws cannot be made");
  }
  return erased_of(geometry);
}

nb::tuple erased_of(const Geometry& geometry) {
  nb::list boxes;
  for (const PixelBox& box : geometry.erased) {
    boxes.append(nb::make_tuple(box.top, box.left, box.height, box.width));
  }
  return nb::make_tuple(boxes, geometry.noise == nullptr ? nb::object(nb::none()) : state_of(*geometry.noise));
}

}  // namespace fastload
