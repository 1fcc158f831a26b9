// SPDX-License-Identifier: Apache-2.0
// Writes files and the job's output from a thread of its own: a slow shared file system or a paused
// terminal must not stop the agent from answering signals.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/unique_fd.h"

namespace af {

// Thread-safe. Work is done in the order it was given.
class OutputWriter {
 public:
  OutputWriter();
  ~OutputWriter();  // finishes what is queued

  // Writes all of `text` to `fd`, which has to stay open. A failed write (reader gone, disk full)
  // is dropped; first_failure() tells of it.
  void write(int fd, std::string text);
  // The same for a file that its owner may give up while the text still waits.
  using File = std::shared_ptr<const UniqueFd>;
  void write(const File& file, std::string text);
  void run(std::function<void()> work);  // must not throw

  // Bytes waiting: the agent stops reading from ranks above kFull, so that memory stays bounded.
  size_t waiting() const;
  static constexpr size_t kFull = 16 << 20;

  // Waits until everything is written; false: something still hangs after `seconds`.
  bool drain(double seconds);
  std::string first_failure() const;

 private:
  struct Item {
    int fd;
    std::string text;
    File file;
    std::function<void()> work;
  };
  void add(Item item);
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  size_t waiting_ = 0;
  bool busy_ = false;
  bool stopping_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace af
