// An index of JPEG files that was made ahead of time and lies in a file. Whatever its bytes say, nothing outside of it
// is read, and nothing is used that was not written with the same secret key. Knows no pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/keyed_hash.h"

namespace fastload {

// Points within one file, as PointRecorder codes them.
using Points = std::shared_ptr<const std::vector<std::uint8_t>>;

// The layout, in little-endian words of 8 bytes (fastload/jpeg_index/file.py writes it):
//   0 magic and version   8 number of lists   16 where the table begins   24 where it ends   32 size of all
//   40 tag of the bytes before   48 lists, each a tag and the points   then the table, by id: id, place <<
//   24 | bytes of the list   then what `fastload index` wants to know again, with a tag before it
// The file is read when it is asked, not mapped: one that is cut short or written over ends no process. Thread-safe.
class IndexFile {
 public:
  static constexpr std::size_t kHeaderBytes = 48;

  // Null, and why, if the file cannot be read or was not made with these secrets. Throws std::bad_alloc.
  static std::shared_ptr<IndexFile> open(const char* path, const HashKey& secrets, std::string& error);
  ~IndexFile();
  IndexFile(const IndexFile&) = delete;
  IndexFile& operator=(const IndexFile&) = delete;

  // Null if there are none, or they are not those that were written. Never throws.
  Points find(const FileKey& key) const;
  std::size_t files() const { return table_.size(); }
  std::size_t bytes() const { return table_.size() * sizeof(Entry); }  // of memory
  const HashKey& secrets() const { return secrets_; }

 private:
  struct Entry {
    std::uint64_t id;
    std::uint64_t place;
  };
  IndexFile(int descriptor, const HashKey& secrets) : descriptor_(descriptor), secrets_(secrets) {}
  bool read_table(std::string& error);

  const int descriptor_;
  const HashKey secrets_;
  std::vector<Entry> table_;
};

}  // namespace fastload
