#include "rng/perspective.h"

#include <cmath>
#include <cstddef>
#include <utility>

namespace fastload {
namespace {

constexpr std::size_t kSize = 8;
using Row = std::array<double, 2 * kSize + 1>;  // of the matrix, then of the right-hand side, then of the inverse
using Rows = std::array<Row, kSize>;

// torchvision's equations; all of their numbers are exact.
Rows equations(const Corners& corners) {
  const double right = corners[0] - 1, bottom = corners[1] - 1;
  const double goals[4][2] = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
  Rows rows{};
  for (std::size_t i = 0; i < kSize; ++i) {
    const double x = corners[2 + 2 * (i / 2)], y = corners[3 + 2 * (i / 2)], goal = goals[i / 2][i % 2];
    Row& row = rows[i];
    row[3 * (i % 2)] = x;
    row[3 * (i % 2) + 1] = y;
    row[3 * (i % 2) + 2] = 1;
    row[6] = -goal * x;
    row[7] = -goal * y;
    row[kSize] = goal;
    row[kSize + 1 + i] = 1;
  }
  return rows;
}

// Gauss and Jordan's elimination with row pivots. A singular matrix gives infinities or NaN.
void solve(Rows& rows) {
  for (std::size_t column = 0; column < kSize; ++column) {
    std::size_t pivot = column;
    for (std::size_t i = column + 1; i < kSize; ++i) {
      if (std::fabs(rows[i][column]) > std::fabs(rows[pivot][column])) pivot = i;
    }
    std::swap(rows[column], rows[pivot]);
    const double by = rows[column][column];
    for (double& value : rows[column]) value /= by;
    for (std::size_t i = 0; i < kSize; ++i) {
      const double factor = rows[i][column];
      if (i == column || factor == 0) continue;
      for (std::size_t j = column; j < rows[i].size(); ++j) rows[i][j] -= factor * rows[column][j];
    }
  }
}

}  // namespace

Corners draw_corners(Generator& generator, double distortion, int width, int height) {
  const int x_range = static_cast<int>(distortion * (width / 2)) + 1;
  const int y_range = static_cast<int>(distortion * (height / 2)) + 1;
  const auto near = [&](int range) { return static_cast<double>(generator.randint(0, range)); };
  const auto far = [&](int range, int side) { return static_cast<double>(generator.randint(side - range, side)); };
  Corners corners{static_cast<double>(width), static_cast<double>(height)};
  corners[2] = near(x_range);  // top left
  corners[3] = near(y_range);
  corners[4] = far(x_range, width);  // top right
  corners[5] = near(y_range);
  corners[6] = far(x_range, width);  // bottom right
  corners[7] = far(y_range, height);
  corners[8] = near(x_range);  // bottom left
  corners[9] = far(y_range, height);
  return corners;
}

// Both torch's solution, by Householder's reflections, and ours are exact for a matrix whose columns, and a right-hand
// side that, differ from the given ones by a small part of their norms: 64 times the unit roundoff, times a small
// constant (Higham, Accuracy and Stability of Numerical Algorithms, theorems 9.4 and 20.3). The inverse says how far
// the solutions can differ then. If all that is so close rounds to the same float32, torch's solution does too.
std::optional<Coefficients> perspective_coefficients(const Corners& corners) {
  constexpr double kPart = 2e-13;
  Rows rows = equations(corners);
  std::array<double, kSize + 1> norms{};
  for (std::size_t j = 0; j < norms.size(); ++j) {
    for (const Row& row : rows) norms[j] = std::hypot(norms[j], row[j]);
  }
  solve(rows);
  double size = norms[kSize];
  for (std::size_t j = 0; j < kSize; ++j) size += norms[j] * std::fabs(rows[j][kSize]);
  Coefficients coefficients;
  for (std::size_t i = 0; i < kSize; ++i) {
    double weights = 0;
    for (std::size_t j = kSize + 1; j < rows[i].size(); ++j) weights += std::fabs(rows[i][j]);
    const double value = rows[i][kSize], off = kPart * weights * size;
    const auto low = static_cast<float>(value - off), high = static_cast<float>(value + off);
    if (low != high) return std::nullopt;  // or both are NaN
    coefficients[i] = low;
  }
  return coefficients;
}

}  // namespace fastload
