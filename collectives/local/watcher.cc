// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>

namespace af::local {

Watcher::Watcher(const std::vector<Link>& links, int rank, Alarm& alarm, Inquiry& inquiry,
                 const Cancel* cancel)
    : links_(links),
      rank_(rank),
      alarm_(alarm),
      inquiry_(inquiry),
      cancel_(cancel),
      stop_(eventfd(0, EFD_CLOEXEC)),
      records_(links.size()),
      got_(links.size()) {
  // Signals are for the program's own threads: a Python handler must not wait for this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "af-watch");
    watch();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watcher::~Watcher() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Watcher::watch() {
  const std::size_t count = links_.size();
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const Link& link : links_) polled.push_back({link.control.get(), POLLIN, 0});
  for (const Link& link : links_) polled.push_back({link.process.get(), POLLIN, 0});  // -1: ignored
  polled.push_back({event_of(cancel_), POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    if (polled.back().revents != 0) {
      alarm_.raise(CommunicatorError(CommunicatorError::Kind::aborted, cancel_->why(), {rank_}));
      polled.back() = {-1, 0, 0};
    }
    for (std::size_t i = 0; i < count; ++i) {
      // A report is read before the end of the rank is acted on: it says who failed first.
      const bool exited = polled[1 + count + i].revents != 0;
      const bool look = polled[1 + i].fd >= 0 && (polled[1 + i].revents != 0 || exited);
      const bool ended = look && !read_control(i);
      if (ended) polled[1 + i].fd = -1;
      if (exited) polled[1 + count + i].fd = -1;
      if (ended || exited) alarm_.mark_dead(links_[i].rank);
    }
  }
}

bool Watcher::read_control(std::size_t link) {
  FailureRecord& record = records_[link];
  char* begin = reinterpret_cast<char*>(&record);
  while (true) {
    const ssize_t n = recv(links_[link].control.get(), begin + got_[link],
                           sizeof(record) - got_[link], MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    got_[link] += std::size_t(n);
    if (got_[link] < sizeof(record)) continue;
    got_[link] = 0;
    if (record.magic == FailureRecord::kMagic) {
      alarm_.raise_from_peer(record);
    } else if (record.magic == FailureRecord::kAsk || record.magic == FailureRecord::kAnswer) {
      inquiry_.receive(links_[link], record);
    } else {
      return false;
    }
  }
}

}  // namespace af::local
