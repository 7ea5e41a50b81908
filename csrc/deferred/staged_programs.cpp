#include "deferred/staged_programs.h"

#include <algorithm>
#include <unordered_map>

#include "sample/sample.h"

namespace fastload {
namespace {

// One image of one of the tensors.
struct Part {
  const TensorProgram* tensor;
  const ImageProgram* program;
  std::size_t out;
  std::int32_t place;
};

// Each file's images, in order of the files' first ones.
std::vector<std::vector<Part>> by_file(const std::vector<std::shared_ptr<TensorProgram>>& tensors,
                                       const std::vector<std::size_t>& first) {
  std::vector<std::vector<Part>> files;
  std::unordered_map<const std::uint8_t*, std::size_t> known;
  std::int32_t place = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorProgram& tensor = *tensors[i];
    const std::size_t bytes = 3 * static_cast<std::size_t>(tensor.height) * static_cast<std::size_t>(tensor.width);
    for (std::size_t image = 0; image < tensor.images.size(); ++image) {
      const ImageProgram* program = tensor.images[image].get();
      const std::size_t file = known.try_emplace(program->file.data, files.size()).first->second;
      if (file == files.size()) files.emplace_back();
      files[file].push_back({&tensor, program, first[i] + image * bytes, place++});
    }
  }
  return files;
}

void stage_file(const std::vector<Part>& parts, std::size_t begin, Staging& staging) {
  if (parts[0].program->file.is_decoded()) return;
  Input input;
  input.data = parts[0].program->file.data;
  input.size = parts[0].program->file.size;
  ByteSource source;
  JpegHeader header;
  Outcome outcome;
  if (!load(input, 0, source, header, outcome) || header.format != Format::jpeg) return;
  std::size_t owner = begin;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.program->place) continue;  // no kernel writes a part of an image
    SampleOptions options;
    options.height = part.tensor->height;
    options.width = part.tensor->width;
    options.pass_rule = part.tensor->pass_rule;
    const std::size_t number = begin + i;
    if (parts.size() == 1) {
      staging.add(number, source, header, part.program->geometry, options, part.out);
    } else {
      if (!staging.has(owner)) owner = number;
      staging.add_part(number, source, header, part.program->geometry, options, part.out, owner);
    }
  }
}

}  // namespace

StagedPrograms stage_programs(const std::vector<std::shared_ptr<TensorProgram>>& tensors,
                              const std::vector<std::size_t>& first, std::uint8_t* memory, std::size_t size,
                              std::size_t most_bytes) {
  const std::vector<std::vector<Part>> files = by_file(tensors, first);
  StagedPrograms staged;
  for (const std::vector<Part>& parts : files) {
    for (const Part& part : parts) staged.order.push_back(part.place);
  }
  staged.staging = std::make_unique<Staging>(memory, size, staged.order.size(), 1, NewFile::find);
  std::size_t begin = 0;
  for (const std::vector<Part>& parts : files) {
    stage_file(parts, begin, *staged.staging);
    begin += parts.size();
  }
  staged.chunks = staged.staging->finish(most_bytes);
  return staged;
}

}  // namespace fastload
