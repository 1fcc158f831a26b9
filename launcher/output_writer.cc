// SPDX-License-Identifier: Apache-2.0
#include "launcher/output_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/error.h"

namespace af {
namespace {

// Gives the reason of a failure, or nothing. Descriptors may be non-blocking: a terminal or a
// socket that another process has switched so.
std::string write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return std::strerror(errno);
    }
  }
  return "";
}

}  // namespace

OutputWriter::OutputWriter() {
  // Signals are the main thread's business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

OutputWriter::~OutputWriter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void OutputWriter::write(int fd, std::string text) {
  if (!text.empty()) add({.fd = fd, .text = std::move(text), .file = nullptr, .work = nullptr});
}

void OutputWriter::write(const File& file, std::string text) {
  if (!text.empty())
    add({.fd = file->get(), .text = std::move(text), .file = file, .work = nullptr});
}

void OutputWriter::run(std::function<void()> work) {
  add({.fd = -1, .text = "", .file = nullptr, .work = std::move(work)});
}

void OutputWriter::add(Item item) {
  std::lock_guard lock(mutex_);
  waiting_ += item.text.size();
  queue_.push_back(std::move(item));
  changed_.notify_all();
}

size_t OutputWriter::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

bool OutputWriter::drain(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [this] { return queue_.empty() && !busy_; });
}

std::string OutputWriter::first_failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void OutputWriter::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::string failure;
    if (item.work)
      item.work();
    else
      failure = write_all(item.fd, item.text);
    lock.lock();
    busy_ = false;
    waiting_ -= item.text.size();
    if (failure_.empty()) failure_ = failure;
    changed_.notify_all();
  }
}

}  // namespace af
